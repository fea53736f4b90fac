"""Evaluations: a problem and a candidate in, a verdict with timings out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated

from annotated_types import MaxLen

from api.operations import operation
from api.operations.bodies import CandidateBody, Name, ProblemBody
from kb.plain import Doc
from optimizer.evaluation.problem.load import problem_named, shipped_problems
from optimizer.evaluation.problem.spec import Case, Problem, ProblemPolicy
from optimizer.evaluation.queue import EvaluationJob, check_submission

if TYPE_CHECKING:
    from api.services import Services

declared = partial(operation, tag="evaluations")


@dataclass(frozen=True)
class ListedProblem:
    """A built-in problem, with its numbers of cases and of those that are timed."""

    name: str
    op: str
    cases: int
    timed: int
    summary: str


@dataclass(frozen=True)
class ListedProblems:
    """The built-in problems."""

    problems: tuple[ListedProblem, ...]


@dataclass(frozen=True)
class ShownProblem:
    """A built-in problem: its rules for candidates, the cases that candidates are evaluated on
    unless they are held out, and the text of its file."""

    name: str
    op: str
    summary: str
    policy: ProblemPolicy
    cases: tuple[Case, ...]
    source: str


@declared("GET /problems", "List the built-in problems", static=True)
def list_problems(services: Services) -> ListedProblems:
    """By name; `GET /problems/{problem_name}` has their cases."""
    return ListedProblems(tuple(listed_problem(problem_named(n)) for n in shipped_problems()))


def listed_problem(problem: Problem) -> ListedProblem:
    """The row of a problem in lists."""
    timed = sum(case.timed for case in problem.cases)
    return ListedProblem(problem.name, problem.op, len(problem.cases), timed, problem.summary)


@declared("GET /problems/{problem_name}", "Show a built-in problem with its cases", static=True)
def show_problem(services: Services, problem_name: str) -> ShownProblem:
    """Shapes, dtype and distribution of each case, without held-out cases. A case that states no
    dtype has the dtypes of `source`."""
    problem = problem_named(problem_name)
    known = {field.name: getattr(problem, field.name) for field in fields(ShownProblem)}
    return ShownProblem(**known | {"cases": problem.searched})


@declared(
    "POST /evaluations",
    "Evaluate a candidate",
    role="admin",
    status=202,
    runs_code=True,
    body=("EvaluationBody", "A candidate to evaluate, and on which hardware."),
    example={
        "problem": "map_id",
        "candidate": {
            "files": {"k.py": "class ModelNew: ..."},
            "main": "k.py",
            "language": "torch",
        },
        "hardware": "x86-64",
    },
)
def evaluate_candidate(
    services: Services,
    problem: Annotated[
        Name | ProblemBody, Doc("The name of a built-in problem, or a problem as text.")
    ],
    candidate: CandidateBody,
    hardware: Annotated[
        Name, Doc("An id, name or alias. `auto`: the hardware of this machine.")
    ] = "auto",
    cases: Annotated[
        Annotated[list[Name], MaxLen(200)] | None, Doc("Evaluate only these cases of the problem.")
    ] = None,
) -> EvaluationJob:
    """Queue the evaluation; `GET /evaluations/{evaluation_id}` has the result. A service carries
    out one at a time."""
    sent = problem if isinstance(problem, str) else problem.model_dump()
    checked = check_submission(services, sent, candidate.model_dump(), hardware, cases or ())
    return services.running.evaluations.submit(checked)


@declared("GET /evaluations/{evaluation_id}", "Show how far an evaluation is, and its result")
def show_evaluation(services: Services, evaluation_id: str) -> EvaluationJob:
    """`state` is queued, running, ready or failed. `error` says why an evaluation failed; a
    candidate that is wrong or crashes is a result, not an error. The `key` of any finished
    evaluation of this data directory may be given as id."""
    return services.running.evaluations.find(evaluation_id, services.access)
