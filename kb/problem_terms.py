"""Terms that describe a problem: operators, element types and quantities, read from
`problem_terms.toml`. Standard library only, because the portable search core uses it too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


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
