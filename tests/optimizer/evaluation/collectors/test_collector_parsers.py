"""What profilers print, read: recorded texts of ncu, perf, Proton and PyTorch's profiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.evaluation.collectors import ncu, perf
from optimizer.evaluation.collectors.profilers import parse_proton, parse_torch_profile
from retrieval.diagnose.diagnosis import diagnose
from retrieval.diagnose.metrics import normalise

ROOT = Path(__file__).resolve().parents[4]
CAPTURE = ROOT.parent / "shared" / "captures" / "ncu_2025.3.1_h200_triton_add_strided.csv"
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
H200 = ("h200", "hopper", "nvidia", "any")


def row(number: int, kernel: str, name: str, unit: str, value: str) -> str:
    return (
        f'"{number}","425","python3","127.0.0.1","{kernel}","1","7","(128, 1, 1)","(65536, 1, 1)",'
        f'"0","9.0","Command line profiler metrics","{name}","{unit}","{value}"'
    )


NCU_TEXT = "\n".join(
    (
        "==PROF== Connected to process 425",
        "the candidate printed this",
        HEAD,
        row(0, "small", "gpu__time_duration.sum", "ns", "4,000"),
        row(0, "small", "dram__bytes.sum", "byte", "1,000,000"),
        row(1, "void big<float, 4>(T1 *)", "gpu__time_duration.sum", "us", "90.5"),
        row(1, "void big<float, 4>(T1 *)", "dram__bytes.sum", "Mbyte", "3.00"),
        row(1, "void big<float, 4>(T1 *)", "lts__throughput.avg.pct", "%", "n/a"),
        row(1, "void big<float, 4>(T1 *)", "launch__registers_per_thread", "register/thread", "26"),
        row(2, "void big<float, 4>(T1 *)", "gpu__time_duration.sum", "ns", "90,000"),
        row(2, "void big<float, 4>(T1 *)", "dram__bytes.sum", "byte", "3,000,000"),
    )
)


def test_ncu_with_units_several_kernels_and_noise() -> None:
    launches = ncu.parse(NCU_TEXT)
    assert [launch.kernel for launch in launches] == ["small", *["void big<float, 4>(T1 *)"] * 2]
    assert [launch.nanoseconds for launch in launches] == [4000, 90_500, 90_000]
    report = ncu.summarise(launches)
    assert "lts__throughput.avg.pct" not in report.metrics
    values = normalise(report.metrics).values
    assert values["duration_us"] == pytest.approx(90.5)
    assert values["dram_bytes"] == 3_000_000 and values["registers_per_thread"] == 26
    assert [(k["name"], k["calls"]) for k in report.kernels] == [
        ("void big<float, 4>(T1 *)", 2),
        ("small", 1),
    ]
    assert report.kernels[0]["pct"] == pytest.approx(97.83)
    assert "97.83 %" in report.notes[0]


def test_bytes_of_all_launches_in_base_units() -> None:
    text = NCU_TEXT.replace('"Mbyte","3.00"', '"byte","3,000,000"')
    assert ncu.summarise(ncu.parse(text)).call_bytes == 7_000_000


@pytest.mark.parametrize("text", ["", "==ERROR== nothing", '"ID","Kernel Name"\n"0","x"'])
def test_ncu_that_said_nothing(text: str) -> None:
    assert ncu.parse(text) == []


def test_every_metric_that_is_asked_for_is_known() -> None:
    assert normalise(dict.fromkeys(ncu.METRICS, 1.0)).unrecognised == ()
    assert len(set(ncu.METRICS)) == len(ncu.METRICS)


def test_the_real_capture_of_an_h200() -> None:
    if not CAPTURE.is_file():
        pytest.skip("the recorded ncu CSV is not beside this checkout")
    launches = ncu.parse(CAPTURE.read_text())
    assert [launch.kernel for launch in launches] == ["add", "strided", "add"]
    report = ncu.summarise(launches)
    assert report.kernels[0]["name"] == "strided" and normalise(report.metrics).unrecognised == ()
    problem = {"compulsory_bytes": 3 * 4 * 64 * 1024**2}
    strided = diagnose(normalise(report.metrics), {}, problem, H200)
    assert strided.primary == "uncoalesced_access"
    add = diagnose(normalise(launches[0].metrics), {}, problem, H200)
    assert [finding.id for finding in add.signals] == ["memory_bound", "at_roofline"]


PERF_TEXT = """# started on Mon Nov 10 10:00:00 2025

4000000,,cycles,2000000,100.00,,
1500000,,cpu_core/instructions:u/,2000000,100.00,0.38,insn per cycle
1000000,,cpu_atom/instructions:u/,2000000,100.00,,
<not supported>,,LLC-loads,0,100.00,,
70000,,branches,100000,5.00,,
300,,L1-dcache-load-misses,2000000,60.00,,
1000,,L1-dcache-loads,2000000,60.00,,
"""


def test_perf_counts_and_what_it_did_not_count() -> None:
    report = perf.parse(PERF_TEXT)
    assert report.metrics == {
        "cycles": 4e6,
        "instructions": 2.5e6,
        "L1-dcache-load-misses": 300,
        "L1-dcache-loads": 1000,
    }
    assert report.notes == ("perf did not count LLC-loads, branches",)
    signals = [f.id for f in diagnose(normalise(report.metrics), {}, {}, ("x86-64", "any")).signals]
    assert signals == ["cache_thrash", "latency_bound"]


def test_perf_without_counters_is_not_measured() -> None:
    report = perf.parse("<not supported>,,cycles,0,100.00,,\n<not counted>,,branches,0,0.00,,\n")
    assert not report.metrics and report.not_measured == "perf did not count cycles, branches"


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


def event(name: str, device: str, calls: int, us: float) -> dict[str, object]:
    return {"name": name, "device": device, "calls": calls, "cpu_us": us, "device_us": us}


def test_kernels_of_a_gpu_and_the_share_of_copies() -> None:
    events = [
        event("aten::mul", "cpu", 10, 40.0),
        event("cudaLaunchKernel", "cpu", 20, 30.0),
        event("add_kernel", "cuda", 10, 60.0),
        event("Memcpy DtoD (Device -> Device)", "cuda", 10, 40.0),
    ]
    report = parse_torch_profile({"calls": 5, "events": events}, "cuda")
    assert report.metrics == {"kernel_launches": 4.0, "copies_pct": 40.0}
    assert [k["name"] for k in report.kernels] == ["add_kernel", "Memcpy DtoD (Device -> Device)"]
    assert normalise(report.metrics).unrecognised == ()
    assert parse_torch_profile({"calls": 1, "events": []}, "cuda").not_measured
