"""Apple: counters of a GPU trace that Xcode exports as CSV: a row for each encoder or dispatch, and
columns such as "ALU Limiter", "Buffer Read Limiter" and "Kernel Occupancy" in per cent.
"""

from __future__ import annotations

import re

from retrieval.profiles.profile import Kernel, Metric, Profile, choice_note, number, total_times
from retrieval.profiles.rocm import find_table

KIND = "xcode"
_LABELS = ("Encoder Label", "Label", "Function Name", "Name", "Encoder", "Kernel")
_SIGNS = ("ALU Limiter", "ALU Utilization", "Kernel Occupancy", "Compute Occupancy")
_SHARE = re.compile(r".*(?:Limiter|Utilization|Occupancy|Hit Rate|Miss Rate)$")
_TIME = re.compile(r"(?:GPU Time|Duration|Execution Time)(?: \(?(?P<unit>ns|us|µs|ms|s)\)?)?")
_SCALES = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}


def read(text: str) -> Profile | None:
    """The shares of the longest encoder, or of the first without times; None for another text."""
    table = find_table(text, _SIGNS)
    if table is None:
        return None
    header = [re.sub(r"\s*[(\[]%[)\]]", "", name).strip() for name in table.header]
    timed = next(((i, m) for i, n in enumerate(header) if (m := _TIME.fullmatch(n))), None)
    named = table.place(*_LABELS)
    rows: list[tuple[Kernel, dict[str, Metric]]] = []
    for index, row in enumerate(table.rows):
        us = 0.0
        if timed and timed[0] < len(row):
            us = (number(row[timed[0]]) or 0.0) * _SCALES[timed[1]["unit"] or "ns"]
        name = row[named] if named is not None and named < len(row) else f"row {index + 1}"
        shares = {
            column: value
            for column, cell in zip(header, row, strict=False)
            if _SHARE.match(column) and (value := number(cell.strip().rstrip("%"))) is not None
        }
        if shares:
            rows.append((Kernel(name.strip(), 1, us), dict(shares)))
    if not rows:
        return Profile(KIND)
    leading, metrics = max(rows, key=lambda row: row[0].us)
    if leading.us:
        metrics["duration_us"] = leading.us
    kernels = total_times([kernel for kernel, _ in rows])
    return Profile(KIND, leading.name, metrics, kernels, choice_note(kernels))
