"""Kernel tables of unusual units, counts or separators, and pages of ncu with some columns."""

import pytest

from kb.answers import ProfileRead
from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.given_profile import with_known_counters
from retrieval.diagnose.signals import load_signals
from retrieval.profiles.reader import read_profile
from retrieval.request import RetrieveRequest

DIAGNOSER = Diagnoser(load_signals())


def read(text: str) -> tuple[tuple[str, ...], ProfileRead]:
    """The signals of a profile, and the profile."""
    request, profile = with_known_counters(RetrieveRequest(profile=text))
    assert profile is not None
    return DIAGNOSER.conclude(request, {}, [], []).verdict.signal_ids, profile


TAICHI_COUNT = """
=========================================================================
Kernel Profiler(count, default) @ CUDA on NVIDIA T4
=========================================================================
[      %     total   count |      min       avg       max   ] Kernel name
-------------------------------------------------------------------------
[ 75.00%   0.300 s    100x |    2.900     3.000     3.100 ms] advect_c8_0_kernel
[ 25.00%   0.100 s    200x |    0.400     0.500     0.600 ms] project_c9_0_kernel
-------------------------------------------------------------------------
[100.00%] Total execution time:   0.400 s   number of results: 2
"""
TAICHI_TRACE = """
Kernel Profiler(trace, default) @ CUDA
[  START.TIME | ELAPSED.TIME ] Kernel name
[    0.000 ms |     0.900 ms ] jacobi_c4_0_kernel
[    1.000 ms |     0.100 ms ] clear_c5_0_kernel
"""
TITLE_UNIT = """
CUDA Kernel Statistics (nanoseconds)

Time(%)  Total Time  Instances  Average  Minimum  Maximum  Name
-------  ----------  ---------  -------  -------  -------  ---------
   80.0     8000000        100    80000    70000    90000  conv_rows
   20.0     2000000        100    20000    10000    30000  bias_relu
"""
SINGLE_BLANKS = """
Time(%) Total Time (ns) Instances Avg (ns) Name
60.0 600000 3 200000 gemm_tile(float*, int)
40.0 400000 2 200000 softmax_rows(float*, int)
"""
UNITS_AND_BARS = """
                          DEVICE STATISTICS
| Kernel      |  Calls | Total(s) | Max(s)   | Min(s)   |
| gather_rows |   2000 | 4.500000 | 0.003000 | 0.002000 |
| scan_block  |    100 | 0.010000 | 0.000200 | 0.000050 |
"""


@pytest.mark.parametrize(
    ("text", "name", "calls", "us"),
    [
        (UNITS_AND_BARS, "gather_rows", 2000, 4_500_000),
        (TAICHI_COUNT, "advect_c8_0_kernel", 100, 300_000),
        (TITLE_UNIT, "conv_rows", 100, 8_000),
        (SINGLE_BLANKS, "gemm_tile(float*, int)", 3, 600),
    ],
)
def test_leading_kernel_of_a_table(text: str, name: str, calls: int, us: float) -> None:
    profile = read_profile(text)
    assert profile is not None
    first = profile.kernels[0]
    assert (first.name, first.calls) == (name, calls)
    assert first.us == pytest.approx(us, rel=0.01)


def test_trace_with_times_in_brackets() -> None:
    profile = read_profile(TAICHI_TRACE)
    assert profile is not None
    assert profile.kernels[0].name == "jacobi_c4_0_kernel"


def test_page_of_ncu_without_ids_and_without_conflicts() -> None:
    text = (
        '"Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        '"transpose","Duration","us","412"\n'
        '"transpose","l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum","","0"\n'
        '"transpose","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","91.2"\n'
    )
    signals, profile = read(text)
    assert profile.kernels[0]["name"] == "transpose"
    assert "no bank conflict" in " ".join(profile.notes)
    assert "bank_conflict" not in signals
    assert signals[0] == "memory_bound"


def test_transfers_that_take_nearly_all_time() -> None:
    text = (
        "            Type  Time(%)      Time     Calls       Avg       Min       Max  Name\n"
        " GPU activities:   97.40%  974.00ms        20  48.700ms  48.000ms  49.000ms  "
        "[CUDA memcpy HtoD]\n"
        "                    2.60%  26.000ms        20  1.3000ms  1.2000ms  1.4000ms  "
        "scale_rows(float*, int)\n"
    )
    signals, profile = read(text)
    assert "memory_bound" in signals
    assert "copies" in " ".join(profile.notes) or "transfers" in " ".join(profile.notes)
    assert "launch_overhead" not in signals


def test_csv_of_counters_below_a_command_line() -> None:
    text = (
        "$ rocprof -i counters.txt ./stencil 512\n"
        '"Index","KernelName","grd","wgr","VALUBusy","MemUnitBusy","MemUnitStalled"\n'
        '0,"stencil7.kd",262144,256,9.1,97.5,61.0\n'
    )
    signals, _ = read(text)
    assert signals
    assert signals[0] in {"memory_bound", "memory_latency"}
