"""Which ids name something of the catalog's documents that a caller may see."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import visible
from kb.catalog.engine import portions
from kb.catalog.tables import knowledge as t
from kb.scope import AccessScope


def unknown_ids(connection: Connection, ids: Iterable[str], access: AccessScope) -> list[str]:
    """Those of the ids that are no passage, section, document, card or kernel, of any version, that
    the caller may see; in their order.
    """
    wanted = list(dict.fromkeys(ids))
    known: set[str] = set()
    passages = visible.passages(access)
    for part in portions(wanted):
        for query in (
            sa.select(t.passages.c.id).where(t.passages.c.id.in_(part), passages),
            sa.select(t.passages.c.section_id).where(t.passages.c.section_id.in_(part), passages),
            sa.select(t.documents.c.id).where(
                t.documents.c.id.in_(part), visible.documents(access)
            ),
            sa.select(t.symbols.c.id).where(
                t.symbols.c.id.in_(part), visible.read_from(t.symbols, access)
            ),
            sa.select(t.samples.c.id).where(
                t.samples.c.id.in_(part), visible.read_from(t.samples, access)
            ),
        ):
            known.update(connection.execute(query).scalars())
    return [i for i in wanted if i not in known]
