"""Blocks of timed calls; tests replace their fields."""

from __future__ import annotations

from typing import Any

from optimizer.evaluation.loaded_kernel import TimedBlock


def timed_block(times: tuple[int, ...], **fields: Any) -> TimedBlock:
    """A block of calls that were neither delayed nor waited for, and nothing else was done."""
    parts = ("refresh", "touch", "total", "wall", "waited", "delayed", "busy")
    known = {"walls": times, "spans": (), "threads": (1, 1), "patched": False}
    return TimedBlock(times, **{**{f"{part}_ns": 0 for part in parts}, **known, **fields})
