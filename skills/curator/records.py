"""What the curator hands from step to step: a change with its structure, what each step decided,
and the deltas of the library that follow, as data that can be stored and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kb.catalog.skills import EvidenceRow, SkillDraft
from optimizer.evaluation.records import Interval
from optimizer.search.records import Value
from skills.trajectories.records import Trajectory, TrajectoryStep
from skills.uses import ScopePart

Operation = Literal["ADD", "ADD_EVIDENCE", "REFINE", "CONTRADICT", "DEPRECATE"]
OPERATIONS: tuple[Operation, ...] = ("ADD", "ADD_EVIDENCE", "REFINE", "CONTRADICT", "DEPRECATE")


@dataclass(frozen=True)
class ParameterChange:
    """A parameter that differs between parent and child. `role` is its role as moves name it."""

    name: str
    role: str
    before: Value | None
    after: Value


@dataclass(frozen=True)
class KernelChange:
    """The structured delta of a step, without the transcript: what a skill is drafted from.

    `polarity` is `avoid` for an informative failure. `transformation` is its name in the library's
    words (`increase-tile_m`, `use-recipe-cpp-row-softmax`, `vectorise`). `gain` is the child's
    speed-up over the parent, from figures that were both taken against the reference in sessions of
    their own; None where either has none. `before` and `after` are the signals of the two verdicts.
    `pattern` holds normalised lines that went (`-`) and came (`+`), for kernels that are no
    instances of one recipe.
    """

    step: TrajectoryStep
    polarity: Literal["use", "avoid"]
    transformation: str
    parameters: tuple[ParameterChange, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    gain: Interval | None
    pattern: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """What one step of the curator decided about one change; kept, so that a distillation can be
    read and replayed. `stage` is gate, contrast, draft, lint, normalise or match."""

    stage: str
    node: int
    passed: bool
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Lifted:
    """A kernel as a recipe: its JSON and the template beside it.

    `signals` are those of verdicts under which a search would begin with it; empty where those of
    the change hold.
    """

    name: str
    recipe: Mapping[str, Any]
    files: Mapping[str, str]
    signals: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "recipe": dict(self.recipe),
            "files": dict(self.files),
            "signals": list(self.signals),
        }


# Makes a recipe of the child of a change, or says in words why it cannot.
Lift = Callable[[Trajectory, KernelChange], Lifted | str]


@dataclass(frozen=True)
class Narrowing:
    """What an existing skill no longer claims: its new precondition, and the parts of its scope
    that this leaves out."""

    predicate: str | None
    parts: tuple[ScopePart, ...]


@dataclass(frozen=True)
class Delta:
    """One change of the library.

    `draft` is the whole skill, of ADD and REFINE and where evidence widens a candidate. `version`
    is that of the skill that it follows, 0 for a new one. `conflicts_with` names the skill of
    opposite effect.
    """

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
    """What became of a delta. `outcome` is created, updated or unchanged."""

    skill: str
    operation: str
    outcome: str
    version: int
    evidence: int
