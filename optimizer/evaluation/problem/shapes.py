"""What running a reference showed, and from it the sizes of the problem that predicates read as
`problem.<name>`.

They decide which skills and moves apply: splitting K helps a product of few rows and no other. The
names are those of `kb/problem_terms.toml`. What cannot be known is absent, not 0. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optimizer.evaluation.abi import Signature, TensorSpec

Trait = int | float | bool | str
Quantities = dict[str, float | str]
ATTENTION = "scaled_dot_product_attention"
WINDOWS = {
    "stride": "window_stride",
    "dilation": "window_dilation",
    "groups": "channel_groups",
}
SIZES = frozenset(
    {
        *("rows", "row_length", *WINDOWS.values(), "query_length", "key_length", "attention_mask"),
        *("product_count", "product_rows", "product_columns", "product_depth", "product_narrow"),
    }
)


@dataclass(frozen=True)
class Product:
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
    """What a run of the reference dispatched.

    `traits` are numbers and words by name: `convolution.stride[0]` is an argument of the first such
    operator, `add#2.other` of the second; `model.limit` is an attribute of the Model. Attention has
    `scaled_dot_product_attention.is_causal`, `.masked`, `.dropout_p`, `.scale`, `.query_length` and
    `.key_length` on every device. `kinds` counts the operators that compute by kind: product,
    convolution, attention, pointwise, or other (all that reduces, orders, gathers or scans).
    `product` is the matrix product with the most multiplications, if there is one. `work` is by
    operator of kb/problem_terms.toml, in bytes (`work_of` in dominant).
    """

    traits: Mapping[str, Trait]
    kinds: Mapping[str, int]
    product: Product | None = None
    work: Mapping[str, float] = field(default_factory=dict)


def shape_quantities(signature: Signature, observed: Observed | None = None) -> Quantities:
    """Rows and products in elements, windows in places, sequences in positions; what the reference
    dispatched says all but the rows.
    """
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
    """Of the largest input, floating where there is such an input."""
    inputs = [tensor for tensor in signature.of("input") if tensor.shape]
    floating = [tensor for tensor in inputs if "float" in tensor.dtype]
    if not inputs:
        return {}
    largest: TensorSpec = max(floating or inputs, key=lambda tensor: tensor.elements)
    length = largest.shape[-1]
    return {"row_length": length, "rows": largest.elements // length if length else 0}


def _windows(traits: Mapping[str, Trait]) -> Quantities:
    """The largest of each kind over the convolutions; over the poolings where there are none."""
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
