"""Cards of symbols: a manual's text about each instruction, function, directive, type, register and
error code of a chip's languages.

A card belongs to a version of its document, as passages do: only those of current versions are
active. A person's correction is anchored to the symbol's name and returns with the next version.

A language model may propose cards. A proposal is stored with the document's corrections, and
compared with the text again whenever the document is read: fields that the text no longer contains
are dropped, and the card goes when nothing is left of it. It has the status `proposed` until a
person decides; `listed` gives accepted cards by default, so no prompt holds an undecided one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import meta, visible
from kb.catalog import tables as t
from kb.catalog.engine import Catalog, record_of, select_in
from kb.catalog.knowledge import corrections
from kb.catalog.knowledge.versions import (
    StoredSection,
    StoredVersion,
    check_document,
    current_version,
    replace_rows,
)
from kb.catalog.meta import bump_documents
from kb.errors import Conflict, InvalidRequest, NotFound
from kb.ids import derived_id
from kb.plain import Doc
from kb.scope import ALL_ACCESS, ANY, AccessScope

CardKind = Literal[
    "instruction", "function", "directive", "type", "register", "error", "constant", "keyword"
]
SymbolStatus = Literal["accepted", "proposed", "rejected"]
ACCEPTED: tuple[SymbolStatus, ...] = ("accepted",)
DECISIONS: tuple[SymbolStatus, ...] = ("accepted", "rejected")
STRUCTURE = "structure"  # the origin of a card that was read without a model
TEXT_FIELDS = ("signature", "meaning", "example")
CORRECTABLE = (*TEXT_FIELDS, "limits")


@dataclass(frozen=True)
class Card:
    """A named part of a chip's languages, as a document defines it.

    `name` is as code writes it; `signature`, `operands` (each with its meaning), `meaning`,
    `limits` and `example` are verbatim and empty if the document has none. `language` is that of
    the code block, or the toolchain if known. `section` is the index of the section that defines
    it. `further` are other cells of its row as "Header: value".
    """

    name: str
    kind: CardKind
    signature: str
    operands: tuple[tuple[str, str], ...]
    meaning: str
    limits: tuple[str, ...]
    example: str
    language: str
    section: int
    further: tuple[str, ...]


@dataclass(frozen=True)
class ProposedCard:
    """A card that a model has proposed. `origin` is "model NAME"; `path` are the headings of the
    section that it was proposed from."""

    name: str
    kind: str
    language: str
    signature: str
    operands: tuple[tuple[str, str], ...]
    meaning: str
    limits: tuple[str, ...]
    example: str
    origin: str
    path: tuple[str, ...]
    status: SymbolStatus = "proposed"

    @property
    def fields(self) -> int:
        """How many texts it states, apart from its name: each operand, its meaning and each limit
        is one."""
        meanings = sum(bool(meaning) for _, meaning in self.operands)
        single = sum(map(bool, (self.signature, self.meaning, self.example)))
        return single + len(self.operands) + meanings + len(self.limits)


@dataclass(frozen=True)
class Symbol:
    """A card of the catalog. `operands` are (operand, meaning) pairs, `limits` sentences of the
    source, `further` other cells of its row, `path` the headings of the section that defines it,
    `hardware` the chips that it is about (empty: any). `origin` is "structure", or "model NAME" for
    a card that a model has proposed."""

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


# -- names that a chip's tools refuse

_REFUSED = "refused:"  # of the catalog's named values, with the id of the chip


@dataclass(frozen=True)
class RefusedName:
    """A name of a manual that a chip's toolchain does not know. `section` of `document` defines it,
    `message` is the tool's, `tool` its version, `seen` the test or the run that showed it."""

    name: str
    language: str
    document: str
    section: str
    message: str
    tool: str
    seen: str


def refused_names(connection: Connection, hardware: str) -> list[RefusedName]:
    """The names that were refused on a chip, by the last version of each tool."""
    return [RefusedName(**row) for row in meta.get(connection, f"{_REFUSED}{hardware}") or ()]


def put_refused(connection: Connection, hardware: str, names: Iterable[RefusedName]) -> None:
    """Replace the names that were refused on a chip."""
    meta.put(connection, f"{_REFUSED}{hardware}", [asdict(name) for name in names])


# -- cards


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
    By default only accepted ones: read from structure, or proposed by a model and accepted by a
    person."""
    symbols = _read(connection, names, section, statuses, access_scope)
    if hardware is not None:
        symbols = [s for s in symbols if set(s.hardware) & set(hardware)]
    return sorted(symbols, key=lambda s: (s.document_title, s.document_id, s.ordinal))


_SELECT = (
    sa.select(t.symbols, t.documents.c.title.label("document_title"))
    .add_columns(t.document_versions.c.number.label("version"), t.sections.c.path)
    .join(t.documents, t.documents.c.id == t.symbols.c.document_id)
    .join(t.document_versions, t.document_versions.c.id == t.symbols.c.version_id)
    .join(t.sections, t.sections.c.id == t.symbols.c.section_id)
)


def _read(
    connection: Connection,
    names: Collection[str] | None = None,
    section: str | None = None,
    statuses: Collection[SymbolStatus] = ACCEPTED,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[Symbol]:
    query = _SELECT.where(
        t.symbols.c.active.is_(True),
        visible.read_from(t.symbols, access_scope),
        t.symbols.c.status.in_(statuses),
    )
    if section is not None:
        query = query.where(t.symbols.c.section_id == section)
    rows: Iterable[sa.Row[Any]]
    if names is None:
        rows = connection.execute(query)
    else:
        rows = select_in(connection, query, t.symbols.c.name, sorted(names))
    symbols = map(_symbol, rows)
    return [_as_seen(s, access_scope) for s in symbols if access_scope.sees(s.hardware)]


def with_words(
    connection: Connection, words: str, limit: int, access_scope: AccessScope = ALL_ACCESS
) -> list[Symbol]:
    """At most `limit` active accepted cards whose name has each of the words, the shortest names
    first."""
    query = _SELECT.where(
        t.symbols.c.active.is_(True),
        t.symbols.c.status.in_(ACCEPTED),
        visible.read_from(t.symbols, access_scope),
        *(t.symbols.c.name.icontains(word, autoescape=True) for word in words.split()),
    )
    query = query.order_by(sa.func.length(t.symbols.c.name), t.symbols.c.name).limit(4 * limit)
    cards = [_as_seen(s, access_scope) for s in map(_symbol, connection.execute(query))]
    return [card for card in cards if access_scope.sees(card.hardware)][:limit]


def of_versions(connection: Connection, version_ids: Sequence[str]) -> list[Symbol]:
    """The active accepted cards of some versions."""
    query = _SELECT.where(
        t.symbols.c.active.is_(True),
        t.symbols.c.status.in_(ACCEPTED),
        t.symbols.c.version_id.in_(version_ids),
    )
    return [_symbol(row) for row in connection.execute(query)]


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
    return replace(symbol, hardware=access.visible_hardware(symbol.hardware))


def _symbol(row: sa.Row[Any]) -> Symbol:
    card = row.card
    return record_of(
        Symbol,
        row,
        signature=card["signature"],
        operands=tuple((operand, meaning) for operand, meaning in card["operands"]),
        meaning=card["meaning"],
        limits=tuple(card["limits"]),
        example=card["example"],
        further=tuple(card["further"]),
        hardware=tuple(h for h in row.hardware if h != ANY),
    )


# -- storing


def replace_version_symbols(
    connection: Connection, cards: Sequence[tuple[StoredVersion, Sequence[Card]]]
) -> None:
    """Replace the cards of versions, including the proposals that their texts still contain. Those
    of other versions of their documents leave every answer."""
    rows = [row for version, own in cards for row in _rows(connection, version, own)]
    replace_rows(connection, t.symbols, (version for version, _ in cards), rows)


def _rows(
    connection: Connection, version: StoredVersion, cards: Sequence[Card]
) -> list[dict[str, Any]]:
    placed: list[tuple[Card | ProposedCard, StoredSection]] = [
        (card, version.sections[card.section]) for card in cards
    ]
    fixes: Mapping[str, Any] = {}
    if not version.first:  # a first version has no corrections
        fixes = corrections.of_symbols(connection, version.document.id, "card")
        for proposal in _placed_proposals(connection, version, {card.name for card in cards}):
            placed.append((proposal.card, version.sections[proposal.section]))
    return [
        _row(version, card, section, n, fixes.get(card.name, {}))
        for n, (card, section) in enumerate(placed)
    ]


def _row(
    version: StoredVersion,
    card: Card | ProposedCard,
    section: StoredSection,
    ordinal: int,
    fix: Mapping[str, Any],
) -> dict[str, Any]:
    """The row of a card, with the corrections of people in `fix`."""
    identity: tuple[object, ...] = (ordinal,)
    further, origin, status = [], STRUCTURE, "accepted"
    if isinstance(card, ProposedCard):
        identity = ("proposed", card.name)  # not its ordinal, which changes with other proposals
        origin, status = card.origin, card.status
    else:
        further = list(card.further)
    texts = {
        "signature": card.signature,
        "operands": [list(pair) for pair in card.operands],
        "meaning": card.meaning,
        "limits": list(card.limits),
        "example": card.example,
        "further": further,
    }
    return {
        **version.columns(section),
        "id": derived_id("sym", version.id, *identity),
        "ordinal": ordinal,
        "name": card.name,
        "kind": card.kind,
        "language": card.language,
        "card": {**texts, **fix},
        "corrected": bool(fix),
        "origin": origin,
        "status": status,
    }


def propose(
    catalog: Catalog,
    section_id: str,
    cards: Sequence[ProposedCard],
    access_scope: AccessScope = ALL_ACCESS,
) -> list[str]:
    """Store cards that a model has proposed from a section, checked by `check_proposal`; the names
    of those that were new to the document. Raises Conflict if the section is no longer part of a
    current version."""
    with catalog.write() as connection:
        version_id = connection.scalar(
            sa.select(t.sections.c.version_id)
            .join(t.documents, t.documents.c.current_version_id == t.sections.c.version_id)
            .where(t.sections.c.id == section_id, visible.documents(access_scope))
        )
        if version_id is None:
            raise Conflict(
                "the document was read again while the model answered",
                hint="Run the same command again; stored answers are used where the text is the"
                " same.",
            )
        version = current_version(connection, version_id)
        section = next(section for section in version.sections if section.id == section_id)
        document_id = version.document.id
        fixes = corrections.of_symbols(connection, document_id, "card")
        known = connection.execute(
            sa.select(t.symbols.c.name, t.symbols.c.ordinal).where(
                t.symbols.c.version_id == version_id
            )
        ).all()
        ordinal = max((row.ordinal for row in known), default=-1)
        new: dict[str, ProposedCard] = {}
        for card in cards:
            if card.name not in {row.name for row in known}:
                new.setdefault(card.name, card)
        for n, card in enumerate(new.values(), ordinal + 1):
            _record_proposal(connection, document_id, card, card.origin)
            row = _row(version, card, section, n, fixes.get(card.name, {}))
            connection.execute(t.symbols.insert().values(row))
        return [*new]


# -- people's corrections and decisions


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
    proposed, its `status` accepts or rejects it. Raises InvalidRequest and NotFound."""
    _check_fix(fix)
    texts = {name: value for name, value in fix.items() if name != "status"}
    with catalog.write() as connection:
        symbol = get(connection, symbol_id, access_scope)
        check_document(connection, symbol.document_id, access_scope)
        if "status" in fix:
            _decide(connection, symbol, fix["status"], actor)
        if texts:
            _correct_texts(connection, symbol, texts, actor)
        bump_documents(connection, [symbol.document_id])
        return get(connection, symbol_id, access_scope)


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


def _decide(connection: Connection, symbol: Symbol, status: SymbolStatus, actor: str) -> None:
    proposal = _proposals(connection, symbol.document_id).get(symbol.name)
    if symbol.origin == STRUCTURE or proposal is None:
        raise InvalidRequest(
            f"the card of {symbol.name[:80]!r} is no proposal: its manual states it",
            hint="Correct its fields where it was read wrongly.",
        )
    _record_proposal(connection, symbol.document_id, replace(proposal, status=status), actor)
    proposed = t.symbols.c.origin != STRUCTURE
    connection.execute(t.symbols.update().where(*_same(symbol), proposed).values(status=status))


def _correct_texts(
    connection: Connection, symbol: Symbol, fix: Mapping[str, Any], actor: str
) -> None:
    earlier = corrections.of_symbols(connection, symbol.document_id, "card").get(symbol.name, {})
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


def _same(symbol: Symbol) -> tuple[sa.ColumnElement[bool], ...]:
    """The rows of this name in all versions of its document."""
    return (t.symbols.c.document_id == symbol.document_id, t.symbols.c.name == symbol.name)


# -- proposals and their source


@dataclass(frozen=True)
class CheckedProposal:
    """The part of a proposal that its source contains. `card` is None for a refused card, with the
    reason; `dropped` names each field that was taken out, as often as it happened."""

    card: ProposedCard | None
    dropped: tuple[str, ...] = ()
    reason: str = ""


def proposal_source_text(path: Sequence[str], passages: Iterable[tuple[str, str]]) -> str:
    """The text of a section: its heading, then its passages in order. These are (lead, text): the
    pieces of a table have its header as their lead, which is written once."""
    parts = [*path[-1:]]
    before = ""
    for lead, text in passages:
        parts += [lead, text] if lead and lead != before else [text]
        before = lead
    return "\n".join(parts)


def check_proposal(card: ProposedCard, source: Source) -> CheckedProposal:
    """The card with the fields that its section contains word for word; see `verbatim`. A signature
    and an example must contain the name too, else they are another symbol's. A card is refused if
    its name is not in the section, or if neither meaning nor signature remains. So is a card that
    lost a limit and has no meaning, because it may be about a forbidden use."""
    if not source.names(card.name):
        return CheckedProposal(None, reason="its name is not in the section")
    left = replace(
        card,
        signature=_with_name(card, _verbatim(card.signature, source)),
        operands=_verbatim_operands(card.operands, source),
        meaning=_verbatim(card.meaning, source),
        limits=tuple(filter(None, (_verbatim(limit, source) for limit in card.limits))),
        example=_with_name(card, source.verbatim(card.example)),
    )
    dropped = _dropped(card, left)
    if left.signature == card.name:  # which is known
        left = replace(left, signature="")
    if not (left.meaning or left.signature):
        reason = "neither its meaning nor its signature is in the section"
        return CheckedProposal(None, dropped, reason)
    if "limit" in dropped and not left.meaning:
        reason = "a limit of it is not in the section, and it has no meaning"
        return CheckedProposal(None, dropped, reason)
    return CheckedProposal(left, dropped)


def _with_name(card: ProposedCard, text: str | None) -> str:
    """The text if it contains the name, or the last part of a dotted one, because imports shorten
    names."""
    last = card.name.rstrip(".*").rpartition(".")[2]
    return text if text and (last or card.name) in text else ""


def _verbatim(text: str, source: Source) -> str:
    """The text as in the source, on one line."""
    return " ".join((source.verbatim(text) or "").split())


def _verbatim_operands(
    operands: Iterable[tuple[str, str]], source: Source
) -> tuple[tuple[str, str], ...]:
    pairs = (
        (_verbatim(operand, source), _verbatim(meaning, source)) for operand, meaning in operands
    )
    return tuple((operand, meaning) for operand, meaning in pairs if operand)


def _dropped(before: ProposedCard, after: ProposedCard) -> tuple[str, ...]:
    """Names of the fields that `before` has and `after` lacks, once for each entry of a list."""
    lost = [n for n in TEXT_FIELDS if getattr(before, n) and not getattr(after, n)]
    lost += ["limit"] * (len(before.limits) - len(after.limits))
    lost += ["operand"] * (len(before.operands) - len(after.operands))
    stated, left = (sum(bool(m) for _, m in card.operands) for card in (before, after))
    return (*lost, *["meaning of an operand"] * (stated - left))


def _record_proposal(
    connection: Connection, document_id: str, card: ProposedCard, actor: str
) -> None:
    """Store a proposal, or the decision about it, for every later version of its document."""
    corrections.record(
        connection, document_id, "symbol", card.name, "proposal", asdict(card), actor
    )


def _proposals(connection: Connection, document_id: str) -> dict[str, ProposedCard]:
    """The proposals of a document by name, decided or not, oldest first."""
    stored = corrections.of_symbols(connection, document_id, "proposal")
    return {name: _card_from(value) for name, value in stored.items()}


def _card_from(row: Mapping[str, Any]) -> ProposedCard:
    pairs = tuple((operand, meaning) for operand, meaning in row["operands"])
    lists = {name: tuple(row[name]) for name in ("limits", "path")}
    return ProposedCard(**{**row, **lists, "operands": pairs})


@dataclass(frozen=True)
class _PlacedProposal:
    """A proposal that a version still contains, and the number of its section."""

    card: ProposedCard
    section: int


def _placed_proposals(
    connection: Connection, version: StoredVersion, taken: Collection[str]
) -> list[_PlacedProposal]:
    """The proposals that a version contains, except those whose names are `taken` by cards of its
    structure. A card is searched in the section of its headings first, then in all others, in which
    it must be complete."""
    proposals = _proposals(connection, version.document.id)
    cards = [card for name, card in proposals.items() if name not in taken]
    if not cards:
        return []
    sections = _section_sources(connection, version.id)
    places = (_place(card, sections) for card in cards)
    return [place for place in places if place is not None]


def _place(
    card: ProposedCard, sections: Sequence[tuple[tuple[str, ...], Source]]
) -> _PlacedProposal | None:
    for number, (path, source) in enumerate(sections):
        if path == card.path and (left := check_proposal(card, source).card) is not None:
            return _PlacedProposal(left, number)
    for number, (path, source) in enumerate(sections):
        if check_proposal(card, source).card == card:
            return _PlacedProposal(replace(card, path=path), number)
    return None


def _section_sources(
    connection: Connection, version_id: str
) -> list[tuple[tuple[str, ...], Source]]:
    """Headings and text of the version's sections in order."""
    rows = connection.execute(
        sa.select(t.sections.c.id, t.sections.c.path, t.passages.c.lead, t.passages.c.text)
        .outerjoin(t.passages, t.passages.c.section_id == t.sections.c.id)
        .where(t.sections.c.version_id == version_id)
        .order_by(t.sections.c.ordinal, t.passages.c.ordinal)
    )
    paths: dict[str, tuple[str, ...]] = {}
    parts: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        paths[row.id] = tuple(row.path)
        parts.setdefault(row.id, []).append((row.lead or "", row.text or ""))
    return [(path, Source(proposal_source_text(path, parts[key]))) for key, path in paths.items()]


# -- search for a text in its source, word for word
#
# A run of white space counts as one blank, because documents break lines anywhere. A match neither
# begins nor ends inside a word or a number: "at most 1" is not found in "at most 128".


class Source:
    """A source that is searched for other texts."""

    def __init__(self, text: str) -> None:
        self._text = text

    def verbatim(self, words: str) -> str | None:
        """The source's own characters for these words, with its line breaks; None if they are not
        in it, or if `words` is empty."""
        parts = words.split()
        if not parts:
            return None
        pattern = r"\s+".join(map(re.escape, parts))
        match = re.search(_opening(parts[0]) + pattern + _closing(parts[-1]), self._text)
        return match[0] if match else None

    def names(self, name: str) -> bool:
        """Whether the source has this name as a whole word: `add` does not match `vadd`, `tl.add`
        or `add.f32`."""
        pattern = rf"(?<!\w)(?<!\w\.)(?<!::)(?<!->){re.escape(name)}(?!\w)(?!\.\w)(?!::\w)"
        return bool(name) and re.search(pattern, self._text) is not None


def _opening(first: str) -> str:
    if first[0].isdigit():
        return r"(?<!\w)(?<!\d[.,])"
    return r"(?<!\w)" if _is_word(first[0]) else ""


def _closing(last: str) -> str:
    if last[-1].isdigit():
        return r"(?!\w)(?![.,]\d)"
    return r"(?!\w)" if _is_word(last[-1]) else ""


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
