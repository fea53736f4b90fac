"""The data of the curator: a change with its structure, the decision of each step, the deltas of
the library that follow, and the distillation that holds all of them.

A distillation is stored as JSON with everything that it was decided from, so that it can be judged
again and must come out the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from kb.catalog.skills.reading import EvidenceRow, SkillDraft, SkillRow, SkillScopes
from kb.embedding import Embedder
from kb.errors import InvalidKnowledge
from optimizer.evaluation.records import Interval
from optimizer.search.records import Value
from skills.curator.comparison import body_key
from skills.trajectories.records import Trajectory, TrajectoryStep, trajectory_from_json
from skills.uses import ScopePart

FORMAT = 1  # of a stored distillation
Operation = Literal["ADD", "ADD_EVIDENCE", "REFINE", "CONTRADICT", "DEPRECATE"]
OPERATIONS: tuple[Operation, ...] = ("ADD", "ADD_EVIDENCE", "REFINE", "CONTRADICT", "DEPRECATE")
Polarity = Literal["use", "avoid"]
# Transformations other than those of parameters and of rules for code.
ADOPTED = "use-recipe-"
WRITTEN = "write-kernel"  # a whole kernel in place of the reference
UNNAMED = ""  # free code that matches no rule: only a drafting model can name it
Roles = Mapping[str, Mapping[str, str]]  # recipe -> parameter -> its role as moves name it
Lineages = Mapping[str, Sequence[str]]  # hardware -> its lineage, from the chip upwards


# -- a change


@dataclass(frozen=True)
class ParameterChange:
    """A parameter that differs between parent and child. `role` is its role as moves name it."""

    name: str
    role: str
    before: Value | None
    after: Value


@dataclass(frozen=True)
class KernelChange:
    """The structured delta of a step, from which a skill is drafted.

    `polarity` is `avoid` for an informative failure. `transformation` is its name in the library's
    words (`increase-tile_m`, `use-recipe-cpp-row-softmax`, `vectorise`). `gain` is the child's
    speed-up over the parent, from two figures that were each taken against the reference; None if
    either has none. `before` and `after` are the signals of the two verdicts. `pattern` holds the
    lines that were removed (`-`) and added (`+`), for kernels that are not instances of one recipe.
    """

    step: TrajectoryStep
    polarity: Polarity
    transformation: str
    parameters: tuple[ParameterChange, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    gain: Interval | None
    pattern: tuple[str, ...] = ()

    @property
    def node(self) -> int:
        return self.step.child.number

    @property
    def language(self) -> str:
        return self.step.proposal.bundle.language

    @property
    def adopted(self) -> str:
        """The recipe that the change starts to use, or ""."""
        name = self.transformation
        return name.removeprefix(ADOPTED) if name.startswith(ADOPTED) else ""

    @property
    def added(self) -> list[str]:
        return [line[1:] for line in self.pattern if line.startswith("+")]


@dataclass(frozen=True)
class Decision:
    """The decision of one step of the curator about one change. `stage` is gate, contrast, draft,
    lint, normalise or match."""

    stage: str
    node: int
    passed: bool
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LiftedRecipe:
    """A kernel as a recipe: its JSON, and the template as `files`.

    `signals` are those of verdicts under which a search would begin with it; if empty, those of the
    change hold.
    """

    name: str
    recipe: Mapping[str, Any]
    files: Mapping[str, str]
    signals: tuple[str, ...] = ()


# Makes a recipe of the child of a change, or returns the reason why it cannot.
Lift = Callable[[Trajectory, KernelChange], LiftedRecipe | str]


# -- the library


@dataclass(frozen=True)
class LibrarySkill:
    """A skill of the library with its measurements."""

    row: SkillRow
    evidence: tuple[EvidenceRow, ...] = ()

    @property
    def text(self) -> str:
        """The body; of a drafted skill the template, with references in place of figures."""
        drafted: Mapping[str, str] = self.row.metadata.get("curator", {})
        return drafted.get("template", self.row.body)

    @cached_property
    def body_key(self) -> str:
        """The hash of its text, computed once for all drafts that are compared."""
        return body_key(self.text)


@dataclass(frozen=True)
class LibrarySnapshot:
    """The skills that a trajectory can concern. `taken` holds the names of all skills."""

    known: tuple[LibrarySkill, ...] = ()
    taken: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Narrowing:
    """A new precondition of an existing skill, and the parts of its scope that it leaves out."""

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
    """The result of storing a delta. `outcome` is created, updated or unchanged."""

    skill: str
    operation: str
    outcome: str
    version: int
    evidence: int


# -- a distillation


@dataclass(frozen=True)
class CuratorContext:
    """The inputs of decisions other than trajectory and library.

    `names` holds the names of every registered hardware by id, `shown` the texts that steps were
    shown by id. Without an embedder, paraphrases of skills are not recognised.
    """

    roles: Roles = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lineages: Lineages = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
    embedder: Embedder | None = None

    @property
    def fingerprint(self) -> str:
        """The embedder's fingerprint; empty without one."""
        return self.embedder.fingerprint if self.embedder is not None else ""


@dataclass(frozen=True)
class Distillation:
    """The decisions about one trajectory and the deltas that follow.

    `drafter` names the model that drafted, empty without one; `answers` are its answers by node.
    `lifted` holds by node the recipe made of a kernel as JSON, or the reason for its absence.
    `after` is the library once the deltas are stored; it follows from the rest and is not recorded.
    """

    trajectory: Trajectory
    library: LibrarySnapshot
    context: CuratorContext
    decisions: tuple[Decision, ...]
    deltas: tuple[Delta, ...]
    drafter: str = ""
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lifted: Mapping[str, Any] = field(default_factory=dict)
    stored: tuple[StoredDelta, ...] = ()
    after: LibrarySnapshot = field(default_factory=LibrarySnapshot)

    def as_json(self) -> dict[str, Any]:
        """The record, without `lifted`, which is stored next to it."""
        context = self.context
        return {
            "format": FORMAT,
            "trajectory": self.trajectory.as_json(),
            "library": {
                "known": [asdict(known) for known in self.library.known],
                "taken": sorted(self.library.taken),
            },
            "means": {
                "roles": {recipe: dict(roles) for recipe, roles in sorted(context.roles.items())},
                "names": dict(sorted(context.names.items())),
                "lineages": dict(sorted(context.lineages.items())),
                "shown": dict(sorted(context.shown.items())),
                "embedder": context.fingerprint,
            },
            "decisions": [asdict(decision) for decision in self.decisions],
            "deltas": [asdict(delta) for delta in self.deltas],
            "drafter": self.drafter,
            "answers": dict(sorted(self.answers.items())),
            "stored": [asdict(stored) for stored in self.stored],
        }


def inputs_from_json(record: Mapping[str, Any], embedder: Embedder | None) -> Distillation:
    """The inputs of a stored distillation, without its decisions and deltas. Raises
    InvalidKnowledge for a record of another format or of another embedding model."""
    if record.get("format") != FORMAT:
        raise InvalidKnowledge(
            f"a distillation of format {record.get('format')!r}",
            hint=f"This version reads format {FORMAT}; distil the run again.",
        )
    context = record["means"]
    present = embedder.fingerprint if embedder is not None else ""
    if context["embedder"] != present:
        raise InvalidKnowledge(
            f"it was made with the embedder {context['embedder'] or 'none'},"
            f" not {present or 'none'}",
            hint="Replay with the same embedding model, or distil the run again.",
        )
    library = record["library"]
    return Distillation(
        trajectory=trajectory_from_json(record["trajectory"]),
        library=LibrarySnapshot(
            tuple(_known_from_json(row) for row in library["known"]), frozenset(library["taken"])
        ),
        context=CuratorContext(
            roles=context["roles"],
            names=_tuples(context["names"]),
            lineages=_tuples(context["lineages"]),
            shown=context["shown"],
            embedder=embedder,
        ),
        decisions=(),
        deltas=(),
        drafter=record["drafter"],
        answers=_tuples(record["answers"]),
    )


def _tuples(mapping: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(value) for key, value in mapping.items()}


def _known_from_json(row: Mapping[str, Any]) -> LibrarySkill:
    skill = row["row"]
    scopes = SkillScopes(**{kind: tuple(values) for kind, values in skill["scopes"].items()})
    lists = {name: tuple(skill[name]) for name in ("moves", "sources")}
    return LibrarySkill(
        SkillRow(**{**skill, **lists, "scopes": scopes}),
        tuple(EvidenceRow(**evidence) for evidence in row["evidence"]),
    )
