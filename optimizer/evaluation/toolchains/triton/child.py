"""Compiles a candidate's Triton kernels for a chip that need not be in this machine:
`python -I THIS_FILE REQUEST OUTPUT`.

Calls the candidate on its cases with tensors without contents, under a Triton driver that reports
the target and launches nothing: each kernel is compiled for exactly the arguments, constants and
options of its launch. Cases are compiled in parallel, in forks. Events are JSON lines in
OUTPUT/events, and in OUTPUT/CASE/events in forks, written as they occur because the deadline may
end this process. Standard library, torch and triton only; supports Triton 3.6 and 3.7, whose
modules are imported by name because they are untyped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import math
import operator
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

ROOT = str(Path(__file__).resolve().parents[4])

Request = Mapping[str, Any]
MAX_REAL_BYTES = 512 << 20  # of inputs with contents, used if shapes alone are not enough
MAX_TRACE = 8_000
UNKNOWN_NUMBER = 2  # Triton would specialise on 1 and on multiples of 16


def main(arguments: list[str]) -> None:
    """Compile the request's candidate, then end the process."""
    sys.path.insert(0, ROOT)
    from optimizer.evaluation.runner.confine import only_writes_to

    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    events = EventLog(Path(arguments[1]).resolve())
    install(request, events)
    sys.path.remove(ROOT)  # candidates must not import Kernlore
    sys.argv = ["candidate"]
    only_writes_to(Path.cwd())
    path = Path(request["path"])
    try:
        module = load(path)
    except BaseException as error:  # also SystemExit: a failure of the candidate
        events.write(failed=repr(error)[:500], trace=trace(error, path.parent))
    else:
        compile_cases(request, module, events)
    finish(events)


class EventLog:
    """Reports events to the supervisor, one line each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kernels = 0

    def enter_case(self, number: int) -> None:
        """Report in a folder of this case from now on."""
        self._folder = self._folder / f"{number:03d}"
        self._folder.mkdir()

    def write(self, **event: Any) -> None:
        with (self._folder / "events").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event, default=str) + "\n")

    def kernel(self, compiled: Any, source: Any, log: str) -> None:
        """Report a compiled kernel and write its assembly to a file."""
        number = self._kernels
        self._kernels += 1
        kind = "ptx" if "ptx" in compiled.asm else "amdgcn"
        name = f"{number:02d}.{kind}"
        (self._folder / name).write_text(compiled.asm[kind], encoding="utf-8")
        names = source.fn.arg_names
        self.write(
            kernel=compiled.name,
            hash=compiled.hash,
            assembly=name,
            log=log,
            shared=compiled.metadata.shared,
            num_warps=compiled.metadata.num_warps,
            num_stages=getattr(compiled.metadata, "num_stages", None),
            constants={_path(names, key): str(value) for key, value in source.constants.items()},
            types=sorted({str(value) for value in source.signature.values()}),
        )


def _path(names: list[str], key: Any) -> str:
    """The argument at a path such as (3,) or (3, 0)."""
    path = key if isinstance(key, tuple) else (key,)
    return ".".join([names[path[0]], *(str(step) for step in path[1:])])


def finish(events: EventLog) -> None:
    """End the process without the exit handlers that a candidate may have registered."""
    events.write(done=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# -- calling the candidate


def load(path: Path) -> ModuleType:
    """Import the candidate's file. Raises any exception of the file."""
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def compile_cases(request: Request, module: ModuleType, events: EventLog) -> None:
    """Compile the cases in parallel forks; sequentially if there is one case, or if other threads
    make forks unsafe."""
    cases, parallel = request["cases"], min(len(request["cases"]), request["at_once"])
    if parallel < 2 or threading.active_count() > 1:
        for case in cases:
            compile_case(request, module, case, events)
        return
    running = 0
    for number, case in enumerate(cases):
        if running == parallel:
            await_fork(events)
            running -= 1
        sys.stdout.flush()
        if os.fork() == 0:
            events.enter_case(number)
            compile_case(request, module, case, events)
            finish(events)
        running += 1
    for _ in range(running):
        await_fork(events)


def await_fork(events: EventLog) -> None:
    """Wait for the next fork that ends, and report one that was ended by a signal."""
    _, status = os.wait()
    if status != 0:
        events.write(ended=os.waitstatus_to_exitcode(status))


def compile_case(request: Request, module: ModuleType, case: Request, events: EventLog) -> None:
    """Call the candidate on shapes; if it reads values, on real tensors if they are small."""
    inputs = [tensor for tensor in case["tensors"] if tensor["role"] == "input"]
    small = sum(math.prod(tensor["shape"]) * 8 for tensor in inputs) <= MAX_REAL_BYTES
    for real in (False, True) if small else (False,):
        events.write(calling=request["entry"], real=real)
        try:
            call(module, request["entry"], case, real)
            return
        except BaseException as error:  # any exception of the candidate, also SystemExit
            last = real or not small or isinstance(error, NotCalled)
            trace_text = trace(error, Path(request["path"]).parent)
            if is_compile_error(error) or (last and raised_in_triton(error)):
                events.write(failed=repr(error)[:500], trace=trace_text)
                return
            if last:
                events.write(not_called=f"{type(error).__name__}: {error}"[:500], trace=trace_text)
                return


class NotCalled(Exception):
    """The candidate cannot be called as an evaluation would; the message explains why."""


def call(module: ModuleType, entry: str, case: Request, real: bool) -> None:
    """Call the candidate on one case, with tensors on the CPU or without contents."""
    import torch

    device = "cpu" if real else "meta"
    inputs = arguments_of(case, device)
    recording = torch.set_grad_enabled(bool(case.get("gradients")))
    with tensors_claim_cuda(device), recording:
        construct(module, entry, case)(*inputs)


def construct(module: ModuleType, entry: str, case: Request) -> Any:
    """The candidate's object. Raises NotCalled if its constructor's arguments are unknown."""
    import torch

    cls = getattr(module, entry, None)
    if cls is None:
        raise NotCalled(f"the file has no {entry}")
    arguments = case.get("init_args")
    if case.get("init_source"):
        from optimizer.evaluation.runner.constructor import init_arguments

        arguments = init_arguments(case)
    if arguments is None and hasattr(module, "get_init_inputs"):
        arguments = module.get_init_inputs()
    try:
        model = cls(*(arguments or ()))
    except TypeError as problem:
        if arguments is None:
            raise NotCalled(f"the arguments of {entry} are not known: {problem}") from problem
        raise
    if isinstance(model, torch.nn.Module):
        model = model.eval()
        for parameter in model.parameters():
            parameter.requires_grad_(bool(case.get("gradients")) and parameter.is_floating_point())
        if case.get("dtype"):
            model = model.to(getattr(torch, case["dtype"]))
    return model


def arguments_of(case: Request, device: str) -> list[Any]:
    """The inputs of the case. Plain numbers have their values, or UNKNOWN_NUMBER."""
    import torch

    values = case.get("scalars") or {}
    arguments: list[Any] = []
    for tensor in case["tensors"]:
        if tensor["role"] != "input":
            continue
        dtype = getattr(torch, tensor["dtype"])
        if tensor["name"] in values:
            arguments.append(values[tensor["name"]])
        elif not tensor["shape"] and tensor["dtype"] in ("int64", "float64", "bool"):
            arguments.append(torch.ones((), dtype=dtype).mul(UNKNOWN_NUMBER).tolist())
        else:
            arguments.append(torch.ones(tensor["shape"], dtype=dtype, device=device))
    return arguments


def trace(error: BaseException, folder: Path) -> str:
    """The traceback of the error and its causes, with the candidate's frames only."""
    report = traceback.TracebackException.from_exception(error)
    if type(error).__name__ == "CompilationError":
        # Its message repeats its cause, which would look like a second error.
        report.__cause__ = report.__context__ = None
    part: traceback.TracebackException | None = report
    while part is not None:
        frames = [frame for frame in part.stack if Path(frame.filename).is_relative_to(folder)]
        part.stack = traceback.StackSummary.from_list(frames)
        part = part.__cause__ or part.__context__
    text = "".join(report.format())
    for parent in (folder, Path.cwd()):
        text = text.replace(f"{parent}{os.sep}", "")
    return text[-MAX_TRACE:]


def is_compile_error(error: BaseException) -> bool:
    """Whether Triton, MLIR or ptxas rejected the kernel, in the error or one of its causes."""
    base = import_module("triton.errors").TritonError
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, base) or type(cause).__module__.startswith("triton."):
            return True
        if "PassManager::run failed" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def raised_in_triton(error: BaseException) -> bool:
    """Whether Triton's launch code raised the error, as for a missing argument."""
    folder = str(Path(str(import_module("triton").__file__)).parent)
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(folder)


# -- Triton and torch.cuda without the device


def install(request: Request, events: EventLog) -> None:
    """Make Triton compile for the target, report to `events`, and launch nothing."""
    chip = request["target"]
    arch = int(chip["arch"]) if chip["backend"] == "cuda" else chip["arch"]
    make_target = import_module("triton.backends.compiler").GPUTarget
    target = make_target(chip["backend"], arch, chip["warp_size"])
    facts = properties_of(request["facts"])
    import_module("triton").runtime.driver.set_active(CompileOnly(target, facts))
    compiler: Any = import_module("triton.compiler")
    limit = request["facts"].get("shared_memory_per_block")
    launcher = host_launcher() if request["runs_here"] else None
    compiler.compile = recording(compiler.compile, events, limit, launcher)
    compiled = import_module("triton.compiler.compiler").CompiledKernel
    compiled.run = property(lambda self: lambda *args, **kwargs: None)
    compiled.launch_metadata = lambda self, *args: None
    tuner = import_module("triton.runtime.autotuner").Autotuner
    tuner._bench = first_that_compiles(events)
    tuner.check_disk_cache = lambda self, key, configs, bench: bool(bench())
    replace_cuda(facts, target)


def host_launcher() -> Callable[[Any, Any], object] | None:
    """Builds the host code of a launch with a C compiler, as Triton does at the first launch, so
    that it does not take time on the device. None if it cannot be built; the runner reports why."""
    try:
        driver = import_module("triton.backends.nvidia.driver")
        driver.CudaUtils()
    except Exception:  # a missing header, compiler or libcuda
        return None
    launcher: Callable[[Any, Any], object] = driver.CudaLauncher
    return launcher


def recording(
    compile_kernel: Callable[..., Any],
    events: EventLog,
    shared_limit: float | None,
    launcher: Callable[[Any, Any], object] | None,
) -> Callable[..., Any]:
    """Triton's `compile` that reports each kernel once, and rejects kernels with more shared memory
    than the device has."""
    out_of_resources = import_module("triton.runtime.errors").OutOfResources
    seen: set[str] = set()

    def recorded(source: Any, target: Any = None, options: Any = None, **rest: Any) -> Any:
        printed = io.StringIO()
        events.write(compiling=source.name)
        with contextlib.redirect_stdout(printed):
            compiled = compile_kernel(source, target=target, options=options, **rest)
        if shared_limit is not None and compiled.metadata.shared > shared_limit:
            raise out_of_resources(compiled.metadata.shared, int(shared_limit), "shared memory")
        if compiled.hash not in seen:
            seen.add(compiled.hash)
            events.kernel(compiled, source, printed.getvalue())
            if launcher is not None:
                with contextlib.suppress(Exception):  # the runner reports why
                    launcher(source, compiled.metadata)
        return compiled

    return recorded


def first_that_compiles(events: EventLog) -> Callable[..., list[float]]:
    """An autotuner benchmark that chooses the first configuration that compiles, without timing."""
    errors = import_module("triton.runtime.errors")
    assertion = import_module("triton.compiler.errors").CompileTimeAssertionFailure
    skipped = (errors.OutOfResources, errors.PTXASError, assertion)
    done: dict[int, Any] = {}  # arguments of calls by identity; referenced, so that ids stay unique

    def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        if id(tuner.nargs) in done:
            return [math.inf]
        current = {**meta, **config.all_kwargs()}
        try:
            if config.pre_hook is not None:
                config.pre_hook({**tuner.nargs, **current})
            tuner.fn.run(*args, **current)
        except skipped:
            return [math.inf]
        done[id(tuner.nargs)] = tuner.nargs
        events.write(
            autotuned=tuner.base_fn.__name__, configs=len(tuner.configs), chosen=str(config)
        )
        return [0.0]

    return bench


class CompileOnly:
    """A Triton driver that reports the target as its only device."""

    def __init__(self, target: Any, facts: Mapping[str, Any]) -> None:
        self._target = target
        self.utils = SimpleNamespace(get_device_properties=lambda device: facts)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        """The only device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """Does nothing: there is one device."""

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Major and minor number of the chip."""
        return _capability(self._target)

    def get_active_torch_device(self) -> Any:
        """The device that tensors report."""
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        """The patched `torch.cuda`."""
        import torch

        return torch.cuda

    def map_python_to_cpp_type(self, kind: str) -> str:
        """Unchanged: nothing is launched."""
        return kind


def _capability(target: Any) -> tuple[int, int]:
    if target.backend == "cuda":
        return divmod(int(target.arch), 10)
    digits = "".join(c for c in str(target.arch).removeprefix("gfx") if c.isdigit())
    return int(digits[0]), int(digits[1])


def properties_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Device properties from facts of the chip, by all names that Triton and torch use."""
    units = int(facts.get("compute_units", 128))
    shared = int(facts.get("shared_memory_per_block", 65_536))
    return {
        "max_shared_mem": shared,
        "multiprocessor_count": units,
        "multi_processor_count": units,
        "max_num_regs": int(facts.get("registers_per_unit", 65_536)),
        "warpSize": int(facts.get("warp_size", 32)),
        "warp_size": int(facts.get("warp_size", 32)),
        "shared_memory_per_block_optin": shared,
        "shared_memory_per_multiprocessor": int(facts.get("shared_memory_per_unit", shared)),
        "total_memory": int(facts.get("memory_size", 80 << 30)),
        "name": str(facts.get("name", "")),
    }


def replace_cuda(facts: Mapping[str, Any], target: Any) -> None:
    """Replace the functions of `torch.cuda` that describe the device by ones for the target."""
    import torch

    properties = SimpleNamespace(
        **facts, major=_capability(target)[0], minor=_capability(target)[1]
    )
    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: _capability(target),
        "get_device_name": lambda device=None: facts["name"],
        "current_stream": lambda device=None: SimpleNamespace(cuda_stream=0),
        "device": lambda device: contextlib.nullcontext(),
        "device_of": lambda tensor: contextlib.nullcontext(),
    }
    for name, function in functions.items():
        setattr(torch.cuda, name, function)
    # Compiling torch's own operators would take a minute and add no kernel of the candidate.
    torch.compile = _not_compiled


def _not_compiled(model: Any = None, **options: Any) -> Any:
    """`torch.compile`, as a call and as a decorator with options."""
    return model if model is not None else lambda function: function


@contextlib.contextmanager
def tensors_claim_cuda(device: str) -> Iterator[None]:
    """Create tensors on `device`, "cpu" or "meta", that report a CUDA device to the candidate."""
    import torch
    from torch.overrides import TorchFunctionMode

    torch_files = str(Path(torch.__file__).parent)
    get_device = operator.attrgetter("device.__get__")(torch.Tensor)
    is_cuda = operator.attrgetter("is_cuda.__get__")(torch.Tensor)

    def redirected(value: Any) -> Any:
        if isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu"):
            return device
        if isinstance(value, torch.device) and value.type in ("cuda", "cpu"):
            return torch.device(device)
        return value

    class ClaimCuda(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func == is_cuda:
                return True
            # torch itself must see the actual device
            caller = sys._getframe(1).f_code.co_filename
            if func == get_device and not caller.startswith(torch_files):
                return torch.device("cuda", 0)
            if func is torch.device:
                return func(*args, **(kwargs or {}))
            if func is torch.Tensor.get_device:
                return 0
            if func in (torch.Tensor.cuda, torch.Tensor.cpu):
                return args[0]
            named = {key: redirected(value) for key, value in (kwargs or {}).items()}
            return func(*(redirected(value) for value in args), **named)

    with torch.device(device), ClaimCuda():
        yield


if __name__ == "__main__":
    main(sys.argv[1:])
