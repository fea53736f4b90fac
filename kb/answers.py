"""Records of the service's answers. The JSON forms are the HTTP contract.

Does not know how an answer is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kb.validity import Validity

# Parts of an answer that a request can choose; `citations` are excerpts without their texts.
_PARTS = "diagnosis facts excerpts citations skills moves context parts hints uplift"
ANSWER_FIELDS = tuple(_PARTS.split())
KNOWLEDGE_LOADING = (
    "The built-in knowledge is being loaded, which takes half a minute at the first start: this"
    " answer lacks parts of it. Ask again."
)


@dataclass(frozen=True)
class SignalFinding:
    """A signal that holds. `confidence` is A (a vendor's rule), B (a peer's code), C (a heuristic)
    or "given" when the caller named the signal. Each piece of `evidence` is the JSON of a value
    that a rule relied on, or of a log line that a signature matched."""

    id: str
    confidence: str
    evidence: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class HotLines:
    """Lines of a kernel that take a large part of its time, or whose accesses move much in vain.

    `place` names them: `file` and the lines `first` to `last`, both 0 if the profile only has
    instructions. `share_pct` is their part of the kernel in `unit`; `stall` is their leading stall
    reason with `stall_pct` of their own stalls. `cause` is the id of the rule that explains them,
    `signals` and `confidence` are those of the cause, `finding` is the sentence. `instructions` are
    the hottest, {address, text, share_pct}; `awaited` is the instruction whose result they wait
    for. `source` quotes the lines with their numbers, if their text is known.
    """

    place: str
    file: str
    first: int
    last: int
    share_pct: float
    unit: str
    stall: str
    stall_pct: float
    cause: str
    signals: tuple[str, ...]
    confidence: str
    finding: str
    instructions: tuple[Mapping[str, Any], ...] = ()
    awaited: str = ""
    source: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The diagnosis, root causes first; empty if no problem is known.

    `unrecognised` are metric names that no rule knows, `ruled_out` are signals that were refuted or
    explained away ({signal, rule, evidence}), `abstained` are rules that lacked some of their
    evidence ({rule, signal, missing}), `measure_next` are canonical metric names that would settle
    the open questions, and `signatures` are the known error texts of the log, the leading one
    first: {id, signal, class, title, remedy, line, line_number, extracted, quantities, advice,
    validity}.
    `class` is the kind of failure: compiler_crash, limit, run_time_fault, host_error,
    broken_environment, user_mistake or warning_only, null where the signature of a chip leaves it
    open. `quantities` are {needed, limit, unit, excess, factor, source} where the line exceeds a
    limit by known numbers, else null; `advice` is the sentence of the message that names a way out
    or a condition, else null; `validity` are the versions of tools that print it. `lines` are the
    hot lines of a profile by line, the hottest first.
    """

    signals: tuple[SignalFinding, ...] = ()
    unrecognised: tuple[str, ...] = ()
    ruled_out: tuple[Mapping[str, Any], ...] = ()
    abstained: tuple[Mapping[str, Any], ...] = ()
    measure_next: tuple[str, ...] = ()
    signatures: tuple[Mapping[str, Any], ...] = ()
    hint: str = ""
    lines: tuple[HotLines, ...] = ()

    @property
    def signal_ids(self) -> tuple[str, ...]:
        """The ids of the signals, the leading one first."""
        return tuple(finding.id for finding in self.signals)

    @property
    def primary(self) -> str:
        """The id of the leading signal, or "unknown"."""
        return self.signals[0].id if self.signals else "unknown"


@dataclass(frozen=True)
class ProfileRead:
    """The metrics read from the profiler output of a request.

    `kind` is the profiler. `metrics` are those of `kernel`, the one that takes most of the time, by
    the profiler's own names; `unread` counts the counters that no rule knows. `kernels` and
    `functions` of the host are rows {name, calls, us, pct}, the longest first; `notes` say what the
    profile shows and what it lacks.
    """

    kind: str
    kernel: str
    metrics: Mapping[str, float | str]
    unread: int = 0
    kernels: tuple[Mapping[str, Any], ...] = ()
    functions: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DocumentRef:
    """The document of an excerpt, in the version that is current."""

    id: str
    title: str
    version: int


@dataclass(frozen=True)
class Excerpt:
    """One passage or several of a section. `hardware` lists its scope, empty for any.

    `page` is {index, label} of its first page (the index counts from 0) or None. `score` is the
    fused score it was ranked by, `channels` are the parts of it: lexical and dense. `text` is empty
    where `context` quotes it, unless the request gives `k` or names `excerpts` in `fields`.
    `validity` are the versions of tools for which it was seen to hold, and `mark` says that a model
    drafted it, or what the versions of the request lack, such as "needs Triton 3.8; yours is 3.6".
    """

    id: str
    category: str
    hardware: tuple[str, ...]
    text: str
    document: DocumentRef
    section: str
    page: Mapping[str, Any] | None
    score: float
    channels: Mapping[str, float]
    passages: tuple[str, ...] = ()
    citation: str = ""
    validity: tuple[Validity, ...] = ()
    mark: str = ""

    def cited(self) -> Excerpt:
        """The excerpt without its text and the parts of its score."""
        return replace(self, text="", channels={})


@dataclass(frozen=True)
class Move:
    """A change of a kernel whose predicate holds, or could not be decided because the values named
    in `missing` are unknown (then `applies` is None).

    `change` is {role, direction} and, where known, {to, factor}; `limit` is the fact that bounds
    the change, {fact, value, unit, source}; `source` is the passage it rests on, `mark` is that of
    an excerpt.
    """

    id: str
    name: str
    when: str
    applies: bool | None
    change: Mapping[str, Any]
    limit: Mapping[str, Any] | None
    why: str
    missing: tuple[str, ...]
    source: Mapping[str, Any]
    mark: str = ""


@dataclass(frozen=True)
class SkillAnswer:
    """A skill that fits. `score` holds the parts of its rank and their product `total`; `evidence`
    is None without measurements on this installation. `effect` describes the measured effect of the
    skill and who measured it; `untested` skills come last. `mark` is that of an excerpt."""

    name: str
    summary: str
    tier: str
    state: str
    score: Mapping[str, float]
    evidence: Mapping[str, Any] | None
    effect: str = "untested"
    mark: str = ""


@dataclass(frozen=True)
class ContextPart:
    """One part of a context: its kind (manual, sample, symbols, section, ...), the id to exclude it
    by, its size in tokens and its citation, empty for lines of this program."""

    kind: str
    id: str
    tokens: int
    citation: str


@dataclass(frozen=True)
class Uplift:
    """The measured gain of a context for a class of readers: `with_context` and `without` in `unit`
    (more is better), and `placebo` with another context of the same size, None if that was not
    measured. `operator` is a kind of operator or `any`; `interval` the 95 % interval of the ratio,
    `n` the number of problems or cells, `tokens` by how much the context made the prompt longer,
    None if that was not recorded. `source` is the page that records the measurement."""

    chip: str
    operator: str
    language: str
    reader: str
    model: str
    with_context: float
    without: float
    unit: str
    n: int
    date: str
    command: str
    source: str
    placebo: float | None = None
    tokens: int | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class NamedFact:
    """A fact of the chip that the question names: `value` as people write it, `number` in `unit`
    (None for a text), `source` where it was read or measured, `hardware` its owner."""

    id: str
    key: str
    value: str
    number: float | None
    unit: str
    hardware: str
    kind: str
    source: str
    url: str | None = None


@dataclass(frozen=True)
class Answer:
    """`excerpts` is the ranked list, `context` the text packed for a prompt, `hints` advise how to
    improve the request. Outcomes are reported under `retrieval_id`.

    `task` is the purpose of the context. Its first `context_stable` characters stay equal in every
    request about the same chip, language, operator and budget that excludes nothing (0 if a small
    budget leaves no room for it); moves and skills begin at character `context_actions`. `parts`
    lists its contents, and `unknown_names` the names of the draft without a card. `profile` lists
    the metrics read from a given profile. `uplift` are measured gains of contexts on this chip, the
    closest first; empty if none is known. `versions` are those of the caller's tools, given or as
    the log prints them; they decide which entries are marked or left out. `facts` are those of the
    chip that the question names, the closest first.
    """

    retrieval_id: str
    diagnosis: Verdict
    hardware: Mapping[str, Any] | None
    excerpts: tuple[Excerpt, ...]
    skills: tuple[SkillAnswer, ...]
    moves: tuple[Move, ...]
    context: str
    context_tokens: int = 0
    skills_withheld: tuple[str, ...] = ()
    hints: tuple[str, ...] = field(default=())
    task: str = "ask"
    context_stable: int = 0
    context_actions: int = 0
    parts: tuple[ContextPart, ...] = ()
    unknown_names: tuple[Mapping[str, Any], ...] = ()
    profile: ProfileRead | None = None
    uplift: tuple[Uplift, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: tuple[NamedFact, ...] = ()

    def only(self, names: Collection[str]) -> Answer:
        """The answer with only these parts; all of them if there are no names."""
        if not names:
            return self
        empty: dict[str, Any] = {
            name: "" if name == "context" else () for name in ANSWER_FIELDS if name not in names
        }
        empty.pop("citations", None)
        if "diagnosis" in empty:
            empty["diagnosis"] = Verdict()
        if "citations" in names and "excerpts" not in names:
            empty["excerpts"] = tuple(excerpt.cited() for excerpt in self.excerpts)
        return replace(self, **empty)

    def short(self) -> Answer:
        """The answer without `parts`, `uplift`, the texts of excerpts that `context` quotes, and
        the signals that were ruled out or not decided."""
        excerpts = (e.cited() if e.text.strip() in self.context else e for e in self.excerpts)
        diagnosis = replace(self.diagnosis, ruled_out=(), abstained=())
        short = replace(self, diagnosis=diagnosis, excerpts=tuple(excerpts))
        return replace(short, parts=(), uplift=())
