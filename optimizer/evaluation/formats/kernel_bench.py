"""KernelBench: a file with `Model`, `get_inputs` and `get_init_inputs`, and a submission with
`ModelNew`; or a folder of each. Also the product's own problems, whose files have the same form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kb.errors import InvalidRequest, NotFound
from optimizer.evaluation.bundle import read_bundle
from optimizer.evaluation.formats.task import ForeignTask, TaskFormat, timings_of
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Evaluation


def _recognises(path: Path) -> bool:
    try:
        load_problem(path)
    except (InvalidRequest, NotFound):
        return False
    return True


def _read(task: Path, submission: Path) -> ForeignTask:
    return ForeignTask(load_problem(task), read_bundle(submission), write_back)


def write_back(evaluation: Evaluation) -> str:
    """The fields of KernelBench's `KernelExecResult`; times are in milliseconds and -1 without a
    measurement. Over several cases they are geometric means."""
    times = timings_of(evaluation).values()
    pairs = [(t.candidate_us, t.baseline_us) for t in times if t.candidate_us and t.baseline_us]
    compiled = evaluation.validity not in ("not_compiled", "not_run")
    metadata = {"hardware": evaluation.hardware, "device": evaluation.device}
    if not evaluation.correct:
        metadata["error"] = evaluation.message
    result = {
        "compiled": compiled,
        "correctness": evaluation.correct,
        "metadata": metadata,
        "runtime": _milliseconds([candidate for candidate, _ in pairs]),
        "ref_runtime": _milliseconds([reference for _, reference in pairs]),
    }
    return json.dumps(result, indent=2) + "\n"


def _milliseconds(microseconds: list[float]) -> float:
    if not microseconds:
        return -1.0
    return math.exp(sum(map(math.log, microseconds)) / len(microseconds)) / 1e3


# -- folders

_NUMBERED = re.compile(r"(\d+)_.*\.py")
_SAMPLE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
_LEVEL = re.compile(r"level_?(\d+)")


@dataclass(frozen=True)
class Pair:
    """One task of a folder, and a submission to it. `problem` and `sample` are its place in a
    report of the run."""

    task: Path
    submission: Path
    problem: str
    sample: int


def is_folder(task: Path) -> bool:
    """Whether this is a folder of tasks, not one task."""
    return task.is_dir() and not _recognises(task) and bool(_tasks_in(task))


def pairs_of(tasks: Path, submissions: Path) -> tuple[list[Pair], list[str]]:
    """The tasks of a folder with their submissions, and the names of tasks without one.

    A submission has the name of its task, or `level_L_problem_N_sample_S_kernel.py` for the task
    `N_*.py` of a folder `levelL`. Raises InvalidRequest if none fits.
    """
    if not submissions.is_dir():
        raise InvalidRequest(
            f"{tasks} is a folder of tasks, {submissions} is not a folder",
            hint="Give a folder of submissions, or one task.",
        )
    level = _LEVEL.fullmatch(tasks.resolve().name)
    samples = [
        (found[2], int(found[3]), path)
        for path in sorted(submissions.glob("*.py"))
        if (found := _SAMPLE.fullmatch(path.name)) and (not level or found[1] == level[1])
    ]
    pairs, missing = [], []
    for task in _tasks_in(tasks):
        number = _NUMBERED.fullmatch(task.name)
        problem = number[1] if number else task.stem
        same = submissions / task.name
        own = [Pair(task, same, problem, 0)] if same.is_file() else []
        own += [Pair(task, path, problem, s) for n, s, path in samples if number and n == number[1]]
        pairs += own
        if not own:
            missing.append(task.name)
    if not pairs:
        raise InvalidRequest(
            f"{submissions} has no submission to a task of {tasks}",
            hint="Give a submission the name of its task, or name it as KernelBench does:"
            " level_1_problem_3_sample_0_kernel.py.",
        )
    return pairs, missing


def _tasks_in(folder: Path) -> list[Path]:
    def place(path: Path) -> tuple[int, str]:
        number = _NUMBERED.fullmatch(path.name)
        return int(number[1]) if number else 0, path.name

    return sorted(filter(_recognises, folder.glob("*.py")), key=place)


def write_back_all(results: Iterable[tuple[Pair, str]]) -> str:
    """The results of a folder by the number of the problem, as KernelBench's eval_results.json."""
    rows: dict[str, list[Any]] = {}
    for pair, text in results:
        rows.setdefault(pair.problem, []).append({"sample_id": pair.sample, **json.loads(text)})
    return json.dumps(rows, indent=2) + "\n"


FORMAT = TaskFormat(
    "kernelbench",
    task="a problem (file, folder with problem.py, or built-in name) with Model and get_inputs",
    submission="a file with ModelNew, a .cpp or .cu file with kernlore_run, or a bundle folder",
    recognises=_recognises,
    read=_read,
)
