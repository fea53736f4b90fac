"""AMD's profilers: rocprof, rocprofv2, rocprofv3 and rocprof-compute (Omniperf), as CSV.

Formats, from AMD's documentation and recorded files:
- counters of rocprof and rocprofv2: a row for each dispatch, a column for each counter behind the
  columns that describe the dispatch (KernelName, grd, wgr, lds, ... BeginNs, EndNs; or Kernel_Name,
  GRD, ... Start_Timestamp, End_Timestamp).
- counters of rocprofv3 (`*_counter_collection.csv`): a row for each counter of each dispatch, with
  Counter_Name and Counter_Value. Its kernel trace has the same columns without those.
- statistics (`--stats`): Name, Calls, TotalDurationNs, AverageNs, Percentage; rocprof-compute's
  pmc_kernel_top.csv: Kernel_Name, Count, Sum(ns).
- a table of `rocprof-compute analyze`, as CSV or as printed: Metric, Avg or Value, Unit, Peak, Pct
  of Peak.
- instructions of a thread trace (`--att`): stats_*.csv with CodeObj, Vaddr, Instruction, Hitcount,
  Latency, Stall, Idle, Source, and code.json with the same in rows; a row whose instruction begins
  with ";" names the kernel below it. Cycles of Latency include those of Stall.
- samples of the program counter: one a row, with Instruction, Instruction_Comment (its source line)
  and, if sampled stochastically, Wave_Issued_Instruction and Stall_Reason; or counts of
  rocprof-compute with source_line, instruction, count, offset and stall_reason.
Grids are counted in work-items, times in nanoseconds.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod

from retrieval.profiles.lexicon import pattern_of, words_of
from retrieval.profiles.lines import LineRow, access_of, of_leading, stall_name
from retrieval.profiles.profile import (
    Kernel,
    Metric,
    Profile,
    choice_note,
    number,
    total_times,
)
from retrieval.profiles.program import of_program

KIND = "rocprof"
COMPUTE_KIND = "rocprof-compute"
_KERNEL = ("Kernel_Name", "KernelName")
_DISPATCH = ("Dispatch_Id", "Index", "Correlation_Id")
_STARTS, _ENDS = ("Start_Timestamp", "BeginNs"), ("End_Timestamp", "EndNs")
_AXES = ("X", "Y", "Z")
# Columns about the dispatch that are metrics, with their names in metrics.toml.
_RESOURCES = {
    "LDS_Block_Size": ("LDS_Block_Size", "LDS_Per_Workgroup", "Group_Segment_Size", "lds"),
    "Scratch_Size": ("Scratch_Size", "Scratch_Per_Workitem", "Private_Segment_Size", "scr"),
    "VGPR_Count": ("VGPR_Count", "Arch_VGPR", "vgpr"),
}
_DESCRIBING = frozenset(words_of("dispatch_columns"))
_NO_KERNEL = pattern_of("rocm_functions")
# Rows of rocprof-compute that are read as a share of the peak, with the metric.
_OF_PEAK = {
    "Wavefront Occupancy": "occupancy_pct",
    "vL1D Cache Hit Rate": "l1_hit_pct",
    "vL1D Cache BW": "l1_throughput_pct",
    "L2 Cache BW": "l2_throughput_pct",
}
# Labels that only their section tells apart.
_OF_SECTION = {
    ("16", "Hit rate"): "l1_hit_pct",
    ("16", "Coalescing"): "load_efficiency_pct",
    ("17", "Hit rate"): "l2_hit_pct",
}
# Shares of the peak of device memory, which reads and writes add up to.
_OF_MEMORY = ("L2-Fabric Read BW", "L2-Fabric Write BW", "L2-Fabric Write and Atomic BW")
# Other rows are read if they have one of these units: older versions give counts under the same
# labels.
_UNITS = ("pct", "percent", "%", "conflicts/access")


@dataclass
class _Dispatch:
    kernel: str
    nanoseconds: float
    metrics: dict[str, Metric] = field(default_factory=dict)


def read(text: str) -> Profile | None:
    """The metrics of the kernel that takes most of the time; None if the text is not of one of
    these profilers."""
    as_csv = _as_csv(text)
    sections = _sections(as_csv)
    for columns, read_table in (
        ((("Vaddr",), ("Instruction",), ("Latency",), ("Stall",)), _traced),
        ((("Instruction",), ("Instruction_Comment",), ("Exec_Mask",)), _sampled),
        ((("source_line",), ("instruction",), ("count",), ("offset",)), _counted_samples),
        (_OF_COMPUTE, lambda _: _compute_rows(sections)),
        ((_KERNEL, _DISPATCH), _counters),
        ((("Name", *_KERNEL), ("Calls", "Count"), ("TotalDurationNs", "Sum(ns)")), _statistics),
    ):
        table = find_table(as_csv, *columns)
        if table is not None:
            profile = read_table(table)
            return _with_kernels(profile, as_csv) if profile.kind == COMPUTE_KIND else profile
    return None


# -- counters


def _counters(table: CsvTable) -> Profile:
    dispatches = _dispatches(table)
    runs = [Kernel(d.kernel, 1, d.nanoseconds / 1e3) for d in dispatches]
    kernels = total_times(runs)
    if not kernels:
        return Profile(KIND)
    leading = [d for d in dispatches if d.kernel == kernels[0].name]
    leading.sort(key=lambda dispatch: -dispatch.nanoseconds)
    metrics: dict[str, Metric] = {}
    for dispatch in leading:  # counters of a further pass belong to another dispatch
        metrics = {**dispatch.metrics, **metrics}
    return Profile(KIND, kernels[0].name, metrics, kernels, choice_note(kernels))


def _dispatches(table: CsvTable) -> list[_Dispatch]:
    known: dict[tuple[str, ...], _Dispatch] = {}
    keys = zip(table.cells("Process_Id", "pid"), table.cells(*_DISPATCH), strict=True)
    spans = zip(table.cells(*_STARTS), table.cells(*_ENDS), strict=True)
    long = table.place("Counter_Name") is not None
    counters = zip(table.cells("Counter_Name"), table.cells("Counter_Value"), strict=True)
    names = table.cells(*_KERNEL)
    resources = _resources(table)
    for place, (row, key, span, counter, name) in enumerate(
        zip(table.rows, keys, spans, counters, names, strict=True)
    ):
        if not name:
            continue
        dispatch = known.setdefault(key, _Dispatch(name, _duration(*span)))
        if dispatch.nanoseconds:
            dispatch.metrics["DurationNs"] = dispatch.nanoseconds
        dispatch.metrics |= resources[place]
        pairs = [counter] if long else zip(table.header, row, strict=False)
        for counted, text in pairs:
            value = number(text)
            if value is not None and counted.lower() not in _DESCRIBING:
                dispatch.metrics[counted] = value
    return list(known.values())


def _duration(start: str, end: str) -> float:
    first, last = number(start), number(end)
    return max(0.0, last - first) if first is not None and last is not None else 0.0


def _resources(table: CsvTable) -> list[dict[str, Metric]]:
    """The registers, memory and grid of each row."""
    rows: list[dict[str, Metric]] = [{} for _ in table.rows]
    for name, columns in _RESOURCES.items():
        for row, text in zip(rows, table.cells(*columns), strict=True):
            value = number(text)
            if value is not None:
                row[name] = value
    grids, groups = _sizes(table, "Grid_Size", "grd"), _sizes(table, "Workgroup_Size", "wgr")
    for row, grid, group in zip(rows, grids, groups, strict=True):
        if grid and group:
            row["workgroup_count"] = grid // group
    return rows


def _sizes(table: CsvTable, name: str, short: str) -> list[float]:
    """Work-items in each row's grid or workgroup, 0 if unknown."""
    whole = [number(text) or 0.0 for text in table.cells(name, short)]
    axes = [[number(text) or 0.0 for text in table.cells(f"{name}_{axis}")] for axis in _AXES]
    return [size or prod(sizes) for size, *sizes in zip(whole, *axes, strict=True)]


# -- statistics


def _statistics(table: CsvTable) -> Profile:
    names = table.cells("Name", *_KERNEL)
    calls, totals = table.cells("Calls", "Count"), table.cells("TotalDurationNs", "Sum(ns)")
    shares = table.cells("Pct", "Percent", "Percentage")
    kernels = total_times(
        [
            Kernel(name, number(count) or 0.0, (number(total) or 0.0) / 1e3, number(share) or 0.0)
            for name, count, total, share in zip(names, calls, totals, shares, strict=True)
            if name and number(total) is not None and not _NO_KERNEL.match(name)
        ]
    )
    return of_program(KIND, kernels)


# -- rocprof-compute


_OF_COMPUTE = (("Metric",), ("Avg", "Value"), ("Unit",))
_SECTION = re.compile(r'^"?(?=Metric_ID|Index|Metric"?,)', re.MULTILINE)


def _sections(text: str) -> list[CsvTable]:
    """The tables of metrics; each section of a report has columns of its form."""
    tables = (find_table(part, *_OF_COMPUTE) for part in _SECTION.split(text))
    return [table for table in tables if table is not None]


def _compute_rows(tables: Sequence[CsvTable]) -> Profile:
    metrics: dict[str, Metric] = {}
    of_memory: dict[str, float] = {}
    for place, label, text, unit, text_of_share in chain.from_iterable(map(_labelled, tables)):
        value, share = number(text), number(text_of_share)
        if label in _OF_PEAK and share is not None:
            metrics.setdefault(_OF_PEAK[label], share)
        elif label in _OF_MEMORY and share is not None:
            of_memory.setdefault(label, share)
        elif value is not None and (of_section := _OF_SECTION.get((place.split(".")[0], label))):
            metrics.setdefault(of_section, value)
        elif value is not None and unit.lower() in _UNITS:
            metrics.setdefault(label, value)
    if of_memory:
        metrics.setdefault("dram_throughput_pct", min(sum(of_memory.values()), 100.0))
    return Profile(COMPUTE_KIND, "", metrics)


def _labelled(table: CsvTable) -> Iterator[tuple[str, ...]]:
    """The number, label, value, unit and share of the peak of each row."""
    shares = table.cells("Pct of Peak", "Percent of Peak", "PoP")
    columns = (table.cells("Metric"), table.cells("Avg", "Value"), table.cells("Unit"), shares)
    return zip(table.cells("Metric_ID", "Index"), *columns, strict=True)


def _with_kernels(profile: Profile, text: str) -> Profile:
    """A profile of rocprof-compute with the table of its top kernels, if the text has one."""
    table = find_table(text, _KERNEL, ("Count",), ("Sum(ns)",))
    if table is None:
        return profile
    top = _statistics(table)
    metrics = {**top.metrics, **profile.metrics}
    notes = top.notes
    if len(top.kernels) > 1 and profile.metrics:
        notes = ("the metrics but the duration are of all kernels that were analysed",)
    return Profile(profile.kind, top.kernel, metrics, top.kernels, notes)


def _as_csv(text: str) -> str:
    """Convert tables printed by `rocprof-compute analyze` to CSV; return other text unchanged."""
    if "│" not in text:
        return text
    lines = []
    for line in text.splitlines():
        cells = [cell.strip().replace('"', "'") for cell in line.strip().strip("│").split("│")]
        lines.append(",".join(f'"{cell}"' for cell in cells))
    return "\n".join(lines)


# -- instructions


def read_json(decoded: object) -> Profile | None:
    """The code.json of a thread trace; None for any other JSON."""
    if not isinstance(decoded, Mapping) or not isinstance(decoded.get("code"), list):
        return None
    header = [name.strip() for name in str(decoded.get("header") or _CODE_HEADER).split(",")]
    rows = tuple(
        tuple(str(cell) for cell in row) for row in decoded["code"] if isinstance(row, list)
    )
    return _traced(CsvTable(tuple(header), rows)) if "Stall" in header else None


_CODE_HEADER = "ISA, _, LineNumber, Source, Codeobj, Vaddr, Hit, Latency, Stall, Idle"
_PLACE = re.compile(r"(?P<file>[^\s:>]+):(?P<line>\d+)\s*$")


def _traced(table: CsvTable) -> Profile:
    """A thread trace: cycles of each instruction, of the kernel with most of them."""
    tables: dict[str, list[LineRow]] = {}
    kernel = ""
    columns = (
        table.cells("Instruction", "ISA"),
        *(table.cells(name) for name in ("Source", "Vaddr", "Latency", "Stall", "Idle")),
        table.cells("Hitcount", "Hit"),
    )
    for instruction, source, place, *counts in zip(*columns, strict=True):
        if instruction.startswith(";"):
            kernel = source or instruction.lstrip("; ")
            continue
        latency, stall, idle, hits = (number(cell) or 0.0 for cell in counts)
        file, line = _place(source)
        tables.setdefault(kernel, []).append(
            LineRow(
                samples=latency + idle,
                file=file,
                line=line,
                address=f"{int(number(place) or 0):#x}",
                instruction=instruction,
                stalls={_pipe(instruction): stall, "wait": idle},
                executed=hits,
            )
        )
    return _of_lines(tables, KIND, "cycles")


def _pipe(instruction: str) -> str:
    """The reason for which an instruction was not issued, by its unit."""
    kind = access_of(instruction).kind
    by_kind = {"wait": "waitcnt", "barrier": "barrier"}
    if kind.startswith(("global", "local", "async")):
        return "lg_throttle"
    return by_kind.get(kind, "mio_throttle" if kind.startswith("shared") else "math_pipe_throttle")


def _sampled(table: CsvTable) -> Profile:
    """Samples of the program counter, of all kernels: they name none."""
    counts: dict[tuple[str, str], list[str]] = {}
    issued = table.cells("Wave_Issued_Instruction")
    columns = (table.cells("Instruction"), table.cells("Instruction_Comment"), issued)
    for instruction, place, was, reason in zip(*columns, table.cells("Stall_Reason"), strict=True):
        stalled = was.lower() in ("0", "false")
        counts.setdefault((instruction, place), []).append(reason if stalled else "")
    rows = (
        (text, place, float(len(reasons)), _reasons(filter(None, reasons)))
        for (text, place), reasons in counts.items()
    )
    return _of_lines({"": [_row(*row) for row in rows]}, KIND, "samples")


def _counted_samples(table: CsvTable) -> Profile:
    """The table of rocprof-compute; its reasons are "{REASON: count, ...}" or one reason."""
    columns = ("source_line", "instruction", "count", "offset", "stall_reason")
    rows = []
    for place, instruction, count, offset, text in zip(
        *(table.cells(name) for name in columns), strict=True
    ):
        samples = number(count)
        if samples is None:
            continue
        named = re.findall(r"(\w+)['\"]?\s*:\s*(\d+)", text)
        stalls: dict[str, float] = {}
        for word, n in named:
            if reason := stall_name(word):
                stalls[reason] = stalls.get(reason, 0.0) + float(n)
        rows.append(_row(instruction, place, samples, stalls or _reasons([text]), offset))
    return _of_lines({"": rows}, COMPUTE_KIND, "samples")


def _reasons(words: Iterable[str]) -> dict[str, float]:
    stalls: dict[str, float] = {}
    for word in words:
        if reason := stall_name(word):
            stalls[reason] = stalls.get(reason, 0.0) + 1.0
    return stalls


def _row(
    instruction: str, place: str, samples: float, stalls: Mapping[str, float], offset: str = ""
) -> LineRow:
    file, line = _place(place)
    return LineRow(samples, file, line, offset, instruction, stalls=stalls)


def _place(source: str) -> tuple[str, int]:
    """File and line of "inner.h:272 -> kernel.cpp:1034": the last is the outermost call."""
    match = _PLACE.search(source)
    return (match["file"], int(match["line"])) if match else ("", 0)


def _of_lines(tables: Mapping[str, Sequence[LineRow]], kind: str, unit: str) -> Profile:
    kernel, rows = of_leading(tables)
    total = sum(row.samples for row in rows)
    if not total:
        return Profile(kind)
    waits = sum(row.samples for row in rows if access_of(row.instruction).kind == "wait")
    metrics: dict[str, Metric] = {"waitcnt_sample_pct": round(100 * waits / total, 2)}
    return Profile(kind, kernel, metrics, (Kernel(kernel, 1, 0.0),), (), rows, unit)


# -- CSV tables in a text: the header is found by its columns, after any other output


@dataclass(frozen=True)
class CsvTable:
    """A header and its rows; a row may be shorter or longer than the header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def place(self, *names: str) -> int | None:
        """The index of the first column with one of these names, ignoring case."""
        folded = [name.lower() for name in self.header]
        return next((folded.index(n.lower()) for n in names if n.lower() in folded), None)

    def cells(self, *names: str) -> Iterator[str]:
        """The column with one of these names; an empty text for rows that lack it."""
        place = self.place(*names)
        for row in self.rows:
            yield "" if place is None or place >= len(row) else row[place].strip()


def find_table(text: str, *columns: Sequence[str]) -> CsvTable | None:
    """The first table whose header has a column of each group of names, or None. A repeated header,
    as in concatenated files, is skipped."""
    groups = [[name.lower() for name in group] for group in columns]
    if not _holds(text, groups):
        return None
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if not _holds(line, groups):
            continue
        header = _cells(line)
        table = CsvTable(header, ())
        if all(table.place(*group) is not None for group in columns):
            rows = (tuple(row) for row in csv.reader(lines[place + 1 :]) if row)
            return CsvTable(header, tuple(row for row in rows if _stripped(row) != header))
    return None


def _holds(text: str, groups: Sequence[Sequence[str]]) -> bool:
    folded = text.lower()
    return all(any(name in folded for name in group) for group in groups)


def _cells(line: str) -> tuple[str, ...]:
    return _stripped(next(csv.reader([line]), []))


def _stripped(row: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell.strip().removeprefix("\ufeff").strip('"') for cell in row)
