"""Linux perf: `perf stat` as text, as the CSV of `-x` and as the JSON lines of `-j`; the text of
`perf annotate --stdio` and `perf report --stdio`.

Formats, from tools/perf/Documentation/perf-stat.txt and recorded output:
- CSV: [time of an interval,] value, unit, event, [variance in %,] time counted, share of the time
  in %, [metric, its unit].
- JSON: an object on each line with counter-value, unit, event, pcnt-running, metric-value,
  metric-unit, each if known. Some versions leave a comma before the brace.
- text: value, [unit,] event, [# metric, its unit,] [(share of the time in %)].
Of the derived metrics, those of the top-down analysis are read, in per cent; the others follow from
the counts. Events with a unit (clocks, energy) are not counts and are left out.
- annotate: a head with the event and the number of samples, then lines "percent : address:
  instruction", with "// file:line" (-l) and the source between them as ": number text".
- report: a table of Overhead, Command, Shared Object and Symbol.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from retrieval.profiles.lines import TIME_UNIT, LineRow, of_leading
from retrieval.profiles.profile import Kernel, Metric, Profile, number, without_deviations
from retrieval.profiles.program import RUNTIMES, WAITS

KIND = "perf"
# With more events than counters, perf multiplexes; below this share of the time a count is a guess.
MIN_SHARE_PCT = 20.0
MAX_LINE = 1000  # characters of a line that are read
_UNCOUNTED = "<not (?:supported|counted)>"
_CSV = re.compile(
    rf"\s*(?:[\d.]+(?P<separator>[,;\t]))?(?:[\d.]+|{_UNCOUNTED})"
    r"[,;\t][^,;\t]{0,20}[,;\t][A-Za-z]"
)
_TEXT = re.compile(
    rf"\s*(?P<value>[\d.,'\u2019\u202f\u2009\xa0]+|{_UNCOUNTED})\s+(?:(?P<unit>[A-Za-z]+)\s+)?(?P<event>[A-Za-z_][^\s#(]*)"
    r"(?:\s+\((?P<old_unit>msec)\))?\s*(?:#(?P<metric>[^()]*))?(?:\((?P<share>[\d.,]+)\s?%\))?\s*"
)
_MORE_METRICS = re.compile(r"\s*(?:\S.*?)?\s*#(?P<metric>[^()]*)(?:\([\d.,]+\s?%\))?\s*")
# Metrics of the top-down analysis of Intel (tma_*), and of AMD; shares of the data TLB.
_TOP_DOWN = re.compile(
    r"\s*(?P<value>-?[\d.,]+)?\s*%\s+(?P<name>tma_\w+|(?:frontend|backend)_bound\w*"
    r"|bad_speculation\w*|retiring\w*)\s*"
    r"|\s*(?:(?P<part>[\d.,]+) ?% )?of (?P<whole>all dTLB cache \w+)\s*"
)
_MISSES = {"LLC-load-misses", "cache-misses", "ll_cache_miss_rd"}  # bytes, if divided by the time
_ELAPSED = re.compile(r"\s*(\d+[.,]\d+)\s.{0,40}seconds time elapsed")
_BLANKS = re.compile(r"(?<=\d)[ \u202f\u2009\xa0](?=\d{3}(?!\d))")  # within the number of a line
_GROUPED = re.compile(
    r"\d{1,3}(?:[.,'\u2019\u202f\u2009\xa0]\d{2,3})*[.,'\u2019\u202f\u2009\xa0]\d{3}"
)


@dataclass
class Counts:
    """Events and their counts; `missing` are events that were not counted, or for too small a share
    of the time."""

    metrics: dict[str, Metric] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, event: str, value: float | None, share: float | None) -> None:
        """Hybrid processors report an event once per kind of core, and `-I` once per interval:
        counts are added up."""
        event = _plain(event)
        if value is None or (share is not None and share < MIN_SHARE_PCT):
            self.missing.append(event)
            return
        before = self.metrics.get(event)
        self.metrics[event] = value + (before if isinstance(before, float) else 0.0)

    def add_metric(self, value: float | None, unit: str) -> None:
        """A derived metric of the top-down analysis, or the printed share of misses of the data
        TLB, whose references are often not counted; the first of a name is used."""
        match = _TOP_DOWN.fullmatch(unit)
        if match is None:
            return
        text = re.sub(r",(\d{1,2})$", r".\1", match["value"] or match["part"] or "")
        shown = number(text) if text else value
        if shown is not None:
            self.metrics.setdefault(match["name"] or match["whole"], shown)


def read(text: str) -> Profile | None:
    """The counts, or the lines and symbols of a sampled program; None for another text."""
    kernel, rows = of_leading(read_lines(text))
    if rows:
        return Profile(KIND, kernel, {}, (Kernel(kernel, 1, 0.0),), (), rows, TIME_UNIT)
    if (excerpt := _excerpt(text)) is not None:
        return excerpt
    text = without_deviations(text)
    counts = next((c for c in (_json(text), counts_of_csv(text), _text(text)) if c), None)
    if counts is None:
        return _report(text)
    missing = [e for e in dict.fromkeys(counts.missing) if e not in counts.metrics]
    notes = (f"perf did not count {', '.join(missing)}",) if missing else ()
    return Profile(KIND, "", counts.metrics, (), notes)


def counts_of_csv(text: str) -> Counts | None:
    """The counts in the lines of `perf stat -x,`; None without such a line."""
    if not any(2 * separator in text for separator in ",;\t"):
        return None  # a count has no unit, so two numbers are adjacent
    counts = Counts()
    for line in _lines(text):
        match = _CSV.match(line)
        if line.startswith("#") or match is None:
            continue
        cells = re.split(r"[,;\t]", line.strip())
        if match["separator"]:
            del cells[0]  # time stamp of an interval
        if len(cells) > 3 and cells[3].endswith("%"):
            del cells[3]  # variance of several runs
        if len(cells) < 5:
            continue
        if not cells[1]:
            counts.add(cells[2], number(cells[0]), number(cells[4]))
        if len(cells) > 6:
            counts.add_metric(number(cells[5]), cells[6])
    return counts if counts.metrics or counts.missing else None


def _json(text: str) -> Counts | None:
    if '"counter-value"' not in text and '"metric-value"' not in text:
        return None
    counts = Counts()
    for row in _objects(text):
        if row.get("event") and not row.get("unit"):
            share = number(row.get("pcnt-running"))
            counts.add(str(row["event"]), number(row.get("counter-value")), share)
        counts.add_metric(number(row.get("metric-value")), str(row.get("metric-unit") or ""))
    return counts if counts.metrics or counts.missing else None


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    for line in _lines(text):
        if '"counter-value"' not in line and '"metric-value"' not in line:
            continue
        try:
            row = json.loads(re.sub(r",\s*}\s*$", "}", line.strip()))
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _text(text: str) -> Counts | None:
    if "Performance counter stats for" not in text and "seconds time elapsed" not in text:
        return None
    counts = Counts()
    heads: list[str] = []
    for line in _lines(text):
        cells = line.split()
        if heads and len(cells) == len(heads):  # a row of numbers below their names
            for name, cell in zip(heads, cells, strict=True):
                counts.add_metric(number(cell), f"% {name}")
        heads = re.findall(r"%\s+(tma_\w+)", line)
        if (elapsed := _ELAPSED.match(line)) and _MISSES & counts.metrics.keys():
            counts.metrics["seconds time elapsed"] = float(elapsed[1].replace(",", "."))
        start = re.match(r"[\s\d]*", line)
        line = _BLANKS.sub("", start[0]) + line[start.end() :] if start else line
        match = _TEXT.fullmatch(line)
        if match is not None:
            share = number(match["share"].replace(",", ".")) if match["share"] else None
            if not match["unit"] and not match["old_unit"]:
                counts.add(match["event"], _count(match["value"]), share)
            counts.add_metric(None, match["metric"] or "")
        elif (more := _MORE_METRICS.fullmatch(line)) is not None:
            counts.add_metric(None, more["metric"])
    return counts


def _lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if len(line) <= MAX_LINE)


def _count(text: str) -> float | None:
    """A whole number with the thousands separator of any locale."""
    digits = re.sub(r"\D", "", text) if _GROUPED.fullmatch(text) else text
    return number(digits)


def _plain(event: str) -> str:
    """`cpu_core/cycles/` and `cycles:u` are cycles."""
    inner = event.split("/")[1] if event.count("/") >= 2 else event
    return inner.split(":", 1)[0]


# -- sampled lines

_HEAD = re.compile(
    r"\s*Percent\s*\|\s*(?:Source code & )?Disassembly of (?P<object>\S+)"
    r"(?: for (?P<event>\S+) \((?P<samples>[\d,]+) samples)?"
)
_SYMBOL = re.compile(r"[0-9a-f]+ <(?P<name>[^>]+)>:\s*$")
_SAMPLED = re.compile(
    r"\s*(?P<percent>\d+\.\d+)?\s*(?:\d+\.\d+\s+)*:\s+(?P<address>[0-9a-f]+):"
    r"\s+(?P<instruction>\S.*?)(?:\s+//\s*(?P<file>\S+):(?P<line>\d+))?\s*$"
)
_SOURCE = re.compile(r"\s*(?:\d+\.\d+)?\s*:(?:\s+(?P<line>\d+))?\s?(?P<text>.*)$")


def read_lines(text: str) -> dict[str, list[LineRow]]:
    """The instructions of each symbol of `perf annotate --stdio`; their samples are shares of the
    symbol in per cent, times the number of its samples where the head tells it."""
    if "Disassembly of" not in text:
        return {}
    tables: dict[str, list[LineRow]] = {}
    symbol = source = ""
    line, weight = 0, 1.0
    for row in _lines(text):
        if head := _HEAD.match(row):
            symbol, source, line = head["object"], "", 0
            weight = number(head["samples"] or "") or 1.0
        elif sampled := _SAMPLED.match(row):
            tables.setdefault(symbol, []).append(
                LineRow(
                    samples=float(sampled["percent"] or 0) * weight / 100,
                    file=sampled["file"] or "",
                    line=int(sampled["line"] or line),
                    address=sampled["address"],
                    instruction=sampled["instruction"].partition(" # ")[0].lstrip("→↑↓← ").strip(),
                    source=source,
                )
            )
        elif quoted := _SOURCE.match(row):
            if named := _SYMBOL.search(quoted["text"]):
                symbol = named["name"]
            elif quoted["text"].strip() and not quoted["text"].rstrip().endswith("():"):
                source, line = quoted["text"].strip(), int(quoted["line"] or 0)
    return {name: _with_file(rows) for name, rows in tables.items()}


def _with_file(rows: list[LineRow]) -> list[LineRow]:
    """The rows with their file and line, which perf names at sampled instructions only: the number
    before a source line counts from the start of the listing in some versions."""
    files = {row.file for row in rows if row.file}
    by_samples = sorted(rows, key=lambda row: row.samples)
    marked = {row.source: row.line for row in by_samples if row.file and row.source}
    file = next(iter(files)) if len(files) == 1 else ""
    return [
        row if row.file else replace(row, file=file, line=marked.get(row.source, row.line))
        for row in rows
    ]


# A screen of perf annotate: a share, a bar, and an instruction, or source without a share.
_EXCERPT = re.compile(r"\s{0,12}(?P<percent>\d{1,2}\.\d\d|100\.00)?\s{0,12}[|\u2502](?P<text>.*)$")
_INSTRUCTION = re.compile(
    r"\s*(?:[0-9a-f]{1,12}:\s+)?[\u2191\u2193\u2190\u2192+-]? ?(?P<instruction>[a-z][a-z0-9.]{1,15}"
    r"(?:\s+[%$*(\[\w#-].*)?)$"
)
_ABOVE = re.compile(r"\s*(?:Samples: |Percent|Event count)|.*\[Percent: ")
_SPINS = re.compile(r"pause|back_?off|\bspin|busy.?wait|cpu_relax|steal|sched_yield|\byield", re.I)
LEAST_SHARES = 2  # sampled instructions of a screen


def _excerpt(text: str) -> Profile | None:
    """The sampled instructions of a part of a screen of perf annotate; None for other texts."""
    rows: list[LineRow] = []
    spins = waits = 0.0
    source, above = "", ""
    for line in _lines(text):
        if (screen := _EXCERPT.match(line)) is None or screen["text"].count("|") > 1:
            if line.strip() and not _ABOVE.match(line):
                return None
            continue
        found = _INSTRUCTION.match(screen["text"]) if screen["percent"] else None
        if screen["percent"] and found is None:
            return None
        if found is None:
            above += screen["text"]
            source = screen["text"].strip() or source
            continue
        samples = float(screen["percent"])
        spins = samples if _SPINS.search(above + screen["text"]) else 0.0
        waits += spins
        above = "" if not spins else above
        rows.append(LineRow(samples, instruction=found["instruction"].strip(), source=source))
    if len(rows) < LEAST_SHARES or sum(row.samples for row in rows) > ONE_WHOLE:
        return None
    metrics: dict[str, Metric] = {"sync_sample_pct": round(waits, 2)} if waits else {}
    return Profile(KIND, metrics=metrics, lines=tuple(rows), unit=TIME_UNIT)


ONE_WHOLE = 101.0  # per cent, with rounding
_REPORTED = re.compile(
    r"\s*(?P<percent>\d+[.,]\d+)%\s+(?:\d+[.,]\d+%\s+)?(?:\d+\s+)?(?P<command>\S+)\s+(?P<object>\S+)\s+\[[.k]\]"
    r"\s(?P<name>\S.*?)\s*$"
)


LEAST_ROWS = 3  # of a table without its header; a text that only quotes some has more other lines


def _report(text: str) -> Profile | None:
    """The symbols of `perf report --stdio` with their shares of the samples."""
    headed = "# Overhead" in text or "Overhead  " in text
    rows = [match for line in _lines(text) if (match := _REPORTED.match(line))]
    others = sum(1 for line in _lines(text) if line.strip()) - len(rows)
    if len(rows) < (1 if headed else max(LEAST_ROWS, others)):
        return None
    shares = [float(row["percent"].replace(",", ".")) for row in rows]
    kernels = tuple(Kernel(r["name"], 1, share) for r, share in zip(rows, shares, strict=True))
    waits = [
        share
        for row, share in zip(rows, shares, strict=True)
        if WAITS.search(row["name"]) or RUNTIMES.match(row["object"])
    ]
    metrics: dict[str, Metric] = {"sync_sample_pct": round(sum(waits), 2)} if waits else {}
    note = "shares of samples: `perf stat -d` adds counters, `perf annotate --stdio -l` lines"
    return Profile(KIND, kernels[0].name, metrics, kernels, (note,))
