"""`python -I THIS_FILE SOCKET NAMESPACES THREADS DEVICE`: an interpreter that has torch imported
and never uses it. Every request is a new runner, forked in milliseconds. On a CPU torch's compiler
is imported with the first request that asks for it."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

# What Inductor has a Python process do with a library that it has built for a try.
LOAD_LIBRARY = """
from ctypes import cdll
cdll.LoadLibrary("__lib_path__")
"""
# Candidates for a GPU and those that torch compiles need these; each takes seconds to import.
OFTEN_NEEDED = ("triton", "torch._dynamo", "torch._inductor.compile_fx")


def main(arguments: list[str]) -> None:
    """Import what runners need, then serve forks until the supervisor closes the socket."""
    sock, namespaces, threads, device = arguments
    root = str(Path(__file__).resolve().parents[3])
    sys.path.insert(0, root)
    gc.disable()  # what is imported stays: collecting it again and again takes half a second
    import torch  # noqa: F401  (imported for the children)

    from optimizer.evaluation.runner.forks import Separate, serve, work_out
    from optimizer.evaluation.runner.serve import Runner  # noqa: F401

    if device == "cuda":
        # Asking the driver which devices there are would make it unusable in forks.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        _import_often_needed()
        with contextlib.suppress(ImportError):
            work_out()
    gc.enable()
    sys.path.remove(root)
    sys.argv = ["runner"]

    def become(message: dict[str, Any], fds: list[int]) -> None:
        _become_runner(message, fds, int(threads), device)

    # CUDA looks itself up in /proc by its process number.
    separate = Separate(namespaces == "1", own_proc=device == "cuda")
    serve(int(sock), become, separate, prepare=_prepare)


def _prepare(message: dict[str, Any]) -> None:
    if message["compiler"]:
        _prepare_compiler()


@cache
def _prepare_compiler() -> None:
    """Import torch's compiler, and let it find out which vector instructions its C++ may use: it
    builds and loads a library for each kind, and keeps the answers in memory. In a runner that
    takes most of the time of a first compilation."""
    # It imports Triton, whose own functions (`tl.sum`) become what they are by this setting. On a
    # CPU nothing else than the interpreter runs them.
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        _import_often_needed()
    finally:
        del os.environ["TRITON_INTERPRET"]
    # Whatever fails here, such as a compiler that is not installed, fails again in a candidate that
    # needs it, which reports it.
    with (
        contextlib.suppress(Exception),
        tempfile.TemporaryDirectory() as folder,  # runners get folders of their own
        _environment(TORCHINDUCTOR_CACHE_DIR=folder, LD_LIBRARY_PATH=_torch_libraries()),
    ):
        _probe_vector_instructions(importlib.import_module("torch._inductor.cpu_vec_isa"))


def _probe_vector_instructions(instructions: Any) -> None:
    """Ask for each kind, which takes up to four builds and loads, the strongest first. What it has
    built and loaded is built for no weaker kind again: that would be the same text, by the same
    compiler, for fewer instructions. PyTorch before 2.13 imports torch in every process that only
    loads a library; with LD_LIBRARY_PATH it finds what such a library needs without that.
    """
    kind = instructions.VecISA
    if isinstance(getattr(kind, "_avx_py_load", None), str):
        kind._avx_py_load = LOAD_LIBRARY
    if hasattr(kind, "check_build"):
        kind.check_build = _asked_until_right(kind.check_build)
    instructions.valid_vec_isa_list()


def _asked_until_right(check_build: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
    built: set[str] = set()

    def check(kind: Any, code: str) -> bool:
        if code not in built and check_build(kind, code):
            built.add(code)
        return code in built

    return check


def _torch_libraries() -> str:
    folders = [str(Path(sys.modules["torch"].__file__ or "").parent / "lib")]
    return os.pathsep.join(filter(None, [*folders, os.environ.get("LD_LIBRARY_PATH")]))


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _import_often_needed() -> None:
    for name in OFTEN_NEEDED:
        with contextlib.suppress(ImportError):  # a candidate that needs it fails
            importlib.import_module(name)
    # Inductor fixes the folder of its precompiled headers when it is imported, that of temporary
    # files as it is here, where no runner may write. PyTorch 2.11 has no environment variable for
    # it as later versions do.
    config: Any = sys.modules.get("torch._inductor.config")
    if hasattr(config, "cpp_cache_precompile_headers"):
        config.cpp_cache_precompile_headers = False


def _become_runner(message: dict[str, Any], fds: list[int], threads: int, device: str) -> None:
    from optimizer.evaluation.runner.forks import settle
    from optimizer.evaluation.runner.serve import Runner, settle_torch
    from optimizer.evaluation.runner.wire import Wire, WireClosed

    talk, tokens, log = fds
    settle(message["environment"], message["scratch"], log, log)
    settle_torch(threads, device)
    runner = Runner(Wire(socket.socket(fileno=talk), message["secret"]), tokens, device)
    try:
        runner.serve()
    except WireClosed:
        pass
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
