"""Coverage of one chip by the stored knowledge, and the gaps: by signal, topic and fact.

Counts passages of documents about the chip, its family and its vendor; documents about no hardware
in particular do not count. A passage counts for a signal if it has its tag or treats it
(`Snapshot.treating`), as in answers. The weights of signals and the advice to uploaders are data
(`data/coverage.toml`). Does not judge the quality of a passage.
"""

from __future__ import annotations

import keyword
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.knowledge.samples import Sample
from kb.catalog.knowledge.symbols import Symbol
from kb.errors import InvalidKnowledge
from kb.hardware.facts import fact_keys
from retrieval.diagnose.signals import DATA, SignalRegistry, load_signals
from retrieval.documents import list_documents
from retrieval.knowledge_base import KnowledgeBase
from retrieval.layout import load_layout
from retrieval.scope import own_chains
from retrieval.search.names import unknown_names

State = Literal["covered", "thin", "missing"]
ERRORS = "compiler errors"  # topic that cards of error codes cover
MAX_NAMES = 50
FIRST_KERNEL: Mapping[str, str] = {
    "core": "documents that define names of the language",
    "sample": "whole kernels, of the manual or in hardware.toml",
    "cards": "names with signature, operands or meaning",
    "limits": "names with sizes, alignments or counts that bound them",
    "launch": "entry or interface of the toolchain in hardware.toml",
}
# Words of the languages that chips' own are embedded in: no names of the chip.
HOST_WORDS = frozenset(keyword.kwlist) | frozenset(
    (
        "auto", "case", "const", "default", "do", "double", "enum", "extern", "float", "goto",
        "inline", "int", "long", "register", "short", "signed", "sizeof", "static", "struct",
        "switch", "typedef", "union", "void",
    )
)  # fmt: skip
ENOUGH = 2  # passages of the chip's own documents
SUGGESTED = 3
# Weight of a suggestion by the state of the signal that it would serve.
_NEED: Mapping[State, float] = {"missing": 1.0, "thin": 0.5, "covered": 0.0}


@dataclass(frozen=True)
class Subject:
    """A signal or topic. `own` counts passages about the chip itself, `inherited` those about its
    family or vendor only. `documents` counts both."""

    id: str
    title: str
    state: State
    own: int
    inherited: int
    documents: int


@dataclass(frozen=True)
class KnownFact:
    """`owner` is the hardware that states it: the chip or an ancestor."""

    key: str
    owner: str
    value: float | str
    unit: str
    kind: str


@dataclass(frozen=True)
class MissingFact:
    """A fact that neither the chip nor an ancestor states."""

    key: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class MissingTopic:
    """A topic to upload next. `upload` names the part of the chip's documentation to look for,
    `signals` lists the signals that it would serve, `weight` is the total need of these."""

    topic: str
    upload: str
    signals: tuple[str, ...]
    weight: float


@dataclass(frozen=True)
class KernelPart:
    """One part of the knowledge needed for a first kernel in a language: core (documents about the
    language), sample, cards, limits, launch. `count` is the number of entries."""

    language: str
    part: str
    state: Literal["present", "missing"]
    count: int
    message: str


@dataclass(frozen=True)
class Coverage:
    """Coverage of one chip: its signals, topics and facts, and the gaps. `first_kernel` says, for
    each language specific to the chip, whether the stored knowledge suffices for a first kernel.
    `names_without_card` are names that its kernels and error texts use and no document defines."""

    hardware: str
    lineage: tuple[str, ...]
    documents: int
    passages: int
    signals: tuple[Subject, ...]
    topics: tuple[Subject, ...]
    facts_known: tuple[KnownFact, ...]
    facts_missing: tuple[MissingFact, ...]
    missing_topics: tuple[MissingTopic, ...]
    first_kernel: tuple[KernelPart, ...] = ()
    names_without_card: tuple[str, ...] = ()


@dataclass(frozen=True)
class CoverageData:
    """Weights of signals (default 1) and one sentence per topic."""

    weights: Mapping[str, float]
    uploads: Mapping[str, str]


@dataclass
class _TagCount:
    own: set[int] = field(default_factory=set)
    all: set[int] = field(default_factory=set)
    documents: set[str] = field(default_factory=set)

    def with_passages(self, own: Collection[int], of_lineage: Collection[int]) -> _TagCount:
        """The count with further passages of the chip, and of its lineage with the chip."""
        return _TagCount(self.own | {*own}, self.all | {*of_lineage}, self.documents)


def coverage(base: KnowledgeBase, hardware_id: str) -> Coverage:
    """Coverage by signal, topic and fact, with the most useful uploads."""
    registry, access_scope = base.registry, base.access
    chip = registry.resolve(hardware_id)
    lineage = registry.lineage(chip)
    signals, data = load_signals(), load_coverage_data()
    counts = _counts(base, chip, lineage)
    snapshot = base.snapshots.current()
    own, of_lineage = (snapshot.treating(about, access_scope) for about in ((chip,), lineage))
    treated = {
        ("signal", s.id): counts.get(("signal", s.id), _TagCount()).with_passages(
            own[s.id].tolist(), of_lineage[s.id].tolist()
        )
        for s in signals
    }
    by_signal = {s.id: _subject("signal", s.id, s.title, treated) for s in signals}
    by_topic = {topic: _subject("topic", topic, topic, counts) for topic in topics_of(signals)}
    known = registry.effective_facts(chip)
    cards = snapshot.symbols(lineage, access=access_scope)
    kernels = snapshot.kernels(lineage, access_scope)
    chains = [chain for place in lineage for chain in registry.get(place).toolchains.values()]
    stated = tuple(chain.sample for chain in chains if chain.sample)
    errors = [card for card in cards if card.kind == "error" and chip in card.hardware]
    if len(errors) >= ENOUGH and by_topic[ERRORS].state != "covered":
        count = len({card.section_id for card in errors})
        by_topic[ERRORS] = replace(by_topic[ERRORS], state="covered", own=max(count, 1))
    everything = counts.get(("", ""), _TagCount())
    return Coverage(
        hardware=chip,
        lineage=lineage,
        documents=len(everything.documents),
        passages=len(everything.all),
        signals=tuple(by_signal.values()),
        topics=tuple(by_topic.values()),
        facts_known=tuple(
            KnownFact(key, fact.hardware_id, fact.value, fact.unit, fact.kind)
            for key, fact in known.items()
        ),
        facts_missing=tuple(
            MissingFact(entry.key, entry.unit, entry.meaning)
            for key, entry in fact_keys().items()
            if key not in known
        ),
        missing_topics=_most_useful(signals, by_signal, by_topic, data),
        first_kernel=tuple(_first_kernel(registry, lineage, cards, kernels)),
        names_without_card=snapshot.keep(
            "names without card",
            (*lineage, stated, access_scope),
            lambda: _without_card(stated, cards, kernels),
        ),
    )


def _first_kernel(
    registry: HardwareRegistry,
    lineage: Sequence[str],
    cards: Sequence[Symbol],
    kernels: Sequence[Sample],
) -> Iterator[KernelPart]:
    """The parts for each language specific to the chip."""
    known = load_layout()
    for language, chain in own_chains(lineage, registry.all()).items():
        if chain.builtin or language in known.known_languages:
            continue
        own = [c for c in cards if known.may_be(c.language, language) and c.kind != "error"]
        whole = [k for k in kernels if known.may_be(k.language, language)]
        counts = {
            "core": len({card.document_id for card in own}),
            "sample": len(whole) + bool(chain.sample),
            "cards": len(own),
            "limits": sum(bool(card.limits) for card in own),
            "launch": int(bool(chain.interface or chain.entry)),
        }
        for part, count in counts.items():
            state: Literal["present", "missing"] = "present" if count else "missing"
            yield KernelPart(language, part, state, count, FIRST_KERNEL[part])


def _without_card(
    stated: Sequence[str], cards: Sequence[Symbol], kernels: Sequence[Sample]
) -> tuple[str, ...]:
    """Names in instruction position in the chip's kernels, or quoted in its error texts, that no
    card has."""
    own = [kernel.code for kernel in kernels if not load_layout().is_known(kernel.language)]
    names: dict[str, None] = {}
    for code in [*stated, *own]:
        unknown = (entry.name for entry in unknown_names(code, cards))
        names |= dict.fromkeys(name for name in unknown if name not in HOST_WORDS)
    return tuple(names)[:MAX_NAMES]


def topics_of(signals: SignalRegistry) -> tuple[str, ...]:
    """Every topic of the vocabulary, by name."""
    return tuple(sorted({topic for signal in signals for topic in signal.topics}))


def coverage_data_from(raw: Mapping[str, Any], signals: SignalRegistry) -> CoverageData:
    """Check parsed TOML against the vocabulary. Raises InvalidKnowledge for an unknown signal or
    topic, and for a topic without a sentence."""
    weights, uploads = raw.get("weights", {}), raw.get("uploads", {})
    problems = [f"unknown signal {name!r}" for name in weights if name not in signals]
    odd = set(topics_of(signals)) ^ set(uploads)
    problems += [f"unknown topic or topic without a sentence: {name!r}" for name in sorted(odd)]
    if problems:
        raise InvalidKnowledge(
            f"coverage.toml: {'; '.join(problems)}", hint="Bring it in line with signals.toml."
        )
    return CoverageData(
        MappingProxyType({name: float(weight) for name, weight in weights.items()}),
        MappingProxyType({name: str(sentence) for name, sentence in uploads.items()}),
    )


@lru_cache(maxsize=1)
def load_coverage_data() -> CoverageData:
    """The built-in weights and sentences. Raises InvalidKnowledge for unknown names."""
    text = (DATA / "coverage.toml").read_text(encoding="utf-8")
    return coverage_data_from(tomllib.loads(text), load_signals())


def _counts(
    base: KnowledgeBase, chip: str, lineage: Sequence[str]
) -> dict[tuple[str, str], _TagCount]:
    """Passages and documents by (kind, tag); ("", "") counts all of the lineage."""
    about, tags = t.passage_hardware, t.passage_tags
    query = (
        sa.select(
            t.passages.c.seq,
            t.passages.c.document_id,
            about.c.hardware_id,
            tags.c.kind,
            tags.c.value,
        )
        .join(about, about.c.passage_id == t.passages.c.id)
        .outerjoin(
            tags,
            sa.and_(tags.c.passage_id == t.passages.c.id, tags.c.kind.in_(("signal", "topic"))),
        )
        .where(
            t.passages.c.active.is_(True),
            visible.passages(base.access),
            about.c.hardware_id.in_(list(lineage)),
        )
    )

    def read(connection: Connection) -> dict[tuple[str, str], _TagCount]:
        counts: dict[tuple[str, str], _TagCount] = {}
        for seq, document_id, hardware_id, kind, value in connection.execute(query):
            for key in {("", ""), (kind or "", value or "")}:
                count = counts.setdefault(key, _TagCount())
                count.all.add(seq)
                count.documents.add(document_id)
                if hardware_id == chip:
                    count.own.add(seq)
        return counts

    with base.catalog.read() as connection:
        key = (chip, tuple(lineage), base.access)
        return base.snapshots.current().keep("coverage", key, partial(read, connection))


def _subject(
    kind: str, subject: str, title: str, counts: Mapping[tuple[str, str], _TagCount]
) -> Subject:
    count = counts.get((kind, subject), _TagCount())
    state: State = "missing"
    if count.all:
        state = "covered" if len(count.own) >= ENOUGH else "thin"
    own = len(count.own)
    return Subject(subject, title, state, own, len(count.all) - own, len(count.documents))


def _most_useful(
    signals: SignalRegistry,
    by_signal: Mapping[str, Subject],
    by_topic: Mapping[str, Subject],
    data: CoverageData,
) -> tuple[MissingTopic, ...]:
    """The topics to upload next, each chosen to serve most of the need that the previous ones leave
    open. Topics without passages come first; those with one or two only fill up the list."""
    open_need = {s.id: data.weights.get(s.id, 1.0) * _NEED[by_signal[s.id].state] for s in signals}
    served = {topic: [s.id for s in signals if topic in s.topics] for topic in by_topic}
    chosen: list[MissingTopic] = []
    for state in ("missing", "thin"):
        left = {topic for topic, subject in by_topic.items() if subject.state == state}
        while left and len(chosen) < SUGGESTED:
            need = {topic: sum(open_need[s] for s in served[topic]) for topic in left}
            best = min(left, key=lambda topic: (-need[topic], topic))
            if need[best] <= 0:
                break
            helped = tuple(s for s in served[best] if by_signal[s].state != "covered")
            chosen.append(MissingTopic(best, data.uploads[best], helped, need[best]))
            left.discard(best)
            open_need |= dict.fromkeys(served[best], 0.0)
    return tuple(chosen)


# -- progress of a chip from its registration to a first kernel


@dataclass(frozen=True)
class OnboardingStep:
    """One step; `note` describes its state and, if it is open, the next action."""

    id: str
    title: str
    done: bool
    note: str


def onboarding_steps(base: KnowledgeBase, hardware: str) -> tuple[OnboardingStep, ...]:
    """The onboarding steps of a chip in order. Raises UnknownHardware."""
    chip = base.registry.resolve(hardware)
    specs, lineage = base.registry.all(), base.registry.lineage(chip)
    languages = sorted({name for place in lineage for name in specs[place].languages})
    toolchains = sorted({name for place in lineage for name in specs[place].toolchains})
    documents = list_documents(base, hardware=chip).documents
    read = [document for document in documents if document.version is not None]
    waiting = [document for document in documents if document.job_state in ("queued", "running")]
    statuses = [fact.status for fact in base.registry.facts(chip)]
    proposed = statuses.count("proposed")
    accepted = len(base.registry.effective_facts(chip))
    return (
        OnboardingStep(
            "description",
            "Describe it",
            bool(languages),
            f"languages: {', '.join(languages)}" if languages else "name its languages",
        ),
        OnboardingStep(
            "manuals",
            "Upload its manuals",
            bool(read) and not waiting,
            _manuals(len(documents), len(read), len(waiting)),
        ),
        OnboardingStep(
            "facts", "Decide on facts", accepted > 0 and not proposed, _facts(proposed, accepted)
        ),
        OnboardingStep(
            "toolchain",
            "State its toolchain",
            bool(toolchains),
            f"for {', '.join(toolchains)}; check it" if toolchains else "describe how kernels run",
        ),
        OnboardingStep(
            "ask",
            "Ask, and search",
            False,
            "shows the contents of a first prompt" if read else "possible once a manual is read",
        ),
    )


def _manuals(documents: int, read: int, waiting: int) -> str:
    if not documents:
        return "upload its programming guide"
    if waiting:
        return f"{documents - waiting:,} of {documents:,} done, {waiting:,} being read"
    return f"{read:,} of {documents:,} are read"


def _facts(proposed: int, accepted: int) -> str:
    if proposed:
        return f"{proposed:,} proposed {'fact waits' if proposed == 1 else 'facts wait'} for you"
    return f"{accepted:,} accepted" if accepted else "they are proposed from its manuals"
