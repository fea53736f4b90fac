"""The processors and accelerators of this machine, as the system and the vendors' tools report
them.

Knows no catalog: a resolver of the caller maps names of devices to hardware ids. Finding no device
is a result, not an error; a tool that is installed but fails leaves a note.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kb.validity import load_tools, read_versions

Resolver = Callable[[str], str | None]


@dataclass(frozen=True)
class DetectedDevice:
    """A device of this machine.

    `names` are its names, most exact first; `how` is the source. `hardware_id_hint` is the
    registered id of one of its names; None without a resolver or for unregistered hardware.
    """

    name: str
    kind: Literal["gpu", "cpu"]
    how: str
    names: tuple[str, ...] = ()
    hardware_id_hint: str | None = None
    uuid: str | None = None
    driver: str | None = None
    memory_bytes: int | None = None
    detail: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def with_hint(device: DetectedDevice, resolver: Resolver | None) -> DetectedDevice:
    """The device with the first registered id of its names."""
    if resolver is None:
        return device
    for name in device.names or (device.name,):
        if (hardware_id := resolver(name)) is not None:
            how = f"{device.how}; known as {name!r}"
            return replace(device, hardware_id_hint=hardware_id, how=how)
    return device


def shortened(name: str) -> tuple[str, ...]:
    """A product name and its prefixes without the vendor, longest first: "NVIDIA H100 80GB HBM3" is
    registered as h100."""
    words = [word for word in re.split(r"[\s_/-]+", name.strip()) if word]
    bare = words[1:] if words and words[0].lower() in ("nvidia", "amd", "intel", "tesla") else words
    bare = bare[1:] if len(bare) > 1 and bare[0].lower() in ("instinct", "tesla") else bare
    # Words without a digit name a product line ("GeForce"), not a product.
    cuts = [" ".join(bare[:end]) for end in range(len(bare), 0, -1)]
    named = [cut for cut in cuts if any(char.isdigit() for char in cut)]
    return tuple(dict.fromkeys([name.strip(), *named]))


TIMEOUT_S = 10.0

_ROCM_SMI = ("rocm-smi", "--showproductname", "--showmeminfo", "vram")

_NVIDIA_FIELDS = ("index", "name", "uuid", "driver_version", "memory.total")
_NVIDIA_NEWER = ("compute_cap", "mig.mode.current")  # old drivers reject the whole query

# Cores of servers and laptops by MIDR_EL1 (implementer, part).
_ARM_CORES = {
    ("0x41", "0xd0c"): "neoverse-n1",
    ("0x41", "0xd40"): "neoverse-v1",
    ("0x41", "0xd49"): "neoverse-n2",
    ("0x41", "0xd4f"): "neoverse-v2",
    ("0x41", "0xd84"): "neoverse-v3",
    ("0x41", "0xd8e"): "neoverse-n3",
}
_VECTOR_FEATURE = re.compile(r"(avx|amx|fma$|f16c$|sve|sme(\d|_|$)|i8mm|bf16|asimd$)")
_X86_NAMES = ("x86-64", "x86_64", "amd64")


@dataclass(frozen=True)
class Detection:
    """The devices of this machine; `notes` name tools that are installed but failed."""

    devices: tuple[DetectedDevice, ...]
    notes: tuple[str, ...] = ()


def detect_devices(resolver: Resolver | None = None) -> Detection:
    """The devices of this machine, accelerators before the CPU."""
    notes: list[str] = []
    devices = [*_nvidia(notes), *_amd(notes), *_cpu()]
    return Detection(tuple(with_hint(device, resolver) for device in devices), tuple(notes))


# Of two that report one tool, the first counts: kernels are compiled with g++.
_PROGRAMS = ("nvcc", "ptxas", "hipcc", "clang++", "clang", "g++", "gcc", "ld")


def installed(program: str, path: str | None = None) -> str | None:
    """The path of a program, None if it is not installed. A distribution may have its compilers
    with a number only, such as clang++-19: the newest counts. `path` replaces PATH."""
    numbered = (f"{program}-{number}" for number in range(40, 10, -1))
    names = (program, *(numbered if program.startswith("clang") else ()))
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def detect_versions() -> dict[str, str]:
    """The versions of this machine's tools by tool: programs on the path, packages of this Python,
    the driver."""
    found: dict[str, str] = {}
    for tool in load_tools().by_id.values():
        for package in tool.packages:
            with suppress(metadata.PackageNotFoundError):
                found.setdefault(tool.id, metadata.version(package))
    programs = [path for name in _PROGRAMS if (path := installed(name))]
    banners = [_run([program, "--version"]) for program in programs]
    text = "\n".join(banner.text for banner in banners if banner.ok)
    found |= read_versions(text)
    found["python"] = platform.python_version()
    driver = next((d.driver for d in _nvidia([]) if d.driver), None)
    return {**found, "driver": driver} if driver else found


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
    """Devices in the output of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`."""
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


def _amd(notes: list[str]) -> list[DetectedDevice]:
    commands = (
        (["amd-smi", "static", "--asic", "--vram", "--driver", "--json"], parse_amd_smi),
        ([*_ROCM_SMI, "--showuniqueid", "--showdriverversion", "--json"], parse_rocm_smi),
    )
    for command, parse in commands:
        if shutil.which(command[0]) is None:
            continue
        answer = _run(command)
        if answer.ok and (devices := parse(answer.text)):
            return devices
        notes.append(f"{command[0]} did not list devices: {answer.text[:200]}")
    return read_kfd(Path("/sys/class/kfd/kfd/topology/nodes"))


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
    """The CPU in the text of /proc/cpuinfo; `machine` as in `uname -m`."""
    rows = [line.split(":", 1) for line in text.splitlines() if ":" in line]
    first: dict[str, str] = {}
    for key, value in rows:
        first.setdefault(key.strip(), value.strip())
    cores = sum(key.strip() == "processor" for key, _ in rows)
    detail = {"machine": machine, "logical_cpus": str(cores or os.cpu_count() or 1)}
    flags = first.get("flags") or first.get("Features") or ""
    features = filter(_VECTOR_FEATURE.match, flags.split())
    if vector_features := " ".join(features):
        detail["vector_features"] = vector_features
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
    except (ValueError, OSError):  # not supported by this system
        return None


@dataclass(frozen=True)
class _ToolOutput:
    ok: bool
    text: str


def _run(command: list[str]) -> _ToolOutput:
    """Run a tool; on failure, `text` is the reason in one line."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return _ToolOutput(False, f"no answer within {TIMEOUT_S:g} s")
    except OSError as error:
        return _ToolOutput(False, str(error))
    if done.returncode == 0:
        return _ToolOutput(True, done.stdout)
    output = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return _ToolOutput(False, output[0] if output else f"exit status {done.returncode}")


def parse_amd_smi(text: str) -> list[DetectedDevice]:
    """Devices in the output of `amd-smi static --asic --vram --driver --json`."""
    loaded = _json(text)
    if isinstance(loaded, Mapping):  # newer versions wrap the list
        loaded = loaded.get("gpu_data", [])
    rows = [row for row in loaded if isinstance(row, Mapping)] if isinstance(loaded, list) else []
    return [_amd_smi_device(row) for row in rows if _part(row, "asic")]


def _amd_smi_device(row: Mapping[str, Any]) -> DetectedDevice:
    asic, driver = _part(row, "asic"), _part(row, "driver")
    target = _known(asic.get("target_graphics_version"))
    name = _known(asic.get("market_name")) or target or "AMD GPU"
    size = _part(row, "vram").get("size")
    megabytes = size.get("value") if isinstance(size, Mapping) else None
    return DetectedDevice(
        name=name,
        kind="gpu",
        how="amd-smi",
        names=_amd_names(name, target),
        uuid=_known(asic.get("asic_serial")),
        driver=_known(driver.get("version") or driver.get("driver_version")),
        # The MB of this tool are 2**20 bytes.
        memory_bytes=megabytes * 2**20 if isinstance(megabytes, int) else None,
        detail=_detail(index=row.get("gpu"), gfx=target),
    )


def parse_rocm_smi(text: str) -> list[DetectedDevice]:
    """Devices in the output of `rocm-smi --showproductname --showmeminfo vram ... --json`."""
    loaded = _json(text)
    if not isinstance(loaded, Mapping):
        return []
    system = _lowered(loaded.get("system"))
    cards = [(key, _lowered(row)) for key, row in loaded.items() if key.startswith("card")]
    return [_rocm_smi_device(key, row, system.get("driver version")) for key, row in cards if row]


def _rocm_smi_device(key: str, row: Mapping[str, str], driver: str | None) -> DetectedDevice:
    target = _known(row.get("gfx version"))
    series = _known(row.get("card series")) or _known(row.get("device name"))
    memory = row.get("vram total memory (b)", "")
    return DetectedDevice(
        name=series or target or "AMD GPU",
        kind="gpu",
        how="rocm-smi",
        names=_amd_names(series or "", target),
        uuid=_known(row.get("unique id")),
        driver=_known(driver),
        memory_bytes=int(memory) if memory.isdigit() else None,
        detail=_detail(index=key.removeprefix("card"), gfx=target, model=row.get("card model")),
    )


def read_kfd(nodes: Path) -> list[DetectedDevice]:
    """Devices of the kernel's topology files, for machines without AMD's tools."""
    if not nodes.is_dir():
        return []
    devices = []
    for node in sorted((n for n in nodes.iterdir() if n.name.isdigit()), key=lambda n: int(n.name)):
        try:
            text = (node / "properties").read_text(encoding="ascii", errors="replace")
        except OSError:  # the user has no access to the device
            continue
        device = parse_kfd_properties(text, node.name)
        if device is not None:
            devices.append(device)
    return devices


def parse_kfd_properties(text: str, index: str = "") -> DetectedDevice | None:
    """The device of a KFD node's `properties`; None for a CPU."""
    words = (line.split() for line in text.splitlines())
    values = {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}
    version = values.get("gfx_target_version", 0)
    if not version or not values.get("simd_count"):
        return None
    # Pairs of decimal digits; gfx names have minor version and stepping in hexadecimal.
    target = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    unique = values.get("unique_id")
    memory = values.get("local_mem_size")
    return DetectedDevice(
        name=target,
        kind="gpu",
        how="KFD topology",
        names=(target,),
        uuid=f"{unique:#x}" if unique else None,
        memory_bytes=memory or None,
        detail=_detail(
            index=index,
            gfx=target,
            device_id=f"{values['device_id']:#x}" if "device_id" in values else None,
        ),
    )


def _amd_names(name: str, target: str | None) -> tuple[str, ...]:
    return (shortened(name) if name else ()) + ((target,) if target else ())


def _json(text: str) -> object:
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    if start < 0:
        return None
    try:
        # The tools print warnings before or after the document.
        loaded: object = json.JSONDecoder().raw_decode(text[start:])[0]
    except ValueError:
        return None
    return loaded


def _part(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = row.get(key)
    return part if isinstance(part, Mapping) else {}


def _lowered(row: object) -> dict[str, str]:
    return {str(k).lower(): str(v) for k, v in row.items()} if isinstance(row, Mapping) else {}


def _known(value: object) -> str | None:
    """A value as text; None for those that the tools print for unknown values."""
    text = str(value).strip() if value is not None else ""
    return None if text.upper() in ("", "N/A", "NONE", "UNKNOWN") else text


def _detail(**values: object) -> Mapping[str, str]:
    known = {key: _known(value) for key, value in values.items()}
    return MappingProxyType({key: value for key, value in known.items() if value is not None})
