"""KernelBench: a file with `Model`, `get_inputs` and `get_init_inputs`, and a submission with
`ModelNew`. Also the product's own problems, whose files have the same form.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

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


FORMAT = TaskFormat(
    "kernelbench",
    task="a problem (file, folder with problem.py, or built-in name) with Model and get_inputs",
    submission="a file with ModelNew, a .cpp or .cu file with kernlore_run, or a bundle folder",
    recognises=_recognises,
    read=_read,
)
