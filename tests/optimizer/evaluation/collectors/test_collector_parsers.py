"""Profiler output as the report of a collector. tests/retrieval/profiles has the formats."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.evaluation.collectors.probe import DeviceIdentity, identify, read_caches, tool
from optimizer.evaluation.collectors.profilers import (
    NCU_MAX_LAUNCHES,
    NCU_METRICS,
    parse_perf,
    parse_proton,
    parse_torch_profile,
    summarise_ncu,
)
from optimizer.evaluation.evaluator import flush_bytes_of
from optimizer.evaluation.targets import facts_of
from retrieval.diagnose.metrics import normalise
from retrieval.profiles.nsight import Launch, read_launches

BIG = "void big<float, 4>(T1 *)"
LAUNCHES = [
    Launch("small", {"gpu__time_duration.sum": "4000 ns", "dram__bytes.sum": "1000000 B"}, 4000),
    Launch(BIG, {"gpu__time_duration.sum": "90500 ns", "dram__bytes.sum": "3000000 B"}, 90_500),
    Launch(BIG, {"gpu__time_duration.sum": "90000 ns", "dram__bytes.sum": "3000000 B"}, 90_000),
]


def test_ncu_with_several_kernels() -> None:
    report = summarise_ncu(LAUNCHES, 2.5)
    assert (report.collector, report.seconds) == ("ncu", 2.5)
    assert report.metrics == LAUNCHES[1].metrics
    assert [(k["name"], k["calls"]) for k in report.kernels] == [(BIG, 2), ("small", 1)]
    assert report.kernels[0]["pct"] == pytest.approx(97.83)
    assert "97.83 %" in report.notes[0]


def test_bytes_of_all_launches_in_base_units() -> None:
    assert summarise_ncu(LAUNCHES).call_bytes == 7_000_000
    unknown = Launch("small", {}, 0.0)
    assert summarise_ncu([*LAUNCHES, unknown]).call_bytes is None
    assert summarise_ncu(LAUNCHES * NCU_MAX_LAUNCHES).call_bytes is None


def test_every_requested_metric_is_known() -> None:
    assert normalise(dict.fromkeys(NCU_METRICS, 1.0)).unrecognised == ()
    assert len(set(NCU_METRICS)) == len(NCU_METRICS)


def test_requested_time_is_read() -> None:
    text = (
        '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        f'"0","k","{NCU_METRICS[0]}","us","1.5"\n'
    )
    assert [launch.nanoseconds for launch in read_launches(text)] == [1500]


def test_uncounted_perf_events_are_named() -> None:
    text = (
        "4000000,,cycles,2000000,100.00,,\n<not supported>,,LLC-loads,0,100.00,,\n"
        "70000,,branches,100000,5.00,,\n"
    )
    report = parse_perf(text, 1.5)
    assert report.metrics == {"cycles": 4e6} and report.seconds == 1.5
    assert report.notes == ("perf did not count LLC-loads, branches",)


def test_perf_without_counters_is_not_measured() -> None:
    report = parse_perf("<not supported>,,cycles,0,100.00,,\n<not counted>,,branches,0,0.00,,\n")
    assert not report.metrics and report.not_measured == "perf did not count cycles, branches"
    assert parse_perf("").not_measured == "perf did not count anything"


def test_proton_sums_launches_of_a_kernel() -> None:
    leaf = {"frame": {"name": "add"}, "metrics": {"count": 5, "time (ns)": 5000.0}, "children": []}
    other = {"frame": {"name": "sum"}, "metrics": {"count": 10, "time (ns)": 15_000.0}}
    scope = {"frame": {"name": "scope"}, "metrics": {}, "children": [leaf, other]}
    root = {"frame": {"name": "ROOT"}, "metrics": {}, "children": [scope, leaf]}
    report = parse_proton([root, {"CUDA": {"0": {"arch": "90"}}}], calls=5)
    assert report.metrics == {"num_launches": 4.0}
    assert [(k["name"], k["calls"], k["us"]) for k in report.kernels] == [
        ("sum", 2.0, 3.0),
        ("add", 2.0, 2.0),
    ]
    assert parse_proton([], 1).not_measured


def test_pytorch_rows_are_per_call() -> None:
    kernel = {"name": "add_kernel", "device": "cuda", "calls": 10, "cpu_us": 0.0, "device_us": 60.0}
    copy = {**kernel, "name": "Memcpy DtoD (Device -> Device)", "device_us": 40.0}
    report = parse_torch_profile({"calls": 5, "events": [copy, kernel]}, "cuda", 0.5)
    assert report.metrics == {"kernel_launches": 4.0, "copies_pct": 40.0}
    assert report.kernels[0] == {"name": "add_kernel", "calls": 2.0, "us": 12.0, "pct": 60.0}
    assert parse_torch_profile({"calls": 1, "events": []}, "cuda").not_measured


# -- detected tools work, and missing ones have a reason


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
