"""NVIDIA Nsight Compute (`ncu`): its CSV with a row for each metric or for each launch, and its
text report.

Formats, seen with versions 2019 to 2025:
- `--csv`: the columns ID, Kernel Name, Metric Name, Metric Unit, Metric Value among others, a row
  for each metric of each launch; with `--page details` the names are the labels of the sections.
- `--page raw --csv`: a row for each launch, a column for each metric, and a row of units without
  an ID behind the header.
- the text report: a line "kernel (grid)x(block), Context 1, Stream 7, ..." for each launch, then
  tables of three columns whose widths are drawn with dashes.
A metric that is "n/a" is left out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
_LONG = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
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
_TIME_OF_LAUNCH = re.compile(r", \d{4}-\w{3}-\d{2} [\d:]+$")


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel: metric name to value, as text with the unit for bytes and times.
    `nanoseconds` is 0 if the time was not measured.
    """

    kernel: str
    metrics: Mapping[str, Metric]
    nanoseconds: float


def read(text: str) -> Profile | None:
    """The metrics of the longest launch of the kernel that takes most of the time; None if the text
    is not of this profiler.
    """
    launches = read_launches(text)
    if not launches:
        known = any(mark in text for mark in ("==PROF==", "==ERROR==", "==WARNING=="))
        headed = "Kernel Name" in text and _csv_header(text.splitlines()) is not None
        return Profile(KIND) if known or headed else None
    kernels = kernel_times(launches)
    longest = longest_launch(launches)
    return Profile(KIND, longest.kernel, longest.metrics, kernels, choice_note(kernels))


def read_launches(text: str) -> list[Launch]:
    """The launches of a CSV or a text report, in order; other output around it is ignored."""
    if "Kernel Name" not in text and ", Context " not in text:
        return []
    lines = text.splitlines()
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
    return None


def _long_launches(rows: Iterator[Mapping[str, str]]) -> list[Launch]:
    metrics: dict[str, dict[str, Metric]] = {}
    kernels: dict[str, str] = {}
    for row in rows:
        kernels.setdefault(row["ID"], row["Kernel Name"])
        _add(metrics.setdefault(row["ID"], {}), *(row[column] for column in _LONG[2:]))
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
    columns: list[tuple[int, int]] = []
    for line in lines:
        if ", Context " in line and ", Stream " in line:
            head = line.partition(", Context ")[0].strip()
            kernel = _TIME_OF_LAUNCH.sub("", _GRID.sub("", head))
            launches.append((kernel, {}))
        elif "---" in line and not line.strip(" -"):
            drawn = [(match.start(), match.end()) for match in re.finditer("-+", line)]
            columns = drawn if len(drawn) == 3 else []
        elif not line.strip():
            columns = []
        elif columns and launches:
            (first, second), (third, fourth), (fifth, _) = columns
            cells = line[first:second], line[third:fourth], line[fifth:]
            _add(launches[-1][1], *(cell.strip() for cell in cells))
    return [_launch(kernel, metrics) for kernel, metrics in launches if metrics]


def _launch(kernel: str, metrics: Mapping[str, Metric]) -> Launch:
    times = (str(metrics[name]) for name in DURATIONS if name in metrics)
    measured = (number(time.removesuffix(" ns")) for time in times if time.endswith(" ns"))
    return Launch(kernel, metrics, next((ns for ns in measured if ns is not None), 0.0))


def _add(metrics: dict[str, Metric], name: str, unit: str, text: str) -> None:
    """Add a metric. The first of several with one name is used: a label recurs in a later section
    with another unit.
    """
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
