# ruff: noqa: E501
"""Texts of any layout: the quantities that are read from them and the signal that they show, in one
table; then what the readers say and refuse."""

from __future__ import annotations

import pytest

from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.given_profile import with_known_counters
from retrieval.diagnose.metrics import normalise, parse_quantity
from retrieval.diagnose.signals import load_signals
from retrieval.pasted import with_text
from retrieval.profiles.program import completed
from retrieval.profiles.tables import column_names
from retrieval.request import RetrieveRequest

DIAGNOSER = Diagnoser(load_signals())


def _asked(text: str) -> tuple[str, list[str], dict[str, float], tuple[str, ...]]:
    """The kind of the profile, its signals, its metrics by canonical name, and its notes."""
    request, read = with_known_counters(RetrieveRequest(**with_text({}, text)))
    verdict = DIAGNOSER.conclude(request, {}, [], []).verdict
    metrics = dict(normalise(request.metrics or {}).values)
    return read.kind if read else "", [*verdict.signal_ids], metrics, read.notes if read else ()


HALIDE = """bilateral
 total time: 181.7 ms  samples: 169  runs: 10  time/run: 18.17 ms
 average threads used: 3.2
  grid:                  12.011ms   (66%)   threads: 1.000  peak: 22571024 num: 10        avg: 22571024
  blurx:                 4.030ms    (22%)   threads: 14.100 peak: 45064320 num: 10        avg: 45064320
  output:                1.990ms    (11%)   threads: 7.500  stack: 4096
"""
HALIDE_ALLOCS = """local
  gray:                  1.640ms   (6%)    threads: 32.187 heap: 30625808 allocs: 11     avg: 30625808
  down[1]:               9.270ms   (33%)   threads: 2.222  heap: 7645200  allocs: 11     avg: 7645200
  down[2]:               3.020ms   (11%)   threads: 5.333  heap: 1905680  allocs: 11     avg: 1905680
"""
HALIDE_TABLE = """nl_means
 total time: 94.709183 ms  samples: 66  runs: 11  time per run: 8.609925 ms
  name                   │ time     percent │ active│ heap │ peak │ avg  │
                         │                  │threads│allocs│  mem │  mem │
  malloc                 │   0.01ms ( 0.1%) │  1.00 │      │      │      │
  blur_d_y               │   2.16ms (25.1%) │ 60.00 │  110 │   22M│   20M│
  d                      │   4.97ms (57.8%) │ 12.10 │  110 │   10M│   10M│
"""
STAGES = """load:      12.1ms   threads: 1.0  bytes: 8388608
filter:    4.2ms    threads: 15.8 bytes: 33554432
store:     3.9ms    threads: 15.1 bytes: 33554432
"""
MARKDOWN_STAGES = """| stage | time (ms) | threads | peak |
|---|---|---|---|
| decode | 41.2 | 1.1 | 22571024 |
| resize | 12.1 | 15.4 | 45064320 |
"""
CUT = """Host-side activity: calling CUDA APIs took 3.1 s (74.69% of the trace)
│ Time (%) │      Time │ Calls │  Avg time │  Min time │  Max time │ Name      ⋯
│   72.43% │     3.0 s │ 15256 │ 196.97 µs │   2.38 µs │    2.72 s │ cuLaunchK ⋯
│    1.34% │  55.78 ms │ 14646 │   3.81 µs │   2.86 µs │  31.71 µs │ cuMemAllo ⋯
│    0.28% │  11.71 ms │  4692 │    2.5 µs │   1.91 µs │  16.45 µs │ cuMemcpyH ⋯
"""
CALLS = """Profiler ran for 12.0 ms, capturing 3651 events.

Host-side activity: calling HIP APIs took 7.1 ms (59.1% of the trace)
│ Time (%) │ Total time │ Calls │ Time distribution                    │ Name                  │
│   28.28% │    3.39 ms │   300 │  11.31 µs ± 0.62   (   3.1 ‥ 15.02)  │ hipModuleLaunchKernel │
│   16.11% │    1.93 ms │   300 │   6.43 µs ± 0.22   (  1.43 ‥ 3.81)   │ hipMallocAsync        │
"""
TENSIX = """OP CODE,OP TYPE,GLOBAL CALL COUNT,DEVICE ID,CORE COUNT,HOST DURATION [ns],DEVICE FW DURATION [ns],DEVICE KERNEL DURATION [ns],OP TO OP LATENCY [ns],PM IDEAL [ns],PM FPU UTIL (%),DRAM BW UTIL (%)
Matmul,tt_dnn_device,1024,0,8,20011,1210223,1208823,1200,90112,7.4,9.1
LayerNorm,tt_dnn_device,1025,0,64,18210,40211,39821,980,20011,12.0,22.0
"""
GAPS = """OP CODE,CORE COUNT,DEVICE KERNEL DURATION [ns],OP TO OP LATENCY [ns],HOST DURATION [ns]
Add,64,4100,120034,90012
Mul,64,3900,118221,88021
Reshape,64,2100,140023,95012
"""
NPU = """Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),Task Wait Time(us),Block Dim,aicore_time(us),aic_total_cycles,aic_mac_ratio,aic_mte2_ratio,aiv_vec_ratio,aiv_mte2_ratio
0,4294967295,12,2,aclnnMatmul_MatMulCommon_MatMulV2,MatMulV2,AI_CORE,1712.1,1210.55,2.1,24,1200.1,220012,0.118,0.962,0,0
0,4294967295,13,2,aclnnAdd_AddAiCore_Add,Add,AI_VECTOR_CORE,1725.1,12.40,1.0,48,0,0,0,0,0.11,0.81
"""
NPU_LIST = """Operator: flash_attention
Task Duration(us): 812.4
Block Dim: 24
aic_mac_ratio: 0.09
aiv_vec_ratio: 0.12
aiv_scalar_ratio: 0.71
aic_mte2_ratio: 0.14
"""
TASKS = """XVE tasks
Computing Task    Total Time  SIMD Width  Peak Occupancy(%)  Occupancy(%)
----------------  ----------  ----------  -----------------  ------------
rbf_kernel            3.912s          16              25.0%         21.9%
"""
PEAKS = """| kernel | time (us) | TFLOP/s | % of peak |
|---|---|---|---|
| ours | 812.4 | **121.0** | **12%** |
| cublas | 120.2 | 812.0 | 82% |
"""
LIKWID = """|               Metric              | HWThread 0 |
|        Runtime (RDTSC) [s]        |     4.0012 |
|                CPI                |     4.9812 |
|  Memory read bandwidth [MBytes/s] | 98120.4400 |
| Memory write bandwidth [MBytes/s] | 41200.1100 |
|    Memory bandwidth [MBytes/s]    | 139320.550 |
|    Memory data volume [GBytes]    |   557.4400 |
"""
UNEQUAL = """|                    Metric                   |      Sum     |      Min     |      Max     |      Avg     |
|         Runtime unhalted [s] STAT           |      62.1201 |       0.8010 |      16.4021 |       7.7650 |
|              CPI STAT                       |      12.3001 |       0.6120 |       2.9010 |       1.5375 |
"""
FP64 = """`ncu` on the kernel:

| metric | update |
|---|--:|
| DRAM utilization | **12.5%** |
| FP64 pipe utilization | **89%** |
| SM compute | 87% |
"""
BULLETS = """* Tensor pipe: **7.1 %**
* L1/TEX hit rate: 3.2%
* DRAM bandwidth utilisation: 18 %
* Warp stall (barrier): 61%
"""
BEFORE = """| Metric | Before | After |
|---|---|---|
| DRAM throughput | 91.2% | 90.8% |
| SM throughput | 20.1% | 22.0% |
"""
WORDS = "- HBM utilisation: 93 %\n- compute utilisation: 21 %\n- theoretical occupancy: 75 %\n"
HIT_RATES = (
    "| L2 hit rate | 97% |\n| DRAM busy | 9% |\n| SM busy | 91% |\n| Theor. occupancy | 50% |\n"
)
SCRIPT = """LDS:  32768, num_warps:  4
VGPRS: 256 (spill: 3)
occ: 2 waves/SIMD (occ_LDS: 2, occ_vgpr: 2)
perf: 127.4 tflops
"""
RADEON = "Shader Stats: SGPRS: 40 VGPRS: 84 Code Size: 9880 LDS: 0 Scratch: 0 Max Waves: 2 Spilled SGPRs: 0 Spilled VGPRs: 0\n"
ACO = """compute shader:
   Instructions: 2130
   SGPRs: 104
   VGPRs: 256
   Spilled SGPRs: 0
   Spilled VGPRs: 61
   Code size: 17204
   LDS size: 0
   Scratch size: 15616
   Max Waves: 4
"""
INTEL = "CS SIMD8 shader: 1820 inst, 4 loops, 52130 cycles, 118:230 spills:fills, 96 sends, scheduled with mode none\n"
MALI = """Main shader
===========

Work registers: 64 (100% used at 50% occupancy)
Uniform registers: 40 (31% used)
Stack use: 112 bytes (spilling)
16-bit arithmetic: 0%

                                A      LS       V       T    Bound
Total instruction cycles:    5.20   38.00    0.00    0.00       LS
"""
ADRENO = """ALU instruction count - 32 bit : 812
Total register footprint per shader instance : 48
Fiber occupancy percent : 25
Scratch memory usage per shader instance : 512
"""
RGP = """Wavefront occupancy: 4 out of 16
Vector registers: 168 (168 allocated)
Scalar registers: 128
LDS: 32768 bytes per thread group
"""
PORTS = """Combined Analysis Report
------------------------
                               Port pressure in cycles
     |  0   - 0DV  |  1   |  2   -  2D  |  3   -  3D  |  4   |  5   |  6   |  7   ||  CP  | LCD  |
-----------------------------------------------------------------------------------------------
"""
CHAIN = (
    PORTS
    + """   5 |             | 1.00 |             |             |      |      |      |      ||  3.0 |  3.0 |   imulq   %rdx, %rax
   9 | 0.33        | 0.00 |             |             |      | 0.34 | 0.33 |      ||  0.0 |  1.0 |   addq    %rcx, %rax

       1.00          1.00                                      1.00   1.00            3     4.0  
"""
)
DIVIDE = (
    PORTS
    + """   2 | 8.00   16.0 |      | 0.50   0.50 | 0.50   0.50 |      |      |      |      || 14.0 |      |   vdivpd      ymm0, ymm1, [rax]
   4 |             |      |             |             | 1.00 |      |      |      ||      |      |   vmovupd     [rbx], ymm2

       8.50   16.0   0.50   0.50   0.50   0.50   0.50   1.00                           18.0   1.0  
"""
)
FULL = (
    PORTS
    + """   1 | 0.00        |      |             |             |      |      | 1.00 |      ||  1.0 |  1.0 |   shl         rax, 5
   4 |             |      | 2.50   2.50 | 2.50   2.50 |      |      |      |      ||  4.0 |      |   movsd       xmm7, QWORD PTR [rax+r8+16]

       1.00          1.00   2.50   2.50   2.50   2.50          1.00   1.00           20.0   1.0  
"""
)
PYTHON = """         1204 function calls in 3.345 seconds

   Ordered by: internal time

   ncalls  tottime  percall  cumtime  percall filename:lineno(function)
      300    2.911    0.010    2.911    0.010 {built-in method torch._C._cuda_synchronize}
      300    0.212    0.001    0.212    0.001 {method 'to' of 'torch._C._TensorBase' objects}
      300    0.104    0.000    3.227    0.011 train.py:41(step)
"""
SAMPLED = """  %Own   %Total  OwnTime  TotalTime  Function (filename)
 62.00%  62.00%    7.44s     7.44s   collate (dataset.py)
 20.00%  95.00%    2.40s    11.40s   __getitem__ (dataset.py)
"""
WAITING = """Top Hotspots
Function                       Module        CPU Time  % of CPU Time(%)
-----------------------------  ------------  --------  ----------------
__kmp_fork_barrier             libiomp5.so    66.001s             69.3%
compute_tile                   a.out          18.410s             19.3%
"""
SHARED = """  Load Operations                   :     605111
  Load L1D hit                      :      75878
  Load Local HITM                   :     468123
"""
ANNOTATED = """Samples: 12K of event 'cycles', 4000 Hz
Percent│     vmovups (%rax,%rdx,4),%ymm1
  0.31 │     vfmadd231ps (%rcx),%ymm0,%ymm1
 71.20 │     vdivps %ymm2,%ymm1,%ymm3
 18.11 │     add $0x20,%rdx
"""
RUNTIME = """[{"cat":"Node","pid":1,"tid":1,"dur":4102,"ts":10,"ph":"X","name":"/model/MatMul_kernel_time","args":{"op_name":"MatMul"}},
{"cat":"Node","pid":1,"tid":1,"dur":22,"ts":9000,"ph":"X","name":"/model/Add_kernel_time","args":{"op_name":"Add"}}]
"""

MPI = """User time: 7.1%
MPI time : 92.9% [Overhead:92.9% Blocking:0.00%]
Rank Proc CPU Time User Portion
0 0.050000 0.012000( 24.00%)
"""
STALLED = """Kernel, GpuTime[ns], GpuCoreClocks[cycles], XVE_ACTIVE[%], XVE_STALL[%], XVE_THREADS_OCCUPANCY_ALL[%]
gather, 2048000, 3276800, 21.5, 66.0, 88.5
"""
TITLED = """Time unit: ms
Event           Calls   Total    Min.    Max.    Ave.
mul_grad        4000    1200.0   0.17    5.7     0.3
norm_grad       1000    1100.0   0.78    58.5    1.1
"""
TIMELINE = """computation_time:  210.2 ms (71.9%)
busy_time: 212.6 ms (72.6%)
idle_time: 80.5 ms (27.4%)
"""
REPLAYS = "ncu says: 71% of the kernel's shared wavefronts were conflict replays, L1/TEX at 80% against 7% compute.\n"
REACHED = "Over the busy time it moves 512 GB/s, 71.5% of achievable bandwidth.\n"
SHARED_COLUMNS = """| kernel | cost | allocated registers | spilled |
|---|---:|---:|---:|
| `decode_p1` | **67.8%** | 60 | 12 |
| `qmv_fast` | 18.5% | 115 | 0 |
"""
CALCULATED = """VGPRs:          200
LDS:            16384 bytes
Occupancy:      2 waves/EU (8 waves/CU)
Limited by:     VGPRs
"""
CYCLES_OF_ONE = """+----------------------------------+-----------+
|               Metric             |   Core 0  |
+----------------------------------+-----------+
|                CPI               |    2.9    |
| Memory read bandwidth [MBytes/s] |   51.5    |
+----------------------------------+-----------+
"""
RANKS = """| region | Min time/rank | Max time/rank | Avg time/rank |
|---|---|---|---|
| solve | 1.1 | 9.0 | 4.5 |
"""

RECORDS = """Metric: CompileTime
  TotalSamples: 80
  Accumulator: 10m20s130ms740.4us
  Mean: 07s751ms634.2us
Metric: XrtExecute
  TotalSamples: 2500
  Accumulator: 13m20s100ms170.0us
  Mean: 320ms040.1us
"""
REGIONS = """Elapsed time: 2.6 [s]

- create_plan[fft]
 (Region)   2.499047 2 1.249524 2531.7 93.9
- exec_plan[fft]
 (Region)   0.023082 2002 0.000012 23.3 0.8
"""

CASES: list[tuple[str, str, dict[str, float]]] = [
    (HALIDE, "load_imbalance", {"few_threads_pct": 66.6, "kernel_runs": 1}),
    (HALIDE_ALLOCS, "load_imbalance", {"kernel_runs": 1}),
    (HALIDE_TABLE, "load_imbalance", {}),
    (STAGES, "load_imbalance", {}),
    (MARKDOWN_STAGES, "load_imbalance", {}),
    (CUT, "launch_overhead", {"api_trace_pct": 74.69}),
    (CALLS, "launch_overhead", {"api_trace_pct": 59.1}),
    (TENSIX, "grid_too_small", {"duration_us": 1210.223, "tensor_pipe_pct": 7.4, "workgroups": 8}),
    (GAPS, "launch_overhead", {"gpu_busy_pct": 2.6}),
    (NPU, "memory_bound", {"duration_us": 1210.55, "load_engine_pct": 96.2}),
    (NPU_LIST, "instruction_mix", {"scalar_unit_pct": 71.0}),
    (TASKS, "occupancy_limited", {"occupancy_pct": 21.9}),
    (PEAKS, "", {"achieved_flops": 121e12}),
    (LIKWID, "latency_bound", {"achieved_bytes_per_s": 139.32055e9}),
    (UNEQUAL, "load_imbalance", {"ipc": 1 / 1.5375}),
    (RANKS, "load_imbalance", {"thread_imbalance_pct": 50.0}),
    (FP64, "accidental_fp64", {"fp64_pipe_pct": 89.0}),
    (BULLETS, "sync_stall", {"tensor_pipe_pct": 7.1}),
    (BEFORE, "memory_bound", {"dram_throughput_pct": 91.2}),
    (WORDS, "memory_bound", {"theoretical_occupancy_pct": 75.0}),
    (HIT_RATES, "compute_bound", {"l2_hit_pct": 97.0}),
    (REPLAYS, "bank_conflict", {"bank_conflict_ratio": 0.71, "l1_throughput_pct": 80.0}),
    (REACHED, "memory_bound", {"dram_throughput_pct": 71.5}),
    (MPI, "sync_stall", {"communication_pct": 92.9}),
    (STALLED, "latency_bound", {"unit_stalled_pct": 66.0, "occupancy_pct": 88.5}),
    (TITLED, "", {"duration_us": 300.0, "kernel_runs": 4000}),
    (TIMELINE, "", {"gpu_busy_pct": 72.6}),
    (CYCLES_OF_ONE, "latency_bound", {"cpi": 2.9}),
    (SHARED_COLUMNS, "register_spill", {"registers_per_thread": 60, "spilled_registers": 12}),
    (
        CALCULATED,
        "occupancy_limited",
        {"registers_per_thread": 200, "theoretical_occupancy_pct": 25},
    ),
    (SCRIPT, "register_spill", {"registers_per_thread": 256, "spilled_registers": 3}),
    (RADEON, "occupancy_limited", {"registers_per_thread": 84, "theoretical_occupancy_pct": 25}),
    (ACO, "register_spill", {"registers_per_thread": 256, "spilled_registers": 61}),
    (INTEL, "register_spill", {"spilled_registers": 118}),
    (MALI, "register_spill", {"scratch_bytes": 112, "theoretical_occupancy_pct": 50}),
    (ADRENO, "register_spill", {"registers_per_thread": 48, "scratch_bytes": 512}),
    (RGP, "occupancy_limited", {"registers_per_thread": 168, "theoretical_occupancy_pct": 25}),
    (CHAIN, "latency_bound", {}),
    (DIVIDE, "instruction_mix", {}),
    (FULL, "compute_bound", {}),
    (WAITING, "sync_stall", {}),
    (SHARED, "cache_thrash", {}),
    (ANNOTATED, "instruction_mix", {}),
    (RUNTIME, "", {}),
]


@pytest.mark.parametrize(("text", "signal", "metrics"), CASES)
def test_quantities_of_a_text_and_their_signal(
    text: str, signal: str, metrics: dict[str, float]
) -> None:
    _, signals, found, _ = _asked(text)
    assert (signals[0] if signals else "") == signal
    assert {name: found.get(name) for name in metrics} == pytest.approx(metrics)
    assert found.get("products_pct", 100.0) > 10


@pytest.mark.parametrize("text", [FP64, REPLAYS, REACHED, WORDS])
def test_findings_of_names_in_words_are_no_certain_ones(text: str) -> None:
    request, _ = with_known_counters(RetrieveRequest(**with_text({}, text)))
    findings = DIAGNOSER.conclude(request, {}, [], []).verdict.signals
    assert findings and all(finding.confidence > "A" for finding in findings)


COLLECTED = """ Time  (median):     2.7 s                ┊ GC (median):    19.9%
 Time  (mean ± dev):   2.7 s ± 63.7 ms      ┊ GC (mean ± dev):  19.9% ±  0.8%
 Memory estimate: 6.96 GiB, allocs estimate: 1440.
"""
OF_PHASES = "[ROOT][RPC (execute) time] BACKEND : 3011 US\n[ROOT][Accelerator (execute) time] BACKEND : 2650 US\n"


@pytest.mark.parametrize(
    ("text", "said"), [(COLLECTED, "garbage collector"), (OF_PHASES, "3.01 ms")]
)
def test_numbers_that_decide_nothing_are_said(text: str, said: str) -> None:
    for given in (with_text({}, text), {"profile": text}):
        request, read = with_known_counters(RetrieveRequest(**given))
        verdict = DIAGNOSER.conclude(request, {}, [], []).verdict
        assert not verdict.signals
        assert said in " ".join((*request.notes, *(read.notes if read else ()), verdict.hint))


@pytest.mark.parametrize(
    "text",
    [
        "bound with 1 core(s)\n2.0 GFLOP/s due to the L1 transfer\n",
        "cudaFreeHost  0.000038\nphase_one  1.263474 1.391103 110.1\n  cudaLaunchKernel  0.78 1.39 178.0\n",
        "reaching ~10% compute throughput and 6% memory throughput at best, with an A100\n",
    ],
)
def test_columns_without_a_unit_are_not_guessed(text: str) -> None:
    _, signals, metrics, _ = _asked(text)
    assert (
        not {"duration_us", "alloc_api_pct"} & metrics.keys() and "launch_overhead" not in signals
    )


def test_a_count_that_makes_a_run_impossibly_short_is_none() -> None:
    _, signals, metrics, _ = _asked(
        "".join(f"conv{n}: {n}.2ms {n}% 2257102{n}\n" for n in range(1, 6))
    )
    assert metrics["kernel_runs"] == 1 and "launch_overhead" not in signals


@pytest.mark.parametrize(
    ("cut", "whole"),
    [
        ("cuLaunchK ⋯", "cuLaunchKernel"),
        ("cuMemAllo ⋯", "cuMemAlloc"),
        ("cudaStreamSyn...", "cudaStreamSynchronize"),
        ("hipModuleLau…", "hipModuleLaunchKernel"),
        ("zeCommandListAppendLau...", "zeCommandListAppendLaunchKernel"),
        ("cudaSomethingEl...", "cudaSomethingEl"),
        ("gemm_kernel...", "gemm_kernel..."),
    ],
)
def test_cut_names_of_functions_are_completed(cut: str, whole: str) -> None:
    assert completed(cut) == whole


def test_calls_that_wait_for_the_device_are_no_overhead() -> None:
    waiting = CALLS.replace("hipModuleLaunchKernel", "hipStreamSynchronize ").replace("300", "400")
    assert _asked(waiting)[1] == []


@pytest.mark.parametrize(
    "text",
    [
        'the tool says "|    Memory bandwidth [MBytes/s]    | 3.349518e+15 |"\nCPU clock: 2.60 GHz\n',
        "|  Memory bandwidth [MBytes/s] | 1.88e+19 |\n| CPI | 0.8 |\n",
        "| Memory bandwidth [MBytes/s] STAT | 2.1e+16 | 1e15 | 2e15 | 1e15 |\n",
        "copy: 184467440737095516 GB/s\nscale: 12.1 GB/s\nadd: 11.9 GB/s\ntriad: 12.0 GB/s\n",
        "L2 hit rate: 184467440737 %\nDRAM throughput: 71 %\nSM throughput: 20 %\n",
    ],
)
def test_impossible_rates_are_errors_of_the_measurement(text: str) -> None:
    assert _asked(text)[1] == ["measurement_error"]


def test_false_sharing_is_said_with_its_remedy() -> None:
    assert "false sharing" in _asked(SHARED)[3][0]


@pytest.mark.parametrize(
    ("text", "said"),
    [(PYTHON, "the host waits for 90.2 %"), (SAMPLED, "collate (dataset.py) 62 %")],
)
def test_functions_of_python_are_of_the_host(text: str, said: str) -> None:
    _, signals, metrics, notes = _asked(text)
    assert not signals and "kernel_runs" not in metrics
    assert any(said in note for note in notes)


@pytest.mark.parametrize(
    ("text", "value"),
    [("121.0 TFLOP/s", 121e12), ("3 GFLOPS", 3e9), ("2.5 GFLOPs", 2.5e9), ("7 FLOP/s", 7.0)],
)
def test_rates_of_operations_have_prefixes(text: str, value: float) -> None:
    assert parse_quantity(text, "1") == pytest.approx(value)


MONITOR = """veperf - vector engine monitor
  PID   FREQ   ELAPSED   MOPS      MFLOPS   AVLEN  VOPR
 4711   1400   12.21     55873.1   2011.3   211.4  97.3
 4712   1400   12.20     55871.9   2010.8   211.4  97.3
"""
PROSE = """the kernel runs much slower than we expected
it took 41 ms with 8 warps and 3 stages
"""


def test_number_below_a_head_without_unit_is_no_count_or_time() -> None:
    _, signals, metrics, _ = _asked(MONITOR)
    assert not {"kernel_runs", "duration_us"} & metrics.keys() and not signals


def test_names_of_columns_have_rows_below() -> None:
    assert column_names(MONITOR).split()[:2] == ["PID", "FREQ"]
    assert column_names(PROSE) == ""
    assert column_names(MONITOR.splitlines()[1]) == ""


WORKING_SETS = """size_KiB  ns_per_load  GB/s_per_core
16        1.2          92
32        1.2          91
48        1.3          90
64        3.9          44
512       4.1          43
2048      4.4          41
4096      21.8         14
32768     24.0         13
"""


def test_sweep_states_its_steps_and_compares_like_units_alone() -> None:
    request, read = with_known_counters(RetrieveRequest(**with_text({}, WORKING_SETS)))
    notes = " ".join(read.notes if read else request.notes)
    assert "steps between size_KiB 48 and 64 (3 times), 2048 and 4096 (5 times)" in notes
    assert "% of ns_per_load" not in notes
