"""An evaluation of a correct, measured kernel, and a timed block; tests replace their fields."""

from __future__ import annotations

from typing import Any

from optimizer.evaluation.loaded_kernel import TimedBlock
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


def timed_block(times: tuple[int, ...], **fields: Any) -> TimedBlock:
    """A block of calls that were neither delayed nor waited for, and nothing else was done."""
    nothing = (
        "refresh_ns",
        "touch_ns",
        "total_ns",
        "wall_ns",
        "waited_ns",
        "delayed_ns",
        "busy_ns",
    )
    known = {"walls": times, "spans": (), "threads": (1, 1), "patched": False}
    return TimedBlock(times, **{**dict.fromkeys(nothing, 0), **known, **fields})
