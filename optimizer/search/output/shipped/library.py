"""The kernel of a package as a shared library: the shipped one if it fits this machine, else one
that is built here from the shipped source.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORD = "build.json"
CACHE = "KERNLORE_KERNEL_CACHE"  # environment variable with the folder of built libraries
SECONDS = 300.0
# Architectures whose newest instructions need the suffix `a`.
SPECIFIC = (90, 100, 103, 120, 121)
# First letters of the instruction sets among the flags of /proc/cpuinfo on x86.
SETS = (
    *("sse", "ssse", "pni", "avx", "fma", "bmi", "abm", "popcnt", "f16c", "aes", "vaes"),
    *("pclmulqdq", "vpclmulqdq", "gfni", "sha", "adx", "movbe", "rdrand", "rdseed", "amx", "cx16"),
)


class KernelUnavailable(Exception):
    """The kernel cannot be used here; the message has the reason and a remedy."""


def machine() -> dict[str, Any]:
    """System, architecture and instruction sets, on which a library built with -march=native
    depends."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "instructions": sorted(_instructions()),
    }


def _instructions() -> set[str]:
    """Instruction sets; empty if the system does not report them."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return set()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Features":  # of arm: all of them are instruction sets
            return set(value.split())
        if name.strip() == "flags":
            return {word for word in value.split() if word.startswith(SETS)}
    return set()


def open_library(folder: Path, apart: bool) -> ctypes.CDLL:
    """Load the shipped library if it fits this machine, else one that is built here. `apart` loads
    a private copy, for kernels that cache packed weights. Raises KernelUnavailable."""
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    unfit = _unfit(folder, record)
    if unfit is None:
        try:
            return _load(folder / record["library"], apart)
        except OSError as problem:
            unfit = f"the shipped library does not load: {problem}"
    path = _built_here(folder, record, unfit)
    try:
        return _load(path, apart)
    except OSError as problem:
        raise KernelUnavailable(
            f"{unfit}; nor does one built here ({problem}): delete {path.parent} and try again"
        ) from problem


def _load(path: Path, apart: bool) -> ctypes.CDLL:
    if not apart:
        return ctypes.CDLL(str(path))
    with tempfile.TemporaryDirectory() as folder:
        return ctypes.CDLL(shutil.copy(path, folder))  # stays mapped without its file


def _unfit(folder: Path, record: Mapping[str, Any]) -> str | None:
    """Reason why the shipped library does not fit this machine, or None. Checked before it is
    loaded, since a damaged file or an unknown instruction would end the process."""
    if not record["library"]:
        return str(record["note"]) or "no library was shipped"
    path = folder / record["library"]
    if not path.is_file():
        return f"{path.name} is missing"
    if digest(path) != record["sha256"]:
        return f"{path.name} is not the file that was shipped"
    built, here = record["built_on"], machine()
    if (built["system"], built["machine"]) != (here["system"], here["machine"]):
        return f"{path.name} is for {built['system']} on {built['machine']}"
    lacking = sorted(set(built["instructions"]) - set(here["instructions"]))
    if lacking:
        return f"{path.name} was built for a processor with {', '.join(lacking)}"
    return None


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _built_here(folder: Path, record: Mapping[str, Any], unfit: str) -> Path:
    """The cached library for this source, these flags and this machine, built if missing."""
    arch = _gpu_architecture() if record["compiler"] == "nvcc" else ""
    identity = [
        *((name, digest(folder / name)) for name in record["sources"]),
        *(record["compiler"], record["flags"], machine(), arch),
    ]
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    home = _cache() / key
    path, mark = home / "kernel.so", home / "kernel.sha256"
    if path.is_file() and mark.is_file() and digest(path) == mark.read_text(encoding="ascii"):
        return path
    compiler = _compiler(record["compiler"])
    if compiler is None:
        raise KernelUnavailable(
            f"{unfit}, and {record['compiler']} is not installed: {_advice(record)}"
        )
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="kernel-"))
        path, mark = home / "kernel.so", home / "kernel.sha256"
    _compile(folder, record, [compiler, *record["flags"], *([arch] if arch else [])], path, unfit)
    mark.write_text(digest(path), encoding="ascii")
    warnings.warn(f"{unfit}: built anew as {path}", RuntimeWarning, stacklevel=2)
    return path


def _cache() -> Path:
    chosen = os.environ.get(CACHE)
    if chosen:
        return Path(chosen)
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # a user without a home
        root = Path(tempfile.mkdtemp(prefix="kernel-"))
    return root / "kernlore-kernels"


def _compiler(name: str) -> str | None:
    path = shutil.which(name)
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"))
    if path is None and name == "nvcc":
        places = [shutil.which(name, path=f"{home}/bin") for home in homes if home]
        path = next((place for place in places if place), None)
    return path


def _advice(record: Mapping[str, Any]) -> str:
    if record["compiler"] == "nvcc":
        return "install the CUDA toolkit and put nvcc on the PATH or set CUDA_HOME"
    return f"install {record['compiler']} (apt install {record['compiler']})"


def _gpu_architecture() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    number = 10 * major + minor
    arch = f"{number}{'a' if number in SPECIFIC else ''}"
    # `-arch=sm_90a` would also assemble for plain sm_90, which refuses wgmma.
    return f"-gencode=arch=compute_{arch},code=sm_{arch}"


def _compile(
    folder: Path, record: Mapping[str, Any], command: list[str], path: Path, unfit: str
) -> None:
    """Raises KernelUnavailable with the end of the compiler's log."""
    scratch = path.with_suffix(f".{os.getpid()}")
    main = record["sources"][0]
    whole = [*command, f"-I{folder}", "-o", str(scratch), str(folder / main), *record["libraries"]]
    try:
        done = subprocess.run(whole, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise KernelUnavailable(f"{unfit}, and it cannot be built here: {problem}") from problem
    if done.returncode or not scratch.is_file():
        log = (done.stderr or done.stdout)[-800:]
        raise KernelUnavailable(f"{unfit}, and {record['compiler']} fails on {main}: {log}")
    scratch.replace(path)
