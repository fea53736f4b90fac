"""Names of the tunable parts of a kernel (roles) and of their changes, in moves and in parameters
of recipes. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Direction = Literal["increase", "decrease", "add", "remove", "set", "swap"]

# Roles, and each as a person names it.
ROLES = {
    "tile_m": "tile height (tile_m)",
    "tile_n": "tile width (tile_n)",
    "tile_k": "tile depth (tile_k)",
    "block": "block size",
    "stages": "pipeline stages",
    "warps": "warps per block",
    "vector": "vector width",
    "unroll": "unrolling",
    "pad": "padding",
    "swizzle": "swizzling",
    "order": "order of the work",
    "fuse": "fusion of operators",
    "split": "splitting of the work",
    "layout": "data layout",
    "prefetch": "prefetching",
    "dtype": "data type",
    "accumulate": "accumulation",
    "mask": "masking",
    "grid": "grid size",
    "threads": "threads",
    "reuse": "reuse of loaded data",
    "store": "kind of stores",
    "sync": "synchronisation",
    "precision": "precision",
    "library": "library",
    "graph": "graph of launches",
    "occupancy_hint": "occupancy hint",
}
DIRECTIONS = frozenset({"increase", "decrease", "add", "remove", "set", "swap"})
_SEPARATOR = "-and-"  # between simultaneous changes


def direction_of(before: float | str | None, after: float | str) -> Direction:
    """The direction of the change of a value."""
    if isinstance(after, bool):
        return "add" if after else "remove"
    if isinstance(before, str | bool | None) or isinstance(after, str):
        return "set"
    return "increase" if after > before else "decrease"


def transformation_of(changes: Iterable[tuple[str, str]]) -> str:
    """The name of a change of (role, direction) pairs, such as `decrease-vector-and-add-fuse`."""
    return _SEPARATOR.join(dict.fromkeys(f"{direction}-{role}" for role, direction in changes))


def changes_named(transformation: str) -> tuple[tuple[str, str], ...]:
    """The (role, direction) pairs of a name of `transformation_of`; none for another name."""
    parts = [part.partition("-") for part in transformation.split(_SEPARATOR)]
    if all(way in DIRECTIONS and role in ROLES for way, _, role in parts):
        return tuple((role, way) for way, _, role in parts)
    return ()
