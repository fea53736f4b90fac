"""The CSV of rocprof, rocprofv3 and rocprof-compute."""

from __future__ import annotations

import pytest

from retrieval.diagnose.diagnosis import diagnose
from retrieval.diagnose.metrics import normalise
from retrieval.profiles.rocm import read

V1 = """\
Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,accum_vgpr,sgpr,\
wave_size,sig,obj,VALUBusy,FETCH_SIZE,L2CacheHit,BeginNs,EndNs
0,"fill(float*, int) [clone .kd]",0,0,0,90,93,1024,256,0,0,4,0,24,64,0x0,0x7f,20,512,80,1000,3000
1,"mm(float*, float*) [clone .kd]",0,0,1,90,93,16384,64,4096,16,32,0,24,64,0x0,0x7f,8.5,2048,35,\
4000,94000
"""
V3_HEAD = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size",'
    '"Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count",'
    '"Accum_VGPR_Count","SGPR_Count","Counter_Name","Counter_Value","Start_Timestamp",'
    '"End_Timestamp"'
)


def v3_row(dispatch: int, kernel: str, counter: str, value: float, end: int) -> str:
    return (
        f'{dispatch},{dispatch},"Agent 5",1,20,20,8192,9,"{kernel}",128,2048,0,64,0,80,"{counter}",'
        f"{value:f},1000,{end}"
    )


def test_row_per_dispatch() -> None:
    profile = read("ROCProfiler: 2 contexts collected\n" + V1)
    assert profile is not None and profile.kind == "rocprof"
    assert profile.kernel == "mm(float*, float*) [clone .kd]"
    values = normalise(profile.metrics).values
    assert values["duration_us"] == 90 and values["dram_read_bytes"] == 2048 * 1024
    assert (values["registers_per_thread"], values["scratch_bytes"]) == (32, 16)
    assert (values["shared_memory_per_block_bytes"], values["workgroups"]) == (4096, 256)
    assert values["l2_hit_pct"] == 35
    assert not {"pid", "gpu-id", "grd", "obj", "wave_size"} & profile.metrics.keys()


def test_row_per_counter_over_several_passes() -> None:
    rows = (
        v3_row(1, "hot(float*, int)", "OccupancyPercent", 62.5, 1_101_000),
        v3_row(1, "hot(float*, int)", "FetchSize", 100, 1_101_000),
        v3_row(2, "cold", "FetchSize", 7, 2000),
        V3_HEAD,  # a second file appended to the first
        v3_row(3, "hot(float*, int)", "LDSBankConflict", 12.5, 1_001_000),
        v3_row(3, "hot(float*, int)", "FetchSize", 90, 1_001_000),
    )
    profile = read("\n".join((V3_HEAD, *rows)))
    assert profile is not None and profile.kernel == "hot(float*, int)"
    assert profile.metrics["FetchSize"] == 100  # of the longest dispatch
    values = normalise(profile.metrics).values
    assert (values["occupancy_pct"], values["lds_conflict_pct"]) == (62.5, 12.5)
    assert values["duration_us"] == 1100 and values["workgroups"] == 64
    assert [(k.name, k.calls) for k in profile.kernels] == [("hot(float*, int)", 2), ("cold", 1)]


def test_kernel_trace_has_sizes_by_axis() -> None:
    text = (
        '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp",'
        '"End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X",'
        '"Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
        '"KERNEL_DISPATCH",1,13,15,"flip(float*, float*)",1,5000,25000,0,512,16,4,1,1024,64,1\n'
    )
    profile = read(text)
    assert profile is not None
    values = normalise(profile.metrics).values
    assert (values["workgroups"], values["duration_us"]) == (1024, 20)
    assert values["shared_memory_per_block_bytes"] == 512
    assert normalise(profile.metrics).unrecognised == ()


STATS = """\
"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"
"hipMemcpy",3,900000000,300000000.0,90.0,1,2,0.5
"mm(float*, float*)",4,400000,100000.0,80.0,90000,110000,10.5
"fill(float*, int)",10,100000,10000.0,20.0,9000,11000,1.5
"""
TOP_KERNELS = (
    'Kernel_Name,Count,Sum(ns),Mean(ns),Median(ns),Percent\n"mm(float*)",4,400000,1,1,100\n'
)


@pytest.mark.parametrize("text", [STATS, TOP_KERNELS])
def test_statistics_give_time_of_a_launch(text: str) -> None:
    profile = read(text)
    assert profile is not None and profile.kernel.startswith("mm(float*")
    assert normalise(profile.metrics).values["duration_us"] == 100
    assert all(not kernel.name.startswith("hip") for kernel in profile.kernels)


def test_host_calls_are_not_kernels() -> None:
    profile = read('"Name","Calls","TotalDurationNs"\n"hipMalloc",2,77\n"KERNEL_DISPATCH",3,9\n')
    assert profile is not None and profile.metrics == {}


COMPUTE_ROWS = (
    ("Metric_ID", "Metric", "Avg", "Unit", "Peak", "Pct of Peak"),
    ("2.1.9", "VALU Utilization", "14.5", "Pct", "100.0", "14.5"),
    ("2.1.14", "IPC", "0.21", "Instr/cycle", "5.0", "4.13"),
    ("2.1.15", "Wavefront Occupancy", "2488.86", "Wavefronts", "3328.0", "74.79"),
    ("2.1.17", "LDS Bank Conflicts/Access", "", "Conflicts/access", "32.0", ""),
    ("2.1.18", "vL1D Cache Hit Rate", "50.0", "Pct", "100.0", "50.0"),
    ("2.1.20", "L2 Cache Hit Rate", "35.74", "Pct", "100.0", "35.74"),
    ("6.2.5", "Insufficient SIMD VGPRs", "13733460.00", "Simd", "", ""),
)
COMPUTE = (
    "\n".join(",".join(row) for row in COMPUTE_ROWS),
    "2.1 Speed-of-Light\n╒═══╤═══╕\n"
    + "\n├───┼───┤\n".join(f"│ {' │ '.join(row)} │" for row in COMPUTE_ROWS)
    + "\n╘═══╧═══╛\n",
)


@pytest.mark.parametrize("text", COMPUTE, ids=["csv", "printed"])
def test_rocprof_compute_as_csv_and_as_printed(text: str) -> None:
    profile = read(text)
    assert profile is not None and profile.kind == "rocprof-compute"
    assert profile.metrics == {
        "VALU Utilization": 14.5,
        "occupancy_pct": 74.79,
        "l1_hit_pct": 50.0,
        "L2 Cache Hit Rate": 35.74,
    }
    assert normalise(profile.metrics).unrecognised == ()


ANALYZE = """
0. Top Stats
0.1 Top Kernels
╒════╤═════════════╤═════════╤════════════╤═══════╕
│    │ Kernel_Name │   Count │    Sum(ns) │   Pct │
╞════╪═════════════╪═════════╪════════════╪═══════╡
│  0 │ copy_kernel │    2.00 │ 3354588.00 │ 97.88 │
├────┼─────────────┼─────────┼────────────┼───────┤
│  1 │ fill_kernel │    1.00 │   72588.00 │  2.12 │
╘════╧═════════════╧═════════╧════════════╧═══════╛
2. System Speed-of-Light
│ Metric_ID │ Metric             │ Avg    │ Unit │ Peak   │ Pct of Peak │
│ 2.1.23    │ L2-Fabric Read BW  │ 690.4  │ Gb/s │ 1638.4 │ 42.1        │
│ 2.1.24    │ L2-Fabric Write BW │ 688.4  │ Gb/s │ 1638.4 │ 42.0        │
"""


def test_text_of_analyze_has_kernels_and_share_of_memory() -> None:
    profile = read(ANALYZE)
    assert profile is not None and profile.kernel == "copy_kernel"
    assert [(k.name, k.calls, k.us) for k in profile.kernels] == [
        ("copy_kernel", 2, 3354.588),
        ("fill_kernel", 1, 72.588),
    ]
    measured = normalise(profile.metrics)
    assert measured.values["dram_throughput_pct"] == pytest.approx(84.1)
    assert measured.values["duration_us"] == pytest.approx(1677.294)
    verdict = diagnose(measured, {}, {}, ("mi300x", "cdna3", "amd", "any"))
    assert verdict.primary == "memory_bound"
