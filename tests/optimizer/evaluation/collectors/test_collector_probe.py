"""Detected tools work, and missing ones have a reason."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from optimizer.evaluation.collectors.probe import DeviceIdentity, identify, read_caches, tool
from optimizer.evaluation.evaluator import flush_bytes_of
from optimizer.evaluation.targets import facts_of


def test_every_tool_works_or_has_reason() -> None:
    for name in ("perf", "ncu", "proton", "torch_profiler"):
        known = tool(name)
        assert known.name == name and (known.available or known.reason)


def test_cpu_is_detected_with_stable_id() -> None:
    device = identify("cpu")
    assert device.kind == "cpu" and device.id and device.uuid.startswith("CPU-")
    assert device.name and (device.cores or 0) >= 1
    assert device.versions["torch"] and device.versions["python"]
    assert identify("cpu").id == device.id
    assert device.as_json()["caches"] == dict(device.caches)


def test_caches_are_read_from_sysfs(tmp_path: Path) -> None:
    rows = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K")]
    for number, (level, kind, size) in enumerate([*rows, ("3", "Unified", "36M")]):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    (tmp_path / "index9").mkdir()  # a hypervisor that describes nothing
    assert read_caches(tmp_path) == {"L1d": 48 << 10, "L2": 2 << 20, "L3": 36 << 20}


def test_cpu_has_caches_and_vector_width() -> None:
    caches = {"L1d": 48 << 10, "L2": 1 << 20, "L3": 32 << 20}
    reported = DeviceIdentity(
        "i", "cpu", "a cpu", "u", None, None, flags=("avx", "avx2", "avx512f"), caches=caches
    )
    assert facts_of(reported) == {
        "l1_size": 48 << 10,
        "l2_size": 1 << 20,
        "l3_size": 32 << 20,
        "vector_bits": 512,
        "vector_load_max": 64,
    }
    assert facts_of(replace(reported, flags=("avx", "avx2"), caches={}))["vector_bits"] == 256
    assert facts_of(replace(reported, kind="cuda")) == {}
    assert flush_bytes_of(facts_of(reported)) == 64 << 20  # not twice the second level of one core
    assert flush_bytes_of({"l2_size": 50 << 20}) == 100 << 20 and flush_bytes_of({}) == 256 << 20


def test_missing_tool_has_reason(monkeypatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("PATH", str(tmp_path))
    tool.cache_clear()
    assert tool("ncu").reason == "ncu is not installed"
    # An installed tool that fails is not available either.
    fake = tmp_path / "ncu"
    fake.write_text("#!/bin/sh\necho 'no permission' >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    tool.cache_clear()
    assert "no permission" in tool("ncu").reason
    tool.cache_clear()
