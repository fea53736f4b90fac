"""Samples of a small search, one of each kind that training distinguishes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Interval
from optimizer.search.records import Proposal
from skills.training.export import Licences, Reward, TrainingPrompt, TrainingSample

# Columns of TRL's dataset types.
TYPE = {
    "sft": ("prompt", "completion"),
    "dpo": ("prompt", "chosen", "rejected"),
    "grpo": ("prompt",),
}


def reward(value: float | None, /, **changes: Any) -> Reward:
    ratio = None if value is None else Interval(value, value * 0.95, value * 1.05, 20)
    given = Reward(
        value=None if ratio is None else ratio.low,
        validity="correct",
        timing="measured" if ratio else "repeat",
        checks=(4, 4),
        speedup=ratio,
        over_parent=ratio,
        cases=("main",),
        flags=(),
        held=False,
        harness="3",
        toolchain="g++ 13",
        device="cpu",
        evaluation="key",
    )
    return replace(given, **changes)


WRONG = reward(None, value=0.0, validity="incorrect", checks=(1, 4), timing="none")


def proposal(node: int) -> Proposal:
    files = {"kernel.cpp": f"int node = {node};"}
    return Proposal(Bundle(files, "kernel.cpp", "cpp", "kernlore_run", origin="recipe"), "recipe")


def sample(node: int, outcome: Reward, **changes: Any) -> TrainingSample:
    given = TrainingSample(
        trajectory="run_1",
        node=node,
        parent=0,
        external=False,
        proposal=proposal(node),
        problem=replace(load_problem(Path("map_id")), source="class Model: ..."),
        problem_toml=None,
        hardware="x86-64",
        prompt=TrainingPrompt("system", f"user {node}", "rendered"),
        state={"shown": {}, "parent": {"files": {}, "node": 0}},
        completion=f"answer {node}",
        reward=outcome,
        licences=Licences("Apache-2.0", "Apache-2.0"),
    )
    return replace(given, **changes)


SAMPLES = (
    sample(1, reward(1.5)),
    sample(2, reward(3.0)),
    sample(3, reward(0.7)),
    sample(4, WRONG),
    sample(5, reward(None)),
    sample(6, reward(3.1)),
    sample(7, reward(2.0, over_parent=Interval(0.5, 0.4, 0.6, 20)), parent=2),
)
