"""Blocks: the pieces from which a context is packed, each complete, cited and fenced.

A block of text is a section or a part of one: code and tables are not cut, it does not start in
mid-sentence, and several sections of one parent are replaced by the parent. Text of documents is
data: each block has its own fence, which the text cannot close.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from kb.catalog.knowledge.passages import Passage
from kb.catalog.knowledge.section_texts import WholeSection, section_text
from kb.prompt_tokens import count_tokens, fits
from kb.scope import ANY, ScopeFilter
from kb.tokens import below_title
from retrieval.search.ranking import Ranked
from retrieval.snapshot.snapshot import Snapshot

HITS = 60  # passages of a ranking from which sections are made
PORTION = 6  # sections read at a time: a context has room for few of the candidates
CUTOFF = 0.45  # of the best weighted score, below which a section about the chip is left out
LEAST_PREFERENCE = 0.15  # lowest weight of a document
FENCE, HEADING = 50, 10  # approximate tokens of a block's citation and a section's heading
LONG_FENCE = 250  # tokens that no fence exceeds
SLACK = 4  # difference in tokens between the fences of two parts of a section
SIBLINGS = 2  # matched sections of one parent that are replaced by it, if it is short enough
_FENCE = re.compile(r"<[\s/]*excerpt", re.IGNORECASE)
# Line breaks of Python and of Unicode, and characters that a reader does not see.
_LINE_BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
_HIDDEN = re.compile(r"[\x00-\x08\x0e-\x1b\x7f\u200b\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
_SENTENCE_ENDS = (".", "!", "?", ":", ";", '"', ")", "`")

Admits = Callable[[WholeSection], bool]


@dataclass(frozen=True)
class Block:
    """A piece of a context. `text` is the text in the prompt; `passages` and `sections` are the ids
    of its passages and sections, `languages` those of the code in it."""

    kind: str
    id: str
    text: str
    tokens: int
    citation: str = ""
    passages: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    languages: frozenset[str] = frozenset()


def citation(passage: Passage) -> str:
    """Title, version, innermost headings and the printed page, as a reader would cite it, with the
    confidence of OCR if it read the text."""
    where = " > ".join(below_title(passage.path[-2:], passage.document_title))
    label = passage.page_label or (
        str(passage.page_index + 1) if passage.page_index is not None else ""
    )
    page = f", p. {label}" if label else ""
    read = [c for box in passage.boxes if (c := box.get("confidence")) is not None]
    page += f", read by OCR with confidence {min(read):.2f}" if read else ""
    section = f", {where}" if where else ""
    return f"{passage.document_title} (v{passage.version}){section}{page}"


def fenced(kind: str, identity: str, source: str, about: Sequence[str], text: str) -> Block:
    """A text of a document as a block of data."""
    quoted = data(" ".join(source.split())).replace('"', "'")
    scope = ",".join(h for h in about if h != ANY) or "any"
    head = f'<excerpt id="{identity}" source="{quoted}" about="{scope}">'
    whole = f"{head}\n{data(text)}\n</excerpt>"
    return Block(kind, identity, whole, count_tokens(whole), source)


def data(text: str) -> str:
    """The text without sequences that could open or close an excerpt."""
    return _FENCE.sub(lambda match: match[0].replace("<", "&lt;"), text)


def one_line(text: object) -> str:
    """A text that a writer chose, for a line that this program makes: it can neither begin a line
    nor open or close an excerpt. Other texts are unchanged."""
    return data(_LINE_BREAKS.sub(" ", _HIDDEN.sub("", str(text))).strip())


def plain(kind: str, identity: str, text: str) -> Block:
    """Generated lines, without a fence."""
    return Block(kind, identity, text, count_tokens(text))


# -- sections


@dataclass
class Room:
    """The tokens that are left for the blocks of a part, which falls while they are read."""

    tokens: int


def section_blocks(
    snapshot: Snapshot,
    ranked: Sequence[Ranked],
    scope: ScopeFilter,
    kind: str,
    *,
    own: frozenset[str],
    largest: int,
    excluded: frozenset[str] = frozenset(),
    prefer: Mapping[str, float] | None = None,
    most: int = HITS,
    floor: float = 0.0,
    near: float = 0.0,
    merge: bool = True,
    admits: Admits | None = None,
    room: Room | None = None,
    offered: int = HITS,
) -> Iterator[Block]:
    """The sections of the best passages as at most `most` blocks of at most `largest` tokens, best
    first; those about the chips `own` with at least `near` of the best score precede the others.

    Sections and passages with an id in `excluded` are left out, and so are passages with a score
    below `floor`. `prefer` weights documents by id, from 0 to 1; without it all are equal. With
    `merge`, several sections of one parent are replaced by the parent, if it is short enough.
    Sections that `admits` refuses are left out, also from a parent, but count among the `most`:
    lower ranked sections do not replace them. Sections are read on demand. At most `offered` blocks
    are yielded; with `room`, those that exceed the rest of it are counted and not
    built.
    """
    if largest <= 0:
        return
    best = _best_of_sections(snapshot, ranked, scope, excluded, prefer, floor, own, near)
    shared = _shared_parents(snapshot, best) if merge else frozenset()
    given: set[str] = set()
    refused = 0
    ordered = list(best.values())
    for passage, section, family in _read_sections(snapshot, ordered, scope, shared, largest):
        if family[0].id in given:
            continue
        group = _admitted(section, family, admits, excluded)
        refused += not group
        if room is not None and _exceeds(room.tokens, group, largest):
            block, ids = None, {i for s in group for i in (s.id, *(p.id for p in s.passages))}
        else:
            block = section_block(snapshot, scope, kind, group, passage, largest) if group else None
            ids = {*block.sections, *block.passages} if block is not None else set()
        if ids and not excluded & ids:
            given.add(family[0].id)
            if block is not None:
                yield block
        if len(given) + refused >= most or len(given) >= offered:
            return


def _read_sections(
    snapshot: Snapshot,
    ordered: Sequence[Passage],
    scope: ScopeFilter,
    shared: frozenset[str],
    largest: int,
) -> Iterator[tuple[Passage, WholeSection, Sequence[WholeSection]]]:
    """Each passage with its section and the sections that are shown with it, read in portions."""
    for start in range(0, len(ordered), PORTION):
        portion = ordered[start : start + PORTION]
        sections = snapshot.sections([p.section_id for p in portion], scope)
        near = {i for s in sections.values() for i in (s.id, s.parent_id) if i in shared}
        families = _families(snapshot, near, scope) if near else {}
        for passage in portion:
            section = sections.get(passage.section_id)
            if section is not None:
                yield passage, section, _family_of(snapshot, section, families, scope, largest)


def _exceeds(room: int, group: Sequence[WholeSection], largest: int) -> bool:
    """Whether the block of these sections takes more than `room` tokens; False if unsure."""
    if sum(section.tokens for section in group) <= room:
        return False
    return len(group) > 1 or group[0].tokens <= largest - LONG_FENCE


def _admitted(
    section: WholeSection,
    family: Sequence[WholeSection],
    admits: Admits | None,
    excluded: frozenset[str],
) -> tuple[WholeSection, ...]:
    """The admitted sections of a family; none if the section itself is refused."""
    fresh = [
        member
        for member in family
        if member.id == section.id or not excluded & {member.id, *(p.id for p in member.passages)}
    ]
    if admits is None:
        return tuple(fresh)
    return tuple(filter(admits, fresh)) if admits(section) else ()


def _best_of_sections(
    snapshot: Snapshot,
    ranked: Sequence[Ranked],
    scope: ScopeFilter,
    excluded: frozenset[str],
    prefer: Mapping[str, float] | None,
    floor: float,
    own: frozenset[str],
    near: float,
) -> dict[str, Passage]:
    """The best passage of each candidate section, by section: those about the chips `own` with at
    least `near` of the best score, then the others, best first."""
    hits = snapshot.load([r.seq for r in ranked[:HITS]], scope)
    best: dict[str, Passage] = {}
    first: set[str] = set()
    offered = [r for r in ranked[:HITS] if r.score >= floor]
    weighed = sorted(((_score(r, hits, prefer), r) for r in offered), key=lambda w: -w[0])
    for score, entry in weighed:
        passage = hits.get(entry.seq)
        if prefer and score < CUTOFF * weighed[0][0]:
            break
        if passage is not None and not {passage.id, passage.section_id} & excluded:
            best.setdefault(passage.section_id, passage)
            if own & set(passage.hardware) and score >= near * weighed[0][0]:
                first.add(passage.section_id)
    return dict(sorted(best.items(), key=lambda entry: entry[0] not in first))  # stable


def _score(entry: Ranked, hits: Mapping[int, Passage], prefer: Mapping[str, float] | None) -> float:
    passage = hits.get(entry.seq)
    if passage is None:
        return 0.0
    if not prefer:
        return entry.score
    return entry.score * (LEAST_PREFERENCE + prefer.get(passage.document_id, 0.0))


def _shared_parents(snapshot: Snapshot, section_ids: Collection[str]) -> frozenset[str]:
    """Ids of the sections that are the parents of several of these."""
    parents = Counter(snapshot.parents(section_ids).values())
    return frozenset(i for i, count in parents.items() if i is not None and count >= SIBLINGS)


def _family_of(
    snapshot: Snapshot,
    section: WholeSection,
    families: Mapping[str, _Family],
    scope: ScopeFilter,
    largest: int,
) -> Sequence[WholeSection]:
    """The section itself, or a parent with its children if that is short enough; the outer parent
    is preferred."""
    for parent in (section.parent_id, section.id):
        family = families.get(parent or "")
        if family is not None and family.tokens <= largest - FENCE:
            texts = snapshot.sections(family.sections, scope)
            return tuple(texts[i] for i in family.sections)
    return (section,)


class _Family(NamedTuple):
    """A section and its children that are in a scope, by id, with their tokens together."""

    sections: tuple[str, ...]
    tokens: int


def _families(
    snapshot: Snapshot, parents: Collection[str], scope: ScopeFilter
) -> dict[str, _Family]:
    """The family of each of these sections, cached because many contexts share them."""

    def read(parent: str) -> _Family:
        every = (parent, *snapshot.below([parent]).get(parent, []))
        tokens = snapshot.section_tokens(every, scope)
        return _Family(
            tuple(i for i in every if i in tokens), sum(tokens.values()) + HEADING * len(tokens)
        )

    return {
        parent: snapshot.keep("families", (parent, scope.key), partial(read, parent))
        for parent in sorted(parents)
    }


def section_block(
    snapshot: Snapshot,
    scope: ScopeFilter,
    kind: str,
    group: Sequence[WholeSection],
    hit: Passage,
    largest: int,
) -> Block | None:
    """The sections as a block, cached for all chips; if it is too long, the part around the hit.
    None if not even the hit fits."""
    about = (kind, scope.access_scope, *(p.id for section in group for p in section.passages))
    whole = snapshot.keep("blocks", about, lambda: _whole_block(kind, group))
    if len(group) > 1 or whole.tokens <= largest:
        return whole
    key = (*about, hit.id, largest)
    return snapshot.keep("blocks", key, lambda: _part_block(kind, group[0], whole, hit, largest))


def _whole_block(kind: str, group: Sequence[WholeSection]) -> Block:
    if len(group) == 1:
        return _block(kind, group[0].passages, group[0].text, [group[0].id])
    parts = [f"{'#' * min(s.level, 6)} {s.path[-1]}\n{s.text}" for s in group]
    passages = [p for s in group for p in s.passages]
    return _block(kind, passages, "\n\n".join(parts), [s.id for s in group])


def _part_block(
    kind: str, section: WholeSection, whole: Block, hit: Passage, largest: int
) -> Block | None:
    fence = whole.tokens - section.tokens
    part = part_around(section.passages, hit, largest - fence - SLACK)
    if not part:
        return None
    block = _block(kind, part, section_text(part), [section.id])
    return block if block.tokens <= largest else None


def _block(kind: str, passages: Sequence[Passage], text: str, sections: Sequence[str]) -> Block:
    first = passages[0]
    block = fenced(kind, first.id, citation(first), first.hardware, text)
    ids = tuple(p.id for p in passages)
    languages = frozenset(p.language for p in passages if p.language)
    return replace(block, passages=ids, sections=tuple(sections), languages=languages)


def part_around(passages: Sequence[Passage], hit: Passage, largest: int) -> list[Passage]:
    """Passages around the hit that together take at most `largest` tokens, starting at the
    beginning of a sentence; code and tables are complete if they fit."""
    places = [n for n, p in enumerate(passages) if p.id == hit.id]
    if not places:
        return []
    if fits(section_text(passages), largest - SLACK):
        return list(passages)  # shortcut for most sections: the loop would have the same result
    return _grown(passages, places[0], largest)


def _grown(passages: Sequence[Passage], place: int, largest: int) -> list[Passage]:
    """`part_around` for a section that is too long: extend the hit by one passage at a time."""
    first = last = place

    def fitting(low: int, high: int) -> bool:
        return fits(section_text(passages[low : high + 1]), largest)

    if not fitting(first, last):
        return []
    while last + 1 < len(passages) and _one_piece(passages, last + 1) and fitting(first, last + 1):
        last += 1
    while first > 0 and not _starts_clean(passages, first) and fitting(first - 1, last):
        first -= 1
    grew = True
    while grew:
        grew = False
        if last + 1 < len(passages) and fitting(first, last + 1):
            last, grew = last + 1, True
        if first > 0 and fitting(first - 1, last):
            first, grew = first - 1, True
    # If the part starts within a sentence, drop passages up to the next sentence.
    while first <= last and not _starts_clean(passages, first):
        first += 1
    return list(passages[first : last + 1])


def _one_piece(passages: Sequence[Passage], place: int) -> bool:
    """Whether this passage continues the code or table before it."""
    before, passage = passages[place - 1], passages[place]
    return passage.kind == before.kind and passage.kind in ("code", "table")


def _starts_clean(passages: Sequence[Passage], place: int) -> bool:
    if place == 0:
        return True
    return not _one_piece(passages, place) and starts_afresh(passages[place - 1], passages[place])


def starts_afresh(before: Passage, passage: Passage) -> bool:
    """Whether a passage starts with a sentence, block or row instead of continuing the sentence or
    code of the passage before it."""
    if before.kind != passage.kind or passage.kind == "table":
        return True
    if passage.kind == "code":
        return False
    # A passage may be cut after a semicolon; the next one then starts with a small letter.
    return before.text.rstrip().endswith(_SENTENCE_ENDS) and not passage.text[:1].islower()
