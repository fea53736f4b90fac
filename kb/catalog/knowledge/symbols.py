"""Cards of symbols: what a manual says about each instruction, function, directive, type, register
and error code of a chip's languages.

A card belongs to a version of its document, as passages do: only those of current versions are
active. A person's correction is anchored to the symbol's name and comes back with the next version.
So does a card that a model has proposed (`proposed_symbols`). It has the status `proposed` until a
person decides; `listed` gives accepted cards unless it is asked for others, so nothing that reads
cards for a prompt gets one that nobody has accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import visible
from kb.catalog.engine import Catalog, portions
from kb.catalog.kept import look_up
from kb.catalog.knowledge import corrections, proposed_symbols
from kb.catalog.knowledge.identity import check_document
from kb.catalog.knowledge.proposed_symbols import STRUCTURE, ProposedCard, SymbolStatus
from kb.catalog.meta import bump_revision
from kb.catalog.tables import knowledge as t
from kb.errors import Conflict, InvalidRequest, NotFound
from kb.ids import derived_id
from kb.plain import Doc
from kb.scope import ALL_ACCESS, ANY, AccessScope

TEXT_FIELDS = ("signature", "meaning", "example")
CORRECTABLE = (*TEXT_FIELDS, "limits")
ACCEPTED: tuple[SymbolStatus, ...] = ("accepted",)
DECISIONS: tuple[SymbolStatus, ...] = ("accepted", "rejected")


class CardLike(Protocol):
    """What a document defines (ingestion.symbols.cards.Card)."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def signature(self) -> str: ...
    @property
    def operands(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def meaning(self) -> str: ...
    @property
    def limits(self) -> tuple[str, ...]: ...
    @property
    def example(self) -> str: ...
    @property
    def language(self) -> str: ...
    @property
    def section(self) -> int: ...
    @property
    def further(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Symbol:
    """A card as it is stored. `operands` are (operand, meaning) pairs, `limits` sentences of the
    source, `further` other cells of its row, `path` the headings of the section that defines it,
    `hardware` the chips that it is about (empty: any). `origin` is "structure", or "model NAME" for
    a card that a model has proposed.
    """

    id: str
    name: str
    kind: str
    language: str
    signature: str
    operands: Annotated[tuple[tuple[str, str], ...], Doc("Pairs of a name and what it means.")]
    meaning: str
    limits: tuple[str, ...]
    example: str
    further: tuple[str, ...]
    hardware: tuple[str, ...]
    document_id: str
    document_title: str
    version: int
    section_id: str
    path: tuple[str, ...]
    ordinal: int
    corrected: bool = False
    origin: str = STRUCTURE
    status: str = "accepted"


def replace_version_symbols(
    connection: Connection, version_id: str, cards: Sequence[CardLike], current: bool
) -> int:
    """Store the cards of a version in place of those that it had, with the proposals that it still
    bears out; where it is `current`, those of the document's other versions leave every answer.
    Returns their number.
    """
    document = _document(connection, version_id)
    if current:
        connection.execute(
            t.symbols.update().where(t.symbols.c.document_id == document.id).values(active=False)
        )
        bump_revision(connection)  # what is kept of the lists does not hold any more
    connection.execute(t.symbols.delete().where(t.symbols.c.version_id == version_id))
    place = _Place(connection, document, version_id, current)
    sections = list(_sections(connection, version_id))
    rows = [
        place.row(card, _card(card), sections[card.section], n, derived_id("sym", version_id, n))
        for n, card in enumerate(cards)
    ]
    names = {card.name for card in cards}
    for stands in proposed_symbols.standing(connection, document.id, version_id, names):
        rows.append(place.proposed(stands.card, sections[stands.section], len(rows)))
    if rows:
        connection.execute(t.symbols.insert(), rows)
    return len(rows)


def propose(
    catalog: Catalog,
    section_id: str,
    cards: Sequence[ProposedCard],
    access_scope: AccessScope = ALL_ACCESS,
) -> list[str]:
    """Store cards that a model has proposed from a section, checked by `proposed_symbols.checked`;
    the names of those that were new to the document. Raises Conflict where the section is of no
    current version any more.
    """
    with catalog.write() as connection:
        section = connection.execute(
            sa.select(t.sections)
            .join(t.documents, t.documents.c.current_version_id == t.sections.c.version_id)
            .where(t.sections.c.id == section_id, visible.documents(access_scope))
        ).one_or_none()
        if section is None:
            raise Conflict(
                "the document was read again while the model was asked",
                hint="Run the same command again; stored answers are used where the text is the"
                " same.",
            )
        document = _document(connection, section.version_id)
        place = _Place(connection, document, section.version_id, True)
        known = connection.execute(
            sa.select(t.symbols.c.name, t.symbols.c.ordinal).where(
                t.symbols.c.version_id == section.version_id
            )
        ).all()
        ordinal = max((row.ordinal for row in known), default=-1)
        new: dict[str, ProposedCard] = {}
        for card in cards:
            if card.name not in {row.name for row in known}:
                new.setdefault(card.name, card)
        for n, card in enumerate(new.values(), ordinal + 1):
            proposed_symbols.record(connection, document.id, card, card.origin)
            connection.execute(t.symbols.insert().values(place.proposed(card, section, n)))
        return [*new]


class _Place:
    """What the rows of one version share."""

    def __init__(
        self, connection: Connection, document: sa.Row[Any], version_id: str, current: bool
    ) -> None:
        self._fixes = _corrections(connection, document.id)
        self._scope = document_hardware(connection, document.id)
        self._version_id = version_id
        self._shared = {
            "document_id": document.id,
            "version_id": version_id,
            "active": current,
            "access_scope": document.access_scope,
        }

    def row(
        self,
        card: CardLike | ProposedCard,
        texts: Mapping[str, Any],
        section: sa.Row[Any],
        ordinal: int,
        identity: str,
    ) -> dict[str, Any]:
        """The row of a card, with a person's correction applied."""
        fix = self._fixes.get(card.name, {})
        return {
            **self._shared,
            "id": identity,
            "section_id": section.id,
            "ordinal": ordinal,
            "name": card.name,
            "kind": card.kind,
            "language": card.language,
            "hardware": section.hardware_scope or self._scope,
            "card": {**texts, **fix},
            "corrected": bool(fix),
            "origin": STRUCTURE,
            "status": "accepted",
        }

    def proposed(self, card: ProposedCard, section: sa.Row[Any], ordinal: int) -> dict[str, Any]:
        """The row of a proposed card. Its id holds its name: proposals come and go."""
        identity = derived_id("sym", self._version_id, "proposed", card.name)
        row = self.row(card, card.card, section, ordinal, identity)
        return {**row, "origin": card.origin, "status": card.status}


def _card(card: CardLike) -> dict[str, Any]:
    return {
        "signature": card.signature,
        "operands": [list(pair) for pair in card.operands],
        "meaning": card.meaning,
        "limits": list(card.limits),
        "example": card.example,
        "further": list(card.further),
    }


def listed(
    connection: Connection,
    hardware: Sequence[str] | None = None,
    *,
    names: Collection[str] | None = None,
    section: str | None = None,
    statuses: Collection[SymbolStatus] = ACCEPTED,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[Symbol]:
    """Active cards in the order of their documents; with `hardware`, those about one of these ids,
    with `names`, those with one of these names, with `section`, those that this section defines.
    Without `statuses`, only accepted ones: what was
    read from structure, and what a person has accepted of a model's proposals.
    """
    whole = names is None and section is None and access_scope == ALL_ACCESS
    if whole and statuses == ACCEPTED:
        # Proposals come without a new revision; accepted cards change with it alone.
        kept = look_up(
            connection, "symbols", ["accepted"], lambda _: {"accepted": _read(connection)}
        )
        symbols = kept["accepted"]
    else:
        symbols = _read(connection, names, section, statuses, access_scope)
    if hardware is not None:
        symbols = [s for s in symbols if set(s.hardware) & set(hardware)]
    return sorted(symbols, key=lambda s: (s.document_title, s.document_id, s.ordinal))


def _read(
    connection: Connection,
    names: Collection[str] | None = None,
    section: str | None = None,
    statuses: Collection[SymbolStatus] = ACCEPTED,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[Symbol]:
    wanted = [
        t.symbols.c.active.is_(True),
        visible.read_from(t.symbols, access_scope),
        t.symbols.c.status.in_(statuses),
    ]
    if section is not None:
        wanted.append(t.symbols.c.section_id == section)
    parts: Iterable[Sequence[str] | None] = [None] if names is None else portions(sorted(names))
    symbols: list[Symbol] = []
    for part in parts:
        query = _SELECT.where(*wanted)
        if part is not None:
            query = query.where(t.symbols.c.name.in_(part))
        symbols += [_symbol(row) for row in connection.execute(query)]
    return [_as_seen(s, access_scope) for s in symbols if access_scope.sees(s.hardware)]


def get(connection: Connection, symbol_id: str, access_scope: AccessScope = ALL_ACCESS) -> Symbol:
    """The card with this id. Raises NotFound."""
    row = connection.execute(
        _SELECT.where(t.symbols.c.id == symbol_id, visible.read_from(t.symbols, access_scope))
    ).one_or_none()
    if row is None or not access_scope.sees(row.hardware):
        raise NotFound(
            f"no symbol {symbol_id[:80]!r}", hint="GET /hardware/{id}/symbols lists them with ids."
        )
    return _as_seen(_symbol(row), access_scope)


def _as_seen(symbol: Symbol, access: AccessScope) -> Symbol:
    return replace(symbol, hardware=access.named(symbol.hardware))


def correct(
    catalog: Catalog,
    symbol_id: str,
    fix: Mapping[str, Any],
    actor: str,
    *,
    access_scope: AccessScope = ALL_ACCESS,
) -> Symbol:
    """Correct fields of a card, now and in every later version of its document. `fix` has texts by
    signature, meaning and example, and `limits` as a list of texts. For a card that a model has
    proposed, its `status` accepts or rejects it. Raises InvalidRequest and NotFound.
    """
    _check_fix(fix)
    texts = {name: value for name, value in fix.items() if name != "status"}
    with catalog.write() as connection:
        symbol = get(connection, symbol_id, access_scope)
        check_document(connection, symbol.document_id, access_scope)
        if "status" in fix:
            _decide(connection, symbol, fix["status"], actor)
        if texts:
            _correct_texts(connection, symbol, texts, actor)
        bump_revision(connection)
        return get(connection, symbol_id, access_scope)


def _correct_texts(
    connection: Connection, symbol: Symbol, fix: Mapping[str, Any], actor: str
) -> None:
    earlier = _corrections(connection, symbol.document_id).get(symbol.name, {})
    merged = {**earlier, **fix}
    corrections.record(connection, symbol.document_id, "symbol", symbol.name, "card", merged, actor)
    # The card may be of an earlier version, or the document may define the name twice.
    for row in connection.execute(
        sa.select(t.symbols.c.id, t.symbols.c.card).where(*_same(symbol))
    ).all():
        connection.execute(
            t.symbols.update()
            .where(t.symbols.c.id == row.id)
            .values(card={**row.card, **merged}, corrected=True)
        )


def _decide(connection: Connection, symbol: Symbol, status: SymbolStatus, actor: str) -> None:
    proposal = proposed_symbols.proposals(connection, symbol.document_id).get(symbol.name)
    if symbol.origin == STRUCTURE or proposal is None:
        raise InvalidRequest(
            f"the card of {symbol.name[:80]!r} is no proposal: its manual states it",
            hint="Correct its fields where it was read wrongly.",
        )
    decided = replace(proposal, status=status)
    proposed_symbols.record(connection, symbol.document_id, decided, actor)
    proposed = t.symbols.c.origin != STRUCTURE
    connection.execute(t.symbols.update().where(*_same(symbol), proposed).values(status=status))


def _same(symbol: Symbol) -> tuple[sa.ColumnElement[bool], ...]:
    """The rows of this name in all versions of its document."""
    return (t.symbols.c.document_id == symbol.document_id, t.symbols.c.name == symbol.name)


def _check_fix(fix: Mapping[str, Any]) -> None:
    unknown = sorted(set(fix) - {*CORRECTABLE, "status"})
    texts = [fix[name] for name in TEXT_FIELDS if name in fix]
    limits = fix.get("limits", [])
    if not fix or unknown:
        raise InvalidRequest(
            f"unknown field {unknown[0]!r}" if unknown else "nothing to correct",
            hint=f"Give one of {', '.join(CORRECTABLE)}.",
        )
    if "status" in fix and fix["status"] not in DECISIONS:
        raise InvalidRequest(f"status is {fix['status']!r}", hint=f"Give {' or '.join(DECISIONS)}.")
    if not isinstance(limits, list | tuple):
        raise InvalidRequest("limits is no list", hint="Give a list of texts.")
    if not all(isinstance(text, str) for text in (*texts, *limits)):
        raise InvalidRequest("a field of a card is no text", hint="Give texts.")


_SELECT = (
    sa.select(
        t.symbols,
        t.documents.c.title,
        t.document_versions.c.number,
        t.sections.c.path,
    )
    .join(t.documents, t.documents.c.id == t.symbols.c.document_id)
    .join(t.document_versions, t.document_versions.c.id == t.symbols.c.version_id)
    .join(t.sections, t.sections.c.id == t.symbols.c.section_id)
)


def _symbol(row: sa.Row[Any]) -> Symbol:
    card = row.card
    return Symbol(
        id=row.id,
        name=row.name,
        kind=row.kind,
        language=row.language,
        signature=card["signature"],
        operands=tuple((operand, meaning) for operand, meaning in card["operands"]),
        meaning=card["meaning"],
        limits=tuple(card["limits"]),
        example=card["example"],
        further=tuple(card["further"]),
        hardware=tuple(h for h in row.hardware if h != ANY),
        document_id=row.document_id,
        document_title=row.title,
        version=row.number,
        section_id=row.section_id,
        path=tuple(row.path),
        ordinal=row.ordinal,
        corrected=row.corrected,
        origin=row.origin,
        status=row.status,
    )


def _document(connection: Connection, version_id: str) -> sa.Row[Any]:
    return connection.execute(
        sa.select(t.documents)
        .join(t.document_versions, t.document_versions.c.document_id == t.documents.c.id)
        .where(t.document_versions.c.id == version_id)
    ).one()


def _sections(connection: Connection, version_id: str) -> Iterable[sa.Row[Any]]:
    return connection.execute(
        sa.select(t.sections.c.id, t.sections.c.hardware_scope)
        .where(t.sections.c.version_id == version_id)
        .order_by(t.sections.c.ordinal)
    )


def document_hardware(connection: Connection, document_id: str) -> list[str]:
    """The chips that a document is about; `any` where it is about none in particular."""
    scopes = t.document_scopes
    values = connection.execute(
        sa.select(scopes.c.value)
        .where(scopes.c.document_id == document_id, scopes.c.kind == "hardware")
        .order_by(scopes.c.value)
    ).scalars()
    return list(values) or [ANY]


def _corrections(connection: Connection, document_id: str) -> dict[str, dict[str, Any]]:
    rows = connection.execute(
        sa.select(t.corrections.c.anchor, t.corrections.c.value).where(
            t.corrections.c.document_id == document_id,
            t.corrections.c.target == "symbol",
            t.corrections.c.field == "card",
        )
    )
    return {row.anchor: row.value["value"] for row in rows}
