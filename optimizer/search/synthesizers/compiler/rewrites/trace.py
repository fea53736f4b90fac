"""The problem's Model as a graph of operators, and a graph as readable Python.

The base is torch.fx's symbolic trace. torch.export is today's way to a graph that is complete and
safe to run elsewhere, but it fixes every size to the example's (or asks for a named range for each)
and lowers to several hundred ATen operators, while a candidate must serve cases of other sizes and
be read by people. Numbers and tensors that the Model keeps as attributes stay attributes, because
other cases construct it with other arguments; tensors that forward makes (`torch.arange(n)`) are
operators of the graph.

Sizes and dtypes come from fake tensors: nothing is computed and no memory is taken. Problem files
are their user's own code and run in this process, as when the harness opens them.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from optimizer.search.synthesizers.compiler.rewrites.constants import CONSTANT, SUPPORT, folded_in
from optimizer.search.synthesizers.compiler.rewrites.pattern import overwrites, writes_in_place
from optimizer.search.synthesizers.compiler.source import Written

_IMPORTS = {
    "torch": "import torch",
    "inf": "from math import inf",
    "nan": "from math import nan",
    "device": "from torch import device",
}
# Functions that make a tensor of what is none: symbolic trace would run them and keep the result.
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
# torch.fx and `makers` replace functions of torch for as long as they trace.
_TRACING = threading.Lock()
_HIDDEN = re.compile(r"_tensor_constant\d+")
_FUNCTIONAL = re.compile(r"torch\._C\._nn\.(\w+)")


@dataclass(frozen=True)
class Traced:
    """A graph with what fake tensors know of each node in `meta["val"]`."""

    graph: fx.GraphModule
    root: torch.nn.Module


@dataclass(frozen=True)
class NotTraced:
    """Why there is no graph."""

    reason: str


class _Tracer(fx.Tracer):
    """Keeps numbers and tensors that are attributes of the Model by name."""

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
        """What makes a tensor becomes an operator of the graph, as other calls of torch do."""
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
def trace(source: str) -> Traced | NotTraced:
    """The forward of the `Model` in a problem file, in evaluation mode."""
    try:
        return _traced(source)
    # The file is foreign code, and what a tracer cannot follow it says with errors of any kind.
    except Exception as error:
        return NotTraced(f"{type(error).__name__}: {str(error)[:300]}")


def _traced(source: str) -> Traced | NotTraced:
    if _adds_in_place(source):
        return NotTraced("it writes in place")
    module = _module(source)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        model: torch.nn.Module = module.Model(*module.get_init_inputs()).eval()
        graph = _graph(model)
        for node in graph.nodes:
            node.type = None  # annotations would be printed with names that only torch.fx knows
            node.meta[CONSTANT] = node.op == "get_attr" and node.target not in model.state_dict()
        traced = fx.GraphModule(model, graph)
        unfit = _unfit(traced)
        if unfit:
            return NotTraced(unfit)
        inputs = module.get_inputs()
    FakeTensorProp(traced, mode).propagate_dont_convert_inputs(*inputs)
    return Traced(traced, model)


def _adds_in_place(source: str) -> bool:
    """`y += 1` writes into a tensor, and symbolic trace takes it for `y = y + 1`."""
    classes = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef))
    return any(isinstance(node, ast.AugAssign) for c in classes for node in ast.walk(c))


def _unfit(traced: fx.GraphModule) -> str:
    """Why a rewrite of this graph would be another function; empty where it would not."""
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
        # A number decides what the forward does, so it cannot stay a name.
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


def _module(source: str) -> types.ModuleType:
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    module = types.ModuleType(f"kernlore_traced_{digest}")
    sys.modules[module.__name__] = module  # dataclasses look a class's module up
    exec(compile(source, module.__name__, "exec"), module.__dict__)
    return module


# -- back to Python


def written(graph: fx.Graph) -> Written | None:
    """None where the graph calls something that cannot be written by name."""
    text = _named(graph.python_code("self").src)
    folded = {name: _named(module.text(name)) for name, module in folded_in(graph).items()}
    free = set().union(*map(_free_names, (text, *folded.values())))
    if not free <= set(_IMPORTS):
        return None
    imports = [_IMPORTS[name] for name in sorted(free | {"torch"}, key=list(_IMPORTS).index)]
    lines = [f"    {line.rstrip()}" if line.strip() else "" for line in text.splitlines()]
    functions = "\n\n\n".join([SUPPORT.strip("\n"), *folded.values()]) + "\n\n" if folded else ""
    return Written("\n".join(lines), "\n".join(imports) + "\n", functions, tuple(folded))


def _named(text: str) -> str:
    return _FUNCTIONAL.sub(_public, text).strip()


def _free_names(text: str) -> set[str]:
    """What the code uses and neither defines nor finds in every Python file."""
    tree = ast.parse(text)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return {node.id for node in names} - own - set(dir(builtins))


def _public(match: re.Match[str]) -> str:
    name = match.group(1)
    known = hasattr(torch.nn.functional, name)
    return f"torch.nn.functional.{name}" if known else match.group(0)
