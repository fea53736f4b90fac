"""How many requests each caller has sent to all replicas together: totals that only grow, to which
each replica adds its own every now and then. Knows no limit.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog.dialect import insert_new
from kb.catalog.engine import Catalog
from kb.catalog.tables.work import request_counts as t

FORGOTTEN_SECONDS = 3_600.0  # after a caller's last request

Counts = Mapping[tuple[str, str], int]  # by caller and kind of request


class RequestCounts:
    """The totals in one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def exchange(self, own: Counts, recent_seconds: float) -> dict[tuple[str, str], int]:
        """Add a replica's own requests since it last did; the totals of whoever sent any within so
        many seconds, those included.
        """
        if own:
            with self._catalog.write(rows_only=True) as connection:
                self._add(connection, own)
        with self._catalog.read() as connection:
            rows = connection.execute(sa.select(t).where(t.c.at >= clock.after(-recent_seconds)))
            return {(row.who, row.kind): row.sent for row in rows}

    @staticmethod
    def _add(connection: Connection, own: Counts) -> None:
        for (who, kind), count in sorted(own.items()):  # in one order: nobody waits in a circle
            row = {"who": who, "kind": kind, "sent": 0, "at": clock.now()}
            connection.execute(insert_new(connection, t), [row])
            connection.execute(
                t.update()
                .where(t.c.who == who, t.c.kind == kind)
                .values(sent=t.c.sent + count, at=clock.now())
            )
        connection.execute(t.delete().where(t.c.at < clock.after(-FORGOTTEN_SECONDS)))
