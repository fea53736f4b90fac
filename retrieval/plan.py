"""From what happened to what is searched for: weighted groups of words for the lexical levels,
texts for the dense one.

A signal is asked in the three phrases in which manuals speak of it; what the caller knows beyond it
(a question, the telling lines of a log, the names of metrics) weighs more. Knows nothing about
indexes."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

from kb.tokens import tokenize
from retrieval.diagnose.log_lines import query_lines
from retrieval.diagnose.metrics import MetricRegistry
from retrieval.diagnose.signals import DATA, Signal

MAX_TOKENS = 48  # of one group; the rest of a long log only adds noise
MAX_DENSE_CHARS = 600
SHORT_LOG = 2000  # characters
MAX_SIGNALS = 3  # of a verdict are asked for
SIGNAL_WEIGHT = 0.6  # of a signal's phrases beside a detail; alone they weigh 1
THESAURUS_WEIGHT = 0.4
MAX_OTHER_NAMES = 40  # tokens added to a request, in the order of the concepts


@dataclass(frozen=True)
class Words:
    weight: float
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Phrase:
    weight: float
    text: str


@dataclass(frozen=True)
class Plan:
    words: tuple[Words, ...]
    phrases: tuple[Phrase, ...]

    @property
    def empty(self) -> bool:
        return not any(group.tokens for group in self.words)


def make_plan(
    *,
    query: str | None,
    log: str | None,
    metrics: Mapping[str, object],
    registry: MetricRegistry,
    signals: Sequence[Signal],
    op: str | None,
) -> Plan:
    """signals: those given or found, the leading one first."""
    detail = " ".join(filter(None, [query, _telling(log), op]))
    names = " ".join(_metric_words(metrics, registry))
    words: list[Words] = []
    phrases: list[Phrase] = []
    asked = " ".join(filter(None, [detail, names]))
    tokens = _distinct(tokenize(asked))[:MAX_TOKENS]
    if tokens:
        words.append(Words(1.0, tokens))
        phrases.append(Phrase(1.0, (detail or names)[:MAX_DENSE_CHARS]))
    share = SIGNAL_WEIGHT if tokens else 1.0
    for rank, signal in enumerate(signals[:MAX_SIGNALS]):
        weight = share / (1 + rank)
        known = {token for group in words for token in group.tokens}
        fresh = [t for t in _distinct(tokenize(" ".join(signal.phrases))) if t not in known]
        words.append(Words(weight, tuple(fresh[:MAX_TOKENS])))
        phrases += [Phrase(weight / len(signal.phrases), text) for text in signal.phrases]
    others = other_names({token for group in words for token in group.tokens})
    if others:
        words.append(Words(THESAURUS_WEIGHT, others))
    return Plan(tuple(words), tuple(phrases))


def _telling(log: str | None) -> str:
    """A short log speaks for itself; of a long one only the lines that carry the message count."""
    if not log:
        return ""
    return log if len(log) <= SHORT_LOG else "\n".join(query_lines(log))


def _metric_words(metrics: Mapping[str, object], registry: MetricRegistry) -> Iterable[str]:
    """Names say what was measured, also those that no rule knows."""
    for name in metrics:
        yield name
        yield name.replace("_", " ")
        known = registry.metrics.get(name)
        if known is not None:
            yield from known.query_words


def _distinct(tokens: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tokens))


# -- the names that other chips give the same thing


@dataclass(frozen=True)
class Concept:
    """The token sets of a concept's names."""

    names: tuple[frozenset[str], ...]

    def named_in(self, tokens: Collection[str]) -> bool:
        present = set(tokens)
        return any(name and name <= present for name in self.names)


@cache
def load_thesaurus() -> tuple[Concept, ...]:
    with (DATA / "thesaurus.toml").open("rb") as file:
        rows = tomllib.load(file)["concepts"]
    return tuple(Concept(tuple(frozenset(tokenize(n)) for n in row["names"])) for row in rows)


def other_names(tokens: Collection[str]) -> tuple[str, ...]:
    """Tokens of the other names of every concept that the tokens name."""
    present = set(tokens)
    found: dict[str, None] = {}
    for concept in load_thesaurus():
        if concept.named_in(present):
            for name in concept.names:
                found |= dict.fromkeys(sorted(name))
    fresh = (token for token in found if token not in present)
    return tuple(islice(fresh, MAX_OTHER_NAMES))
