"""Turn ranked passages into the excerpts of an answer: verified, without near duplicates, grown if
there is room.

The first excerpts are single passages, because a reader pays for every character before the answer.
Later excerpts are grown within their section, where the right section is more certain than the
right sentence. The text is unchanged document text.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kb.answers import DocumentRef, Excerpt
from kb.catalog.knowledge.drafts import is_drafted
from kb.catalog.knowledge.passages import Passage
from kb.catalog.knowledge.samples import is_shipped_sample
from kb.catalog.knowledge.section_texts import section_text
from kb.prompt_tokens import fits
from kb.scope import ANY, ScopeFilter
from kb.tokens import STOP_WORDS
from retrieval.compose.sections import citation, starts_afresh
from retrieval.search.by_signal import WORDS_ALONE
from retrieval.search.ranking import Ranked
from retrieval.snapshot.snapshot import Snapshot
from retrieval.stages import stage

# -- repeats: near-duplicate texts, by shared words

DUPLICATE = 0.85  # share of the smaller text's words above which two texts repeat each other
REMEMBERED = 10_000  # cached texts, of 1.5 KB: the same passages occur in many answers
_SPACES = str.maketrans(dict.fromkeys(string.punctuation, " "))
BITS = 2048  # of a mask; a text has some hundred different words


class _WordSet(NamedTuple):
    """The `size` different words of a text. Each sets the bit of `mask` that its hash selects;
    `hidden` counts words whose bit was already set. `hashes` are the full 64-bit hashes: a set of
    words takes ten times the memory."""

    hashes: NDArray[np.int64]
    mask: int
    hidden: int
    size: int

    def shares(self, other: _WordSet) -> int:
        """Number of words that both texts have."""
        return len(np.intersect1d(self.hashes, other.hashes, assume_unique=True))


@lru_cache(maxsize=REMEMBERED)
def words_of(text: str) -> _WordSet:
    """The words of a text for comparison: runs of letters and digits, lower case, without function
    words. Search tokens, which are also stemmed and split, agree on 99 of 100 pairs of near
    passages and take at least three times as long (benchmarks/results/retrieval_latency.md)."""
    words = set(text.lower().translate(_SPACES).split()) - STOP_WORDS
    hashes = np.sort(np.fromiter(map(hash, words), np.int64))
    bits = np.zeros(BITS, np.bool_)
    bits[hashes % BITS] = True
    mask = int.from_bytes(np.packbits(bits).tobytes(), "big")
    return _WordSet(hashes, mask, len(hashes) - mask.bit_count(), len(hashes))


class Repeats:
    """The distinct texts so far. Two texts repeat each other if they share more than `share` of the
    smaller one's words."""

    def __init__(self, share: float = DUPLICATE) -> None:
        self._share = share
        self._texts: list[_WordSet] = []

    def is_new(self, text: str) -> bool:
        """Whether the text repeats none of the earlier ones; if so it is added to them."""
        own = words_of(text)
        _, mask, hidden, size = own
        share = self._share
        # A context compares some thousand pairs, so the loop calls nothing that is not needed.
        for other in self._texts:
            _, other_mask, other_hidden, other_size = other
            enough = share * (size if size < other_size else other_size)
            # The masks give a lower bound of the shared words that is nearly exact: they rule out
            # nearly all pairs in a tenth of the time of two sets.
            both = (mask & other_mask).bit_count()
            both += hidden if hidden < other_hidden else other_hidden
            if both > enough and own.shares(other) > enough:
                return False
        self._texts.append(own)
        return True


@dataclass(frozen=True)
class Shape:
    """How excerpts are built. The first `singles` stay one passage, later ones grow to at most
    `grown_chars` characters. Two excerpts are duplicates if they share more than `duplicate` of the
    smaller one's words (see `Repeats`)."""

    singles: int = 8
    grown_chars: int = 800
    duplicate: float = DUPLICATE


SHAPE = Shape()
Mark = Callable[[Excerpt, str], Excerpt]  # an excerpt and the id of its section


def unmarked(excerpt: Excerpt, section: str) -> Excerpt:
    return excerpt


_LOOKAHEAD = 3  # candidates verified per excerpt
_REACH = 3  # passages on each side that an excerpt may grow over


@stage("excerpts")
def make_excerpts(
    snapshot: Snapshot,
    ranked: Sequence[Ranked],
    scope: ScopeFilter,
    count: int,
    shape: Shape = SHAPE,
    *,
    excluded: frozenset[str] = frozenset(),
    mark: Mark = unmarked,
) -> list[Excerpt]:
    """At most `count` excerpts of the ranked passages, best first. Passages that are no longer in
    the scope, nearly repeat an earlier excerpt, or have an id in `excluded`, are left out. A
    shipped kernel gets one excerpt."""
    chosen: list[list[Passage]] = []
    by_seq = {r.seq: r for r in ranked}
    used: set[int] = set()
    repeats = Repeats(shape.duplicate)
    samples: set[str] = set()
    for batch in _batches(ranked, max(count * _LOOKAHEAD // 2, 30)):
        live = _Neighbourhood(snapshot, batch, scope, excluded)
        for place, entry in enumerate(batch):
            passage = live.get(entry.seq)
            if passage is None or passage.seq in used:
                continue
            sample = _sample_of(snapshot, passage)
            if sample in samples or not repeats.is_new(passage.shown):
                continue
            if sample:
                samples.add(sample)
            group = [passage]
            if _is_drafted(snapshot, passage):
                group = [*_whole_section(snapshot, passage, scope)] or group
            elif len(chosen) >= shape.singles:
                live.read_beside(batch[place : place + count - len(chosen)])
                group = _grow(passage, live, by_seq, used, shape)
            begun = _begun(group, chosen, live, used)
            used.update(member.seq for member in group)
            if begun is not None:
                chosen.append(begun)
            if len(chosen) >= count:
                return [mark(excerpt_of(g, by_seq), g[0].section_id) for g in chosen]
    return [mark(excerpt_of(g, by_seq), g[0].section_id) for g in chosen]


def _sample_of(snapshot: Snapshot, passage: Passage) -> str | None:
    """The id of the document if it is a shipped kernel, whose dozens of passages say the same."""
    key = snapshot.documents[passage.document_id].source_key
    return passage.document_id if is_shipped_sample(key) else None


def without(live: Mapping[int, Passage], excluded: frozenset[str]) -> dict[int, Passage]:
    """The passages for which `excluded` contains neither their id nor that of their section or
    document."""
    return {
        seq: passage
        for seq, passage in live.items()
        if not excluded & {passage.id, passage.section_id, passage.document_id}
    }


class _Neighbourhood:
    """The passages of a batch that are in the scope, and their neighbours within _REACH. Few
    excerpts grow, so neighbours are loaded on demand."""

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
        """Load the neighbours of these passages in one query, unless the first has been loaded."""
        if entries[0].seq + 1 not in self._known:
            self._read(_reached(entries))

    def get(self, seq: int) -> Passage | None:
        """The passage; None if it is outside the scope or the range loaded."""
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
    live: _Neighbourhood,
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
    """The excerpt of consecutive passages of a section, with the id and score of the best."""
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
    """The text of the passages in order; consecutive pieces of one table share its header."""
    parts: list[str] = []
    lead = ""
    for passage in group:
        parts.append(passage.shown if passage.lead != lead else passage.text)
        lead = passage.lead
    return "\n".join(parts)


# -- signal excerpts: for requests without words to search for

# Tokens of a section that is quoted whole if its title, text or a move names the signal. Every
# section of the built-in manuals fits, with its table. Other manuals have sections of several
# pages, where a part around the hit answers less per line than the next hit.
LARGEST = 360
ENOUGH = 2  # number of excerpts above which those of little use are left out
FAR = 0.6  # share of the best score that counts as low; chosen by reading 60 answers
USEFUL = 0.25  # use of a passage about the chip for the signal, above which its score may be low
LOOKED_AT = 8  # passages considered per excerpt
# Where a sentence or an entry of a list begins within a passage.
_SENTENCE = re.compile(r"[.!?:;][\"')`*_]*\s+(?=[A-Z0-9`*\"'(\[])|\n\s*\n|\n(?=\s*[-*] )")
SIGNAL_SHAPE = Shape(singles=8, grown_chars=700)


@stage("excerpts")
def signal_excerpts(
    snapshot: Snapshot,
    ranked: Sequence[Ranked],
    scope: ScopeFilter,
    count: int,
    signal: str | None,
    *,
    excluded: frozenset[str] = frozenset(),
    shape: Shape = SIGNAL_SHAPE,
    mark: Mark = unmarked,
) -> list[Excerpt]:
    """At most `count` excerpts for a bare signal, best first: a section of at most LARGEST tokens
    whole where its title, text or a move names the signal (a score above WORDS_ALONE) or there is
    no signal, otherwise passages, after the first `shape.singles` excerpts with their neighbours.

    Left out are near repeats, passages no longer in the scope or with an id in `excluded`, and all
    excerpts of a shipped kernel but the first. If there are ENOUGH others, so are low scores,
    except for passages of the chip that are useful.
    """
    pool = ranked[: count * LOOKED_AT]
    by_seq = {entry.seq: entry for entry in ranked}
    live = _Neighbourhood(snapshot, pool, scope, excluded)
    seqs = [entry.seq for entry in pool]
    uses = dict(zip(seqs, snapshot.uses(seqs, signal).tolist(), strict=True)) if signal else {}
    near = FAR * max((entry.score for entry in pool), default=0.0)
    chosen: list[Sequence[Passage]] = []
    used: set[int] = set()
    samples: set[str] = set()
    repeats = Repeats(shape.duplicate)
    for entry in pool:
        passage = live.get(entry.seq)
        if passage is None or entry.seq in used:
            continue
        sample = _sample_of(snapshot, passage)
        if sample in samples or (len(chosen) >= ENOUGH and _is_far(entry, passage, near, uses)):
            continue
        group: Sequence[Passage] = [passage]
        named = signal is None or entry.score > WORDS_ALONE or _is_drafted(snapshot, passage)
        if named and (section := _whole_section(snapshot, passage, scope)):
            group = section
        elif len(chosen) >= shape.singles:
            live.read_beside([entry])
            group = _grow(passage, live, by_seq, used, shape)
        if not any(p.seq in by_seq for p in group) or used & {p.seq for p in group}:
            group = [passage]
        if excluded & {p.id for p in group} or not repeats.is_new(section_text(group)):
            continue
        used.update(p.seq for p in group)
        if sample:
            samples.add(sample)
        chosen.append(_from_a_start(group, live, used))
        if len(chosen) >= count:
            break
    return [mark(excerpt_of(group, by_seq), group[0].section_id) for group in chosen]


def _from_a_start(
    group: Sequence[Passage], live: _Neighbourhood, used: set[int]
) -> Sequence[Passage]:
    """The passages from the beginning of a sentence or block on: with the end of the passages
    before them that holds the beginning of their sentence, or with the code that they continue,
    unless that is in `used`."""
    begun = list(group)
    while (before := _continued_by(begun[0], live)) is not None:
        if group[0].seq - before.seq > _REACH or (before.kind == "code" and before.seq in used):
            break
        if before.kind == "code":
            used.add(before.seq)
            begun.insert(0, before)
            continue
        last = max((match.end() for match in _SENTENCE.finditer(before.text)), default=0)
        begun.insert(0, before._replace(text=before.text[last:]))
        if last:
            break
    return begun


def _begun(
    group: list[Passage], chosen: Sequence[list[Passage]], live: _Neighbourhood, used: set[int]
) -> list[Passage] | None:
    """The passages of an excerpt from the beginning of their sentence on; None if an earlier
    excerpt ends with that beginning, which then takes on the passages."""
    if not group[0].text[:1].islower():  # it rarely continues a sentence
        return group
    begun = [*_from_a_start(group, live, used)]
    earlier = next((g for g in chosen if g[-1].seq == group[0].seq - 1), None)
    if earlier is not None and len(begun) > len(group):
        earlier += group
        return None
    return group if used & {p.seq for p in begun} else begun


def _continued_by(passage: Passage, live: _Neighbourhood) -> Passage | None:
    """The passage whose sentence or code this one continues."""
    before = live.get(passage.seq - 1)
    if before is None or before.section_id != passage.section_id:
        return None
    return None if starts_afresh(before, passage) else before


def _is_far(entry: Ranked, passage: Passage, near: float, uses: Mapping[int, float]) -> bool:
    """Whether a passage has a low score and, if it is about the chip, hardly any use."""
    use = 0.0 if ANY in passage.hardware else uses.get(entry.seq, 0.0)
    return entry.score < near and use < USEFUL


def _whole_section(snapshot: Snapshot, hit: Passage, scope: ScopeFilter) -> Sequence[Passage]:
    """The passages of the section of a hit; none if it takes more than LARGEST tokens and no model
    drafted it. Cached, because a chip's sections occur in answers to many signals."""
    section = snapshot.sections([hit.section_id], scope).get(hit.section_id)
    if section is None:
        return ()
    passages = section.passages
    key = (scope.access_scope, *(passage.id for passage in passages))
    whole = snapshot.keep("whole", key, lambda: fits(section_text(passages), LARGEST))
    return passages if whole or _is_drafted(snapshot, hit) else ()


def _is_drafted(snapshot: Snapshot, passage: Passage) -> bool:
    """Whether a model drafted the section, which is short and quoted as a whole."""
    return is_drafted(snapshot.documents[passage.document_id].source_key)
