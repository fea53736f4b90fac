"""NVIDIA Nsight Systems: the summaries of `nsys stats` as text or CSV.

Formats, from the documentation of the report scripts and recorded output: tables with the columns
Time (%), Total Time (ns), Instances (kernels), Count (copies) or Num Calls (host functions),
Avg (ns), ..., and Name or Operation. In the text, cells are right-aligned under a line of dashes or
between the bars of a box. Times are of the whole program, so they yield the time of one launch but
not launches per call.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping

from retrieval.profiles.profile import Kernel, Metric, Profile, choice_note, number, total_times

KIND = "nsys"
_SCALES = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_TOTAL = re.compile(r"Total Time(?: \((?P<unit>ns|us|µs|ms|s)\))?")
_COUNTS = ("Instances", "Count", "Num Calls", "Calls")
_NAMES = ("Name", "Operation", "Kernel Name")
MIN_COLUMNS = 4


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
        return Profile(KIND, notes=(note,))
    metrics: dict[str, Metric] = {}
    on_device = total_times([*kernels, *copies])
    total = sum(run.us for run in on_device)
    if copies and total:
        metrics["copies_pct"] = round(100 * sum(run.us for run in copies) / total, 2)
    if kernels and kernels[0].calls:
        metrics["duration_us"] = kernels[0].us / kernels[0].calls
    leading = (kernels or copies)[0]
    return Profile(KIND, leading.name, metrics, on_device, choice_note(kernels))


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
