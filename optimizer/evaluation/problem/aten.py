"""Problem files for torch's own operators, from the samples that torch ships for its tests.

An operator's largest sample that a file can express becomes a Model; the extents of its inputs
become constants of the file, which the cases of problem.toml set: the sample's own, and larger ones
if the operator accepts them. Samples that need Python objects (functions, generators, devices) are
skipped, with the reason.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kb.errors import NotFound, Unavailable, nearest
from optimizer.evaluation.runner.kernels import DispatchWatch

# Approximate size of the largest input; a later one is tried if the operator refuses the first.
ELEMENTS = {"cpu": (1 << 21,), "cuda": (1 << 26, 1 << 23, 1 << 21)}
MAX_RESULTS = 1 << 28  # elements
MAX_COMPUTED = 1 << 28  # elements of all intermediate results of an operator, on the CPU
SAMPLES = 12  # of an operator that are tried
BEST = 3
_FLOATING = (torch.float32,)
_PLAIN = (bool, int, float, str, type(None))


# Operators that return the indices of any of several equal elements.
_WITH_INDICES = ("sort", "argsort", "mode")


@dataclass(frozen=True)
class AtenProblem:
    """A problem file and its problem.toml. `larger`: it has realistic sizes. `plain`: the result is
    one tensor of floats with several elements, which alone distinguishes kernels surely."""

    name: str
    operator: str
    source: str
    toml: str
    larger: bool
    plain: bool

    @property
    def worth(self) -> int:
        """Quality as a problem, up to BEST."""
        return 2 * self.larger + self.plain


@dataclass(frozen=True)
class SkippedOperator:
    """An operator without a problem, and the reason."""

    operator: str
    reason: str


def operator_names() -> list[str]:
    """The operators that torch has samples of. Raises Unavailable."""
    return sorted({_full_name(info) for info in _infos()})


def aten_problem(name: str) -> AtenProblem | SkippedOperator:
    """The problem of an operator. Raises NotFound if torch has no samples of it, and
    Unavailable."""
    info = next((i for i in _infos() if _full_name(i) == name), None)
    if info is None:
        near = ", ".join(nearest(name, operator_names()))
        raise NotFound(
            f"torch has no samples of {name!r}",
            hint=f"Similar: {near}." if near else "See `kernlore problem aten --list`.",
        )
    if "empty" in info.name.rsplit(".", 1)[-1]:
        return SkippedOperator(name, "its result is memory as it was")
    call = _callable(info)
    if call is None:
        return SkippedOperator(name, "no function of torch or method of a tensor has its name")
    reason = "it has no sample with a tensor of float32"
    best: AtenProblem | None = None
    for sample in _samples(info):
        made = _from_sample(info, name, call, sample)
        if isinstance(made, SkippedOperator):
            reason = made.reason
        elif best is None or made.worth > best.worth:
            best = made
        if best is not None and best.worth == BEST:
            break
    return best or SkippedOperator(name, reason)


def write_problem_files(made: AtenProblem, folder: Path) -> Path:
    """Write the problem into a new folder in `folder`, and return that."""
    own = folder / made.name
    own.mkdir(parents=True, exist_ok=True)
    (own / "problem.py").write_text(made.source, encoding="utf-8")
    (own / "problem.toml").write_text(made.toml, encoding="utf-8")
    return own


@dataclass(frozen=True)
class WrittenProblem:
    """The folder of an operator's problem, or None and the reason; with a folder, `reason` says why
    it has only small sizes."""

    operator: str
    path: Path | None
    reason: str = ""


def write_problems(
    names: Sequence[str], folder: Path, log: Callable[[str], None]
) -> list[WrittenProblem]:
    """Write the problems of these operators in `folder`; `log` gets a line for every hundredth.
    Raises NotFound and Unavailable before anything is written."""
    known = set(operator_names())
    for name in names:
        if name not in known:
            aten_problem(name)
    results = []
    for number, name in enumerate(names, 1):
        made = aten_problem(name)
        if isinstance(made, SkippedOperator):
            results.append(WrittenProblem(name, None, made.reason))
        else:
            reason = "" if made.larger else "only the sample's size: torch takes no larger one"
            results.append(WrittenProblem(name, write_problem_files(made, folder), reason))
        if number % 100 == 0:
            log(f"{number} of {len(names)} operators")
    return results


# -- samples


def _infos() -> list[Any]:
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as problem:
        raise Unavailable(
            f"torch's operator samples cannot be imported: {problem}",
            hint="They need the package expecttest: pip install -e '.[kernels]'.",
        ) from problem
    return list(op_db)


def _full_name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def _callable(info: Any) -> str | None:
    """Format string of a call of the operator; {} is for the arguments."""
    owner: Any = torch
    for part in info.name.split("."):
        owner = getattr(owner, part, None)
        if owner is None:
            break
    if callable(owner):
        return f"torch.{info.name}({{}})"
    if "." not in info.name and callable(getattr(torch.Tensor, info.name, None)):
        return f"torch.Tensor.{info.name}({{}})"
    return None


def _samples(info: Any) -> list[Any]:
    """Samples with tensors that are not empty, the largest first."""
    torch.manual_seed(0)
    made: Iterator[Any] = iter(())
    if torch.float32 in info.dtypes:
        made = info.sample_inputs("cpu", torch.float32, requires_grad=False)
    samples = []
    for sample in itertools.islice(made, SAMPLES):
        tensors = _tensors_of([sample.input, *sample.args, *sample.kwargs.values()])
        if tensors and all(t.numel() and t.layout is torch.strided for t in tensors):
            samples.append((sum(t.numel() for t in tensors), sample))
    return [sample for _, sample in sorted(samples, key=lambda pair: -pair[0])]


def _tensors_of(values: Sequence[Any]) -> list[torch.Tensor]:
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += _tensors_of(value)
    return tensors


# -- files


@dataclass(frozen=True)
class _File:
    """The inputs of a sample, and the text of the call's arguments."""

    inputs: tuple[torch.Tensor, ...]
    arguments: str


def _from_sample(info: Any, name: str, call: str, sample: Any) -> AtenProblem | SkippedOperator:
    file = _arguments(sample)
    if isinstance(file, str):
        return SkippedOperator(name, file)
    extents = sorted({size for t in file.inputs for size in t.shape if size > 1}, reverse=True)
    source = _source(name, call, file, extents, info)
    own = {_constant(size): size for size in extents}
    result = _result(source, own)
    if isinstance(result, str):
        return SkippedOperator(name, result)
    plain = len(result) == 1 and result[0].is_floating_point() and result[0].numel() > 1
    larger = {}
    # One result for each index of a dimension (unbind) would become millions.
    counted = len(result) > 2 and len(result) in extents
    for device, steps in ELEMENTS.items():
        really = device == "cpu"
        for most in steps if not counted else ():
            sizes = _larger(source, file, extents, most, really=really)
            if sizes is not None:
                larger[device] = sizes
                break
    short = re.sub(r"\W+", "_", f"aten_{name}").strip("_").lower()
    kinds = _kinds(name, call.format("x0") in source, result)
    return AtenProblem(
        short, name, source, _toml(short, name, own, larger, kinds), bool(larger), plain
    )


def _kinds(name: str, along_the_last: bool, result: Sequence[torch.Tensor]) -> list[str]:
    """Kinds of the outputs of an operator that returns indices in the last dimension of its input;
    empty for any other."""
    if name not in _WITH_INDICES or not along_the_last:
        return []
    return ["float" if part.is_floating_point() else "index" for part in result]


def _arguments(sample: Any) -> _File | str:
    """The call's arguments as text, or the reason why they cannot be written."""
    inputs: list[torch.Tensor] = []

    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            inputs.append(value)
            return f"x{len(inputs) - 1}"
        if isinstance(value, list | tuple):
            inner = ", ".join(text(part) for part in value)
            return f"[{inner}]" if isinstance(value, list) else _tuple(inner, len(value))
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, torch.dtype):
            return str(value)
        raise TypeError(f"an argument of its sample is a {type(value).__name__}")

    try:
        parts = [text(sample.input), *(text(arg) for arg in sample.args)]
        # Results are on the inputs' device; a device in the text would fix one.
        named = {key: value for key, value in sample.kwargs.items() if key != "device"}
        parts += [f"{key}={text(value)}" for key, value in named.items()]
    except TypeError as problem:
        return str(problem)
    if any(t.dtype not in (torch.float32, torch.int64, torch.bool) for t in inputs):
        return "its sample has tensors of other dtypes than float32, int64 and bool"
    if not any(t.dtype in _FLOATING for t in inputs):
        return "its sample has no tensor of float32"
    return _File(tuple(inputs), ", ".join(parts))


def _tuple(inner: str, count: int) -> str:
    return f"({inner},)" if count == 1 else f"({inner})"


def _constant(size: int) -> str:
    return f"n{size}"


def _source(name: str, call: str, file: _File, extents: Sequence[int], info: Any) -> str:
    arguments = ", ".join(f"x{n}: torch.Tensor" for n in range(len(file.inputs)))
    constants = "\n".join(f"{_constant(size)} = {size}" for size in extents)
    inputs = "\n".join(f"        {_input(t, extents, info)}," for t in file.inputs)
    return f'''"""torch's operator {name}, on inputs like those of torch's own tests."""

import torch

# The extents of the inputs; a case of problem.toml may set each.
{constants}


class Model(torch.nn.Module):
    def forward(self, {arguments}):
        return {call.format(file.arguments)}


def get_inputs():
    return [
{inputs}
    ]


def get_init_inputs():
    return []
'''


def _input(tensor: torch.Tensor, extents: Sequence[int], info: Any) -> str:
    """A tensor with values in the range of the sample's. Integers count as indices of the shortest
    dimension that is long enough."""
    sizes = [_constant(size) if size > 1 else str(size) for size in tensor.shape]
    shape = _tuple(", ".join(sizes), len(sizes))
    low, high = tensor.min().item(), tensor.max().item()
    if tensor.dtype is torch.bool:
        return f"torch.rand{shape} > 0.5" if sizes else "torch.rand(()) > 0.5"
    if tensor.dtype is torch.int64:
        above = int(high) + 1
        bound = min((size for size in extents if size >= above), default=None)
        top = _constant(bound) if bound is not None and low >= 0 else str(above)
        return f"torch.randint({int(low)}, {top}, {shape})"
    first, last = getattr(info, "domain", (None, None)) or (None, None)
    if first is None and last is None and low < 0:
        return f"torch.randn{shape}" if sizes else "torch.randn(())"
    made = f"torch.rand{shape}" if sizes else "torch.rand(())"
    return f"{made} * {high - low:.6g} + {low:.6g}"


def _result(source: str, constants: dict[str, int]) -> list[torch.Tensor] | str:
    """Results of the file with these sizes, or the reason why it is no problem."""
    known: dict[str, Any] = {}
    exec(compile(source, "aten problem", "exec"), known)
    known.update(constants)
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            inputs = known["get_inputs"]()
            given = [value.clone() for value in inputs]
            before = torch.get_rng_state()
            result = known["Model"]()(*inputs)
            drawn = not torch.equal(before, torch.get_rng_state())
    # torch raises errors of any type for sizes that an operator does not accept.
    except Exception as problem:
        return f"{type(problem).__name__}: {str(problem).splitlines()[0][:120]}"
    parts = list(result) if isinstance(result, tuple | list) else [result]
    if not parts or not all(isinstance(p, torch.Tensor) and p.numel() for p in parts):
        return "its result is no tensor"
    if any(p.dtype.is_complex or p.layout is not torch.strided for p in parts):
        return "its result is complex or sparse"
    if drawn:
        return "its result is random"
    if not all(map(_unchanged, given, inputs)):
        return "it changes its inputs"
    if any(p.is_floating_point() and not p.isfinite().all() for p in parts):
        return "its result is not finite"
    return parts


def _unchanged(before: torch.Tensor, after: torch.Tensor) -> bool:
    if before.shape != after.shape:
        return False
    if before.is_floating_point():
        return torch.allclose(before, after, rtol=0, atol=0, equal_nan=True)
    return torch.equal(before, after)


def _larger(
    source: str, file: _File, extents: Sequence[int], most: int, *, really: bool
) -> dict[str, int] | None:
    """Larger extents that torch accepts: all of them scaled, or only the first of the largest
    input; None if it accepts neither. With `really` they are computed, else tried without
    memory."""
    largest = max(file.inputs, key=torch.Tensor.numel)
    if not largest.dim() or largest.numel() >= most // 2:
        return None
    ways = []
    several = {size for size in largest.shape if size > 1}
    if several:
        scale = (most / largest.numel()) ** (1 / max(1, sum(s > 1 for s in largest.shape)))
        ways.append({_constant(s): _rounded(s * scale) for s in extents})
        first = next(size for size in largest.shape if size > 1)
        times = sum(size == first for size in largest.shape)
        alone = _rounded(first * (most / largest.numel()) ** (1 / times))
        ways.append({_constant(s): alone if s == first else s for s in extents})
    for sizes in ways:
        if len(set(sizes.values())) < len(sizes):
            continue
        if not _accepted(source, sizes, MAX_COMPUTED if really else None):
            continue
        if not really or not isinstance(_result(source, sizes), str):
            return sizes
    return None


def _rounded(size: float) -> int:
    """A multiple of 64, or of 8 if it is small."""
    step = 64 if size >= 256 else 8
    return max(step, round(size / step) * step)


_CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.slow_conv3d.default)


class _Sizes(DispatchWatch):  # type: ignore[no-untyped-call]
    """Counts the elements of all results of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The operator's result, counted."""
        result = func(*args, **kwargs)
        parts = result if isinstance(result, tuple | list) else [result]
        self.elements += sum(part.numel() for part in parts if isinstance(part, torch.Tensor))
        if func in _CONVOLUTIONS:  # torch unfolds the windows in memory, at least in float64
            self.elements += result.numel() * args[1][0].numel()
        return result


def _accepted(source: str, constants: dict[str, int], most: int | None) -> bool:
    """Whether torch accepts these sizes, with at most `most` elements of intermediate results;
    nothing is computed."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    known: dict[str, Any] = {}
    exec(compile(source, "aten problem", "exec"), known)
    known.update(constants)
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True  # it prints a trace of every refusal
    try:
        with FakeTensorMode(), torch.no_grad():
            inputs = known["get_inputs"]()
            with _Sizes() as sizes:
                result = known["Model"]()(*inputs)
    # Operators refuse sizes by errors of many types; one whose result's size depends on values is
    # refused too.
    except Exception:
        return False
    finally:
        log.disabled = before
    parts = list(result) if isinstance(result, tuple | list) else [result]
    if not all(isinstance(part, torch.Tensor) for part in parts):
        return False
    if most is not None and sizes.elements > most:
        return False
    return bool(sum(part.numel() for part in parts) < MAX_RESULTS)


def _toml(
    short: str,
    name: str,
    own: dict[str, int],
    larger: dict[str, dict[str, int]],
    kinds: Sequence[str],
) -> str:
    lines = [f'name = "{short}"', 'op = "elementwise"', f'summary = "torch\'s operator {name}."']
    if kinds:
        lines += ["", "[policy]", f"outputs = {json.dumps(kinds)}"]
    cases = []
    for device, title in (("cpu", "main"), ("cuda", "gpu")):
        if device in larger:
            cases.append((title, larger[device], [f'devices = ["{device}"]']))
    cases.append(("small", own, ["timed = false"] if larger else []))
    for title, sizes, more in cases:
        pairs = ", ".join(f"{key} = {value}" for key, value in sizes.items())
        lines += ["", "[[cases]]", f'name = "{title}"', f"constants = {{{pairs}}}", *more]
    return "\n".join(lines) + "\n"
