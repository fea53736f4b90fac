"""Tables of any tool are read by their columns, and conclusive numbers give a diagnosis."""

from __future__ import annotations

import pytest

from kb.answers import ProfileRead
from kb.errors import InvalidRequest
from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.given_profile import is_profile, with_known_counters
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
    profile = read_profile(text)
    first = time_shares(profile.kernels or profile.functions)[0]
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


def test_first_level_alone_asks_for_the_next_one() -> None:
    request, read = with_known_counters(RetrieveRequest(profile=TOPLEV))
    assert read is not None and read.notes[0].startswith("measure the next level first")
    assert not Diagnoser(load_signals()).conclude(request, {}, (), ()).verdict.signals


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        (TALLY, "sync_stall"),
        (HOST_CALLS, "launch_overhead"),
        (OLD_TORCH, "compute_bound"),
        (JULIA, "launch_overhead"),
        (ASCEND, "compute_bound"),
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
    of_loads = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum: 0\n"
    text = of_loads + of_loads.replace("op_ld", "op_st")
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    verdict = Diagnoser(load_signals()).conclude(request, {}, (), ()).verdict
    assert [row["signal"] for row in verdict.ruled_out] == ["bank_conflict"]


def signals_of(text: str) -> tuple[str, ...]:
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    return Diagnoser(load_signals()).conclude(request, {}, (), ()).verdict.signal_ids


def notes_of(text: str) -> str:
    read = with_known_counters(RetrieveRequest(profile=text))[1]
    assert read is not None
    return "; ".join(read.notes)


LINES = """Step timings:
matvec_q8: 40960 x 31.25 us = 1280000 us (210.5 GFLOPS)
softmax: 4096 x 10 us = 40960 us
"""
QUOTIENTS = """conv_a: 90.0ms / 30 = 3.0ms, 75%
pool: 30.0ms / 60 = 0.5ms, 25%
"""
BARE_ROWS = """
 relu_fwd  0.10%  10.000us  0.40%  40.000us  4.000us  2.000ms  1.00%  2.000ms  200.000us  10
 gemm_f16  0.20%  20.000us  0.20%  20.000us  2.000us  9.000ms  4.50%  9.000ms  900.000us  10
"""
NSYS_TAIL = """
   0.4   41,000,000     500  82,000.0  80,000.0  70,000  99,000  1,000.0  cudaGraphInstantiate
   0.1    9,000,000   3,000   3,000.0   2,900.0   2,000   9,000    100.0  cudaEventRecord
"""
SINGLE_BLANKS = """Time(%) Time Calls Avg Min Max Name
61.00% 610.00ms 10 61.000ms 60.000ms 62.000ms stencil(float*, float*)
39.00% 390.00ms 20 19.500ms 19.000ms 20.000ms [CUDA memcpy DtoH]
"""
FLAT = """Flat profile:

  %   cumulative   self              self     total
 time   seconds   seconds    calls  ms/call  ms/call  name
 80.00      0.80     0.80      100     8.00     8.00  relax
 20.00      1.00     0.20                             main
"""
BOTH = """
sum_a  - n=128  :    CPU:   20.5 us   +/- 0.4 (min: 19 / max: 22) us     GPU:   24.1 us   +/- 0.5
sum_b  - n=256  :    CPU:   20.6 us   +/- 0.4 (min: 19 / max: 22) us     GPU:   25.0 us   +/- 0.5
"""


@pytest.mark.parametrize(
    ("text", "leading", "calls", "us"),
    [
        (LINES, "matvec_q8", 40960, 1.28e6),
        (QUOTIENTS, "conv_a", 30, 9e4),
        (BARE_ROWS, "gemm_f16", 10, 9e3),
        (NSYS_TAIL, "cudaGraphInstantiate", 500, 41e3),
        (SINGLE_BLANKS, "stencil(float*, float*)", 10, 61e4),
        (FLAT, "relax", 100, 8e5),
        (BOTH, "sum_b  - n=256", 1, 25.0),
    ],
)
def test_lines_without_header_are_read_by_arithmetic(
    text: str, leading: str, calls: float, us: float
) -> None:
    profile = read_profile(text)
    first = (profile.kernels or profile.functions)[0]
    assert (first.name, first.calls) == (leading, calls) and first.us == pytest.approx(us)


CACHE_SIMULATION = """==7== D   refs:      2,000,000,000  (1,900,000,000 rd   + 100,000,000 wr)
==7== D1  miss rate:           2.1% (          2.0%     +        4.1%  )
==7== LLd miss rate:           0.0% (          0.0%     +        0.1%  )
"""
OCCUPANCY = """kernel update_state
    5 blocks
    512 threads
    0.250 theoretical occupancy (need 40 blocks for 1.000)
"""
LEVELS = """  Metric Description         Min         Max         Avg
 Shared Memory Utilization    High (9)    Max (10)    High (9)
"""
COUNTS_IN_MARKDOWN = """
| counter | alone | with 8 others |
|---|--:|--:|
| instructions | 1,000.0 | 1,004.0 |
| **LLC-load-misses** | **2.0** | **9.5** |
"""
COUNTS_AS_CSV = """index, cycles, instructions, LLC-misses
RESULT: tree, 900.0, 210.0, 30.0
"""
PRESETS = """PAPI_TOT_CYC  :  1000000
PAPI_TOT_INS  :  2600000
PAPI_BR_MSP   :  100
PAPI_BR_INS   :  100000
"""
SCALAR_ONLY = """
| FP_ARITH_INST_RETIRED_SCALAR_DOUBLE      |  PMC1  | 500000000 |
| FP_ARITH_INST_RETIRED_256B_PACKED_DOUBLE |  PMC2  |         0 |
"""
SHARED_LINES = """  Load Operations                   :     200000
  Load Local HITM                   :      31000
"""
LAUNCHES = """     API calls:   88.00%  8.8000s   2000000  4.4000us  3.0us  9.0us  cuLaunchKernel
                    12.00%  1.2000s        40  30.000ms  1.0us  9.0ms  cuMemAlloc
"""


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        (OCCUPANCY, "grid_too_small"),
        (LEVELS, "onchip_bandwidth"),
        (COUNTS_IN_MARKDOWN, "cache_thrash"),
        (COUNTS_AS_CSV, "memory_latency"),
        (PRESETS, "compute_bound"),
        (SCALAR_ONLY, "not_vectorized"),
        (SHARED_LINES, "cache_thrash"),
        (LAUNCHES, "launch_overhead"),
        (LINES, "memory_bound"),
        (BOTH, "launch_overhead"),
    ],
)
def test_counters_of_any_layout_and_times_give_a_signal(text: str, signal: str) -> None:
    assert signals_of(text)[0] == signal


SWEEP = """       N    torch    mine
0    256.0   10.50    2.10
1    512.0   20.50    8.20
2   1024.0   40.00   30.00
"""
WAITS = """ Time (%)  Total Time (ns)  Num Calls  Avg (ns)  Name
     90.0      900,000,000         30   30,000.0  pthread_cond_timedwait
     10.0      100,000,000         10   10,000.0  ioctl
"""
HOST_ONLY = """
           Name    Self CPU %      Self CPU    # of Calls
  ProfilerStep*        60.00%       6.000ms             3
      aten::mul        40.00%       4.000ms             9
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CACHE_SIMULATION, "memory does not limit"),
        (SWEEP, "mine is 20 % of torch at N = 256 and 75 % at N = 1024"),
        (WAITS, "functions of the host and no kernel"),
        (HOST_ONLY, "no column of the device"),
    ],
)
def test_inconclusive_profile_has_a_summary(text: str, words: str) -> None:
    assert not signals_of(text)
    assert words in notes_of(text)
    read = with_known_counters(RetrieveRequest(profile=text))[1]
    assert read is not None
    assert not {"ProfilerStep*", "ioctl"} & {row["name"] for row in read.kernels}


@pytest.mark.parametrize(
    "log",
    [
        "error: ptxas exited with code 1\nwarning: 3 registers spilled\n",
        "Collecting torch==2.4\n  Downloading torch-2.4.whl (797.2 MB)\nInstalling 12 packages\n",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total)\n",
    ],
)
def test_pasted_log_with_numbers_is_not_a_profile(log: str) -> None:
    assert not is_profile(log)


NUMBERS = """Layer-time(ms)
conv_1:5.60
pool_1:0.40
conv_2:14.0
"""
LABELLED = """
    net_a  min =    5.11  max =    5.69  avg =    5.00
    net_b  min =   35.68  max =   41.72  avg =   15.00
"""
CLOCKS = """
Convert_1  EXECUTED layerType: Convert      realTime: 0:00:00.000100 cpu: 0:00:00.000100
Conv_2     EXECUTED layerType: Convolution  realTime: 0:00:00.003000 cpu: 0:00:00.003000
"""
UNITS_BELOW = """
id step   name          time   RAM BW    RAM rd
                          ms     GB/s       GiB
00 enc    encode_rows   0.05    920.1      0.04
01 dec    decode_rows   0.20    300.0      0.04
"""


@pytest.mark.parametrize(
    ("text", "leading", "us", "pct"),
    [
        (NUMBERS, "conv_2", 14e3, 70.0),
        (LABELLED, "net_b", 0.0, 75.0),
        (CLOCKS, "Conv_2     EXECUTED layerType: Convolution", 3e3, 96.77),
        (UNITS_BELOW, "decode_rows", 200.0, 80.0),
    ],
)
def test_names_with_any_column_of_numbers_are_read(
    text: str, leading: str, us: float, pct: float
) -> None:
    first = time_shares(read_profile(text).kernels)[0]
    assert (first["name"], first["us"]) == (leading, pytest.approx(us))
    assert first["pct"] == pytest.approx(pct)


STREAM = """Function    Best Rate MB/s  Avg time     Min time     Max time
Copy:           18453.5     0.008719     0.008670     0.008809
Triad:          14701.9     0.016369     0.016325     0.016434
"""
SAMPLES = """
| Self % | Symbol |
|---:|---|
| 44.10% | `relax` |
| ↳ 30.20% | `__kmp_hyper_barrier_release` |
"""
FEW_PROCESSORS = """Elapsed Time: 60.0s
Effective CPU Utilization: 2.1% (0.5 out of 24 logical CPUs)
    Wait Time with poor CPU Utilization: 900.0s (100.0% of Wait Time)
"""


@pytest.mark.parametrize(
    ("text", "signal"),
    [(STREAM, "memory_bound"), (SAMPLES, "sync_stall"), (FEW_PROCESSORS, "sync_stall")],
)
def test_rates_samples_and_idle_processors_give_a_signal(text: str, signal: str) -> None:
    assert signals_of(text)[0] == signal


def test_rate_is_compared_with_peak_of_known_chip() -> None:
    request, _ = with_known_counters(RetrieveRequest(profile="spmv: 860 GB/s, 1.2 ms\n"))
    conclude = Diagnoser(load_signals()).conclude
    facts = {"memory_bandwidth": 1e12}
    assert "memory_bound" in conclude(request, facts, ("nvidia",), ()).verdict.signal_ids


TOP_DOWN_ROW = """
 Performance counter stats for 'system wide':

      %  tma_retiring %  tma_backend_bound %  tma_frontend_bound %  tma_bad_speculation
                20.0                 60.5                    4.0                   15.5

       8.004286201 seconds time elapsed
"""
TRUSTED_BRANCHES = """ Performance counter stats for './a':
     1,000,000      branches
         1,000      branch-misses  #    0.10% of all branches
                                   #     90.0 %  tma_bad_speculation
       1.0 seconds time elapsed
"""
ROWS_OF_ONE_OPERATION = """cycles ::   219.37GFLOP/s ::  511.38GiB/s :: %fusion.1
cycles ::   274.22GFLOP/s ::  409.20GiB/s :: %fusion.2
"""


def test_row_of_numbers_below_their_names_is_read() -> None:
    assert read_profile(TOP_DOWN_ROW).metrics["tma_backend_bound"] == 60.5


def test_counted_branches_outweigh_bad_speculation() -> None:
    assert "divergence" not in signals_of(TRUSTED_BRANCHES)


def test_rates_are_numbers_in_a_second() -> None:
    request, _ = with_known_counters(RetrieveRequest(profile=ROWS_OF_ONE_OPERATION))
    assert request.metrics is not None
    assert request.metrics["achieved_flops"] == pytest.approx(274.22e9)


@pytest.mark.parametrize(
    "text", ["min: 1.95 ms\nmax: 8.28 ms\nmedian: 4.74 ms\ngemm: 9 ms\nrelu: 1 ms\n"]
)
def test_statistics_of_one_time_are_no_kernels(text: str) -> None:
    assert {row.name for row in read_profile(text).kernels} == {"gemm", "relu"}


SAMPLES_IN_MARKDOWN = """| PC | Instruction | Samples | Long Scoreboard | Barrier |
|---|---|---|---|---|
| 0x1a0 | LDG.E R4, [R2.64] | 120 | 10 | 0 |
| 0x1b0 | FFMA R6, R4, R5, R6 | 5210 | 5100 | 0 |
| 0x1c0 | BAR.SYNC 0x0 | 800 | 0 | 780 |
"""
SAMPLES_WITH_REASONS = """#     Samples  Stall reason      SASS
  1      5421  stall_long_sb     IMAD R2, R3, R4, R5
  2      2210  stall_long_sb     LDG.E R4, [R2]
  3       980  stall_barrier     BAR.SYNC 0x0
"""
REASONS_ALONE = """Stall reason            samples   %
long_scoreboard          51230   62.3
wait                     10120   12.3
barrier                   8011    9.7
"""
QUDA = (
    "tuneprofile\tquda 1.1.0\t# Last updated\n\n"
    "total time\tpercentage\tcalls\ttime / call\tvolume\tname\taux\tcomment\n"
    "12.0\t66.7\t1200\t0.01\t32x32x32x64\tWilson\tpolicy\t# 1520.33 Gflop/s, 812.4 GB/s\n"
    "6.0\t33.3\t1200\t0.005\t32x32x32x64\taxpy\tvol\t# 120.10 Gflop/s, 1350.2 GB/s\n"
)
METRICS_BY_NUMBER = """| Metric_ID | Metric | Avg | Unit | Peak | Pct of Peak |
|---|---|---|---|---|---|
| 2.1.9 | MFMA Utilization | 3.1 | Pct | 100 | 3.1 |
"""


@pytest.mark.parametrize(
    ("text", "rows"), [(SAMPLES_IN_MARKDOWN, 3), (SAMPLES_WITH_REASONS, 3), (REASONS_ALONE, 1)]
)
def test_samples_of_the_program_counter_are_rows_with_stalls(text: str, rows: int) -> None:
    profile = read_profile(text)
    assert len(profile.lines) == rows
    assert max(profile.lines, key=lambda row: row.samples).stalls["long_scoreboard"] > 5000
    assert "memory_latency" in signals_of(text)


def test_times_of_quda_are_seconds() -> None:
    leading = read_profile(QUDA).kernels[0]
    assert (leading.name, leading.us, leading.calls) == ("Wilson", 12e6, 1200)


def test_number_of_a_metric_is_not_its_name() -> None:
    request, _ = with_known_counters(RetrieveRequest(profile=METRICS_BY_NUMBER))
    assert request.metrics == {"MFMA Utilization": "3.1"}


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("Self CPU time total: 4.1ms\nSelf CUDA time total: 61.0us", "gpu_busy_pct"),
        (
            "| stall reason | per issue | share |\n|---|---|---|\n"
            "| **Long Scoreboard** (loads) | 9.1 | **70.2%** |\n| Barrier | 1.2 | 9.8% |",
            "smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct",
        ),
        (
            "16.1 Speed-of-Light\n│ Metric_ID │ Metric │ Avg │ Unit │\n"
            "│ 16.1.3 │ Coalescing │ 31.25 │ Pct of peak │",
            "load_efficiency_pct",
        ),
    ],
)
def test_metrics_without_kernels_are_read(text: str, metric: str) -> None:
    assert metric in read_profile(text).metrics


def test_percentages_of_different_things_are_no_times() -> None:
    text = "| Source | % |\n|---|---|\n| Port 0 | 71.0% |\n| Port 1 | 66.5% |\n| Split | 12.0% |"
    with pytest.raises(InvalidRequest):
        read_profile(text)


# -- unusual units, counts or separators, and pages of ncu with some columns

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
BLANKS_AND_INSTANCES = """
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
        (BLANKS_AND_INSTANCES, "gemm_tile(float*, int)", 3, 600),
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
