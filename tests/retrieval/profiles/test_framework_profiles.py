"""Proton's tree, PyTorch's table, trace and events, and Neuron's summary."""

from __future__ import annotations

import pytest

from retrieval.diagnose.diagnosis import Diagnoser, diagnose
from retrieval.diagnose.given_profile import with_known_counters
from retrieval.diagnose.metrics import normalise
from retrieval.diagnose.signals import load_signals
from retrieval.profiles import proton
from retrieval.profiles.reader import read_neuron
from retrieval.profiles.tables import read as read_table
from retrieval.profiles.torch_profile import read_events, read_json
from retrieval.request import RetrieveRequest


def test_proton_sums_launches_of_a_kernel() -> None:
    leaf = {"frame": {"name": "add"}, "metrics": {"count": 5, "time (ns)": 5000.0}, "children": []}
    other = {"frame": {"name": "sum"}, "metrics": {"count": 10, "time (ns)": 15_000.0}}
    scope = {"frame": {"name": "scope"}, "metrics": {}, "children": [leaf, other]}
    root = {"frame": {"name": "ROOT"}, "metrics": {}, "children": [scope, leaf]}
    profile = proton.read([root, {"CUDA": {"0": {"arch": "90"}}}])
    assert profile is not None and profile.kernel == "sum"
    assert profile.metrics == {"duration_us": 1.5}
    assert [(k.name, k.calls, k.us) for k in profile.kernels] == [("sum", 10, 15), ("add", 10, 10)]
    # A root without children, and one without times.
    assert proton.read(root) == profile
    empty = proton.read([{"frame": {"name": "ROOT"}, "children": []}])
    assert empty is not None and empty.metrics == {}


@pytest.mark.parametrize(
    "other", [[], {}, [1], {"tree": "x"}, [{"frame": {"name": "x"}, "children": 3}]]
)
def test_other_json_is_not_a_proton_tree(other: object) -> None:
    assert proton.read(other) is None


def event(name: str, device: str, calls: int, us: float) -> dict[str, object]:
    return {"name": name, "device": device, "calls": calls, "cpu_us": us, "device_us": us}


def test_gpu_events_and_share_of_copies() -> None:
    events = [
        event("aten::mul", "cpu", 10, 40.0),
        event("cudaLaunchKernel", "cpu", 20, 30.0),
        event("add_kernel", "cuda", 10, 60.0),
        event("Memcpy DtoD (Device -> Device)", "cuda", 10, 40.0),
    ]
    seen = {"calls": 5, "events": events, "operators": {"aten.mul": 2}}
    metrics, kernels = read_events(seen, "cuda")
    assert metrics == {"kernel_launches": 4.0, "copies_pct": 40.0}
    assert [k.name for k in kernels] == ["add_kernel", "Memcpy DtoD (Device -> Device)"]
    assert normalise(metrics).unrecognised == ()
    profile = read_json(seen)
    assert profile is not None and profile.metrics == metrics
    of_cpu, (kernel,) = read_events(seen, "cpu")
    assert of_cpu == {"kernel_launches": 2.0, "copies_pct": 0.0} and kernel.name == "aten::mul"
    assert read_events({"calls": 1, "events": []}, "cuda") == ({}, ())


# On a GPU, the operator repeats the time of its kernel, and so does the range `step`.
GPU_TABLE = """\
-------------------------  ------------  ------------  ------------  ------------  ------------
                     Name    Self CPU %      Self CPU     CPU total     Self CUDA    # of Calls
-------------------------  ------------  ------------  ------------  ------------  ------------
                     step         0.00%       0.000us       0.000us       4.000ms             2
                     step        10.00%     321.677us       1.200ms       0.000us             2
                aten::mul         3.00%      79.572us     130.805us       3.000ms             8
void vectorized_kernel...         0.00%       0.000us       0.000us       3.000ms             8
            Memcpy DtoD          0.00%       0.000us       0.000us       1.000ms             4
         cudaLaunchKernel         9.00%      50.000us      50.000us       0.000us            12
-------------------------  ------------  ------------  ------------  ------------  ------------
Self CPU time total: 1.250ms
Self CUDA time total: 4.000ms
"""
# Recorded with PyTorch on a CPU, without the column "CPU time avg".
CPU_TABLE = """\
----------------------  ------------  ------------  ------------  ------------  ------------
                  Name    Self CPU %      Self CPU   CPU total %     CPU total    # of Calls
----------------------  ------------  ------------  ------------  ------------  ------------
        aten::_softmax        69.68%       4.347ms        69.68%       4.347ms             3
              aten::mm        14.52%     905.645us        14.58%     909.661us             3
           aten::copy_         9.86%     615.133us         9.93%     619.260us             3
           aten::empty         0.63%      39.469us         0.63%      39.469us             6
----------------------  ------------  ------------  ------------  ------------  ------------
Self CPU time total: 6.238ms
"""


def test_gpu_table_counts_each_kernel_once() -> None:
    profile = read_table("compiled\n" + GPU_TABLE)
    assert profile is not None and profile.kernel == "void vectorized_kernel..."
    assert profile.metrics == {
        "copies_pct": 25.0,
        "duration_us": 375.0,
        "kernel_runs": 8,
        "launch_api_calls": 12.0,
        "launch_api_pct": 9.0,
    }
    assert [kernel.us for kernel in profile.kernels] == [3000, 1000]


def test_cpu_table_has_operators() -> None:
    profile = read_table(CPU_TABLE)
    assert profile is not None and profile.kernel == "aten::_softmax"
    assert profile.metrics == {"copies_pct": 10.48, "products_pct": 15.43}
    assert [kernel.name for kernel in profile.kernels][1:] == ["aten::mm", "aten::copy_"]


HOST_BOUND_TABLE = """\
---------  ------------  ------------  ------------  ------------  ------------
     Name    Self CPU %      Self CPU     CPU total     Self CUDA    # of Calls
---------  ------------  ------------  ------------  ------------  ------------
  step_it        52.10%       1.206ms       2.284ms       0.000us             1
 gemm_f16         0.00%       0.000us       0.000us      18.720us             1
 add_this         0.00%       0.000us       0.000us       4.384us             1
---------  ------------  ------------  ------------  ------------  ------------
Self CPU time total: 2.314ms
Self CUDA time total: 23.104us
"""


def test_idle_device_time_is_seen_in_totals() -> None:
    profile = read_table(HOST_BOUND_TABLE)
    assert profile is not None and profile.metrics["gpu_busy_pct"] == 1.0
    verdict = diagnose(normalise(profile.metrics), {}, {}, ("h100", "nvidia", "any"))
    assert verdict.primary == "launch_overhead"
    busy = read_table(HOST_BOUND_TABLE.replace("23.104us", "2.104ms"))
    assert busy is not None
    measured = normalise({**busy.metrics, "duration_us": 2_000.0})
    assert diagnose(measured, {}, {}, ("h100", "nvidia", "any")).primary != "launch_overhead"


def span(category: str, name: str, start: float, us: float, **args: object) -> dict[str, object]:
    placed = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2}
    return {**placed, "ts": start, "dur": us, "args": args}


def test_gpu_and_cpu_traces() -> None:
    host = [
        span("cpu_op", "aten::contiguous", 0, 30),
        span("cpu_op", "aten::clone", 1, 28),
        span("cpu_op", "aten::mm", 40, 70),
        {"ph": "M", "name": "process_name"},
    ]
    kernel = {"registers per thread": 64, "shared memory": 4096, "grid": [8, 1, 1]}
    device = [
        span("kernel", "gemm", 50, 60, **kernel),
        span("kernel", "gemm", 150, 30, **kernel),
        span("gpu_memcpy", "Memcpy DtoD", 120, 10),
    ]
    of_gpu = read_json({"schemaVersion": 1, "traceEvents": host + device})
    assert of_gpu is not None and of_gpu.kernel == "gemm"
    assert of_gpu.metrics == {
        "copies_pct": 10.0,
        "duration_us": 45.0,
        "gpu_busy_pct": 55.56,
        "kernel_runs": 2,
        "products_pct": 90.0,
        "registers_per_thread": 64,
        "shared_memory_per_block_bytes": 4096,
    }
    of_cpu = read_json({"traceEvents": host})
    assert of_cpu is not None and of_cpu.metrics == {"copies_pct": 30.0}
    nothing = read_json({"traceEvents": []})
    assert nothing is not None and nothing.metrics == {}


SUMMARY = {
    "total_time": 0.003,
    "tensor_engine_active_time_percent": 0.18,
    "mfu_estimated_percent": 0.06,
    "mbu_estimated_percent": 0.72,
    "hbm_read_bytes": 31_017_606,
    "hbm_write_bytes": 11_101_448,
    "instance_type": "trn2",
}


def test_longest_program_of_a_neuron_summary() -> None:
    profile = read_neuron({"a1b2": SUMMARY, "c3d4": {**SUMMARY, "total_time": 0.001}})
    assert profile is not None and profile.kernel == "a1b2"
    assert "instance_type" not in profile.metrics
    values = normalise(profile.metrics).values
    assert values["duration_us"] == pytest.approx(3000)
    assert (values["dram_read_bytes"], values["dram_write_bytes"]) == (31_017_606, 11_101_448)
    assert values["dram_throughput_pct"] == pytest.approx(72)
    assert [round(kernel.us) for kernel in profile.kernels] == [3000, 1000]


@pytest.mark.parametrize("wrapped", [SUMMARY, {"summary": [SUMMARY], "instructions": []}])
def test_neuron_summary_alone_and_within_profile(wrapped: dict[str, object]) -> None:
    profile = read_neuron(wrapped)
    assert profile is not None and profile.metrics["mbu_estimated_percent"] == 0.72


@pytest.mark.parametrize("other", [[], {"total_time": 3}, {"a": {"total_time": 1}}])
def test_other_json_is_not_a_neuron_summary(other: object) -> None:
    assert read_neuron(other) is None


HALF_COPIES = """
Name  Self CPU %  Self CPU  CPU total %  CPU total  Self CUDA  Self CUDA %  # of Calls
Memcpy HtoD (Pageable -> Device)  0.00%   0.000us    0.00%    0.000us  398.201ms  46.58%  640
cudaStreamSynchronize  58.11%  233.310ms  58.11%  233.310ms  0.000us  0.00%  640
aten::mm               2.02%    8.110ms   3.40%   13.650ms  281.331ms  32.91%  1280
"""


def test_host_functions_have_their_share_of_the_total() -> None:
    request, read = with_known_counters(RetrieveRequest(profile=HALF_COPIES))
    assert read is not None
    assert read.metrics["wait_api_pct"] == 58.11 and read.metrics["transfers_pct"] == 46.58
    verdict = Diagnoser(load_signals()).conclude(request, {}, ("nvidia",), ()).verdict
    assert verdict.primary == "memory_bound"


def test_waits_longer_than_the_kernels_are_not_for_their_work() -> None:
    table = "Name  Total Time (ns)  Num Calls\n{}  3,900,000,000  20000\n{}  680,000,000  240000\n"
    for host, device in (("cudaStreamSynchronize", "add_f32"), ("hipDeviceSynchronize", "scale")):
        _, read = with_known_counters(RetrieveRequest(profile=table.format(host, device)))
        assert read is not None and "574 % of what all kernels and copies take" in read.notes[0]
