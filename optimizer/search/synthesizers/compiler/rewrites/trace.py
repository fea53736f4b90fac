"""The problem's Model as a graph of operators, a graph as readable Python, and constants of a
forward that are computed once.

Uses torch.fx's symbolic trace. torch.export fixes every size to the example's, or needs a named
range for each, and lowers to several hundred ATen operators, while a candidate must serve cases of
other sizes and be readable. Attributes of the Model stay attributes, since other cases construct it
with other arguments; tensors that forward creates (`torch.arange(n)`) are operators of the graph.

Sizes and dtypes come from fake tensors, so that nothing is computed or allocated. Problem files are
their user's own code and run in this process, as when the harness opens them.
"""

from __future__ import annotations

import ast
import builtins
import logging
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

from optimizer.evaluation.runner.constructor import script_module
from optimizer.search.synthesizers.compiler.configurations import ForwardText

# -- reading a graph
#
# Operators by one name for all spellings (`torch.mul`, `*`, `.mul()`), arguments by position or
# name, shapes and dtypes from fake tensors.

CACHED = "cached"  # in the meta of a node that reads a cached result
_SAME = {
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "absolute": "abs",
    "negative": "neg",
    "swapaxes": "transpose",
    "reshape_as": "view_as",
    "linalg_matmul": "matmul",
}
_WRITERS = {"setitem", "copy_", "iadd", "imul", "isub", "itruediv", "imatmul", "ior", "iand"}
_RANDOM = {
    "alpha_dropout",
    "bernoulli",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "empty",
    "empty_like",
    "empty_strided",
    "feature_alpha_dropout",
    "gumbel_softmax",
    "multinomial",
    "new_empty",
    "normal",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "rrelu",
}


def called(node: object) -> str:
    """The operator's name of a call; "" for anything else."""
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return ""
    if node.op == "call_method":
        name = str(node.target)
    else:
        name = str(getattr(node.target, "__name__", ""))
    return _SAME.get(name, name)


def argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    """An argument of a call, by position or else by name."""
    if place < len(node.args):
        return node.args[place]
    return node.kwargs.get(name, default)


def operand(value: object, *names: str) -> Node | None:
    """The node, if it is a call of one of these operators."""
    return value if isinstance(value, Node) and called(value) in names else None


def tensor(value: object) -> torch.Tensor | None:
    """The fake tensor of a node, if it has one."""
    known = value.meta.get("val") if isinstance(value, Node) else None
    return known if isinstance(known, torch.Tensor) else None


def shape(value: object) -> tuple[int, ...] | None:
    """The sizes of a node's tensor, if known."""
    known = tensor(value)
    return tuple(known.shape) if known is not None else None


def is_float(value: object) -> bool:
    """Whether a node's tensor is known to have a floating-point type."""
    known = tensor(value)
    return known is not None and known.is_floating_point()


def same_dtype(value: object, other: object) -> bool:
    """Whether the tensors of two nodes are known to have the same dtype."""
    first, second = tensor(value), tensor(other)
    return first is not None and second is not None and first.dtype == second.dtype


def is_number(value: object) -> bool:
    """Whether a value is a literal number or a node with a Python number."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return True
    return isinstance(value, Node) and isinstance(value.meta.get("val"), int | float)


def literal(value: object) -> float | None:
    """A literal number as float; None for anything else, booleans included."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def near(value: object, wanted: float) -> bool:
    """Whether a literal equals a number to within 1e-6 of it."""
    number = literal(value)
    return number is not None and math.isclose(number, wanted, rel_tol=1e-6)


def one_dim(value: object, rank: int | None) -> int | None:
    """A single dimension, counted from the front where the rank is known."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value % rank if rank else value


def last(value: object, of: object) -> bool:
    """Whether a dimension argument names the last one of a tensor."""
    known = shape(of)
    return known is not None and one_dim(value, len(known)) == len(known) - 1


def either(node: Node) -> Iterator[tuple[Any, Any]]:
    """The two operands of a commutative operator, in both orders."""
    if len(node.args) == 2 and not node.kwargs:
        left, right = node.args
        yield left, right
        yield right, left


def only_user(value: object, user: Node) -> bool:
    """Whether a node's result is used by this node only."""
    return isinstance(value, Node) and set(value.users) == {user}


def factors(value: object) -> list[object]:
    """The factors of a product, nested products included."""
    if isinstance(value, Node) and called(value) == "mul" and len(value.args) == 2:
        return [*factors(value.args[0]), *factors(value.args[1])]
    return [value]


def writes_in_place(node: Node) -> bool:
    """Whether a call writes into one of its arguments."""
    name = called(node)
    trailing = name.endswith("_") and not name.endswith("__")
    return trailing or name in _WRITERS or "out" in node.kwargs or bool(node.kwargs.get("inplace"))


def overwrites(node: Node) -> bool:
    """Whether a module overwrites its argument, as ReLU(inplace=True) does."""
    root = node.graph.owning_module
    if node.op != "call_module" or root is None:
        return False
    return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))


def is_random(node: Node) -> bool:
    """Whether a call has a random or undefined result."""
    return called(node) in _RANDOM


def replace(node: Node, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Node:
    """Replace a node by a call; dead code elimination removes the inputs that only it used."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(function, tuple(args), kwargs)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    return new


def operators(graph: fx.Graph) -> int:
    """Number of operators that a call runs, without reading sizes, selecting one of several results
    and reading cached results."""
    calls = ("call_function", "call_method", "call_module")
    reads = ("getattr", "size", "dim", "getitem")
    runs = (node for node in graph.nodes if node.op in calls and not node.meta.get(CACHED))
    return sum(called(node) not in reads for node in runs)


# -- tracing

_IMPORTS = {
    "torch": "import torch",
    "inf": "from math import inf",
    "nan": "from math import nan",
    "device": "from torch import device",
}
# Functions that create a tensor; symbolic trace would run them and insert the result.
_MAKERS = (
    "arange",
    "empty",
    "eye",
    "full",
    "linspace",
    "logspace",
    "normal",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "scalar_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
)
# torch.fx and `makers` replace functions of torch while they trace.
_TRACING = threading.Lock()
# A failure is reported as the reason of a missing graph, not as a traceback on the terminal.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
_HIDDEN = re.compile(r"_tensor_constant\d+")
_FUNCTIONAL = re.compile(r"torch\._C\._nn\.(\w+)")


@dataclass(frozen=True)
class SymbolicGraph:
    """A graph with a fake tensor in each node's `meta["val"]`."""

    graph: fx.GraphModule
    root: torch.nn.Module


@dataclass(frozen=True)
class NoSymbolicGraph:
    """The reason for a missing graph."""

    reason: str


class _Tracer(fx.Tracer):
    """Makes numbers and tensors that are attributes of the Model nodes with their name."""

    proxy_buffer_attributes = True

    def __init__(self, model: torch.nn.Module, numbers: bool) -> None:
        super().__init__()
        kinds = (int, float) if numbers else ()
        self._numbers = {
            name: value
            for name, value in vars(model).items()
            if not name.startswith("_")
            and (type(value) in kinds or isinstance(value, torch.Tensor))
        }
        self._model = model

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        arguments: tuple[Any, list[Any]] = super().create_args_for_root(
            root_fn, is_module, concrete_args
        )
        for name in self._numbers:
            setattr(self._model, name, self.create_proxy("get_attr", name, (), {}))
        return arguments

    def restore(self) -> None:
        for name, value in self._numbers.items():
            setattr(self._model, name, value)

    @contextmanager
    def makers(self) -> Iterator[None]:
        """Make functions that create tensors operators of the graph, like other calls of torch."""
        known = {name: getattr(torch, name) for name in _MAKERS}
        tracing = threading.get_ident()

        def operator(function: Any) -> Any:
            def made(*args: Any, **kwargs: Any) -> Any:
                if threading.get_ident() != tracing:
                    return function(*args, **kwargs)
                return self.create_proxy("call_function", function, args, kwargs)

            return made

        try:
            for name, function in known.items():
                setattr(torch, name, operator(function))
            yield
        finally:
            for name, function in known.items():
                setattr(torch, name, function)


@lru_cache(maxsize=8)
def trace(source: str) -> SymbolicGraph | NoSymbolicGraph:
    """The forward of the `Model` in a problem file, in evaluation mode."""
    try:
        return _traced(source)
    # The file is foreign code, and tracers raise errors of any kind.
    except Exception as error:
        return NoSymbolicGraph(f"{type(error).__name__}: {str(error)[:300]}")


def _traced(source: str) -> SymbolicGraph | NoSymbolicGraph:
    if _adds_in_place(source):
        return NoSymbolicGraph("it writes in place")
    module = script_module(source)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        model: torch.nn.Module = module.Model(*module.get_init_inputs()).eval()
        graph = _graph(model)
        for node in graph.nodes:
            node.type = None  # the text of annotations would contain names of torch.fx
            node.meta[CONSTANT] = node.op == "get_attr" and node.target not in model.state_dict()
        traced = fx.GraphModule(model, graph)
        unfit = _unfit(traced)
        if unfit:
            return NoSymbolicGraph(unfit)
        inputs = module.get_inputs()
    FakeTensorProp(traced, mode).propagate_dont_convert_inputs(*inputs)
    return SymbolicGraph(traced, model)


def _adds_in_place(source: str) -> bool:
    """Whether it has statements like `y += 1`, which symbolic trace reads as `y = y + 1`."""
    classes = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef))
    return any(isinstance(node, ast.AugAssign) for c in classes for node in ast.walk(c))


def _unfit(traced: fx.GraphModule) -> str:
    """Reason why a rewrite of this graph would be another function, or ""."""
    for node in traced.graph.nodes:
        shared = overwrites(node) and any(len(part.users) > 1 for part in node.all_input_nodes)
        if writes_in_place(node) or shared:
            return "it writes in place"
        if node.op == "get_attr" and _HIDDEN.fullmatch(str(node.target)):
            return "it computes with tensors that have no name in the Model"
    return ""


def _graph(model: torch.nn.Module) -> fx.Graph:
    try:
        graph = _by_symbols(model, numbers=True)
    except (fx.proxy.TraceError, TypeError):
        # A number controls the forward, so it cannot stay a name.
        graph = _by_symbols(model, numbers=False)
    _drop_unused(graph)
    return graph


def _by_symbols(model: torch.nn.Module, numbers: bool) -> fx.Graph:
    tracer = _Tracer(model, numbers)
    try:
        with _TRACING, tracer.makers():
            return tracer.trace(model)
    finally:
        tracer.restore()


def _drop_unused(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)


# -- back to Python


def forward_text(graph: fx.Graph) -> ForwardText | None:
    """The graph as text; None if it calls a function without a public name."""
    text = _named(graph.python_code("self").src)
    folded = {name: _named(module.text(name)) for name, module in folded_in(graph).items()}
    free = set().union(*map(_free_names, (text, *folded.values())))
    if not free <= set(_IMPORTS):
        return None
    imports = [_IMPORTS[name] for name in sorted(free | {"torch"}, key=list(_IMPORTS).index)]
    lines = [f"    {line.rstrip()}" if line.strip() else "" for line in text.splitlines()]
    functions = "\n\n\n".join([SUPPORT.strip("\n"), *folded.values()]) + "\n\n" if folded else ""
    return ForwardText("\n".join(lines), "\n".join(imports) + "\n", functions, tuple(folded))


def _named(text: str) -> str:
    return _FUNCTIONAL.sub(_public, text).strip()


def _free_names(text: str) -> set[str]:
    """Names that the code uses but does not define, without builtins."""
    tree = ast.parse(text)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return {node.id for node in names} - own - set(dir(builtins))


def _public(match: re.Match[str]) -> str:
    name = match.group(1)
    known = hasattr(torch.nn.functional, name)
    return f"torch.nn.functional.{name}" if known else match.group(0)


# -- constants

CONSTANT = "constant"  # in the meta of a get_attr node that is not part of the state
NAME = "folded"
_FACTS = ("shape", "dtype", "device", "ndim")
_SIZES = ("size", "dim", "ndimension", "numel", "nelement")
_DEF = re.compile(r"^def forward\(self(?:, )?(.*)\)\s*:", re.MULTILINE)

SUPPORT = '''
class _Kept:
    """What a function made of its arguments (sizes, dtypes, devices, constant tensors), until one
    of them is another."""

    def __init__(self, make):
        self.make, self.given, self.key, self.made = make, (), None, None

    @torch.compiler.disable
    def __call__(self, *given):
        key = [torch.get_default_dtype(), *(_identity(value) for value in given)]
        if key != self.key:
            # What it was made of is kept too, so that nothing else can come to lie in its place.
            self.made, self.given, self.key = self.make(*given), given, key
        return self.made


def _identity(value):
    """A tensor is another one when it was replaced or written to; one of inference mode, which does
    not tell, always."""
    if not isinstance(value, torch.Tensor):
        return value
    return object() if value.is_inference() else (id(value), value.data_ptr(), value._version)
'''


class Folded(torch.nn.Module):
    """A cached result in a rewritten graph; `graph` computes it from its arguments."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self.graph = graph

    def text(self, name: str) -> str:
        """The text of a function of the candidate's module."""
        code = self.graph.python_code("self").src.strip("\n")
        return _DEF.sub(lambda match: f"def {name}({match.group(1)}):", code, count=1)


def folded_in(graph: fx.Graph) -> dict[str, Folded]:
    """The cached results of a graph, by name."""
    root = graph.owning_module
    names = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    modules = {n: root.get_submodule(n) for n in names} if root is not None else {}
    return {name: module for name, module in modules.items() if isinstance(module, Folded)}


def cached_constant(node: Node) -> bool:
    """Tensors that a forward computes from constants in every call; the largest expressions are
    computed once."""
    root = node.graph.owning_module
    if root is None or node.op == "get_attr" or tensor(node) is None or not _is_constant(node):
        return False
    if all(_is_constant(user) for user in node.users) or _may_be_written(node):
        return False
    inside, parts = _expression(node)
    name = f"{NAME}_{len(folded_in(node.graph))}"
    root.add_submodule(name, Folded(_apart(inside, parts)))
    # As early as possible, since a compiler breaks the graph there.
    first = next(n for n in node.graph.nodes if n.op != "placeholder")
    place = node.graph.inserting_after(parts[-1]) if parts else node.graph.inserting_before(first)
    with place:
        cached = node.graph.call_module(name, tuple(parts))
    cached.meta = {**node.meta, CACHED: True}
    node.replace_all_uses_with(cached, delete_user_cb=lambda user: not _is_constant(user))
    return True


def _is_constant(node: Node, seen: dict[Node, bool] | None = None) -> bool:
    seen = {} if seen is None else seen
    if node not in seen:
        seen[node] = _follows(node, seen)
    return seen[node]


def _follows(node: Node, seen: dict[Node, bool]) -> bool:
    if node.op == "get_attr":
        return tensor(node) is None or bool(node.meta.get(CONSTANT))
    if not called(node) or is_random(node) or writes_in_place(node):
        return False
    return _reads_form(node) or all(_is_constant(part, seen) for part in node.all_input_nodes)


def _reads_form(node: Node) -> bool:
    """Whether it reads a size, dtype or device, not values of a tensor."""
    if called(node) == "getattr":
        return node.args[1] in _FACTS
    return called(node) in _SIZES


def _may_be_written(node: Node) -> bool:
    """Whether the result is returned or overwritten, so that it may be written to."""
    own = _memory(node)
    takers = (n for n in node.graph.nodes if n.op == "output" or overwrites(n))
    reached = (part for taker in takers for part in taker.all_input_nodes)
    return any(part is node or _memory(part) & own for part in reached)


def _memory(node: Node) -> set[int]:
    """Storages of a node's tensors; views share them."""
    return {value.untyped_storage()._cdata for value in _tensors(node)}


def _tensors(node: Node) -> Iterator[torch.Tensor]:
    leaves: Sequence[Any] = pytree.tree_leaves(node.meta.get("val"))
    return (value for value in leaves if isinstance(value, torch.Tensor))


def _expression(node: Node) -> tuple[list[Node], list[Node]]:
    """The nodes that compute a constant, in order, and their inputs: numbers, sizes and constant
    tensors."""
    inside, parts = {node}, set()
    waiting = [node]
    while waiting:
        for part in waiting.pop().all_input_nodes:
            is_tensor = any(True for _ in _tensors(part))
            if part.op != "get_attr" and is_tensor and not _reads_form(part):
                waiting += [part] if part not in inside else []
                inside.add(part)
            else:
                parts.add(part)
    order = list(node.graph.nodes)
    return [n for n in order if n in inside], [n for n in order if n in parts]


def _apart(inside: Sequence[Node], parts: Sequence[Node]) -> fx.Graph:
    graph = fx.Graph()
    places = {node: graph.placeholder(node.name) for node in parts}
    for node in inside:
        places[node] = graph.node_copy(node, lambda part: places[part])
    graph.output(places[inside[-1]])
    return graph
