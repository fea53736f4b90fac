"""Prepares torch's compiler for CPUs (Inductor) in an interpreter that runners are forked from: it
is imported, has detected the vector instructions that its C++ may use, and its header is compiled.

What g++ built for that is cached in a folder that no runner may write to, for later interpreters of
this user. A cached file counts only with the digest that was recorded when everything being built
had finished. Candidates can read the folder, and lock what they can read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

# Replaces what Inductor has a Python process do with a library that it built as a test.
LOAD_LIBRARY = """
from ctypes import cdll
cdll.LoadLibrary("__lib_path__")
"""
# Candidates for a GPU and those that torch compiles need these; each takes seconds to import.
OFTEN_NEEDED = ("triton", "torch._dynamo", "torch._inductor.compile_fx")
# A first compilation imports these and computes the digests of the files of triton and torch, which
# are parts of every cache key: half a second of a processor in each runner that compiles.
FIRST_IMPORTED = ("sympy.physics.units", "sympy.tensor.tensor")
FIRST_COMPUTED = ("triton_key", "torch_key")
# Environment variables that change what g++ includes, links or builds.
DECIDING = {
    *("CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH"),
    *("COMPILER_PATH", "GCC_EXEC_PREFIX", "ATEN_CPU_CAPABILITY", "CONDA_PREFIX"),
}
DIGESTS = "digests.json"  # of the finished files
LOCK = "lock"
LOCK_SECONDS = 60.0  # several runs of g++
MAX_CACHES = 3  # such as those of two environments, and one from before an update


def import_often_needed() -> None:
    """Import triton and torch's compiler, if installed."""
    for name in OFTEN_NEEDED:
        with contextlib.suppress(ImportError):  # a candidate that needs it fails
            importlib.import_module(name)
    # PyTorch 2.11 lacks the environment variable for this that later versions have.
    config: Any = sys.modules.get("torch._inductor.config")
    if hasattr(config, "cpp_cache_precompile_headers"):
        config.cpp_cache_precompile_headers = False


@cache
def prepare_compiler(folder: str) -> None:
    """Import torch's compiler and let it detect vector instructions: it builds and loads a library
    for each kind and remembers the answers, which in a runner takes most of the time of a first
    compilation. `folder` caches what g++ builds; if it is empty or unusable, nothing is cached and
    no header is compiled."""
    # The import of Triton decides by this setting what its functions (`tl.sum`) are. On a CPU only
    # the interpreter runs them.
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        import_often_needed()
    finally:
        del os.environ["TRITON_INTERPRET"]
    _prepare_first_compilation()
    # Anything that fails here, such as a missing compiler, fails again in the candidate that needs
    # it, which reports it.
    with contextlib.suppress(Exception), contextlib.ExitStack() as stack:
        own = stack.enter_context(build_cache(Path(folder), cache_key())) if folder else None
        used = str(own or stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"TORCHINDUCTOR_CACHE_DIR": used, "LD_LIBRARY_PATH": _torch_libraries()}
        stack.enter_context(_environment(**settings))
        _detect_vector_instructions(importlib.import_module("torch._inductor.cpu_vec_isa"))
        if own is not None:
            _compile_header(own)


def _prepare_first_compilation() -> None:
    for name in FIRST_IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    codecache: Any = sys.modules.get("torch._inductor.codecache")
    for name in FIRST_COMPUTED:
        with contextlib.suppress(Exception):  # other versions of torch may lack it
            getattr(codecache, name)()


def cache_key() -> str:
    """Everything that decides what g++ builds here, as JSON: torch, the compiler, the processor and
    their environment."""
    torch: Any = sys.modules["torch"]
    compiler = importlib.import_module("torch._inductor.cpp_builder").get_cpp_compiler()
    version = subprocess.run([compiler, "-v"], capture_output=True, text=True, check=True).stderr
    kinds = [line for line in _cpuinfo() if line.startswith(("model name", "flags", "Features"))]
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


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _detect_vector_instructions(instructions: Any) -> None:
    """Try each kind, the strongest first, which takes up to four builds and loads. The same text is
    not built again for a weaker kind. PyTorch before 2.13 imports torch in every process that only
    loads a library; with LD_LIBRARY_PATH such a library loads without."""
    kind = instructions.VecISA
    if isinstance(getattr(kind, "_avx_py_load", None), str):
        kind._avx_py_load = LOAD_LIBRARY
    if hasattr(kind, "check_build"):
        kind.check_build = _checked_until_built(kind.check_build)
    instructions.valid_vec_isa_list()


def _checked_until_built(check_build: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
    built: set[str] = set()

    def check(kind: Any, code: str) -> bool:
        if code not in built and check_build(kind, code):
            built.add(code)
        return code in built

    return check


def _compile_header(folder: Path) -> None:
    """Compile the header that Inductor's kernels include, for the default flags. Runners only look
    it up, because they could not write it; g++ reads the header as text under other flags."""
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
        # It may have been removed with other temporary files.
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
    except BaseException:  # half of these settings would stay for every candidate's process
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


# -- the cache


@contextlib.contextmanager
def build_cache(parent: Path, key: str) -> Iterator[Path | None]:
    """The folder of this key, which holds only finished, unchanged files; files that the context
    adds are cached if it ends without an exception. None if the parent folder belongs to another
    user, others may write to it, or it stays locked."""
    folder = own_folder(parent)
    with contextlib.ExitStack() as stack:
        if folder is None or not stack.enter_context(_locked(folder / LOCK)):
            yield None
            return
        own = folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        own.mkdir(mode=0o700, exist_ok=True)
        os.utime(own)
        _remove_oldest(folder)
        known = _remove_changed(own)
        yield own
        present = {str(path.relative_to(own)): path for path in _files(own)}
        if present.keys() != known.keys():
            text = json.dumps({n: known.get(n) or _digest(p) for n, p in present.items()})
            draft = own / f"{DIGESTS}.new"
            draft.write_text(text, encoding="utf-8")
            draft.replace(own / DIGESTS)


def own_folder(path: Path) -> Path | None:
    """The folder, created if missing; None if others may write to it, or this process may not."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    own = path.is_dir() and not path.is_symlink() and status.st_uid == os.getuid()
    return path if own and not status.st_mode & 0o022 and os.access(path, os.W_OK) else None


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether the lock was obtained in time."""
    until = time.monotonic() + LOCK_SECONDS
    with path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    yield False
                    return
                time.sleep(0.05)
            else:
                yield True
                return


def _remove_oldest(folder: Path) -> None:
    """Remove all but the caches used last. A process that has a file open keeps it; one that looks
    it up later compiles without."""
    folders = [path for path in folder.iterdir() if path.is_dir()]
    folders.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for old in folders[MAX_CACHES:]:
        shutil.rmtree(old, ignore_errors=True)


def _remove_changed(folder: Path) -> dict[str, str]:
    """Remove files that differ from their digest, because half a library would count as a vector
    instruction that this machine lacks, and locks, which a candidate may hold. Returns the digests
    of the rest."""
    try:
        recorded = json.loads((folder / DIGESTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        recorded = {}
    unchanged = {}
    for path in _files(folder, locks=True):
        name = str(path.relative_to(folder))
        if not path.is_symlink() and name in recorded and _digest(path) == recorded[name]:
            unchanged[name] = recorded[name]
        else:
            path.unlink()
    return unchanged


def _files(folder: Path, locks: bool = False) -> list[Path]:
    """Built files. Inductor's lock files are empty and come and go."""
    return [
        path
        for path in folder.rglob("*")
        if (path.is_file() or path.is_symlink())
        and not path.name.startswith(DIGESTS)
        and (locks or path.suffix != ".lock")
    ]
