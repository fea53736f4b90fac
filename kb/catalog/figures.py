"""Counts of a catalog for operators: queues, evaluations, runs, their cost, and answers that
helped. Counts stored rows, so they are right whichever process did the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.tables import evaluations, outcomes, runs, skills, work

_HELPED = {1: "yes", 0: "no", None: "not_known"}


@dataclass(frozen=True)
class Figures:
    """`oldest_queued_seconds` is the age of the job that has waited longest, 0 without one. The
    others count rows by state; outcomes by whether the answer helped (yes, no, not_known).
    `model_cost_usd` is that of all runs, of models with known prices.
    """

    oldest_queued_seconds: float
    evaluations: Mapping[str, int]
    runs: Mapping[str, int]
    model_cost_usd: float
    outcomes: Mapping[str, int]
    skills: Mapping[str, int]


def figures_of(catalog: Catalog) -> Figures:
    """The figures now, of one moment."""
    with catalog.read() as connection:
        # A job that is queued again waits since its last heartbeat.
        queued_at = sa.func.coalesce(work.c.heartbeat_at, work.c.created_at)
        oldest = connection.scalar(
            sa.select(sa.func.min(queued_at)).where(
                work.c.kind == "ingest", work.c.state == "queued"
            )
        )
        cost = connection.scalar(sa.select(sa.func.sum(runs.c.cost_usd)))
        return Figures(
            oldest_queued_seconds=_seconds_since(oldest) if oldest else 0.0,
            evaluations=_counts(connection, evaluations.c.state),
            runs=_counts(connection, runs.c.state),
            model_cost_usd=float(cost or 0.0),
            outcomes={
                _HELPED[value]: count
                for value, count in _rows(connection, outcomes.c.helped)
                if value in _HELPED
            },
            skills=_counts(connection, skills.c.state),
        )


def _seconds_since(moment: str) -> float:
    age = datetime.now(UTC) - datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return max(0.0, age.total_seconds())


def _counts(connection: Connection, column: sa.Column[str]) -> dict[str, int]:
    return {str(value): count for value, count in _rows(connection, column)}


def _rows(connection: Connection, column: sa.Column[str]) -> list[tuple[object, int]]:
    query = sa.select(column, sa.func.count()).group_by(column).order_by(column)
    return [(value, int(count)) for value, count in connection.execute(query)]
