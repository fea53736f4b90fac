"""Derive search terms from a request and its diagnosis: weighted groups of words for the lexical
levels, texts for the dense level.

A signal is searched for by the three phrases in which manuals describe it. Details from the caller
(a question, the lines of a log with its message, the names of metrics) weigh more. Does not know
indexes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

from kb.problem_terms import guide_words
from kb.tokens import tokenize
from retrieval.diagnose.log_lines import query_lines, without_boilerplate, without_program
from retrieval.diagnose.metrics import MetricRegistry, load_metrics
from retrieval.diagnose.signals import DATA, Signal
from retrieval.request import RetrieveRequest
from retrieval.snapshot.ontology import load_ontology

MAX_TOKENS = 48  # of one group; the rest of a long log only adds noise
MAX_DENSE_CHARS = 600
# Characters of a log for the dense level: encoding takes a third of a millisecond a token, and more
# than the decisive lines does not improve the match with human descriptions (docs/adr/037).
DENSE_LOG = 240
SHORT_LOG = 2000  # characters
MAX_SIGNALS = 3  # of a diagnosis that are searched for
SIGNAL_WEIGHT = 0.6  # of a signal's phrases next to details; without details they weigh 1
THESAURUS_WEIGHT = 0.4
CHIP_WEIGHT = 0.3  # of words that name the requested chip
CHIP_SHARE = 0.5  # of the question with these names, beside 1 of the one without
# Topics of the language guides that readers of such contexts used.
WRITING = (
    "write a {language} kernel: masks at the border, alignment and wide loads, warps and stages"
)
WRITING_FOR_A_CPU = (
    "write a {language} kernel: tails of loops, alignment and vector code, shares of threads"
)
FOR_A_CPU = ("c", "cpp")
MAX_OTHER_NAMES = 40  # tokens added to a request, in the order of the concepts


@dataclass(frozen=True)
class Words:
    """A group of tokens for the lexical index, and its weight relative to other groups."""

    weight: float
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Phrase:
    """A text for the embedding model, and its weight in the query vector."""

    weight: float
    text: str


@dataclass(frozen=True)
class Plan:
    """Search terms for the lexical index (`words`) and the vectors (`phrases`). For a signal
    without details, passages are compared with each of `sentences` instead of the mean of the
    phrases. `names` are the tokens of the question in order, which may name a document. With
    `documents`, only words in these are searched. `also` are further plans whose results rank
    equally."""

    words: tuple[Words, ...]
    phrases: tuple[Phrase, ...]
    sentences: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    documents: frozenset[str] | None = None
    also: Plan | None = None

    @property
    def empty(self) -> bool:
        """Whether there is no token to search for."""
        return not any(group.tokens for group in self.words)


def make_plan(
    *,
    query: str | None,
    log: str | None,
    metrics: Mapping[str, object],
    registry: MetricRegistry,
    signals: Sequence[Signal],
    op: str | None,
    chip: Collection[str] = (),
) -> Plan:
    """`signals` are those of the diagnosis, the leading one first; `registry` maps metric names to
    words. `chip` are the names of the requested chip in the query."""
    message = _message_of(log)
    detail = " ".join(filter(None, [query, message, op]))
    names = " ".join(_metric_words(metrics, registry))
    words: list[Words] = []
    phrases: list[Phrase] = []
    subject = " ".join(filter(None, [detail, names]))
    tokens = _distinct(tokenize(subject))[:MAX_TOKENS]
    if tokens:
        words += _by_subject(tokens, {token for name in chip for token in tokenize(name)})
        for weight, asked in _questions(query, chip):
            meaning = " ".join(filter(None, [asked, _decisive(log, message), op]))
            phrases.append(Phrase(weight, (meaning or names)[:MAX_DENSE_CHARS]))
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
    bare = signals[:1] if not tokens else ()
    sentences = [text for signal in bare for text in sentences_of(signal)]
    return Plan(tuple(words), tuple(phrases), tuple(sentences), tuple(tokenize(query or "")))


def _questions(query: str | None, chip: Collection[str]) -> list[tuple[float, str | None]]:
    """The question with and without the names of the requested chip, with weights: a passage that
    repeats the name is near a question that contains it, whatever is asked."""
    bare = query or ""
    for name in sorted(chip, key=len, reverse=True):
        bare = " ".join(re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", " ", bare).split())
    if not chip or len(tokenize(bare)) < 2:
        return [(1.0, query)]
    return [(1.0, bare), (CHIP_SHARE, query)]


def _by_subject(tokens: tuple[str, ...], chip: Collection[str]) -> list[Words]:
    """The tokens of a request in two groups, since those of the requested chip's names weigh less:
    they are rare words, and would rank titles that contain them over passages about the subject,
    while the scope is restricted to the chip already."""
    names = tuple(token for token in tokens if token in chip)
    subject = tuple(token for token in tokens if token not in chip)
    if not subject or not names:
        return [Words(1.0, tokens)]
    return [Words(1.0, subject), Words(CHIP_WEIGHT, names)]


def sentences_of(signal: Signal) -> tuple[str, ...]:
    """The sentences in which manuals describe a signal, with its phrases."""
    return (*load_ontology().sentences[signal.id], *signal.phrases)


def _message_of(log: str | None) -> str:
    """A short log in full; the lines with the message of a long one. Lines that a framework prints
    below every error, and those of the program in a traceback, are left out."""
    if not log:
        return ""
    if len(log) <= SHORT_LOG:
        return without_boilerplate(without_program(log))
    return without_boilerplate("\n".join(query_lines(log)))


def _decisive(log: str | None, message: str) -> str:
    """The first DENSE_LOG characters of the lines with the message, the best line first; a shorter
    `message` in full."""
    if not log or len(message) <= DENSE_LOG:
        return message
    lines = message if len(log) > SHORT_LOG else without_boilerplate("\n".join(query_lines(log)))
    return (lines or message)[:DENSE_LOG]


def _metric_words(metrics: Mapping[str, object], registry: MetricRegistry) -> Iterable[str]:
    """Names of metrics describe the measurement, even without a rule for them."""
    for name in metrics:
        yield name
        yield name.replace("_", " ")
        known = registry.metrics.get(name)
        if known is not None:
            yield from known.query_words


def _distinct(tokens: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tokens))


# -- names that other chips use for the same thing


@dataclass(frozen=True)
class Concept:
    """The token sets of a concept's names."""

    names: tuple[frozenset[str], ...]

    def named_in(self, tokens: Collection[str]) -> bool:
        """Whether these tokens include all tokens of one of the names."""
        present = set(tokens)
        return any(name and name <= present for name in self.names)


@cache
def load_thesaurus() -> tuple[Concept, ...]:
    """The built-in concepts, in the order of the file."""
    with (DATA / "thesaurus.toml").open("rb") as file:
        rows = tomllib.load(file)["concepts"]
    return tuple(Concept(tuple(frozenset(tokenize(n)) for n in row["names"])) for row in rows)


def other_names(tokens: Collection[str]) -> tuple[str, ...]:
    """Tokens of the other names of every concept whose name is among the tokens; at most
    MAX_OTHER_NAMES."""
    present = set(tokens)
    names: dict[str, None] = {}
    for concept in load_thesaurus():
        if concept.named_in(present):
            for name in concept.names:
                names |= dict.fromkeys(sorted(name))
    fresh = (token for token in names if token not in present)
    return tuple(islice(fresh, MAX_OTHER_NAMES))


def writing_words(language: str | None, op: str) -> str:
    """The query for a first kernel in a language that models do not know."""
    return " ".join(filter(None, ("write a", language, "kernel", op.replace("_", " "))))


def writing_plan(language: str, op: str, registry: MetricRegistry) -> Plan:
    """The plan for a first kernel in a language that models know: how such an operator is computed,
    and how kernels are written in the language."""
    writing = WRITING_FOR_A_CPU if language in FOR_A_CPU else WRITING
    about_op, about_language = (
        make_plan(query=query, log=None, metrics={}, registry=registry, signals=(), op=None)
        for query in (guide_words(op), writing.format(language=language))
    )
    return about_language if about_op.empty else replace(about_op, also=about_language)


def plan_of(
    request: RetrieveRequest,
    signals: Sequence[Signal],
    is_known: Callable[[str], bool],
    causes: str = "",
    chip: Collection[str] = (),
) -> Plan:
    """The plan of a request. `signals` are those of the diagnosis; `is_known` is true for languages
    that models know; `causes` are words about the hot lines of a profile, which replace the names
    of its counters; `chip` are the names of the requested chip in the question."""
    happened = signals or request.log or request.metrics
    words = " ".join(filter(None, (request.query, causes))) or None
    if request.op and request.task in (None, "write") and not words and not happened:
        if request.language and is_known(request.language):
            return writing_plan(request.language, request.op, load_metrics())
        words = writing_words(request.language, request.op)
    return make_plan(
        query=words,
        log=request.log,
        metrics={} if causes else request.metrics or {},
        registry=load_metrics(),
        signals=signals,
        op=request.op,
        chip=chip,
    )
