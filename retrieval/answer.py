"""What is asked of the service and what it answers, as data. The JSON forms are the HTTP contract.

Knows nothing about how an answer is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kb.predicates import Value
from kb.problem_terms import canonical_dtype, canonical_op
from kb.scope import ALL_ACCESS


@dataclass(frozen=True)
class RetrieveRequest:
    """Any combination of signal, log, metrics and query; at least one of them.

    signals: further ones after `signal`, the leading one first. metrics: raw profiler names to
    numbers (or numeric text). problem: further quantities of the problem, named as in
    kb/problem_terms.toml. roles: of what the asker can change (kb/moves_vocabulary.py): moves of
    these come in addition to the best of any role. k: excerpts in the ranked list. max_tokens:
    budget of the packed context. run_id, node_id: of an optimizer's run, for the log. Everything
    else narrows the answer."""

    signal: str | None = None
    log: str | None = None
    metrics: Mapping[str, float | str] | None = None
    query: str | None = None
    hardware: str | None = None
    op: str | None = None
    language: str | None = None
    dtype: str | None = None
    problem: Mapping[str, float | str] | None = None
    k: int = 20
    max_tokens: int = 6000
    categories: tuple[str, ...] | None = None
    skill_states: tuple[str, ...] = ()
    run_id: str | None = None
    node_id: str | None = None
    access_scope: str = ALL_ACCESS
    signals: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    @property
    def given_signals(self) -> tuple[str, ...]:
        """`signal` and `signals`, each once."""
        return tuple(dict.fromkeys(filter(None, (self.signal, *self.signals))))

    @property
    def problem_values(self) -> dict[str, Value | None]:
        """What predicates see as `problem.<name>`, in canonical words."""
        return {
            **(self.problem or {}),
            "op": canonical_op(self.op) if self.op else None,
            "language": self.language,
            "dtype": canonical_dtype(self.dtype) if self.dtype else None,
        }


@dataclass(frozen=True)
class SignalFinding:
    """confidence: A vendor's rule, B peer's code, C heuristic; "given" when the caller named the
    signal.
    """

    id: str
    confidence: str
    evidence: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    signals: tuple[SignalFinding, ...] = ()
    unrecognised: tuple[str, ...] = ()
    ruled_out: tuple[Mapping[str, Any], ...] = ()
    abstained: tuple[Mapping[str, Any], ...] = ()
    measure_next: tuple[str, ...] = ()
    signatures: tuple[Mapping[str, Any], ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class DocumentRef:
    id: str
    title: str
    version: int


@dataclass(frozen=True)
class Excerpt:
    """One passage or several of a section. `hardware` lists what it is scoped to, empty for any.

    page: {index, label} of its first page, or None; score: the fused score it was ranked by,
    channels: its parts."""

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


@dataclass(frozen=True)
class MoveAnswer:
    """A remedy whose predicate holds, or could not be decided for lack of a value (then `applies`
    is None).
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


@dataclass(frozen=True)
class SkillAnswer:
    name: str
    summary: str
    tier: str
    state: str
    score: Mapping[str, float]
    evidence: Mapping[str, Any] | None


@dataclass(frozen=True)
class Answer:
    retrieval_id: str
    diagnosis: Diagnosis
    hardware: Mapping[str, Any] | None
    excerpts: tuple[Excerpt, ...]
    skills: tuple[SkillAnswer, ...]
    moves: tuple[MoveAnswer, ...]
    context: str
    context_tokens: int = 0
    skills_withheld: tuple[str, ...] = ()
    hints: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """The body of /retrieve."""
        return asdict(self)
