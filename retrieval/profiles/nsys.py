"""NVIDIA Nsight Systems: the summaries of `nsys stats` as text or CSV, and the database of `nsys
export --type sqlite`; nvprof, its predecessor: summary and metrics as text.

Formats, from the documentation of the report scripts and recorded output: tables with the columns
Time (%), Total Time (ns), Instances (kernels), Count (copies) or Num Calls (host functions),
Avg (ns), ..., and Name or Operation. In the text, cells are right-aligned under a line of dashes or
between the bars of a box. Times are of the whole program, so they yield the time of one launch but
not launches per call. nvprof prints Type, Time(%), Time, Calls, Avg, Min, Max, Name, with the type
("GPU activities:", "API calls:") in the first row of each; times have their units.
"""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from retrieval.profiles.profile import (
    Kernel,
    Metric,
    Profile,
    choice_note,
    elementwise_pct,
    number,
    program_metrics,
    total_times,
)

KIND = "nsys"
_SCALES = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_TOTAL = re.compile(r"Total Time(?: \((?P<unit>ns|us|µs|ms|s)\))?")
_COUNTS = ("Instances", "Count", "Num Calls", "Calls")
_NAMES = ("Name", "Operation", "Kernel Name")
MIN_COLUMNS = 4
MOSTLY_COPIES = 80.0  # per cent of the time from which on copies lead, not a kernel


def read(text: str) -> Profile | None:
    """The kernels and copies of the summaries; None if the text has no such table."""
    runs: list[tuple[str, Kernel]] = [run for row in _rows(text) if (run := _run(row)) is not None]
    if not runs:
        return (
            Profile(KIND) if re.search(r"\*\* .{1,60} \((?:cuda|cudapi|nvtx)\w*\):", text) else None
        )
    kernels = total_times([run for kind, run in runs if kind == "Instances"])
    copies = total_times([run for kind, run in runs if kind == "Count"])
    if not kernels and not copies:
        note = "the tables are of host functions; add `--report cuda_gpu_kern_sum`"
        return Profile(KIND, metrics=_of_host([run for _, run in runs]), notes=(note,))
    return of_device(KIND, kernels, copies)


def _of_host(functions: Sequence[Kernel]) -> dict[str, Metric]:
    """The share of launches in the time of all host functions, and their number."""
    total = sum(run.us for run in functions)
    launches = [run for run in functions if _LAUNCH.search(run.name)]
    if not total or not launches:
        return {}
    return {
        "launch_api_pct": round(100 * sum(run.us for run in launches) / total, 2),
        "launch_api_calls": sum(run.calls for run in launches),
    }


_LAUNCH = re.compile(r"^(?:cuda|cu|hip)(?:Ext|Module)?Launch(?:Cooperative)?Kernel")


def of_device(
    kind: str,
    kernels: Sequence[Kernel],
    copies: Sequence[Kernel],
    more: Mapping[str, Metric] | None = None,
) -> Profile:
    """The profile of a program's kernels and copies, each by descending time, with further metrics
    of the leading kernel.
    """
    metrics: dict[str, Metric] = {}
    on_device = total_times([*kernels, *copies])
    total = sum(run.us for run in on_device)
    if copies and total:
        metrics["copies_pct"] = round(100 * sum(run.us for run in copies) / total, 2)
    copied = float(metrics.get("copies_pct", 0.0)) >= MOSTLY_COPIES
    leading = on_device[0] if copied or not kernels else kernels[0]
    if leading.calls and kernels:
        metrics["duration_us"] = leading.us / leading.calls
    if kernels and not copied:
        metrics = {**program_metrics(kernels), **metrics}
    if kernels and (share := elementwise_pct(on_device)):
        metrics["elementwise_pct"] = share
    notes = choice_note(on_device if copied else kernels)
    return Profile(kind, leading.name, {**metrics, **(more or {})}, on_device, notes)


def _run(row: Mapping[str, str]) -> tuple[str, Kernel] | None:
    """The kind of a row by its column of counts, and its name, count and time."""
    counted = next((name for name in _COUNTS if name in row), None)
    named = next((name for name in _NAMES if name in row), None)
    total = next((match for name in row if (match := _TOTAL.fullmatch(name))), None)
    if counted is None or named is None or total is None:
        return None
    us, calls = number(row[total[0]]), number(row[counted])
    if us is None or not calls:
        return None
    return counted, Kernel(row[named], calls, us * _SCALES[total["unit"] or "ns"])


def _rows(text: str) -> Iterator[dict[str, str]]:
    """Column to cell for each row of every table."""
    header: list[str] = []
    for line in text.splitlines():
        cells = _cells(line, len(header))
        if any(cell.startswith("Time") for cell in cells) and any(map(_TOTAL.fullmatch, cells)):
            header = cells
        elif header and len(cells) == len(header) and number(cells[0].rstrip("%")) is not None:
            yield dict(zip(header, cells, strict=True))


def _cells(line: str, columns: int) -> list[str]:
    """The cells of a line; the last of `columns` cells may contain blanks."""
    if "│" in line or "|" in line:
        return [cell.strip() for cell in re.split("[│|]", line.strip().strip("│|"))]
    cells = re.split(r"\s{2,}", line.strip())
    if len(cells) < MIN_COLUMNS:
        return [cell.strip() for cell in next(csv.reader([line.strip()]), [])]
    return cells if not columns else [*cells[: columns - 1], " ".join(cells[columns - 1 :])]


# -- the database


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
    sqlite3.Error for another database.
    """
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


# -- nvprof

NVPROF = "nvprof"
_ROW = re.compile(
    r"\s*(?:(?P<type>GPU activities|API calls|OpenACC \(excl\)):)?\s+(?P<share>[\d.]+)%\s+"
    r"(?P<time>[\d.]+)(?P<unit>ns|us|ms|s)\s+(?P<calls>\d+)\s+(?:[\d.]+(?:ns|us|ms|s)\s+){1,3}"
    r"(?P<name>\S.*?)\s*$"
)
_METRIC = re.compile(
    r"\s+(?P<calls>\d+)\s+(?P<name>[a-z]\w+)\s{2,}\S.*?\s(?P<value>[\d.]+)(?P<unit>%|[GMK]?B/s)?\s*$"
)

# Metrics of nvprof that are another quantity in metrics.toml, with the conversion.
_DERIVED: dict[str, tuple[str, Callable[[float], float]]] = {
    "warp_execution_efficiency": ("active_threads_per_instruction", lambda pct: pct * 32 / 100),
    "branch_efficiency": ("divergent_branch_pct", lambda pct: max(0.0, 100 - pct)),
    "achieved_occupancy": ("occupancy_pct", lambda share: 100 * share),
    "issue_slot_utilization": ("issue_active_pct", lambda pct: pct),
    "gld_efficiency": ("load_efficiency_pct", lambda pct: pct),
    "gst_efficiency": ("store_efficiency_pct", lambda pct: pct),
    "stall_memory_dependency": ("memory_dependency_stall_share", lambda pct: pct / 100),
    "stall_sync": ("barrier_stall_share", lambda pct: pct / 100),
    "shared_load_transactions_per_request": (
        "bank_conflict_ratio",
        lambda per_request: 1 - 1 / max(1.0, per_request),
    ),
}


def read_nvprof(text: str) -> Profile | None:
    """The kernels, copies and metrics of nvprof; None for another text."""
    if "NVPROF" not in text and "GPU activities:" not in text and "Metric Name" not in text:
        return None
    kind, kernels, copies = "", list[Kernel](), list[Kernel]()
    metrics: dict[str, Metric] = {}
    for line in text.splitlines():
        if row := _ROW.match(line):
            kind = row["type"] or kind
            us = float(row["time"]) * _SCALES[row["unit"]]
            run = Kernel(row["name"], float(row["calls"]), us, float(row["share"]))
            if kind == "GPU activities":
                (copies if run.name.startswith("[CUDA mem") else kernels).append(run)
        elif measured := _METRIC.match(line):
            value = float(measured["value"])
            shown = f"{value} %" if measured["unit"] == "%" else value
            metrics.setdefault(measured["name"], shown)
            if measured["name"] in _DERIVED:
                name, convert = _DERIVED[measured["name"]]
                metrics.setdefault(name, round(convert(value), 4))
    if not kernels and not copies and not metrics:
        return None
    if not kernels and not copies:
        return Profile(NVPROF, metrics=metrics)
    return of_device(NVPROF, total_times(kernels), total_times(copies), metrics)
