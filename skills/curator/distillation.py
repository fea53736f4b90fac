"""What a distillation decided, and everything that it decided from: stored as JSON, it can be
judged again and must come out the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from kb.catalog.skills import EvidenceRow, SkillDraft, SkillRow, SkillScopes
from kb.embedding import Embedder
from kb.errors import InvalidKnowledge
from skills.curator.matching.match import Known
from skills.curator.reading.contrast import Roles
from skills.curator.records import Change, Decision, Operation, Trajectory, trajectory_from_json
from skills.observation import Part

FORMAT = 1


@dataclass(frozen=True)
class Narrowing:
    """What an existing skill no longer claims: its new precondition, and the parts of its scope
    that this leaves out."""

    predicate: str | None
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Delta:
    """One change of the library. draft: the whole skill, of ADD and REFINE and where evidence
    widens a candidate; version: of the skill that it follows, 0 for a new one. conflicts_with: the
    skill of opposite effect."""

    operation: Operation
    node: int
    skill: str
    reason: str
    draft: SkillDraft | None = None
    evidence: tuple[EvidenceRow, ...] = ()
    conflicts_with: str = ""
    narrowing: Narrowing | None = None
    version: int = 0


@dataclass(frozen=True)
class StoredDelta:
    """What became of a delta. outcome: created | updated | unchanged."""

    skill: str
    operation: str
    outcome: str
    version: int
    evidence: int


@dataclass(frozen=True)
class Lifted:
    """A kernel as a recipe: its JSON and the template beside it.
    signals: of verdicts under which a search would begin with it; none for those of the change."""

    name: str
    recipe: Mapping[str, Any]
    files: Mapping[str, str]
    signals: tuple[str, ...] = ()


class Lifter(Protocol):
    """Makes a recipe of a kernel without one. Deterministic; a text says why it cannot."""

    def lift(self, trajectory: Trajectory, change: Change) -> Lifted | str: ...


@dataclass(frozen=True)
class Library:
    """The part of the library that a trajectory can meet. taken: names of all skills."""

    known: tuple[Known, ...] = ()
    taken: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Means:
    """What is decided with, beside trajectory and library. names: of every registered hardware, by
    id. lineages: from the chip upwards. shown: texts that steps were shown, by id."""

    roles: Roles = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lineages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
    embedder: Embedder | None = None

    @property
    def fingerprint(self) -> str:
        return self.embedder.fingerprint if self.embedder is not None else ""


@dataclass(frozen=True)
class Distillation:
    """drafter, embedder: names of what was asked, "" for none. answers: of the drafter, by node.
    after: the library once the deltas are stored; it follows from the rest and is not recorded."""

    trajectory: Trajectory
    library: Library
    means: Means
    decisions: tuple[Decision, ...]
    deltas: tuple[Delta, ...]
    drafter: str = ""
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stored: tuple[StoredDelta, ...] = ()
    after: Library = field(default_factory=Library)

    def as_json(self) -> dict[str, Any]:
        means = {name: _plain(getattr(self.means, name)) for name in _MEANS}
        return {
            "format": FORMAT,
            "trajectory": self.trajectory.as_json(),
            "library": {
                "known": [asdict(known) for known in self.library.known],
                "taken": sorted(self.library.taken),
            },
            "means": {**means, "embedder": self.means.fingerprint},
            "decisions": [asdict(decision) for decision in self.decisions],
            "deltas": [asdict(delta) for delta in self.deltas],
            "drafter": self.drafter,
            "answers": _plain(self.answers),
            "stored": [asdict(stored) for stored in self.stored],
        }


_MEANS = ("roles", "names", "lineages", "shown")


def _plain(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: dict(value) if isinstance(value, Mapping) else value
        for key, value in sorted(mapping.items())
    }


@dataclass(frozen=True)
class Recorded:
    """What is judged again: everything of a stored distillation but its outcome."""

    trajectory: Trajectory
    library: Library
    means: Means
    drafter: str
    answers: Mapping[str, tuple[str, ...]]


def recorded_from(record: Mapping[str, Any], embedder: Embedder | None) -> Recorded:
    """The inverse of `as_json`, with the embedder that it was made with."""
    if record.get("format") != FORMAT:
        raise InvalidKnowledge(
            f"a distillation of format {record.get('format')!r}",
            hint=f"This version reads format {FORMAT}; distil the run again.",
        )
    wanted = record["means"]["embedder"]
    found = embedder.fingerprint if embedder is not None else ""
    if wanted != found:
        raise InvalidKnowledge(
            f"it was made with the embedder {wanted or 'none'}, not {found or 'none'}",
            hint="Replay with the same embedding model, or distil the run again.",
        )
    means = record["means"]
    return Recorded(
        trajectory=trajectory_from_json(record["trajectory"]),
        library=Library(
            tuple(_known(row) for row in record["library"]["known"]),
            frozenset(record["library"]["taken"]),
        ),
        means=Means(
            roles=means["roles"],
            names=_tuples(means["names"]),
            lineages=_tuples(means["lineages"]),
            shown=means["shown"],
            embedder=embedder,
        ),
        drafter=record["drafter"],
        answers=_tuples(record["answers"]),
    )


def _tuples(mapping: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(value) for key, value in mapping.items()}


def _known(row: Mapping[str, Any]) -> Known:
    told = row["row"]
    scopes = SkillScopes(**{kind: tuple(values) for kind, values in told["scopes"].items()})
    lists = {name: tuple(told[name]) for name in ("moves", "sources")}
    return Known(
        SkillRow(**{**told, **lists, "scopes": scopes}),
        tuple(EvidenceRow(**evidence) for evidence in row["evidence"]),
    )
