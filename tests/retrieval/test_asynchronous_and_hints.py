# ruff: noqa: E501
"""Kinds of lines in logs of several tools: calls that only wait, nodes of traced graphs, limits of one
allocation, hints below a listing, printed values, statistics that are no errors."""

from __future__ import annotations

import pytest

from retrieval.diagnose.message import excess_in
from retrieval.diagnose.signatures import SignatureIndex, load_signatures
from retrieval.pasted import pasted

INDEX = SignatureIndex(load_signatures())


@pytest.mark.parametrize(
    "line",
    [
        "NPU function error: c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream), error code is 507001",
        "zeCommandQueueSynchronize(queue, UINT64_MAX) failed with status 17",
        "musaDeviceSynchronize() failed with code 9",
        "clFinish(queue) failed with error -5555",
        "cnrtQueueSync: cnrtQueueSynchronize(q) return code 632006",
    ],
)
def test_call_that_waits_reports_earlier_work(line: str) -> None:
    match = INDEX.match(f"RuntimeError: {line}")[0]
    assert match.signature.signal == "launch_error"
    assert "started before it failed" in match.remedy and "LAUNCH_BLOCKING" in match.remedy


@pytest.mark.parametrize(
    ("line", "target"),
    [
        (
            "InternalError: AssertionError: While executing %full : [num_users=3] = call_function[target=torch.ops.aten.full.default](args = ([], %zuf0), kwargs = {})",
            "torch.ops.aten.full.default",
        ),
        (
            "While executing %gather_1 : [num_users=1] = call_function[target=torch.ops.aten.gather.default](args = (%a, 1, %b))",
            "torch.ops.aten.gather.default",
        ),
        (
            "While executing %pool : num_users=1] = call_module[target=features.pool](args = (%x,))",
            "features.pool",
        ),
        (
            "torch._inductor.exc.LoweringException: NotImplementedError: target: aten.histc.default",
            "aten.histc.default",
        ),
        ("error: failed to lower op aten.grid_sampler_3d to linalg", "aten.grid_sampler_3d"),
    ],
)
def test_node_of_a_traced_graph_is_named(line: str, target: str) -> None:
    match = INDEX.match(line)[0]
    assert match.signature.signal == "compile_error" and target in f"{match.title} {match.remedy}"


@pytest.mark.parametrize(
    "line",
    [
        "ggml_vulkan: Requested buffer size exceeds device memory allocation limit: ErrorOutOfDeviceMemory",
        "VUID-vkAllocateMemory: allocationSize is larger than maxMemoryAllocationSize of this device",
        "Size of the binding is greater than maxStorageBufferBindingSize",
        "clCreateBuffer: the size exceeds CL_DEVICE_MAX_MEM_ALLOC_SIZE",
        "newBufferWithLength: length is over maxBufferLength",
    ],
)
def test_limit_of_one_allocation_is_no_lack_of_memory(line: str) -> None:
    log = f"alloc: Device memory allocation of size 2166360064 failed.\n{line}\nfailed to allocate buffer\n"
    match = INDEX.match(log)[0]
    assert match.signature.signal == "out_of_memory" and "each buffer" in match.remedy


@pytest.mark.parametrize(
    "label", ["Hint: ", "hint: ", "  help: ", "Suggestion: ", "Possible fix: "]
)
def test_hint_below_a_listing_is_passed_on(label: str) -> None:
    log = (
        "InternalError: Check failed: (CanProveDivisible(a, b)) is false:  Cannot prove divisible for 2 and 16\n"
        "\n  Problematic loop AST:\n for i in T.parallel(16):\n    A[i, i] = A[i, i] + T.float32(1.0)\n"
        f"{label}let the number of threads divide the extent of the loop\n"
    )
    assert "let the number of threads divide the extent" in INDEX.match(log)[0].remedy


@pytest.mark.parametrize(
    "line",
    [
        "before : [0.9999, 48.2, 50.0, 50.0, NaN, NaN, -0.9999, NaN, inf]",
        "y[0:4] = [1.0, nan, 2.5, 3.0]",
        "out: [ 0.5  1.25  nan  2.0 ]",
        "row 3 [nan, 0.1, 0.2]",
        "exp -> [1.0e3, 8.8e37, inf, inf]",
    ],
)
def test_printed_values_with_inf_and_nan(line: str) -> None:
    text = f"input  : [1.0, 100.0, 1000.0]\n{line}\n"
    assert pasted(text)[0] == "log"
    assert INDEX.match(text)[0].signature.signal == "numerical_instability"


@pytest.mark.parametrize("line", ["mask: [0.0, -inf, -inf]", "bounds = [1.0, 2.0, 3.0]"])
def test_printed_masks_are_no_failure(line: str) -> None:
    assert not INDEX.match(line)


@pytest.mark.parametrize(
    "line",
    [
        "Shader Stats: SGPRS: 40 VGPRS: 84 Code Size: 9880 LDS: 0 Scratch: 0 Max Waves: 2",
        "threads: 256, registers: 64, shared memory: 49152, max blocks: 2, waves: 4",
    ],
)
def test_statistics_of_a_compiler_exceed_nothing(line: str) -> None:
    assert excess_in(line) is None


def test_old_ptxas_is_named_beside_its_consequence() -> None:
    log = (
        "W asm_compiler.cc:232] Falling back to the CUDA driver for PTX compilation; ptxas does not support CC 8.9\n"
        "E cuda_driver.cc:864] failed to load PTX text as a module: CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid\n"
    )
    first, second, *_ = INDEX.match(log)
    assert "ptxas --version" in first.remedy
    assert "compute capability 8.9" in f"{second.title} {second.remedy}"


def test_coordinates_are_no_sizes_that_differ() -> None:
    log = "TT_FATAL @ program.cpp:839: tt::exception\ninfo:\nbuffers clash on core range [(x=0,y=0) - (x=7,y=6)]\n"
    assert "x is 0" not in INDEX.match(log)[0].remedy


def test_binary_of_another_device_has_one_remedy() -> None:
    match = INDEX.match("Native API returns: -42 (PI_ERROR_INVALID_BINARY)")[0]
    assert "spir64" in match.remedy and "UNINITIALIZED" not in match.remedy
