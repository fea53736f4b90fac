"""The process that compiles a candidate's Triton kernels for a chip that need not be here:
`python -I THIS_FILE REQUEST OUTPUT`.

Calls the candidate on its cases with tensors that have shapes and no contents, and with a Triton
driver that names the target and launches nothing; so every kernel is compiled for exactly the
arguments, constants and options that its launch would have. Cases are compiled side by side, each
in a fork. Writes one JSON line to OUTPUT/events, and to OUTPUT/CASE/events in forks, for each
kernel as it is done, because the deadline may come before the next one.
Standard library, torch and triton only; works with Triton 3.6 and 3.7, whose modules are looked up
by name because they carry no types.
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
REAL_BYTES = 512 << 20  # of inputs, at most, where shapes alone are not enough
MAX_TRACE = 8_000
UNKNOWN_NUMBER = 2  # 1 and multiples of 16 would be compiled in


class EventLog:
    """What is reported to the supervisor, one line at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kernels = 0

    def of_case(self, number: int) -> None:
        """Report in a folder of this case from here on."""
        self._folder = self._folder / f"{number:03d}"
        self._folder.mkdir()

    def write(self, **event: Any) -> None:
        """Add one event."""
        with (self._folder / "events").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event, default=str) + "\n")

    def kernel(self, compiled: Any, source: Any, log: str) -> None:
        """Report a compiled kernel; its assembly goes to a file of its own."""
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
    tuner._bench = first_that_fits(events)
    tuner.check_disk_cache = lambda self, key, configs, bench: bool(bench())
    pretend_cuda(facts, target)


def host_launcher() -> Callable[[Any, Any], object] | None:
    """What builds the host's side of a launch, which Triton does with a C compiler at the first
    launch: built here it does not occupy the device. None where it cannot be built; the runner
    reports why."""
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
    """Triton's `compile`, reporting each kernel once, and refusing what the device would refuse."""
    refused = import_module("triton.runtime.errors").OutOfResources
    seen: set[str] = set()

    def recorded(source: Any, target: Any = None, options: Any = None, **rest: Any) -> Any:
        printed = io.StringIO()
        events.write(compiling=source.name)
        with contextlib.redirect_stdout(printed):
            compiled = compile_kernel(source, target=target, options=options, **rest)
        if shared_limit is not None and compiled.metadata.shared > shared_limit:
            raise refused(compiled.metadata.shared, int(shared_limit), "shared memory")
        if compiled.hash not in seen:
            seen.add(compiled.hash)
            events.kernel(compiled, source, printed.getvalue())
            if launcher is not None:
                with contextlib.suppress(Exception):  # the runner reports why
                    launcher(source, compiled.metadata)
        return compiled

    return recorded


def first_that_fits(events: EventLog) -> Callable[..., list[float]]:
    """Instead of timing configurations: the first that compiles and fits is chosen."""
    errors = import_module("triton.runtime.errors")
    failed = import_module("triton.compiler.errors").CompileTimeAssertionFailure
    skipped = (errors.OutOfResources, errors.PTXASError, failed)
    done: dict[int, Any] = {}  # arguments of a call by identity; held, so that it stays theirs

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


def load(path: Path) -> ModuleType:
    """Import the candidate's file. Raises what the file raises."""
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def trace(error: BaseException, folder: Path) -> str:
    """The error and its causes, with the candidate's own frames only."""
    report = traceback.TracebackException.from_exception(error)
    if type(error).__name__ == "CompilationError":
        # It repeats its cause, which else would look like another error.
        report.__cause__ = report.__context__ = None
    part: traceback.TracebackException | None = report
    while part is not None:
        own = [frame for frame in part.stack if Path(frame.filename).is_relative_to(folder)]
        part.stack = traceback.StackSummary.from_list(own)
        part = part.__cause__ or part.__context__
    text = "".join(report.format())
    for place in (folder, Path.cwd()):
        text = text.replace(f"{place}{os.sep}", "")
    return text[-MAX_TRACE:]


class NotCalled(Exception):
    """The candidate could not be called as it would be; the message is for its reader."""


def build(module: ModuleType, entry: str, case: Request) -> Any:
    """The candidate's object, with what is known of its arguments. Raises NotCalled where they are
    not known."""
    import torch

    cls = getattr(module, entry, None)
    if cls is None:
        raise NotCalled(f"the file has no {entry}")
    arguments = case.get("init_args")
    if arguments is None and hasattr(module, "get_init_inputs"):
        arguments = module.get_init_inputs()
    try:
        model = cls(*(arguments or ()))
    except TypeError as problem:
        if arguments is None:
            raise NotCalled(f"the arguments of {entry} are not known: {problem}") from problem
        raise
    if isinstance(model, torch.nn.Module):
        model = model.eval().requires_grad_(False)
        if case.get("dtype"):
            model = model.to(getattr(torch, case["dtype"]))
    return model


def arguments_of(case: Request, home: str) -> list[Any]:
    """Inputs of the case; numbers by their value where it is known."""
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
            arguments.append(torch.ones(tensor["shape"], dtype=dtype, device=home))
    return arguments


def call(module: ModuleType, entry: str, case: Request, real: bool) -> None:
    """Call the candidate on one case, with real tensors on the CPU or with shapes alone."""
    import torch

    for name, value in (case.get("constants") or {}).items():
        setattr(module, name, value)
    home = "cpu" if real else "meta"
    inputs = arguments_of(case, home)
    with pretending(home), torch.no_grad():
        build(module, entry, case)(*inputs)


def is_compile_error(error: BaseException) -> bool:
    """Whether Triton, MLIR or ptxas refused the kernel, here or in what caused the error."""
    base = import_module("triton.errors").TritonError
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, base) or type(seen).__module__.startswith("triton."):
            return True
        if "PassManager::run failed" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def raised_in_triton(error: BaseException) -> bool:
    """Whether Triton's host side refused the launch, as for an argument that is missing."""
    folder = str(Path(str(import_module("triton").__file__)).parent)
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(folder)


def attempt(request: Request, module: ModuleType, case: Request, events: EventLog) -> None:
    """Call on shapes; where the candidate looks at values, on small enough real tensors."""
    inputs = [tensor for tensor in case["tensors"] if tensor["role"] == "input"]
    small = sum(math.prod(tensor["shape"]) * 8 for tensor in inputs) <= REAL_BYTES
    for real in (False, True) if small else (False,):
        events.write(calling=request["entry"], real=real)
        try:
            call(module, request["entry"], case, real)
            return
        # The candidate's code may raise anything at all, SystemExit included.
        except BaseException as error:
            last = real or not small or isinstance(error, NotCalled)
            trace_text = trace(error, Path(request["path"]).parent)
            if is_compile_error(error) or (last and raised_in_triton(error)):
                events.write(failed=repr(error)[:500], trace=trace_text)
                return
            if last:
                events.write(not_called=f"{type(error).__name__}: {error}"[:500], trace=trace_text)
                return


def attempt_all(request: Request, module: ModuleType, events: EventLog) -> None:
    """Compile cases side by side; one after the other where a fork would gain nothing, or is not
    safe."""
    cases, most = request["cases"], min(len(request["cases"]), request["at_once"])
    if most < 2 or threading.active_count() > 1:
        for case in cases:
            attempt(request, module, case, events)
        return
    running = 0
    for number, case in enumerate(cases):
        if running == most:
            await_fork(events)
            running -= 1
        sys.stdout.flush()
        if os.fork() == 0:
            events.of_case(number)
            attempt(request, module, case, events)
            finish(events)
        running += 1
    for _ in range(running):
        await_fork(events)


def await_fork(events: EventLog) -> None:
    """Wait for the next fork that ends. A fork that a signal ended could not report that itself."""
    _, status = os.wait()
    if status != 0:
        events.write(ended=os.waitstatus_to_exitcode(status))


def finish(events: EventLog) -> None:
    """End the process without exit handlers: a candidate may have registered some."""
    events.write(done=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Compile what the request names, then end the process."""
    sys.path.insert(0, ROOT)
    from optimizer.evaluation.runner.confine import only_writes_to

    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    events = EventLog(Path(arguments[1]).resolve())
    install(request, events)
    sys.path.remove(ROOT)  # a candidate has no business with the harness's neighbours
    sys.argv = ["candidate"]
    only_writes_to(Path.cwd())
    path = Path(request["path"])
    try:
        module = load(path)
    # A file that cannot be imported is the candidate's failure, whatever it raises.
    except BaseException as error:
        events.write(failed=repr(error)[:500], trace=trace(error, path.parent))
    else:
        attempt_all(request, module, events)
    finish(events)


if __name__ == "__main__":
    main(sys.argv[1:])


# -- pretend: Stand-ins for a GPU that is not there: Triton's driver, torch.cuda and the place of


class CompileOnly:
    """Stands in for Triton's driver of a device."""

    def __init__(self, target: Any, facts: Mapping[str, Any]) -> None:
        self._target = target
        self.utils = SimpleNamespace(get_device_properties=lambda device: facts)

    def get_current_target(self) -> Any:
        """The pretended chip."""
        return self._target

    def get_current_device(self) -> int:
        """The only device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """Does nothing: there is one device."""

    def get_current_stream(self, device: int = 0) -> int:
        """The default stream."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Major and minor number of the chip."""
        return _capability(self._target)

    def get_active_torch_device(self) -> Any:
        """The device that tensors claim to be on."""
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
    """Device properties from facts of the chip, under every name that Triton and torch use."""
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


def pretend_cuda(facts: Mapping[str, Any], target: Any) -> None:
    """Answer for the target what candidates ask torch about the device."""
    import torch

    properties = SimpleNamespace(
        **facts, major=_capability(target)[0], minor=_capability(target)[1]
    )
    answers: dict[str, Any] = {
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
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    # Compiling torch's own operators would take a minute and say nothing about these kernels.
    torch.compile = _not_compiled


def _not_compiled(model: Any = None, **options: Any) -> Any:
    """`torch.compile`, as a call and as a decorator with options."""
    return model if model is not None else lambda function: function


@contextlib.contextmanager
def pretending(home: str) -> Iterator[None]:
    """Tensors claim to be on the GPU, and are on `home`: "meta", where they have a shape and no
    contents, or "cpu"."""
    import torch
    from torch.overrides import TorchFunctionMode

    torch_files = str(Path(torch.__file__).parent)
    where = operator.attrgetter("device.__get__")(torch.Tensor)
    is_cuda = operator.attrgetter("is_cuda.__get__")(torch.Tensor)

    def at_home(value: Any) -> Any:
        if isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu"):
            return home
        if isinstance(value, torch.device) and value.type in ("cuda", "cpu"):
            return torch.device(home)
        return value

    class Pretending(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func == is_cuda:
                return True
            # torch itself must see where they really are
            asking = sys._getframe(1).f_code.co_filename
            if func == where and not asking.startswith(torch_files):
                return torch.device("cuda", 0)
            if func is torch.device:
                return func(*args, **(kwargs or {}))
            if func is torch.Tensor.get_device:
                return 0
            if func in (torch.Tensor.cuda, torch.Tensor.cpu):
                return args[0]
            moved = {key: at_home(value) for key, value in (kwargs or {}).items()}
            return func(*(at_home(value) for value in args), **moved)

    with torch.device(home), Pretending():
        yield
