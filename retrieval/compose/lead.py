"""The lead: the first result of an answer as a block that its context contains at any budget. It is
the section, the part of it around the best passage, or the sentences of that passage that share
most words with the request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from kb.catalog.knowledge.passages import Passage
from kb.catalog.knowledge.section_texts import WholeSection
from kb.prompt_tokens import count_tokens
from kb.scope import ScopeFilter
from kb.tokens import tokenize
from retrieval.compose.cards import symbol_blocks
from retrieval.compose.sections import FENCE, SLACK, Block, citation, fenced, section_block
from retrieval.search.names import Cards
from retrieval.snapshot.snapshot import Snapshot

LIST = 10  # names in a section from which on it counts as a list of names
LEAST_WORDS = 12  # tokens of text below which a cut passage is of no use
_SENTENCE_ENDS = re.compile(r"(?<=[.!?;])\s+(?=\S)|\n+")
_LINES = re.compile(r"\n+")


@dataclass(frozen=True)
class Lead:
    """The best section of an answer; `passage` and `section` are ids. `block` returns it in at most
    a number of tokens, None if not even a sentence fits. `cards` are ids of the cards in it.
    """

    category: str
    passage: str
    section: str
    block: Callable[[int], Block | None]
    cards: frozenset[str] = frozenset()


def lead_of(
    snapshot: Snapshot,
    passage_id: str,
    scope: ScopeFilter,
    query: str,
    largest_section: int,
    admits: Callable[[WholeSection, Block], bool],
) -> Lead | None:
    """The section of the best passage for the text `query`; None if it is not visible to the caller
    or `admits` refuses it. `largest_section` is in tokens.
    """
    seqs = snapshot.numbers([passage_id])
    found = snapshot.load(seqs.values(), scope)
    if not found:
        return None
    passage = next(iter(found.values()))
    section = snapshot.sections([passage.section_id], scope).get(passage.section_id)
    if section is None:
        return None

    def block(largest: int) -> Block | None:
        whole = section_block(snapshot, scope, passage.category, section, passage, largest)
        fits = whole is not None and whole.tokens <= largest
        return whole if fits else _cut(passage, largest, query)

    most = block(largest_section)
    if most is None or not admits(section, most):
        return None
    return Lead(passage.category, passage.id, section.id, block)


def with_cards(lead: Lead, cards: Cards, named: Collection[str], category: str) -> Lead:
    """For a section that lists names, such as a reference, replace it by the cards of those in
    `named`, in another category; otherwise return the lead unchanged.
    """
    listed = cards.by_section.get(lead.section, ())
    own = [card for card in listed if card.name in named]
    if len(listed) < LIST or not own:
        return lead
    return replace(
        lead,
        category=category,
        block=lambda largest: next(iter(symbol_blocks(own, largest - FENCE)), None),
        cards=frozenset(card.id for card in own),
    )


def _cut(passage: Passage, largest: int, query: str) -> Block | None:
    """Whole sentences or lines of a passage in at most `largest` tokens."""
    empty = fenced(passage.category, passage.id, citation(passage), passage.hardware, "")
    # the fence and the text may take more tokens together than apart
    room = largest - empty.tokens - SLACK
    text = _best_piece(passage, room, frozenset(tokenize(query)))
    if not text:
        return None
    block = fenced(passage.category, passage.id, citation(passage), passage.hardware, text)
    return replace(block, passages=(passage.id,)) if block.tokens <= largest else None


def _best_piece(passage: Passage, room: int, words: frozenset[str]) -> str:
    """The sentence or line that shares most words with `words`, extended by its neighbours."""
    if room < LEAST_WORDS:
        return ""
    prose = passage.kind not in ("code", "table")
    pieces = [p for p in (_SENTENCE_ENDS if prose else _LINES).split(passage.text) if p.strip()]
    joint = " " if prose else "\n"
    shared = [len(words & set(tokenize(piece))) for piece in pieces]
    for place in sorted(range(len(pieces)), key=lambda n: (-shared[n], n)):
        if count_tokens(pieces[place]) <= room:
            return _grown(pieces, place, room, joint)
    return ""


def _grown(pieces: Sequence[str], place: int, room: int, joint: str) -> str:
    first, last = place, place + 1

    def fits(low: int, high: int) -> bool:
        return count_tokens(joint.join(pieces[low:high])) <= room

    while last < len(pieces) and fits(first, last + 1):
        last += 1
    while first > 0 and fits(first - 1, last):
        first -= 1
    return joint.join(pieces[first:last])
