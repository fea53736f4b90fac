"""What a device was needed for to know of a problem, kept in the folder: the traits of its code and
the case that nobody learned from. With these a report can be made where the device is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.search.replay.spaces import Ground
from kb.errors import Unavailable
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.search.bench.local import problem_view
from optimizer.search.synthesizers.base import CaseView, ProblemView
from skills.trials.trial import MAX_LOOKED_AT, held_out_cases

TRIAL_SEED = 0  # of the cases that trials of a skill take


def unseen_case(problem: Problem, device: str, seed: int) -> Case | None:
    """A case that neither a run took nor a trial of a skill looks at; None where there is no
    other."""
    taken = [
        target.case.name for target in held_out_cases(problem, device, MAX_LOOKED_AT, TRIAL_SEED)
    ]
    cases = held_out_cases(problem, device, 1, seed, taken)
    return cases[0].case if cases else None


@dataclass(frozen=True)
class Views:
    """Each is looked at once and read again while the problem's text is the same."""

    folder: Path
    ground: Ground

    def view(self, problem: Problem) -> ProblemView:
        """Raises Unavailable where it has to be looked at and the device is not here."""
        path = self.folder / "views" / f"{problem.name.replace(', ', '--')}.json"
        row = _kept(path, problem)
        if row is None:
            self._device_here(problem)
            row = {"view": asdict(problem_view(problem, self.ground.device))}
            _keep(path, problem, row)
        return view_from_json(row["view"])

    def unseen(self, problem: Problem, seed: int) -> Problem | None:
        """The problem with such a case alone, named after it. Needs no device: whether the problem
        can do these sizes is tried on the CPU."""
        path = self.folder / "views" / f"{problem.name}--unseen{seed}.json"
        row = _kept(path, problem)
        if row is None:
            case = unseen_case(problem, self.ground.device, seed)
            row = {"case": asdict(case) if case is not None else None}
            _keep(path, problem, row)
        if row["case"] is None:
            return None
        case = Case(**{**row["case"], "devices": tuple(row["case"]["devices"])})
        return replace(problem, name=f"{problem.name}, {case.name}", cases=(case,))

    def _device_here(self, problem: Problem) -> None:
        if self.ground.device == "cuda" and not torch.cuda.is_available():
            raise Unavailable(
                f"{problem.name} was not looked at on a GPU yet, and there is none here",
                hint="Run any --stage where the GPU is; it looks at all problems first.",
            )


def _kept(path: Path, problem: Problem) -> Any:
    """None where there is nothing, or it is of another text."""
    if not path.is_file():
        return None
    row = json.loads(path.read_text(encoding="utf-8"))
    return row if row["sha256"] == problem.sha256 else None


def _keep(path: Path, problem: Problem, row: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps({"sha256": problem.sha256, **row}, indent=1), encoding="utf-8")
    scratch.replace(path)


def view_from_json(row: Mapping[str, Any]) -> ProblemView:
    """The inverse of `dataclasses.asdict` after JSON."""
    cases = (
        CaseView(**{**case, "signature": _signature(case["signature"])}) for case in row["cases"]
    )
    return ProblemView(**{**row, "cases": tuple(cases)})


def _signature(row: Mapping[str, Any]) -> Signature:
    tensors = (TensorSpec(**{**t, "shape": tuple(t["shape"])}) for t in row["tensors"])
    return Signature(tuple(tensors))
