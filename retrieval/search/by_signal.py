"""The order of sections for a bare signal: a request with the name of a signal and no details.

Words alone do not distinguish a section about memory bandwidth from one about the bandwidth of
shared memory: both describe moving bytes. The structure does: the heading names the signal or a
topic of it, the text contains the signal's id, a move for the signal is taken from the section.

    score = square root of (words + use + read + nearness x sum of the weights of this evidence)

where `words` is the score of the section's best passage over the best of all, `use` that of
`snapshot.uses` and `read` what a model that has read the section said of it. Words and use are
lowered if its title is about something related; naming the caller's metrics adds to them. The root
preserves the order and reduces the distance between sections with and without such evidence: a
context leaves out sections far below its best. The score is lowered as a whole for a section about
no chip whose heading has a topic of another signal, unless a move for this one is taken from it;
for a guide to another operator than the request's; and for a rule about correctness if the kernel
is only slow.

Some sections are used only if there is hardly anything else: those titled with the name of another
signal, and text about no chip that is about other machines (such as warps for a CPU programmer) or
hardly about the signal.

If the chip's own manuals treat the signal, by use or by the word of a model that has read them,
text about no chip follows. The evidence counts for the best passage of a section; the others have
their words and use, so that a manual with long sections is quoted in several places.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

from kb.problem_terms import canonical_op, op_family, problem_terms
from kb.tokens import tokenize
from retrieval.diagnose.signals import BROKEN, Signal
from retrieval.search.by_names import states_bytes
from retrieval.search.language_words import foreign_words, is_alone, is_common, is_foreign_heading
from retrieval.search.ranking import Ranked
from retrieval.search.titles import (
    BY_ID,
    Heading,
    Titles,
    contains_phrase,
    contains_signal,
    words_of,
)
from retrieval.snapshot.ontology import load_ontology
from retrieval.snapshot.snapshot import Mark, Snapshot
from retrieval.snapshot.uses import TREATED

# Number of different words about other machines from which on a section counts as theirs: for a
# GPU, a CPU or a chip with its own language; and for other chips, which have more documents to
# choose from.
FOREIGN_WORDS, FOREIGN_ELSEWHERE = 2, 1
POOL = 300  # ranked passages whose sections are scored
REMEMBERED = 20_000  # cached titles of documents
# Affinity from which on a heading names a signal; see also `titles`.
NAMED = 0.6
LEAST_GENERAL = 0.45  # of the best score, below which text about no chip is moved down
LEAST_OWN = 0.5  # of the best score, below which a section of the chip only mentions the signal
AHEAD = 1.001  # factor on the score of the section that it is placed before
# The memory whose size is the limit behind a signal.
SIZES = {"shared_memory_limit": "on_chip_memory"}
BESIDE = 0.5  # share for a passage next to one with the name of a metric
_WORD = re.compile(r"[a-z0-9]+")
LONG_ALIAS = 8  # letters; shorter ones ("sum", "max", "copy") are ordinary words in titles
# Families whose operators are recognised by their arguments, which always include numbers.
OWN_ALGORITHMS = frozenset({"attention", "conv", "pooling", "scan"})


@dataclass(frozen=True)
class SectionWeights:
    """Weights of the evidence for a section, and factors on its score.

    `heading` is for a heading with the words of the signal's id; a heading with a topic or words of
    the title gets a share of it, in text about a chip `topic` at least and more with the section's
    use. Of this `afterwards` remains if it is about confirming the signal or checking the remedy.
    `named`, `tagged` and `moved` are for a text with the signal's id, a tag and a move, `stated`
    for a passage about the chip itself with the size of a memory that is the limit behind the
    signal, `use` for a passage that helps with the signal, `read` for one that a model called an
    answer, `measured` for one about the caller's metrics. `family` is the nearness of text about
    the chip's family or vendor, `general` that of text about no chip; the chip's own is 1.

    Factors: `not_read` on the use in a section in which a model saw no answer, `aside` on the words
    of a section titled for something related to the signal, `another` if its heading has a topic of
    another signal, `operator` in a guide to another operator, `rule` on rules for a slow kernel,
    `alone` on text about no chip for a chip with its own language, `far` on sections used only if
    there is hardly anything else; `playbook` on the place of text about no chip if the chip's
    manuals treat the signal.
    """

    heading: float = 1.5
    topic: float = 0.2
    use: float = 0.7
    read: float = 2.0
    not_read: float = 0.4
    afterwards: float = 0.4
    named: float = 0.35
    tagged: float = 0.15
    moved: float = 0.7
    stated: float = 0.8
    measured: float = 1.0
    family: float = 0.75
    general: float = 0.6
    aside: float = 0.6
    another: float = 0.7
    operator: float = 0.6
    rule: float = 0.7
    alone: float = 0.8
    far: float = 0.05
    playbook: float = 0.5

    def titled(self, named: float, general: bool) -> float:
        """The factor for a heading that names another signal this clearly, 0 to 1. In a chip's own
        manual a topic alone ("Memory") is weak evidence."""
        if named >= BY_ID:
            return self.far
        return self.another if general and named >= NAMED else 1.0


WEIGHTS = SectionWeights()
# The score that words and use alone hardly exceed: above it, a section's heading, text or a move
# names the signal.
WORDS_ALONE = 1.25


def by_sections(
    snapshot: Snapshot,
    ranked: Sequence[Ranked],
    signal: Signal,
    titles: Titles,
    move_ids: Collection[str],
    lineage: Sequence[str],
    languages: tuple[str, ...] = (),
    op: str | None = None,
    metrics: Collection[str] = (),
) -> list[Ranked]:
    """The ranked passages in the order of their sections. `move_ids` are the moves for the
    diagnosis, `lineage` the chip with its families, nearest first, `languages` those of its
    kernels. `titles` are those of all signals, `op` is the operator, `metrics` are the names of the
    caller's measurements."""
    alone, chips = is_alone(languages), frozenset(lineage)
    pool, rest = ranked[:POOL], ranked[POOL:]
    best = max((entry.score for entry in pool), default=0.0) or 1.0
    by_seq = {entry.seq: entry for entry in pool}
    marks = snapshot.marks(by_seq, signal.id, move_ids)
    uses = dict(zip(by_seq, snapshot.uses(list(by_seq), signal.id).tolist(), strict=True))
    reads = dict(zip(by_seq, snapshot.reads(list(by_seq), signal.id).tolist(), strict=True))
    treated = any(
        (reads[m.seq] > 0 if reads[m.seq] >= 0 else uses[m.seq] >= TREATED)
        and not chips.isdisjoint(m.hardware)
        for m in marks
    )
    measured = _measured(marks, metrics)
    sections: dict[str, list[Mark]] = {}
    for mark in marks:
        sections.setdefault(mark.section_id, []).append(mark)
    leads: list[Ranked] = []
    places: dict[int, bool] = {}  # whether a section is about no chip
    naming: set[int] = set()  # sections of the chip itself whose text names the signal
    behind: list[Ranked] = []
    for members in sections.values():
        near = _nearness(members[0], lineage, chips)
        is_general = near == WEIGHTS.general
        own = [
            (
                by_seq[m.seq].score / best
                + WEIGHTS.use * uses[m.seq] * (WEIGHTS.not_read if reads[m.seq] == 0 else 1.0)
                + WEIGHTS.read * max(0.0, reads[m.seq])
                + WEIGHTS.measured * measured.get(m.seq, 0.0)
                + WEIGHTS.stated * (near == 1.0 and states_size(m.text, signal.id)),
                by_seq[m.seq],
            )
            for m in members
        ]
        own.sort(key=lambda pair: (-pair[0], pair[1].seq))
        entries = [entry for _, entry in own]
        title = members[0].path[-1] if members[0].path else ""
        heading = titles.of(title)
        # A heading of text about no chip was written for signals, so its topic is clear.
        use = 1.0 if is_general else max(uses[m.seq] for m in members)
        evidence = _evidence(members, heading, signal, use)
        aside = WEIGHTS.aside if signal.id in heading.aside else 1.0
        words = own[0][0] * aside
        if near == 1.0 and _names_signal(members, title, signal.id, op):
            naming.add(entries[0].seq)
        score, factor = math.sqrt(max(0.0, words + near * evidence)), 1.0
        if not any(m.moved for m in members):
            factor *= WEIGHTS.titled(titles.of_another(title, signal.id), is_general)
            if is_general and _is_guide_to_other(members[0].path, op):
                factor *= WEIGHTS.operator
        if entries[0].category == "constraint" and signal.group not in BROKEN:
            factor *= WEIGHTS.rule
        if is_general and alone:
            factor *= WEIGHTS.alone
        if is_general and speaks_of_other_machines(members, languages):
            factor *= WEIGHTS.far
        score *= factor
        places |= dict.fromkeys((entry.seq for entry in entries), is_general)
        leads.append(_scored(entries[0], score))
        behind += [_scored(e, factor * math.sqrt(max(0.0, w * aside))) for w, e in own[1:]]
    tail = [_scored(entry, 0.0) for entry in rest]
    leads = _own_first(leads, places, naming)
    leads = _far_behind(leads, places)

    def place(entry: Ranked) -> tuple[float, int]:
        follows = treated and places.get(entry.seq, False)
        return -entry.score * (WEIGHTS.playbook if follows else 1.0), entry.seq

    ordered = sorted([*leads, *behind], key=place)
    return [*ordered, *tail]


def states_size(text: str, signal: str) -> bool:
    """Whether a text states the size of the memory that is the limit behind the signal."""
    if signal not in SIZES:
        return False
    words, long, word = _names_of(SIZES[signal])
    return states_bytes(long.sub(word, text), words)


@lru_cache(maxsize=len(SIZES))
def _names_of(concept: str) -> tuple[frozenset[str], re.Pattern[str], str]:
    """The tokens of the concept's names of one word, a pattern of its longer names, and a word that
    may stand for them."""
    names = load_ontology().concepts[concept].names
    long = "|".join(re.escape(name) for name in names if " " in name)
    short = [name for name in names if " " not in name]
    tokens = frozenset(token for name in short for token in tokenize(name)[:1])
    return tokens, re.compile(rf"\b(?:{long})\b", re.IGNORECASE), short[0]


def _measured(marks: Sequence[Mark], metrics: Collection[str]) -> dict[int, float]:
    """How clearly passages are about the metrics, 0 to 1, without zeros. A name counts less if many
    passages have it, as "cycles"; a passage next to one with a name, which explains it, half."""
    texts = {mark.seq: _plain_words(mark.text) for mark in marks} if metrics else {}
    section_of = {mark.seq: mark.section_id for mark in marks}
    totals: dict[int, float] = {}
    for name in metrics:
        # The last part of a dotted name is the counter, the others are its unit.
        words = {_plain_words(name), _plain_words(name.rpartition(".")[2])}
        naming = {seq for seq, text in texts.items() if any(w in text for w in words)}
        for seq in naming:
            clear = 1 / math.sqrt(len(naming))
            totals[seq] = totals.get(seq, 0.0) + clear
            for near in {seq - 1, seq + 1} - naming:
                if section_of.get(near) == section_of[seq]:
                    totals[near] = totals.get(near, 0.0) + BESIDE * clear
    return {seq: min(1.0, total) for seq, total in totals.items()}


def _plain_words(text: str) -> str:
    """The words of a text in small letters, without punctuation, each between spaces."""
    return f" {' '.join(_WORD.findall(text.lower()))} "


def _far_behind(leads: Sequence[Ranked], places: Mapping[int, bool]) -> list[Ranked]:
    """The sections, with text about no chip that scores far below the best moved down."""
    least = LEAST_GENERAL * max((entry.score for entry in leads), default=0.0)
    return [
        _scored(e, e.score * WEIGHTS.far) if places[e.seq] and e.score < least else e for e in leads
    ]


def _own_first(
    leads: Sequence[Ranked], places: Mapping[int, bool], naming: Collection[int]
) -> list[Ranked]:
    """The sections, with the best of the chip's own that names the signal moved before text about
    no chip: the latter explains the signal, the former its remedy on this chip. Unchanged if a
    section of the chip or its family already precedes it."""
    best = max(leads, key=lambda e: (e.score, -e.seq), default=None)
    own = max((e for e in leads if e.seq in naming), key=lambda e: e.score, default=None)
    if best is None or own is None or not places[best.seq] or own.score < LEAST_OWN * best.score:
        return list(leads)
    lifted = _scored(own, best.score * AHEAD)
    return [lifted if entry is own else entry for entry in leads]


def _scored(entry: Ranked, score: float) -> Ranked:
    """The entry with another score; takes a third of the time of `_replace`."""
    return Ranked(entry.seq, score, entry.lexical, entry.dense, entry.category)


def speaks_of_other_machines(members: Sequence[Mark], languages: tuple[str, ...]) -> bool:
    """Whether a section about no chip uses words of machines with other languages."""
    heading = members[0].path[-1] if members[0].path else ""
    if is_foreign_heading(heading, languages):
        return True
    texts = [heading, *(member.text for member in members)]
    rare = not is_common(languages) and not is_alone(languages)
    enough = FOREIGN_ELSEWHERE if rare else FOREIGN_WORDS
    return foreign_words(texts, languages) >= enough


def _names_signal(members: Sequence[Mark], title: str, signal: str, op: str | None) -> bool:
    """Whether a section's text names the signal and its title is not for another operator
    ("Attention: exponentials cost half")."""
    return not _is_guide_to_other((title,), op) and any(
        contains_signal(m.text, signal) for m in members
    )


def _is_guide_to_other(path: Sequence[str], op: str | None) -> bool:
    """Whether the title names operators and none is of the family of `op`."""
    families = _families_in(path[0]) if path else frozenset()
    return bool(families) and (op is None or op_family(op) not in families)


def is_guide_to_absent(title: str, op: str | None, operators: Sequence[str]) -> bool:
    """Whether the title is for operators with special algorithms and a reference that runs these
    `operators` (by torch's names) has none of them. Softmax may be part of an attention."""
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
    present, terms = words_of(title), problem_terms()
    names = dict(terms.ops)
    names |= {family: family for family in terms.ops.values()}
    long = (alias for alias in terms.op_aliases if len(alias) >= LONG_ALIAS)
    names |= {alias: terms.ops[terms.op_aliases[alias]] for alias in long}
    return frozenset(
        f for name, f in names.items() if contains_phrase(present, name.replace("_", " "))
    )


def _evidence(members: Sequence[Mark], heading: Heading, signal: Signal, use: float) -> float:
    """The evidence in the section's heading, text, tags and moves."""
    named, tagged, moved = 0.0, 0.0, 0.0
    for member in members:
        named = WEIGHTS.named if member.named else named
        tagged = WEIGHTS.tagged if member.tagged else tagged
        moved = WEIGHTS.moved if member.moved else moved
    affinity = heading.affinity.get(signal.id, 0.0)
    if not affinity:
        return named + tagged + moved
    later = any(contains_phrase(heading.words, words) for words in signal.afterwards)
    clear = 1.0 if affinity >= BY_ID else WEIGHTS.topic + (1 - WEIGHTS.topic) * use
    return (
        clear * WEIGHTS.heading * (WEIGHTS.afterwards if later else 1.0) * affinity
        + named
        + tagged
        + moved
    )


def _nearness(mark: Mark, lineage: Sequence[str], chips: AbstractSet[str]) -> float:
    """`chips` are those of the lineage."""
    if lineage and lineage[0] in mark.hardware:
        return 1.0
    return WEIGHTS.general if chips.isdisjoint(mark.hardware) else WEIGHTS.family
