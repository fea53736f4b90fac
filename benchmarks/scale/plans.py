"""The query plans of what the product asks, as the database explains them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection


def plan_of(connection: Connection, ask: Callable[[], object]) -> str:
    """The plans of the SELECT statements that `ask` sends over whichever connection, one after
    another. SQLite's say how it walks; PostgreSQL's also what it expects."""
    sent: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if statement.lstrip().upper().startswith("SELECT"):
            sent.append((statement, parameters))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        ask()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    lines = []
    for statement, parameters in dict.fromkeys((s, _hashable(p)) for s, p in sent):
        lines += _explained(connection, statement, parameters)
    return "\n".join(lines)


def _hashable(parameters: Any) -> Any:
    return tuple(sorted(parameters.items())) if isinstance(parameters, dict) else tuple(parameters)


def _explained(connection: Connection, statement: str, parameters: Any) -> list[str]:
    named = bool(parameters) and isinstance(parameters[0], tuple)
    values = dict(parameters) if named else tuple(parameters)
    if connection.dialect.name == "sqlite":
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
        depth = {0: 0}
        lines = []
        for identity, parent, _, detail in rows:
            depth[identity] = depth.get(parent, 0) + 1
            lines.append("  " * (depth[identity] - 1) + detail)
        return lines
    rows = connection.exec_driver_sql(f"EXPLAIN {statement}", values).all()
    return [str(row[0]) for row in rows]
