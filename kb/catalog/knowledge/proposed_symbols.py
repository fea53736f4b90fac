"""Cards that a language model has proposed: what of one its source bears out, and how it outlives
the version that it was read from.

A proposal is kept with the document's corrections, anchored to the symbol's name, and is held
against the text again whenever the document is read: what no longer stands there is dropped, and
the card goes when nothing is left of it. What a person decided stays with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog.knowledge import corrections
from kb.catalog.knowledge.verbatim import Source
from kb.catalog.tables import knowledge as t

SymbolStatus = Literal["accepted", "proposed", "rejected"]
STRUCTURE = "structure"  # the origin of a card that was read without a model


@dataclass(frozen=True)
class ProposedCard:
    """A card as a model proposes it. `origin` is "model NAME"; `path` are the headings of the
    section that it was proposed from.
    """

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
        """How many texts it states beside its name: each operand, its meaning and each limit is
        one."""
        meanings = sum(bool(meaning) for _, meaning in self.operands)
        single = sum(map(bool, (self.signature, self.meaning, self.example)))
        return single + len(self.operands) + meanings + len(self.limits)

    @property
    def card(self) -> dict[str, Any]:
        """The texts as the catalog stores those of every card."""
        return {
            "signature": self.signature,
            "operands": [list(pair) for pair in self.operands],
            "meaning": self.meaning,
            "limits": list(self.limits),
            "example": self.example,
            "further": [],
        }


@dataclass(frozen=True)
class Checked:
    """What the source bears out. `card` is None for a refused card, with the reason; `dropped`
    names each field that was taken out, as often as it happened.
    """

    card: ProposedCard | None
    dropped: tuple[str, ...] = ()
    reason: str = ""


def section_text(path: Sequence[str], passages: Iterable[tuple[str, str]]) -> str:
    """What a section says: its heading, then its passages in order. These are (lead, text): the
    pieces of a table have its header as their lead, which is written once.
    """
    parts = [*path[-1:]]
    before = ""
    for lead, text in passages:
        parts += [lead, text] if lead and lead != before else [text]
        before = lead
    return "\n".join(parts)


def checked(card: ProposedCard, source: Source) -> Checked:
    """The card with the fields that stand in its section word for word; see `verbatim`. A signature
    and an example must hold the name too, else they are another symbol's. A card is refused whose
    name is not in the section, or of which neither meaning nor signature is left; so is one that
    lost a limit and has no meaning, for it may have been about what is not allowed.
    """
    if not source.names(card.name):
        return Checked(None, reason="its name is not in the section")
    kept = replace(
        card,
        signature=_holding(card, _plain(card.signature, source)),
        operands=_operands(card.operands, source),
        meaning=_plain(card.meaning, source),
        limits=tuple(filter(None, (_plain(limit, source) for limit in card.limits))),
        example=_holding(card, source.quoted(card.example)),
    )
    dropped = _dropped(card, kept)
    if kept.signature == card.name:  # says no more than the name
        kept = replace(kept, signature="")
    if not (kept.meaning or kept.signature):
        return Checked(None, dropped, "neither its meaning nor its signature is in the section")
    if "limit" in dropped and not kept.meaning:
        return Checked(None, dropped, "a limit of it is not in the section, and it has no meaning")
    return Checked(kept, dropped)


def _holding(card: ProposedCard, text: str | None) -> str:
    """The text where it has the name, or the last part of a dotted one: imports shorten names."""
    last = card.name.rstrip(".*").rpartition(".")[2]
    return text if text and (last or card.name) in text else ""


def _plain(text: str, source: Source) -> str:
    return " ".join((source.quoted(text) or "").split())


def _operands(operands: Iterable[tuple[str, str]], source: Source) -> tuple[tuple[str, str], ...]:
    pairs = ((_plain(operand, source), _plain(meaning, source)) for operand, meaning in operands)
    return tuple((operand, meaning) for operand, meaning in pairs if operand)


def _dropped(before: ProposedCard, after: ProposedCard) -> tuple[str, ...]:
    """The names of fields that were stated and are gone."""
    lost = [n for n in ("signature", "meaning", "example") if getattr(before, n)]
    lost = [name for name in lost if not getattr(after, name)]
    lost += ["limit"] * (len(before.limits) - len(after.limits))
    lost += ["operand"] * (len(before.operands) - len(after.operands))
    meanings = (sum(bool(m) for _, m in card.operands) for card in (before, after))
    stated, left = meanings
    return (*lost, *["meaning of an operand"] * (stated - left))


# -- through the versions of a document


def record(connection: Connection, document_id: str, card: ProposedCard, actor: str) -> None:
    """Keep a proposal, or what was decided about it, for every later version of its document."""
    corrections.record(
        connection, document_id, "symbol", card.name, "proposal", asdict(card), actor
    )


def proposals(connection: Connection, document_id: str) -> dict[str, ProposedCard]:
    """The proposals of a document by name, whatever was decided about them, oldest first."""
    rows = connection.execute(
        sa.select(t.corrections.c.anchor, t.corrections.c.value)
        .where(
            t.corrections.c.document_id == document_id,
            t.corrections.c.target == "symbol",
            t.corrections.c.field == "proposal",
        )
        .order_by(t.corrections.c.created_at, t.corrections.c.id)
    )
    return {row.anchor: _card_from(row.value["value"]) for row in rows}


def _card_from(row: Mapping[str, Any]) -> ProposedCard:
    pairs = tuple((operand, meaning) for operand, meaning in row["operands"])
    lists = {name: tuple(row[name]) for name in ("limits", "path")}
    return ProposedCard(**{**row, **lists, "operands": pairs})


@dataclass(frozen=True)
class Standing:
    """A proposal that a version still bears out, and the number of its section."""

    card: ProposedCard
    section: int


def standing(
    connection: Connection, document_id: str, version_id: str, taken: Collection[str]
) -> list[Standing]:
    """The proposals that a version bears out; those whose names are `taken` by cards that its
    structure gives are left out. A card is looked for in the section of its headings first, then
    in all others, where it must stand whole.
    """
    cards = [c for name, c in proposals(connection, document_id).items() if name not in taken]
    if not cards:
        return []
    sections = _sections(connection, version_id)
    places = (_place(card, sections) for card in cards)
    return [place for place in places if place is not None]


def _place(
    card: ProposedCard, sections: Sequence[tuple[tuple[str, ...], Source]]
) -> Standing | None:
    for number, (path, source) in enumerate(sections):
        if path == card.path and (left := checked(card, source).card) is not None:
            return Standing(left, number)
    for number, (path, source) in enumerate(sections):
        if checked(card, source).card == card:
            return Standing(replace(card, path=path), number)
    return None


def _sections(connection: Connection, version_id: str) -> list[tuple[tuple[str, ...], Source]]:
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
    return [(path, Source(section_text(path, parts[key]))) for key, path in paths.items()]
