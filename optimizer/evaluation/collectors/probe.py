"""Identify the device, and try which measuring tools work.

A tool that is installed but cannot measure (no counters in a virtual machine, no permission) is not
available, with the error as its reason. Standard library; torch only for its version and a GPU's
cache size.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from kb.hardware.detection import DetectedDevice, detect_devices

DeviceKind = Literal["cpu", "cuda"]
TRY_SECONDS = 20.0
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_VERSION = re.compile(r"(?:\b(?:version|release)\b:?\s*v?|[)\s]|^)(\d+\.\d[\w.]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Tool:
    """A measuring tool. `reason` is why it is not available."""

    name: str
    available: bool
    version: str = ""
    reason: str = ""


@dataclass(frozen=True)
class DeviceIdentity:
    """A physical device with its driver and the versions of the software that uses it.

    `id` depends on device and driver. `caches` maps a level ("L1d", "L2", ...) to bytes, for a CPU
    those of one core as the operating system reports them; a virtual machine may report the host's.
    """

    id: str
    kind: DeviceKind
    name: str
    uuid: str
    driver: str | None
    memory_bytes: int | None
    cores: int | None = None
    flags: tuple[str, ...] = ()
    caches: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def cache_bytes(self) -> int:
        """The size of the last level, 0 if unknown."""
        return max(self.caches.values(), default=0)

    def as_json(self) -> dict[str, Any]:
        """The stored form."""
        return {**asdict(self), "flags": list(self.flags)}


@lru_cache(maxsize=16)
def tool(name: str) -> Tool:
    """One of `perf`, `ncu`, `proton` and `torch_profiler`, tried once per process."""
    if name == "perf":
        return _perf()
    if name == "ncu":
        return _command(name)
    package = "triton" if name == "proton" else "torch"
    version = _package(package)
    return Tool(name, bool(version), version, "" if version else f"{package} is not installed")


def _command(name: str) -> Tool:
    if shutil.which(name) is None:
        return Tool(name, False, reason=f"{name} is not installed")
    ok, output = _tried((name, "--version"))
    if not ok:
        return Tool(name, False, reason=f"{name} does not run: {output[:200]}")
    version = _VERSION.search(output)
    return Tool(name, True, version[1] if version else output.strip()[:40])


def _perf() -> Tool:
    """Counts cycles: many virtual machines have perf and no counters."""
    version = _command("perf")
    if not version.available:
        return version
    ok, output = _tried(("perf", "stat", "-x,", "-e", "cycles,instructions", "true"))
    if not ok:
        return Tool("perf", False, version.version, f"perf may not count: {output[:200]}")
    refused = [line.split(",") for line in output.splitlines() if line.startswith("<not")]
    if refused:
        names = ", ".join(row[2] for row in refused if len(row) > 2)
        return Tool("perf", False, version.version, f"no hardware counters: {names} not supported")
    return Tool("perf", True, version.version)


def _tried(command: Sequence[str]) -> tuple[bool, str]:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {TRY_SECONDS:g} s"
    except OSError as problem:
        return False, str(problem)
    return done.returncode == 0, done.stdout + done.stderr


# -- the device


@lru_cache(maxsize=4)
def identify(kind: DeviceKind = "cpu") -> DeviceIdentity:
    """The first device of this kind; the CPU if there is no GPU."""
    wanted = "gpu" if kind == "cuda" else "cpu"
    present = [device for device in detect_devices().devices if device.kind == wanted]
    if not present:
        return _cpu(None)
    return _gpu(present[0]) if kind == "cuda" else _cpu(present[0])


def _gpu(device: DetectedDevice) -> DeviceIdentity:
    uuid = device.uuid or _digest(device.name, str(device.memory_bytes))
    cache = _l2_bytes()
    return DeviceIdentity(
        id=_digest(uuid, device.driver or ""),
        kind="cuda",
        name=device.name,
        uuid=uuid,
        driver=device.driver,
        memory_bytes=device.memory_bytes,
        caches={"L2": cache} if cache else {},
        versions=_versions(),
    )


def _l2_bytes() -> int:
    """Queried in a child process: the supervisor must not create a CUDA context."""
    code = "import torch; print(torch.cuda.get_device_properties(0).L2_cache_size)"
    ok, output = _tried((sys.executable, "-I", "-c", code))
    last = output.strip().splitlines()[-1:] if ok else []
    return int(last[0]) if last and last[0].isdigit() else 0


def _cpu(device: DetectedDevice | None) -> DeviceIdentity:
    name = device.name if device else platform.processor() or platform.machine()
    detail = device.detail if device else {}
    caches = read_caches(_CACHES)
    cores = detail.get("logical_cpus", "")
    traits = (name, cores, *(f"{level}={size}" for level, size in caches.items()))
    uuid = f"CPU-{_digest(*traits, platform.node())}"
    return DeviceIdentity(
        id=_digest(uuid, ""),
        kind="cpu",
        name=name,
        uuid=uuid,
        driver=None,
        memory_bytes=device.memory_bytes if device else None,
        cores=int(cores) if cores.isdigit() else None,
        flags=tuple(detail.get("vector_features", "").split()),
        caches=caches,
        versions=_versions(),
    )


def read_caches(folder: Path) -> dict[str, int]:
    """Data caches of one core from sysfs: level to bytes."""
    sizes: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text(encoding="ascii").strip()
                for name in ("level", "type", "size")
            )
        except OSError:
            continue  # the hypervisor hides this cache
        if kind == "Instruction" or not size[:-1].isdigit():
            continue
        sizes[f"L{level}{'d' if kind == 'Data' else ''}"] = int(size[:-1]) * _UNITS[size[-1]]
    return sizes


def _versions() -> dict[str, str]:
    versions = {name: _package(name) for name in ("torch", "triton")}
    for compiler in ("g++", "nvcc"):
        versions[compiler] = _command(compiler).version
    versions["python"] = platform.python_version()
    return {name: version for name, version in versions.items() if version}


def _package(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
