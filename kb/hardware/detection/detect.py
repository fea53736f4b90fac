"""Which accelerators this machine has, asked of the operating system and the vendors' own tools.

Knows no catalog: a resolver given by the caller turns a device's names into a hardware id. The
parsing functions are pure, so they are tested on recorded outputs of machines that are not here.
Nothing found is a result, not an error; a tool that is there but fails leaves a note.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from kb.hardware.detection.amd import parse_amd_smi, parse_rocm_smi, read_kfd
from kb.hardware.detection.device import DetectedDevice, Resolver, shortened, with_hint

TIMEOUT_S = 10.0

_ROCM_SMI = ("rocm-smi", "--showproductname", "--showmeminfo", "vram")

_NVIDIA_FIELDS = ("index", "name", "uuid", "driver_version", "memory.total")
_NVIDIA_NEWER = ("compute_cap", "mig.mode.current")  # old drivers refuse the whole query

# MIDR_EL1 (implementer, part) of cores found in servers and laptops
_ARM_CORES = {
    ("0x41", "0xd0c"): "neoverse-n1",
    ("0x41", "0xd40"): "neoverse-v1",
    ("0x41", "0xd49"): "neoverse-n2",
    ("0x41", "0xd4f"): "neoverse-v2",
    ("0x41", "0xd84"): "neoverse-v3",
    ("0x41", "0xd8e"): "neoverse-n3",
}
_VECTOR_FLAG = re.compile(r"avx|amx|sve|sme(?:\d|_|$)|i8mm|bf16|asimd$")
_X86_NAMES = ("x86-64", "x86_64", "amd64")


@dataclass(frozen=True)
class Detection:
    """notes: sentences on tools that are installed but did not answer."""

    devices: tuple[DetectedDevice, ...]
    notes: tuple[str, ...] = ()


def detect_devices(resolver: Resolver | None = None) -> list[DetectedDevice]:
    """The devices of this machine, accelerators before the CPU."""
    return list(probe(resolver).devices)


def probe(resolver: Resolver | None = None) -> Detection:
    """Like `detect_devices`, with what went wrong on the way."""
    notes: list[str] = []
    devices = [*_nvidia(notes), *_amd(notes), *_cpu()]
    return Detection(tuple(with_hint(device, resolver) for device in devices), tuple(notes))


# ---- NVIDIA


def _nvidia(notes: list[str]) -> list[DetectedDevice]:
    if shutil.which("nvidia-smi") is None:
        return []
    for fields in (_NVIDIA_FIELDS + _NVIDIA_NEWER, _NVIDIA_FIELDS):
        query = f"--query-gpu={','.join(fields)}"
        answer = _run(["nvidia-smi", query, "--format=csv,noheader,nounits"])
        if answer.ok:
            return parse_nvidia_smi(answer.text, fields)
    notes.append(f"nvidia-smi did not list devices: {answer.text[:200]}")
    return []


def parse_nvidia_smi(
    text: str, fields: Sequence[str] = _NVIDIA_FIELDS + _NVIDIA_NEWER
) -> list[DetectedDevice]:
    """Devices from `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`."""
    devices = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(fields):
            continue
        row = {
            name: cell
            for name, cell in zip(fields, cells, strict=True)
            if cell and not cell.startswith("[")  # "[N/A]", "[Not Supported]"
        }
        if "name" in row:
            devices.append(_nvidia_device(row))
    return devices


def _nvidia_device(row: Mapping[str, str]) -> DetectedDevice:
    capability = row.get("compute_cap", "")
    families = (f"sm_{capability.replace('.', '')}",) if capability else ()
    memory = row.get("memory.total", "")
    detail = {key: row[key] for key in ("index", *_NVIDIA_NEWER) if key in row}
    return DetectedDevice(
        name=row["name"],
        kind="gpu",
        how="nvidia-smi",
        names=shortened(row["name"]) + families,
        uuid=row.get("uuid"),
        driver=row.get("driver_version"),
        memory_bytes=int(memory) * 2**20 if memory.isdigit() else None,
        detail=MappingProxyType(detail),
    )


# ---- AMD


def _amd(notes: list[str]) -> list[DetectedDevice]:
    commands = (
        (["amd-smi", "static", "--asic", "--vram", "--driver", "--json"], parse_amd_smi),
        (
            [*_ROCM_SMI, "--showuniqueid", "--showdriverversion", "--json"],
            parse_rocm_smi,
        ),
    )
    for command, parse in commands:
        if shutil.which(command[0]) is None:
            continue
        answer = _run(command)
        if answer.ok and (devices := parse(answer.text)):
            return devices
        notes.append(f"{command[0]} did not list devices: {answer.text[:200]}")
    return read_kfd(Path("/sys/class/kfd/kfd/topology/nodes"))


# ---- CPU


def _cpu() -> Iterator[DetectedDevice]:
    memory = _physical_memory()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
        yield replace(parse_cpuinfo(text, platform.machine()), memory_bytes=memory)
    elif platform.system() == "Darwin":
        answer = _run(["sysctl", "-n", "machdep.cpu.brand_string"])
        name = answer.text.strip() if answer.ok else platform.processor()
        names = (*shortened(name), platform.machine())
        yield DetectedDevice(name, "cpu", "sysctl", names=names, memory_bytes=memory)


def parse_cpuinfo(text: str, machine: str) -> DetectedDevice:
    """The CPU from /proc/cpuinfo; `machine` as in `uname -m`."""
    rows = [line.split(":", 1) for line in text.splitlines() if ":" in line]
    first: dict[str, str] = {}
    for key, value in rows:
        first.setdefault(key.strip(), value.strip())
    cores = sum(key.strip() == "processor" for key, _ in rows)
    detail = {"machine": machine, "logical_cpus": str(cores or os.cpu_count() or 1)}
    flags = first.get("flags") or first.get("Features") or ""
    wide = [
        flag
        for flag in flags.split()
        if re.match(r"(avx|amx|sve|sme(\d|_|$)|i8mm|bf16|asimd$)", flag)
    ]
    if wide:
        detail["vector_features"] = " ".join(wide)
    if machine.lower() in _X86_NAMES:
        name = first.get("model name", machine)
        names: tuple[str, ...] = (name, *_X86_NAMES)
    else:
        midr = (first.get("CPU implementer", ""), first.get("CPU part", "").lower())
        core = _ARM_CORES.get(midr, "")
        detail |= {"implementer": midr[0], "part": midr[1]} if midr[0] else {}
        name = first.get("model name") or core or machine
        names = tuple(dict.fromkeys(n for n in (core, name, machine) if n))
    how = "/proc/cpuinfo"
    return DetectedDevice(name, "cpu", how, names=names, detail=MappingProxyType(detail))


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # a name this system does not have
        return None


@dataclass(frozen=True)
class _Answer:
    ok: bool
    text: str


def _run(command: list[str]) -> _Answer:
    """The output of a listing tool; on failure `text` says why in one line."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return _Answer(False, f"no answer within {TIMEOUT_S:g} s")
    except OSError as error:
        return _Answer(False, str(error))
    if done.returncode == 0:
        return _Answer(True, done.stdout)
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return _Answer(False, said[0] if said else f"exit status {done.returncode}")
