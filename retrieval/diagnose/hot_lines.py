"""The lines of a kernel that matter: groups of hot source lines or instructions, each with its
share, its leading stall, its cause and the source text.

Causes are data (`[[line_causes]]` of `data/diagnosis.toml`). Does not know profilers; the readers
of `retrieval.profiles` yield the rows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from kb.answers import HotLines, SignalFinding
from kb.errors import InvalidKnowledge, InvalidPredicate
from kb.predicates import Bindings, Predicate, Value, compile_predicate
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import DATA, load_signals
from retrieval.profiles.lines import (
    OTHER,
    READY,
    TIME_UNIT,
    Access,
    LineRow,
    access_of,
    awaited_by,
    congesting,
    registers_named,
    without_skid,
)

MIN_SHARE = 5.0  # per cent of the samples, or of the excess traffic, of a hot line
MAX_GROUPS = 6
NEAR_LINES = 3  # source lines at this distance with one cause are one group
SHOWN_INSTRUCTIONS = 3
MAX_QUOTED = 12  # source lines of a group
MAX_SOURCE_LINE = 200  # characters
# Share of the stalls of a line from which a reason leads.
LEADING = 0.2
# Causes that counters of each instruction show, and the stalls in the queue that they fill.
FILLED = {
    "bank-conflict": ("mio_throttle", "short_scoreboard"),
    "uncoalesced": ("lg_throttle",),
}
BEHIND_SECTORS = ("lg_throttle", "long_scoreboard", "drain")  # where most traffic is in vain
# Kinds of instructions that other ones wait for; a stalled instruction is described by them.
SLOW = frozenset(
    (
        *("global_load", "local_load", "shared_load", "async_copy", "constant_load", "load"),
        *("gather", "atomic", "special", "divide", "call", "shuffle", "barrier", "global_store"),
    )
)
# Reasons of an instruction that waits for an earlier one.
OF_RESULTS = ("long_scoreboard", "short_scoreboard", "waitcnt", "barrier", "drain")


@dataclass(frozen=True)
class LineCause:
    """A cause of a hot line: the signals it means, the leading one first, and its sentence, in
    which `{name}` is a value of the predicate. `words` are searched for. `metric` is the share of
    the samples that it explains, for the moves against it; "" for none."""

    id: str
    when: Predicate
    signals: tuple[str, ...]
    confidence: str
    text: str
    words: tuple[str, ...]
    source: str
    metric: str = ""

    @property
    def by_stall(self) -> bool:
        """Whether it explains the samples of a stall reason only."""
        return "stall" in self.when.names().parameters


@dataclass(frozen=True)
class _Line:
    """A source line or an instruction, with its known properties."""

    rows: tuple[LineRow, ...]
    first: int  # source lines, or indexes of instructions without these
    last: int
    file: str
    cause: LineCause | None
    values: Mapping[str, Value | None]
    awaited: LineRow | None

    @property
    def weight(self) -> float:
        return sum(row.samples for row in self.rows)

    @property
    def explained(self) -> float:
        """The samples that the cause explains: a line may wait for several reasons."""
        if self.cause is None or not self.cause.by_stall or not self.values["stall"]:
            return self.weight
        return sum(row.stalls.get(str(self.values["stall"]), 0.0) for row in self.rows)


def hot_lines(
    rows: Sequence[LineRow], unit: str = "samples", draft: str | None = None
) -> tuple[HotLines, ...]:
    """The groups of hot lines of one kernel, those with the most explained samples first. `rows`
    are in the order of addresses; `draft` is the source of the kernel, from which lines are quoted.
    """
    if unit == TIME_UNIT:
        rows = without_skid(_located(rows, draft or ""))
    total = sum(row.samples for row in rows)
    if not total:
        rows = [replace(row, samples=1.0) for row in rows]
        unit, total = "instructions", float(len(rows))
    merged = _merged(list(_lines(rows, total, unit)))
    groups = [group for group in merged if _matters(group, total, unit)]
    texts = {(row.file, row.line): row.source for row in rows if row.source}
    chosen = _in_order(groups)[:MAX_GROUPS]
    return tuple(
        replace(found, source=_quoted(found, texts, draft)) if found.first else found
        for found in (_described(group, total, unit) for group in chosen)
    )


def _located(rows: Sequence[LineRow], draft: str) -> list[LineRow]:
    """The rows with the numbers of the nearest lines of the draft that have the same text."""
    places: dict[str, list[int]] = {}
    for number, line in enumerate(draft.splitlines(), 1):
        places.setdefault("".join(line.split()), []).append(number)

    def nearest(row: LineRow) -> int:
        known = places.get("".join(row.source.split()), ()) if row.source else ()
        return min(known, key=lambda number: abs(number - row.line), default=row.line)

    return [replace(row, line=nearest(row)) for row in rows]


def _in_order(groups: Sequence[list[_Line]]) -> list[list[_Line]]:
    """The groups with a known cause by the samples that it explains, then the others. Accesses in
    vain also delay the other instructions of their queue."""
    weights = {id(group): sum(line.explained for line in group) for group in groups}
    rows = [row for group in groups for line in group for row in line.rows]
    in_vain = 2 * sum(row.excess_sectors for row in rows) >= sum(row.sectors for row in rows)
    filled = {**FILLED, "uncoalesced": BEHIND_SECTORS} if in_vain else FILLED

    def key(group: list[_Line]) -> tuple[bool, float]:
        queue = filled.get(_id(group[0]), ())
        behind = (g for g in groups if g is not group and g[0].values["stall"] in queue)
        behind = (g for g in behind if _id(g[0]) not in (*FILLED, "few-warps", "idle-lanes"))
        return group[0].cause is None, -weights[id(group)] - sum(weights[id(g)] for g in behind)

    return sorted(groups, key=key)


def findings_of(lines: Iterable[HotLines]) -> Iterator[SignalFinding]:
    """The signals of hot lines, those of the hottest first, with the lines as evidence."""
    for group in lines:
        for signal in group.signals:
            evidence = {
                "name": "lines",
                "value": group.place,
                "test": group.finding,
                "rule": f"line-{group.cause}",
                "source": next(c.source for c in load_causes() if c.id == group.cause),
                "raw": "",
            }
            yield SignalFinding(signal, group.confidence, (evidence,))


def metrics_of(lines: Iterable[HotLines]) -> dict[str, float]:
    """The shares of the samples by cause, in per cent, for causes that moves read."""
    names = {cause.id: cause.metric for cause in load_causes() if cause.metric}
    shares: dict[str, float] = {}
    for group in lines:
        if name := names.get(group.cause):
            shares[name] = round(shares.get(name, 0.0) + group.share_pct, 1)
    return shares


def words_of(lines: Iterable[HotLines]) -> str:
    """Words to search for, of the causes of hot lines."""
    known = {cause.id: cause.words for cause in load_causes()}
    return " ".join(dict.fromkeys(w for group in lines for w in known.get(group.cause, ())))


# -- lines


def _lines(rows: Sequence[LineRow], total: float, unit: str) -> Iterator[_Line]:
    """A row for each source line, or for each instruction if no source line is known."""
    by_line: dict[tuple[str, int], list[int]] = {}
    known = any(row.line for row in rows)
    for index, row in enumerate(rows):
        if row.line or not known:
            key = (row.file, row.line) if known else ("", index)
            by_line.setdefault(key, []).append(index)
    all_sectors = sum(row.excess_sectors for row in rows)
    all_wavefronts = sum(row.excess_wavefronts for row in rows)
    slots = sum((row.executed for row in rows if row.lanes), 0.0) * LANES
    queue = congesting(rows, total)
    whole: dict[str, Value | None] = {
        "unit": unit,
        "registers": (registers := registers_named(rows)),
        "warps": REGISTERS // (registers * LANES) if registers else None,
        "matrix": any(access_of(row.instruction).kind == "matrix" for row in rows),
    }
    for (file, place), indexes in by_line.items():
        own = tuple(rows[index] for index in indexes)
        hottest = max(indexes, key=lambda index: rows[index].samples)
        stall, stall_pct = _leading_stall(own)
        needs = stall in OF_RESULTS or not stall
        at = awaited_by(rows, hottest, stall) if needs else None
        awaited = rows[at] if at is not None else None
        does = _accesses(own, rows[hottest], awaited)
        if queue is not None and _queues(stall, does, rows[queue]):
            awaited, does = rows[queue], access_of(rows[queue].instruction)
        values: dict[str, Value | None] = {
            **whole,
            "share_pct": 100 * sum(row.samples for row in own) / total,
            "stall": stall,
            "stall_pct": stall_pct,
            "access": does.kind,
            "bits": does.bits,
            "bytes": does.bits // 8,
            "scalar": does.scalar,
            "instruction": _short((awaited or rows[hottest]).instruction),
            "lanes": _lanes(own),
            "idle_pct": _idle(own, slots),
            **_contents(own),
            "waits": _waits(stall, does, awaited),
            # A line may wait for the result of another one.
            **_moved((*own, awaited) if awaited else own, all_sectors, all_wavefronts),
        }
        for kind in ("atomic", "special"):
            if does.kind == kind and not values[kind]:
                values[kind] = _short((awaited or rows[hottest]).instruction)
        values["shared_atomic"] = str(values["atomic"]).startswith(("ATOMS", "REDS", "ds_"))
        yield _Line(own, place, place, file, _cause(values), values, awaited)


LANES = 32  # of a warp of SASS, whose profiles alone count active lanes
REGISTERS = 65_536  # of a multiprocessor, in all generations since Kepler
_FUNCTION = re.compile(
    r"\b(?:__|\w{1,12}(?:::|\.))?(?P<name>(?:erfc?|exp(?:2|m1)?|log(?:2|10|1p)?|pow|a?(?:sin|cos|tan)h?"
    r"|atan2|cbrt|[tl]gamma|sigmoid|gelu)f?)\s*\("
)


def _queues(stall: str, does: Access, atomic: LineRow) -> bool:
    """Whether a line waits in the queue that an atomic fills, or for a load that passes it."""
    reasons = FILLED["uncoalesced" if atomic.stalls.get("lg_throttle") else "bank-conflict"]
    passes = "lg_throttle" in reasons and does.kind == "global_load"
    return stall in reasons or (stall == "long_scoreboard" and passes)


def _idle(own: Sequence[LineRow], slots: float) -> float:
    """The part of the kernel's lanes, in per cent, that this line leaves idle."""
    idle = sum(row.executed * (LANES - row.lanes) for row in own if row.lanes)
    return 100 * idle / slots if slots else 0.0


def _contents(own: Sequence[LineRow]) -> dict[str, Value | None]:
    """The atomic and the special instruction of a line, the share of the special ones in per cent,
    and a function that the source calls."""
    weight = any(row.executed for row in own)
    counts = [(row.executed if weight else 1.0, row.instruction) for row in own if row.instruction]
    kinds = {text: access_of(text).kind for _, text in counts}
    special = [(n, text) for n, text in counts if kinds[text] == "special"]
    atomic = max(((n, text) for n, text in counts if kinds[text] == "atomic"), default=(0.0, ""))
    called = next((found for row in own if (found := _FUNCTION.search(row.source))), None)
    whole = sum(n for n, _ in counts)
    return {
        "atomic": _short(atomic[1]) if atomic[0] else "",
        "special": _short(max(special)[1]) if special else "",
        "special_pct": 100 * sum(n for n, _ in special) / whole if whole else 0.0,
        "function": called["name"] if called else "",
    }


def _waits(stall: str, does: Access, awaited: LineRow | None) -> str:
    """The wait in words, such as "long scoreboard on a load of 4 bytes (LDG.E), "."""
    if not stall or not does.bits or does.kind not in SLOW:
        return ""
    name = does.kind.split("_")[-1]
    opcode = f" ({_short(awaited.instruction)})" if awaited is not None else ""
    return f"{stall.replace('_', ' ')} on a {name} of {does.bits // 8} bytes{opcode}, "


def _accesses(own: Sequence[LineRow], hottest: LineRow, awaited: LineRow | None) -> Access:
    """What a line waits for: the awaited instruction, else the hottest, else its dearest access."""
    for row in (awaited, hottest):
        access = access_of(row.instruction) if row is not None else OTHER
        if access.kind in SLOW or (row is hottest and access.kind not in ("other", "arithmetic")):
            return access
    kinds = [access for row in own if (access := access_of(row.instruction)).kind in SLOW]
    return kinds[0] if kinds else access_of(hottest.instruction)


def _leading_stall(own: Sequence[LineRow]) -> tuple[str, float]:
    """The leading reason for which warps at these rows were stalled, and its share in per cent."""
    stalls: dict[str, float] = {}
    for row in own:
        for reason, count in row.stalls.items():
            if reason not in READY:
                stalls[reason] = stalls.get(reason, 0.0) + count
    total = sum(stalls.values())
    if not total:
        return "", 0.0
    reason = max(stalls, key=lambda name: stalls[name])
    share = stalls[reason] / total
    return (reason, 100 * share) if share >= LEADING else ("", 0.0)


def _moved(
    own: Sequence[LineRow], all_sectors: float, all_wavefronts: float
) -> dict[str, Value | None]:
    """Shares of the excess traffic of the line: in its traffic and in the kernel's excess."""
    sums = {
        name: sum(getattr(row, name) for row in own)
        for name in ("sectors", "excess_sectors", "wavefronts", "excess_wavefronts", "executed")
    }
    sectors, excess = sums["sectors"], sums["excess_sectors"]
    wavefronts, conflicts = sums["wavefronts"], sums["excess_wavefronts"]
    return {
        "excess_pct": 100 * excess / sectors if sectors else None,
        "of_excess_pct": 100 * excess / all_sectors if all_sectors else None,
        "conflict_pct": 100 * conflicts / wavefronts if wavefronts else None,
        "of_conflicts_pct": 100 * conflicts / all_wavefronts if all_wavefronts else None,
        **sums,
    }


def _lanes(own: Sequence[LineRow]) -> float | None:
    known = [(row.lanes, max(row.executed, 1.0)) for row in own if row.lanes is not None]
    weight = sum(executed for _, executed in known)
    return sum(lanes * executed for lanes, executed in known) / weight if known else None


def _cause(values: Mapping[str, Value | None]) -> LineCause | None:
    bindings = Bindings(parameters=values)
    return next((c for c in load_causes() if c.when.evaluate(bindings).value), None)


def _matters(group: Sequence[_Line], total: float, unit: str) -> bool:
    """Whether lines take a part of the time, or do a part of the kernel's work in vain."""
    cause = group[0].cause
    if unit == "instructions":  # a listing without samples: only faults independent of time
        return cause is not None and cause.id == "spill"
    share = 100 * sum(line.weight for line in group) / total
    in_vain = cause is not None and any(
        sum(float(line.values[name] or 0) for line in group) >= 4 * MIN_SHARE
        for name in ("of_excess_pct", "of_conflicts_pct")
    )
    return share >= MIN_SHARE or (in_vain and cause is not None and cause.id in FILLED)


def _merged(lines: Sequence[_Line]) -> list[list[_Line]]:
    """Neighbouring lines with one cause form a group, as do all instructions with one cause."""
    groups: list[list[_Line]] = []
    open_groups: dict[tuple[str, str], list[_Line]] = {}
    for line in sorted(lines, key=lambda line: (line.file, line.first)):
        last = open_groups.get((line.file, _id(line)))
        near = last is not None and (
            line.first - last[-1].last <= NEAR_LINES or not line.rows[0].line
        )
        if last is not None and near and line.cause is not None:
            last.append(line)
        else:
            groups.append([line])
            open_groups[line.file, _id(line)] = groups[-1]
    return groups


def _id(line: _Line) -> str:
    return line.cause.id if line.cause else ""


# -- the record


def _described(group: Sequence[_Line], total: float, unit: str) -> HotLines:
    lead = max(group, key=lambda line: line.weight)
    rows = [row for line in group for row in line.rows]
    share = round(100 * sum(row.samples for row in rows) / total, 1)
    numbered = bool(lead.rows[0].line)
    first, last = group[0].first, group[-1].last
    awaited = lead.awaited
    near = awaited is not None and abs(awaited.line - first) <= MAX_QUOTED
    if numbered and awaited is not None and awaited.file == lead.file and awaited.line and near:
        first, last = min(first, awaited.line), max(last, awaited.line)
    hottest = max(rows, key=lambda row: row.samples)
    place = _place(lead.file, first, last) if numbered else _addresses(len(group), hottest)
    cause = lead.cause
    text = filled(cause.text, lead.values) if cause else _unexplained(lead)
    return HotLines(
        place=place,
        file=lead.file,
        first=first if numbered else 0,
        last=last if numbered else 0,
        share_pct=share,
        unit=unit,
        stall=str(lead.values["stall"] or ""),
        stall_pct=round(float(lead.values["stall_pct"] or 0), 1),
        cause=cause.id if cause else "",
        signals=cause.signals if cause else (),
        confidence=cause.confidence if cause else "C",
        finding=f"{place}: {share:g} % of {unit}, {text}{_at(lead) if numbered else ''}",
        instructions=tuple(_instructions(rows, total)),
        awaited=awaited.instruction.strip() if awaited is not None else "",
    )


def _at(line: _Line) -> str:
    """Where the awaited instruction is, if on another line, and the header of inlined code."""
    awaited, hottest = line.awaited, max(line.rows, key=lambda row: row.samples)
    waits = awaited is not None and awaited.line not in (0, line.first)
    parts = (
        f"line {line.first} waits for line {awaited.line}" if waits and awaited else "",
        f"inlined from {via}" if (via := hottest.via) else "",
    )
    return f" ({'; '.join(filter(None, parts))})" if any(parts) else ""


def _place(file: str, first: int, last: int) -> str:
    where = f"line {first}" if first == last else f"lines {first} to {last}"
    return f"{PurePath(file).name} {where}" if file else where


def _addresses(count: int, hottest: LineRow) -> str:
    if count == 1:
        return f"instruction {hottest.address}"
    return f"{count} instructions, most at {hottest.address}"


def _instructions(rows: Sequence[LineRow], total: float) -> Iterator[Mapping[str, Any]]:
    """The hottest instructions."""
    listed = [row for row in rows if row.instruction and row.samples]
    for row in sorted(listed, key=lambda row: -row.samples)[:SHOWN_INSTRUCTIONS]:
        yield {
            "address": row.address,
            "text": row.instruction.strip(),
            "share_pct": round(100 * row.samples / total, 1),
        }


def _unexplained(line: _Line) -> str:
    stall = str(line.values["stall"] or "").replace("_", " ")
    name = str(line.values["instruction"] or "")
    parts = (f"stalled by {stall}" if stall else "", f"at {name}" if name else "")
    return ", ".join(filter(None, parts)) or "no stall reason known"


_PLACE = re.compile(r"\{(\w+)\}")


def filled(text: str, values: Mapping[str, Value | None]) -> str:
    """The text with `{name}` replaced by its value, rounded to three digits below 100."""

    def shown(match: re.Match[str]) -> str:
        value = values.get(match[1])
        if isinstance(value, float):
            return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        return str(value).replace("_", " ") if match[1] == "stall" else str(value)

    return _PLACE.sub(shown, text)


def _short(instruction: str) -> str:
    bare = re.sub(r"^\s*(?:/\*\w+\*/\s*)?(?:@!?U?P\w+\s+)?", "", instruction)
    return bare.strip().partition(" ")[0].strip(";,")


def _quoted(
    found: HotLines, known: Mapping[tuple[str, int], str], draft: str | None
) -> tuple[str, ...]:
    """The numbered source lines of a group: of the draft if it is the file, else those `known` from
    the profile, by file and line."""
    of_file = {number: text for (file, number), text in known.items() if file == found.file}
    texts = {n: text for n, text in of_file.items() if found.first <= n <= found.last}
    lines = (draft or "").splitlines()
    shift = _shift(lines, of_file) if lines else None
    if shift is not None and found.last + shift <= len(lines):
        numbers = range(found.first, min(found.last, found.first + MAX_QUOTED - 1) + 1)
        texts = {n: lines[n + shift - 1] for n in numbers}
    return tuple(
        f"{n}: {text[:MAX_SOURCE_LINE].rstrip()}" for n, text in sorted(texts.items())[:MAX_QUOTED]
    )


def _shift(lines: Sequence[str], texts: Mapping[int, str]) -> int | None:
    """What to add to a line number of the profile for that of the draft; None if it is of another
    text. A file may have a head that the draft lacks."""
    if not texts:
        return 0
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines, 1):
        places.setdefault("".join(line.split()), []).append(number)
    votes: dict[int, int] = {}
    for number, text in texts.items():
        for place in places.get("".join(text.split()), ()):
            votes[place - number] = votes.get(place - number, 0) + 1
    return max(votes, key=lambda shift: (votes[shift], -abs(shift))) if votes else None


# -- the table


@lru_cache(maxsize=1)
def load_causes() -> tuple[LineCause, ...]:
    """The built-in causes, in their order: the first that holds is that of a line."""
    path = DATA / "diagnosis.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(_cause_from(row, path.name) for row in data["line_causes"])


def _cause_from(row: Mapping[str, Any], origin: str) -> LineCause:
    """Parse a cause. Raises InvalidKnowledge, which names it."""
    name = row.get("id", "?")
    keys = {"id", "when", "signals", "confidence", "text", "words", "source"}
    problem = ""
    if row.keys() - {"metric"} != keys:
        odd = ", ".join(sorted(keys ^ (row.keys() - {"metric"})))
        problem = f"has missing or unknown keys: {odd}"
    elif row.get("metric", "") not in ("", *load_metrics().metrics):
        problem = f"names the unknown metric {row['metric']!r}"
    elif unknown := [signal for signal in row["signals"] if signal not in load_signals()]:
        problem = f"names unknown signals {unknown}"
    if not problem:
        try:
            when = compile_predicate(row["when"])
        except InvalidPredicate as error:
            problem = error.message
    if problem:
        raise InvalidKnowledge(
            f"{origin}: cause {name!r} {problem}", hint=f"Correct {origin} and load it again."
        )
    return LineCause(
        name,
        when,
        tuple(row["signals"]),
        row["confidence"],
        row["text"],
        tuple(row["words"]),
        row["source"],
        row.get("metric", ""),
    )
