"""From ranked passages to the excerpts of an answer: verified, without near duplicates, grown where
there is room.

The first excerpts are single passages, because a reader pays for every character before the answer.
Later ones are grown within their section, where the right place is known better than the right
sentence. Text is the document's own."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kb.answers import DocumentRef, Excerpt
from kb.catalog.knowledge.passages import Passage
from kb.catalog.knowledge.section_texts import WholeSection, section_text
from kb.scope import ANY, ScopeFilter
from kb.tokens import STOP_WORDS
from retrieval.compose.sections import citation, part_around
from retrieval.search.ranking import Ranked
from retrieval.snapshot.snapshot import Snapshot
from retrieval.stages import stage

# -- repeats: Which of several texts nearly repeat an earlier one, by the words that they share.

DUPLICATE = 0.85  # share of the smaller one's words above which two texts repeat each other
REMEMBERED = 10_000  # texts, of 1.5 KB: the same passages stand in many answers
_SPACES = str.maketrans(dict.fromkeys(string.punctuation, " "))
BITS = 2048  # of a mask; a text has some hundred words


class _Words(NamedTuple):
    """The different words of a text, `size` of them. Each sets one bit of `mask`, by its hash;
    `hidden` is how many set one that another of them has set already. `hashes` are all 64 bits of
    them, which tell words apart: as a set, words take ten times the memory.
    """

    hashes: NDArray[np.int64]
    mask: int
    hidden: int
    size: int

    def shares(self, other: _Words) -> int:
        """How many words both have."""
        return len(np.intersect1d(self.hashes, other.hashes, assume_unique=True))


@lru_cache(maxsize=REMEMBERED)
def words_of(text: str) -> _Words:
    """The words of a text, as two texts are compared by them: runs of letters and digits, in
    whatever case, but for function words. Search tokens, which are stems too, and names beside
    their parts, agree with these on 99 of 100 pairs of near passages and take three times as long,
    or more where stems are new (benchmarks/results/retrieval_latency.md).
    """
    words = set(text.lower().translate(_SPACES).split()) - STOP_WORDS
    hashes = np.sort(np.fromiter(map(hash, words), np.int64))
    bits = np.zeros(BITS, np.bool_)
    bits[hashes % BITS] = True
    mask = int.from_bytes(np.packbits(bits).tobytes(), "big")
    return _Words(hashes, mask, len(hashes) - mask.bit_count(), len(hashes))


class Repeats:
    """The texts that were new so far. Two repeat each other when they share more than `share` of
    the smaller one's words.
    """

    def __init__(self, share: float = DUPLICATE) -> None:
        self._share = share
        self._texts: list[_Words] = []

    def is_new(self, text: str) -> bool:
        """Whether the text repeats none of the earlier ones; then it is one of them from now on."""
        own = words_of(text)
        _, mask, hidden, size = own
        share = self._share
        # A context compares some thousand pairs, so nothing is called for each but what counts.
        for other in self._texts:
            _, other_mask, other_hidden, other_size = other
            enough = share * (size if size < other_size else other_size)
            # The masks say at least how many words both have, and nearly always about how many:
            # they rule out nearly all pairs, in a tenth of the time of two sets.
            both = (mask & other_mask).bit_count()
            both += hidden if hidden < other_hidden else other_hidden
            if both > enough and own.shares(other) > enough:
                return False
        self._texts.append(own)
        return True


@dataclass(frozen=True)
class Shape:
    """How excerpts are built. The first `singles` stay one passage, later ones grow to at most
    `grown_chars` characters. Two excerpts are duplicates when they share more than `duplicate` of
    the smaller one's words (see `repeats`).
    """

    singles: int = 8
    grown_chars: int = 800
    duplicate: float = DUPLICATE


SHAPE = Shape()
_LOOKAHEAD = 3  # candidates verified per excerpt wanted
_REACH = 3  # passages to each side that an excerpt may grow over


@stage("excerpts")
def make_excerpts(
    snapshot: Snapshot,
    ranked: Sequence[Ranked],
    scope: ScopeFilter,
    count: int,
    shape: Shape = SHAPE,
    *,
    excluded: frozenset[str] = frozenset(),
) -> list[Excerpt]:
    """At most `count` excerpts of the ranked passages, best first. Passages that the scope no
    longer admits, that nearly repeat an earlier excerpt, or that have an id in `excluded`, are left
    out.
    """
    chosen: list[list[Passage]] = []
    by_seq = {r.seq: r for r in ranked}
    used: set[int] = set()
    repeats = Repeats(shape.duplicate)
    for batch in _batches(ranked, max(count * _LOOKAHEAD // 2, 30)):
        live = _Around(snapshot, batch, scope, excluded)
        for place, entry in enumerate(batch):
            passage = live.get(entry.seq)
            if passage is None or passage.seq in used:
                continue
            if not repeats.is_new(passage.shown):
                continue
            group = [passage]
            if len(chosen) >= shape.singles:
                live.read_beside(batch[place : place + count - len(chosen)])
                group = _grow(passage, live, by_seq, used, shape)
            used.update(member.seq for member in group)
            chosen.append(group)
            if len(chosen) >= count:
                return [excerpt_of(g, by_seq) for g in chosen]
    return [excerpt_of(g, by_seq) for g in chosen]


def without(live: Mapping[int, Passage], excluded: frozenset[str]) -> dict[int, Passage]:
    """The passages of which neither they nor their section or document has an id in `excluded`."""
    return {
        seq: passage
        for seq, passage in live.items()
        if not excluded & {passage.id, passage.section_id, passage.document_id}
    }


class _Around:
    """The passages of a batch that the scope admits, and their neighbours within _REACH, which are
    loaded on demand because few excerpts grow.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        batch: Sequence[Ranked],
        scope: ScopeFilter,
        excluded: frozenset[str],
    ) -> None:
        self._load = partial(snapshot.load, scope=scope)
        self._excluded = excluded
        self._within = _reached(batch)
        self._known: set[int] = set()
        self._live: dict[int, Passage] = {}
        self._read({entry.seq for entry in batch})

    def read_beside(self, entries: Sequence[Ranked]) -> None:
        """Load the neighbours of these entries, unless those of the first are loaded."""
        if entries[0].seq + 1 not in self._known:
            self._read(_reached(entries))

    def get(self, seq: int) -> Passage | None:
        """The passage; None where the scope does not admit it, or where it is out of reach."""
        if seq not in self._known and seq in self._within:
            self._read({seq})
        return self._live.get(seq)

    def _read(self, seqs: AbstractSet[int]) -> None:
        fresh = seqs - self._known
        self._known |= fresh
        self._live |= without(self._load(fresh), self._excluded)


def _reached(entries: Sequence[Ranked]) -> set[int]:
    return {n for r in entries for n in range(r.seq - _REACH, r.seq + _REACH + 1)}


def _batches(ranked: Sequence[Ranked], size: int) -> Iterable[Sequence[Ranked]]:
    for start in range(0, len(ranked), size):
        yield ranked[start : start + size]


def _grow(
    passage: Passage,
    live: _Around,
    scores: Mapping[int, Ranked],
    used: set[int],
    shape: Shape,
) -> list[Passage]:
    """The passage with its neighbours, the better side first, up to the size of an excerpt."""
    group = [passage]
    size = len(passage.shown)
    while True:
        beside = (live.get(group[0].seq - 1), live.get(group[-1].seq + 1))
        sides = [
            p
            for p in beside
            if p is not None
            and p.section_id == passage.section_id
            and p.seq not in used
            and size + len(p.shown) <= shape.grown_chars
        ]
        if not sides:
            return group
        best = max(sides, key=lambda p: (_score(p, scores), -p.seq))
        size += len(best.shown)
        group = [best, *group] if best.seq < group[0].seq else [*group, best]


def _score(passage: Passage, scores: Mapping[int, Ranked]) -> float:
    entry = scores.get(passage.seq)
    return entry.score if entry is not None else 0.0


def excerpt_of(group: Sequence[Passage], scores: Mapping[int, Ranked]) -> Excerpt:
    """The excerpt of consecutive passages of a section, under its best one's id and score."""
    ranked = max((scores[p.seq] for p in group if p.seq in scores), key=lambda r: r.score)
    lead = next(p for p in group if p.seq == ranked.seq)
    first = group[0]
    page = None
    if first.page_index is not None:
        page = {"index": first.page_index, "label": first.page_label}
    return Excerpt(
        id=lead.id,
        category=lead.category,
        hardware=tuple(h for h in lead.hardware if h != ANY),
        text=_joined(group),
        document=DocumentRef(lead.document_id, lead.document_title, lead.version),
        section=" > ".join(lead.path),
        page=page,
        score=round(ranked.score, 6),
        channels={"lexical": round(ranked.lexical, 6), "dense": round(ranked.dense, 6)},
        passages=tuple(p.id for p in group),
        citation=citation(first),
    )


def _joined(group: Sequence[Passage]) -> str:
    """The passages' text in order; consecutive pieces of one table share its header."""
    parts: list[str] = []
    lead = ""
    for passage in group:
        parts.append(passage.shown if passage.lead != lead else passage.text)
        lead = passage.lead
    return "\n".join(parts)


# -- section excerpts: Whole sections as excerpts, for a reader who has given no words to look for

# Tokens of an excerpt: every section of the built-in manuals is whole, with its table. Other
# manuals have sections of several pages, of which a reader pays for every line.
LARGEST = 360
ENOUGH = 2  # excerpts, from which on none is added from far behind
FAR = 0.6  # of the best score; chosen by reading what stood below it in 60 answers
LOOKED_AT = 8  # passages looked at for each excerpt that is wanted


@stage("excerpts")
def section_excerpts(
    snapshot: Snapshot,
    ranked: Sequence[Ranked],
    scope: ScopeFilter,
    count: int,
    *,
    excluded: frozenset[str] = frozenset(),
) -> list[Excerpt]:
    """At most `count` excerpts, one a section. A section that nearly repeats an earlier one is left
    out, and so is what the scope no longer admits or what holds a passage with an id in `excluded`.
    What the ranking puts far behind, such as advice for other machines, is no excerpt where there
    are ENOUGH others.
    """
    pool = ranked[: count * LOOKED_AT]
    by_seq = {entry.seq: entry for entry in ranked}
    hits = without(snapshot.load([entry.seq for entry in pool], scope), excluded)
    best: dict[str, Passage] = {}
    for entry in pool:
        passage = hits.get(entry.seq)
        if passage is not None:
            best.setdefault(passage.section_id, passage)
    chosen: list[Excerpt] = []
    repeats = Repeats()
    near = FAR * ranked[0].score if ranked else 0.0
    for portion in _portions(list(best.items()), count):
        # Nearly all of a chip's sections are far behind: those are not read once there are ENOUGH.
        wanted = [
            (section_id, hit)
            for section_id, hit in portion
            if len(chosen) < ENOUGH or by_seq[hit.seq].score >= near
        ]
        sections = snapshot.sections([section for section, _ in wanted], scope)
        for section_id, hit in wanted:
            if len(chosen) >= ENOUGH and by_seq[hit.seq].score < near:
                continue
            section = sections.get(section_id)
            group = _part(snapshot, section, hit, scope) if section is not None else [hit]
            # What is left around a hit may begin behind it, and then no ranked passage is in it.
            if not any(passage.seq in by_seq for passage in group):
                group = [hit]
            if excluded & {passage.id for passage in group}:
                continue
            if not repeats.is_new(section_text(group)):
                continue
            chosen.append(excerpt_of(group, by_seq))
            if len(chosen) >= count:
                return chosen
    return chosen


def _portions(
    hits: Sequence[tuple[str, Passage]], count: int
) -> Iterator[Sequence[tuple[str, Passage]]]:
    """The sections with their hits, few at first: more than ENOUGH are often not wanted."""
    yield hits[: 2 * ENOUGH]
    for start in range(2 * ENOUGH, len(hits), count):
        yield hits[start : start + count]


def _part(
    snapshot: Snapshot, section: WholeSection, hit: Passage, scope: ScopeFilter
) -> Sequence[Passage]:
    """The part of a section around a hit. Sections of a chip stand in answers to many signals, so
    it is kept.
    """

    key = (hit.id, scope.access_scope, *(passage.id for passage in section.passages))
    return snapshot.keep("parts", key, lambda: part_around(section.passages, hit, LARGEST))
