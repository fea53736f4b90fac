"""Coverage of one chip by the stored knowledge, and the gaps: by signal, topic and fact.

Counts passages of documents about the chip, its family and its vendor; documents about no hardware
in particular do not count. A passage counts for a signal if it has its tag or treats it
(`Snapshot.treating`), as in answers. The weights of signals and the advice to uploaders are data
(`data/coverage.toml`). Does not judge the quality of a passage.

`delivered_kernels` shows which whole kernel reaches the context of a first kernel, for every chip,
language and kind of operator: computed from the answers themselves.
"""

from __future__ import annotations

import keyword
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import sqlalchemy as sa
from annotated_types import Ge, Le, MaxLen
from sqlalchemy import Connection

from kb.answers import Answer
from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.knowledge.samples import Sample
from kb.catalog.knowledge.symbols import RefusedName, Symbol, refused_names
from kb.catalog.skills.writing import nth_last_retrieval
from kb.errors import InvalidKnowledge, Unavailable
from kb.hardware.facts import fact_keys
from kb.plain import Doc
from kb.problem_terms import problem_terms
from kb.scope import AccessScope
from retrieval.answer import AnswerConfig, answer
from retrieval.compose.kernels import KernelRequest, WholeKernel, kernels_of, main_parts, score_of
from retrieval.diagnose.signals import DATA, SignalRegistry, load_signals
from retrieval.documents import list_documents
from retrieval.knowledge_base import KnowledgeBase
from retrieval.layout import load_layout
from retrieval.operators import OperatorKind, load_operators
from retrieval.request import MAX_TOKENS, RetrieveRequest
from retrieval.scope import own_chains, scope_of
from retrieval.search.names import unknown_names
from retrieval.snapshot.knowledge import Chips
from retrieval.snapshot.ontology import load_ontology
from retrieval.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    from retrieval.knowledge_base import KnowledgeBase


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
        "_Alignas", "_Alignof", "_Atomic", "_Generic", "_Static_assert",
        "auto", "case", "const", "default", "do", "double", "enum", "extern", "float", "goto",
        "inline", "int", "long", "register", "short", "signed", "sizeof", "static", "struct",
        "switch", "typedef", "union", "void",
        "constexpr", "delete", "explicit", "friend", "mutable", "namespace", "new", "noexcept",
        "operator", "override", "private", "protected", "public", "template", "throw", "typename",
        "using", "virtual", "volatile",
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
    `names_without_card` are names that its kernels and error texts use and no document defines,
    `refused` names that a document defines and its tools do not know."""

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
    refused: tuple[RefusedName, ...] = ()


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
    own_named, named = (_named(snapshot, about, access_scope) for about in ((chip,), lineage))
    by_topic = {
        topic: _with_named(_subject("topic", topic, topic, counts), own_named, named)
        for topic in topics_of(signals)
    }
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
    with base.catalog.read() as connection:
        refused = tuple(refused_names(connection, chip))
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
        refused=refused,
    )


Named = Mapping[str, Sequence[int]]


def _named(snapshot: Snapshot, hardware: Sequence[str], access_scope: AccessScope) -> Named:
    """The passages of each document about any of this hardware that call a topic's concept by one
    of its names: a manual that writes SBUF is about on-chip memory. Of several names in a document,
    only the commonest counts."""
    most: dict[str, dict[str, int]] = {}
    for document_id, term in snapshot.lexicon(hardware, access_scope):
        counts = most.setdefault(term.concept, {})
        counts[document_id] = max(counts.get(document_id, 0), term.passages)
    topics: dict[str, Sequence[int]] = {}
    for topic in topics_of(load_signals()):
        for concept in load_ontology().concepts.values():
            if topic.rstrip("s") in {name.lower().rstrip("s") for name in concept.names}:
                topics[topic] = tuple(most.get(concept.id, {}).values())
    return topics


def _with_named(subject: Subject, own_named: Named, named: Named) -> Subject:
    """The topic with the passages that name it, where more do than have its tag."""
    documents = named.get(subject.id, ())
    own = max(sum(own_named.get(subject.id, ())), subject.own)
    inherited = max(sum(documents) - own, subject.inherited)
    if (own, inherited) == (subject.own, subject.inherited):
        return subject
    return replace(
        subject,
        state="covered" if own >= ENOUGH else "thin",
        own=own,
        inherited=inherited,
        documents=max(len(documents), subject.documents),
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
    toolchains = sorted(specs[chip].toolchains)
    parents = {n: p for p in reversed(lineage[1:]) for n in specs[p].toolchains}
    documents = list_documents(base, hardware=chip).documents
    read = [document for document in documents if document.version is not None]
    waiting = [document for document in documents if document.job_state in ("queued", "running")]
    statuses = [fact.status for fact in base.registry.facts(chip)]
    proposed = statuses.count("proposed")
    accepted = statuses.count("accepted")
    inherited = len(base.registry.effective_facts(chip)) - accepted
    with base.catalog.read() as connection:
        asked = nth_last_retrieval(connection, 1, [chip]) is not None
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
            "facts",
            "Decide on facts",
            accepted > 0 and not proposed,
            _facts(proposed, accepted, inherited, bool(read) and not waiting),
        ),
        OnboardingStep(
            "toolchain",
            "State its toolchain",
            bool(toolchains),
            _toolchain(toolchains, parents),
        ),
        OnboardingStep(
            "ask",
            "Ask, and search",
            asked,
            "ask a question, or start a run" if read else "possible once a manual is read",
        ),
    )


def _toolchain(own: Sequence[str], parents: Mapping[str, str]) -> str:
    if own:
        return f"for {', '.join(own)}; check it"
    inherited = ", ".join(f"{name} from {parent}" for name, parent in sorted(parents.items()))
    if inherited:
        return f"inherited: {inherited}; state its own, which knows what it lacks"
    return "describe how kernels run"


def _manuals(documents: int, read: int, waiting: int) -> str:
    if not documents:
        return "upload its programming guide"
    if waiting:
        return f"{documents - waiting:,} of {documents:,} done, {waiting:,} being read"
    return f"{read:,} of {documents:,} are read"


def _facts(proposed: int, accepted: int, inherited: int, is_read: bool) -> str:
    if proposed:
        return f"{proposed:,} proposed {'fact waits' if proposed == 1 else 'facts wait'} for you"
    if accepted:
        return f"{accepted:,} accepted"
    found = (
        "none found in its manuals: add one" if is_read else "they are proposed from its manuals"
    )
    return f"{found}; {inherited:,} inherited" if inherited > 0 else found


# -- whole kernels that reach contexts

BUDGET = 24_000
CHIPS = "accelerator"  # kind of hardware in the table; without families and vendors


@dataclass(frozen=True)
class DeliveredKernel:
    """A cell of the table. `kernel` is the id of the best kernel that ships for the kind of
    operator, `arrives` how much of it is in the context: whole, the main loop (every kernel entry
    and function with a loop), part, or nothing. `tokens` is the size of the context,
    `kernel_tokens` that of all kernels in it."""

    hardware: str
    language: str
    operator: str
    kernel: str
    title: str
    status: str
    arrives: Literal["whole", "main loop", "part", "nothing"]
    tokens: int
    kernel_tokens: int


@dataclass(frozen=True)
class DeliveredKernels:
    """The table, and the number of its cells whose kernel does not arrive in its main loop."""

    kernels: tuple[DeliveredKernel, ...]
    holes: int


def delivered_kernels(
    base: KnowledgeBase,
    hardware: Annotated[str, Doc("Only for this chip."), MaxLen(200)] = "",
    language: Annotated[str, Doc("Only in this language."), MaxLen(200)] = "",
    operator: Annotated[str, Doc("Only for this operator or its kind."), MaxLen(200)] = "",
    task: Annotated[Literal["write", "speed_up"], Doc("Task of the context.")] = "write",
    max_tokens: Annotated[int, Doc("Most tokens of the context."), Ge(1), Le(MAX_TOKENS)] = BUDGET,
) -> DeliveredKernels:
    """For each chip, language and kind of operator for which a whole kernel ships: whether it
    reaches the context. Each cell is the answer to a request, ranked by words alone. Raises
    Unavailable if there are no documents."""
    snapshot = base.retriever.snapshots.current()
    if not snapshot.passages:
        raise Unavailable(
            f"there are no documents in {base.settings.data_dir} yet",
            hint="Run `kernlore serve`, or `kernlore ingest --builtin`, to load the built-in ones.",
        )
    chips = snapshot.knowledge.chips(base.access)
    chosen = [chips.resolve(hardware)] if hardware else _chips(chips)
    kinds = _kinds(operator)
    cells = [
        cell
        for chip in chosen
        for name in _languages(snapshot, chips, chip, base.access)
        if not language or name == language
        for cell in _cells(snapshot, chips, chip, name, kinds, task, max_tokens, base.access)
    ]
    holes = sum(cell.arrives not in ("whole", "main loop") for cell in cells)
    return DeliveredKernels(tuple(cells), holes)


def _chips(chips: Chips) -> list[str]:
    return sorted(name for name, spec in chips.all().items() if spec.kind == CHIPS)


def _languages(snapshot: Snapshot, chips: Chips, chip: str, access: AccessScope) -> tuple[str, ...]:
    """The languages of kernels for a chip: its own, and those of kernels that were compiled."""
    scope = scope_of(
        RetrieveRequest(hardware=chip, access_scope=access),
        chips,
        lambda own: snapshot.languages_of(own, access),
    )
    compiled = (
        kernel.language
        for kernel in snapshot.kernels(scope.lineage, access)
        if kernel.status not in ("untried", "refused")
    )
    return tuple(dict.fromkeys((*scope.chip_languages, *filter(None, compiled))))


def _kinds(operator: str) -> list[OperatorKind]:
    operators = load_operators()
    kinds = list(operators.kinds.values())
    if not operator:
        return kinds
    named = operators.of(operator).kinds
    return [kind for kind in kinds if kind.id in named]


def _cells(
    snapshot: Snapshot,
    chips: Chips,
    chip: str,
    language: str,
    kinds: Sequence[OperatorKind],
    task: str,
    max_tokens: int,
    access: AccessScope,
) -> Iterator[DeliveredKernel]:
    lineage = chips.lineage(chip)
    kernels = kernels_of(snapshot, lineage, (language,), access)
    facts = chips.effective_facts(chip).keys()
    for kind in kinds:
        op = next((op for op in sorted(kind.ops) if op in problem_terms().ops), kind.id)
        traits = load_operators().of(op)
        wanted = KernelRequest(traits, lineage, (language,), facts, access)
        own = [k for k in kernels if kind.id in k.traits.kinds and score_of(k, wanted) > 0]
        if not own or traits.kinds[0] != kind.id:
            continue
        best = max(own, key=lambda kernel: (score_of(kernel, wanted), -len(kernel.code), kernel.id))
        request = RetrieveRequest(
            hardware=chip,
            language=language,
            op=op,
            task=task,
            signal=None if task == "write" else "memory_bound",
            max_tokens=max_tokens,
            access_scope=access,
        )
        result = answer(snapshot, request, AnswerConfig(embed=None)).answer
        yield _cell(kind, chip, language, best, result)


def _cell(
    kind: OperatorKind, chip: str, language: str, kernel: WholeKernel, result: Answer
) -> DeliveredKernel:
    return DeliveredKernel(
        hardware=chip,
        language=language,
        operator=kind.id,
        kernel=kernel.id,
        title=kernel.title,
        status=kernel.status,
        arrives=_arrives(kernel, result.context),
        tokens=result.context_tokens,
        kernel_tokens=sum(part.tokens for part in result.parts if part.kind == "sample"),
    )


def _arrives(kernel: WholeKernel, context: str) -> Literal["whole", "main loop", "part", "nothing"]:
    shown = _plain(context)
    if _plain(kernel.code) in shown:
        return "whole"
    if all(_plain(part) in shown for part in main_parts(kernel.code, kernel.language)):
        return "main loop"
    return "part" if f'id="{kernel.id}"' in context else "nothing"


def _plain(text: str) -> str:
    """The text with white space normalised: a whole document joins its passages by new lines."""
    return " ".join(text.split())
