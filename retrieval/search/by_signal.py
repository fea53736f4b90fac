"""The order of sections for a bare signal, where nothing but its name is known.

Words alone do not tell a section about memory bandwidth from one about the bandwidth of shared
memory: both speak of moving bytes. What does is how the section presents itself: its heading names
the signal or a topic of it, its text calls the signal by its id, a move for the signal rests on it.

    score = square root of (words + nearness x sum of the weights of what speaks for the section)

where `words` is its best passage's score over the best of all, less where its title is about
something near the signal. The root keeps the order, and keeps sections that only words speak for
within reach of those that a heading speaks for: a context leaves out what is far below its best.
A section about no chip whose heading holds a topic of another signal is worth less as a whole,
unless a move for this one rests on it. So is a section of a guide to an operator that was not asked
for, and a rule where a kernel is right and slow.

A reader is shown some sections only where there is hardly anything else: those titled for another
signal by its name, and text about no chip that speaks of other machines (warps, for who programs a
CPU) or hardly of the signal.

Whoever asks reads sections, so each section stands once, by its best passage; the other passages
follow after all of these.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

from kb.problem_terms import canonical_op, op_family, problem_terms
from retrieval.diagnose.signals import BROKEN, Signal
from retrieval.search.language_words import foreign_words, is_alone, is_common, is_foreign_heading
from retrieval.search.ranking import Ranked
from retrieval.search.titles import BY_ID, Heading, Titles, calls, holds, words_of
from retrieval.snapshot.snapshot import Mark, Snapshot

# Different ones in a section, from which on it is about other machines: for a GPU, a CPU or a chip
# with a language of its own, and for one of another kind, about which there is more to show.
FOREIGN_WORDS, FOREIGN_ELSEWHERE = 2, 1
POOL = 300  # passages of the ranking whose sections are weighed
REMEMBERED = 20_000  # titles of documents
# Affinity from which on a heading names a signal; see also `titles`.
NAMED = 0.6
LEAST_GENERAL = 0.45  # of the best score, below which text about no chip is far behind
LEAST_OWN = 0.5  # of the best score, below which a section of the chip only mentions the signal
AHEAD = 1.001  # on the score of what it is put before
LONG_ALIAS = 8  # letters; shorter ones ("sum", "max", "copy") are words of any title
# Families whose operators always have numbers among their arguments, so that they are seen.
OWN_ALGORITHMS = frozenset({"attention", "conv", "pooling", "scan"})
FOLLOWING = 0.1  # share of a passage's score that one behind its section's first keeps


@dataclass(frozen=True)
class SectionWeights:
    """What speaks for a section, and how much, then what is left of its score.

    `heading` is for one that holds the words of the signal's id; one that holds a topic or words of
    the title counts for a share of it, and `afterwards` is what is left of that where it is about
    confirming the signal or checking the remedy. `named`, `tagged` and `moved` are for a text that
    calls the signal by its id, a tag and a move. `family` is the nearness of text about the chip's
    family or vendor, `general` that of text about no chip; the chip's own is 1.

    Factors: `aside` on the words of a section that is titled for something near the signal,
    `another` where its heading holds a topic of another signal, `operator` in a guide to an
    operator that was not asked for, `rule` on rules where a kernel is slow, `alone` on text about
    no chip for one that has a language of its own, `far` on what a reader is shown only where there
    is hardly anything else.
    """

    heading: float = 1.5
    afterwards: float = 0.4
    named: float = 0.35
    tagged: float = 0.15
    moved: float = 0.7
    family: float = 0.75
    general: float = 0.6
    aside: float = 0.6
    another: float = 0.7
    operator: float = 0.6
    rule: float = 0.7
    alone: float = 0.8
    far: float = 0.05

    def titled(self, named: float, general: bool) -> float:
        """What is left where the heading names another signal so clearly, 0 to 1. In a chip's own
        manual a topic alone ("Memory") says little.
        """
        if named >= BY_ID:
            return self.far
        return self.another if general and named >= NAMED else 1.0


WEIGHTS = SectionWeights()


def by_sections(
    snapshot: Snapshot,
    ranked: Sequence[Ranked],
    signal: Signal,
    titles: Titles,
    move_ids: Collection[str],
    lineage: Sequence[str],
    languages: tuple[str, ...] = (),
    op: str | None = None,
    weights: SectionWeights = WEIGHTS,
) -> list[Ranked]:
    """The ranked passages in the order of their sections. `move_ids` are the moves that fit the
    verdict, `lineage` the chip with its families, nearest first, `languages` those of its kernels.
    `titles` are those of all signals, which a section may be titled for instead, `op` is the
    operator.
    """
    alone, chips = is_alone(languages), frozenset(lineage)
    pool, rest = ranked[:POOL], ranked[POOL:]
    best = max((entry.score for entry in pool), default=0.0) or 1.0
    by_seq = {entry.seq: entry for entry in pool}
    marks = snapshot.marks(by_seq, signal.id, move_ids)
    sections: dict[str, list[Mark]] = {}
    for mark in marks:
        sections.setdefault(mark.section_id, []).append(mark)
    leads: list[Ranked] = []
    places: dict[int, bool] = {}  # whether a section is about no chip
    spoken: set[int] = set()  # sections of the chip itself whose text calls the signal by name
    behind: list[Ranked] = []
    for members in sections.values():
        entries = sorted((by_seq[m.seq] for m in members), key=lambda e: (-e.score, e.seq))
        title = members[0].path[-1] if members[0].path else ""
        heading = titles.of(title)
        speaks = _speaks(members, heading, signal, weights)
        aside = weights.aside if signal.id in heading.aside else 1.0
        words = entries[0].score / best * aside
        near = _nearness(members[0], lineage, chips, weights)
        if near == 1.0 and _calls_it(members, title, signal.id, op):
            spoken.add(entries[0].seq)
        general = near == weights.general
        score = math.sqrt(max(0.0, words + near * speaks))
        if not any(m.moved for m in members):
            score *= weights.titled(titles.of_another(title, signal.id), general)
            if general and _is_guide_to_other(members[0].path, op):
                score *= weights.operator
        if entries[0].category == "constraint" and signal.group not in BROKEN:
            score *= weights.rule
        if general and alone:
            score *= weights.alone
        if general and speaks_of_other_machines(members, languages):
            score *= weights.far
        places[entries[0].seq] = general
        leads.append(_scored(entries[0], score))
        behind += [_scored(e, FOLLOWING * e.score / best) for e in entries[1:]]
    tail = [_scored(entry, 0.0) for entry in rest]
    leads = _own_first(leads, places, spoken)
    leads = _far_behind(leads, places, weights)
    leads.sort(key=lambda e: (-e.score, e.seq))
    behind.sort(key=lambda e: (-e.score, e.seq))
    return [*leads, *behind, *tail]


def _far_behind(
    leads: Sequence[Ranked], places: Mapping[int, bool], weights: SectionWeights
) -> list[Ranked]:
    """The sections, text about no chip that is far below the best of them further down."""
    least = LEAST_GENERAL * max((entry.score for entry in leads), default=0.0)
    return [
        _scored(e, e.score * weights.far) if places[e.seq] and e.score < least else e for e in leads
    ]


def _own_first(
    leads: Sequence[Ranked], places: Mapping[int, bool], spoken: Collection[int]
) -> list[Ranked]:
    """The sections, the best of the chip's own that calls the signal by name before text about no
    chip: that says what the signal means, this what to do about it here. Nothing changes where a
    section of the chip or its family is ahead of it.
    """
    best = max(leads, key=lambda e: (e.score, -e.seq), default=None)
    own = max((e for e in leads if e.seq in spoken), key=lambda e: e.score, default=None)
    if best is None or own is None or not places[best.seq] or own.score < LEAST_OWN * best.score:
        return list(leads)
    lifted = _scored(own, best.score * AHEAD)
    return [lifted if entry is own else entry for entry in leads]


def _scored(entry: Ranked, score: float) -> Ranked:
    """The entry with another score; in a third of the time of `_replace`."""
    return Ranked(entry.seq, score, entry.lexical, entry.dense, entry.category)


def speaks_of_other_machines(members: Sequence[Mark], languages: tuple[str, ...]) -> bool:
    """Whether a section that is about no chip speaks of machines with other languages."""
    heading = members[0].path[-1] if members[0].path else ""
    if is_foreign_heading(heading, languages):
        return True
    texts = [heading, *(member.text for member in members)]
    rare = not is_common(languages) and not is_alone(languages)
    enough = FOREIGN_ELSEWHERE if rare else FOREIGN_WORDS
    return foreign_words(texts, languages) >= enough


def _calls_it(members: Sequence[Mark], title: str, signal: str, op: str | None) -> bool:
    """Whether a section's text calls the signal by name, and it is not titled for an operator that
    was not asked for ("Attention: exponentials cost half").
    """
    return not _is_guide_to_other((title,), op) and any(calls(m.text, signal) for m in members)


def _is_guide_to_other(path: Sequence[str], op: str | None) -> bool:
    """Whether a text is titled for operators, and the one asked for is none of their family."""
    families = _families_in(path[0]) if path else frozenset()
    return bool(families) and (op is None or op_family(op) not in families)


def is_guide_to_absent(title: str, op: str | None, operators: Sequence[str]) -> bool:
    """Whether a text is titled for operators with algorithms of their own that a reference, which
    runs these `operators` by torch's names, has none of. Softmax may be that of an attention.
    """
    families = _families_in(title)
    if not operators or not families or not families <= OWN_ALGORITHMS:
        return False
    names = [name.strip("_") for name in operators]
    present = {op_family(canonical_op(name)) for name in (*names, *filter(None, (op,)))}
    if "softmax" in present or any("attention" in name for name in names):
        present.add("attention")
    return families.isdisjoint(present)


@lru_cache(maxsize=REMEMBERED)
def _families_in(title: str) -> frozenset[str]:
    """The families of the operators that a title names."""
    present, terms = words_of(title), problem_terms()
    names = dict(terms.ops)
    names |= {family: family for family in terms.ops.values()}
    long = (alias for alias in terms.op_aliases if len(alias) >= LONG_ALIAS)
    names |= {alias: terms.ops[terms.op_aliases[alias]] for alias in long}
    return frozenset(f for name, f in names.items() if holds(present, name.replace("_", " ")))


def _speaks(
    members: Sequence[Mark], heading: Heading, signal: Signal, weights: SectionWeights
) -> float:
    """What the section's heading, text, tags and moves say for it."""
    named, tagged, moved = 0.0, 0.0, 0.0
    for member in members:
        named = weights.named if member.named else named
        tagged = weights.tagged if member.tagged else tagged
        moved = weights.moved if member.moved else moved
    affinity = heading.affinity.get(signal.id, 0.0)
    if not affinity:
        return named + tagged + moved
    later = any(holds(heading.words, words) for words in signal.afterwards)
    return (
        weights.heading * (weights.afterwards if later else 1.0) * affinity + named + tagged + moved
    )


def _nearness(
    mark: Mark, lineage: Sequence[str], chips: AbstractSet[str], weights: SectionWeights
) -> float:
    """`chips` are those of the lineage."""
    if lineage and lineage[0] in mark.hardware:
        return 1.0
    return weights.general if chips.isdisjoint(mark.hardware) else weights.family
