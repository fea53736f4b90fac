"""NVIDIA Nsight Systems: the database of `nsys export --type sqlite` as the CSV of `nsys stats`."""

from __future__ import annotations

import csv
import io
import sqlite3
from pathlib import Path

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
