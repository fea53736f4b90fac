"""Terms that describe a problem (operators, element types and quantities, read from
`problem_terms.toml`) and a kernel (its tunable parts, and their changes by moves and by parameters
of recipes). Standard library only, because the portable search core uses it too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ProblemTerms:
    """`ops` map an id to its family, `families` to words of guides, `dtypes` an id to bytes,
    `quantities` a name to its meaning with unit; aliases map to ids."""

    ops: Mapping[str, str]
    families: Mapping[str, str]
    dtypes: Mapping[str, int]
    quantities: Mapping[str, str]
    op_aliases: Mapping[str, str]
    dtype_aliases: Mapping[str, str]

    @property
    def names(self) -> frozenset[str]:
        """The members of `problem` in predicates."""
        return frozenset({"op", "language", "dtype", *self.quantities})


@lru_cache(maxsize=1)
def problem_terms() -> ProblemTerms:
    """The shipped terms."""
    path = Path(__file__).with_suffix(".toml")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return ProblemTerms(
        ops={op: row["family"] for op, row in data["ops"].items()},
        families=dict(data["families"]),
        dtypes={dtype: row["bytes"] for dtype, row in data["dtypes"].items()},
        quantities=dict(data["quantities"]),
        op_aliases={a: op for op, row in data["ops"].items() for a in row["aliases"]},
        dtype_aliases={a: dtype for dtype, row in data["dtypes"].items() for a in row["aliases"]},
    )


def canonical_op(op: str) -> str:
    """The id of an operator: `GEMM` -> `matmul`; for an unknown one, its name in lower case."""
    folded = op.strip().lower().replace("-", "_").replace(" ", "_")
    return problem_terms().op_aliases.get(folded, folded)


def canonical_dtype(dtype: str) -> str:
    """Torch's name of an element type: `bf16`, `torch.bfloat16` -> `bfloat16`."""
    folded = dtype.strip().lower().removeprefix("torch.").removeprefix("tl.")
    return problem_terms().dtype_aliases.get(folded, folded)


def op_family(op: str) -> str:
    """The family of an operator, whose members share recipes and warm starts; an unknown operator
    is its own family."""
    known = canonical_op(op)
    return problem_terms().ops.get(known, known)


def guide_words(op: str) -> str:
    """The words that guides use for an operator: its name, then those of its family; "" for
    `unknown`."""
    if op == "unknown":
        return ""
    known, terms = canonical_op(op), problem_terms()
    family, backward = op_family(op.removesuffix("_backward")), op.endswith("_backward")
    if backward and family in ("softmax", "norm"):
        family = "backward"
    named = op.replace("_", " ")
    own = known.replace("_", " ")
    return " ".join(dict.fromkeys(filter(None, (named, own, terms.families.get(family)))))


# -- roles of tunable parts, and their changes

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
