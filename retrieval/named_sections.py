"""What a text names comes before what only resembles it: sections that define the names in a log or
a question, by the chip's own cards.

An error code, an instruction or a directive is defined in one place of a manual; a ranking by words
and meaning sees it as one rare word among many. A name counts where it cannot be a word of running
text and where few sections define it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sqlalchemy import Connection

from kb.catalog.knowledge.passages import of_sections
from kb.catalog.knowledge.symbols import Symbol
from kb.tokens import tokenize
from retrieval.ranking import Ranked
from retrieval.symbols import names_in

MOST_NAMES = 8  # of a text, the first ones
MOST_SECTIONS = 3  # that define a name; one that more define names nothing in particular
ERROR = "error"  # kind of the cards of error codes
NOTHING: Mapping[str, str] = MappingProxyType({})
COMMON_KINDS = ("type", "keyword")  # whose names stand in all kinds of text


@dataclass(frozen=True)
class NameWeights:
    """Added to the score of a passage that defines a name, as a share of the best score: of an
    error code, of another name.
    """

    error: float = 1.0
    other: float = 0.3


WEIGHTS = NameWeights()


def by_names(
    connection: Connection,
    ranked: Sequence[Ranked],
    text: str,
    cards: Sequence[Symbol],
    weights: NameWeights = WEIGHTS,
    meant: Mapping[str, str] = NOTHING,
) -> list[Ranked]:
    """The ranked passages, those first that define what the text names; passages that the ranking
    did not hold are added. Whether they are within the scope is checked when excerpts are made.
    `meant` are sections by id with a name that stands in them and that the text nearly names; they
    count as an error code's do.
    """
    sections = _defining(text, cards) | {place: (name, ERROR) for place, name in meant.items()}
    if not sections:
        return list(ranked)
    best = max((entry.score for entry in ranked), default=0.0) or 1.0
    by_seq = {entry.seq: entry for entry in ranked}
    for seq, section_id, category, body in of_sections(connection, sections):
        name, kind = sections[section_id]
        if not names_in(body, (name,)):
            continue
        share = weights.error if kind == ERROR else weights.other
        entry = by_seq.get(seq) or Ranked(seq, 0.0, 0.0, 0.0, category)
        by_seq[seq] = entry._replace(score=entry.score + share * best)
    return sorted(by_seq.values(), key=lambda e: (-e.score, e.seq))


def _defining(text: str, cards: Sequence[Symbol]) -> dict[str, tuple[str, str]]:
    """The sections that define names of the text: their ids, with the name and its kind. Where one
    is titled with the name, a list that has it among others is left out.
    """
    by_name: dict[str, list[Symbol]] = {}
    for card in cards:
        if card.kind not in COMMON_KINDS:
            by_name.setdefault(card.name, []).append(card)
    sections: dict[str, tuple[str, str]] = {}
    for name in [n for n in names_in(text, by_name) if is_distinct(n, by_name[n])][:MOST_NAMES]:
        defining = by_name[name]
        titled = [card for card in defining if card.path and names_in(card.path[-1], (name,))]
        places = {card.section_id: card.kind for card in titled or defining}
        if len(places) <= MOST_SECTIONS:
            for section_id, kind in places.items():
                sections.setdefault(section_id, (name, kind))
    return sections


def is_distinct(name: str, cards: Sequence[Symbol]) -> bool:
    """Whether the name cannot be a word of running text: it has several parts, a digit or capitals,
    or is an error code.
    """
    if any(card.kind == ERROR for card in cards) and any(c.isdigit() for c in name):
        return True
    bare = name.lstrip(".@%$#")
    marked = bare != name or any(c.isdigit() or c in "_." for c in bare)
    return (
        len(bare) >= 3 and (marked or (bare.isupper() and len(bare) >= 4)) and bool(tokenize(name))
    )
