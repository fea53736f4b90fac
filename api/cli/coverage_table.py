"""A hardware's coverage as text: a table of topics, then what would help most."""

from __future__ import annotations

from typing import Any

from api.cli.output import Json, table

MISSING_SHOWN = 3


def coverage_text(coverage: Json) -> str:
    """Topic by topic what there is, and the most useful topics that are missing."""
    topics = [row for row in coverage.get("topics") or () if isinstance(row, dict)]
    columns = [
        key for key in (topics[0] if topics else ()) if not isinstance(topics[0][key], dict | list)
    ]
    lines = [f"coverage of {coverage['hardware']}"]
    if topics:
        lines.append(table(columns, [[row.get(key) for key in columns] for row in topics]))
    missing = list(coverage.get("missing") or ())[:MISSING_SHOWN]
    if missing:
        lines.append("most useful to add:")
        lines += [f"  {_missing(entry)}" for entry in missing]
    else:
        lines.append("nothing is missing")
    return "\n".join(lines)


def _missing(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    name = entry.get("title") or entry.get("topic") or entry.get("id") or ""
    why = entry.get("why") or entry.get("hint") or entry.get("description") or ""
    return f"{name}: {why}" if why else str(name)
