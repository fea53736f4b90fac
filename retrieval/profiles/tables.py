"""Rows of names with times or shares of the time, as any profiler prints them.

A table with a header has a column of names and a column of times or shares; cells are separated by
bars, by commas, by tabs or by two blanks. Times have the unit of their cell ("3.4ms") or of their
column ("Time (ns)", "DurationNs"). Rows that only continue a name belong to the row above. A row
with times of host and device becomes two rows.

Lines without a header are a name and quantities in any order ("gemm: 8.7ms / 73 = 0.12ms, 64%").
Which of them is the total, the number of calls and the time of one call follows from their product;
without one, the first time is the total unless words such as "avg" or "per" are next to it.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from itertools import permutations

from retrieval.profiles.counters import rates
from retrieval.profiles.lexicon import metric_of, pattern_of, rows_of
from retrieval.profiles.lines import LineRow, stall_name
from retrieval.profiles.profile import Kernel, Metric, Profile, number, without_prefix
from retrieval.profiles.program import (
    OF_OPERATORS,
    WAITS,
    completed,
    is_host,
    of_program,
    totals_of,
)
from retrieval.profiles.quantities import in_one_unit, quantities

KIND = "table"
UNITS = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6, "m": 6e7}
UNITS |= {
    "US": 1.0,
    "nsec": 1e-3,
    "usec": 1.0,
    "msec": 1e3,
    "seconds": 1e6,
    "secs": 1e6,
    "min": 6e7,
}
MAX_LINE = 4_000
LEAST_PART = 0.4  # of the lines, from which on names with numbers alone are a table
LEAST_LINES = 4  # of names and times, and their part of a text of an unknown kind
STRICT_PART = 0.6
MAX_HEADER = 400  # characters; a longer line of few cells is no header
MANY_CELLS = 10
_TOOLS = tuple((row["kind"], re.compile(row["mark"])) for row in rows_of("tools"))

_NAME = pattern_of("name_heads")
_EXACT = frozenset(("name", "kernel", "kernel name", "function", "symbol"))
_COUNT = pattern_of("count_heads")
_TIME = pattern_of("time_heads")
_SHARE = re.compile(r"%|\bpct\b|percent|share|fraction|\bratio\b", re.IGNORECASE)
_OF_TIME = pattern_of("time_share_rests")
_GAP = pattern_of("gap_heads")
_MEAN = re.compile(r"avg|average|mean|median", re.IGNORECASE)
_OF_ONE = pattern_of("single_time_heads")
_STATISTIC = pattern_of("statistic_heads")
_OF_HOST = re.compile(r"\bcpu\b|\bhost\b", re.IGNORECASE)
_UNIT = re.compile(
    r"[(\[/, _]\s?(?P<unit>ns|us|[µμ]s|ms|s|nsec|usec|msec|sec|secs|seconds)\s?[)\]]?$"
    r"|(?P<suffix>(?<=[a-z])(?:Ns|Us|Ms))$|(?:^|\()(?P<bare>[µμ]s|seconds)(?:/step|\))?"
)
_CELL = re.compile(
    r"(?P<number>-?[\d.,]+(?:e[+-]?\d+)?)\s?(?P<unit>ns|us|[µμ]s|ms|s|sec|m)?(?P<share>\s?%)?"
)
_RULE = re.compile(r"[\s|+:=╒╤╕╞╪╡├┼┤└┴┘┌┬┐╘╧╛─═⎺⎼-]*")
_BARS = re.compile("[│┃|]")
_DRAWN = " ├└─│↳"  # of trees, before names
_WITH_UNIT = re.compile(r"[A-Za-z]\((?:[nuµm]?s|[KMGT]B(?:/s)?|%)\)(?:\s|$)")
_ALL = pattern_of("total_rows")
# The preferred column of times: of the device, of a row alone, of all calls.
_RANKS = (
    re.compile(r"self (?:cuda|xpu|hip|device|gpu|npu)", re.IGNORECASE),
    re.compile(r"(?:cuda|xpu|hip|device|gpu|npu)\b.{0,10}(?:total|time)", re.IGNORECASE),
    re.compile(r"\bself\b|exclusive", re.IGNORECASE),
    re.compile(r"total|sum|/step", re.IGNORECASE),
)


@dataclass(frozen=True)
class TableRow:
    """A row of a table: `us` are microseconds on the device, or of a tool that does not say; `host`
    those of the host in the same row."""

    name: str
    calls: float
    us: float
    pct: float
    host: float | None = None
    rounded: bool = False  # a time was printed, and is 0
    beside: bool = False  # times of host and device in one row, for the same calls
    relative: bool = False  # `pct` is a share of the sum of numbers without a unit
    host_pct: float = 0.0  # the printed share of `host`
    gap: float = 0.0  # before the row
    counters: Mapping[str, str] = field(default_factory=dict)  # other columns


def read(text: str, loose: bool = True) -> Profile | None:
    """The rows of all tables of names with times; None if the text has none. Not `loose` requires a
    header, or several lines of one form."""
    if (sampled := _sampled(text)) is not None:
        return sampled
    text = _of_records(_of_keys(text))
    text = _SECONDS.sub(r"total time (s)\1time / call (s)", text)
    text = text.replace(" percall filename:", " percall  filename:")  # of cProfile
    text = text.replace(" tottime  percall ", " tottime (s)  percall ")
    rows = list(_rows(text, loose))
    if not any(row.us or row.host for row in rows) and sum(r.pct for r in rows) > ONE_WHOLE:
        return None  # percentages of different things
    if not rows:
        totals = totals_of(text)
        return Profile(OF_OPERATORS, metrics=totals, notes=(NO_ROWS,)) if totals else None
    kind = next((name for name, mark in _TOOLS if mark.search(text)), KIND)
    if all(row.rounded for row in rows):
        note = "the times are rounded to 0: print them in microseconds, or run more often"
        return Profile(kind, notes=(note,))
    of_both = [row for row in rows if row.host is not None and not row.beside]
    if of_both and not any(row.us or row.pct for row in of_both):
        return _without_device(kind, of_both)
    kernels = _kernels(rows, of_both)
    functions = [
        Kernel(row.name, row.calls, row.host, row.host_pct)
        for row in of_both
        if row.host and is_host(row.name)
    ]
    if not kernels and not functions:
        return _of_rates(kind, rows) or _of_counters(kind, rows)
    more: dict[str, Metric] = dict(totals_of(text))
    leading = max(rows, key=lambda row: (row.us, row.pct))
    for row in rows:
        if row.name == leading.name:
            more = {**row.counters, **more}
    if _RANGES.search(text):
        return _of_ranges(kind, kernels)
    more = {**_of_stages(rows), **_host_share(rows), **more}
    notes = (NO_UNIT,) if any(row.relative for row in rows) else ()
    return of_program(kind, kernels, functions, more, notes)


# Rows of CUDA's command-line profiler, whose times are in microseconds.
_KEY = re.compile(r"\b(\w+)=\[ ?([^\[\]]*?) ?\]")
_OLD_NAMES = (
    (re.compile(r"\b([gc]putime)\b"), r"\1 (us)"),
    (re.compile(r"\boccupancy\b"), "theoretical occupancy"),
    (re.compile(r"\bregperthread\b"), "registers per thread"),
)


def _of_keys(text: str) -> str:
    """A text with rows of "key=[ value ]" as a table."""
    if "CUDA_PROFILE_LOG_VERSION" not in text and "method=[" not in text:
        return text
    rows = [dict(pairs) for line in text.splitlines() if len(pairs := _KEY.findall(line)) > 1]
    if rows:
        heads = [*dict.fromkeys(key for row in rows for key in row)]
        cells = [heads, *([row.get(head, "") for head in heads] for row in rows)]
        text = "\n".join(map("\t".join, cells))
    for name, whole in _OLD_NAMES:
        text = name.sub(whole, text)
    return text


# "Metric: CompileTime", or "- name", above indented lines of keys and values or of numbers.
_RECORD = re.compile(
    r"^(?P<indent> *)(?:[-*+] |\w+: ?)(?P<name>[A-Za-z_][^\n]*)\n"
    r"(?P<lines>(?:(?P=indent) +(?:\w[\w %/]*: [^\n]*|\(\w+\) +[\d.][^\n]*)(?:\n|\Z))+)",
    re.MULTILINE,
)


def _of_records(text: str) -> str:
    """A text whose records, which are a name above its lines, are rows."""
    records = [(m["name"].strip(), m["lines"].splitlines()) for m in _RECORD.finditer(text)]
    if len(records) < LEAST_RECORDS:
        return text
    if all(":" not in line for _, lines in records for line in lines):
        return _RECORD.sub(lambda m: f"{m['name'].strip()}  {m['lines'].strip()}\n", text)
    rows = [
        dict(line.strip().split(": ", 1) for line in lines if ": " in line) for _, lines in records
    ]
    heads = [*dict.fromkeys(key for row in rows for key in row)]
    cells = [
        [name, *(row.get(head, "") for head in heads)]
        for (name, _), row in zip(records, rows, strict=True)
    ]
    return in_one_unit("\n".join(map("\t".join, [["name", *heads], *cells])))


LEAST_RECORDS = 2
FEW = 0.5  # of the threads of the stage that has most


def _of_stages(rows: Sequence[TableRow]) -> dict[str, Metric]:
    """The share of the time in which few threads work, and the device's share of the time where
    the table also has the gaps between its rows."""
    metrics: dict[str, Metric] = {}
    threads = [(row.us, number(row.counters[THREADS])) for row in rows if THREADS in row.counters]
    most = max((count or 0.0 for _, count in threads), default=0.0)
    whole = sum(us for us, _ in threads)
    if whole and most >= 2:
        few = sum(us for us, count in threads if (count or 0.0) < FEW * most)
        metrics["few_threads_pct"] = round(100 * few / whole, 1)
    us, gaps = sum(row.us for row in rows), sum(row.gap for row in rows)
    if us and gaps:
        metrics["gpu_busy_pct"] = round(100 * us / (us + gaps), 1)
    return metrics


THREADS = "threads"
_THREADS = re.compile(r"active(?: threads)?|threads", re.IGNORECASE)


def _host_share(rows: Sequence[TableRow]) -> dict[str, Metric]:
    """The time of the host as a share of that of the device, where rows have both side by side."""
    beside = [row for row in rows if row.beside]
    us = sum(row.us for row in beside)
    host = sum(row.host or 0.0 for row in beside)
    return {"host_per_device_pct": round(100 * host / us, 1)} if us else {}


# Ranges that the program marks on the host.
_RANGES = re.compile(r"\bnvtx\w*sum\b|NVTX Range Summary|\bStyle +Range\b|\bStyle,Range\b")
_STYLE = re.compile(r"^(?:PushPop|StartEnd|Push/Pop|Start/End)\s+")


def _of_ranges(kind: str, kernels: Sequence[Kernel]) -> Profile:
    """Ranges as functions of the host."""
    profile = of_program(kind, (), _inner([_named_range(kernel) for kernel in kernels]))
    allocated = profile.metrics.get("alloc_api_pct")
    more: dict[str, Metric] = {} if allocated is None else {"range_alloc_pct": allocated}
    return replace(profile, metrics={**profile.metrics, **more})


def _named_range(row: Kernel) -> Kernel:
    return replace(row, name=_STYLE.sub("", row.name).lstrip(":").strip())


def _inner(ranges: Sequence[Kernel]) -> list[Kernel]:
    """The ranges without one that has the time of all others and thus holds them."""
    outer = max(ranges, key=lambda row: row.us, default=None)
    inner = [replace(row, pct=0.0) for row in ranges if row is not outer]
    if outer is None or not inner or sum(row.us for row in inner) < HELD * outer.us:
        return [*ranges]
    return inner


HELD = 0.9  # of the time of a range, by the ranges in it
NO_ROWS = "the text has the totals alone: paste the rows above them to see which kernels run"
ONE_WHOLE = 110.0  # per cent; shares of the time of one program have this sum at most, rounded
_SECONDS = re.compile(r"^total time(\t.*?)time / call(?=\t)", re.MULTILINE)  # of QUDA

# -- samples of the program counter: instructions or source lines, or reasons of stalls alone

_SAMPLES = re.compile(
    r"(?:#|num(?:ber)?(?: of)? |total |pc |all )?(?:samples?|hits)|sample[ _]?count", re.I
)
_SHARES = re.compile(r"share|%|pct|percent(?:age)?", re.IGNORECASE)
_SAMPLED = tuple(
    (kind, pattern_of(f"sampled_{kind}"))
    for kind in ("instruction", "source", "address", "line", "reason")
)


def _sampled(text: str) -> Profile | None:
    """A table with a column of samples and one of instructions, source lines or reasons of stalls;
    None for other texts."""
    rows: dict[tuple[str, ...], LineRow] = {}
    reasons: dict[str, float] = {}
    for row in _sample_rows(text):
        key = tuple(row.get(name, "") for name in ("address", "line", "instruction", "source"))
        samples = number(row["samples"].rstrip("%")) or 0.0
        stalls = {n[6:]: number(v) or 0.0 for n, v in row.items() if n.startswith("stall:")}
        if reason := stall_name(row.get("reason", "")):
            stalls[reason] = stalls.get(reason, 0.0) + samples
        if any(key) and samples:
            known = rows.get(key, LineRow(0.0))
            rows[key] = LineRow(
                samples + known.samples,
                line=int(number(key[1]) or 0),
                address=key[0],
                instruction=key[2],
                source=key[3],
                stalls=_sum(known.stalls, stalls),
            )
        elif not any(key):
            reasons = _sum(reasons, stalls)
    if rows:
        return Profile("pc samples", lines=tuple(rows.values()))
    whole = sum(reasons.values())
    shares = {name: 100 * samples / whole for name, samples in reasons.items()} if whole else {}
    if len(shares) < 2:
        reasons = shares = _stall_shares(text)
        whole = sum(shares.values())
    if not shares:
        return None
    leading = max(shares, key=shares.__getitem__)
    return Profile(
        "pc samples",
        metrics={f"{_STALLED}{name}_per_warp_active.pct": pct for name, pct in shares.items()},
        notes=(f"{leading} has {shares[leading]:.3g} % of the samples",),
        lines=(LineRow(whole, instruction="(all instructions)", stalls=reasons),),
    )


def _stall_shares(text: str) -> dict[str, float]:
    """The reasons of stalls with a percentage, in a text that has few others."""
    shares: dict[str, float] = {}
    found = [q for q in quantities(text) if q.unit == "%"] if _OF_STALLS.search(text) else []
    for quantity in found:
        words = [name.split() for name in quantity.names]
        names = (" ".join(parts[start:]) for parts in words for start in range(len(parts)))
        if name := next(filter(None, map(stall_name, names)), None):
            shares.setdefault(name, quantity.number)
    few = 2 * len(shares) < len(found) or sum(shares.values()) > ONE_WHOLE
    return {} if few else shares


_OF_STALLS = re.compile(r"stall|scoreboard|throttle", re.IGNORECASE)


def _sum(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    names = {**first, **second}
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in names}


def _sample_rows(text: str) -> Iterator[dict[str, str]]:
    """The cells of each row below the header of a table of samples, by kind of column."""
    heads: list[str] = []
    if not re.search("sample|hits|stall", text, re.IGNORECASE):
        return
    for line in text.splitlines():
        if _RULE.fullmatch(line) or len(line) > MAX_LINE:
            continue
        cells = list(map(_without_note, _separated(line)))
        if heads and len(cells) == len(heads):
            yield dict(zip(heads, cells, strict=True))
        elif not heads:
            names = [_sampled_head(cell) for cell in cells]
            if "samples" not in names:  # shares are in proportion to them
                names = ["samples" if _SHARES.fullmatch(name) else name for name in names]
            if "samples" in names and {*names} & {"instruction", "source", "reason", "line"}:
                heads = names


_STALLED = "smsp__warp_issue_stalled_"


def _sampled_head(cell: str) -> str:
    """What a column of a table of samples has; the cell itself for another column."""
    if _SAMPLES.fullmatch(cell):
        return "samples"
    kind = next((kind for kind, words in _SAMPLED if words.fullmatch(cell)), None)
    stall = None if kind else stall_name(cell)
    return f"stall:{stall}" if stall else kind or cell


NO_UNIT = "the numbers have no unit: the shares are of their sum, if these are times"
_TIMES_BEFORE = re.compile(r"^(?:[\d.]+(?:ns|us|ms|s|%)\s+)+")


def _kernels(rows: Sequence[TableRow], of_both: Sequence[TableRow]) -> list[Kernel]:
    """The rows with times of the device. Next to rows of kernels, an operator repeats the time of
    its kernels, and so does a range, which also has a row of the host."""
    apart = any(row.us and not row.host for row in of_both)
    repeated = {row.name for row in of_both if row.host} if apart else set()
    return [
        Kernel(_TIMES_BEFORE.sub("", row.name), _runs(row), row.us, row.pct)
        for row in rows
        if (row.us or row.pct)
        and row.name not in repeated
        and not _IDLE.search(row.name)
        and not (row.host and not row.beside and is_host(row.name))
    ]


LEAST_RUN = 1e-3  # microseconds; a shorter time of one run shows that the count is of other things


def _runs(row: TableRow) -> float:
    return 1.0 if row.us and row.us < LEAST_RUN * row.calls else row.calls


def _of_rates(kind: str, rows: Sequence[TableRow]) -> Profile | None:
    """Names with rates and no times, as STREAM prints them."""
    rated = [row for row in rows if _RATES & row.counters.keys()]
    if not rated:
        return None
    # Equal times: each row is one measurement.
    metrics: dict[str, Metric] = {**of_program(kind, [Kernel(r.name, 1, 1) for r in rated]).metrics}
    metrics = {name: value for name, value in metrics.items() if name == "elementwise_pct"}
    printed = "; ".join(
        row.counters[name] for row in rated for name in _RATES & row.counters.keys()
    )
    note = "rates without times: compare them with the peak"
    return Profile(kind, metrics={**metrics, **rates(printed)}, notes=(note,))


def _of_counters(kind: str, rows: Sequence[TableRow]) -> Profile | None:
    """The first of several names with known counters and no times."""
    counted = [row for row in rows if any(name.endswith("_pct") for name in row.counters)]
    if not counted:
        return None
    others = ", ".join(row.name for row in counted[1:4])
    notes = (f"the table has no times: {counted[0].name} is read, not {others}",) if others else ()
    return Profile(kind, counted[0].name, counted[0].counters, notes=notes)


_RATES = frozenset(("achieved_bytes_per_s", "achieved_flops"))


def _without_device(kind: str, rows: Sequence[TableRow]) -> Profile | None:
    """The operators of a table that has the times of the host alone, by these."""
    timed = [row for row in rows if row.host and not _IDLE.search(row.name)]
    if not timed:
        return None
    operators = [Kernel(row.name, row.calls, row.host or 0.0) for row in timed]
    profile = of_program(kind, operators, notes=(NO_DEVICE,))
    kept = ("copies_pct", "products_pct")
    metrics = {n: v for n, v in profile.metrics.items() if n in kept}
    waited = sum(row.us for row in operators if WAITS.search(row.name))
    if waited and kind != OF_OPERATORS:
        metrics["sync_sample_pct"] = round(100 * waited / sum(row.us for row in operators), 1)
    return replace(profile, metrics=metrics)


NO_DEVICE = (
    "the table has the host's times and no column of the device: record the device too"
    " (ProfilerActivity.CUDA) to see its kernels"
)
_IDLE = pattern_of("empty_operators")


def _rows(text: str, loose: bool) -> Iterator[TableRow]:
    columns: _TableColumns | None = None
    last: TableRow | None = None
    free: list[_Free] = []
    before, unit = "", _stated_unit(text)
    heads: Sequence[str] = ()
    for line in map(without_prefix, text.splitlines()):
        if not line.strip() or len(line) > MAX_LINE or _RULE.fullmatch(line):
            continue
        cells = _cells(line, columns)
        found, row = _columns(cells, before, line, unit), None
        before = line
        heads = line.split() if _HEADS.fullmatch(line) else heads
        if found is not None:
            columns = found
            continue
        if columns is not None and last is not None and columns.continues(cells):
            last = replace(last, name=last.name + cells[columns.name])
        elif columns is not None and (row := columns.read(cells)) is not None:
            if last is not None:
                yield last
            last = row
        elif (parsed := _free(line, heads)) is not None:
            free.append(parsed)
    if last is not None:
        yield last
    if not _METRICS.search(text):
        yield from _of_free(free, text, unit, loose and columns is None)


_MARKUP = "*`_~≈ "


def _without_note(cell: str) -> str:
    """A cell without emphasis and without a note in brackets at its end."""
    text = cell.replace("**", "").strip(_MARKUP)
    return text[: text.rindex("(")].rstrip() if text.endswith(")") and "(" in text else text


_METRICS = re.compile(
    r"Metric (?:Name|Description|result)|^(?:[^\w\n]|_){0,40}(?:metrics?|counters?)[ *|\t]",
    re.I | re.M,
)


class _TableColumns:
    """The places of a table's columns in the cells of its rows, which may lack the last ones."""

    def __init__(
        self, heads: Sequence[str], name: int, times: Sequence[int], unit: str = ""
    ) -> None:
        self._heads = heads
        self._unit = unit  # of times whose column names none
        self.name = name
        self.count = len(heads)
        self.times = bool(times)
        gaps = [i for i in times if _GAP.search(heads[i])]
        times = [i for i in times if i not in gaps] or times
        self._gap = next((i for i in gaps if i not in times), None)
        ranked = sorted(times, key=lambda i: (not (unit or _unit(heads[i])), _rank(heads[i])))
        of_device = [i for i in ranked if not _OF_HOST.search(heads[i])]
        of_host = [i for i in ranked if _OF_HOST.search(heads[i])]
        self._host = next(iter(of_host), None)
        self._time = next(iter(of_device), None)
        share = [i for i, head in enumerate(heads) if _SHARE.search(head) and i != name]
        share = [i for i in share if _OF_TIME.fullmatch(_SHARE.sub(" ", heads[i]))]
        # The share of the chosen times has a name like theirs: "CUDA total %" of "CUDA total".
        base = _plain(heads[self._time]) if self._time is not None else ""
        like = [i for i in share if base and _plain(heads[i]) == base]
        self._host_share = None
        if self._host is not None:
            whole = _plain(heads[self._host])
            self._host_share = next((i for i in share if _plain(heads[i]) == whole), None)
            share = [i for i in share if not _OF_HOST.search(heads[i])]
        self._share = next(iter(like or share), None)
        self._calls = next(
            (i for i, h in enumerate(heads) if _COUNT.fullmatch(h) and i != name), None
        )
        means = [i for i, h in enumerate(heads) if _MEAN.search(h) and _unit(h) and i != name]
        self._mean = next(iter(means), None)

    def continues(self, cells: Sequence[str]) -> bool:
        """Whether a row holds only the further text of a name."""
        if len(cells) != len(self._heads) or not cells[self.name]:
            return False
        return not any(cell for i, cell in enumerate(cells) if i != self.name)

    def read(self, cells: Sequence[str]) -> TableRow | None:
        """The name, calls, time and share of a row; None for a row of another form."""
        if len(cells) == len(self._heads) + 1 and cells[0].endswith((" activities:", " calls:")):
            cells = cells[1:]
        surplus = len(cells) - len(self._heads)
        if surplus > 0 and self.name in (0, len(self._heads) - 1):
            end = self.name + surplus + 1  # a name with the separator in it
            cells = [*cells[: self.name], " ".join(cells[self.name : end]), *cells[end:]]
        elif surplus < 0 and self.name == len(self._heads) - 1 and len(cells) > 2:
            # Columns of calls are empty for functions that were only sampled.
            cells = [*cells[:-1], *[""] * -surplus, cells[-1]]
        elif surplus > 0 or self.name >= len(cells):
            return None
        name = completed(cells[self.name].strip(" `*:"))
        us, host = self._us(cells, self._time), self._us(cells, self._host)
        pct = self._pct(cells, self._share)
        counted = 1.0
        if not name or _ALL.match(name) or number(name.rstrip("%")) is not None:
            return None
        if us is None and self._host is None and self._mean is not None:
            mean, calls = self._us(cells, self._mean), number(_cell(cells, self._calls))
            us = mean * (calls or 1.0) if mean is not None else None
        elif us and self._calls is None and self._mean is not None:
            counted = us / (self._us(cells, self._mean) or us)
        counters = self._counters(cells)
        if us is None and pct is None and host is None and not (self.times is False and counters):
            return None
        calls = number(_cell(cells, self._calls)) or max(1.0, round(counted))
        rounded = not us and not pct and not host and us is not None
        host_pct = self._pct(cells, self._host_share) or 0.0
        return TableRow(
            name,
            calls,
            us or 0.0,
            pct or 0.0,
            host,
            rounded,
            host_pct=host_pct,
            gap=self._us(cells, self._gap) or 0.0,
            counters=counters,
        )

    def _counters(self, cells: Sequence[str]) -> dict[str, str]:
        """The numbers in columns that are no times, shares of the time or calls."""
        found: dict[str, str] = {}
        for head, cell in zip(self._heads, map(_without_note, cells), strict=False):
            if (metric := metric_of(head)) and _CELL.fullmatch(cell):
                part = number(cell) if "%" not in head + cell and metric.endswith("_pct") else None
                whole = part is None or not 0 < part <= 1
                found.setdefault(metric, cell if whole or part is None else f"{100 * part:g}")
            if _THREADS.fullmatch(head) and number(cell) is not None:
                found[THREADS] = cell
            if _BOUND.fullmatch(head):
                limits = (metric for words, metric in _LIMITS if words.search(cell))
                found.update({metric: "1" for metric in limits})
            rate = _RATE.search(head)
            if rate and _CELL.fullmatch(cell):
                found.setdefault(_rate_name(rate[0]), f"{cell} {rate[0]}")
            elif (
                _CELL.fullmatch(cell) and not _STATISTIC.search(head) and not _COUNT.fullmatch(head)
            ):
                found[re.sub(r"\s*[(\[]%[)\]]", "", head).strip()] = cell
        return found

    def _us(self, cells: Sequence[str], place: int | None) -> float | None:
        text = _without_share(_cell(cells, place))
        match = _CELL.fullmatch(text)
        if match is None or match["share"] or place is None:
            return None
        value, unit = (
            number(match["number"]),
            match["unit"] or _unit(self._heads[place]) or self._unit,
        )
        return max(0.0, value * UNITS[unit]) if value is not None and unit else None

    def _pct(self, cells: Sequence[str], place: int | None) -> float | None:
        match = _CELL.fullmatch(_cell(cells, place))
        value = number(match["number"]) if match else None
        return value if value is not None and 0 <= value <= 100 else None


# A column that says what limits each row.
_BOUND = re.compile(r"bound(?:[ _](?:by|hint))?|limit(?:ed by|er)|bottleneck", re.IGNORECASE)
_LIMITS = (
    (re.compile(r"hbm|dram|memory|bandwidth", re.IGNORECASE), "dram_bound_share"),
    (re.compile(r"compute|alu\b|arith|mxu", re.IGNORECASE), "compute_bound_share"),
)
_RATE = re.compile(r"[KMGT]i?B/s(?:ec)?|[KMGT]FLOPS?(?:/s)?", re.IGNORECASE)


def _rate_name(unit: str) -> str:
    return "achieved_bytes_per_s" if "B/" in unit.upper() else "achieved_flops"


def _unit(head: str) -> str:
    found = _UNIT.search(head)
    return (found["unit"] or found["bare"] or found["suffix"].lower()) if found else ""


def _cell(cells: Sequence[str], place: int | None) -> str:
    return cells[place].strip(_MARKUP) if place is not None and place < len(cells) else ""


def _without_share(cell: str) -> str:
    """A time without the share behind it ("3.55ms (34.6%)")."""
    return re.sub(r"\s*\([\d. ]+%\)$", "", cell)


def _plain(head: str) -> str:
    return re.sub(r"[^a-z]+", "", _UNIT.sub("", head).lower().replace("pct", ""))


def _columns(cells: Sequence[str], before: str, line: str, unit: str) -> _TableColumns | None:
    """The columns of a header with names and with times or shares; None for another line."""
    most = MAX_HEADER if len(cells) < MANY_CELLS else MAX_LINE
    if len(line) > most or len(cells) < 2 or any(c[:1].isdigit() for c in cells):
        return None
    heads = [cell.strip(' *`"') for cell in cells]
    if any(head in UNITS for head in heads):  # units below the words of two lines
        heads = _joined(before, line, heads)
    if heads[0].lower() == "type" and heads[-1].lower() == "name":
        del heads[0]  # nvprof prints the type in the first row of a type only
    named = [i for i, head in enumerate(heads) if _NAME.fullmatch(head)]
    if not named:
        return None
    name = next((i for i in named if heads[i].lower() in _EXACT), named[0])
    if heads[name].lower() == "type" and len(heads) > 4:
        return None  # nvprof prints the type in some rows only; they are read without the header
    times = [
        i
        for i, head in enumerate(heads)
        if i != name and _is_time(head) and not _COUNT.fullmatch(head)
    ]
    return _TableColumns(heads, name, times, "" if any(_unit(heads[i]) for i in times) else unit)


def _joined(before: str, line: str, heads: Sequence[str]) -> list[str]:
    """The heads of two lines, words above and units below, by their places in the lines."""
    words = [(m.start(), m.end(), m[0]) for m in re.finditer(r"\S+(?: \S+)*", before)]
    below, place = [], 0
    for head in heads:
        start = line.index(head, place)
        place = start + len(head)
        below.append((start, place, head))
    upper, lower = (words, below) if len(words) > len(below) else (below, words)
    joined = []
    for start, end, text in upper:
        other = next((t for a, b, t in lower if a < end + 2 and b > start - 2), "")
        joined.append(f"{text} {other}".strip() if upper is words else f"{other} {text}".strip())
    return joined


def _is_time(head: str) -> bool:
    head = head.split("  ")[0]  # "time     percent" above "3.55ms (34.6%)"
    if _OF_ONE.search(head) and not re.search(r"device (?:time|total)|gpu time", head, re.I):
        return False
    return bool(_TIME.search(head)) and not _SHARE.search(head)


def _rank(head: str) -> int:
    return next((i for i, pattern in enumerate(_RANKS) if pattern.search(head)), len(_RANKS))


def _cells(line: str, columns: _TableColumns | None) -> list[str]:
    """The cells of a line by its separator; by single blanks where these give as many as the header
    has, or where a header has several units in brackets."""
    cells, words = _separated(line), line.split()
    if columns is None and len(cells) == 1 < len(words) and all(map(_HEAD.fullmatch, words)):
        return words
    if columns is not None and len(cells) != columns.count <= len(words):
        last = columns.count - 1
        if len(words) == columns.count:
            return words
        if columns.name == last and all(map(_CELL.fullmatch, words[:last])):
            return [*words[:last], " ".join(words[last:])]
    several = len(_WITH_UNIT.findall(line)) > 2 and not _BARS.search(line)
    return words if several and len(cells) < len(words) else cells


_HEAD = re.compile(
    r"(?:time|calls|count|instances|total|avg|average|mean|med|median|min(?:imum)?|max(?:imum)?"
    r"|stddev|name|kernel|operation|function|percentage|%)(?:\(\w+|\(%)?\)?",
    re.IGNORECASE,
)


_BRACKETED = re.compile(r"\[([^\[\]|]*(?:\|[^\[\]|]*)+)\] (\S.*)")


def _separated(line: str) -> list[str]:
    if _BARS.search(line):
        text = line.strip()
        if bracketed := _BRACKETED.fullmatch(text):  # Taichi's trace
            text = f"{bracketed[1]}|{bracketed[2]}"
        bars = re.compile(r"\|") if text.count("|") > 1 else _BARS  # next to a drawn tree
        edges = (text[:1] in "│┃|", text[-1:] in "│┃|")
        cells = [cell.strip(_DRAWN) for cell in bars.split(text)]
        return cells[(edges[0] and bars is _BARS) or text[:1] == "|" : len(cells) - edges[1]]
    if "\t" in line.strip():
        return [cell.strip() for cell in line.strip().split("\t")]
    if line.count(",") >= 2 and not re.search(r"\S\s{2,}\S+\s{2,}", line.replace(", ", ",")):
        return [cell.strip() for cell in next(csv.reader([line.strip()], skipinitialspace=True))]
    if line.count(",") >= 2 and re.match(r"\s*\S(?:[^,\s]|\s(?!\s))*,\s+\S", line):
        return [cell.strip() for cell in next(csv.reader([line.strip()], skipinitialspace=True))]
    return [cell.strip() for cell in re.split(r"\s{2,}", line.strip())]


# -- lines without a header


@dataclass(frozen=True)
class _Quantity:
    kind: str  # time, share, number, both (of the device and of the host), rate, other
    value: float
    mean: bool = False  # adjacent words mark it as the time of one call
    label: str = ""  # the word before it
    keyed: bool = False  # the label is a key within the line ("peak: 4096")


@dataclass(frozen=True)
class _Free:
    name: str
    quantities: tuple[_Quantity, ...]

    @property
    def form(self) -> str:
        return "".join(q.kind[0] for q in self.quantities)  # both: b, rate: r, other: o


_PER = r"(?:ns|us|US|[µμ]s|ms|s|usec|msec)(?:/(?:run|iter|call|op|token))?"
_ITEM = re.compile(
    r"(?:(?<=\s)|^)[()\[\],;:|│┃*]*(?P<label>[A-Za-z][\w.]*[=:])?"
    r"(?P<number>-?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:[.,]\d+)?)(?:e[+-]?\d+)?)"
    rf"(?:(?:(?P<share> ?%)|\s?(?P<time>{_PER})|\s?(?P<other>[KMGT]?i?[Bb](?:/s|ytes?)?"
    r"|[kKMGTP]?[Ff][Ll][Oo][Pp][Ss]?(?:/s|/run)?|[KMGkmg]?[hH][zZ]|M/sec|[Cc]ycles?)"
    r"|(?P<suffix>[A-Za-zµμ][A-Za-z/]*))(?![:=\w]))?(?=[()\[\],;:|│┃*]*(?:\s|$))"
)
_JOINT = pattern_of("joints")  # between the numbers of one row
_CLOCK = re.compile(r"\b0:(\d\d):(\d\d\.\d+)")
_SHARE_FIRST = re.compile(r"^\s*\[\s*([\d.]+ ?%)\] (\S+)(?=\s.*\btotal\b)")
_BOTH = re.compile(
    r"\s*(?P<name>.*?)\s*CPU:\s*(?P<host>[\d.]+)\s?(?P<host_unit>[nuµm]?s)\b.*?"
    r"GPU(?:-0)?:\s*(?P<device>[\d.]+)\s?(?P<device_unit>[nuµm]?s)\b.*"
)


_HEADS = re.compile(r"\s*(?:[A-Za-z%][\w.%/()-]*(?:\s+|$)){4,}")


def column_names(text: str) -> str:
    """The line of a text that names the columns of a row below it; empty without one. A row has as
    many words, at least half of them numbers."""
    heads = ""
    for line in (line.strip() for line in text.splitlines() if len(line) <= MAX_LINE):
        if _HEADS.fullmatch(line):
            heads = line
            continue
        words = line.split()
        numbers = sum(word[0].isdigit() for word in words)
        if heads and len(words) == len(heads.split()) and 2 * numbers >= len(words):
            return heads
    return ""


def _free(line: str, heads: Sequence[str] = ()) -> _Free | None:
    """The name and the quantities of a line; None without both. `heads` are the words of a line
    above that may name its columns: they do if the line has as many words."""
    if both := _BOTH.fullmatch(line):
        times = (float(both[unit]) * UNITS[both[f"{unit}_unit"]] for unit in ("device", "host"))
        return _Free(both["name"].strip(" :-"), tuple(_Quantity("both", us) for us in times))
    line = _CLOCK.sub(lambda m: f"{60 * int(m[1]) + float(m[2])}s ", line)
    line = _SHARE_FIRST.sub(r"\2 \1", line)
    row = _longest(line)
    if not row:
        alone = re.fullmatch(r"\s*(?P<name>\S.*?)[:=,;]\s*(?P<number>\d+(?:\.\d+)?)\s*", line)
        named = alone is not None and re.search("[A-Za-z]", alone["name"])
        quantity = _Quantity("number", float(alone["number"])) if alone else None
        return _Free(alone["name"], (quantity,)) if alone and quantity and named else None
    front = line[: row[0].start()].strip(" \t:=|-([")
    back = line[row[-1].end() :].lstrip(")],;:|│┃* \t").rstrip()
    section = front.endswith(("activities", "calls")) or not re.search(r"[A-Za-z_]", front)
    label = (row[0]["label"] or "")[:-1]
    name = front if front and not section else label if label and not front else back
    whole, name = name, _LABELS.sub("", name).strip(" |│@(:├└─")
    if _ALL.match(whole) or _ALL.match(name) or _SUMMARY.fullmatch(name):
        return None
    if not re.search(r"[A-Za-z_]", name) or name.lower() in UNITS or _is_prose(line, name):
        return None
    starts = [word.start() for word in re.finditer(r"\S+", line)]
    columns = heads if len(heads) == len(starts) else ()
    quantities = (_quantity(item, n, line) for n, item in enumerate(row))
    return _Free(name, tuple(map(partial(_under_head, starts, columns), row, quantities)))


def _under_head(
    starts: Sequence[int], heads: Sequence[str], item: re.Match[str], quantity: _Quantity
) -> _Quantity:
    """A number without a label, with the head of its column as its key."""
    if quantity.kind != "number" or quantity.label or not heads:
        return quantity
    head = heads[bisect_right(starts, item.start("number")) - 1]
    return replace(quantity, label=head.lower(), keyed=True)


def _longest(line: str) -> list[re.Match[str]]:
    """The numbers of the part of a line that has most of them and no words but joints."""
    runs: list[list[re.Match[str]]] = [[]]
    for item in _ITEM.finditer(line):
        if runs[-1] and not _JOINT.fullmatch(line[runs[-1][-1].end() : item.start()]):
            runs.append([])
        runs[-1].append(item)
    return max(runs, key=len)


_PROSE = pattern_of("prose")
LEAST_PROSE = 2  # of these words in a line that is a sentence


def _is_prose(line: str, name: str) -> bool:
    """Whether a line is a sentence of a person and its name a part of it."""
    words = len(re.findall(r"[A-Za-z']+", line))
    return (
        words >= 6 and len(_PROSE.findall(line)) >= LEAST_PROSE and not re.search(r"[(<:]\w", name)
    )


_SUMMARY = pattern_of("statistic_rows")
_LABELS = re.compile(
    r"^\w+:\s{2,}|(?:\s+\(?(?:total|time|avg|run|min|max|mean|realTime|id)\s*[=:]?)+$", re.I
)


def _quantity(item: re.Match[str], place: int, line: str) -> _Quantity:
    value = _value(item["number"], bool(item["time"] or item["share"] or item["other"]))
    start, end = item.start(), item.end()
    word = re.search(r"([A-Za-z]+)\s*[=:]?\s*$", line[max(0, start - 80) : start])
    label = (item["label"] or (word[1] if word else "")).strip("=:").lower()
    keyed = place > 0 and bool(item["label"] or re.search(r"\w[=:]\s*$", line[:start]))
    if item["share"]:
        return _Quantity("share", value)
    if unit := item["time"]:
        beside = line[max(0, start - 14) : end + 12]
        of_one = "/" in unit or bool(re.search(r"avg|average|mean|\bper\b", beside, re.I))
        return _Quantity("time", value * UNITS[unit.partition("/")[0]], of_one, label)
    unit = item["other"] or item["suffix"] or ""
    if unit in ("", "b", "x"):
        return _Quantity("number", value, label=label, keyed=keyed)
    return _Quantity("rate" if _RATE.fullmatch(unit) else "other", value, label=unit)


def _value(text: str, with_unit: bool) -> float:
    if (
        re.fullmatch(r"-?\d+,\d{1,3}", text)
        and with_unit
        and not re.fullmatch(r"-?\d{1,3},\d{3}", text)
    ):
        text = text.replace(",", ".")  # a decimal comma
    return float(text.replace(",", ""))


def _of_free(
    lines: Sequence[_Free], text: str, stated_unit: str, loose: bool
) -> Iterator[TableRow]:
    """The rows of lines of one form, if these are times or shares."""
    forms: dict[str, list[_Free]] = {}
    for line in lines:
        forms.setdefault(line.form, []).append(line)
    known = any(mark.search(text) for _, mark in _TOOLS)
    unit = _unit_of_text(text, stated_unit)
    several = any(len(group) > 1 for group in forms.values())
    lines_of_text = sum(1 for line in text.splitlines() if line.strip())
    for form, group in forms.items():
        whole = {"t", "s", "n"} <= {*form} or form == "bb"
        if form == "n" and any(_OWN_UNIT.search(line.name) for line in group):
            continue  # each name has its unit: quantities of one kernel
        if len(group) < 2 and not whole and (several or not loose):
            continue
        part = len(group) >= max(LEAST_LINES, STRICT_PART * lines_of_text) and "t" in form
        if not loose and not known and not part and form.count("n") + form.count("t") < 3:
            continue
        if form == "n" and all(_PER_CASE.search(line.name) for line in group):
            continue  # counts
        stated = len(form) > 2 and "n" in form and stated_unit
        few = not loose or len(group) < LEAST_PART * lines_of_text
        if {*form} <= {"n", "o", "r"} and few and not stated:
            continue  # numbers in a text that is no table
        roles = _roles(group, unit)
        for line in group:
            if roles is not None and (row := roles.row(line)) is not None:
                yield row


_OWN_UNIT = re.compile(r"\((?:ns|us|[µμ]s|ms|s)\)$")
_PER_CASE = re.compile(
    r"\b(?:per|each|every) \w+$|\b(?:calls?|launches|times|runs|copies|kernels)$", re.I
)


_STATED_UNIT = re.compile(
    r"(?:\bin |\bunits?\W{1,3}|\btime\W{1,3}|\()(?P<long>nano|micro|milli)?seconds\b"
    r"|\btime unit\W{1,3}(?P<unit>ns|us|ms|s)\b|(?<=[\s\[(])[\[(](?P<own>ns|us|ms|s)[\])]"
    r"|(?:time|duration|latency|elapsed|total|avg|mean|min|max|cost)\((?P<of>ns|us|ms|s)\)",
    re.IGNORECASE,
)
_LONG = {"nano": "ns", "micro": "us", "milli": "ms"}


def _stated_unit(text: str) -> str:
    """The unit of times that a text states outside their cells and heads; empty without."""
    found = _STATED_UNIT.search(text)
    if found is None:
        return ""
    written = found["unit"] or found["own"] or found["of"]
    return written.lower() if written else _LONG.get((found["long"] or "").lower(), "s")


def _unit_of_text(text: str, stated: str) -> float:
    """The unit of times without one, in microseconds: as stated, or nanoseconds as in nsys."""
    if stated:
        return UNITS[stated]
    functions = re.search(r"\b(?:cuda|cu)[A-Z]\w+", text)
    return 1e-3 if functions and not re.search(r"(?<![\w.])0\.\d{4,}", text) else 0.0


@dataclass(frozen=True)
class _Roles:
    """Places of the quantities of a form; `scale` is the unit of numbers that are times."""

    total: int | None
    calls: int | None
    mean: int | None
    share: int | None
    host: int | None
    scale: float
    whole: float = 0.0  # the sum of the shares, where these are numbers without a unit

    def row(self, line: _Free) -> TableRow | None:
        values = line.quantities
        us = self._us(values, self.total)
        mean = self._us(values, self.mean)
        calls = values[self.calls].value if self.calls is not None else 1.0
        if us is None and mean is not None:
            us = mean * max(calls, 1.0)
        pct = values[self.share].value if self.share is not None else 0.0
        pct = 100 * pct / self.whole if self.whole else pct
        rates = {_rate_name(q.label): f"{q.value} {q.label}" for q in values if q.kind == "rate"}
        threads = [q.value for q in values if q.keyed and q.label == THREADS]
        if us is None and not pct:
            return TableRow(line.name, 1.0, 0.0, 0.0, counters=rates) if rates else None
        host = self._us(values, self.host)
        if (us or 0.0) < 0 or not 0 <= pct <= 100:
            return None
        return TableRow(
            completed(line.name),
            calls or 1.0,
            us or 0.0,
            pct,
            host,
            rounded=not us and not pct and not host,
            beside=line.form == "bb",
            relative=bool(self.whole),
            counters={THREADS: f"{threads[0]}"} if threads else {},
        )

    def _us(self, values: Sequence[_Quantity], place: int | None) -> float | None:
        if place is None:
            return None
        quantity = values[place]
        return quantity.value * (self.scale if quantity.kind == "number" else 1.0)


def _roles(group: Sequence[_Free], unit: float) -> _Roles | None:
    """Which quantity is what, from the product of calls and the time of one."""
    kinds = [q.kind for q in group[0].quantities]
    if kinds == ["both", "both"]:
        return _Roles(0, None, None, None, 1, 1.0)
    times = [i for i, kind in enumerate(kinds) if kind == "time"]
    numbers = [i for i, kind in enumerate(kinds) if kind == "number"]
    shares = [i for i, kind in enumerate(kinds) if kind == "share"]
    timed = times or (numbers if unit else [])
    products = (
        [
            (total, calls, mean)
            for total, calls, mean in permutations([*timed, *numbers] if times else numbers, 3)
            if total in timed
            and mean in timed
            and calls in numbers
            and _agree(group, total, calls, mean)
        ]
        if len(timed) >= 2 and numbers
        else []
    )
    if not times and numbers and not products and not shares:
        return _of_numbers(group, numbers, unit)
    if not times and not numbers and "rate" in kinds:
        return _Roles(None, None, None, None, None, 1.0)
    share = _share_place(group, shares)
    if products:
        # The number of calls precedes the time of one.
        products = [p for p in products if p[1] < p[2]] or products
        total, calls, mean = products[-1]
        totals = list(dict.fromkeys(product[0] for product in products))
        both = len(totals) > 1 and len(shares) > 1
        share = shares[-1] if both else share
        if share is None and kinds and kinds[0] == "number" and 0 not in (total, calls, mean):
            share = 0  # nsys prints the share first, without a sign
        return _Roles(
            total, calls, mean, share, totals[0] if both else None, 1.0 if times else unit
        )
    if times:
        of_one = [i for i in times if any(line.quantities[i].mean for line in group)]
        counts = [i for i in numbers if _is_count(group[0].quantities[i])]
        calls_at = next((i for i in counts if _whole(group, i)), None)
        if len(of_one) == len(times):
            return _Roles(None, calls_at, of_one[0], share, None, 1.0)
        named = [i for i in times if group[0].quantities[i].label == "total"]
        total = next(i for i in (*named, *times) if i not in of_one)
        return _Roles(total, calls_at, next(iter(of_one), None), share, None, 1.0)
    return _Roles(None, None, None, share, None, 1.0) if share is not None else None


def _is_count(quantity: _Quantity) -> bool:
    """Whether a number may be one of runs: it has no key, or that of a count."""
    return not quantity.keyed or bool(_COUNT.fullmatch(quantity.label) or quantity.label == "n")


def _of_numbers(group: Sequence[_Free], numbers: Sequence[int], unit: float) -> _Roles | None:
    """Roles of numbers alone: the one that a word calls a time or a mean, else the only one; of a
    minimum, a median, a maximum and a mean the mean. Without a unit they have shares of their sum.
    """
    labels = [group[0].quantities[i].label for i in numbers]
    called = [i for i, label in zip(numbers, labels, strict=True) if _CALLED_TIME.search(label)]
    called += [i for i, label in zip(numbers, labels, strict=True) if _CALLED_MEAN.search(label)]
    if called or len(numbers) == 1:
        place, calls = (called or [*numbers])[0], None
    elif unit and len(numbers) > 2 and _whole(group, numbers[0]):
        place, calls = numbers[-2], numbers[0]
    else:
        return None
    if unit:
        return _Roles(None, calls, place, None, None, unit)
    whole = sum(line.quantities[place].value for line in group)
    return _Roles(None, None, None, place, None, 1.0, whole) if whole > 0 else None


_CALLED_TIME = re.compile(r"time|elapsed|latency|duration|total", re.IGNORECASE)
_CALLED_MEAN = re.compile(r"avg|average|mean", re.IGNORECASE)


def _agree(group: Sequence[_Free], total: int, calls: int, mean: int) -> bool:
    """Whether a total is calls times a mean, in most lines and with more than one call in one."""
    agreed, several = 0, False
    for line in group:
        t, n, m = (line.quantities[i].value for i in (total, calls, mean))
        if n < 1 or n != int(n):
            return False
        rounded = n * _half_digit(m) if 0 < m < 1 else 0.0
        close = abs(t - n * m) <= max(0.02 * max(t, n * m), rounded)
        agreed += close
        several = several or (close and n > 1 and t > 0)
    return agreed >= 0.8 * len(group) and (several or len(group) == 1 or agreed == len(group))


def _half_digit(value: float) -> float:
    """Half of the last printed digit."""
    exponent = Decimal(repr(value)).as_tuple().exponent
    return 0.5 * 10.0**exponent if isinstance(exponent, int) else 0.0


def _whole(group: Sequence[_Free], place: int) -> bool:
    values = [line.quantities[place].value for line in group]
    return all(value >= 1 and value == int(value) for value in values)


def _share_place(group: Sequence[_Free], shares: Sequence[int]) -> int | None:
    return next((i for i in shares if all(0 <= g.quantities[i].value <= 100 for g in group)), None)
