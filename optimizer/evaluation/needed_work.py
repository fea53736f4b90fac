"""The part of a case's work that its result depends on: bytes that are read, and operations.

Both are found by running the reference on drawn values, never from formulas or from a candidate.
A number that no right kernel undercuts (`NeededOperations.certain`, `needed_read_bytes`) leaves out
what could not be decided. Knows torch's autograd graph by the names of its nodes; a node that it
does not know ends a proof.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch

from optimizer.evaluation.problem.open_case import DrawnValues, OpenCase, free_memory
from optimizer.evaluation.roofline import NeededOperations

_log = logging.getLogger(__name__)

LINE = 64  # bytes, aligned, that a processor reads at once


class Dependence(NamedTuple):
    """What the outputs of one run depend on, by their derivatives.

    `operations` is None if they could not be counted. `read_bytes` has a lower bound for each input
    and weight, in the order of the ABI, in whole lines; 0 if unknown. `views` are the
    numbers of outputs that may be views of an input, for which nothing is read or written.
    """

    operations: NeededOperations | None
    read_bytes: tuple[int, ...]
    views: frozenset[int] = frozenset()


# -- operations
#
# The reference runs once under autograd, and its outputs are differentiated in a random direction.
# A multiply-add of a matrix product is needed if its operands are not zero and the derivative by
# the element that it adds to is not zero. That counts tiles of a mask, zeros of a triangle, padding
# and what a top-k drops as not needed, however the reference spells them.
#
# `fewest` also leaves out what together changes the result by less than its tolerance (early steps
# of an iteration that converges), and takes the fastest known algorithm: FFT or Winograd for a
# convolution; one fused product for several that only linear operators connect; half for a product
# of a matrix with itself; nothing for products of frozen weights, or with a matrix that is constant
# or has fewer values than elements (Toeplitz, a table), for which there are transforms.
#
# `certain` is more than half of one product of two inputs, of which an output is a function element
# by element: algorithms in the manner of Strassen save an eighth at each level, and no known
# practical one saves half.

MEMORY_FACTOR = 6  # free memory that is required, in sizes of all intermediate results
RECOGNISED = 0.9  # share of the formulas' operations that the graph must show, else it hides some
CERTAIN_SHARE = 0.5
WINOGRAD = 4  # multiplications of a convolution over those of Winograd's F(4x4, 3x3)
FAR = 200.0  # below a row's largest bias, from which a softmax gives no weight
PIECE = 1 << 26  # elements that are added up at once

# Name of an autograd node of a product -> places of its operands, and names of the saved ones.
PRODUCTS = {
    "Mm": ((0, 1), ("self", "mat2")),
    "Bmm": ((0, 1), ("self", "mat2")),
    "Addmm": ((1, 2), ("mat1", "mat2")),
    "Baddbmm": ((1, 2), ("batch1", "batch2")),
    "Mv": ((0, 1), ("self", "vec")),
    "Addmv": ((1, 2), ("mat", "vec")),
    "Dot": ((0, 1), ("self", "tensor")),
}
LEAF = "torch::autograd::AccumulateGrad"
MOVES = frozenset(
    {
        *("View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Unsqueeze"),
        *("Squeeze", "Expand", "Clone", "ToCopy", "Alias", "Slice", "Select", "Unbind", "Split"),
        *("Contiguous", "Unfold"),
    }
)
REPEATING = frozenset({"Expand", "Unfold"})
ELEMENTWISE = frozenset(
    {
        *("Relu", "Gelu", "Silu", "Sigmoid", "Tanh", "Exp", "Abs", "Sqrt", "Rsqrt", "Log", "Erf"),
        *("Sin", "Cos", "Pow", "Softplus", "Elu", "Hardtanh", "LeakyRelu", "Hardswish", "Mish"),
        *("Celu", "LogSigmoid", "Hardsigmoid", "Clamp", "ClampMin", "ClampMax", "Threshold"),
        *("Log1P", "Expm1", "Reciprocal"),
    }
)
NONLINEAR = ELEMENTWISE | {"Softmax", "LogSoftmax", "NativeLayerNorm", "Max", "Min", "Amax", "Amin"}
COMBINING = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Where", "MaskedFill", "Tril", "Triu"})
SUMS = frozenset({"Sum", "Mean", "Cumsum"})


@dataclass(eq=False)
class _Product:
    """A product of the reference's graph; counts are multiply-adds. `linked` holds the products
    and sums that only linear operators connect with this one."""

    node: Any
    name: str
    sources: tuple[frozenset[Any], frozenset[Any]] = (frozenset(), frozenset())
    free: bool = False  # computed from weights that never change, or with a structured operand
    total: int = 0
    needed: int = 0
    felt: int = 0  # those of `needed` that change the result by more than its tolerance
    depth: int = 0
    results: int = 0  # elements
    by_fft: int = 0  # floating-point operations of a convolution through FFT
    linked: set[Any] = field(default_factory=set)

    @property
    def fewest(self) -> int:
        """Floating-point operations of the fastest known algorithm for this product alone."""
        if self.free:
            return 0
        ours = 2 * self.felt
        if self.name == "Convolution":
            return min(ours // WINOGRAD, self.by_fft)
        return ours // 2 if self.sources[0] & self.sources[1] else ours


def dependence(case: OpenCase, device: str, seed: int, tolerance: float) -> Dependence:
    """What the outputs depend on at the values of a seed. `tolerance` is an error that each
    floating output may have, relative to its size."""
    try:
        return _dependence(case, device, seed, tolerance)
    # The reference is user code, which may not be differentiable, and memory may not suffice.
    except Exception as error:
        _log.info("operations are counted by formula: %s: %s", type(error).__name__, error)
        return Dependence(None, (0,) * len(case.signature.of("input", "parameter", "buffer")))
    finally:
        if device != "cpu":
            torch.cuda.empty_cache()


def _dependence(case: OpenCase, device: str, seed: int, tolerance: float) -> Dependence:
    if MEMORY_FACTOR * case.cost.result_bytes > _available(device):
        raise torch.OutOfMemoryError
    first = case.drawn_in_place(seed)
    outputs, leaves = case.differentiable(first, device)
    views = frozenset(n for n, out in enumerate(outputs) if _is_view(out))
    computed = [out for n, out in enumerate(outputs) if n not in views]
    roots = [out for out in computed if out.requires_grad and out.is_floating_point()]
    if views and not roots:
        return Dependence(None, (0,) * len(leaves), views)
    with torch.no_grad():
        units = [float(out.float().square().mean().sqrt()) or 1.0 for out in roots]
    budget = tolerance * sum(out.numel() for out in roots)
    graph = _Graph([out.grad_fn for out in roots], case, seed, first, leaves, budget)
    generator = torch.Generator(device).manual_seed(seed)
    directions = [
        torch.empty_like(out, requires_grad=False)
        .bernoulli_(generator=generator)
        .mul_(2)
        .sub_(1)
        .div_(unit)
        for out, unit in zip(roots, units, strict=True)
    ]
    wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    derivatives = torch.autograd.grad(roots, wanted, directions, allow_unused=True)
    by_leaf = dict(zip(map(id, wanted), derivatives, strict=True))
    with torch.no_grad():
        read = tuple(_line_bytes(leaf, by_leaf.get(id(leaf)), budget) for leaf in leaves)
        return Dependence(graph.operations(), read, views)


def _is_view(output: torch.Tensor) -> bool:
    """Whether an output holds elements of one input in another order, and nothing else."""
    node = output.grad_fn
    while node is not None and _name(node) in MOVES - {"ToCopy"} and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node is not None and _name(node) == LEAF


def _available(device: str) -> int:
    return free_memory() if device == "cpu" else int(torch.cuda.mem_get_info(device)[0])


def _line_bytes(leaf: torch.Tensor | None, derivative: torch.Tensor | None, budget: float) -> int:
    if leaf is None or derivative is None:
        return 0
    felt = _felt(derivative * leaf, budget).flatten()
    width = LINE // leaf.element_size()
    felt = torch.nn.functional.pad(felt, (0, -felt.numel() % width))
    lines = int(felt.view(-1, width).any(dim=1).sum())
    return min(leaf.numel() * leaf.element_size(), lines * LINE)


def _felt(influence: torch.Tensor, budget: float) -> torch.Tensor:
    """Mask of the elements without the smallest, whose absolute sum stays within the budget. Zeros
    and NaN are never in it."""
    sizes = influence.abs().float()
    if budget <= 0:
        return sizes > 0
    # The largest power of two below which all elements together are within the budget.
    low, high = -150, 128
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _sum_below(sizes, middle) <= budget else (low, middle - 1)
    if low == 128:  # all finite ones
        return torch.zeros_like(sizes, dtype=torch.bool)
    return (sizes > 0) & (sizes >= math.ldexp(1.0, low))


def _sum_below(sizes: torch.Tensor, exponent: int) -> float:
    """The sum of the sizes below this power of two."""
    below, pieces = math.ldexp(1.0, exponent), torch.split(sizes.flatten(), PIECE)
    sums = [torch.where(p < below, p, 0.0).sum(dtype=torch.float64) for p in pieces]
    return float(torch.stack(sums).sum())


class _Graph:
    """The products of an autograd graph. Construct it before the backward pass, which counts."""

    def __init__(
        self,
        roots: Sequence[Any],
        case: OpenCase,
        seed: int,
        values: DrawnValues,
        leaves: Sequence[torch.Tensor | None],
        budget: float,
    ) -> None:
        self._roots, self._budget = roots, budget
        self._case, self._seed, self._values = case, seed, values
        self._formula = case.cost.flops
        self._places = {id(leaf): n for n, leaf in enumerate(leaves) if leaf is not None}
        self._frozen = len(case.scalars) if case.problem.policy.weights == "frozen" else None
        given = (*values.inputs, *values.state.values())
        whole = (value.numel() for value in given if not value.is_floating_point())
        self._hidden = max(whole, default=0)  # elements of a source that autograd does not show
        self._members: dict[Any, _Product] = {}
        self._sums: dict[Any, int] = {}  # elements of the results of sums
        for node in _reachable(roots):
            name = _name(node)
            if name in PRODUCTS or name == "Convolution" or name.startswith("ScaledDotProduct"):
                self._members[node] = _Product(node, name)
                node.register_prehook(self._counting(self._members[node]))
            elif name in SUMS:
                self._sums[node] = 0
                node.register_prehook(self._measuring(node))
        for node in (*self._members, *self._sums):
            self._link(node)

    # -- before the backward pass

    def _link(self, node: Any) -> None:
        member = self._members.get(node)
        if member is None:
            for source in self._sources(node.next_functions):
                self._join(node, source)
            return
        places = PRODUCTS[member.name][0] if member.name in PRODUCTS else (0, 1)
        edges = [node.next_functions[place] for place in places]
        left, right = (frozenset(self._sources([edge])) for edge in edges)
        member.sources = left, right
        if member.name.startswith("Scaled"):  # a softmax is between its two products
            return
        for source in left | right:
            self._join(node, source)
        operands = zip(places, (left, right), _operand_shapes(member), strict=True)
        structured = any(
            self._repeats(node.next_functions[place][0], sources, shape)
            for place, sources, shape in operands
        )
        member.free = structured or (self._frozen is not None and self._constant(left | right))

    def _sources(self, edges: Sequence[Any]) -> Iterator[Any]:
        """Nodes that values come from through linear operators: leaves, products, sums, nonlinear
        operators, and None for what autograd does not show."""
        seen, stack = set(), [node for node, _ in edges]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node is None or self._ends(node):
                yield node
            else:
                stack += [following for following, _ in node.next_functions]

    def _ends(self, node: Any) -> bool:
        name = _name(node)
        return (
            name in (LEAF, *NONLINEAR)
            or node in self._members
            or node in self._sums
            or (name in ("Mul", "Div") and self._is_gate(node))
        )

    def _is_gate(self, node: Any) -> bool:
        """Whether a multiplication is of two computed values; by a weight it would be linear."""
        return all(
            side is not None and _name(_origin(side)) != LEAF for side, _ in node.next_functions
        )

    def _join(self, node: Any, other: Any) -> None:
        joined = self._members.get(other)
        if joined is not None and joined.name.startswith("Scaled"):
            return
        if joined is not None or other in self._sums:
            for one, two in ((node, other), (other, node)):
                if one in self._members:
                    self._members[one].linked.add(two)

    def _repeats(self, operand: Any, sources: frozenset[Any], shape: tuple[int, ...]) -> bool:
        """Whether the matrix of an operand has fewer values than elements. A matrix that is only
        repeated for each member of a batch has not."""
        copied = None
        while operand is not None and _name(operand) in MOVES and len(operand.next_functions) == 1:
            if _name(operand) == "Expand":
                copied = math.prod(operand._saved_self_sym_sizes)
                if copied < math.prod(shape[-2:]):
                    return True
            operand = operand.next_functions[0][0]
        return self._elements(sources) < (math.prod(shape) if copied is None else copied)

    def _elements(self, sources: frozenset[Any]) -> float:
        """Elements of all sources, so that an operand with more must repeat some."""
        count = 0.0
        for source in sources:
            if source is None:
                count += self._hidden
            elif _name(source) != LEAF:
                return math.inf
            else:
                count += source.variable.numel()
        return count

    def _constant(self, sources: frozenset[Any]) -> bool:
        """Whether all sources are frozen weights."""
        places = [self._place(source) for source in sources if source is not None]
        return bool(places) and all(p is not None and p >= (self._frozen or 0) for p in places)

    def _place(self, source: Any) -> int | None:
        """The place of a leaf among inputs and weights."""
        return self._places.get(id(source.variable)) if _name(source) == LEAF else None

    # -- during the backward pass

    def _measuring(self, node: Any) -> Callable[[Sequence[torch.Tensor | None]], None]:
        def measure(derivatives: Sequence[torch.Tensor | None]) -> None:
            if derivatives[0] is not None:
                self._sums[node] = derivatives[0].numel()

        return measure

    def _counting(self, product: _Product) -> Callable[[Sequence[torch.Tensor | None]], None]:
        def count(derivatives: Sequence[torch.Tensor | None]) -> None:
            if derivatives[0] is not None:
                with torch.no_grad():
                    self._count(product, derivatives[0])

        return count

    def _count(self, product: _Product, derivative: torch.Tensor) -> None:
        product.results = derivative.numel()
        if product.name.startswith("Scaled"):
            product.total, product.needed = _attention_terms(product.node, derivative)
            product.felt, product.depth = product.needed, int(derivative.shape[-1])
            return
        if product.name == "Convolution":
            left, right = product.node._saved_input, product.node._saved_weight
            multiply = _convolution(product.node)
            size = right.numel()
            channels = product.results // max(1, derivative.shape[0] * derivative[0, 0].numel())
            product.depth = size // max(1, channels)
            product.by_fft = _by_fft(product.node)
        else:
            left, right = (_saved(product.node, name) for name in PRODUCTS[product.name][1])
            multiply = torch.matmul
            product.depth = _depth(product, left, right)
        product.total = product.results * product.depth
        needed = derivative.abs() > 0
        if left is None or right is None:  # not stored, because it is a constant
            product.needed = product.felt = int(needed.sum()) * product.depth
            return
        felt = _felt(derivative * multiply(left, right), self._budget) & needed
        terms: torch.Tensor | int = product.depth
        padded = product.name == "Convolution"
        if padded or not (bool(left.all()) and bool(right.all())):
            terms = multiply((left != 0).float(), (right != 0).float())
        product.needed = int((needed * terms).sum(dtype=torch.float64))
        product.felt = int((felt * terms).sum(dtype=torch.float64))

    # -- after it

    def operations(self) -> NeededOperations | None:
        """The counts; None if the graph shows less than most of the operations of the formulas."""
        products = self._members.values()
        if not products or 2 * sum(p.total for p in products) < RECOGNISED * self._formula:
            return None
        needed = 2 * sum(product.needed for product in products)
        proven = [self._proven(root) for root in self._roots]
        certain = max((p.fewest for p in proven if p is not None), default=0)
        return NeededOperations(needed, self._fewest(), int(CERTAIN_SHARE * certain))

    def _fewest(self) -> int:
        fewest, done = 0, set()
        for node, product in self._members.items():
            if node in done:
                continue
            group, stack = {node}, [node]
            while stack:
                member = self._members.get(stack.pop())
                for following in member.linked if member is not None else ():
                    if following not in group:
                        group.add(following)
                        stack.append(following)
            done |= group
            fewest += product.fewest if len(group) == 1 else self._fused(group)
        return fewest

    def _fused(self, group: set[Any]) -> int:
        """Operations of one product instead of a group: its shortest sum for each element of its
        smallest result."""
        members = [self._members[n] for n in group if n in self._members]
        members = [product for product in members if not product.free]
        if not members:
            return 0
        results = [self._sums[n] for n in group if n in self._sums]
        results += [product.results for product in members]
        fused = 2 * min(results) * min(product.depth for product in members)
        return min(fused, *(product.fewest for product in members))

    @cached_property
    def _replaceable(self) -> tuple[bool, ...]:
        """Whether the elements of each input and weight vary independently."""
        return self._case.replaceable(self._values, self._case.second_draw_in_place(self._seed))

    def _proven(self, root: Any) -> _Product | None:
        """The only product that an output is a function of, element by element, if its operands
        are inputs or weights whose elements vary independently."""
        found, seen, stack = set(), set(), [root]
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            name = _name(node)
            if node in self._members:
                found.add(node)
                skipped = 1 if name.startswith("Add") or name == "Baddbmm" else 0
                stack += [following for following, _ in node.next_functions[:skipped]]
            elif name in MOVES | ELEMENTWISE | COMBINING:
                stack += [following for following, _ in node.next_functions]
            elif name != LEAF:
                return None
        product = self._members[found.pop()] if len(found) == 1 else None
        if product is None or product.name not in PRODUCTS or product.linked or product.free:
            return None
        for place in PRODUCTS[product.name][0]:
            origin = _origin(product.node.next_functions[place][0])
            number = None if origin is None else self._place(origin)
            if number is None or not self._replaceable[number]:
                return None
        return product


def _reachable(roots: Sequence[Any]) -> Iterator[Any]:
    seen, stack = set(), list(roots)
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            stack += [following for following, _ in node.next_functions]


def _name(node: Any) -> str:
    return str(node.name()).partition("Backward")[0]


def _origin(node: Any) -> Any:
    """The node that a value is moved or copied from, without repeating it."""
    while node is not None and _name(node) in MOVES - REPEATING and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node


def _saved(node: Any, name: str) -> torch.Tensor | None:
    value = getattr(node, f"_saved_{name}", None)
    return value if isinstance(value, torch.Tensor) else None


def _operand_shapes(product: _Product) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of both operands; (0,) if unknown."""
    named = PRODUCTS.get(product.name)
    left, right = named[1] if named is not None else ("input", "weight")
    return _shape(product.node, left), _shape(product.node, right)


def _shape(node: Any, name: str) -> tuple[int, ...]:
    shape = getattr(node, f"_saved_{name}_sym_sizes", None)
    value = _saved(node, name)
    if shape is None and value is not None:
        shape = value.shape
    return (0,) if shape is None else tuple(shape)


def _depth(product: _Product, left: torch.Tensor | None, right: torch.Tensor | None) -> int:
    """Terms of the sums of a matrix product."""
    if left is not None:
        return int(left.shape[-1])
    if right is None:
        return 0
    return int(right.shape[0] if right.dim() == 1 else right.shape[-2])


def _convolution(node: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten.convolution(
            left,
            right,
            None,
            node._saved_stride,
            node._saved_padding,
            node._saved_dilation,
            node._saved_transposed,
            node._saved_output_padding,
            node._saved_groups,
        )
        return result

    return multiply


def _by_fft(node: Any) -> int:
    """Operations of a convolution through real FFTs of the padded size: 2.5 n log2 n each, and 4
    for each product of spectra."""
    given, weight = node._saved_input, node._saved_weight
    sizes = zip(given.shape[2:], weight.shape[2:], strict=True)
    points = math.prod(size + width - 1 for size, width in sizes)
    channels = weight.shape[1] if node._saved_transposed else weight.shape[0]
    images = given.shape[0] * (given.shape[1] + channels) + weight.shape[0] * weight.shape[1]
    spectra = given.shape[0] * given.shape[1] * channels // node._saved_groups
    return int(2.5 * images * points * math.log2(max(2, points)) + 4 * spectra * points)


def _attention_terms(node: Any, derivative: torch.Tensor) -> tuple[int, int]:
    """All multiply-adds of a fused attention, and those of admitted pairs in needed rows."""
    query, key, value = node._saved_query, node._saved_key, node._saved_value
    rows = (derivative.abs() > 0).any(dim=-1)
    length, keys = int(query.shape[-2]), int(key.shape[-2])
    admitted = torch.full((length,), float(keys), device=rows.device)
    mask = _saved(node, "attn_mask")
    mask = _saved(node, "attn_bias") if mask is None else mask
    if node._saved_is_causal:
        admitted = torch.arange(1, length + 1, device=rows.device).clamp(max=keys)
    elif mask is not None:
        seen = mask
        if mask.dtype != torch.bool:  # torch's kernels turn a mask of booleans into numbers
            seen = mask > mask.amax(dim=-1, keepdim=True) - FAR
        admitted = seen.expand(*mask.shape[:-1], keys).sum(dim=-1)
    width = int(query.shape[-1] + value.shape[-1])
    pairs = int((rows * admitted).sum(dtype=torch.float64))
    return rows.numel() * keys * width, pairs * width


# -- bytes
#
# No kernel has to read what a slice, a stride or a gather skips. Where the derivative does not show
# that an element is needed (a maximum, a comparison), a line of the input is overwritten with the
# input's largest or smallest value, which its operators accept, and the reference is called again;
# if no output differs, the line was not needed.

PROBES = 24  # lines of each input
SMALL = 0.05  # of all bytes, below which an input is not probed
Z = 1.645  # of the one-sided interval of 95 %
ROUNDING = 8.0  # steps of the dtype at the size of an output, which iterations may end apart
SECONDS = 30.0  # for all calls of the reference; if they take longer, nothing is probed


def needed_read_bytes(
    case: OpenCase, device: str, seed: int, found: Dependence | None = None
) -> int:
    """A lower bound of the bytes of inputs and weights that every right kernel reads: lines that
    the derivatives show, or the lower end of an interval of 95 % from PROBES lines of each large
    input or weight. Frozen weights and values that are the same in every draw may be known to the
    kernel, so they count as 0, as does what could not be decided. `found` is the result of
    `dependence`."""
    first, other = case.drawn_in_place(seed), case.second_draw_in_place(seed)
    tensors = (*first.inputs, *first.state.values())
    read = list(found.read_bytes) if found is not None else [0] * len(tensors)
    frozen = case.problem.policy.weights == "frozen"
    probed: dict[str, list[int]] = {}
    for number, (value, varied) in enumerate(
        zip(tensors, (*other.inputs, *other.state.values()), strict=True)
    ):
        if torch.equal(value, varied) or (frozen and number >= len(first.inputs)):
            read[number] = 0
        elif read[number] < value.nbytes and _worth_probing(case, number, value):
            # An index that does not fit would end every later use of a GPU by this process.
            where = device if value.is_floating_point() or value.dtype == torch.bool else "cpu"
            probed.setdefault(where, []).append(number)
    for where, numbers in probed.items():
        # The reference is user code, on values that it may never have been tried with.
        try:
            shares = _probed(case, where, seed, numbers, found.views if found else frozenset())
        except Exception as error:
            _log.info("inputs are not probed: %s: %s", type(error).__name__, error)
            continue
        for number, share in shares.items():
            read[number] = max(read[number], int(share * tensors[number].nbytes))
    return sum(read)


def _worth_probing(case: OpenCase, number: int, value: torch.Tensor) -> bool:
    if number < len(case.scalars) and case.scalars[number]:
        return False
    if value.nbytes < SMALL * case.signature.compulsory_read_bytes:
        return False
    return bool(value.isfinite().all()) and bool(value.max() > value.min())


def _probed(
    case: OpenCase, device: str, seed: int, numbers: Sequence[int], views: frozenset[int]
) -> dict[int, float]:
    """The least share of some inputs and weights that the outputs depend on; empty if that takes
    too long or the reference does not repeat its result."""
    drawn = case.drawn_in_place(seed)
    inputs = [value.to(device) for value in drawn.inputs]
    state = {name: value.to(device) for name, value in drawn.state.items()}
    tensors = [*inputs, *state.values()]

    def computed() -> list[torch.Tensor]:
        outputs = case.reference(inputs, state, device=device)
        return [output for number, output in enumerate(outputs) if number not in views]

    began = time.monotonic()
    first, again = computed(), computed()
    calls = 2 * PROBES * len(numbers)
    if any(map(_differ, again, first)) or calls * (time.monotonic() - began) / 2 > SECONDS:
        return {}
    chance = random.Random(seed)
    shares = {}
    for number in numbers:
        lines = list(_lines(tensors[number], chance))
        hits = sum(_is_needed(tensors[number], line, first, computed) for line in lines)
        shares[number] = least_share(hits, len(lines))
    return shares


def least_share(hits: int, tries: int) -> float:
    """The lower end of Wilson's interval for the share of hits
    (https://en.wikipedia.org/wiki/Binomial_proportion_confidence_interval); 1.0 if all hit."""
    if hits == tries:
        return 1.0
    share, squared = hits / tries, Z * Z
    middle = share + squared / (2 * tries)
    half = Z * math.sqrt(share * (1 - share) / tries + squared / (4 * tries * tries))
    return max(0.0, (middle - half) / (1 + squared / tries))


def _lines(value: torch.Tensor, chance: random.Random) -> Iterator[slice]:
    """Random lines of the flat input."""
    width = LINE // value.element_size()
    for _ in range(PROBES):
        start = width * chance.randrange(math.ceil(value.numel() / width))
        yield slice(start, start + width)


def _is_needed(
    value: torch.Tensor,
    line: slice,
    first: Sequence[torch.Tensor],
    computed: Callable[[], Sequence[torch.Tensor]],
) -> bool:
    """Whether any output differs when one line of an input or weight has other values."""
    flat = value.view(-1)
    before = flat[line].clone()
    extremes = (value.max().clone(), value.min().clone())
    try:
        for extreme in extremes:
            flat[line] = extreme
            if any(map(_differ, computed(), first)):
                return True
        return False
    finally:
        flat[line] = before


def _differ(output: torch.Tensor, first: torch.Tensor) -> bool:
    """Whether two results differ by more than the last places of a rounding."""
    same = (output == first) | ((output != output) & (first != first))
    if first.is_floating_point():
        size = first.float().square().mean().sqrt()
        near = (output - first).abs().float() <= ROUNDING * torch.finfo(first.dtype).eps * size
        same |= near
    return not bool(same.all())
