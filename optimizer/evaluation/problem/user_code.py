"""A problem file is its user's own code and runs in this process; candidates never do. Imports it
with a case's constants, converts the results of its functions into arguments and outputs, and
controls the random numbers that it draws. Does not know cases.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kb.errors import InvalidRequest, nearest
from optimizer.evaluation.abi import ITEM_BYTES, TensorSpec
from optimizer.evaluation.problem.load import assigned
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.runner import constructor

NO_MEMORY = "can't allocate memory"  # torch's words for the CPU
_NO_GRADIENT = " is NoneType"
_NO_GPU = ("NVIDIA driver", "CUDA", "cuda", "HIP", "hip")


@contextmanager
def running(problem: Problem, step: str) -> Iterator[None]:
    """Run a step of the problem file; its exceptions become an InvalidRequest."""
    try:
        yield
    except (InvalidRequest, torch.OutOfMemoryError):
        raise  # it may fit into host memory
    except MemoryError as error:
        raise _out_of_memory(problem, step) from error
    except (SystemExit, constructor.EndsProcess) as ended:
        raise InvalidRequest(
            f"{problem.path.name}: {step} ends the process",
            hint="Kernlore imports the file without command-line arguments: give those that it"
            " parses defaults, and leave out sys.exit().",
        ) from ended
    # The file is foreign code: it may raise anything, and that is the file's fault.
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if NO_MEMORY in text:
            raise _out_of_memory(problem, step) from error
        raise InvalidRequest(
            f"{problem.path.name}: {step} failed: {text[:500]}", hint=_advice(problem, text)
        ) from error


def differentiates(error: InvalidRequest) -> bool:
    """Whether forward failed because weights require no gradients and nothing records them: it
    calls `backward()` or `torch.autograd.grad`, or returns a gradient that was not computed."""
    return "does not require grad" in str(error.__cause__) or error.message.endswith(_NO_GRADIENT)


def _out_of_memory(problem: Problem, step: str) -> InvalidRequest:
    return InvalidRequest(
        f"{problem.path.name}: {step} needs more memory than there is here",
        hint="Make its sizes smaller, or run it on a machine with more memory.",
    )


def _advice(problem: Problem, text: str) -> str:
    if any(word in text for word in _NO_GPU):
        return (
            "Make tensors on the CPU: the harness moves inputs and weights to the device. Remove "
            "`.cuda()` and `device=`, or set the file's device constant to 'cpu' in the case."
        )
    return f"Run `python {problem.path.name}` after adding a call of Model(...)(*get_inputs())."


def substituted(problem: Problem, constants: Mapping[str, Any]) -> str:
    """The source with other values for its module-level constants. They are replaced in the text,
    so that values derived from them (`size = batch * width`) follow. Raises InvalidRequest for a
    name that the file does not assign."""
    if not constants:
        return problem.source
    tree = ast.parse(problem.source)
    known = assigned(tree)
    for name in constants:
        if name not in known:
            near = nearest(name, known, 1)
            guess = f"Did you mean {near[0]}? " if near else ""
            raise InvalidRequest(
                f"{problem.path.name} has no constant {name!r}",
                hint=f"{guess}It has {', '.join(sorted(known)) or 'none'}.",
            )
    edits = [edit for node in tree.body for edit in _edits(node, constants)]
    lines = problem.source.splitlines(keepends=True)
    for node, text in sorted(edits, key=lambda e: (e[0].lineno, e[0].col_offset), reverse=True):
        _replace(lines, node, text)
    return "".join(lines)


def _edits(node: ast.stmt, constants: Mapping[str, Any]) -> Iterator[tuple[ast.expr, str]]:
    """(expression, replacement) pairs of this assignment."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        pairs: list[tuple[ast.expr, ast.expr]] = [(node.target, node.value)]
    elif isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    else:
        return
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs_of = list(zip(target.elts, value.elts, strict=False))
        else:
            pairs_of = [(target, value)]
        for name, old in pairs_of:
            if isinstance(name, ast.Name) and name.id in constants:
                yield old, _literal(constants[name.id], old)


def _literal(value: Any, old: ast.expr) -> str:
    """TOML has no tuples: a list replaces a tuple as one."""
    return repr(tuple(value) if isinstance(value, list) and isinstance(old, ast.Tuple) else value)


def _replace(lines: list[str], node: ast.expr, text: str) -> None:
    """Replace an expression; the number of lines stays the same."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    # offsets of ast count bytes
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset :].decode()
    lines[first : last + 1] = [f"{head}{text}{tail}"] + [""] * (last - first)


def import_problem(problem: Problem, constants: Mapping[str, Any]) -> types.ModuleType:
    """Import the file as a module with these constants. Its folder is importable meanwhile, as for
    a script. Raises InvalidRequest for anything that the file raises."""
    source = substituted(problem, constants)
    digest = hashlib.sha256(f"{problem.path}\0{source}".encode()).hexdigest()[:16]
    module = types.ModuleType(f"kernlore_problem_{digest}")
    module.__file__ = str(problem.path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up
    script = constructor.as_script(problem.path)
    with running(problem, "importing it"), _folder_on_path(problem.path.parent), script:
        exec(compile(source, str(problem.path), "exec"), module.__dict__)
    return module


@contextmanager
def _folder_on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


# -- arguments, in the forms of the KernelBench convention


def positional(function: Any, returned: Any, source: str, skip: int) -> list[Any]:
    """Arguments of `function` as a list. `source` is the name of the function that returned them.
    Raises InvalidRequest for keyword-only arguments, TypeError for arguments that do not fit."""
    try:
        return constructor.positional(function, returned, skip)
    except constructor.KeywordOnly as error:
        raise InvalidRequest(
            f"{source} names keyword-only arguments: {', '.join(error.names)}",
            hint="Let the function take them by position too.",
        ) from error


def argument_names(forward: Any, count: int) -> list[str]:
    """Names of forward's first `count` arguments; `inputN` for one without a name."""
    known = [
        p.name
        for p in inspect.signature(forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ][1:]
    return [known[n] if n < len(known) else f"input{n}" for n in range(count)]


def check_value(problem: Problem, label: str, value: Any) -> None:
    """Raises InvalidRequest unless the value is a number or a dense tensor of a known dtype."""
    if isinstance(value, bool | int | float):
        return
    if not isinstance(value, torch.Tensor):
        raise InvalidRequest(
            f"{problem.path.name}: {label} is {type(value).__name__}, not a tensor or a number",
            hint="get_inputs() returns one flat list of tensors and numbers; pass what else Model "
            "needs through get_init_inputs().",
        )
    name = str(value.dtype).removeprefix("torch.")
    if value.layout is not torch.strided or name not in ITEM_BYTES:
        raise InvalidRequest(
            f"{problem.path.name}: {label} is {name}, {value.layout}",
            hint=f"Use dense tensors of {', '.join(ITEM_BYTES)}; give a sparse one by its parts.",
        )


def differs_in_training(module: torch.nn.Module) -> bool:
    """Whether train mode of a module of torch computes something else than eval mode: dropout,
    norms with running statistics, randomised slopes."""
    kinds = torch.nn.modules
    if isinstance(module, kinds.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, kinds.batchnorm._NormBase):
        return module.track_running_stats
    if isinstance(module, kinds.RNNBase | kinds.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, kinds.RReLU) and module.lower < module.upper


def hidden_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that a model keeps outside its state_dict, by their path."""
    hidden: dict[str, torch.Tensor] = {}
    known = model.state_dict()
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        parts = {**module._buffers, **vars(module)}
        hidden |= {
            f"{dot}{name}": value
            for name, value in parts.items()
            if isinstance(value, torch.Tensor) and f"{dot}{name}" not in known
        }
    return hidden


# -- outputs


def keys_of(result: Any) -> tuple[str, ...]:
    """The keys of a mapping of outputs; else empty."""
    if isinstance(result, dict) and all(isinstance(key, str) for key in result):
        return tuple(result)
    return ()


def outputs_of(problem: Problem, result: Any) -> list[torch.Tensor]:
    """The outputs in the order of the result. Raises InvalidRequest unless all are tensors."""
    values = [result]
    if isinstance(result, dict):
        values = list(result.values())
    elif isinstance(result, tuple | list):
        values = list(result)
    for number, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            raise InvalidRequest(
                f"{problem.path.name}: output {number} is {type(value).__name__}",
                hint="forward returns a tensor, or one flat tuple, list or dict of tensors.",
            )
        check_value(problem, f"output {number}", value)
    return [value.detach() for value in values]


class InputVersions:
    """Versions of a reference call's inputs, to detect changes in place."""

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self._inputs = [
            (name, value, value._version)
            for name, value in zip(names, values, strict=True)
            if isinstance(value, torch.Tensor)
        ]

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the inputs that were changed."""
        return tuple(name for name, value, version in self._inputs if value._version != version)

    def check(self, problem: Problem, outputs: Sequence[torch.Tensor]) -> None:
        """Raises InvalidRequest if forward changed an input in place that it does not return: a
        candidate is judged by its outputs, and may not change its inputs."""
        returned = {_storage(output) for output in outputs}
        lost = [
            name
            for name, value, version in self._inputs
            if value._version != version and _storage(value) not in returned
        ]
        if lost:
            names = ", ".join(lost)
            raise InvalidRequest(
                f"{problem.path.name}: forward changes its input {names} in place and does not"
                " return it, so no candidate would be checked for the change",
                hint=f"Return {names} as well if the change matters. If it is only scratch space,"
                f" use a copy ({lost[0]} = {lost[0]}.clone()).",
            )


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def check_shapes(
    problem: Problem, declared: Sequence[TensorSpec], outputs: Sequence[torch.Tensor]
) -> None:
    """Raises InvalidRequest if outputs have other shapes than for the first values: a candidate
    gets arrays of fixed shapes."""
    for spec, output in zip(declared, outputs, strict=False):
        if tuple(spec.shape) != tuple(output.shape):
            raise InvalidRequest(
                f"{problem.path.name}: the shape of {spec.name} depends on the values of the"
                f" inputs: {tuple(spec.shape)} for some, {tuple(output.shape)} for others",
                hint="Return arrays of one shape: a mask instead of the positions of its ones,"
                " or an array of the largest size and a count.",
            )
    if len(declared) != len(outputs):
        raise InvalidRequest(
            f"{problem.path.name}: forward returns {len(declared)} outputs for some values of the"
            f" inputs and {len(outputs)} for others",
            hint="Return the same outputs for all values.",
        )


# -- random numbers

# Device files of the drivers of NVIDIA, AMD and WSL.
_DEVICES = tuple(map(Path, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))
_OF_PROCESS = threading.RLock()
_NUMPY_SEEDS = 2**32  # below which numpy's global generator takes seeds


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed every generator that a problem file may draw from, and restore it afterwards. One thread
    at a time: generators and torch's default dtype are the process's."""
    with _OF_PROCESS, _seeded(seed):
        yield


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    ours = random.getstate()
    with torch.random.fork_rng(devices=[]), _numpy_seeded(seed):
        _seed_torch(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(ours)


def _seed_torch(seed: int) -> None:
    """As torch.manual_seed, which takes a millisecond to format a stack for each kind of device
    that is not in use, a hundred times in an evaluation. Without such a device nothing can draw
    from its generators."""
    if _may_have_devices():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _may_have_devices() -> bool:
    # Asking a driver would make it unusable in forks.
    if torch.cuda._is_compiled() and any(place.exists() for place in _DEVICES):
        return True
    return torch.backends.mps.is_built() or torch.xpu._is_compiled()


@contextmanager
def _numpy_seeded(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, if numpy is installed: torch does not need it."""
    try:
        from numpy import random as numpys
    except ModuleNotFoundError:
        yield
        return
    before = numpys.get_state()
    numpys.seed(seed % 2**32)
    try:
        yield
    finally:
        numpys.set_state(before)


@contextmanager
def drawn_apart(draw: int, module: ModuleType) -> Iterator[None]:
    """Add `draw` to every seed that the file of `module` sets.

    A file that seeds a generator itself (`torch.Generator().manual_seed(3)`, or
    `torch.manual_seed(0)` in get_inputs) would make the same inputs for every seed of the harness,
    and a kernel that never reads them would pass. Generators that it made before are not covered.
    """
    if draw == 0:
        yield
        return
    moved = _moved(draw)
    places: list[tuple[dict[str, Any], str, Any]] = []
    owners = [torch, torch.random, random, sys.modules.get("numpy.random"), module]
    for owner in owners:
        names = {} if owner is None else vars(owner)
        places += [(names, name, value) for name, value in names.items() if id(value) in moved]
    for names, name, value in places:
        names[name] = moved[id(value)]
    try:
        yield
    finally:
        for names, name, value in places:
            names[name] = value


def _moved(draw: int) -> Mapping[int, Any]:
    """Replacements of the functions and classes that take a seed, by identity."""

    def by(seed: Any, below: int = 2**63) -> Any:
        return (seed + draw) % below if isinstance(seed, int) else seed

    class Generator(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            return super().manual_seed(by(seed))

    class Random(random.Random):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(by(seed))

    real_torch, real_python = torch.manual_seed, random.seed
    moved: dict[int, Any] = {
        id(torch.Generator): Generator,
        id(real_torch): lambda seed: real_torch(by(seed)),
        id(random.Random): Random,
        id(real_python): lambda a=None, version=2: real_python(by(a), version),
    }
    numpys = sys.modules.get("numpy.random")
    if numpys is not None:
        moved |= _moved_of_numpy(numpys, lambda seed: by(seed, _NUMPY_SEEDS))
    return moved


def _moved_of_numpy(numpys: Any, by: Callable[[Any], Any]) -> dict[int, Any]:
    seed, generator, state = numpys.seed, numpys.default_rng, numpys.RandomState

    class RandomState(state):  # type: ignore[misc, valid-type]
        def __init__(self, seed: Any = None) -> None:
            super().__init__(by(seed))

    return {
        id(seed): lambda value=None: seed(by(value)),
        id(generator): lambda value=None: generator(by(value)),
        id(state): RandomState,
    }
