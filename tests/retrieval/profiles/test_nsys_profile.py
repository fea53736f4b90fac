"""The summaries of `nsys stats` as text, boxed and as CSV."""

from __future__ import annotations

import pytest

from kb.errors import InvalidRequest
from retrieval.diagnose.metrics import normalise
from retrieval.profiles.reader import read_profile

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
