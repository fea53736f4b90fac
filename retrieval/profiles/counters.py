"""Counters by name from the quantities of a text, and sweeps over sizes.

Does not know which counters mean what: it yields every name that a number may have, and the
registry of metrics keeps those that it knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from retrieval.profiles.lexicon import MARKS, label_of
from retrieval.profiles.lines import stall_name
from retrieval.profiles.quantities import MAX_NAME, PREFIXES, Quantity, quantities


def counters(
    text: str, columns: bool = True, rows: bool = False, sentences: bool = True
) -> dict[str, str]:
    """Every possible name of a counter with its value and unit; the first of a name. With `columns`
    also those of tables with a row for each case, of the row with the largest numbers; with `rows`
    these alone; without `sentences` no numbers of sentences."""
    return counters_of(quantities(text), columns, rows, sentences)


def counters_of(
    numbers: Sequence[Quantity], columns: bool = True, rows: bool = False, sentences: bool = True
) -> dict[str, str]:
    """Like `counters`, of the quantities of a text."""
    found: dict[str, str] = {}
    for quantity in _leading(numbers, columns):
        if (rows and not quantity.row) or (quantity.words and not sentences):
            continue
        for name in quantity.names:
            for form in _forms(name):
                bare = form == name or quantity.unit == "%" or not quantity.words
                found.setdefault(form, quantity.text if bare else f"{quantity.number:.15g}")
            found.update({k: v for k, v in meaning(name, quantity).items() if k not in found})
    return {**found, **_imbalance(numbers)}


def _leading(found: Sequence[Quantity], columns: bool) -> Iterator[Quantity]:
    """The quantities without those of further rows of a table of cases."""
    sizes: dict[int, float] = {}
    for quantity in found:
        if quantity.row:
            sizes[quantity.line] = sizes.get(quantity.line, 0.0) + abs(quantity.number)
    totals = (q.line for q in found if _TOTAL.match(q.row))
    largest = next(totals, max(sizes, key=sizes.__getitem__, default=-1))
    for quantity in sorted(found, key=lambda q: (q.line, q.column)):
        if not quantity.row or (columns and quantity.line == largest):
            yield quantity


_TOTAL = re.compile(r"(?:total|sum|all)\b", re.IGNORECASE)  # a row of all others


def meaning(name: str, quantity: Quantity) -> dict[str, str]:
    """The metric of a share by the words of its name; empty for another."""
    part = 0 <= quantity.number <= 1 and not quantity.unit
    of_one = part and not name.lower().endswith("ratio")
    if quantity.unit != "%" and not part:
        return {}
    value = 100 * quantity.number if part else quantity.number
    reason = None if of_one else stall_name(_STALL.sub("stall_", name.strip(MARKS)).rstrip(")"))
    if reason:
        return {f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct": f"{value:g} %"}
    label = label_of(name, "share" if of_one else "%")
    if label is None or (of_one and label.unit != "share"):
        return {}
    return {label.metric: f"{100 - value if label.complement else value:g} %"}


_STALL = re.compile(r"^(?:warp )?stalls? ?[(:]* ?", re.IGNORECASE)


def growths(text: str) -> dict[str, float]:
    """How much larger each counter of a table is in its second column of values than in the first;
    empty for other texts."""
    firsts: dict[str, float] = {}
    found: dict[str, float] = {}
    for quantity in quantities(text):
        name = next(iter(quantity.names), "")
        if quantity.unit or quantity.row or quantity.words:
            continue
        if quantity.column == 0:
            firsts.setdefault(name, quantity.number)
        elif quantity.column == 1 and firsts.get(name, 0.0) > 0:
            found.setdefault(name, quantity.number / firsts[name])
    return found


def rates(text: str) -> dict[str, float]:
    """The highest rates of bytes and of floating-point operations in a text, in a second."""
    found: dict[str, float] = {}
    for name, amount in filter(None, (quantity.rate for quantity in quantities(text))):
        found[name] = max(amount, found.get(name, 0.0))
    return found


def _imbalance(found: Sequence[Quantity]) -> dict[str, str]:
    """How much longer than the mean the busiest thread or rank works, by the row with most time."""
    rows: dict[int, dict[str, float]] = {}
    for quantity in found:
        name = " ".join((*quantity.names[:1], quantity.head, quantity.row))
        kind = _STATISTIC.search(quantity.head or name)
        if kind and _OF_THREADS.search(name) and _WORKED.search(name):
            rows.setdefault(quantity.line, {}).setdefault(kind[0].lower(), quantity.number)
    of_all = [row for row in rows.values() if row.get("max") and row.get("avg")]
    if not of_all:
        return {}
    busiest = max(of_all, key=lambda row: row["avg"])
    return {"thread_imbalance_pct": f"{100 * (1 - busiest['avg'] / busiest['max']):.1f}"}


_STATISTIC = re.compile(r"\b(?:max|avg)\b", re.IGNORECASE)
_OF_THREADS = re.compile(r"\bSTAT\b|/ ?(?:rank|thread|proc)|per (?:rank|thread|process)|threads?\b")
_WORKED = re.compile(r"unhalted|busy time|cpu time|\btime\b", re.IGNORECASE)


@dataclass(frozen=True)
class Sweep:
    """A table of sizes and of values of each: the rates in it, and what it shows in words."""

    metrics: Mapping[str, float]
    notes: tuple[str, ...]


LEAST_SIZES = 3  # rows of a sweep


def sweep(text: str) -> Sweep | None:
    """The first table whose rows are numbers alone, such as results of a benchmark by size."""
    lines = text.splitlines()
    numeric = [_numbers_of(line) for line in lines]
    for place, row in enumerate(numeric):
        heads = (
            head for head in lines[max(place - 2, 0) : place][::-1] if re.search("[A-Za-z]", head)
        )
        above = next(heads, "").strip()
        names = [name.strip() for name in re.split(r"\s{2,}|[|│]", above) if name.strip()]
        if len(names) < len(row or ()):
            names = re.sub(r"[|│]", " ", above).split()
        if row is None or not names or numeric[place - 1] is not None:
            continue
        rows = []
        for following in numeric[place:]:
            if following is None or len(following) != len(row):
                break
            rows.append(following)
        if len(rows) >= LEAST_SIZES and len(row) - 1 <= len(names):
            return _swept(names, rows)
    return None


def is_sweep(text: str) -> bool:
    """Whether a text is a sweep over sizes and at most two lines above it."""
    lines = [line for line in text.splitlines() if line.strip()]
    rows = sum(_numbers_of(line) is not None for line in lines)
    return rows >= max(LEAST_SIZES, len(lines) - 3) and sweep(text) is not None


_SIZED = re.compile(
    r"(?P<number>-?[\d.]+(?:e[+-]?\d+)?)(?P<unit>ns|us|[µμ]s|ms|s|x)?", re.IGNORECASE
)
_FACTORS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


_RELATIVE = re.compile(r"diff|speed-?up|ratio|%|\bx\b", re.IGNORECASE)


def _numbers_of(line: str) -> list[float] | None:
    """The numbers of a line of numbers alone; times are in microseconds."""
    cells = [cell.strip("|│%,") for cell in line.split()]
    cells = [cell for cell in cells if cell and not cell.endswith(":")]
    matches = [_SIZED.fullmatch(cell) for cell in cells]
    if len(cells) < 3 or not all(matches):
        return None
    try:
        return [float(m["number"]) * _FACTORS.get(m["unit"] or "", 1.0) for m in matches if m]
    except ValueError:
        return None


_UNIT_WORDS = re.compile(
    r"(?<![A-Za-z])(?:[kmgt]i?b|[kmgtp]?flops?|[gt]?ops|[nmu\u00b5]?s|cycles?|w)(?![a-z])",
    re.IGNORECASE,
)
STEP = 1.8  # least ratio of neighbouring values of a step
MOST_STEPS = 4


def _steps(sizes: Sequence[float], values: Sequence[float]) -> str:
    """The sizes between which the values change by `STEP`, where most neighbours do not: working
    sets that leave a cache. Empty without steps."""
    pairs = list(zip(pairwise(sizes), pairwise(values), strict=True))
    found = [
        f"{a:g} and {b:g} ({max(x / y, y / x):.2g} times)"
        for (a, b), (x, y) in pairs
        if min(x, y) > 0 and max(x / y, y / x) >= STEP
    ]
    few = 0 < len(found) <= MOST_STEPS and 2 * len(found) < len(pairs)
    return ", ".join(found) if few else ""


def _swept(names: Sequence[str], rows: Sequence[Sequence[float]]) -> Sweep:
    columns = list(zip(*rows, strict=True))[-len(names) :]
    named = list(zip(names[-len(columns) :], columns, strict=True))
    whole = [all(v == int(v) for v in column) for _, column in named]
    first = whole.index(False) if False in whole else 1
    sizes, values = [row for row in named[:first] if len({*row[1]}) > 1], named[first:]
    metrics: dict[str, float] = {}
    for name, column in named:
        if rate := re.search(r"\((?P<prefix>[KMGT])B/s\)", name):
            metrics["achieved_bytes_per_s"] = max(column) * PREFIXES[rate["prefix"].lower()]
    at = [f"{sizes[0][0]} = {sizes[0][1][i]:g}" if sizes else "that row" for i in (0, -1)]
    notes = [
        f"{name} goes from {column[0]:.4g} to {column[-1]:.4g} between {at[0]} and {at[1]}"
        for name, column in values[-2:]
    ]
    values = [row for row in values if not _RELATIVE.search(row[0])] or values
    units = {tuple(_UNIT_WORDS.findall(name)) for name, _ in values[-2:]}
    alike = len(values) >= 2 and len(units) == 1 and not any("(" in n for n, _ in values[-2:])
    if alike and values[-2][1][0] and values[-2][1][-1]:
        (base, of), (other, by) = values[-2:]
        parts = [100 * by[i] / of[i] for i in (0, -1)]
        notes.insert(
            0, f"{other} is {parts[0]:.3g} % of {base} at {at[0]} and {parts[1]:.3g} % at {at[1]}"
        )
    if sizes and values and (steps := _steps(sizes[0][1], values[0][1])):
        notes.insert(0, f"{values[0][0]} changes in steps between {sizes[0][0]} {steps}")
    notes.append(
        "a sweep over sizes has no counters: values that grow with the size show a device that"
        " small sizes do not fill; profile one size with ncu or rocprofv3 to see what limits it"
    )
    return Sweep(metrics, tuple(notes))


def _forms(name: str) -> Iterator[str]:
    """A name without bracketed text, and the last part of a path."""
    name = name.strip(" :=|,-")[:MAX_NAME]
    bare = re.sub(r"\s*[(\[][^)\]]*[)\]]\s*(?:STAT)?", "", name).strip()
    leaf = re.sub(r"^.*\.(?=[A-Z]\w+$)", "", bare)
    yield from dict.fromkeys(form for form in (name, bare, leaf) if re.search("[A-Za-z]", form))
