"""The problem's Model as a graph of operators, and a graph as readable Python.

The base is torch.fx's symbolic trace. torch.export is today's way to a graph that is complete and
safe to run elsewhere, but it fixes every size to the example's (or asks for a named range for each)
and lowers to several hundred ATen operators, while a candidate must serve cases of other sizes and
be read by people. Numbers that the Model keeps as attributes stay attributes, because other cases
construct it with other arguments.

Sizes and dtypes come from fake tensors: nothing is computed and no memory is taken. Problem files
are their user's own code and run in this process, as when the harness opens them.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
import sys
import types
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from optimizer.synthesizers.compiler.rewrites.pattern import writes_in_place

_IMPORTS = {
    "torch": "import torch",
    "inf": "from math import inf",
    "nan": "from math import nan",
    "device": "from torch import device",
}
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
    """Keeps numbers that are attributes of the Model by name."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._numbers = {
            name: value
            for name, value in vars(model).items()
            if not name.startswith("_") and type(value) in (int, float)
        }
        self._model = model

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        made: tuple[Any, list[Any]] = super().create_args_for_root(
            root_fn, is_module, concrete_args
        )
        for name in self._numbers:
            setattr(self._model, name, self.create_proxy("get_attr", name, (), {}))
        return made

    def restore(self) -> None:
        for name, value in self._numbers.items():
            setattr(self._model, name, value)


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
        if any(writes_in_place(node) for node in graph.nodes):
            return NotTraced("it writes in place")
        for node in graph.nodes:
            node.type = None  # annotations would be printed with names that only torch.fx knows
        traced = fx.GraphModule(model, graph)
        inputs = module.get_inputs()
    FakeTensorProp(traced, mode).propagate_dont_convert_inputs(*inputs)
    return Traced(traced, model)


def _adds_in_place(source: str) -> bool:
    """`y += 1` writes into a tensor, and symbolic trace takes it for `y = y + 1`."""
    classes = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef))
    return any(isinstance(node, ast.AugAssign) for c in classes for node in ast.walk(c))


def _graph(model: torch.nn.Module) -> fx.Graph:
    tracer = _Tracer(model)
    try:
        graph = tracer.trace(model)
    except fx.proxy.TraceError:
        # A number decides what the forward does, so it cannot stay a name.
        tracer.restore()
        return fx.Tracer().trace(model)
    finally:
        tracer.restore()
    _drop_unused(graph)
    return graph


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


@dataclass(frozen=True)
class Written:
    """A forward as text, indented as a method, with the imports it needs."""

    forward: str
    imports: str


def written(graph: fx.Graph) -> Written | None:
    """None where the graph calls something that cannot be written by name."""
    text = _FUNCTIONAL.sub(_public, graph.python_code("self").src).strip("\n")
    free = _free_names(text)
    if not free <= set(_IMPORTS):
        return None
    imports = [_IMPORTS[name] for name in sorted(free | {"torch"}, key=list(_IMPORTS).index)]
    lines = [f"    {line.rstrip()}" if line.strip() else "" for line in text.splitlines()]
    return Written("\n".join(lines), "\n".join(imports) + "\n")


def _free_names(text: str) -> set[str]:
    """What the code uses and neither defines nor finds in every Python file."""
    tree = ast.parse(text)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return {node.id for node in names} - own - set(dir(builtins))


def _public(found: re.Match[str]) -> str:
    name = found.group(1)
    known = hasattr(torch.nn.functional, name)
    return f"torch.nn.functional.{name}" if known else found.group(0)
