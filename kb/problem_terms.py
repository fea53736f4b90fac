"""The words in which a problem is described: operators, element types, quantities.

Reads `problem_terms.toml`; knows no problem itself. Standard library only, because the portable
search core uses it too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PRECISION_POLICIES = ("strict", "relaxed")
LIBRARY_POLICIES = ("allowed", "forbidden")


@dataclass(frozen=True)
class ProblemTerms:
    """`ops`: id to family; `families`: to the words of guides; `dtypes`: id to bytes; `quantities`:
    name to meaning with its unit.
    """

    ops: Mapping[str, str]
    families: Mapping[str, str]
    dtypes: Mapping[str, int]
    quantities: Mapping[str, str]
    op_aliases: Mapping[str, str]
    dtype_aliases: Mapping[str, str]

    @property
    def names(self) -> frozenset[str]:
        """What may stand after `problem.` in a predicate."""
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
    """The id of an operator: `GEMM` -> `matmul`. An unknown one is kept, in lower case."""
    folded = op.strip().lower().replace("-", "_").replace(" ", "_")
    return problem_terms().op_aliases.get(folded, folded)


def canonical_dtype(dtype: str) -> str:
    """Torch's name of an element type: `bf16`, `torch.bfloat16` -> `bfloat16`."""
    folded = dtype.strip().lower().removeprefix("torch.").removeprefix("tl.")
    return problem_terms().dtype_aliases.get(folded, folded)


def op_family(op: str) -> str:
    """The group of operators that share recipes and warm starts; an unknown operator is its own."""
    known = canonical_op(op)
    return problem_terms().ops.get(known, known)


def guide_words(op: str) -> str:
    """In which words guides speak of an operator: its own name, then those of its family; empty for
    `unknown`.
    """
    if op == "unknown":
        return ""
    known, terms = canonical_op(op), problem_terms()
    family, backward = op_family(op.removesuffix("_backward")), op.endswith("_backward")
    if backward and family in ("softmax", "norm"):
        family = "backward"
    named = op.replace("_", " ")
    own = known.replace("_", " ")
    return " ".join(dict.fromkeys(filter(None, (named, own, terms.families.get(family)))))
