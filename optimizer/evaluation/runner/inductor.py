"""Makes torch's compiler for a CPU (Inductor) ready in an interpreter that runners are forked from:
it is imported, knows which vector instructions its C++ may use, and has its header compiled.

What g++ made for that stays in a folder that no runner may write to, for later interpreters of this
user (`kept`). Within it Inductor names each file by its own text with all includes, and its flags.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from optimizer.evaluation.runner.kept import kept_files

# What Inductor has a Python process do with a library that it has built for a try.
LOAD_LIBRARY = """
from ctypes import cdll
cdll.LoadLibrary("__lib_path__")
"""
# Candidates for a GPU and those that torch compiles need these; each takes seconds to import.
OFTEN_NEEDED = ("triton", "torch._dynamo", "torch._inductor.compile_fx")
# Variables that change what g++ includes, links or makes.
DECIDING = {
    *("CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH"),
    *("COMPILER_PATH", "GCC_EXEC_PREFIX", "ATEN_CPU_CAPABILITY", "CONDA_PREFIX"),
}


def import_often_needed() -> None:
    """Import triton and torch's compiler, where they are installed."""
    for name in OFTEN_NEEDED:
        with contextlib.suppress(ImportError):  # a candidate that needs it fails
            importlib.import_module(name)
    # PyTorch 2.11 has no environment variable for it as later versions do.
    config: Any = sys.modules.get("torch._inductor.config")
    if hasattr(config, "cpp_cache_precompile_headers"):
        config.cpp_cache_precompile_headers = False


@cache
def prepare_compiler(kept: str) -> None:
    """Import torch's compiler, and let it find out which vector instructions its C++ may use: it
    builds and loads a library for each kind, and keeps the answers in memory. In a runner that
    takes most of the time of a first compilation. `kept` is a folder for what g++ makes, empty for
    none. Without one, or where it cannot be used, nothing stays and no header is compiled.
    """
    # It imports Triton, whose own functions (`tl.sum`) become what they are by this setting. On a
    # CPU nothing else than the interpreter runs them.
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        import_often_needed()
    finally:
        del os.environ["TRITON_INTERPRET"]
    # Whatever fails here, such as a compiler that is not installed, fails again in a candidate that
    # needs it, which reports it.
    with contextlib.suppress(Exception), contextlib.ExitStack() as stack:
        own = stack.enter_context(kept_files(Path(kept), decided_by())) if kept else None
        folder = str(own or stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"TORCHINDUCTOR_CACHE_DIR": folder, "LD_LIBRARY_PATH": _torch_libraries()}
        stack.enter_context(_environment(**settings))
        _probe_vector_instructions(importlib.import_module("torch._inductor.cpu_vec_isa"))
        if own is not None:
            _compile_header(own)


def decided_by() -> str:
    """What decides what g++ builds here, as text: torch, the compiler, the processor, and what
    their environment says. What differs in any of it is kept apart."""
    torch: Any = sys.modules["torch"]
    compiler = importlib.import_module("torch._inductor.cpp_builder").get_cpp_compiler()
    version = subprocess.run([compiler, "-v"], capture_output=True, text=True, check=True).stderr
    kinds = [line for line in _processor() if line.startswith(("model name", "flags", "Features"))]
    parts = {
        "program": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "python": [sys.version, sys.executable],
        "torch": [torch.__version__, torch.version.git_version, torch.__file__],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": [platform.machine(), *sorted(set(kinds))],
        "compiler": [os.path.realpath(shutil.which(compiler) or compiler), version],
        "environment": {n: os.environ[n] for n in sorted(os.environ) if n in DECIDING},
    }
    return json.dumps(parts, sort_keys=True)


def _processor() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


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


def _compile_header(folder: Path) -> None:
    """Compile the header that Inductor's kernels include, for the flags that they are compiled with
    unless a candidate chooses others; its own are compiled without. Runners only look it up: they
    could not write it. With other flags than the header's g++ reads the header as text.
    """
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    config: Any = sys.modules["torch._inductor.config"]
    if not importlib.import_module("torch._inductor.cpp_builder").is_gcc():
        return  # others refuse a header of other flags
    compiled: dict[tuple[str, str], str] = {}
    compile_header = codecache._precompile_header

    def compile_and_note(header: str, line: str, **options: Any) -> str:
        path = compiled[header, line] = str(compile_header(header, line, **options))
        return path

    def look_up(header: str, line: str, **_: Any) -> str | None:
        path = compiled.get((header, line))
        # Whoever cleans folders of temporary files may have removed it.
        return path if path and Path(path).is_file() else None

    codecache._HEADER_DIR = str(folder / "headers")
    codecache._HEADER_LOCK_DIR = str(folder / "headers" / "locks")
    codecache._precompile_header = compile_and_note
    config.cpp_cache_precompile_headers = True
    try:
        kernels = codecache.CppPythonBindingsCodeCache
        kernels.load_pybinding_async([], "", submit_fn=lambda compilation: None)
        kernels.cache_clear()
        codecache._precompile_header = look_up
    except BaseException:  # half of it set would stay for every candidate's process
        codecache._precompile_header = compile_header
        config.cpp_cache_precompile_headers = False
        raise


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
