"""The field's concepts and, for each signal, words and sentences of passages that help with it.

Reads `data/ontology.toml`. Does not know documents.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from kb.errors import InvalidKnowledge
from kb.hardware.spec import HardwareSpec
from kb.ids import sha256
from kb.tokens import tokenize
from retrieval.diagnose.signals import DATA, SignalRegistry, load_signals

LONGEST = 6  # tokens of a name
REASONS = ("cause", "symptom", "limit", "remedy", "counter", "example")


@dataclass(frozen=True)
class OntologyConcept:
    """A concept of the field. `names` mean it in every manual, those of `families` in manuals of a
    vendor or family. `raises` are the signals that it may raise."""

    id: str
    kind: str
    meaning: str
    names: tuple[str, ...]
    families: Mapping[str, tuple[str, ...]]
    raises: tuple[str, ...]


@dataclass(frozen=True)
class Ontology:
    """`concepts` by id; `groups` of entries and `sentences` by signal; the `words` of each reason
    of REASONS."""

    concepts: Mapping[str, OntologyConcept]
    groups: Mapping[str, tuple[tuple[str, ...], ...]]
    sentences: Mapping[str, tuple[str, ...]]
    words: Mapping[str, tuple[str, ...]]
    fingerprint: str

    @cached_property
    def _names(self) -> dict[str, list[tuple[tuple[str, ...], str]]]:
        """The tokens of every name and its concept, by the first token, the longest names first."""
        names: dict[str, list[tuple[tuple[str, ...], str]]] = {}
        for concept in self.concepts.values():
            for name in concept.names:
                tokens = tuple(tokenize(name))
                names.setdefault(tokens[0], []).append((tokens, concept.id))
        for rows in names.values():
            rows.sort(key=lambda row: -len(row[0]))
        return names

    def head_of(self, text: str) -> str | None:
        """The concept whose name ends a noun phrase: "partial sum buffer"."""
        tokens = tuple(tokenize(text))
        for start in range(max(0, len(tokens) - LONGEST), len(tokens)):
            for name, concept in self._names.get(tokens[start], ()):
                if tokens[start:] == name:
                    return concept
        return None

    def concept_in(self, text: str) -> str | None:
        """The concept that is named last in a text."""
        tokens = tokenize(text)
        concept, at = None, 0
        while at < len(tokens):
            for name, own in self._names.get(tokens[at], ()):
                if tuple(tokens[at : at + len(name)]) == name:
                    concept, at = own, at + len(name) - 1
                    break
            at += 1
        return concept

    def is_name(self, term: str, concept: str) -> bool:
        """Whether the term is a name of the concept already, in every manual."""
        tokens = tokenize(term)
        return any(tokenize(name) == tokens for name in self.concepts[concept].names)


def ontology_from(data: Mapping[str, Any], text: str, signals: SignalRegistry) -> Ontology:
    """Check parsed TOML. Raises InvalidKnowledge, which names each unknown signal and concept."""
    concepts = {
        row["id"]: OntologyConcept(
            row["id"],
            row["kind"],
            row["meaning"],
            tuple(row["names"]),
            {family: tuple(names) for family, names in row.get("families", {}).items()},
            tuple(row["raises"]),
        )
        for row in data["concepts"]
    }
    groups = {name: tuple(map(tuple, own)) for name, own in data["signals"].items()}
    sentences = {name: tuple(own) for name, own in data["sentences"].items()}
    named = {e[1:] for own in groups.values() for g in own for e in g if e.startswith("@")}
    raised = {signal for concept in concepts.values() for signal in concept.raises}
    problems = [f"unknown concept {name!r}" for name in sorted(named - set(concepts))]
    odd = (set(groups) ^ set(signals.ids)) | (set(sentences) ^ set(signals.ids))
    odd |= raised - set(signals.ids)
    problems += [
        f"unknown signal, or signal without words or sentences: {name!r}" for name in sorted(odd)
    ]
    problems += [f"no words for {reason!r}" for reason in REASONS if reason not in data["kinds"]]
    if problems:
        raise InvalidKnowledge(
            f"ontology.toml: {'; '.join(problems)}", hint="Bring it in line with signals.toml."
        )
    words = {reason: tuple(data["kinds"][reason]["words"]) for reason in REASONS}
    return Ontology(concepts, groups, sentences, words, sha256(text)[:12])


def check_terms(spec: HardwareSpec) -> None:
    """Raises InvalidKnowledge for a term of a description with an unknown concept."""
    concepts = load_ontology().concepts
    for term, concept in spec.terms.items():
        if concept and concept not in concepts:
            raise InvalidKnowledge(
                f"{spec.id}: terms.{term}: unknown concept {concept!r}",
                hint=f'Use one of {", ".join(concepts)}, or "" for none.',
            )


@lru_cache(maxsize=1)
def load_ontology() -> Ontology:
    """The built-in ontology. Raises InvalidKnowledge for unknown names."""
    text = (DATA / "ontology.toml").read_text(encoding="utf-8")
    return ontology_from(tomllib.loads(text), text, load_signals())
