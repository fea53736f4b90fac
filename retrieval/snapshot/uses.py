"""The use of each passage and section, computed once when its document is published.

A passage helps with a signal if it has a word of every group that `data/ontology.toml` lists for
it, itself or in the rest of its section. The reason is the kind of help that a section offers: a
cause, a symptom, a limit, a remedy, a counter or an example. Counts come from the word index, so
texts are not read again, and each value depends on one document only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kb.tokens import tokenize
from retrieval.snapshot.lexicon import Term
from retrieval.snapshot.ontology import REASONS, Ontology
from retrieval.snapshot.words import word_number

# A group counts by its own words and by those of the section, on average over its passages.
SECTION, MOST_OF_SECTION = 1.8, 2.4
ABSENT = 0.1  # factor for a group without a word
RAISED = 0.3  # use of a passage about a concept that may raise the signal
FULL = 255  # a use of 1
TREATED = 0.7  # use of a passage about the chip, from which on its manuals treat the signal
LEAST = 64  # use of a section from which on it has a reason
USED = 2  # passages with a name from which on a document uses it
Counts = NDArray[np.float32]


class OwnName(NamedTuple):
    """A name of a concept in one document. A `sign` of -1 takes a name of every manual back."""

    name: str
    concept: str
    sign: int = 1


class Uses(NamedTuple):
    """`passages` (rows, signals) and `sections` (sections, signals) are uses from 0 to FULL, with
    signals in the order of the vocabulary; `reasons` (sections, signals) are 1 + the index in
    REASONS, 0 without one."""

    passages: NDArray[np.uint8]
    sections: NDArray[np.uint8]
    reasons: NDArray[np.uint8]


class WordCounts:
    """Occurrences of phrases in the passages of a segment, from the arrays of its word index. A
    phrase of several words counts as often as its rarest word in the passage."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._words, self._starts = arrays["passage_words"], arrays["passage_starts"]
        self._rows, self._counts = arrays["passage_postings"], arrays["passage_counts"]
        self.rows = len(arrays["seqs"])
        self._known: dict[str, Counts] = {}

    def of(self, phrase: str) -> Counts:
        """(rows,) occurrences of a phrase; zeros for one of function words."""
        if phrase not in self._known:
            words = sorted(set(tokenize(phrase)))
            columns = [self._of_word(word) for word in words]
            counts = np.minimum.reduce(columns) if columns else np.zeros(self.rows, np.float32)
            self._known[phrase] = counts
        return self._known[phrase]

    def _of_word(self, word: str) -> Counts:
        column = np.zeros(self.rows, np.float32)
        number = np.uint64(word_number(word))
        place = int(np.searchsorted(self._words, number))
        if place < len(self._words) and self._words[place] == number:
            span = slice(int(self._starts[place]), int(self._starts[place + 1]))
            column[self._rows[span]] = self._counts[span]
        return column


def family_names(
    ontology: Ontology, title: str, hardware: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """The names with their concepts that only documents of a vendor or family use, for those whose
    word is in the document's title or ids of hardware."""
    about = " ".join((title, *hardware)).casefold()
    for concept in ontology.concepts.values():
        for family, names in concept.families.items():
            if family in about:
                yield from ((name, concept.id) for name in names)


def concept_counts(
    ontology: Ontology,
    counts: WordCounts,
    document_of: NDArray[np.int32],
    own: Sequence[Sequence[OwnName]],
) -> dict[str, Counts]:
    """(rows,) occurrences of the names of each concept; `own` are the further names of each
    document."""
    totals = {
        concept.id: np.asarray(np.sum([counts.of(n) for n in concept.names], axis=0), np.float32)
        for concept in ontology.concepts.values()
    }
    for place, names in enumerate(own):
        for name, concept, sign in names:
            totals[concept] += sign * np.where(document_of == place, counts.of(name), 0)
    return totals


def uses_of(
    arrays: Mapping[str, NDArray[Any]],
    signals: Sequence[str],
    ontology: Ontology,
    own: Sequence[Sequence[OwnName]],
) -> Uses:
    """The uses of the passages and sections of a segment; `own` as for `concept_counts`."""
    counts = WordCounts(arrays)
    section_of, sections = arrays["section_rows"], len(arrays["section_seqs"])
    sizes = np.maximum(1, np.bincount(section_of, minlength=sections))
    concepts = concept_counts(ontology, counts, arrays["document_places"], own)

    def group_share(entries: Sequence[str]) -> NDArray[np.float64]:
        columns = [concepts[e[1:]] if e.startswith("@") else counts.of(e) for e in entries]
        total = np.sum(columns, axis=0, dtype=np.float64)
        mean = np.bincount(section_of, total, sections) / sizes
        near = np.minimum(SECTION * mean, MOST_OF_SECTION)[section_of]
        share: NDArray[np.float64] = ABSENT + (1 - ABSENT) * (1 - 0.5 ** (total + near))
        return share

    reason_of = _reasons(arrays, counts, ontology)
    passages = np.zeros((counts.rows, len(signals)), np.uint8)
    best = np.zeros((sections, len(signals)), np.uint8)
    reasons = np.zeros((sections, len(signals)), np.uint8)
    for column, signal in enumerate(signals):
        groups = [group_share(entries) for entries in ontology.groups[signal]]
        raising = [f"@{c.id}" for c in ontology.concepts.values() if signal in c.raises]
        about = RAISED * group_share(raising) if raising else 0.0
        passages[:, column] = np.rint(FULL * np.maximum(np.prod(groups, axis=0), about))
        own_uses = passages[:, column]
        np.maximum.at(best[:, column], section_of, own_uses)
        useful = np.flatnonzero((own_uses == best[section_of, column]) & (own_uses >= LEAST))
        reasons[section_of[useful], column] = reason_of[useful]
    return Uses(passages, best, reasons)


def _reasons(
    arrays: Mapping[str, NDArray[Any]], counts: WordCounts, ontology: Ontology
) -> NDArray[np.uint8]:
    """(rows,) 1 + the index of the reason that a passage offers, 0 without one. A block of code is
    an example."""
    shares = [
        np.sum([counts.of(word) for word in ontology.words[reason]], axis=0) for reason in REASONS
    ]
    table = np.array(shares)
    chosen = np.where(table.max(axis=0) > 0, 1 + table.argmax(axis=0), 0)
    code = arrays["code"]
    return np.where(code, 1 + REASONS.index("example"), chosen).astype(np.uint8)


def lexicon_of(
    arrays: Mapping[str, NDArray[Any]],
    ontology: Ontology,
    own: Sequence[Sequence[OwnName]],
    defined: Sequence[Sequence[Term]],
) -> list[list[Term]]:
    """The terms for concepts that each document uses: those that it defines, those of its family,
    and names of every manual; `passages` counts those with the term."""
    counts, documents, document_of = WordCounts(arrays), len(own), arrays["document_places"]

    def by_document(name: str) -> list[int]:
        present = (counts.of(name) > 0).astype(np.float64)
        return [int(n) for n in np.bincount(document_of, present, documents)]

    lexicons: list[list[Term]] = [[] for _ in range(documents)]
    for place, names in enumerate(own):
        quoted = {(term.term, term.concept): term for term in defined[place]}
        for name, concept_id, sign in names:
            if sign < 0:
                continue
            term = quoted.get((name, concept_id)) or Term(name, concept_id, "family")
            lexicons[place].append(replace(term, passages=by_document(name)[place]))
    for concept in ontology.concepts.values():
        for name in concept.names:
            for place, count in enumerate(by_document(name)):
                if count >= USED and OwnName(name, concept.id, -1) not in own[place]:
                    lexicons[place].append(Term(name, concept.id, "name", passages=count))
    return [[term for term in lexicon if term.passages] for lexicon in lexicons]


def own_names(
    ontology: Ontology, title: str, hardware: Sequence[str], terms: Sequence[Term]
) -> list[OwnName]:
    """The names of concepts of one document in addition to those of every manual: of its family,
    the terms that it defines, and those that a person decided about, which take their other
    concepts back."""
    decided = {t.term.casefold(): t.concept for t in terms if t.how == "person"}
    names = [*family_names(ontology, title, hardware), *((t.term, t.concept) for t in terms)]
    kept = [OwnName(n, c) for n, c in names if c and decided.get(n.casefold(), c) == c]
    back = [
        OwnName(name, concept.id, -1)
        for concept in ontology.concepts.values()
        for name in concept.names
        if decided.get(name.casefold(), concept.id) != concept.id
    ]
    return list(dict.fromkeys([*kept, *back]))
