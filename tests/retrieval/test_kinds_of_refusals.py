# ruff: noqa: E501
"""Refusals of compilers, drivers and run times that several tools word alike: the signal, and the
names and numbers of the line in the remedy."""

import pytest

from retrieval.diagnose.signatures import SignatureIndex, load_signatures

INDEX = SignatureIndex(load_signatures())


def leading(log: str) -> tuple[str, str]:
    """The leading signal of a log and its remedy."""
    match = INDEX.match(log)[0]
    return match.signature.signal, match.remedy


COMPILERS = [
    # the operation's verifier leads over the exception around it
    (
        "loc(\"k.py\":7:4): error: 'vector.load' op operand #1 must be variadic of index, but got 'i32'\n"
        "RuntimeError: PassManager::run failed",
        "operand #1 is i32 and must be variadic of index",
    ),
    (
        "error: 'scf.for' op failed to verify that all of {lowerBound, upperBound, step} have same type",
        "Give lowerBound, upperBound, step one type",
    ),
    ("k.mlir:9:3: error: operand #0 does not dominate this use", "release that worked"),
    (
        "error: 'tensor.expand_shape' op source tensor rank is unknown: unranked tensor",
        "known rank or shape",
    ),
    # a lowering that is missing, with and without a location
    (
        "k.mlir:3:1: error: failed to legalize operation 'math.fpowi' that was explicitly marked illegal",
        "add the conversion of its dialect",
    ),
    (
        "loc(\"-\":2:7): error: failed to legalize operation 'stablehlo.fft'",
        "Check the input format",
    ),
    ("error: failed to legalize unresolved materialization from ('i32') to ('index')", "reconcile"),
    (
        "LLVM ERROR: Building op `gpu.launch` but it isn't known in this MLIRContext: the dialect may not be loaded",
        "dependent dialects",
    ),
    # sizes and alignments
    (
        "error: tile (24) must be a multiple of the swizzle (16)",
        "Make tile a multiple of 16: it is 24",
    ),
    (
        "error: expects src alignment to be 16 bytes: the pointer is not sufficiently aligned",
        "State the alignment",
    ),
    # an option of another compiler
    (
        "g++: error: unrecognized command-line option '--offload-arch=gfx90a'",
        "of clang and hipcc",
    ),
    ("clang: error: unknown argument: '-gencode'", "of nvcc"),
    # rules of shading languages and of SYCL
    ("Shader validation error:\n  Store of [7] into [5] doesn't have matching types", "explicitly"),
    ("Entry point blur at Compute is invalid\n  Uses operations forbidden at this stage", "level"),
    (
        "k.cpp:9:3: error: SYCL kernel cannot call an undefined function without SYCL_EXTERNAL attribute",
        "link both files",
    ),
    ("ERROR: Compilation to machine code failed; see below for details.", ""),
]


@pytest.mark.parametrize(("log", "words"), COMPILERS)
def test_refusal_of_a_compiler(log: str, words: str) -> None:
    signal, remedy = leading(log)
    assert signal == "compile_error"
    assert words in remedy


RUN_TIMES = [
    (
        "pyopencl._cl.LogicError: clEnqueueNDRangeKernel failed: INVALID_WORK_GROUP_SIZE",
        "launch_error",
        "reqd_work_group_size",
    ),
    ("clEnqueueNDRangeKernel failed.\n  status = -54\n", "launch_error", "reqd_work_group_size"),
    ("cuLaunchKernel failed:\n  error code: 701\n", "register_limit", "fewer threads"),
    (
        "Error: unimplemented function(s) used:\n__svml_exp8 is undefined\n -17 (CL_LINK_PROGRAM_FAILURE)",
        "link_error",
        "vector library",
    ),
    (
        "Local size {16, 1, 1} doesn't match the required work-group size {8, 1, 1} of the kernel",
        "launch_error",
        "",
    ),
    (
        "The pass has 1024 threads in a workgroup, which is more than the supported max of 512",
        "register_limit",
        "512 threads too much",
    ),
    (
        "kernel.cl:4:9: error: must specify '#pragma OPENCL EXTENSION cl_khr_fp64: enable' before using 'double'",
        "unsupported_dtype",
        "clinfo",
    ),
    (
        "RuntimeError: no kernel image is available for execution on the device",
        "launch_error",
        "another backend",
    ),
]


@pytest.mark.parametrize(("log", "signal", "words"), RUN_TIMES)
def test_refusal_of_a_run_time(log: str, signal: str, words: str) -> None:
    found, remedy = leading(log)
    assert found == signal
    assert words in remedy


def test_printed_tensor_with_nan() -> None:
    log = "step 12\ntensor([[nan, nan, 0.5],\n        [nan, 1.0, nan]], device='cuda:0')\n"
    assert leading(log)[0] == "numerical_instability"


def test_number_of_a_validation_rule_is_no_amount() -> None:
    log = (
        "Validation Error: [ VUID-vkCmdDispatch-groupCountX-00386 ] vkCmdDispatch(): groupCountX"
        " (70000) exceeds device limit maxComputeWorkGroupCount[0] (65535)."
    )
    match = INDEX.match(log)[0]
    assert match.signature.signal == "launch_error"
    assert match.quantities is not None
    assert (match.quantities["needed"], match.quantities["limit"]) == (70000, 65535)
