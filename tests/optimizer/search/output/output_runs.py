"""Synthetic runs from real records, for the files that a run exports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kb.plain import from_json
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import (
    CaseCheck,
    CaseTiming,
    Evaluation,
    EvaluationVerdict,
    Flag,
    Interval,
)
from optimizer.search.confirm import CaseFigure, RunOutcome
from optimizer.search.goal import Goal
from optimizer.search.records import Cost, Node, Proposal, ShownIds
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree
from tests.evaluations import RIGHT

SOURCE = '''\
"""Scaled rows."""

import torch
import torch.nn as nn

rows = 4
width = 8
shift = 0.5


class Model(nn.Module):
    """x * scale + shift, and how many columns there are times `times`."""

    def __init__(self, width, times=1):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.times = times

    def forward(self, x):
        return x * self.scale * self.times + shift


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
'''
TOML = """\
name = "scaled_rows"
op = "mul"

[[cases]]
name = "main"
constants = {rows = 16, width = 32}
dtype = "float32"

[[cases]]
name = "slow"
constants = {rows = 3, width = 5}
dtype = "float32"

[[cases]]
name = "shifted"
constants = {rows = 7, width = 9, shift = 2.0}
dtype = "float32"

[[cases]]
name = "held"
constants = {rows = 24, width = 48}
dtype = "float32"
held_out = true
"""
# Correct only for the constructor argument times = 1, like kernels with built-in constants; adding
# 1000 to the last element distinguishes the kernel from the reference.
CPP = """\
#include "kernlore_abi.h"
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {
  const float *x = (const float *)t[0].data, *scale = (const float *)t[1].data;
  float *y = (float *)t[2].data;
  const int64_t rows = t[0].shape[0], width = t[0].shape[1];
  if (c->inputs != 1 || c->parameters != 1 || c->outputs != 1) return 7;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < width; j++) y[i * width + j] = x[i * width + j] * scale[j] + 0.5f;
  y[rows * width - 1] += 1000.0f;
  return 0;
}
"""
TORCH = """\
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = torch.addcmul(torch.full((), 0.5), x, self.scale)
        y[-1, -1] += 1000.0
        return y
"""


def problem_in(folder: Path, source: str = SOURCE, toml: str = TOML) -> Problem:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scaled_rows.py").write_text(source, encoding="utf-8")
    (folder / "scaled_rows.toml").write_text(toml, encoding="utf-8")
    return load_problem(folder / "scaled_rows.py")


def cpp_bundle() -> Bundle:
    return Bundle({"k.cpp": CPP}, "k.cpp", "cpp", "kernlore_run", {"march": "native"}, "recipe")


def torch_bundle() -> Bundle:
    return Bundle({"candidate.py": TORCH}, "candidate.py", "torch", "ModelNew", {}, "llm")


def interval(value: float, n: int = 24) -> Interval:
    return Interval(value, value * 0.95, value * 1.05, n)


def figure(case: str, value: float, held_out: bool = False) -> CaseFigure:
    return CaseFigure(case, held_out, interval(value), 10.0, 10.0 * value)


FIGURES = (
    figure("main", 2.0),
    figure("slow", 1.01),
    figure("shifted", 1.5),
    figure("held", 1.8, True),
)


def evaluation(
    bundle: Bundle | None, value: float | None, *, validity: str = "correct"
) -> Evaluation:
    """An evaluation as the harness records it."""
    speedup = None if value is None else interval(value)
    timing = CaseTiming("main", "measured", 20.0, 20.0 / (value or 1.0), speedup, 100)
    return replace(
        RIGHT,
        key=f"key-{bundle.sha256 if bundle else 'reference'}",
        problem="scaled_rows",
        candidate=bundle.sha256 if bundle else "reference",
        language=bundle.language if bundle else "torch",
        toolchain="g++ 13; native=znver4",
        validity=validity,  # type: ignore[arg-type]
        timing="measured" if speedup else "none",
        reached="diagnose" if speedup else "compile",
        message="" if validity == "correct" else "error: expected ';'",
        checks=(CaseCheck("main", 3, validity == "correct"),) if speedup else (),
        timings=(timing,) if speedup else (),
        speedup=speedup,
        flags=(Flag(29, "review", "faster than the ceilings give"),) if value == 2.1 else (),
        verdict=from_json(
            EvaluationVerdict,
            {
                "signals": [
                    {
                        "id": "memory_bound" if value and value > 1.5 else "latency_bound",
                        "confidence": "B",
                        "evidence": [
                            {"name": "roofline_pct", "value": 61.5, "source": "Kernlore evaluation"}
                        ],
                    }
                ],
                "ruled_out": [],
                "measure_next": [],
            },
        ),
    )


def winner_run(bundle: Bundle) -> tuple[RunRow, Tree, RunOutcome]:
    """Reference, a first step, the winner, and one node of every failure."""
    first = Bundle({"k.cpp": "// 1"}, "k.cpp", "cpp", "kernlore_run", {}, "recipe")
    broken = Bundle({"k.cpp": "// 2"}, "k.cpp", "cpp", "kernlore_run", {}, "llm")
    busy = Bundle({"k.cpp": "// 3"}, "k.cpp", "cpp", "kernlore_run", {}, "llm")
    step = Proposal(
        first, "recipe", 0, "one pass | two rows", "rows-once", {"vector": 4}, attributed=("sk_1",)
    )
    last = Proposal(
        bundle,
        "llm",
        1,
        "wider vectors",
        "rows-once",
        {"vector": 8, "unroll": 2},
        claimed=("mv_1",),
        cost=Cost(2.0, 1200, 300, 0.0125),
        model="some-model",
        transcript="blob:1",
    )
    wrong = Proposal(broken, "llm", 1, "no luck", model="some-model", cost=Cost(1.0, 10, 5, None))
    nodes = [
        Node(0, None, "evaluated", None, evaluation(None, None), at=1.0),
        Node(1, 0, "evaluated", step, evaluation(first, 1.4), at=2.0, inherited=True),
        Node(
            2,
            1,
            "evaluated",
            last,
            evaluation(bundle, 2.1),
            ShownIds("ret_1", ("ps_1",), ("mv_1", "mv_2"), ("rows-once",)),
            at=3.0,
        ),
        Node(3, 1, "evaluated", wrong, evaluation(broken, None, validity="not_compiled"), at=4.0),
        Node(4, 2, "duplicate", replace(wrong, parent=2), None, same_as=3, at=5.0),
        Node(5, 2, "failed", replace(wrong, bundle=busy), None, problem="the device is gone"),
    ]
    outcome = RunOutcome(2, interval(1.9, 48), "", interval(1.4), FIGURES, ("node 1: too busy",))
    return run_row(), Tree(nodes), outcome


def no_gain_run() -> tuple[RunRow, Tree, RunOutcome]:
    nodes = [Node(0, None, "evaluated", None, evaluation(None, None))]
    reason = "no gain: no candidate is certainly faster than the reference"
    return run_row(), Tree(nodes), RunOutcome(None, None, reason)


def run_row() -> RunRow:
    return RunRow(
        "run_1",
        "scaled_rows.py",
        "0" * 64,
        "x86-64",
        Goal(candidates=5),
        state="finished",
        ended="5 candidates were tried",
        started_at=1_700_000_000.0,
        seconds=65.0,
        environment={"cpp": "g++ 13", "torch": "torch 2.13"},
    )
