"""Counters and their values in a text of any layout: a list, a table with bars or in Markdown, CSV
with a column for each counter, or words ("768 threads", "0.75 theoretical occupancy").

Does not know which counters mean what: it yields every name that a line may have, and the registry
of metrics keeps those that it knows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from retrieval.profiles.lines import stall_name
from retrieval.profiles.profile import without_deviations, without_prefix

MAX_LINE = 2_000
MAX_NAME = 90
_MARKS = "*_`~ \t\u2937\u21b3\u2514\u2500"
_RULE = re.compile(r"[\s|:+=─═-]*-[\s|:+=─═-]*")
_NUMBERED = re.compile(r"\d+(?:\.\d+)+|metric[ _]?id|index(?:[ _]?id)?", re.IGNORECASE)
_LEVEL = re.compile(r"(?:Idle|Low|Mid|High|Max) \((\d{1,2})\)")
_NUMBER = (
    r"-?(?:\d{1,3}(?:\.\d{3}){2,}|\d{1,3}(?:[,'\u2019\u202f\xa0 ]\d{3})+(?:\.\d+)?|\d+(?:[.,]\d+)?)"
    r"(?:[eE][+-]?\d+)?"
)
_UNIT = r"%|[KMGT]?i?[Bb](?:yte)?s?(?:/s(?:ec(?:ond)?)?)?|[num\u00b5\u03bc]?s(?:ec(?:ond)?s?)?"
_VALUE = re.compile(rf"(?P<number>{_NUMBER})\s?(?P<unit>{_UNIT})?(?![\w.])")
# In the text of perf: its locale has a decimal comma, also where three digits follow it.
_DECIMAL_COMMA = re.compile(r"\d,\d\d\s?%|\d,\d{4,} .{0,40}seconds time elapsed")
_WORDS = re.compile(r"[A-Za-z_][\w.:/%\[\]() +&\u00b5-]{0,120}")


def counters(text: str, columns: bool = True) -> dict[str, str]:
    """Every possible name of a counter with its value and unit; the first of a name. With `columns`
    also those of CSV with a column for each counter."""
    text = without_deviations(text)
    if _DECIMAL_COMMA.search(text):
        text = re.sub(r"(#\s*-?\d+),(\d)", r"\1.\2", text)
    found: dict[str, str] = {}
    for name, value in (*(of_columns(text) if columns else ()), *_of_lines(text)):
        unit = _IN_BRACKETS.search(name)
        for form in _forms(name):
            with_unit = unit is not None and form != name and value[-1:].isdigit()
            found.setdefault(form, f"{value} {unit[1]}" if unit and with_unit else value)
        if metric := _in_words(name):
            number = value.removesuffix("%").strip()
            part = name.lower().endswith("ratio") and "." in number and float(number) <= 1
            if part or value.endswith("%"):
                found.setdefault(metric, f"{100 * float(number):g} %" if part else value)
    return {**found, **_imbalance(text)}


# A time of each thread with the columns sum, minimum, maximum and average.
_OF_THREADS = re.compile(
    r"^\W{0,60}(?:Runtime unhalted \[s\]|Busy time|CPU time)[^|\n]{0,30}\|(?P<cells>[\d.| eE+]+)$",
    re.MULTILINE,
)


def _imbalance(text: str) -> dict[str, str]:
    """How much longer than the mean the busiest thread works, in a table with these columns."""
    row = _OF_THREADS.search(text)
    if row is None or not re.search(r"\| *Sum *\| *Min *\| *Max *\| *Avg", text):
        return {}
    numbers = [float(cell) for cell in row["cells"].split("|") if cell.strip()]
    if len(numbers) < 4 or not numbers[2]:
        return {}
    return {"thread_imbalance_pct": f"{100 * (1 - numbers[3] / numbers[2]):.1f}"}


# A unit behind a name, as likwid prints it; shares keep their bare numbers.
_IN_BRACKETS = re.compile(r"[\[(]([KMGT]?(?:Bytes|B)(?:/s)?)[\])]\s*(?:STAT)?$")


def _in_words(name: str) -> str:
    """The metric of a share by the words of its name; empty for another name."""
    words = name.strip("*_`-\u2022 :")
    if reason := stall_name(
        re.sub(r"(?i)^(?:warp )?stalls? ?[(:]* ?", "stall_", words).rstrip(")")
    ):
        return f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct"
    return metric_of(words)


# Heads of columns and names of rows in the words of people, with the metric of their cells.
_OF_PEAK = r"\b.*(?:%|peak|util|throughput|busy|active|sol|usage)"
_METRIC_HEADS = tuple(
    (re.compile(words, re.IGNORECASE), name)
    for words, name in (
        (r"(?:hbm|dram|gddr|vram|(?:device|global) mem\w*)" + _OF_PEAK, "dram_throughput_pct"),
        (r"(?:mem\w*[ _])?(?:bandwidth|bw)\b.*(?:util|% ?(?:of )?peak)", "dram_throughput_pct"),
        (r"l2\b.*\bhit", "l2_hit_pct"),
        (r"(?:l1|tex)\b.*\bhit", "l1_hit_pct"),
        (r"l2" + _OF_PEAK, "l2_throughput_pct"),
        (r"l1" + _OF_PEAK, "l1_throughput_pct"),
        (r"(?:pm )?(?:tensor|mma|mfma|fpu|matrix)(?: pipe\b|" + _OF_PEAK + ")", "tensor_pipe_pct"),
        (r"(?:fp64|double(?: precision)?)(?: pipe\b|" + _OF_PEAK + ")", "fp64_pipe_pct"),
        (r"(?:sm|compute|cu)(?: compute|" + _OF_PEAK + ")", "compute_throughput_pct"),
        (r"(?:aic_?)?(?:mac|cube)_(?:fp16_|int8_)?ratio$", "tensor_pipe_pct"),
        (r"(?:aiv_?)?vec_(?:fp32_|fp16_)?ratio$", "vector_pipe_pct"),
        (r"(?:ai[cv]_)?mte2_ratio$", "load_engine_pct"),
        (r"(?:ai[cv]_)?scalar_ratio$", "scalar_unit_pct"),
        (r"theor\w*\W*occ\w*", "theoretical_occupancy_pct"),
        (r"(?:warps? active|active warps?|(?:achieved )?occ(?:upancy)?)[\W%]*$", "occupancy_pct"),
        (r"reg(?:ister)?s?(?: ?(?:/|per) ?(?:thread|work-?item))?$", "registers_per_thread"),
    )
)


def metric_of(head: str) -> str:
    """The metric of a column by its head; empty for another column."""
    return next((name for words, name in _METRIC_HEADS if words.match(head.strip("*` "))), "")


def growths(text: str) -> dict[str, float]:
    """How much larger each counter of a table is in its second column of values than in the first;
    empty for other texts."""
    found: dict[str, float] = {}
    for cells in _table(text):
        values = [m for cell in cells[1:3] if (m := _VALUE.fullmatch(cell)) and not m["unit"]]
        if len(values) == 2 and len(cells) > 2:
            first, second = (float(_plain(value["number"])) for value in values)
            if first > 0:
                found.setdefault(cells[0], second / first)
    return found


_RATE = re.compile(
    r"(?<![\w.])(?P<number>\d[\d,]{0,30}(?:\.\d{1,30})?(?:e\+\d{1,3})?)\s?(?P<prefix>[KMGT])(?P<i>i?)(?P<unit>B/s|B/sec|FLOPS?(?:/s)?)(?![\w])",
    re.I,
)
_LABELLED_RATE = re.compile(
    r"\((?P<prefix>[KMGT])(?P<i>i?)(?P<unit>B/s|FLOPS?(?:/s)?)\)\s*:\s*(?P<number>\d[\d,]*(?:\.\d+)?)",
    re.I,
)
# A rate of device memory in a row of likwid.
_MEMORY_RATE = re.compile(
    r"\bMemory bandwidth \[(?P<prefix>[KMGT])(?P<i>i?)(?P<unit>B)ytes/s\][^\d\n]{1,40}"
    r"(?P<number>\d[\d,]{0,30}(?:\.\d{1,30})?(?:e\+?\d{1,3})?)",
    re.I,
)
MOST_RATE = 1e18  # of any device; a larger number is no less wrong
_PREFIXES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY_PREFIXES = {"k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}


def rates(text: str) -> dict[str, float]:
    """The highest rates of bytes and of floating-point operations in a text, in a second."""
    found: dict[str, float] = {}
    patterns = (_RATE, _LABELLED_RATE, _MEMORY_RATE)
    for match in (m for pattern in patterns for m in pattern.finditer(text)):
        name = "achieved_bytes_per_s" if match["unit"][0] in "Bb" else "achieved_flops"
        prefixes = _BINARY_PREFIXES if match["i"] else _PREFIXES
        value = float(_plain(match["number"])) * prefixes[match["prefix"].lower()]
        found[name] = min(max(value, found.get(name, 0.0)), MOST_RATE)
    return found


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


def _swept(names: Sequence[str], rows: Sequence[Sequence[float]]) -> Sweep:
    columns = list(zip(*rows, strict=True))[-len(names) :]
    named = list(zip(names[-len(columns) :], columns, strict=True))
    whole = [all(v == int(v) for v in column) for _, column in named]
    first = whole.index(False) if False in whole else 1
    sizes, values = [row for row in named[:first] if len({*row[1]}) > 1], named[first:]
    metrics: dict[str, float] = {}
    for name, column in named:
        if rate := re.search(r"\((?P<prefix>[KMGT])B/s\)", name):
            metrics["achieved_bytes_per_s"] = max(column) * _PREFIXES[rate["prefix"].lower()]
    at = [f"{sizes[0][0]} = {sizes[0][1][i]:g}" if sizes else "that row" for i in (0, -1)]
    notes = [
        f"{name} goes from {column[0]:.4g} to {column[-1]:.4g} between {at[0]} and {at[1]}"
        for name, column in values[-2:]
    ]
    values = [row for row in values if not _RELATIVE.search(row[0])] or values
    alike = len(values) >= 2 and not any("(" in name for name, _ in values[-2:])
    if alike and values[-2][1][0] and values[-2][1][-1]:
        (base, of), (other, by) = values[-2:]
        parts = [100 * by[i] / of[i] for i in (0, -1)]
        notes.insert(
            0, f"{other} is {parts[0]:.3g} % of {base} at {at[0]} and {parts[1]:.3g} % at {at[1]}"
        )
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


def _table(text: str) -> Iterator[list[str]]:
    """The rows of tables with bars."""
    for line in text.splitlines():
        if line.count("|") + line.count("│") < 1 or len(line) > MAX_LINE or _RULE.fullmatch(line):
            continue
        inner = re.split("[|│]", line.strip().strip("|│"))
        cells = [cell.strip(_MARKS).removeprefix("- ") for cell in inner]
        if _NUMBERED.fullmatch(cells[0]):
            cells = cells[1:]
        if len(cells) >= 2 and cells[0]:
            yield cells


def _of_lines(text: str) -> Iterator[tuple[str, str]]:
    average: int | None = None
    for cells in _table(text):
        folded = [cell.lower() for cell in cells]
        if "avg" in folded and folded.index("avg") > 0:
            average = folded.index("avg")
        place = average if average and average < len(cells) else 1
        for cell in (cells[place], *cells[1:]):
            if match := _VALUE.fullmatch(cell.replace(" %", "%")):
                yield cells[0], _shown(match)
                break
    for line in text.splitlines():
        if len(line) <= MAX_LINE and "│" not in line and line.count("|") < 2:
            yield from _of_line(without_prefix(line))


def _of_line(line: str) -> Iterator[tuple[str, str]]:
    """A name before its value or behind it; of a minimum, a maximum and an average, the last."""
    whole, _, remark = _LEVEL.sub(lambda level: f"{10 * int(level[1])} %", line).partition("#")
    matches = [
        m
        for m in _VALUE.finditer(whole)
        if not re.match(r"[\w./-]", whole[m.start() - 1 :][: m.start()])
    ]
    if not matches:
        return
    bracket = whole.find("(", matches[0].end())
    matches = [m for m in matches if bracket < 0 or m.start() < bracket]
    leading = [m for m in matches if not re.search("[A-Za-z]", whole[: m.start()])]
    if leading and len(leading) == len(matches):
        words = re.match(rf"\s*(?:msec\s+)?({_WORDS.pattern})", whole[leading[-1].end() :])
        if words:
            for name in filter(None, re.split(r"\s{2,}|\(", words[1])):
                yield name, _shown(leading[-1])
    elif matches[len(leading) :]:
        values = matches[len(leading) :]
        front = whole[: values[0].start()].strip(" \t=:")
        numbers = [float(_plain(m["number"])) for m in values]
        average = len(values) == 3 and numbers[0] <= numbers[2] <= numbers[1]
        parts = [part for part in re.split(r"\s{2,}|\t|:{1,2}\s", front) if part]
        for name in dict.fromkeys([*reversed(parts), front]):
            yield name, _shown(values[-1] if average else values[0])
    rate = re.match(rf"\s*({_NUMBER})\s?(%)?\s+(?:of )?([A-Za-z][\w ./-]+)", remark)
    if rate:  # "# 57.98% of all cache refs"
        yield rate[3].strip(), f"{_plain(rate[1])}{' %' if rate[2] else ''}"


def of_columns(text: str) -> Iterator[tuple[str, str]]:
    """The counters of CSV, or of a table with bars, with a row for each case: of the row with the
    largest numbers."""
    rows = [
        [cell.strip() for cell in next(csv.reader([line]), [])]
        for line in text.splitlines()
        if line.count(",") >= 2 and len(line) <= MAX_LINE
    ] + [*_table(text)]
    for place, header in enumerate(rows):
        words = [cell for cell in header if re.fullmatch(r"[A-Za-z%#][\w .:%()/-]*", cell)]
        if len(words) < len(header) or len(header) < 3:
            continue
        body = [row for row in rows[place + 1 :] if len(row) == len(header)]
        numeric = [row for row in body if sum(bool(_VALUE.fullmatch(c)) for c in row) >= 2]
        if not numeric:
            continue
        largest = max(numeric, key=_size)
        for name, cell in zip(header, largest, strict=True):
            if match := _VALUE.fullmatch(cell):
                yield name, _shown(match)
        return


def _size(row: list[str]) -> float:
    return sum(float(_plain(m["number"])) for cell in row if (m := _VALUE.fullmatch(cell)))


def _plain(number: str) -> str:
    if re.fullmatch(r"-?(?:\d+,\d{1,2}|\d+,\d{4,}|0,\d+)", number):
        return number.replace(",", ".")  # a decimal comma
    if number.count(".") > 1:
        return number.replace(".", "")
    return re.sub(r"[,'\u2019\u202f\xa0 ](?=\d{3})", "", number)


def _shown(match: re.Match[str]) -> str:
    return f"{_plain(match['number'])} {match['unit'] or ''}".strip()
