"""From ranked passages to the excerpts of an answer: verified, without near duplicates, grown where
there is room.

The first excerpts are single passages, because a reader pays for every character before the answer.
Later ones are grown within their section, where the right place is known better than the right
sentence. Text is the document's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from kb.catalog.knowledge import passages as store
from kb.catalog.knowledge.passages import Passage
from kb.headings import below_title
from kb.scope import ANY, ScopeFilter
from retrieval.answer import DocumentRef, Excerpt
from retrieval.ranking import Ranked
from retrieval.repeats import DUPLICATE, Repeats
from retrieval.stages import stage


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
    connection: Connection,
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
        live = _Around(connection, batch, scope, excluded)
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
    """The passages of a batch that the scope admits, and what stands within _REACH of them: few
    excerpts grow, so that is read when it is asked for.
    """

    def __init__(
        self,
        connection: Connection,
        batch: Sequence[Ranked],
        scope: ScopeFilter,
        excluded: frozenset[str],
    ) -> None:
        self._load = partial(store.load, connection, scope=scope)
        self._excluded = excluded
        self._within = _reached(batch)
        self._known: set[int] = set()
        self._live: dict[int, Passage] = {}
        self._read({entry.seq for entry in batch})

    def read_beside(self, entries: Sequence[Ranked]) -> None:
        """Read what stands beside these in one step, unless it is known of the first."""
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


def citation(passage: Passage) -> str:
    """Title, version, innermost headings and the printed page, as a person would cite it."""
    where = " > ".join(below_title(passage.path[-2:], passage.document_title))
    label = passage.page_label or (
        str(passage.page_index + 1) if passage.page_index is not None else ""
    )
    page = f", p. {label}" if label else ""
    section = f", {where}" if where else ""
    return f"{passage.document_title} (v{passage.version}){section}{page}"
