"""NVIDIA Nsight Compute (`ncu`): its CSV with a row for each metric or for each launch, its text
report, and its source view.

Formats, seen with versions 2019 to 2025:
- `--csv`: the columns ID, Kernel Name, Metric Name, Metric Unit, Metric Value among others, a row
  for each metric of each launch; with `--page details` the names are the labels of the sections.
- `--page raw --csv`: a row for each launch, a column for each metric, and a row of units without
  an ID behind the header.
- the text report: a line "kernel (grid)x(block), Context 1, Stream 7, ..." for each launch, then
  tables of three columns whose widths are drawn with dashes.
- `--page source`, as CSV or as text: the lines "Kernel Name" or "Function Name" and "File Path",
  then a table with the columns Line No and Source (source lines), Address and Source (SASS), or all
  four, then samples, stall reasons, executions, sectors and wavefronts. In a view with both, a
  source line has the totals of the instructions below it.
A metric that is "n/a" is left out.

NVIDIA Nsight Systems: the database of `nsys export --type sqlite` as the CSV of `nsys stats`.
"""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from retrieval.profiles.lexicon import rows_of
from retrieval.profiles.lines import (
    LineRow,
    access_of,
    of_leading,
    registers_named,
    stall_name,
)
from retrieval.profiles.profile import (
    Kernel,
    Metric,
    Profile,
    choice_note,
    number,
    total_times,
)

KIND = "ncu"
DURATIONS = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
# Shares of accesses: 0 means that there were none, for example if all loads are asynchronous
# copies.
_OF_ACCESSES = frozenset(
    (
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    )
)
_LONG = ("Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
_WIDE = ("ID", "Kernel Name")
_IDENTITY = frozenset(
    (
        *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time"),
        *("Context", "Stream", "Block Size", "Grid Size", "Device", "CC"),
    )
)
# Units of bytes and time as factors of a base unit that follows the number; older versions print
# larger units regardless of the options.
_SIZES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}
_TIMES = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}
_TIMES |= {"s": 1e9, "second": 1e9}
_COUNTED = ("inst", "cycle", "sector", "request", "warp", "thread", "block")
_COUNTS = {p + unit: f for p, f in (("K", 1e3), ("M", 1e6), ("G", 1e9)) for unit in _COUNTED}
_GRID = re.compile(r" \(\d+, \d+, \d+\)x\(\d+, \d+, \d+\)$")
# A part of a text report, without the line that names the kernel.
_PART = "a part of a report"
_PART_NOTE = "the text is a part of a report: the line with the kernel and its other sections lack"
_OF_REPORT = re.compile(
    r"^ *(?:OPT|WRN|INF) {2,}\S"
    r"|^ *Section: (?:GPU Speed|Compute W|Memory W|Sched|Warp S|Instr|Launch|Occ|Source)",
    re.MULTILINE,
)
_TIME_OF_LAUNCH = re.compile(r", \d{4}-\w{3}-\d{2} [\d:]+$")


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel: metric name to value, as text with the unit for bytes and times.
    `nanoseconds` is 0 if the time was not measured."""

    kernel: str
    metrics: Mapping[str, Metric]
    nanoseconds: float


def read(text: str) -> Profile | None:
    """The metrics of the longest launch of the kernel that takes most of the time; None if the text
    is not of this profiler."""
    launches = read_launches(text)
    kernel, rows = of_leading(read_lines(text))
    if rows:
        return _with_lines(launches, kernel, rows)
    if _NO_SAMPLES.search(text):
        note = "the view `cuda` has no samples: add `--print-source cuda,sass`, or `sass`"
        return Profile(KIND, notes=(note,))
    if not launches:
        known = any(mark in text for mark in ("==PROF==", "==ERROR==", "==WARNING=="))
        headed = "Kernel Name" in text and _csv_header(text.splitlines()) is not None
        return Profile(KIND) if known or headed else None
    kernels = kernel_times(launches)
    longest = longest_launch(launches)
    if longest.kernel == _PART:
        return Profile(KIND, metrics=longest.metrics, notes=(_PART_NOTE,))
    return Profile(KIND, longest.kernel, longest.metrics, kernels, choice_note(kernels))


def read_launches(text: str) -> list[Launch]:
    """The launches of a CSV or a text report, in order; other output around it is ignored."""
    lines = text.splitlines()
    if "Kernel Name" not in text and ", Context " not in text:
        if not _OF_REPORT.search(text):
            return []
        lines = [f"{_PART}, Context 1, Stream 7", *lines]
    start = _csv_header(lines)
    if start is None:
        return _text_launches(lines)
    rows = csv.DictReader(lines[start:])
    columns = [name or "" for name in rows.fieldnames or ()]
    if all(column in columns for column in _LONG):
        return _long_launches(row for row in rows if row["Metric Value"] is not None)
    if all(column in columns for column in _WIDE):
        return _wide_launches(rows, [c for c in columns if c not in _IDENTITY])
    return []


def kernel_times(launches: Sequence[Launch]) -> tuple[Kernel, ...]:
    """The kernels by descending time."""
    return total_times([Kernel(run.kernel, 1, run.nanoseconds / 1e3) for run in launches])


def longest_launch(launches: Sequence[Launch]) -> Launch:
    """The longest launch of the kernel that takes most of the time; `launches` is not empty."""
    leading = kernel_times(launches)[0].name
    return max((run for run in launches if run.kernel == leading), key=lambda run: run.nanoseconds)


def _csv_header(lines: Sequence[str]) -> int | None:
    for place, line in enumerate(lines):
        if line.startswith(('"ID"', "ID,")) and "Kernel Name" in line:
            return place
        if line.startswith(('"Kernel Name"', "Kernel Name,")) and "Metric Name" in line:
            return place  # some columns of the page, kept by a person
    return None


def _long_launches(rows: Iterator[Mapping[str, str]]) -> list[Launch]:
    metrics: dict[str, dict[str, Metric]] = {}
    kernels: dict[str, str] = {}
    for row in rows:
        kernels.setdefault(row.get("ID", row["Kernel Name"]), row["Kernel Name"])
        _add(
            metrics.setdefault(row.get("ID", row["Kernel Name"]), {}),
            *(row[column] for column in _LONG[1:]),
        )
    return [_launch(kernels[launch], metrics[launch]) for launch in metrics]


def _wide_launches(rows: Iterator[Mapping[str, str]], names: Sequence[str]) -> list[Launch]:
    units: Mapping[str, str] = {}
    launches: list[Launch] = []
    for row in rows:
        if not row["ID"]:
            units = row
        elif row["ID"].isdigit() and row["Kernel Name"] and names:
            metrics: dict[str, Metric] = {}
            for name in names:
                _add(metrics, name, units.get(name) or "", row[name] or "")
            launches.append(_launch(row["Kernel Name"], metrics))
    return launches


def _text_launches(lines: Sequence[str]) -> list[Launch]:
    launches: list[tuple[str, dict[str, Metric]]] = []
    advice: list[list[str]] = []
    columns: list[tuple[int, int]] = []
    for line in lines:
        if advice:
            advice[-1].append(line)
        if ", Context " in line and ", Stream " in line:
            head = line.partition(", Context ")[0].strip()
            kernel = _TIME_OF_LAUNCH.sub("", _GRID.sub("", head))
            launches.append((kernel, {}))
            advice.append([])
        elif "---" in line and not line.strip(" -"):
            drawn = [(match.start(), match.end()) for match in re.finditer("-+", line)]
            columns = drawn if len(drawn) == 3 else []
        elif not line.strip():
            columns = []
        elif columns and launches:
            (first, second), (third, fourth), (fifth, _) = columns
            cells = line[first:second], line[third:fourth], line[fifth:]
            _add(launches[-1][1], *(cell.strip() for cell in cells))
    for (_, metrics), written in zip(launches, advice, strict=True):
        for name, value in _advised(" ".join(" ".join(written).split())).items():
            metrics.setdefault(name, value)
    return [_launch(kernel, metrics) for kernel, metrics in launches if metrics]


_STALL_ADVICE = re.compile(
    r"being stalled (?P<what>.{10,400}?)\. .{0,1500}?This stall type represents about"
    r" (?P<share>[\d.]+)% of the total average of (?P<cycles>[\d.]+) cycles"
)
_EXCESS = re.compile(
    r"uncoalesced (?P<space>global|shared) accesses resulting in a total of \d+ excessive"
    r" (?:sectors|wavefronts) \((?P<share>\d+)% of the total"
)
_CONFLICTS = re.compile(r"bank conflicts, which represent (?P<share>[\d.]+)% of the overall")
_BUSIEST = re.compile(
    r"\b(?P<pipe>XU|FP64|Tensor\S*) is the highest-utilized pipeline \((?P<share>[\d.]+)%"
)
_PIPES = {"XU": "special_pipe_pct", "FP64": "fp64_pipe_pct"}
_ISSUED = re.compile(r"only issues an instruction every (?P<cycles>[\d.]+) cycles")
_ACTIVE = re.compile(
    r"maximum of (?P<most>[\d.]+) warps per scheduler.{0,80}?average of (?P<active>[\d.]+) active"
)
_WAYS = re.compile(r"(?P<ways>[\d.]+)\s?-\s?way bank conflict across all")


def _advised(text: str) -> dict[str, Metric]:
    """The numbers in the advice of a report: the leading stall, accesses in vain, the busiest pipe.
    Its tables have no stall reasons."""
    found: dict[str, Metric] = {}
    for stall in _STALL_ADVICE.finditer(text):
        reason = next(
            (row["reason"] for row in rows_of("stalls") if row["phrase"] in stall["what"]), ""
        )
        if f"{reason}_stall_share" in _SHARES:
            found[f"{reason}_stall_share"] = round(float(stall["share"]) / 100, 4)
    for excess in _EXCESS.finditer(text):
        share = float(excess["share"])
        if excess["space"] == "global":
            of_stores = "for global stores" in text and "for global loads" not in text
            name = "store_efficiency_pct" if of_stores else "load_efficiency_pct"
            found[name] = round(100 - share, 2)
        else:
            found["bank_conflict_ratio"] = round(share / 100, 4)
    for conflict in _CONFLICTS.finditer(text):
        known = float(str(found.get("bank_conflict_ratio", 0)))
        found["bank_conflict_ratio"] = max(known, round(float(conflict["share"]) / 100, 4))
    for busiest in _BUSIEST.finditer(text):
        if busiest["pipe"] in _PIPES:
            found[_PIPES[busiest["pipe"]]] = float(busiest["share"])
    sentences = _of_sentences(text)
    stated = {name: value for name, value in sentences.items() if name.endswith("efficiency_pct")}
    return {**sentences, **found, **stated}


def _of_sentences(text: str) -> dict[str, Metric]:
    """The numbers in single sentences of the advice."""
    found: dict[str, Metric] = {}
    if ways := _WAYS.search(text):
        found["bank_conflict_ratio"] = round(1 - 1 / max(1.0, float(ways["ways"])), 4)
    if issued := _ISSUED.search(text):
        found["issue_active_pct"] = round(100 / max(1.0, float(issued["cycles"])), 2)
    if (active := _ACTIVE.search(text)) and float(active["most"]):
        found["occupancy_pct"] = round(100 * float(active["active"]) / float(active["most"]), 2)
    for row in rows_of("sentences"):
        pattern, name, factor = row["pattern"], row["metric"], row["factor"]
        if (measured := re.search(pattern, text)) is not None:
            found[name] = round(float(measured["value"]) * factor, 2)
    return found


def _launch(kernel: str, metrics: Mapping[str, Metric]) -> Launch:
    times = (str(metrics[name]) for name in DURATIONS if name in metrics)
    measured = (number(time.removesuffix(" ns")) for time in times if time.endswith(" ns"))
    return Launch(kernel, metrics, next((ns for ns in measured if ns is not None), 0.0))


# Labels of older versions of Nsight Compute.
_OLD_LABELS = {
    "Memory [%]": "Memory Throughput",
    "Compute (SM) [%]": "Compute (SM) Throughput",
    "SM [%]": "Compute (SM) Throughput",
    "SOL Memory": "Memory Throughput",
    "SOL SM": "Compute (SM) Throughput",
    "SOL DRAM": "DRAM Throughput",
    "SOL L2 Cache": "L2 Cache Throughput",
    "SOL L1/TEX Cache": "L1/TEX Cache Throughput",
}


def _add(metrics: dict[str, Metric], name: str, unit: str, text: str) -> None:
    """Add a metric. The first of several with one name is used: a label recurs in a later section
    with another unit."""
    name = _OLD_LABELS.get(name, name)
    value = _value(name, unit, text)
    if value is not None and (value or name not in _OF_ACCESSES):
        metrics.setdefault(name, value)


def _value(name: str, unit: str, text: str) -> Metric | None:
    """A number, as text with its unit for bytes and times."""
    measured = number(text)
    if measured is None:
        return None
    head, _, per = unit.partition("/")
    if per in ("", "block", "thread"):
        for base, factors in (("B", _SIZES), ("ns", _TIMES)):
            if head in factors:
                return f"{measured * factors[head]:.15g} {base}"
    if "__" not in name and head in _SIZES:
        return None  # "Memory Throughput" is a share in one section and bytes a second in another
    return measured * _COUNTS.get(head, 1.0)


# -- the source view

_NO_SAMPLES = re.compile(r'^"?Line No"?[,\s]+"?Source"?\s*$', re.MULTILINE)
_TITLES = re.compile(r'^[ \t]*"?(?:Line No|# Line|#|Address)"?[ ,].{0,80}Source', re.MULTILINE)
_KERNEL_LINE = ("Kernel Name", "Function Name")
_NUMBERS = ("Line No", "# Line", "Line", "Line Number", "#")
_ADDRESSES = ("Address", "# Address")
_SAMPLES = (
    *("Warp Stall Sampling (All Samples)", "Warp Stall Sampling (All Cycles)", "# Samples"),
    *("Samples", "smsp__pcsamp_sample_count", "Sampling Data (All)", "# Samples (All)"),
)
_NOT_ISSUED = (
    *("Warp Stall Sampling (Not-issued Samples)", "Warp Stall Sampling (Not-issued Cycles)"),
    "Sampling Data (Not Issued)",
)
_EXECUTED = ("Instructions Executed", "inst_executed", "# Instructions Executed")
_COUNTERS = {
    "sectors": ("L2 Theoretical Sectors Global", "memory_l2_theoretical_sectors_global"),
    "excess_sectors": (
        "L2 Theoretical Sectors Global Excessive",
        "derived__memory_l2_theoretical_sectors_global_excessive",
    ),
    "wavefronts": ("L1 Wavefronts Shared", "memory_l1_wavefronts_shared"),
    "excess_wavefronts": (
        "L1 Wavefronts Shared Excessive",
        "derived__memory_l1_wavefronts_shared_excessive",
    ),
}
_LANES = ("Avg. Threads Executed", "Avg. Predicated-On Threads Executed")  # on: of the executed


def read_lines(text: str) -> dict[str, list[LineRow]]:
    """The rows of the source views in a text, by kernel; empty without such a view."""
    if not _TITLES.search(text):
        return {}
    tables: dict[str, list[LineRow]] = {}
    kernel = file = source = ""
    line, header = 0, list[str]()
    for cells in _source_cells(text):
        if cells[0] in _KERNEL_LINE and "Source" not in cells:
            kernel, header, line = " ".join(cells[1:2]), [], 0
        elif cells[0] in ("File Path", "File Name"):
            file, header, line = " ".join(cells[1:2]), [], 0
        elif "Source" in cells and any(name in cells for name in _SAMPLES):
            header = cells
        elif header and len(cells) == len(header):
            row = _source_row(header, cells, file)
            if row.line:  # the source line, above its instructions
                line, source = row.line, row.source
            elif row.address:
                row = replace(row, line=line, source=source)
            tables.setdefault(kernel, []).append(row)
    return tables


def _source_cells(text: str) -> Iterator[list[str]]:
    """The cells of each line of a CSV, or of a text with tables under lines of dashes. A title of
    the text is cut into pieces of the width of its column, one below the other."""
    columns: list[tuple[int, int]] = []
    heads: list[list[str]] = []
    width = 0
    for line in text.splitlines():
        if _CSV_ROW.match(line):
            cells = _csv_cells(line, width)
            width = len(cells) if "Source" in cells else width
            yield cells
        elif "---" in line and not line.strip(" -"):
            columns = [(match.start(), match.end()) for match in re.finditer("-+", line)]
        elif columns and line.strip():
            cells = [line[start:end] for start, end in columns]
            first = cells[0].strip()
            if first in _NUMBERS or first in _ADDRESSES:
                heads = [cells]
            elif heads and not first:
                heads.append(cells)
            else:
                if heads:
                    yield [" ".join("".join(parts).split()) for parts in zip(*heads, strict=True)]
                    heads = []
                yield [cell.strip() for cell in cells]


_CSV_ROW = re.compile(r'\s*"|(?:Line No|Address|#),')


def _csv_cells(line: str, width: int) -> list[str]:
    """The cells of a row. Quotes in the text of a source line are not doubled, so that it may have
    more than `width` cells (0: unknown)."""
    if not line.lstrip().startswith('"'):
        return [cell.strip() for cell in next(csv.reader([line]), [])] or [""]
    cells = line.strip().rstrip(",")[1:-1].split('","')
    if width and len(cells) > width:
        extra = len(cells) - width
        cells[1 : extra + 2] = ['","'.join(cells[1 : extra + 2])]
    return [cell.strip() for cell in cells]


def _source_row(header: Sequence[str], cells: Sequence[str], file: str) -> LineRow:
    """One row of the view. In a view of both, the first of two columns "Source" is the source."""
    pairs = list(zip(header, cells, strict=True))
    named = dict(reversed(pairs))  # the first of several columns with one name
    numbered = next((named[name] for name in _NUMBERS if named.get(name)), "")
    address = next((named[name] for name in _ADDRESSES if named.get(name)), "").strip("-")
    texts = [cell for name, cell in pairs if name == "Source"]
    line = int(numbered) if numbered.isdigit() and not address else 0
    known = [number(named.get(name)) or 0.0 for name in _LANES]
    instruction = texts[-1] if address else ""
    switches = access_of(instruction).kind in ("branch", "barrier", "other")
    lanes = (known[0] or known[1]) if switches or not known[1] else known[1]
    return LineRow(
        samples=_counted(named, _SAMPLES),
        file=file,
        line=line,
        address=address,
        instruction=instruction,
        source=texts[0] if line else "",
        stalls=_stalls(pairs),
        not_issued=_counted(named, _NOT_ISSUED),
        executed=_counted(named, _EXECUTED),
        lanes=lanes or None,
        sectors=_counted(named, _COUNTERS["sectors"]),
        excess_sectors=_counted(named, _COUNTERS["excess_sectors"]),
        wavefronts=_counted(named, _COUNTERS["wavefronts"]),
        excess_wavefronts=_counted(named, _COUNTERS["excess_wavefronts"]),
    )


def _counted(named: Mapping[str, str], columns: Sequence[str]) -> float:
    cells = (named[name] for name in columns if name in named)
    return next((value for cell in cells if (value := number(cell)) is not None), 0.0)


def _stalls(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    stalls: dict[str, float] = {}
    for column, cell in pairs:
        reason, count = stall_name(column), number(cell)
        if reason and count:
            stalls[reason] = stalls.get(reason, 0.0) + count
    return stalls


def _with_lines(launches: Sequence[Launch], kernel: str, rows: tuple[LineRow, ...]) -> Profile:
    """The profile of a source view, with the metrics of a report before it."""
    kernels = kernel_times(launches) or (Kernel(kernel, 1, 0.0),)
    reported = dict(longest_launch(launches).metrics) if launches else {}
    return Profile(KIND, kernel or kernels[0].name, {**_sums(rows), **reported}, kernels, (), rows)


def _sums(rows: Sequence[LineRow]) -> dict[str, Metric]:
    """Metrics of the whole kernel: shares of stalls, accesses in vain."""
    metrics: dict[str, Metric] = {}
    samples = sum(row.samples for row in rows)
    reasons: dict[str, float] = {}
    for row in rows:
        for reason, count in row.stalls.items():
            reasons[reason] = reasons.get(reason, 0.0) + count
    for reason, count in reasons.items():
        if samples and f"{reason}_stall_share" in _SHARES:
            metrics[f"{reason}_stall_share"] = round(min(1.0, count / samples), 4)
    not_issued = sum(row.not_issued for row in rows)
    if samples and not_issued:
        metrics["issue_active_pct"] = round(100 * (1 - min(1.0, not_issued / samples)), 2)
    loads = [row for row in rows if access_of(row.instruction).kind == "global_load"]
    sectors = sum(row.sectors for row in loads)
    if sectors:
        useful = sectors - sum(row.excess_sectors for row in loads)
        metrics["load_efficiency_pct"] = round(100 * max(0.0, useful) / sectors, 2)
    wavefronts = sum(row.wavefronts for row in rows)
    if wavefronts:
        excess = sum(row.excess_wavefronts for row in rows)
        metrics["bank_conflict_ratio"] = round(min(1.0, excess / wavefronts), 4)
    executed = sum(row.executed for row in rows if row.address)
    if executed:
        spilled = ("local_load", "local_store")
        local = sum(r.executed for r in rows if access_of(r.instruction).kind in spilled)
        metrics["local_instruction_share"] = round(local / executed, 4)
    return {**metrics, **_of_threads(rows)}


def _of_threads(rows: Sequence[LineRow]) -> dict[str, Metric]:
    """The mean of active lanes, and the registers of a thread where no tile of a product is kept in
    them on purpose."""
    metrics: dict[str, Metric] = {}
    active = [(row.lanes, row.executed) for row in rows if row.address and row.lanes]
    if issued := sum(count for _, count in active):
        mean = sum(lanes * count for lanes, count in active) / issued
        metrics["active_threads_per_instruction"] = round(mean, 2)
    tiled = any(access_of(row.instruction).kind == "matrix" for row in rows)
    if (registers := registers_named(rows)) and not tiled:
        metrics["registers_per_thread"] = registers
    return metrics


_SHARES = frozenset(
    f"{reason}_stall_share"
    for reason in (
        *(
            "long_scoreboard",
            "short_scoreboard",
            "mio_throttle",
            "lg_throttle",
            "barrier",
            "membar",
        ),
        *("wait", "math_pipe_throttle", "no_instruction", "imc_miss", "branch_resolving", "gmma"),
    )
)


SQLITE = b"SQLite format 3\0"
_DATABASE = (
    (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "Instances",
        "SELECT s.value, count(*), sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k"
        " JOIN StringIds s ON s.id = k.demangledName GROUP BY s.value",
    ),
    (
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "Count",
        "SELECT '[CUDA memcpy kind ' || copyKind || ']', count(*), sum(end - start)"
        " FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY copyKind",
    ),
)


def summary_of_database(path: Path) -> str:
    """The kernels and copies of an exported database as the CSV of `nsys stats`. Raises
    sqlite3.Error for another database."""
    out = io.StringIO()
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as base:
        tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master")}
        for table, counted, query in _DATABASE:
            rows = list(base.execute(query)) if table in tables else []
            total = sum(ns for _, _, ns in rows) or 1
            writer = csv.writer(out)
            name = "Name" if counted == "Instances" else "Operation"
            if rows:
                writer.writerow(["Time (%)", "Total Time (ns)", counted, "Avg (ns)", name])
            for label, count, ns in sorted(rows, key=lambda row: -row[2]):
                share = round(100 * ns / total, 1)
                writer.writerow([share, ns, count, round(ns / count, 1), label])
    base.close()
    return out.getvalue()
