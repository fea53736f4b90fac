"""Makes torch's compiler for a CPU (Inductor) ready in an interpreter that runners are forked from:
it is imported, knows which vector instructions its C++ may use, and has its header compiled.

What g++ made for that stays in a folder that no runner may write to, for later interpreters of this
user. Inductor names each file by what decides it: compiler, flags, version, text with all includes.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
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
WHOLE = "whole.json"  # the files that were finished
LOCK = "lock"


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
    takes most of the time of a first compilation. `kept` is a folder for what g++ makes; where it
    cannot be written or is somebody else's, nothing stays and no header is compiled.
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
        own = opened(Path(kept))
        if own is not None:
            stack.enter_context(only_whole_files(own))
        folder = str(own or stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"TORCHINDUCTOR_CACHE_DIR": folder, "LD_LIBRARY_PATH": _torch_libraries()}
        stack.enter_context(_environment(**settings))
        _probe_vector_instructions(importlib.import_module("torch._inductor.cpu_vec_isa"))
        if own is not None:
            _compile_header(own)


def opened(kept: Path) -> Path | None:
    """The folder, made where needed; None where others may write to it, or this process may not."""
    try:
        kept.mkdir(mode=0o700, exist_ok=True)
        status = kept.lstat()
    except OSError:
        return None
    own = kept.is_dir() and not kept.is_symlink() and status.st_uid == os.getuid()
    return kept if own and not status.st_mode & 0o022 and os.access(kept, os.W_OK) else None


@contextlib.contextmanager
def only_whole_files(folder: Path) -> Iterator[None]:
    """A context that alone adds files to the folder. What a process that was killed has begun there
    is removed first: half a library would be a kind of instructions that this machine lacks."""
    whole = folder / WHOLE
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            listed = set(json.loads(whole.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            listed = set()
        for path in _files(folder):
            if str(path.relative_to(folder)) not in listed:
                path.unlink()
        yield
        present = sorted(str(path.relative_to(folder)) for path in _files(folder))
        if set(present) != listed:
            written = folder / f"{WHOLE}.new"
            written.write_text(json.dumps(present), encoding="utf-8")
            written.replace(whole)


def _files(folder: Path) -> list[Path]:
    """What the compiler left there. Locks of Inductor are empty and come and go."""
    own = {LOCK, WHOLE}
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name not in own and path.suffix != ".lock"
    ]


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
    except BaseException:
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
