"""A format of tasks: how it is recognised and read, and how a result is written back in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.load import guess_op
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import CaseTiming, Evaluation


@dataclass(frozen=True)
class ForeignTask:
    """A task as a problem and its submission as a candidate. `write_back` gives the text of a
    result in the convention of the task."""

    problem: Problem
    bundle: Bundle
    write_back: Callable[[Evaluation], str]


@dataclass(frozen=True)
class TaskFormat:
    """One convention. `task` and `submission` describe both for error messages.

    `read` converts a task and a submission; it raises InvalidRequest for files that are not in this
    convention. It may run code of the task, never of the submission.
    """

    name: str
    task: str
    submission: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, Path], ForeignTask]


def converted(
    name: str,
    path: Path,
    source: str,
    cases: tuple[Case, ...],
    *,
    reference: str,
    summary: str = "",
) -> Problem:
    """A problem from generated text. The operator is guessed from the text of the `reference`."""
    identity = repr((source, [(case.name, sorted(case.constants.items())) for case in cases]))
    return Problem(
        name=name,
        path=path.resolve(),
        source=source,
        sha256=hashlib.sha256(identity.encode()).hexdigest(),
        op=guess_op(reference),
        cases=cases,
        declared=True,
        summary=summary,
    )


def timings_of(evaluation: Evaluation) -> Mapping[str, CaseTiming]:
    """The measured times by case."""
    return {t.case: t for t in evaluation.timings if t.candidate_us is not None}
