"""Languages of kernels as skills name them: those known here, and those of several vendors."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog.kept import look_up
from kb.catalog.tables import skills as t
from kb.catalog.tables.hardware import hardware
from kb.catalog.tables.knowledge import document_scopes


def shared_languages(connection: Connection) -> tuple[str, ...]:
    """Languages that chips of more than one vendor are described with, sorted. What is written in
    another one holds for one vendor's chips alone. Read once for each revision of the catalog.
    """

    def read(keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        vendors: dict[str, set[str]] = {}
        for vendor, languages in connection.execute(
            sa.select(hardware.c.vendor, hardware.c.languages).where(hardware.c.vendor != "")
        ):
            for language in languages:
                vendors.setdefault(language, set()).add(vendor.lower())
        shared = tuple(sorted(name for name, known in vendors.items() if len(known) > 1))
        return dict.fromkeys(keys, shared)

    area = "languages of several vendors"
    return look_up(connection, area, [area], read)[area]


def named_languages(connection: Connection) -> frozenset[str]:
    """Languages that a chip, a toolchain, a document or a shipped skill names."""
    named: set[str] = set()
    for languages, toolchains in connection.execute(
        sa.select(hardware.c.languages, hardware.c.toolchains)
    ):
        named |= {*languages, *(toolchains or {})}
    scopes = (
        sa.select(document_scopes.c.value).where(document_scopes.c.kind == "language"),
        sa.select(t.skill_scopes.c.value)
        .join(t.skills, t.skills.c.id == t.skill_scopes.c.skill_id)
        .where(t.skill_scopes.c.kind == "language", t.skills.c.origin == "shipped"),
    )
    for query in scopes:
        named |= set(connection.execute(query.distinct()).scalars())
    return frozenset(named)
