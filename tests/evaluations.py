"""An evaluation of a correct, measured kernel; tests replace its fields."""

from __future__ import annotations

from optimizer.evaluation.records import Evaluation

RIGHT = Evaluation(
    key="k",
    problem="p",
    candidate="c",
    language="cpp",
    hardware="x86-64",
    device="cpu",
    toolchain="g++ 13",
    harness="2",
    validity="correct",
    timing="measured",
    reached="diagnose",
)
