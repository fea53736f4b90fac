"""AMD devices from what amd-smi, rocm-smi or the kernel's KFD files say. Pure parsing but for
`read_kfd`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kb.hardware.detection.device import DetectedDevice, shortened


def parse_amd_smi(text: str) -> list[DetectedDevice]:
    """Devices from `amd-smi static --asic --vram --driver --json`."""
    loaded = _json(text)
    if isinstance(loaded, Mapping):  # newer releases wrap the list
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
        names=_names(name, target),
        uuid=_known(asic.get("asic_serial")),
        driver=_known(driver.get("version") or driver.get("driver_version")),
        # the tool writes MB and counts in 2**20
        memory_bytes=megabytes * 2**20 if isinstance(megabytes, int) else None,
        detail=_detail(index=row.get("gpu"), gfx=target),
    )


def parse_rocm_smi(text: str) -> list[DetectedDevice]:
    """Devices from `rocm-smi --showproductname --showmeminfo vram ... --json`."""
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
        names=_names(series or "", target),
        uuid=_known(row.get("unique id")),
        driver=_known(driver),
        memory_bytes=int(memory) if memory.isdigit() else None,
        detail=_detail(index=key.removeprefix("card"), gfx=target, model=row.get("card model")),
    )


def read_kfd(nodes: Path) -> list[DetectedDevice]:
    """Devices from the kernel's topology files, for machines without AMD's tools."""
    if not nodes.is_dir():
        return []
    devices = []
    for node in sorted((n for n in nodes.iterdir() if n.name.isdigit()), key=lambda n: int(n.name)):
        try:
            text = (node / "properties").read_text(encoding="ascii", errors="replace")
        except OSError:  # a node of a device that this user may not see
            continue
        device = parse_kfd_properties(text, node.name)
        if device is not None:
            devices.append(device)
    return devices


def parse_kfd_properties(text: str, index: str = "") -> DetectedDevice | None:
    """A device from a KFD node's `properties`; None for the CPU nodes."""
    words = (line.split() for line in text.splitlines())
    values = {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}
    version = values.get("gfx_target_version", 0)
    if not version or not values.get("simd_count"):
        return None
    # major, minor and stepping as decimal pairs; minor and stepping are written in hexadecimal
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


def _names(name: str, target: str | None) -> tuple[str, ...]:
    return (shortened(name) if name else ()) + ((target,) if target else ())


def _json(text: str) -> object:
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    if start < 0:
        return None
    try:
        # warnings of the tools come before or after the document
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
    """Text that says something; the tools write N/A and raw device numbers where they know no
    name.
    """
    text = str(value).strip() if value is not None else ""
    return None if text.upper() in ("", "N/A", "NONE", "UNKNOWN") else text


def _detail(**values: object) -> Mapping[str, str]:
    known = {key: _known(value) for key, value in values.items()}
    return MappingProxyType({key: value for key, value in known.items() if value is not None})
