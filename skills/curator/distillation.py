"""What a distillation decided, and everything that it decided from: stored as JSON, it can be
judged again and must come out the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kb.catalog.skills import EvidenceRow, SkillRow, SkillScopes
from kb.embedding import Embedder
from kb.errors import InvalidKnowledge
from skills.curator.contrast import Roles
from skills.curator.match import KnownSkill
from skills.curator.records import Decision, Delta, StoredDelta
from skills.trajectories.records import Trajectory, trajectory_from_json

FORMAT = 1


@dataclass(frozen=True)
class Library:
    """The part of the library that a trajectory can meet. `taken` holds the names of all skills."""

    known: tuple[KnownSkill, ...] = ()
    taken: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CuratorContext:
    """What is decided with, beside trajectory and library.

    `roles` are those of recipes' parameters. `names` holds the names of every registered hardware,
    by id; `lineages` its lineage, from the chip upwards. `shown` holds texts that steps were shown,
    by id. Without an embedder, skills in other words are not recognised.
    """

    roles: Roles = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lineages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
    embedder: Embedder | None = None

    @property
    def fingerprint(self) -> str:
        """The embedder's fingerprint; empty without one."""
        return self.embedder.fingerprint if self.embedder is not None else ""


@dataclass(frozen=True)
class Distillation:
    """The decisions about one trajectory and the deltas that follow.

    `drafter` names the model that drafted, empty for none; `answers` are what it answered, by node.
    `lifted` is what lifting answered, by node: a recipe as JSON, or why there is none. `after` is
    the library once the deltas are stored; it follows from the rest and is not recorded.
    """

    trajectory: Trajectory
    library: Library
    context: CuratorContext
    decisions: tuple[Decision, ...]
    deltas: tuple[Delta, ...]
    drafter: str = ""
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lifted: Mapping[str, Any] = field(default_factory=dict)
    stored: tuple[StoredDelta, ...] = ()
    after: Library = field(default_factory=Library)

    def as_json(self) -> dict[str, Any]:
        """The record, without `lifted`, which is stored beside it. `recorded_from` reads it."""
        context = {name: _plain(getattr(self.context, name)) for name in _CONTEXT}
        return {
            "format": FORMAT,
            "trajectory": self.trajectory.as_json(),
            "library": {
                "known": [asdict(known) for known in self.library.known],
                "taken": sorted(self.library.taken),
            },
            "means": {**context, "embedder": self.context.fingerprint},
            "decisions": [asdict(decision) for decision in self.decisions],
            "deltas": [asdict(delta) for delta in self.deltas],
            "drafter": self.drafter,
            "answers": _plain(self.answers),
            "stored": [asdict(stored) for stored in self.stored],
        }


_CONTEXT = ("roles", "names", "lineages", "shown")


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
    context: CuratorContext
    drafter: str
    answers: Mapping[str, tuple[str, ...]]


def recorded_from(record: Mapping[str, Any], embedder: Embedder | None) -> Recorded:
    """What `Distillation.as_json` recorded, with the embedder that it was made with. Raises
    InvalidKnowledge for a record of another format or of another embedding model."""
    if record.get("format") != FORMAT:
        raise InvalidKnowledge(
            f"a distillation of format {record.get('format')!r}",
            hint=f"This version reads format {FORMAT}; distil the run again.",
        )
    recorded = record["means"]["embedder"]
    present = embedder.fingerprint if embedder is not None else ""
    if recorded != present:
        raise InvalidKnowledge(
            f"it was made with the embedder {recorded or 'none'}, not {present or 'none'}",
            hint="Replay with the same embedding model, or distil the run again.",
        )
    context = record["means"]
    return Recorded(
        trajectory=trajectory_from_json(record["trajectory"]),
        library=Library(
            tuple(_known(row) for row in record["library"]["known"]),
            frozenset(record["library"]["taken"]),
        ),
        context=CuratorContext(
            roles=context["roles"],
            names=_tuples(context["names"]),
            lineages=_tuples(context["lineages"]),
            shown=context["shown"],
            embedder=embedder,
        ),
        drafter=record["drafter"],
        answers=_tuples(record["answers"]),
    )


def _tuples(mapping: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(value) for key, value in mapping.items()}


def _known(row: Mapping[str, Any]) -> KnownSkill:
    skill = row["row"]
    scopes = SkillScopes(**{kind: tuple(values) for kind, values in skill["scopes"].items()})
    lists = {name: tuple(skill[name]) for name in ("moves", "sources")}
    return KnownSkill(
        SkillRow(**{**skill, **lists, "scopes": scopes}),
        tuple(EvidenceRow(**evidence) for evidence in row["evidence"]),
    )
