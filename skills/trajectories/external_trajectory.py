"""An external trajectory: what another optimizer reports about its search, as data. It is checked
for form and size, and none of its claims count.

A claimed speed-up stays beside what is measured here and enters no figure; texts are kept as texts.
Nothing of it runs here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from kb.errors import InvalidRequest, KernloreError, PayloadTooLarge
from kb.ids import derived_id
from optimizer.evaluation.bundle import MANIFEST, Bundle
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation
from optimizer.search.records import REFERENCE, Node, NodeState, Proposal
from optimizer.search.tree import Tree

FORMAT = 1
MAX_STEPS = 200
MAX_STEP_BYTES = 1024 * 1024  # of one candidate's files
MAX_BYTES = 8 * 1024 * 1024  # of all of them
MAX_PLAN = 4_000  # characters; also of one text
MAX_TEXTS = 20
MAX_IDS = 100
SYNTHESIZER = "told"  # as it is stored
FILE_OF: Mapping[str, str] = {
    "cpp": "kernel.cpp",
    "cuda": "kernel.cu",
    "triton": "kernel.py",
    "torch": "kernel.py",
}


@dataclass(frozen=True)
class ExternalProblem:
    """The problem of an external trajectory: the `name` of a shipped one, else the text of a
    problem file and of the toml beside it."""

    name: str | None = None
    source: str = ""
    toml: str | None = None


@dataclass(frozen=True)
class ExternalStep:
    """A candidate of an external trajectory.

    `number` counts from 1, in order. `parent` is the number of an earlier step, 0 for the problem's
    reference. `claimed` holds ids that the other optimizer says it used, `texts` its own words
    (stored as `told`), `claimed_speedup` its speed-up over the reference, as it says. `cases` names
    those that the candidate is for, empty for all.
    """

    number: int
    parent: int
    bundle: Bundle
    plan: str = ""
    claimed: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    claimed_speedup: float | None = None
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExternalTrajectory:
    """What another optimizer reports. `hardware` is an id of the registry. `licence` is that of
    sources and problem, as the sender states it. Raises InvalidRequest or PayloadTooLarge."""

    problem: ExternalProblem
    hardware: str
    steps: tuple[ExternalStep, ...]
    actor: str = "external"
    licence: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.steps) <= MAX_STEPS:
            raise InvalidRequest(
                f"the trajectory has {len(self.steps)} steps",
                hint=f"Send between 1 and {MAX_STEPS}; split a longer one at a candidate.",
            )
        for place, step in enumerate(self.steps, 1):
            _check(step, place)
        if sum(map(_bytes, self.steps)) > MAX_BYTES:
            raise PayloadTooLarge(
                f"the sources of all steps have more than {MAX_BYTES:,} bytes",
                hint="Send fewer steps, or those that matter.",
            )

    @property
    def id(self) -> str:
        """The same steps for the same problem and hardware are the same trajectory."""
        return derived_id("trj", json.dumps({**self.as_json(), "actor": ""}, sort_keys=True))

    def as_json(self) -> dict[str, Any]:
        """The stored form. `external_trajectory_from_json` reads it."""
        row = {"format": FORMAT, **asdict(self)}
        for step in row["steps"]:
            step["told"] = step.pop("texts")
        return row


def external_trajectory_from_json(row: Mapping[str, Any]) -> ExternalTrajectory:
    """The external trajectory of its stored form. Raises KeyError for anything else."""
    steps = (
        ExternalStep(
            step["number"],
            step["parent"],
            Bundle(**step["bundle"]),
            step["plan"],
            tuple(step["claimed"]),
            tuple(step["told"]),
            step["claimed_speedup"],
            tuple(step["cases"]),
        )
        for step in row["steps"]
    )
    return ExternalTrajectory(
        ExternalProblem(**row["problem"]),
        row["hardware"],
        tuple(steps),
        row["actor"],
        row["licence"],
    )


def file_name(language: str) -> str:
    """The file name of a candidate that is one source text. Raises InvalidRequest for a language
    without one."""
    if language not in FILE_OF:
        raise InvalidRequest(
            f"no file name follows from the language {language[:40]!r}",
            hint="Send `files` (name to text) and `main` in place of `source`.",
        )
    return FILE_OF[language]


def about_step(number: int, error: KernloreError) -> KernloreError:
    """The same error, saying which step it is about."""
    return type(error)(f"step {number}: {error.message}", hint=error.hint, details=error.details)


def _check(step: ExternalStep, place: int) -> None:
    if step.number != place:
        raise InvalidRequest(
            f"step {step.number} stands at place {place}", hint="Number steps from 1, in order."
        )
    if not 0 <= step.parent < step.number:
        raise InvalidRequest(
            f"step {step.number} changes step {step.parent}",
            hint="A parent is an earlier step, or 0 for the problem's reference.",
        )
    if _bytes(step) > MAX_STEP_BYTES:
        raise PayloadTooLarge(
            f"step {step.number} has more than {MAX_STEP_BYTES:,} bytes of source",
            hint="Leave data files out of it.",
        )
    claim = step.claimed_speedup
    if claim is not None and not (math.isfinite(claim) and claim > 0):
        raise InvalidRequest(
            f"step {step.number} claims a speed-up of {claim}",
            hint="Send a number above 0, or leave it out: it is not used.",
        )
    _check_texts(step)
    _check_names(step)


def _check_texts(step: ExternalStep) -> None:
    texts = (step.plan, *step.texts)
    too_long = any(len(text) > MAX_PLAN for text in texts)
    if too_long or len(step.texts) > MAX_TEXTS or max(len(step.claimed), len(step.cases)) > MAX_IDS:
        raise InvalidRequest(
            f"step {step.number} tells too much",
            hint=f"At most {MAX_TEXTS} texts of {MAX_PLAN:,} characters, {MAX_IDS} ids, one plan.",
        )


def _check_names(step: ExternalStep) -> None:
    """No file may stand where the manifest or the folder of another one has to be."""
    files = step.bundle.files
    folders = {p.as_posix() for name in files for p in PurePosixPath(name).parents}
    wrong = next((name for name in files if name == MANIFEST or name in folders), None)
    if wrong is not None:
        raise InvalidRequest(
            f"step {step.number} may not have a file {wrong[:80]!r}",
            hint=f"{MANIFEST} is reserved, and no file is a folder too.",
        )


def _bytes(step: ExternalStep) -> int:
    return sum(len(text.encode()) for text in step.bundle.files.values())


def tree_of(
    steps: Sequence[ExternalStep],
    reference: Evaluation | None,
    evaluations: Mapping[str, Evaluation],
    problems: Mapping[str, str],
) -> Tree:
    """The steps as a search tree. `evaluations` and `problems` are by sha256 of the bundle: what
    was measured, or why there is no evaluation."""
    tree = Tree([Node(REFERENCE, None, "evaluated", None, reference)])
    for step in steps:
        sha256 = step.bundle.sha256
        same = tree.same_bundle(sha256)
        proposal = Proposal(
            step.bundle,
            SYNTHESIZER,
            step.parent,
            plan=step.plan,
            claimed=step.claimed,
            cases=step.cases,
        )
        evaluation = evaluations.get(sha256) if same is None else None
        state: NodeState = "evaluated" if evaluation is not None else "failed"
        tree.add(
            Node(
                step.number,
                step.parent,
                "duplicate" if same is not None else state,
                proposal,
                evaluation,
                same_as=None if same is None else same.number,
                problem=problems.get(sha256, "") if same is None else "",
            )
        )
    return tree


def problem_of(problem: ExternalProblem) -> Problem:
    """The problem itself. None of its code runs. Raises NotFound or InvalidRequest."""
    # Imported here: it takes seconds, and a service that is told of nothing needs none of it.
    from optimizer.evaluation.evaluate import problem_named, problem_sent

    if problem.name is not None:
        return problem_named(problem.name)
    return problem_sent(problem.source, problem.toml)
