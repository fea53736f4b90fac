"""Rows of skills as data, and which state may follow which.

Knows no statement of SQL beyond the names of the columns that each row is read from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kb.errors import InvalidRequest
from kb.ids import SkillId

Tier = Literal["curated", "learned"]
State = Literal["candidate", "active", "suspect", "retired", "quarantined"]
Outcome = Literal["created", "updated", "unchanged"]
EvidenceKind = Literal["ablation", "pair", "lift", "simulator"]
LinkKind = Literal["conflicts_with"]
Role = Literal["shown", "used", "withheld"]

TIERS: tuple[Tier, ...] = ("curated", "learned")
STATES: tuple[State, ...] = ("candidate", "active", "suspect", "retired", "quarantined")
EVIDENCE_KINDS: tuple[EvidenceKind, ...] = ("ablation", "pair", "lift", "simulator")
LINK_KINDS: tuple[LinkKind, ...] = ("conflicts_with",)
ROLES: tuple[Role, ...] = ("shown", "used", "withheld")
REVISES = "revises"  # in the metadata of a revision: the name of the skill whose text it would be
REVISES_VERSION = "revises_version"  # the version of that skill which it was made from
REVISES_SHA256 = "revises_sha256"  # its digest under that name
AVOIDING = "Avoid: "  # before what a warning warns of
WRITTEN = ("created", "revised")  # events that change what a skill says
TRANSITIONS: Mapping[str, frozenset[str]] = {
    "candidate": frozenset({"active", "retired", "quarantined"}),
    "active": frozenset({"suspect", "retired", "quarantined"}),
    "suspect": frozenset({"active", "candidate", "retired", "quarantined"}),
    "retired": frozenset({"candidate", "active", "quarantined"}),
    "quarantined": frozenset({"candidate", "active", "retired"}),
}
SCOPE_KINDS: Mapping[str, str] = {
    "hardware": "hardware",
    "languages": "language",
    "ops": "op",
    "dtypes": "dtype",
    "signals": "signal",
}


@dataclass(frozen=True)
class SkillScopes:
    """What a skill is about; an empty tuple restricts nothing."""

    hardware: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


@dataclass(frozen=True)
class SkillDraft:
    """A skill as it is to be stored. `version` counts only when the skill is new here."""

    name: str
    tier: Tier
    transformation: str
    description: str
    body: str
    scopes: SkillScopes
    content_sha256: str
    origin: Literal["shipped", "import", "run", "person"]
    polarity: str = "use"
    predicate: str | None = None
    moves: Sequence[Mapping[str, Any]] = ()
    recipe: Mapping[str, Any] | None = None
    sources: Sequence[Mapping[str, Any]] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    license: str | None = None
    compatibility: str | None = None
    version: int = 1
    origin_run_id: str | None = None
    toolchain_id: str | None = None


@dataclass(frozen=True)
class SkillHead:
    """What listing and ranking need of a skill: everything but its long texts.

    `trials` counts the uses of the present text, within the present scope, whose effect is known;
    `wins` counts those that helped. `toolchain_id` is that of its newest evidence, `written_at` the
    time when the present text was written.
    """

    id: SkillId
    name: str
    version: int
    tier: str
    state: str
    polarity: str
    transformation: str
    description: str
    predicate: str | None
    structured_key: str
    origin: str
    toolchain_id: str | None
    trials: int
    wins: int
    last_used_at: str | None
    written_at: str
    created_at: str
    updated_at: str
    scopes: SkillScopes


@dataclass(frozen=True)
class SkillRow(SkillHead):
    """A skill with all its texts."""

    compatibility: str | None
    license: str | None
    body: str
    moves: tuple[Mapping[str, Any], ...]
    recipe: Mapping[str, Any] | None
    sources: tuple[Mapping[str, Any], ...]
    metadata: Mapping[str, Any]
    content_sha256: str
    origin_run_id: str | None

    @property
    def revises(self) -> str | None:
        """The name of the skill that this one is a revision of."""
        return self.metadata.get(REVISES)


@dataclass(frozen=True)
class SkillEvent:
    """A change in a skill's history, numbered from 1 within the skill."""

    sequence: int
    event: str
    from_state: str | None
    to_state: str | None
    actor: str
    reason: str
    details: Mapping[str, Any]
    created_at: str


@dataclass(frozen=True)
class EvidenceRow:
    """One measurement that backs (or contradicts) a skill. Times are in microseconds a call.

    `toolchain_id` is the toolchain as the harness names it (`triton-nvidia triton 3.4.0, ...`).
    """

    id: str
    hardware_id: str
    device_id: str | None
    toolchain_id: str | None
    problem_id: str | None
    case_id: str | None
    evaluation_id: str | None
    kind: str
    n: int
    baseline_us: float | None
    measured_us: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    details: Mapping[str, Any]
    created_at: str


@dataclass(frozen=True)
class Link:
    """A relation of two skills, by name. It reads `source kind target`."""

    source: str
    kind: str
    target: str
    created_at: str


@dataclass(frozen=True)
class NewUse:
    """The use of a skill in one answer.

    `helped` is 1, 0 or None (not known). `gain` is the time before over the time after. `situation`
    is what the request was about: op, dtype, hardware, language, quantities.
    """

    retrieval_id: str
    skill: str
    role: Role
    helped: int | None = None
    gain: float | None = None
    situation: Mapping[str, Any] = field(default_factory=dict)
    outcome_id: str | None = None


@dataclass(frozen=True)
class UseRow:
    """A stored use; `version` is the skill's when it was shown or used."""

    retrieval_id: str
    outcome_id: str | None
    version: int
    role: str
    helped: int | None
    gain: float | None
    situation: Mapping[str, Any]
    created_at: str


@dataclass(frozen=True)
class Lift:
    """Known outcomes of answers that showed a skill, and of those from which it was withheld."""

    shown: int
    shown_wins: int
    withheld: int
    withheld_wins: int


@dataclass(frozen=True)
class Stored:
    """The result of a `put`."""

    id: SkillId
    outcome: Outcome
    version: int


def structured_key(scopes: SkillScopes, transformation: str) -> str:
    """A key that is equal for two skills that make the same claim about the same situation."""
    parts = (
        scopes.ops,
        scopes.signals,
        (transformation,),
        scopes.hardware,
        scopes.dtypes,
        scopes.languages,
    )
    return "|".join(",".join(sorted(part)) for part in parts)


def as_warning(description: str) -> str:
    """The description of a skill to avoid, so that it cannot be read as advice."""
    return description if description.lower().startswith("avoid") else f"{AVOIDING}{description}"


def one_of(value: str, known: Sequence[str], what: str) -> None:
    """Raise InvalidRequest for a word that is not among the known ones."""
    if value not in known:
        raise InvalidRequest(f"{value!r} is no {what}", hint=f"Use one of {', '.join(known)}.")
