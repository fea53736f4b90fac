"""A problem as data: a reference in the KernelBench convention, its named cases, the rules for
candidates, and the quantities that predicates read as `problem.<name>`.

Does not know how a case becomes tensors. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from optimizer.evaluation.abi import Signature, TensorSpec

OutputKind = Literal["float", "exact", "index"]
Distribution = Literal["as_given", "mean_zero", "offset", "wide"]
HELD_OUT = "held out: "  # prefix of a note on derived held-out cases
OUTPUT_KINDS: tuple[OutputKind, ...] = ("float", "exact", "index")
DISTRIBUTIONS: tuple[Distribution, ...] = ("as_given", "mean_zero", "offset", "wide")


@dataclass(frozen=True)
class Case:
    """One shape, dtype and distribution of a problem.

    `constants` are module-level names of the problem file (batch_size, ...) that are set before its
    inputs are made. `dtype` is that of the floating inputs and weights, None for the file's own.
    `weight` counts in means over cases. Cases that are not `timed` are only checked. `held_out`
    cases are used only when a winner is measured again. `devices` are the kinds that the case is
    meant for ("cpu", "cuda"), empty for any; a size for a GPU is useless on two cores.
    """

    name: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    distribution: Distribution = "as_given"
    weight: float = 1.0
    timed: bool = True
    held_out: bool = False
    devices: tuple[str, ...] = ()

    def fits(self, device: str) -> bool:
        """Whether the case is meant for this kind of device."""
        return not self.devices or device in self.devices


@dataclass(frozen=True)
class ProblemPolicy:
    """Rules for candidates.

    * `precision`: `strict` computes floats at least as precisely as the inputs' dtype, `relaxed`
      may use tf32 or 16-bit matrix units inside.
    * `library`: whether ready-made operators of torch may do the work.
    * `weights`: `varying` weights change between calls, `frozen` weights may be packed once.
    * `outputs`: how each output is compared: float within the error bound, exact bitwise, index by
      the value it points to; one entry, or one per output.
    * `index_into`: for an index output, the input it points into and the dimension.
    * `reduction_length`: terms in one output element; None if it follows from the shapes.
    * `perturb`: names of integer inputs whose elements may be replaced independently.
    * `fixed`: names of floating inputs and weights whose values belong together (sorted borders,
      lookup tables, probabilities): no distribution is applied to them and no element is replaced.
    """

    precision: Literal["strict", "relaxed"] = "strict"
    library: Literal["allowed", "forbidden"] = "allowed"
    weights: Literal["varying", "frozen"] = "varying"
    outputs: tuple[OutputKind, ...] = ()
    index_into: Mapping[str, int] = field(default_factory=dict)
    reduction_length: int | str | None = None
    perturb: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """A problem file and the declarations of its toml.

    `source` is the text of the file; `sha256` is of it and of the whole toml. `op` is a canonical
    operator of kb/problem_terms.toml. `declared`: the file has a toml; without one only the shape
    that the file makes is claimed.
    """

    name: str
    path: Path
    source: str
    sha256: str
    op: str
    cases: tuple[Case, ...]
    policy: ProblemPolicy = ProblemPolicy()
    declared: bool = False
    summary: str = ""

    @property
    def searched(self) -> tuple[Case, ...]:
        """The cases a search may see."""
        return tuple(case for case in self.cases if not case.held_out)

    @property
    def held_out(self) -> tuple[Case, ...]:
        """The cases that only winners are measured on."""
        return tuple(case for case in self.cases if case.held_out)


# -- quantities of a problem
#
# They decide which skills and moves apply: splitting K helps a product of few rows and no other.
# The names are those of kb/problem_terms.toml. A quantity that is not known is absent, not 0.

Trait = int | float | bool | str
Quantities = dict[str, float | str]
ATTENTION = "scaled_dot_product_attention"
WINDOWS = {"stride": "window_stride", "dilation": "window_dilation", "groups": "channel_groups"}
SIZES = frozenset(
    {
        *("rows", "row_length", *WINDOWS.values(), "query_length", "key_length", "attention_mask"),
        *("product_count", "product_rows", "product_columns", "product_depth", "product_narrow"),
    }
)


@dataclass(frozen=True)
class MatrixProduct:
    """A matrix product of `count` pairs: rows x depth times depth x columns, in elements."""

    count: int
    rows: int
    columns: int
    depth: int

    @property
    def multiplications(self) -> int:
        return self.count * self.rows * self.columns * self.depth


@dataclass(frozen=True)
class Observed:
    """The operators that a run of the reference dispatched.

    `traits` are numbers and words by name: `convolution.stride[0]` is an argument of the first such
    operator, `add#2.other` of the second; `model.limit` is an attribute of the Model. Attention has
    `scaled_dot_product_attention.is_causal`, `.masked`, `.dropout_p`, `.scale`, `.query_length` and
    `.key_length` on every device, and `pointwise.names` the names of all pointwise operators, in
    alphabetical order. `kinds` counts the operators that compute by kind: product,
    convolution, attention, pointwise, or other (reductions, sorting, gathers, scans). `product` is
    the matrix product with the most multiplications, if any. `work` is in bytes, by operator of
    kb/problem_terms.toml.
    """

    traits: Mapping[str, Trait]
    kinds: Mapping[str, int]
    product: MatrixProduct | None = None
    work: Mapping[str, float] = field(default_factory=dict)


def shape_quantities(signature: Signature, observed: Observed | None = None) -> Quantities:
    """Rows and products in elements, windows and sequences in positions. All but the rows need
    `observed`."""
    quantities = _rows(signature)
    if observed is None:
        return quantities
    if (product := observed.product) is not None:
        quantities |= {
            "product_count": product.count,
            "product_rows": product.rows,
            "product_columns": product.columns,
            "product_depth": product.depth,
            "product_narrow": min(product.rows, product.columns),
        }
    return quantities | _windows(observed.traits) | _attention(observed.traits)


def _rows(signature: Signature) -> Quantities:
    """Of the largest input, among floating ones if there are any."""
    inputs = [tensor for tensor in signature.of("input") if tensor.shape]
    floating = [tensor for tensor in inputs if "float" in tensor.dtype]
    if not inputs:
        return {}
    largest: TensorSpec = max(floating or inputs, key=lambda tensor: tensor.elements)
    length = largest.shape[-1]
    return {"row_length": length, "rows": largest.elements // length if length else 0}


def _windows(traits: Mapping[str, Trait]) -> Quantities:
    """The largest of each kind over the convolutions, else over the poolings."""
    for kind in ("conv", "pool"):
        sizes: dict[str, list[float]] = {}
        for name, value in traits.items():
            operator, _, argument = name.partition(".")
            quantity = WINDOWS.get(argument.partition("[")[0])
            if kind in operator and quantity and isinstance(value, int | float):
                sizes.setdefault(quantity, []).append(value)
        if sizes:
            return {quantity: max(values) for quantity, values in sizes.items()}
    return {}


def _attention(traits: Mapping[str, Trait]) -> Quantities:
    """Of the first attention."""
    if f"{ATTENTION}.query_length" not in traits:
        return {}
    lengths = {name: traits[f"{ATTENTION}.{name}"] for name in ("query_length", "key_length")}
    causal, masked = traits[f"{ATTENTION}.is_causal"], traits[f"{ATTENTION}.masked"]
    mask = "tensor" if masked else "causal" if causal else "none"
    return {**lengths, "attention_mask": mask}
