"""An external trajectory: the search of another optimizer as data, sent as steps or as the lines of
an exported run. Only its form and size are checked here, and none of its code runs.

Claims are untrusted: a claimed speed-up enters no figure, and plans and remarks stay texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, ValidationError

from kb.errors import InvalidRequest, KernloreError, PayloadTooLarge
from kb.ids import derived_id
from optimizer.evaluation.bundle import MANIFEST, Bundle
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation
from optimizer.search.output.report import FORMAT as LINE_FORMAT
from optimizer.search.records import REFERENCE, Node, NodeState, Proposal
from optimizer.search.tree import Tree

FORMAT = 1
MAX_STEPS = 200
MAX_STEP_BYTES = 1024 * 1024  # of one candidate's files
MAX_BYTES = 8 * 1024 * 1024  # of all of them
MAX_PLAN = 4_000  # characters; also of one text
MAX_TEXTS = 20
MAX_IDS = 100
MAX_ORIGIN = 300  # characters of an entry of a provenance
SYNTHESIZER = "told"  # stored name of the proposer of these candidates
FILE_OF: Mapping[str, str] = {
    "cpp": "kernel.cpp",
    "cuda": "kernel.cu",
    "triton": "kernel.py",
    "torch": "kernel.py",
}


@dataclass(frozen=True)
class ExternalProblem:
    """The problem of an external trajectory: the `name` of a shipped one, or the text of a problem
    file and of its problem.toml."""

    name: str | None = None
    source: str = ""
    toml: str | None = None


@dataclass(frozen=True)
class ExternalStep:
    """A candidate of an external trajectory.

    `number` counts from 1, in order. `parent` is the number of an earlier step, 0 for the problem's
    reference. `claimed` holds ids of knowledge that the other optimizer claims to have used,
    `texts` its remarks (stored as `told`), `claimed_speedup` its claim over the reference. `cases`
    names the cases that the candidate is for, empty for all. `provenance` says where it comes from
    (repository, commit, path, session); it says nothing about merit, which is measured here.
    """

    number: int
    parent: int
    bundle: Bundle
    plan: str = ""
    claimed: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    claimed_speedup: float | None = None
    cases: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExternalTrajectory:
    """The search of another optimizer. `hardware` is an id of the registry. `licence` is the stated
    licence of sources and problem. Raises InvalidRequest or PayloadTooLarge."""

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
        for position, step in enumerate(self.steps, 1):
            _check(step, position)
        if sum(map(_bytes, self.steps)) > MAX_BYTES:
            raise PayloadTooLarge(
                f"the sources of all steps have more than {MAX_BYTES:,} bytes",
                hint="Send fewer steps, or those that matter.",
            )

    @property
    def id(self) -> str:
        """Equal for the same steps for the same problem and hardware."""
        return derived_id("trj", json.dumps({**self.as_json(), "actor": ""}, sort_keys=True))

    def as_json(self) -> dict[str, Any]:
        """The stored form. `external_trajectory_from_json` reads it."""
        row = {"format": FORMAT, **asdict(self)}
        for step in row["steps"]:
            step["told"] = step.pop("texts")
            if not step["provenance"]:  # ids of trajectories without one stay
                del step["provenance"]
        return row


def external_trajectory_from_json(row: Mapping[str, Any]) -> ExternalTrajectory:
    """The inverse of `ExternalTrajectory.as_json`. Raises KeyError for anything else."""
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
            step.get("provenance", {}),
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
    """The default file name of a candidate that is one source text. Raises InvalidRequest for a
    language without one."""
    if language not in FILE_OF:
        raise InvalidRequest(
            f"no default file name for the language {language[:40]!r}",
            hint="Send `files` (name to text) and `main` in place of `source`.",
        )
    return FILE_OF[language]


def about_step(number: int, error: KernloreError) -> KernloreError:
    """The same error with the number of its step in the message."""
    return type(error)(f"step {number}: {error.message}", hint=error.hint, details=error.details)


def _check(step: ExternalStep, position: int) -> None:
    def refused(problem: str, hint: str) -> InvalidRequest:
        return InvalidRequest(f"step {step.number} {problem}", hint=hint)

    if step.number != position:
        raise refused(f"is at position {position}", "Number steps from 1, in order.")
    if not 0 <= step.parent < step.number:
        hint = "A parent is an earlier step, or 0 for the problem's reference."
        raise refused(f"changes step {step.parent}", hint)
    if _bytes(step) > MAX_STEP_BYTES:
        raise PayloadTooLarge(
            f"step {step.number} has more than {MAX_STEP_BYTES:,} bytes of source",
            hint="Leave data files out of it.",
        )
    claim = step.claimed_speedup
    if claim is not None and not (math.isfinite(claim) and claim > 0):
        hint = "Send a number above 0, or leave it out: it is not used."
        raise refused(f"claims a speed-up of {claim}", hint)
    too_long = any(len(text) > MAX_PLAN for text in (step.plan, *step.texts))
    if too_long or len(step.texts) > MAX_TEXTS or max(len(step.claimed), len(step.cases)) > MAX_IDS:
        hint = f"At most {MAX_TEXTS} texts of {MAX_PLAN:,} characters, {MAX_IDS} ids, one plan."
        raise refused("has too many or too long texts", hint)
    origin = step.provenance
    if len(origin) > MAX_TEXTS or any(len(t) > MAX_ORIGIN for pair in origin.items() for t in pair):
        hint = f"At most {MAX_TEXTS} entries of {MAX_ORIGIN} characters."
        raise refused("has a too long provenance", hint)
    files = step.bundle.files
    folders = {p.as_posix() for name in files for p in PurePosixPath(name).parents}
    wrong = next((name for name in files if name == MANIFEST or name in folders), None)
    if wrong is not None:
        hint = f"{MANIFEST} is reserved, and no file is a folder too."
        raise refused(f"may not have a file {wrong[:80]!r}", hint)


def _bytes(step: ExternalStep) -> int:
    return sum(len(text.encode()) for text in step.bundle.files.values())


def tree_of(
    steps: Sequence[ExternalStep],
    reference: Evaluation | None,
    evaluations: Mapping[str, Evaluation],
    problems: Mapping[str, str],
) -> Tree:
    """The steps as a search tree. `evaluations` maps the sha256 of a bundle to its evaluation,
    `problems` to the reason why it has none."""
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
    """Load the problem; none of its code runs. Raises NotFound or InvalidRequest."""
    # Imported here: it takes seconds, which a service without external trajectories saves.
    from optimizer.evaluation.evaluate import problem_from_text
    from optimizer.evaluation.problem.load import problem_named

    if problem.name is not None:
        return problem_named(problem.name)
    return problem_from_text(problem.source, problem.toml)


# -- the lines of an exported run

_HINT = "Send the lines of trajectory.jsonl as `kernlore runs export` wrote them, all of one run."


class LineAction(BaseModel, strict=True):
    """The candidate of a line. Its parameters may be in `parameters` or in `values`: those that
    give the stated hash count."""

    source: dict[str, str]
    main: str
    language: str
    entry: str
    plan: str
    bundle_sha256: str
    claimed: list[str] = []
    attributed: list[str] = []
    cases: list[str] = []
    parameters: Any = None
    values: Any = None

    def bundle(self) -> Bundle | None:
        """The bundle with the stated hash, or None. Raises InvalidRequest for a bad path."""
        candidates: tuple[Any, ...] = (self.parameters, self.values, {})
        for parameters in candidates:
            if isinstance(parameters, dict):
                bundle = Bundle(self.source, self.main, self.language, self.entry, parameters)
                if bundle.sha256 == self.bundle_sha256:
                    return bundle
        return None


class ExportedLine(BaseModel, strict=True):
    """A line of trajectory.jsonl. That of the reference, node 0, has no action."""

    format: int
    run: str
    problem_sha256: str
    hardware: str
    node: int
    parent: int | None = None
    action: LineAction | None = None
    reward: Any = None


@dataclass(frozen=True)
class ExportedRun:
    """An exported run. Its lines identify the problem by hash and do not have its text."""

    run: str
    problem_sha256: str
    hardware: str
    steps: tuple[ExternalStep, ...]


def read_lines(rows: Sequence[Any]) -> ExportedRun:
    """The run of the parsed lines of trajectory.jsonl; rewards become claims. Raises
    InvalidRequest, which names the line."""
    lines: list[ExportedLine] = []
    steps: list[ExternalStep] = []
    for number, row in enumerate(rows, 1):
        try:
            line = ExportedLine.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the line"
            raise _wrong(number, f"`{place}`: {first['msg']}") from None
        lines.append(line)
        if line.format != LINE_FORMAT:
            raise _wrong(number, f"not a line of format {LINE_FORMAT}")
        if line.node != number - 1:
            raise _wrong(number, f"node {line.node} instead of {number - 1}")
        for name in ("run", "problem_sha256", "hardware"):
            if getattr(line, name) != getattr(lines[0], name):
                raise _wrong(number, f"another {name} than the first line")
        if line.node:
            steps.append(_step_of(number, line))
    if not lines:
        raise InvalidRequest("there are no lines", hint=_HINT)
    return ExportedRun(lines[0].run, lines[0].problem_sha256, lines[0].hardware, tuple(steps))


def _step_of(number: int, line: ExportedLine) -> ExternalStep:
    action = line.action
    if action is None or line.parent is None:
        raise _wrong(number, "a candidate without an action or a parent")
    try:
        bundle = action.bundle()
    except InvalidRequest as error:
        raise about_step(line.node, error) from None
    if bundle is None:
        raise _wrong(number, "its source does not have the hash `bundle_sha256`")
    speedup = line.reward.get("speedup") if isinstance(line.reward, dict) else None
    value = speedup.get("value") if isinstance(speedup, dict) else None
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return ExternalStep(
        number=line.node,
        parent=line.parent,
        bundle=bundle,
        plan=action.plan,
        claimed=tuple(sorted({*action.claimed, *action.attributed})),
        claimed_speedup=float(value) if usable and value is not None else None,
        cases=tuple(action.cases),
    )


def _wrong(number: int, problem: str) -> InvalidRequest:
    return InvalidRequest(f"line {number}: {problem}", hint=_HINT)
