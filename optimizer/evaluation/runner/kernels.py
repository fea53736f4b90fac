"""The kernels that a runner calls, torch module classes from a file and C functions from a library,
behind one interface; and the torch operators that such a call dispatches.

`CallableKernel.call()` returns the outputs as the candidate made them. It converts and copies
nothing, because it is timed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from optimizer.evaluation.runner.constructor import as_script
from optimizer.evaluation.runner.memory import dtype_of


class DispatchWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that does not import torch's compiler.

    torch excludes every mode from compilation, and imports its compiler for that at the first
    operator: 1.5 s of processor time in each process that evaluates, and in each runner. A compiler
    that is not imported compiles nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # `__torch_dispatch__` does it

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        watched = self.dispatched
        if "torch._dynamo" in sys.modules:
            watched = torch.compiler.disable(watched)  # type: ignore[no-untyped-call]
        return watched(func, args, kwargs or {})

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of the operator."""
        return func(*args, **kwargs)


LARGE_DRAW = 1 << 22  # elements, for which a thread takes tens of milliseconds
_DRAWS = frozenset((torch.randn, torch.rand))
# In-place draws, and the functions of torch.nn.init that a mode sees in their place.
_FILLS = frozenset(
    (
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
        torch.nn.init.normal_,
        torch.nn.init.uniform_,
        torch.nn.init.kaiming_uniform_,
    )
)


class DrawnOnGpu(TorchFunctionMode):
    """Draws large random tensors on the GPU and copies them to host memory: torch draws on one
    thread of a processor, seconds for the weights of a large model. Tensors that name a generator
    or a device are drawn as usual, and all of them where the GPU's memory does not suffice."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        with suppress(torch.OutOfMemoryError):
            if func in _DRAWS and options.keys() <= {"dtype"}:
                if _elements(args) >= LARGE_DRAW and torch.get_default_device().type == "cpu":
                    return func(*args, device="cuda", **options).cpu()
            elif func in _FILLS and options.get("generator") is None:
                own = args[0] if args else options["tensor"]
                if own.numel() >= LARGE_DRAW and own.device.type == "cpu":
                    drawn = torch.empty_like(own, device="cuda", requires_grad=False)
                    func(drawn, *args[1:], **{n: v for n, v in options.items() if n != "tensor"})
                    with torch.no_grad():
                        return own.copy_(drawn)
        return func(*args, **options)


def _elements(sizes: Sequence[Any]) -> int:
    """Elements of a tensor with these sizes, given one by one or as a sequence; 0 for others."""
    flat = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    return math.prod(flat) if all(isinstance(size, int) for size in flat) else 0


# In the order of their codes in kernlore_abi.h.
_DTYPES = "float32 float64 float16 bfloat16 int8 uint8 int16 int32 int64 bool"
DTYPE_CODES = {dtype_of(name): code for code, name in enumerate(_DTYPES.split())}


REFERENCE = "Model"  # entry of a reference


UNSUPPORTED = -1  # KERNLORE_UNSUPPORTED of the C interface
CODES = "0 means done, KERNLORE_UNSUPPORTED that it does not take a dtype or shape"


class KernelError(Exception):
    """The kernel cannot be set up or called as it is; the message is for its author."""


class CallableKernel:
    """`call` does the work. The harness may write to `weights`, in state_dict order."""

    def __init__(
        self, call: Callable[[], Any], weights: Sequence[torch.Tensor], notes: Sequence[str] = ()
    ) -> None:
        self.call = call
        self.weights = list(weights)
        self.notes = list(notes)


def import_file(path: Path, name: str) -> ModuleType:
    """Run a Python file as a module; its folder stays importable. Raises KernelError, or any
    exception of the file."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise KernelError(f"{path.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    with as_script(path):
        spec.loader.exec_module(module)
    return module


def module_kernel(
    path: Path,
    entry: str,
    *,
    init_args: Sequence[Any],
    inputs: Sequence[Any],
    state: Mapping[str, torch.Tensor],
    dtype: str | None,
    device: str,
    gradients: bool = False,
    overwritten: Collection[int] = (),
) -> CallableKernel:
    """A `ModelNew` (or the reference `Model`), constructed with `init_args` after seeding torch,
    with the reference's weights if its keys agree. `gradients`: the problem differentiates, so
    weights require gradients and calls record them. `overwritten` are the numbers of the inputs
    that the reference changes in place: it gets copies, since a kernel may only read its inputs.
    Raises KernelError for a missing class."""
    module = import_file(path, f"subject_{entry.lower()}")
    cls = getattr(module, entry, None)
    if cls is None:
        raise KernelError(f"{path.name} has no {entry}; define it or name another entry")
    torch.manual_seed(0)
    large = device == "cuda" and sum(value.numel() for value in state.values()) >= LARGE_DRAW
    with DrawnOnGpu() if large else nullcontext():
        model = cls(*init_args)
    notes = []
    if isinstance(model, torch.nn.Module):
        model = model.eval().requires_grad_(False)
        own = model.state_dict()
        if dtype is not None:
            model = model.to(dtype_of(dtype))
        model = model.to(device)
        if list(own) == list(state):
            model.load_state_dict(dict(state))
        elif state:
            notes.append("its state_dict differs from the reference's; weights come from the seed")
        require_gradients(model, gradients)
    weights = _weights(model, state)
    call = _with_grad(model) if gradients else _no_grad(model)
    if entry == REFERENCE and overwritten:
        return CallableKernel(lambda: call(*own_inputs(inputs, overwritten)), weights, notes)
    return CallableKernel(lambda: call(*inputs), weights, notes)


def own_inputs(inputs: Sequence[Any], overwritten: Collection[int]) -> list[Any]:
    """The inputs, with copies of those of these numbers."""
    return [value.clone() if n in overwritten else value for n, value in enumerate(inputs)]


def _weights(model: Any, state: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """The model's own tensors in state_dict order; empty if its keys are not the reference's."""
    if not isinstance(model, torch.nn.Module):
        return []
    own = model.state_dict(keep_vars=True)
    return [tensor.data for tensor in own.values()] if list(own) == list(state) else []


def require_gradients(model: torch.nn.Module, wanted: bool) -> None:
    """Whether the floating parameters of a model require gradients."""
    for parameter in model.parameters():
        parameter.requires_grad_(wanted and parameter.is_floating_point())


def _with_grad(model: Any) -> Callable[..., Any]:
    """Calls that may differentiate: gradients of the call before are dropped, so that they do not
    add up, and neither inputs nor outputs hold a graph between calls."""
    own = list(model.parameters()) if isinstance(model, torch.nn.Module) else []

    def call(*inputs: Any) -> Any:
        for parameter in own:
            parameter.grad = None
        with torch.enable_grad():
            return _detached(model(*map(_detached, inputs)))

    return call


def _detached(value: Any) -> Any:
    """Tensors of a flat result without their graph, in the same container."""
    if isinstance(value, torch.Tensor):
        return value.detach() if value.requires_grad or value.is_leaf else value
    if isinstance(value, dict):
        return {key: _detached(part) for key, part in value.items()}
    return [*map(_detached, value)] if isinstance(value, tuple | list) else value


def _no_grad(model: Any) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        with torch.no_grad():
            return model(*inputs)

    return call


# -- the C ABI


class _TensorStruct(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int64),
        ("ndim", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("stride", ctypes.POINTER(ctypes.c_int64)),
    )


class _CountsStruct(ctypes.Structure):
    _fields_ = (
        ("inputs", ctypes.c_int64),
        ("parameters", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
    )


def library_kernel(
    path: Path,
    entry: str,
    *,
    inputs: Sequence[Any],
    state: Mapping[str, torch.Tensor],
    outputs: Sequence[tuple[str, Sequence[int]]],
    device: str,
) -> CallableKernel:
    """A C function of the kernlore ABI. Outputs are (dtype, shape) pairs, allocated inside the
    call, as torch's are. Raises KernelError for a missing function."""
    try:
        function = getattr(ctypes.CDLL(str(path)), entry)
    except (OSError, AttributeError) as problem:
        raise KernelError(f"{entry} is not in the library: {problem}") from problem
    function.restype = ctypes.c_int
    function.argtypes = (ctypes.POINTER(_TensorStruct), ctypes.POINTER(_CountsStruct))
    arguments = [_as_tensor(value, device) for value in inputs]
    weights = [tensor.to(device).contiguous().clone() for tensor in state.values()]
    specs = [(dtype_of(dtype), tuple(shape)) for dtype, shape in outputs]
    fixed = [*arguments, *weights]
    packed = (_TensorStruct * (len(fixed) + len(specs)))()
    arrays = [_describe(packed[n], tensor) for n, tensor in enumerate(fixed)]
    blanks = [torch.empty(shape, dtype=dtype, device=device) for dtype, shape in specs]
    arrays += [_describe(packed[len(fixed) + n], blank) for n, blank in enumerate(blanks)]
    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else None
    counts = _CountsStruct(len(arguments), len(weights), len(specs), stream)

    def call() -> list[torch.Tensor]:
        results = []
        for n, (dtype, shape) in enumerate(specs, len(fixed)):
            result = torch.empty(shape, dtype=dtype, device=device)
            packed[n].data = result.data_ptr()
            results.append(result)
        code = function(packed, ctypes.byref(counts))
        if code:
            if code == UNSUPPORTED:
                raise NotImplementedError(f"{entry} returned KERNLORE_UNSUPPORTED")
            raise KernelError(f"{entry} returned {code}; {CODES}")
        return results

    call.__dict__["arrays"] = arrays  # keeps alive what `packed` points into
    return CallableKernel(call, weights)


def _describe(struct: Any, tensor: torch.Tensor) -> tuple[Any, Any]:
    if not tensor.is_contiguous():
        raise KernelError("the harness made a tensor that is not contiguous")
    sizes = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.shape)
    strides = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.stride())
    struct.data = tensor.data_ptr()
    struct.dtype = DTYPE_CODES[tensor.dtype]
    struct.ndim = tensor.dim()
    struct.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    struct.stride = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    return sizes, strides


def _as_tensor(value: Any, device: str) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, device=device)


class _Log(DispatchWatch):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.seen[str(func.overloadpacket)] += 1
        return func(*args, **kwargs)


def traced(call: Callable[[], Any]) -> dict[str, int]:
    """Names of the operators (aten.mm ...) that one call dispatched, with their counts."""
    with _Log() as log:
        call()
    return dict(sorted(log.seen.items()))
