"""The names that moves and recipe parameters use for the knobs of a kernel, and for their changes.

No document, recipe or predicate is known here. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Direction = Literal["increase", "decrease", "add", "remove", "set", "swap"]

ROLES = frozenset(
    {
        "tile_m",
        "tile_n",
        "tile_k",
        "block",
        "stages",
        "warps",
        "vector",
        "unroll",
        "pad",
        "swizzle",
        "order",
        "fuse",
        "split",
        "layout",
        "prefetch",
        "dtype",
        "accumulate",
        "mask",
        "grid",
        "threads",
        "reuse",
        "store",
        "sync",
        "precision",
        "library",
        "graph",
        "occupancy_hint",
    }
)
DIRECTIONS = frozenset({"increase", "decrease", "add", "remove", "set", "swap"})
_TOGETHER = "-and-"  # between simultaneous changes


def direction_of(before: float | str | None, after: float | str) -> Direction:
    """The direction by which a move would describe the change of a value."""
    if isinstance(after, bool):
        return "add" if after else "remove"
    if isinstance(before, str | bool | None) or isinstance(after, str):
        return "set"
    return "increase" if after > before else "decrease"


def transformation_of(changes: Iterable[tuple[str, str]]) -> str:
    """The name of a change of (role, direction) pairs: `decrease-vector-and-add-fuse`."""
    return _TOGETHER.join(dict.fromkeys(f"{direction}-{role}" for role, direction in changes))


def changes_named(transformation: str) -> tuple[tuple[str, str], ...]:
    """The inverse of `transformation_of`; nothing for any other name."""
    parts = [part.partition("-") for part in transformation.split(_TOGETHER)]
    if all(way in DIRECTIONS and role in ROLES for way, _, role in parts):
        return tuple((role, way) for way, _, role in parts)
    return ()
