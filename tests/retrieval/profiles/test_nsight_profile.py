"""ncu's CSV, by metric and by launch, and its text report."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb.errors import InvalidRequest
from retrieval.diagnose.diagnosis import diagnose
from retrieval.diagnose.metrics import normalise
from retrieval.profiles.nsight import longest_launch, read, read_launches
from retrieval.profiles.reader import read_profile

ROOT = Path(__file__).resolve().parents[3]
CAPTURE = ROOT.parent / "shared" / "captures" / "ncu_2025.3.1_h200_triton_add_strided.csv"
IDENTITY = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC"'
)
HEAD = f'{IDENTITY},"Section Name","Metric Name","Metric Unit","Metric Value"'
BIG = "void big<float, 4>(T1 *)"
H200 = ("h200", "hopper", "nvidia", "any")


def identity(number: int, kernel: str) -> str:
    return (
        f'"{number}","425","python3","127.0.0.1","{kernel}","1","7","(128, 1, 1)","(65536, 1, 1)",'
        '"0","9.0"'
    )


def row(number: int, kernel: str, name: str, unit: str, value: str) -> str:
    section = "Command line profiler metrics"
    return f'{identity(number, kernel)},"{section}","{name}","{unit}","{value}"'


NCU_TEXT = "\n".join(
    (
        "==PROF== Connected to process 425",
        "the candidate printed this",
        HEAD,
        row(0, "small", "gpu__time_duration.sum", "ns", "4,000"),
        row(0, "small", "dram__bytes.sum", "byte", "1,000,000"),
        row(1, BIG, "gpu__time_duration.sum", "us", "90.5"),
        row(1, BIG, "dram__bytes.sum", "Mbyte", "3.00"),
        row(1, BIG, "lts__throughput.avg.pct", "%", "n/a"),
        row(1, BIG, "launch__registers_per_thread", "register/thread", "26"),
        row(2, BIG, "gpu__time_duration.sum", "ns", "90,000"),
        row(2, BIG, "dram__bytes.sum", "byte", "3,000,000"),
    )
)


def test_units_several_kernels_and_other_lines() -> None:
    launches = read_launches(NCU_TEXT)
    assert [launch.kernel for launch in launches] == ["small", BIG, BIG]
    assert [launch.nanoseconds for launch in launches] == [4000, 90_500, 90_000]
    longest = longest_launch(launches)
    assert "lts__throughput.avg.pct" not in longest.metrics
    values = normalise(longest.metrics).values
    assert values["duration_us"] == pytest.approx(90.5)
    assert values["dram_bytes"] == 3_000_000 and values["registers_per_thread"] == 26
    profile = read(NCU_TEXT)
    assert profile is not None and profile.kernel == BIG
    assert [(k.name, k.calls) for k in profile.kernels] == [(BIG, 2), ("small", 1)]
    assert "97.83 %" in profile.notes[0]


WIDE = "\n".join(
    (
        "==PROF== Connected to process 7",
        f'{IDENTITY},"dram__bytes.sum","gpu__time_duration.sum","launch__registers_per_thread"',
        '"","","","","","","","","","","","Mbyte","us","register/thread"',
        f'{identity(0, "small")},"1.50","4.10","18"',
        f'{identity(1, BIG)},"3.00","1,090.50","n/a"',
        "==PROF== Disconnected from process 7",
    )
)


def test_row_per_launch_with_row_of_units() -> None:
    small, big = read_launches(WIDE)
    assert small.metrics["launch__registers_per_thread"] == 18
    assert (big.kernel, big.nanoseconds) == (BIG, 1_090_500)
    assert big.metrics == {"dram__bytes.sum": "3000000 B", "gpu__time_duration.sum": "1090500 ns"}
    profile = read(WIDE)
    assert profile is not None and profile.kernel == BIG


REPORT = """\
==PROF== Connected to process 31 (/opt/app)
[31] app@127.0.0.1
  fill(float *) (64, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    Memory Throughput                 %        12.40
    Duration                         us         2.05
    ----------------------- ----------- ------------

  void mm<float, 8>(const T1 *, T1 *) (64, 8, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ------------- --------------
    Metric Name               Metric Unit   Metric Value
    ----------------------- ------------- --------------
    DRAM Frequency          cycle/nsecond           1.21
    SM Active Cycles                cycle 312,489,585.13
    Memory Throughput                   %          91.25
    Duration                      msecond           3.84
    Compute (SM) Throughput             %           2.08
    ----------------------- ------------- --------------

    OPT   The memory is more heavily used than the compute units.

    Section: Memory Workload Analysis
    --------------------------- ------------ ------------
    Metric Name                  Metric Unit Metric Value
    --------------------------- ------------ ------------
    Memory Throughput           Gbyte/second       812.00
    L2 Hit Rate                            %        34.59
    --------------------------- ------------ ------------

    Section: Launch Statistics
    -------------------------------- --------------- ---------------
    Metric Name                          Metric Unit    Metric Value
    -------------------------------- --------------- ---------------
    Registers Per Thread             register/thread              38
    Waves Per SM                                                0.99
    -------------------------------- --------------- ---------------
"""


def test_text_report() -> None:
    profile = read(REPORT)
    assert profile is not None
    assert profile.kernel == "void mm<float, 8>(const T1 *, T1 *)"
    values = normalise(profile.metrics).values
    assert values["duration_us"] == pytest.approx(3840)
    # The bytes per second of a later section do not replace the share.
    assert values["memory_throughput_pct"] == 91.25
    assert (values["registers_per_thread"], values["waves_per_unit"]) == (38, 0.99)
    assert values["l2_hit_pct"] == 34.59
    assert [kernel.name for kernel in profile.kernels] == [profile.kernel, "fill(float *)"]


OLD_REPORT = """\
  copy(float*, float*, int), 2021-Mar-04 12:01:02, Context 1, Stream 7
    Section: Command line profiler metrics
    ---------------------------------- --------------- ------------------------------
    dram__bytes.sum                              Gbyte                           1.50
    smsp__inst_executed.sum                      Minst                           2.25
    ---------------------------------- --------------- ------------------------------
"""


def test_older_report_has_scaled_units_and_no_times() -> None:
    profile = read(OLD_REPORT)
    assert profile is not None and profile.kernel == "copy(float*, float*, int)"
    values = normalise(profile.metrics).values
    assert (values["dram_bytes"], values["instructions"]) == (1.5e9, 2.25e6)
    assert profile.kernels[0].us == 0


@pytest.mark.parametrize("text", ["", "==ERROR== nothing", '"ID","Kernel Name"\n"0","x"', HEAD])
def test_text_without_launches(text: str) -> None:
    assert read_launches(text) == []


def test_real_capture_of_an_h200() -> None:
    if not CAPTURE.is_file():
        pytest.skip("../shared has no recorded ncu CSV")
    text = CAPTURE.read_text()
    launches = read_launches(text)
    assert [launch.kernel for launch in launches] == ["add", "strided", "add"]
    profile = read(text)
    assert profile is not None and profile.kernel == "strided"
    assert normalise(profile.metrics).unrecognised == ()
    problem = {"compulsory_bytes": 3 * 4 * 64 * 1024**2}
    strided = diagnose(normalise(profile.metrics), {}, problem, H200)
    assert strided.primary == "uncoalesced_access"
    add = diagnose(normalise(launches[0].metrics), {}, problem, H200)
    assert [finding.id for finding in add.signals] == ["memory_bound", "at_roofline"]


# -- the summaries of `nsys stats` as text, boxed and as CSV

TEXT = """
Processing [report1.sqlite] with [cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances  Avg (ns)  Med (ns)  Name
 --------  ---------------  ---------  --------  --------  -------
     70.0        1,400,000      1,000   1,400.0   1,390.0  void f<4, at::x>(int, T2)
     30.0          600,000        100   6,000.0   6,000.0  sgemm_32x32

 ** CUDA GPU MemOps Summary (by Time) (cuda_gpu_mem_time_sum):

 Time (%)  Total Time (ns)  Count  Avg (ns)  Med (ns)  Operation
 --------  ---------------  -----  --------  --------  ---------
    100.0        2,000,000    100  20,000.0  20,000.0  [CUDA memcpy Host-to-Device]
"""
CSV = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,6000000,100,60000.0,60000,50000,70000,1000.0,"void foo<72, false>(char const*, int)"
40.0,4000000,300,13333.3,13000,9000,19000,100.0,"copy_kernel"
"""
BOX = """
│ Time (%) │ Total Time (ns) │ Instances │ Avg (ns) │ Name │
│ 90.0 │ 900 │ 3 │ 300.0 │ a b │
│ 10.0 │ 100 │ 1 │ 100.0 │ c │
"""
OLD = """Time(%),Total Time (ns),Calls,Average,Minimum,Maximum,Name
"""
HOST = """
 ** CUDA API Summary (cuda_api_sum):

 Time (%)  Total Time (ns)  Num Calls  Avg (ns)  Med (ns)  Name
 --------  ---------------  ---------  --------  --------  ----
    100.0        1,400,000      1,000   1,400.0   1,390.0  cudaLaunchKernel
"""


def test_text_of_kernels_and_copies() -> None:
    profile = read_profile(TEXT)
    assert profile.kind == "nsys" and profile.kernel == "void f<4, at::x>(int, T2)"
    assert profile.metrics == {
        "copies_pct": 50.0,
        "duration_us": 1.4,
        "kernel_runs": 1000,
        "products_pct": 15.0,
        "transfers_pct": 50.0,
    }
    assert [(k.name, k.calls, k.us) for k in profile.kernels] == [
        ("[CUDA memcpy Host-to-Device]", 100, 2000.0),
        ("void f<4, at::x>(int, T2)", 1000, 1400.0),
        ("sgemm_32x32", 100, 600.0),
    ]
    assert normalise(profile.metrics).unrecognised == ()


def test_csv_and_box() -> None:
    profile = read_profile(CSV)
    assert profile.kernel == "void foo<72, false>(char const*, int)"
    assert profile.metrics == {"duration_us": 60.0, "kernel_runs": 100, "elementwise_pct": 40.0}
    profile = read_profile(BOX)
    assert profile.kernel == "a b" and profile.metrics["duration_us"] == pytest.approx(0.3)


def test_host_functions_alone_give_hint_on_kernel_report() -> None:
    profile = read_profile(HOST)
    assert profile.metrics == {"launch_api_pct": 100.0, "launch_api_calls": 1000.0}
    assert any("cuda_gpu_kern_sum" in note for note in profile.notes) and not profile.kernels
    allocations = read_profile(HOST.replace("cudaLaunchKernel", "cudaMalloc"))
    assert [(row.name, row.us) for row in allocations.functions] == [("cudaMalloc", 1400.0)]
    with pytest.raises(InvalidRequest):
        read_profile(OLD)
