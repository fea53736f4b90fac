"""What another optimizer tells of its search, as data: checked for form and size, believed in
nothing.

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
from optimizer.evaluation.evaluate import problem_named, problem_sent
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation
from optimizer.search.records import REFERENCE, Node, NodeState, Proposal
from optimizer.search.tree import Tree

FORMAT = 1
MAX_STEPS = 200
MAX_STEP_BYTES = 1024 * 1024  # of one candidate's files
MAX_BYTES = 8 * 1024 * 1024  # of all of them
MAX_PLAN = 4_000  # characters; also of one told text
MAX_TEXTS = 20
MAX_IDS = 100
SYNTHESIZER = "told"
FILE_OF: Mapping[str, str] = {
    "cpp": "kernel.cpp",
    "cuda": "kernel.cu",
    "triton": "kernel.py",
    "torch": "kernel.py",
}


@dataclass(frozen=True)
class ToldProblem:
    """name: a shipped one; else the text of a problem file and of the toml beside it."""

    name: str | None = None
    source: str = ""
    toml: str | None = None


@dataclass(frozen=True)
class ToldStep:
    """number: from 1, in order. parent: number of an earlier step, 0 for the problem's reference.
    claimed: ids that the teller says it used. told: its texts. claimed_speedup: over the reference,
    as it says. cases: names of those that it is for, empty for all."""

    number: int
    parent: int
    bundle: Bundle
    plan: str = ""
    claimed: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    claimed_speedup: float | None = None
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Told:
    """hardware: an id of the registry. licence: of sources and problem, as the teller states it."""

    problem: ToldProblem
    hardware: str
    steps: tuple[ToldStep, ...]
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
        return {"format": FORMAT, **asdict(self)}


def told_from_json(row: Mapping[str, Any]) -> Told:
    """The inverse of `as_json`."""
    steps = (
        ToldStep(
            **{
                **step,
                "bundle": Bundle(**step["bundle"]),
                "claimed": tuple(step["claimed"]),
                "told": tuple(step["told"]),
                "cases": tuple(step["cases"]),
            }
        )
        for step in row["steps"]
    )
    return Told(
        ToldProblem(**row["problem"]),
        row["hardware"],
        tuple(steps),
        row["actor"],
        row["licence"],
    )


def file_name(language: str) -> str:
    """Of a candidate that is one source text. Raises InvalidRequest for a language without one."""
    if language not in FILE_OF:
        raise InvalidRequest(
            f"no file name follows from the language {language[:40]!r}",
            hint="Send `files` (name to text) and `main` in place of `source`.",
        )
    return FILE_OF[language]


def about_step(number: int, error: KernloreError) -> KernloreError:
    """The same error, saying which step it is about."""
    return type(error)(f"step {number}: {error.message}", hint=error.hint, details=error.details)


def _check(step: ToldStep, place: int) -> None:
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


def _check_texts(step: ToldStep) -> None:
    texts = (step.plan, *step.told)
    too_long = any(len(text) > MAX_PLAN for text in texts)
    if too_long or len(step.told) > MAX_TEXTS or max(len(step.claimed), len(step.cases)) > MAX_IDS:
        raise InvalidRequest(
            f"step {step.number} tells too much",
            hint=f"At most {MAX_TEXTS} texts of {MAX_PLAN:,} characters, {MAX_IDS} ids, one plan.",
        )


def _check_names(step: ToldStep) -> None:
    """No file may stand where the manifest or the folder of another one has to be."""
    files = step.bundle.files
    folders = {p.as_posix() for name in files for p in PurePosixPath(name).parents}
    wrong = next((name for name in files if name == MANIFEST or name in folders), None)
    if wrong is not None:
        raise InvalidRequest(
            f"step {step.number} may not have a file {wrong[:80]!r}",
            hint=f"{MANIFEST} is reserved, and no file is a folder too.",
        )


def _bytes(step: ToldStep) -> int:
    return sum(len(text.encode()) for text in step.bundle.files.values())


def tree_of(
    steps: Sequence[ToldStep],
    reference: Evaluation | None,
    found: Mapping[str, Evaluation],
    problems: Mapping[str, str],
) -> Tree:
    """The steps as a search tree. found, problems: evaluation, or why there is none, by bundle."""
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
        evaluation = found.get(sha256) if same is None else None
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


def problem_of(told: ToldProblem) -> Problem:
    """Nothing of it runs. Raises NotFound or InvalidRequest."""
    if told.name is not None:
        return problem_named(told.name)
    return problem_sent(told.source, told.toml)
