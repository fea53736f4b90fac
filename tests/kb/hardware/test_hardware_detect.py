"""Devices of this machine, and recorded output of other machines."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from kb.hardware.detection import (
    detect_devices,
    parse_amd_smi,
    parse_cpuinfo,
    parse_kfd_properties,
    parse_nvidia_smi,
    parse_rocm_smi,
    read_kfd,
    shortened,
    with_hint,
)
from kb.hardware.lineage import find
from kb.hardware.spec import HardwareSpec

REGISTRY = {
    id_: HardwareSpec(id_, id_, "v", None, aliases)
    for id_, aliases in {
        "h100": (),
        "h200": (),
        "a100": (),
        "mi300x": (),
        "cdna3": ("gfx942",),
        "hopper": ("sm_90",),
        "x86-64": ("amd64",),
        "neoverse-v2": ("grace",),
    }.items()
}

# nvidia-smi --query-gpu=index,name,uuid,driver_version,memory.total,compute_cap,mig.mode.current
#   --format=csv,noheader,nounits on an H200 machine (the serial part of the uuid replaced)
H200 = (
    "0, NVIDIA H200, GPU-00000000-1bd4-9d4d-92d8-000000000000, 580.159.04, 143771, 9.0, Disabled\n"
)

# rocm-smi --showproductname --showmeminfo vram --json on a machine with an MI210
MI210 = (
    '{"card0": {"VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "10960896", '
    '"Card series": "Instinct MI210", "Card model": "0x0c34", '
    '"Card vendor": "Advanced Micro Devices, Inc. [AMD/ATI]", "Card SKU": "D67301"}}'
)

# /sys/class/kfd/kfd/topology/nodes/1/properties on a machine with a gfx942 device (shortened)
KFD = """\
cpu_cores_count 0
simd_count 304
wave_front_size 64
simd_per_cu 4
gfx_target_version 90402
vendor_id 4098
device_id 29856
local_mem_size 206142726144
num_xcc 1
unique_id 9895604649984
"""

GRACE = """\
processor\t: 0
BogoMIPS\t: 2000.00
Features\t: fp asimd evtstrm aes sve sve2 bf16 i8mm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 0

processor\t: 1
CPU implementer\t: 0x41
CPU part\t: 0xd4f
"""


def resolver(name: str) -> str | None:
    return find(name, REGISTRY)


def test_this_machine_has_detected_cpu() -> None:
    devices = detect_devices(resolver).devices
    cpus = [device for device in devices if device.kind == "cpu"]
    assert len(cpus) == 1
    assert cpus[0].name
    assert cpus[0].how
    if platform.machine() in ("x86_64", "AMD64"):
        assert cpus[0].hardware_id_hint == "x86-64"
    if Path("/proc/cpuinfo").exists():
        assert cpus[0].memory_bytes is not None
        assert cpus[0].memory_bytes > 2**28
        assert int(cpus[0].detail["logical_cpus"]) == os.cpu_count()


def test_without_tools_only_cpu_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [d.kind for d in detect_devices().devices if d.how != "KFD topology"] == ["cpu"]
    assert detect_devices().notes == ()


def test_tool_that_fails_leaves_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not reach'\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect_devices().notes == (
        "nvidia-smi did not list devices: NVIDIA-SMI has failed because it could not reach",
    )


def test_old_driver_is_queried_with_fewer_fields(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\ncase "$1" in *compute_cap*) echo \'Field "compute_cap" is not a valid field to'
        " query.'; exit 2;; esac\necho '0, Tesla V100-SXM2-32GB, GPU-1, 418.40, 32480'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    first = detect_devices().devices[0]
    assert (first.name, first.driver, first.memory_bytes) == (
        "Tesla V100-SXM2-32GB",
        "418.40",
        32480 * 2**20,
    )


def test_recorded_h200() -> None:
    (device,) = parse_nvidia_smi(H200)
    hinted = with_hint(device, resolver)
    assert hinted.hardware_id_hint == "h200"
    assert hinted.uuid == "GPU-00000000-1bd4-9d4d-92d8-000000000000"
    assert hinted.driver == "580.159.04"
    assert hinted.memory_bytes == 143771 * 2**20
    assert hinted.detail["compute_cap"] == "9.0"
    assert "'H200'" in hinted.how


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GH200 480GB", "hopper"),
        ("AMD Instinct MI300X OAM", "mi300x"),
    ],
)
def test_product_name_gives_hardware_id(name: str, expected: str) -> None:
    (device,) = parse_nvidia_smi(H200.replace("NVIDIA H200", name))
    assert with_hint(device, resolver).hardware_id_hint == expected


def test_unregistered_device_has_no_hardware_hint() -> None:
    (device,) = parse_nvidia_smi(H200.replace("NVIDIA H200", "NVIDIA L4").replace("9.0", "8.9"))
    assert with_hint(device, resolver) == device
    assert with_hint(device, None).hardware_id_hint is None
    assert "GeForce" not in shortened("NVIDIA GeForce RTX 4090")


def test_nvidia_smi_with_missing_values() -> None:
    (device,) = parse_nvidia_smi("0, NVIDIA X1, [N/A], 1.0, [Not Supported], 8.0, [N/A]\nnoise\n")
    assert device.uuid is None
    assert device.memory_bytes is None
    assert parse_nvidia_smi("No devices were found\n") == []


def test_recorded_mi210() -> None:
    (device,) = parse_rocm_smi(MI210)
    assert device.name == "Instinct MI210"
    assert device.memory_bytes == 68702699520
    assert "MI210" in device.names
    assert parse_rocm_smi("WARNING: no devices\n{}") == []
    assert parse_rocm_smi("not json") == []


def test_both_formats_of_amd_smi() -> None:
    row = (
        '{"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0x6F1F", '
        '"target_graphics_version": "gfx942"}, "driver": {"name": "amdgpu", "version": "6.10.5"}, '
        '"vram": {"type": "HBM3", "size": {"value": 196592, "unit": "MB"}}}'
    )
    for text in (f"[{row}]", f'{{"gpu_data": [{row}]}}', f"a warning\n[{row}]"):
        (device,) = parse_amd_smi(text)
        assert with_hint(device, resolver).hardware_id_hint == "mi300x"
        assert device.memory_bytes == 196592 * 2**20
        assert (device.uuid, device.driver) == ("0x6F1F", "6.10.5")
    assert parse_amd_smi("ERROR") == []
    assert parse_amd_smi('[{"gpu": 0, "asic": "N/A"}]') == []


def test_kfd_nodes_without_amd_tools(tmp_path: Path) -> None:
    for node, text in {"0": "cpu_cores_count 64\nsimd_count 0\n", "1": KFD}.items():
        (tmp_path / node).mkdir()
        (tmp_path / node / "properties").write_text(text)
    (tmp_path / "2").mkdir()
    (device,) = read_kfd(tmp_path)
    assert (device.name, device.memory_bytes) == ("gfx942", 206142726144)
    assert with_hint(device, resolver).hardware_id_hint == "cdna3"
    assert read_kfd(tmp_path / "absent") == []
    mi250 = parse_kfd_properties(KFD.replace("90402", "90010"))
    assert mi250 is not None
    assert mi250.name == "gfx90a"


def test_grace_cpu() -> None:
    cpu = with_hint(parse_cpuinfo(GRACE, "aarch64"), resolver)
    assert (cpu.name, cpu.hardware_id_hint) == ("neoverse-v2", "neoverse-v2")
    assert cpu.detail["vector_features"] == "asimd sve sve2 bf16 i8mm"
    assert cpu.detail["logical_cpus"] == "2"


def test_unknown_arm_core_is_named_by_its_part_number() -> None:
    cpu = with_hint(parse_cpuinfo(GRACE.replace("0xd4f", "0xfff"), "aarch64"), resolver)
    assert cpu.hardware_id_hint is None
    assert (cpu.name, cpu.detail["part"]) == ("aarch64", "0xfff")
