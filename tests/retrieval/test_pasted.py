"""The kind of a pasted text is recognised; profiles in it are read and diagnosed."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from kb.errors import InvalidRequest
from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.given_profile import with_known_counters
from retrieval.diagnose.signals import load_signals
from retrieval.pasted import pasted, with_text
from retrieval.profiles.nsight import summary_of_database
from retrieval.profiles.reader import read_profile
from retrieval.request import RetrieveRequest

TRITON = "@triton.jit\ndef kernel(x_ptr, n):\n    for i in range(4):\n        x = tl.load(x_ptr)\n"
CUDA = "#include <cuda.h>\n__global__ void k(float* a) {\n  a[threadIdx.x] = 1;\n}\n"
TRACE = 'Traceback (most recent call last):\n  File "a.py", line 3\nRuntimeError: CUDA error\n'


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("query", "Why is my kernel slow on an H100?"),
        ("query", "overlap global loads with matrix instructions"),
        ("query", "What does the error C7514 mean?"),
        ("query", "bank conflict"),
        ("signal", " bank_conflict\n"),
        ("metrics", "dram__throughput.avg.pct 91\nsm__throughput.avg.pct = 20 %"),
        ("metrics", '{"dram_throughput_pct": 91}'),
        ("log", "ptxas error : Entry function uses too much shared data (0x41000 bytes)"),
        ("log", "triton.runtime.errors.OutOfResources: out of resource: shared memory"),
        ("log", TRACE),
        ("log", TRITON + TRACE),
        ("log", CUDA + "\nCUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: too many blocks in a launch\n"),
        ("log", "hipErrorOutOfMemory\n\n" + TRITON),
        ("log", "a plain line of a tool\n" * 50),
        ("draft", TRITON),
        ("draft", CUDA),
        ("draft", CUDA + '  if (failed) print("out of memory");\n'),
    ],
)
def test_kind_of_a_pasted_text(field: str, text: str) -> None:
    assert pasted(text)[0] == field


def test_metrics_are_read_from_pairs() -> None:
    for text in ("a.pct 91\nb: 20 %", "a.pct 91, b: 20 %"):
        assert pasted(text) == ("metrics", {"a.pct": "91", "b": "20"})


def test_code_alone_becomes_a_draft() -> None:
    assert with_text({"hardware": "h100"}, CUDA.replace("k(", "row_softmax_kernel(")) == {
        "hardware": "h100",
        "draft": CUDA.replace("k(", "row_softmax_kernel("),
        "task": "speed_up",
        "language": "cuda",
        "op": "softmax",
    }
    assert with_text({}, TRITON)["query"] == "kernel"
    assert with_text({"signal": "memory_bound"}, TRITON).keys() == {"signal", "draft"}


SAXPY = """__global__ void saxpy(float* y, const float* x, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}"""
ROW_SUM = """@triton.jit
def k(x, out, n: tl.constexpr):
    a = tl.load(x + tl.arange(0, n))
    tl.store(out, tl.sum(a, 0))"""


def test_code_without_the_name_of_an_operator_is_known_by_what_it_computes() -> None:
    about = with_text({}, SAXPY)
    assert (about["op"], about["language"], about["draft"]) == ("elementwise", "cuda", SAXPY)
    assert "op" not in with_text({}, ROW_SUM)


def test_pasted_text_that_repeats_given_field_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="log is given too"):
        with_text({"log": "error: a"}, TRACE)


@pytest.mark.parametrize("between", ["\n", " ", "a["])
def test_kind_of_hostile_text_is_found_in_linear_time(between: str) -> None:
    between *= 200_000 // len(between)
    assert with_text({}, f"error: a{between}b") == {"log": f"error: a{between}b"}
    code = with_text({}, f"import triton\nimport torch\ndef a{between}b():\n")
    assert code["draft"]


# -- profiles of other tools: each is read and diagnosed

NVPROF = """==77== NVPROF is profiling process 77, command: ./mm
==77== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   59.68%  254.32ms         2  127.16ms  127.10ms  127.21ms  mmul(float const *)
                   26.54%  113.11ms         2  56.555ms  56.464ms  56.646ms  [CUDA memcpy HtoD]
                   13.78%  58.721ms         1  58.721ms  58.721ms  58.721ms  [CUDA memcpy DtoH]
      API calls:   71.95%  426.98ms         3  142.33ms  56.685ms  313.49ms  cudaMemcpy
"""
METRICS = """==9== Profiling application: ./a.out
==9== Metric result:
Invocations                Metric Name                    Metric Description  Min  Max  Avg
Device "Tesla V100 (0)"
    Kernel: add(float*)
          1                gld_efficiency      Global Memory Load Efficiency  12.50%  12.50%  12.50%
"""
UNITRACE = """
=== Device Timing Summary ===

                Total Execution Time (ns):           400000
    Total Device Time for L0 backend (ns):            60000

== L0 Backend ==

          Kernel,   Calls,   Time (ns),   Time (%),  Average (ns),  Min (ns),  Max (ns)
  "gemv<float, 4>(int, int)::{lambda()#1}",  20,  50000,  83.3,  2500,  2400,  2700
  zeCommandListAppendMemoryCopy(M2D), 4, 10000, 16.7, 2500, 2400, 2600

=== Kernel Properties ===

          Kernel, Private Memory Per Thread, Spill Memory Per Thread
  "gemv<float, 4>(int, int)::{lambda()#1}", 0, 8192
"""
VTUNE = """Elapsed Time: 3.722s
    CPI Rate: 2.5
    Back-End Bound: 69.8% of Pipeline Slots
     | A significant portion of pipeline slots are remaining empty.
        Memory Bound: 52.3% of Pipeline Slots
            L1 Bound: 5.0% of Clockticks
            DRAM Bound: 41.5% of Clockticks
                Memory Bandwidth: 60.1% of Clockticks
                Memory Latency: 10.0% of Clockticks
        Core Bound: 17.5% of Pipeline Slots
"""
HOTSPOTS = """
Function       Module   CPU Time  Instructions Retired
-------------  -------  --------  --------------------
multiply1      mm.icc    22.501s        60,000,000,000
[vmlinux]      vmlinux    0.310s           100,000,000
"""
TREE = """
          _     _
12.000 ROOT
├─ 9.500 attn_fwd
└─ 2.500 scope
   └─ 2.500 softmax_kernel

Legend (Metric: time/ms (inc) Min: 2.50 Max: 12.00)
"""
LEAF = {
    "name": "fusion.1",
    "metrics": {"rawTime": 5e9, "occurrences": 10, "flops": 0.05, "bandwidthUtils": [0.85, 0.1]},
    "xla": {"category": "loop fusion"},
}
OPS = {
    "byCategory": {
        "name": "by_category",
        "metrics": {"rawTime": 6e9},
        "children": [
            {
                "name": "fusion",
                "metrics": {"rawTime": 6e9},
                "children": [LEAF, {"name": "dot.2", "metrics": {"rawTime": 1e9, "flops": 0.9}}],
            }
        ],
    }
}
HLO = """Rank,HLO op category,HLO op name,#Occurrences,Total self time (us),Bound by
1,loop fusion,fusion.7,10,5000,HBM
2,convolution,conv.1,10,1200,Compute
"""
XCODE = """Index,Encoder Label,GPU Time (ms),ALU Limiter,Buffer Read Limiter,Kernel Occupancy
0,scale,0.4,12.5%,20%,90%
1,gemv,2.5,18.0%,88.1%,45%
"""
AMD = """ Performance counter stats for './gemm':

     5,036,308,790      ex_no_retire.load_not_complete   #     12.5 %  backend_bound_cpu
                                                  #     54.4 %  backend_bound_memory     (25.00%)
   480,522,837,700      de_no_dispatch_per_slot.backend_stalls #  66,9 %  backend_bound
     1,000,000,000      cycles
       500,000,000      instructions
"""


@pytest.mark.parametrize(
    ("text", "kind", "kernel", "signal"),
    [
        (NVPROF, "nvprof", "mmul(float const *)", None),
        (METRICS, "counters", "", "uncoalesced_access"),
        (UNITRACE, "unitrace", "gemv<float, 4>(int, int)::{lambda()#1}", "register_spill"),
        (VTUNE, "counters", "", "memory_bound"),
        (TREE, "proton", "attn_fwd", None),
        (json.dumps(OPS), "xprof", "fusion.1", "memory_bound"),
        (HLO, "xprof", "fusion.7", "memory_bound"),
        (XCODE, "xcode", "gemv", "memory_bound"),
        (AMD, "perf", "", "memory_latency"),
        (HOTSPOTS, "vtune", "multiply1", None),
    ],
)
def test_each_profile_is_read_and_diagnosed(
    text: str, kind: str, kernel: str, signal: str | None
) -> None:
    request, read = with_known_counters(RetrieveRequest(profile=text))
    assert read is not None and (read.kind, read.kernel) == (kind, kernel)
    assert read.metrics or read.kernels
    verdict = Diagnoser(load_signals()).conclude(request, {}, (), ()).verdict
    assert signal is None or signal in verdict.signal_ids, (verdict.signal_ids, read.metrics)


def test_tree_leaves_have_unit_of_metric() -> None:
    kernels = read_profile(TREE).kernels
    assert [(k.name, k.us) for k in kernels] == [("attn_fwd", 9500.0), ("softmax_kernel", 2500.0)]


def test_times_without_counters_have_next_step() -> None:
    _, read = with_known_counters(RetrieveRequest(profile=HOTSPOTS))
    assert read is not None and read.kernels[0]["pct"] > 98
    assert any("no counters" in note for note in read.notes)


def test_exported_database_becomes_a_summary(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, demangledName INT)"
        )
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "f<a, b>()"), (2, "g()")])
        rows = [(0, 4000, 1), (5000, 9000, 1), (9000, 10_000, 2)]
        base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?)", rows)
    base.close()
    profile = read_profile(summary_of_database(path))
    assert [(k.name, k.calls, k.us) for k in profile.kernels] == [
        ("f<a, b>()", 2, 8),
        ("g()", 1, 1),
    ]


@pytest.mark.parametrize("start", ["SQLite format 3\0", "PERFILE2", "NVR\0"])
def test_binary_file_is_refused_with_export_command(start: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_profile(start + "\0\0")
    assert "binary" in caught.value.message and "`" in caught.value.hint


ADVICE = """  mm(float *) (64, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: Scheduler Statistics
    ------------------------- ----------- ------------
    Metric Name               Metric Unit Metric Value
    ------------------------- ----------- ------------
    No Eligible                         %        86.29
    Issued Warp Per Scheduler                     0.14
    ------------------------- ----------- ------------

    OPT   Est. Speedup: 58.31%
          On average, each warp of this workload spends 3.7 cycles being stalled {what}. Do less.
          This stall type represents about {share}% of the total average of 6.4 cycles between
          issuing two instructions.
"""


@pytest.mark.parametrize(
    ("what", "signal"),
    [
        (
            "waiting for a scoreboard dependency on a L1TEX (local, global, surface, texture)"
            " operation",
            "memory_latency",
        ),
        ("waiting for sibling warps at a CTA barrier", "sync_stall"),
        (
            "waiting for the MIO (memory input/output) instruction queue to be not full",
            "onchip_bandwidth",
        ),
        ("waiting on a fixed latency execution dependency", "latency_bound"),
        ("waiting for the execution pipe to be available", "compute_bound"),
    ],
)
def test_leading_stall_of_ncu_advice_is_read(what: str, signal: str) -> None:
    text = ADVICE.format(what=what, share=62.5)
    if signal == "memory_latency":
        text = text.replace(
            "    No Eligible",
            "    DRAM Throughput                     %         20.0\n"
            "    L2 Cache Throughput                 %         20.0\n    No Eligible",
        )
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    verdict = Diagnoser(load_signals()).conclude(request, {}, ("nvidia",), ()).verdict
    assert verdict.primary == signal


EXCESSIVE = """    OPT   The memory access pattern for global {} to L1TEX might not be optimal. On
          average, only 4.0 of the 32 bytes transmitted per sector are utilized by each thread.
    OPT   This kernel has uncoalesced global accesses resulting in a total of 58720256 excessive
          sectors (78% of the total 75497472 sectors).
"""


@pytest.mark.parametrize(("kind", "name"), [("stores", "store"), ("loads", "load")])
def test_excessive_sectors_are_those_of_the_named_accesses(kind: str, name: str) -> None:
    _, read = with_known_counters(RetrieveRequest(profile=EXCESSIVE.format(kind)))
    assert read is not None and dict(read.metrics) == {f"{name}_efficiency_pct": 12.5}


def test_excessive_accesses_of_ncu_advice_are_read() -> None:
    text = ADVICE.format(what="at once", share=1) + (
        "    OPT   This kernel has uncoalesced global accesses resulting in a total of 14680064\n"
        "          excessive sectors (78% of the total 18874368 sectors).\n"
        "    OPT   This results in 260 bank conflicts, which represent 96.88% of the overall 268\n"
    )
    metrics = read_profile(text).metrics
    assert metrics["load_efficiency_pct"] == 22.0 and metrics["bank_conflict_ratio"] == 0.9688


LIMITS = ("Registers", "Shared Mem", "Warps", "SM")


@pytest.mark.parametrize(
    ("limits", "issued", "tensor", "limited"),
    [
        ((12, 1, 16, 32), 14, None, True),  # only the shared memory limit, and schedulers wait
        ((1, 1, 16, 32), 14, None, False),  # two equal limits
        ((2, 3, 16, 32), 85, None, False),  # the schedulers are busy
        ((1, 2, 16, 32), 20, 75.0, False),  # the matrix units are busy too
        ((4, 8, 16, 32), 30, 5.0, True),  # registers
    ],
)
def test_occupancy_limit_counts_only_where_more_warps_help(
    limits: tuple[int, ...], issued: float, tensor: float | None, limited: bool
) -> None:
    metrics: dict[str, float | str] = {"Theoretical Occupancy": 25.0, "Issue Slots Busy": issued}
    metrics |= {f"Block Limit {n}": float(v) for n, v in zip(LIMITS, limits, strict=True)}
    if tensor is not None:
        metrics["tensor_pipe_pct"] = tensor
    request = RetrieveRequest(metrics=metrics)
    verdict = Diagnoser(load_signals()).conclude(request, {}, ("nvidia",), ()).verdict
    assert ("occupancy_limited" in verdict.signal_ids) == limited


@pytest.mark.parametrize(
    ("seconds", "signal"), [("0.05", "memory_bound"), ("0.4", "memory_latency")]
)
def test_reached_bandwidth_decides_for_cpu(seconds: str, signal: str) -> None:
    text = (
        " Performance counter stats for './x':\n\n 200,000,000 cycles\n 100,000,000 instructions\n"
        " 3,000,000 LLC-loads\n 2,800,000 LLC-load-misses\n\n"
        f"       {seconds} seconds time elapsed\n"
    )
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    facts = {"memory_bandwidth": 5e9}
    verdict = Diagnoser(load_signals()).conclude(request, facts, ("x86-64",), ()).verdict
    assert verdict.primary == signal


RANDOM = """ Performance counter stats for './gather':

    38,114,223,901      cycles                    #    3.165 GHz
    11,532,998,104      instructions              #    0.30  insn per cycle
     2,310,442,110      cache-references
     1,501,787,372      cache-misses              #   65.00 % of all cache refs
       812,330,100      dTLB-load-misses          #   25.35% of all dTLB cache accesses

      12.066312884 seconds time elapsed
"""


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (RANDOM, {"memory_bandwidth": 5.76e11}),
        (RANDOM, {}),
        (RANDOM.partition("12.066")[0], {}),
        (RANDOM.replace("dTLB-load-misses", "branches"), {}),
    ],
)
def test_random_accesses_are_not_bound_by_bandwidth(text: str, facts: dict[str, float]) -> None:
    """2.5 bytes in a cycle, 8 GB/s of one thread, a quarter of whose loads miss the TLB."""
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    verdict = Diagnoser(load_signals()).conclude(request, facts, ("x86-64",), ()).verdict
    assert verdict.primary == "memory_latency" and "memory_bound" not in verdict.signal_ids


def signals_of(text: str, family: str = "nvidia") -> tuple[str, ...]:
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    return Diagnoser(load_signals()).conclude(request, {}, (family,), ()).verdict.signal_ids


REPORT = """    OPT   This kernel grid is too small to fill the available resources on this device,
          resulting in only 0.25 full waves across all SMs. Look at Launch Statistics.
    Section: GPU Speed Of Light Throughput
    ----------------------- ------------- ------------
    Metric Name               Metric Unit Metric Value
    ----------------------- ------------- ------------
    Memory Throughput                   %        11.20
    Compute (SM) Throughput             %         7.90
    ----------------------- ------------- ------------
"""
ISSUES = """    WRN   Every scheduler is capable of issuing one instruction per cycle, but for
          this kernel each scheduler only issues an instruction every 8.1 cycles.
"""
LANES = """    OPT   Instructions are executed in warps, which are groups of 32 threads. This kernel
          achieves an average of 9.7 threads being active per cycle.
"""
SECTORS = """    WRN   The memory access pattern for global loads from L1TEX might not be optimal.
          On average, only 4.0 of the 32 bytes transmitted per sector are utilized.
"""
WAYS = """    INF   The shared loads have a 8.0 - way bank conflict across all 4096 requests.
"""
COUNTED = """ void tr<32>(float *), 2023-May-02 09:11:00, Context 1, Stream 7
    Section: Command line profiler metrics
    ------------------------------------------------------------ ----- -----------
    l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum                 983,040
    ------------------------------------------------------------ ----- -----------
"""


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        (REPORT, "grid_too_small"),
        (ISSUES, "latency_bound"),
        (LANES, "divergence"),
        (SECTORS, "uncoalesced_access"),
        (WAYS, "bank_conflict"),
        (COUNTED, "bank_conflict"),
        (
            METRICS.replace("gld_efficiency ", "branch_efficiency ").replace("12.50%", "61.00%"),
            "divergence",
        ),
    ],
)
def test_nvidia_sentences_and_single_counters_are_read(text: str, signal: str) -> None:
    assert signals_of(text)[0] == signal


PERF = """ 41,20%  solver  solver                [.] relax
 22,85%  solver  libiomp5.so           [.] __kmp_hyper_barrier_release
  9,10%  solver  [kernel.kallsyms]     [k] futex_wait_queue
"""
API = """ Time (%)  Total Time (ns)  Num Calls  Avg (ns)  Name
 --------  ---------------  ---------  --------  ----
     61.3      900,000,000    250,000   3,600.0  cuLaunchKernelEx
     38.7      568,000,000      1,200   9,000.0  cudaStreamSynchronize
"""
AMD = """| Counter | Value |
|---|---|
| VALUBusy (%) | 21.4 |
| MemUnitBusy (%) | 33.0 |
| SALUBusy (%) | 4.1 |
| LDSBankConflict (%) | 0.2 |
"""
TOP_DOWN = """| Metric | run 1 |
|:--|--:|
| Back-End Bound | 70.1 % |
| Memory Bound | 61.0 % |
| - DRAM Bound | 48.0 % |
| Memory Bandwidth | 66.0 % |
"""
ROUNDED = """ - time/s
0.{root} ROOT
├─ 0.000 _fwd
└─ 0.000 _bwd
"""


def test_tables_without_header_and_in_markdown_are_read() -> None:
    assert signals_of(PERF, "x86-64")[0] == "sync_stall"
    assert signals_of(API)[0] == "launch_overhead"
    assert signals_of(AMD, "amd")[0] == "latency_bound"
    assert "memory_bound" in signals_of(TOP_DOWN, "x86-64")
    quoted = "The hot functions are below.\nI think the compiler hangs.\nVersion 3.1\nUbuntu\n"
    with pytest.raises(InvalidRequest, match="of no profiler"):
        read_profile(quoted + PERF, loose=False)
    with pytest.raises(InvalidRequest, match="of no profiler"):
        read_profile("| build | tok/s |\n|---|---|\n| gcc | 11.9 |\n", loose=False)


def test_times_rounded_to_zero_give_no_diagnosis() -> None:
    assert signals_of(ROUNDED.format(root="004")) == ()
    assert "time/us" in read_profile(ROUNDED.format(root="004")).notes[0]
    with pytest.raises(InvalidRequest, match="rounded to 0"):
        read_profile(ROUNDED.format(root="000"))


def test_dominant_elementwise_kernel_is_memory_bound() -> None:
    row = "   {share}%  {time}        40  {avg}  {avg}  {avg}  {name}\n"
    kernels = row.format(
        share=97.0, time="80.0ms", avg="2.0ms", name="triton_poi_fused_add_gelu_3"
    ) + row.format(share=3.0, time="2.4ms", avg="60.0us", name="gemm_128")
    head = "==1== NVPROF is profiling process 1\n GPU activities:"
    assert signals_of(head + kernels)[0] == "memory_bound"
    assert "memory_bound" not in signals_of(head + kernels.replace("triton_poi", "triton_red"))


def test_program_that_mostly_copies_is_led_by_copies() -> None:
    profile = read_profile(NVPROF.replace("26.54%  113.11ms", "96.54%  9113.1ms"))
    assert profile.kernel == "[CUDA memcpy HtoD]"
    assert profile.metrics["duration_us"] == pytest.approx(4556550.0)


def test_nvprof_rows_without_type_keep_their_columns() -> None:
    copy = next(k for k in read_profile(NVPROF).kernels if "DtoH" in k.name)
    assert (copy.calls, copy.us, copy.pct) == (1.0, pytest.approx(58721.0), 13.78)


@pytest.mark.parametrize(
    "text", ["7" * 200_000, "\n" * 200_000, "NODE 1 Mem" + " " * 200_000, "reg" * 200_000]
)
def test_text_without_profile_is_read_in_linear_time(text: str) -> None:
    with pytest.raises(InvalidRequest, match="of no profiler"):
        read_profile(text, loose=False)
