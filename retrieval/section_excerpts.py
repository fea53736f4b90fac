"""Whole sections as excerpts, for a reader who has given no words to look for.

Each section once, in the order of the ranking, from its beginning; of a long one the part around
its best passage. Text is the document's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection

from kb.catalog.kept import look_up
from kb.catalog.knowledge import passages as store
from kb.catalog.knowledge.passages import Passage
from kb.catalog.knowledge.section_texts import WholeSection, section_text, whole_sections
from kb.scope import ScopeFilter
from retrieval.answer import Excerpt
from retrieval.blocks import part_around
from retrieval.excerpts import excerpt_of, without
from retrieval.ranking import Ranked
from retrieval.repeats import Repeats
from retrieval.stages import stage

# Tokens of an excerpt: every section of the built-in manuals is whole, with its table. Other
# manuals have sections of several pages, of which a reader pays for every line.
LARGEST = 360
ENOUGH = 2  # excerpts, from which on none is added from far behind
FAR = 0.6  # of the best score; chosen by reading what stood below it in 60 answers
MOST_PARTS = 20_000  # of sections that are kept, of 0.2 KB: their passages are kept anyway
LOOKED_AT = 8  # passages looked at for each excerpt that is wanted


@stage("excerpts")
def section_excerpts(
    connection: Connection,
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
    hits = without(store.load(connection, [entry.seq for entry in pool], scope), excluded)
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
        sections = whole_sections(connection, [section for section, _ in wanted], scope)
        for section_id, hit in wanted:
            if len(chosen) >= ENOUGH and by_seq[hit.seq].score < near:
                continue
            section = sections.get(section_id)
            group = _part(connection, section, hit, scope) if section is not None else [hit]
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
    connection: Connection, section: WholeSection, hit: Passage, scope: ScopeFilter
) -> Sequence[Passage]:
    """The part of a section around a hit. Sections of a chip stand in answers to many signals, so
    it is kept.
    """

    def read(keys: Sequence[object]) -> dict[object, Sequence[Passage]]:
        return dict.fromkeys(keys, tuple(part_around(section.passages, hit, LARGEST)))

    key: object = (hit.id, scope.access_scope, *(passage.id for passage in section.passages))
    return look_up(connection, "parts of sections", [key], read, most=MOST_PARTS, skills=False)[key]
