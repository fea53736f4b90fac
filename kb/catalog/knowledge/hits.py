"""Where hits of a ranking stand, without their text: a context looks at hundreds of hits and reads
the sections of a few.

Checked as `passages.load` checks them; what was read whole before is not read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from sqlalchemy import Connection

from kb.catalog.dialect import driver_sql
from kb.catalog.kept import look_up
from kb.catalog.knowledge import passages
from kb.catalog.knowledge.passages import About, Live
from kb.catalog.rows import portions
from kb.scope import ScopeFilter


class Hit(Protocol):
    """A passage by its place. `hardware` is all that it is about, whoever asks."""

    @property
    def id(self) -> str: ...
    @property
    def section_id(self) -> str: ...
    @property
    def document_id(self) -> str: ...
    @property
    def hardware(self) -> tuple[str, ...]: ...


class _Place(NamedTuple):
    id: str
    section_id: str
    document_id: str
    hardware: tuple[str, ...]


class _Placed(NamedTuple):
    """A live passage by its place, with what its scope is checked against."""

    hit: _Place
    about: About


def load(connection: Connection, seqs: Iterable[int], scope: ScopeFilter) -> dict[int, Hit]:
    """The passages among `seqs` that are live and within the scope, by number."""
    wanted = sorted(set(seqs))
    whole = passages.kept_rows(connection, wanted)
    others = [seq for seq in wanted if seq not in whole]
    placed = look_up(connection, "hits", others, partial(_read, connection), skills=False)
    rows: Mapping[int, Live | _Placed | None] = {**whole, **placed}
    within: dict[About, bool] = {}
    hits: dict[int, Hit] = {}
    for seq, row in rows.items():
        if row is None:
            continue
        hit, about = row
        admitted = within.get(about)
        if admitted is None:
            admitted = within[about] = about.is_within(scope)
        if admitted:
            hits[seq] = hit
    return hits


_READ = (
    "SELECT p.seq, p.access_scope, p.id, p.section_id, p.document_id,"
    " (SELECT joined(h.hardware_id) FROM passage_hardware h WHERE h.passage_id = p.id)"
    " FROM passages p WHERE p.active"
)


def _read(connection: Connection, seqs: Sequence[int]) -> dict[int, _Placed | None]:
    """What stands under these numbers; None where that is not live."""
    placed: dict[int, _Placed | None] = dict.fromkeys(seqs)
    categories = passages.categories_of_documents(connection)
    for part in portions(seqs):
        rows = connection.exec_driver_sql(
            f"{driver_sql(connection, _READ)} AND p.seq IN ({','.join(map(str, part))})"
        ).all()
        about_of = passages.scopes_of_documents(connection)
        for seq, owner, identity, section_id, document_id, joined in rows:
            hardware = passages.names_of(joined or "")
            about = about_of(owner, categories[document_id], hardware, document_id)
            placed[seq] = _Placed(_Place(identity, section_id, document_id, hardware), about)
    return placed
