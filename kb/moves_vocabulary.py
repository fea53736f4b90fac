"""What moves and recipe parameters call the knobs of a kernel, and what can be done to one.

Data only: no document, recipe or predicate is known here.
"""

from __future__ import annotations

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
