"""Tables of any tool are read by their columns, and conclusive numbers give a diagnosis."""

import pytest

from kb.errors import InvalidRequest
from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.given_profile import with_known_counters
from retrieval.diagnose.signals import load_signals
from retrieval.profiles.profile import time_shares
from retrieval.profiles.reader import read_profile
from retrieval.request import RetrieveRequest

TALLY = """
Device profiling | 1 Hostnames | 1 Processes | 1 Threads | 1 Devices |

                        Name |    Time | Time(%) | Calls |  Average |    Min |     Max |
  zeCommandListAppendBarrier | 40.00us |  61.54% |    80 | 500.00ns |        |  2.00us |
                     saxpy_k | 25.00us |  38.46% |     2 |  12.50us | 9.00us | 16.00us |
                       Total | 65.00us | 100.00% |    82 |
"""
HOST_CALLS = """
== CL Backend: ==

          Function,     Calls,     Time (ns),  Time (%),   Average (ns),  Min (ns),   Max (ns)
    clBuildProgram,         1,     900000000,     90.00,      900000000,  900000000, 900000000
          clFinish,        10,     100000000,     10.00,       10000000,   9000000,  11000000
"""
OLD_TORCH = """
-----------  ----------------  --------------  ------------  ------------  ---------------
Name         Self CPU total %  Self CPU total  CUDA total %  CUDA total    Number of Calls
-----------  ----------------  --------------  ------------  ------------  ---------------
aten::addmm  1.00%             90.000us        75.00%        300.000ms     100
aten::relu   98.00%            8.000ms         25.00%        100.000ms     100
"""
JULIA = """
Device-side activity: GPU was busy for 1.2 s (80.00% of the trace)
┌──────────┬────────────┬───────┬───────────────────────────────────────┬───────────┐
│ Time (%) │ Total time │ Calls │ Time distribution                     │ Name      │
├──────────┼────────────┼───────┼───────────────────────────────────────┼───────────┤
│   60.00% │   12.00 ms │  3000 │   4.0 µs ± 0.2   (  3.8 ‥ 5.0)        │ broadcast │
│   40.00% │    8.00 ms │    10 │ 800.0 µs ± 9.0   (790.0 ‥ 820.0)      │ reduce    │
└──────────┴────────────┴───────┴───────────────────────────────────────┴───────────┘
"""
ASCEND = """OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)
MatMulV2,AI_CORE,20,40000,1900,2000,2100,80.0
Cast,AI_VECTOR_CORE,40,10000,200,250,300,20.0
"""
TENSORRT = """
[I]                  Layer   Time (ms)   Avg. Time (ms)   Time %
"""
TRACY = """name,src_file,src_line,total_ns,total_perc,counts,mean_ns,min_ns,max_ns
dispatch_0,a.cpp,12,5000000,62.5,10,500000,1,2
dispatch_1,a.cpp,14,3000000,37.5,10,300000,1,2
"""
MARKDOWN = """
| Kernel | Duration (us) | Share |
|--------|---------------|-------|
| gemm_a | 900.5         | 90.05 % |
| copy_b | 99.5          | 9.95 %  |
"""
PYTHON = """
         300 function calls in 2.000 seconds

   Function      Calls   Total time (s)   Per call (s)
   forward       100     1.500            0.015
   loss          100     0.500            0.005
"""


@pytest.mark.parametrize(
    ("text", "leading", "calls", "us", "pct"),
    [
        (TALLY, "zeCommandListAppendBarrier", 80, 40.0, 61.54),
        (HOST_CALLS, "clBuildProgram", 1, 9e5, 90.0),
        (OLD_TORCH, "aten::addmm", 100, 3e5, 75.0),
        (JULIA, "broadcast", 3000, 12e3, 60.0),
        (ASCEND, "MatMulV2", 20, 4e4, 80.0),
        (TRACY, "dispatch_0", 10, 5e3, 62.5),
        (MARKDOWN, "gemm_a", 1, 900.5, 90.05),
        (PYTHON, "forward", 100, 1.5e6, 75.0),
    ],
)
def test_names_and_times_of_a_table(
    text: str, leading: str, calls: float, us: float, pct: float
) -> None:
    first = time_shares(read_profile(text).kernels)[0]
    assert first["name"] == leading and first["calls"] == calls
    assert first["us"] == pytest.approx(us) and first["pct"] == pytest.approx(pct)


def test_share_is_relative_to_printed_total() -> None:
    box = """
╒════╤════════════════════════╤═════════╤═════════════╤════════════╤═══════╕
│    │ Kernel_Name            │   Count │     Sum(ns) │   Mean(ns) │   Pct │
╞════╪════════════════════════╪═════════╪═════════════╪════════════╪═══════╡
│  0 │ stencil                │    3.00 │    90000.00 │   30000.00 │  6.50 │
╘════╧════════════════════════╧═════════╧═════════════╧════════════╧═══════╛
"""
    assert time_shares(read_profile(box).kernels)[0]["pct"] == 6.5


def test_table_without_names_or_times_is_refused() -> None:
    for text in ("a b c\n1 2 3\n", "Name  Size  Colour\nx  3  red\n", TENSORRT):
        with pytest.raises(InvalidRequest):
            read_profile(text)


TOPLEV = """
# 4.7-full on Intel(R) Xeon(R) Gold 6348 CPU @ 2.60GHz [icx/icelake]
BE               Backend_Bound  % Slots                       88.0  <==
Info.Thread      IPC              Metric                       0.20
"""
TOPLEV_NODES = """
BE/Mem  Backend_Bound.Memory_Bound.DRAM_Bound             % Stalls     1.2  < [ 6.6%]
BE/Mem  Backend_Bound.Memory_Bound.L1_Bound.DTLB_Load     % Clocks_est 25.0 < [ 5.8%]
"""
LISTED = """
Kernel metrics of run 3
dram__throughput.avg.pct_of_peak_sustained_elapsed: 71.5 %
"""


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        (TALLY, "sync_stall"),
        (HOST_CALLS, "launch_overhead"),
        (OLD_TORCH, "compute_bound"),
        (JULIA, "launch_overhead"),
        (ASCEND, "compute_bound"),
        (TOPLEV, "memory_latency"),
        (TOPLEV_NODES, "memory_latency"),
        (LISTED, "memory_bound"),
    ],
)
def test_numbers_give_diagnosis(text: str, signal: str) -> None:
    request, read = with_known_counters(RetrieveRequest(profile=text))
    assert read is not None
    conclusion = Diagnoser(load_signals()).conclude(request, {}, (), ())
    assert conclusion.verdict.signals[0].id == signal


def test_times_of_two_long_kernels_give_no_diagnosis() -> None:
    request, _ = with_known_counters(RetrieveRequest(profile=TRACY))
    assert not Diagnoser(load_signals()).conclude(request, {}, (), ()).verdict.signals


def test_zero_conflict_count_rules_out_bank_conflicts() -> None:
    text = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum: 0\n"
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    verdict = Diagnoser(load_signals()).conclude(request, {}, (), ()).verdict
    assert [row["signal"] for row in verdict.ruled_out] == ["bank_conflict"]
