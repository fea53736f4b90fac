# ruff: noqa: E501
"""The kind of a profile is recognised, and a request gets its metrics; simulated loops, screens of
perf annotate, ranges, listings and sentences with numbers, from a bare text."""

from __future__ import annotations

import json

import pytest

from kb.errors import InvalidRequest
from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.given_profile import with_known_counters
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.rules import load_rules
from retrieval.diagnose.signals import load_signals
from retrieval.pasted import pasted, with_text
from retrieval.profiles.reader import read_monitor, read_profile
from retrieval.request import RetrieveRequest, check_request
from retrieval.request_body import read_body, request_of

TREE = [{"frame": {"name": "add"}, "metrics": {"count": 4, "time (ns)": 8000.0}, "children": []}]
NEURON = {"total_time": 0.5, "hbm_read_bytes": 7, "mfu_estimated_percent": 0.5}
ROCPROF = "Index,KernelName,VALUBusy,BeginNs,EndNs\n0,mm,20,1000,3000\n"
NCU = (
    '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","k","sm__throughput.avg.pct_of_peak_sustained_elapsed","%","20.5"\n'
    '"0","k","acme__pipe.sum","","3"\n'
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (NCU, "ncu"),
        ("\ufeff" + NCU, "ncu"),
        (ROCPROF, "rocprof"),
        ("Metric,Avg,Unit\nL2 Cache Hit Rate,35,Pct\n", "rocprof-compute"),
        ("4000,,cycles,2000000,100.00,,\n", "perf"),
        ('{"counter-value" : "4000", "unit" : "", "event" : "cycles"}', "perf"),
        (json.dumps(TREE), "proton"),
        (json.dumps({"a1": NEURON}), "neuron-profile"),
        ('level=info msg="reading"\n' + json.dumps({"a1": NEURON}), "neuron-profile"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "dur": 3}]}',
            "torch_profiler",
        ),
    ],
)
def test_profile_kind_is_recognised(text: str, kind: str) -> None:
    profile = read_profile(text)
    assert profile.kind == kind and profile.metrics


@pytest.mark.parametrize(
    "text", ["hello", "a,b\n1,2\n", "{}", "[]", "[" * 100_000, '{"a": 1}', "1,2,3,4,5\n", "\0\n\0"]
)
def test_unknown_text_is_refused_with_readable_kinds(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_profile(text)
    for name in ("ncu", "rocprofv3", "perf stat", "Proton", "PyTorch", "neuron-profile"):
        assert name in caught.value.hint


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM\n", "ncu"),
        ("Index,KernelName,VALUBusy\n", "rocprof"),
        ("<not supported>,,cycles,0,100.00,,\n", "perf did not count cycles"),
        ('{"traceEvents": []}', "torch_profiler"),
    ],
)
def test_profile_without_counters_is_refused(text: str, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=kind):
        read_profile(text)


def test_given_metrics_take_precedence_and_unknown_counters_are_counted() -> None:
    name = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    requested = RetrieveRequest(profile=NCU, metrics={"other": 1.0})
    request, read = with_known_counters(requested)
    assert request.metrics == {name: 20.5, "other": 1.0} and request.profile is None
    assert read is not None
    assert (read.kind, read.kernel, read.metrics, read.unread) == ("ncu", "k", {name: 20.5}, 1)
    request, read = with_known_counters(RetrieveRequest(profile=NCU, metrics={name: 99.0}))
    assert request.metrics == {name: 99.0} and read is not None and read.metrics == {name: 20.5}
    _, read = with_known_counters(RetrieveRequest(profile=NCU), own_counters=["acme__pipe.sum"])
    assert read is not None and read.unread == 0
    plain = RetrieveRequest(query="q")
    assert with_known_counters(plain) == (plain, None)


def test_counters_without_rule_are_named() -> None:
    text = NCU.replace("sm__throughput.avg.pct_of_peak_sustained_elapsed", "acme__other.sum")
    with pytest.raises(InvalidRequest) as caught:
        with_known_counters(RetrieveRequest(profile=text))
    assert caught.value.details["counters"] == ["acme__other.sum", "acme__pipe.sum"]


@pytest.mark.parametrize("decoded", [TREE, {"a1": NEURON}])
def test_body_may_carry_profile_text_or_json(decoded: object) -> None:
    direct = request_of(read_body({"profile": decoded}))
    assert direct == request_of(read_body({"profile": json.dumps(decoded)}))
    check_request(direct)
    assert direct.profile is not None and read_profile(direct.profile).metrics


@pytest.mark.parametrize("blank", ["", " \n", {}, [], None])
def test_blank_profile_is_ignored(blank: object) -> None:
    assert request_of(read_body({"profile": blank, "query": "q"})).profile is None


@pytest.mark.parametrize("wrong", [7, True, 1.5])
def test_profile_of_another_type_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="profile"):
        request_of(read_body({"profile": wrong}))


def test_profile_of_an_unknown_tool_is_read_as_a_log() -> None:
    text = "theoretical occupancy report\nCUDA error: an illegal memory access was encountered"
    request, read = with_known_counters(RetrieveRequest(profile=text))
    assert request.profile is None and "illegal memory access" in (request.log or "")
    assert read is not None and read.kind == "text" and "no profiler" in read.notes[0]
    with pytest.raises(InvalidRequest):
        with_known_counters(RetrieveRequest(profile="1 2 3\n4 5 6"))


def test_cpu_profile_is_diagnosed_without_a_chip() -> None:
    text = """ Performance counter stats for './kernel':
        26,112,334,901      cycles
        12,331,009,221      instructions
         1,902,331,110      LLC-loads
         1,371,009,331      LLC-load-misses           #   72.07% of all LL-cache accesses
    """
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    rules = load_rules()
    reported = load_metrics().normalise(request.metrics or {})
    applying = rules.for_hardware(frozenset(), reported.collectors)
    assert rules.for_hardware(frozenset({"x86-64"}), reported.collectors) == applying
    assert {"cpu-bandwidth", "cpu-low-ipc"} <= {rule.id for rule in applying}


# -- samples of programs that watch a device

TABLE = """
+------------------------------+----------------------+----------------------+
| NVIDIA-SMI 535.10            Driver Version: 535.10                          |
|==============================+======================+======================|
|   0  Card            Off     | 00000000:01:00.0 Off |                  N/A |
| 30%   50C    P2   60W / 250W |   4096MiB / 11000MiB |      3%      Default |
+------------------------------+----------------------+----------------------+
"""
DMON = (
    "# gpu   pwr  sm   mem\n# Idx     W   %     %\n    0    70   10     2\n    0    71   30     4\n"
)
CSV = "index, utilization.gpu [%], memory.used [MiB]\n0, 98 %, 4000 MiB\n1, 100 %, 4000 MiB\n"
ROCM = """
====== Concise Info ======
GPU  Temp   AvgPwr  SCLK     MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
0    41.0c  90.0W   1700Mhz  1200Mhz  0%   auto  300.0W   60%    0%
====== End of log ======
"""


@pytest.mark.parametrize(("text", "busy"), [(TABLE, 3), (DMON, 20), (CSV, 99), (ROCM, 0)])
def test_busy_share_is_read(text: str, busy: float) -> None:
    profile = read_monitor(text)
    assert profile is not None and profile.metrics == {"gpu_busy_pct": busy}
    assert ("input pipeline" in profile.notes[0]) == (busy < 25)
    assert pasted(text)[0] == "profile"


def test_table_in_the_report_of_an_error_stays_a_log() -> None:
    report = TABLE + "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    assert read_monitor(report) is None and pasted(report)[0] == "log"
    assert read_monitor("a, b\n1, 2\n") is None


DIAGNOSER = Diagnoser(load_signals())


def signals_of(text: str) -> tuple[str, ...]:
    """The signals of a pasted text."""
    request, _ = with_known_counters(RetrieveRequest(**with_text({}, text)))
    return DIAGNOSER.conclude(request, {}, [], []).verdict.signal_ids


def simulated(cycles: int, least: float, rest: str) -> str:
    """A report of llvm-mca for 100 iterations."""
    return (
        f"Iterations:        100\nInstructions:      500\nTotal Cycles:      {cycles}\n"
        f"Total uOps:        500\n\nDispatch Width:    4\nuOps Per Cycle:    0.80\nIPC:  0.80\n"
        f"Block RThroughput: {least}\n\n{rest}"
    )


LISTED = "Resources:\n[0]   - Zn3FPDiv\n[1]   - Zn3FP0\n\nResource pressure per iteration:\n[0]    [1]\n{}\n"
SIMULATED = [
    (simulated(2005, 20.0, LISTED.format("19.00  2.00")), "instruction_mix"),
    (simulated(1010, 10.0, LISTED.format(" -     10.0")), "compute_bound"),
    (simulated(1610, 4.0, LISTED.format(" -     4.00")), "latency_bound"),
    (
        simulated(
            405,
            4.0,
            "Throughput Bottlenecks:\n  Resource Pressure       [ 98.0% ]\n  - JFPU1  [ 98.0% ]\n",
        ),
        "compute_bound",
    ),
    (
        simulated(
            1800, 5.0, "  Data Dependencies:      [ 92.0% ]\n  - Register Dependencies [ 92.0% ]\n"
        ),
        "latency_bound",
    ),
    (
        simulated(2400, 24.0, "  - SKLDivider  [ 99.0% ]\n  - SKLPort0  [ 12.0% ]\n"),
        "instruction_mix",
    ),
]


@pytest.mark.parametrize(("text", "signal"), SIMULATED)
def test_simulated_loop_tells_its_limit(text: str, signal: str) -> None:
    assert pasted(text)[0] == "profile"
    assert signals_of(text)[0] == signal


SCREENS = [
    " 62.10 |       pause\n 20.00 |       cmp    $0x0,(%rdi)\n       |     + jne    10 <spin_lock+0x10>\n",
    "       |     while (!done) cpu_relax();\n 88.02 |       test   %eax,%eax\n  7.10 |       je     40\n",
    "       \u2502     backoff.spin();\n 41.00 \u2502       sub    $0x1,%ecx\n 40.10 \u2502     \u2191 jne    30\n",
    "       |     std::this_thread::yield();\n 55.50 |       call   sched_yield@plt\n 12.00 |       mov    (%rax),%edx\n",
    "       |     // try to steal a task\n 30.00 |       lock   cmpxchg %rcx,(%rdx)\n 44.00 |       jne    88\n",
]


@pytest.mark.parametrize("text", SCREENS)
def test_screen_of_perf_annotate_shows_threads_that_spin(text: str) -> None:
    assert pasted(text)[0] == "profile"
    assert "sync_stall" in signals_of(text)


def test_screen_of_perf_annotate_without_waits_has_its_lines() -> None:
    text = " 61.20 |       movsd  (%rax,%rcx,8),%xmm0\n  9.80 |       addsd  %xmm1,%xmm0\n"
    request, read = with_known_counters(RetrieveRequest(**with_text({}, text)))
    assert read is not None
    assert [row.samples for row in request.lines] == [61.2, 9.8]
    assert "sync_stall" not in signals_of(text)


RANGES = "Time (%)  Total Time (ns)  Instances  Avg (ns)  Style  Range\n--------  ---------------  ---------  --------  -----  -----\n"


def test_ranges_of_a_program_are_functions_of_the_host() -> None:
    text = (
        RANGES + "    50.0          2000000          1   2000000  PushPop  :step\n"
        "    30.0          1200000          1   1200000  PushPop  :pool::allocate\n"
        "    18.0           720000          1    720000  PushPop  :gpu_h2d_copy\n"
    )
    _, read = with_known_counters(RetrieveRequest(**with_text({}, text)))
    assert read is not None
    assert [row["name"] for row in read.functions] == ["pool::allocate", "gpu_h2d_copy"]
    assert not read.kernels
    assert signals_of(text) == ("launch_overhead",)


LISTINGS = [
    "tile=64 regs=96 spills=0\ntile=128 regs=255 spills=44\n",
    "BLOCK_M=64: VGPRs: 128 spill: 0\nBLOCK_M=128: VGPRs: 256 spill: 31\n",
    "cfg a  num_regs=80  spills=0\ncfg b  num_regs=168  spills=12\n",
    "unroll 2 VGPR=64 vgpr_spill=0\nunroll 8 VGPR=128 vgpr_spill=20\n",
    "warps=4 registers=128 spilled=0\nwarps=1 registers=255 spilled=90\n",
]


@pytest.mark.parametrize("text", LISTINGS)
def test_listing_of_resources_names_the_case_that_spills_most(text: str) -> None:
    _, read = with_known_counters(RetrieveRequest(**with_text({}, text)))
    assert read is not None
    assert read.kernel.split("=")[0].split(" ")[0] in text.splitlines()[1]
    assert signals_of(text)[0] == "register_spill"


SENTENCES = [
    ("one step takes 20 ms while the GPU runs for 2.5 ms", "launch_overhead"),
    ("each `forward()` needs 900 us, but the kernels are only 100 us of it", "launch_overhead"),
    ("The loop takes 1.2 s per epoch although the device is busy for 90 ms.", "launch_overhead"),
    ("ncu shows 9.1 GB of DRAM reads, 6.5x the ideal traffic", "poor_reuse"),
    ("HBM bytes are 3 times the minimum read volume", "poor_reuse"),
    ("rocprof: FETCH_SIZE of global memory is 4.2x the expected bytes", "poor_reuse"),
    ("the kernel reads 2x the compulsory DRAM traffic", "poor_reuse"),
]


@pytest.mark.parametrize(("text", "signal"), SENTENCES)
def test_amounts_of_a_sentence_are_read(text: str, signal: str) -> None:
    assert signals_of(text)[0] == signal


SHARES = [
    ("cudaStreamSynchronize takes 81.5 % of the API time", "wait_api_pct"),
    ("about 62% of the host time is spent in `hipMemcpyAsync`", "copy_api_pct"),
    ("cuLaunchKernel is 45% of total time", "launch_api_pct"),
    ("`clEnqueueReadBuffer` accounts for 70% of the run time", "copy_api_pct"),
    ("zeCommandQueueSynchronize makes up 50 % of API time", "wait_api_pct"),
]


@pytest.mark.parametrize(("text", "metric"), SHARES)
def test_share_of_a_function_in_a_sentence_is_read(text: str, metric: str) -> None:
    request = RetrieveRequest(profile=text)
    _, read = with_known_counters(request)
    assert read is not None
    assert metric in read.metrics


@pytest.mark.parametrize(
    "text",
    [
        "3 cuStreamSynchronize per execution\n4 cuLaunchKernel per execution",
        "2 hipMemcpyAsync per step\n9 hipLaunchKernel per step",
        "12 cudaLaunchKernel calls\n3 cudaMemcpyAsync calls",
        "5 cuEventRecord each iteration\n5 cuEventSynchronize each iteration",
        "40 cudaStreamSynchronize launches\n40 cudaFree launches",
    ],
)
def test_counts_are_no_times(text: str) -> None:
    _, read = with_known_counters(RetrieveRequest(profile=text))
    assert read is None or not any(row["us"] for row in (*read.kernels, *read.functions))


REPEATED = "Performance counter stats for './a' (5 runs):\n\n{}\n   0.5 +- 0.01 seconds time elapsed  ( +-  0.78% )\n"


@pytest.mark.parametrize(
    ("line", "event", "value"),
    [
        (
            "  1,000,000      instructions:u    #  0.50 insn per cycle   ( +-  0.02% )",
            "instructions",
            1e6,
        ),
        ("  2,000,000      cycles            ( +-  1.20% )", "cycles", 2e6),
        (
            "  30,000      branch-misses   # 19.91% of all branches  ( +-  0.1% )",
            "branch-misses",
            3e4,
        ),
        ("  40,000      cache-misses    ( +- 10.00% )  (66.70%)", "cache-misses", 4e4),
        ("  7,000      LLC-load-misses    ( \u00b1 2.0% )", "LLC-load-misses", 7e3),
    ],
)
def test_deviation_of_repeated_runs_is_no_value(line: str, event: str, value: float) -> None:
    _, read = with_known_counters(RetrieveRequest(profile=REPEATED.format(line)))
    assert read is not None
    assert read.metrics[event] == value


BARE = [
    (
        "RuntimeError: failed\nk.metal:3:1: error: no template named 'vec'; did you mean 'metal::vec'?",
        "log",
    ),
    ('a.cu(3): error: identifier "tidx" is undefined; did you mean "threadIdx"?', "log"),
    ("error[E0425]: cannot find function `laod`; did you mean `load`?", "log"),
    ("[  12.345678] panfrost ffe40000.gpu: gpu sched timeout, js=1", "log"),
    ("[   99.100000] amdgpu 0000:03:00.0: ring gfx timeout", "log"),
    (
        "C0 BE Backend_Bound % Slots 61.0 [33.0%]\n   This category represents slots\n   that are not filled\n   Sampling events: x\nC0 MUX % 33.00\n",
        "profile",
    ),
    ("The kernel has a low occupancy of 12.5 %, limited by registers, on this GPU", "log"),
    ("The kernel is memory bound: it reaches 82 % of the bandwidth", "log"),
    ("Is a kernel with 12.5 % occupancy memory bound?", "query"),
    ("Does the compiler say 'did you mean' for kernels?", "query"),
]


@pytest.mark.parametrize(("text", "kind"), BARE)
def test_kind_of_a_bare_text(text: str, kind: str) -> None:
    assert pasted(text)[0] == kind
