# ruff: noqa: E501, RUF001
"""Kinds of messages and profiles that several tools share, each with texts of different tools."""

import pytest

from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.given_profile import readings, with_known_counters
from retrieval.diagnose.log_lines import LogIndex
from retrieval.diagnose.signals import load_signals
from retrieval.diagnose.signatures import SignatureIndex, load_signatures, vendor_of_log
from retrieval.pasted import with_text
from retrieval.request import RetrieveRequest

INDEX = SignatureIndex(load_signatures())
DIAGNOSER = Diagnoser(load_signals())


def leading(log: str) -> tuple[str, str]:
    """The leading signal of a log and its remedy."""
    match = INDEX.match(log)[0]
    return match.signature.signal, match.remedy


def read(text: str) -> tuple[tuple[str, ...], str]:
    """The signals of a pasted text, and the notes of its profile as one text."""
    request = RetrieveRequest(**with_text({}, text))
    request, profile = with_known_counters(request)
    verdict = DIAGNOSER.conclude(request, {}, [], []).verdict
    return verdict.signal_ids, "; ".join(profile.notes if profile else ())


ESCAPED = [
    (
        r"""called `Result::unwrap()` on an `Err` value: BuildError("nvrtc: failed\nk.cu(12): error:"""
        r""" identifier \"tile_n\" is undefined\n\n1 error detected in \"k.cu\".\n")""",
        "compile_error",
    ),
    (
        r"""{"level":"error","ts":17.2,"stderr":"Traceback (most recent call last):\n  File"""
        r""" \"/app/serve.py\", line 81, in step\n    out = model(x)\nRuntimeError: CUDA error: an"""
        r""" illegal memory access was encountered\n"}""",
        "illegal_memory_access",
    ),
    (
        r"""CalledProcessError: returned 1, output: b'[1/3] hipcc -c k.hip\nld.lld: error: undefined"""
        r""" hidden symbol: scale_rows\n>>> referenced by k.hip\n'""",
        "link_error",
    ),
    (
        r"""time=2025-05-02T10:11:12Z level=ERROR err="ptxas a.ptx, line 9; error   : Instruction"""
        r""" 'wgmma.fence' not supported on .target 'sm_89'\nptxas fatal   : aborted\n" """,
        "compile_error",
    ),
]


@pytest.mark.parametrize(("log", "signal"), ESCAPED)
def test_escaped_text_is_read_by_lines(log: str, signal: str) -> None:
    signals, _ = read(log)
    assert signals[0] == signal
    assert {match.line_number for match in INDEX.match(log)} == {1}


@pytest.mark.parametrize(
    "line",
    [
        r"C:\nvidia\bin\nvcc.exe -o C:\new\a.exe a.cu",
        r"""    printf("CUDA error: %s\nfile %s", text, __FILE__);""",
        r"""  std::cerr << "error: out of memory\nfatal";""",
    ],
)
def test_paths_and_formats_are_not_escaped_text(line: str) -> None:
    assert LogIndex(line).all_lines == [line]


CAUSES = [
    (
        "[Error]: The vector core execution is abnormal.\n"
        "  errcode:(0, 0x8000, 0) errorStr: The address accessed by the L0A read is unaligned. x: 0",
        "misaligned_access",
        "Align",
    ),
    (
        "error code:507015\n there is an exception of aivec error, core id is 5\n"
        "  errorStr: The DDR address of the MTE instruction is out of range. info: 0\n"
        "Kernel task happen error, retCode=0x31, [vector core exception].",
        "illegal_memory_access",
        "offsets and lengths of DataCopy",
    ),
    (
        "[EZ9999]: Inner Error!\n"
        "  errorStr: VEC instruction error: the ub address out of bounds. fixp_error0 info: 0x0",
        "illegal_memory_access",
        "size of its local buffer",
    ),
    (
        "errorStr: The UB address of the VEC instruction is out of range",
        "illegal_memory_access",
        "size of its local buffer",
    ),
    (
        "ERROR 811 [neuronx-cc]:  An Internal Compiler Error has occurred\n"
        "ERROR 811 [neuronx-cc]: Error message:  The subgraph has no outputs that depend on inputs",
        "compile_error",
        "make them depend on the inputs",
    ),
    (
        "An Internal Compiler Error has occurred\nerror: the network has no outputs",
        "compile_error",
        "make them depend on the inputs",
    ),
    (
        "[TRT] [E] Error Code 4: Internal Error (Network must have at least one output)",
        "compile_error",
        "make them depend on the inputs",
    ),
    (
        "program_source:9:5: error: no type named 'cooperative_tensor' in namespace 'mpp'",
        "compile_error",
        "macOS 26",
    ),
]


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


@pytest.mark.parametrize(("log", "signal", "words"), [*CAUSES, *RUN_TIMES])
def test_named_cause_precedes_general_lines(log: str, signal: str, words: str) -> None:
    found, remedy = leading(log)
    assert found == signal
    assert words in remedy


@pytest.mark.parametrize(
    ("log", "signal"),
    [
        (
            "========= Invalid __global__ write of size 8 bytes\n=========     at fill+0x90\n"
            "=========     Address 0x7f24 is misaligned",
            "misaligned_access",
        ),
        ("========= Invalid __local__ read of size 4 bytes", "illegal_memory_access"),
        ("RuntimeError: Out of scratch memory in the plan of the attention", "out_of_memory"),
        ("error: workspace buffer too small: 1048576 given", "out_of_memory"),
        ("insufficient workspace for split-K", "out_of_memory"),
        ("make[1]: *** [Makefile:7: lib/my-cuda/CMakeFiles/all] Error 2", "compile_error"),
        ("make: *** [hip/kernels.o] Error 2", "compile_error"),
        ("make[3]: *** [cuda/gemm.o] Error 1", "compile_error"),
    ],
)
def test_exact_line_or_status_decides(log: str, signal: str) -> None:
    assert leading(log)[0] == signal


@pytest.mark.parametrize(
    ("log", "vendor"),
    [
        (
            "/System/Library/PrivateFrameworks/GPUCompiler.framework/x/metal_matrix:88:1: error:"
            " static_assert failed due to requirement 'is_same_v<T, U>'",
            "apple",
        ),
        ("program_source:402:18: error: no matching function for call to 'simd_sum'", "apple"),
        ("/usr/metal/32023/include/metal/metal_math:12:4: error: static_assert failed", "apple"),
        ("warning: kernel gemm compiled SIMD16 allocated 128 regs and spilled around 96", "intel"),
        ("ERROR 3 [neuron-cc]: Error message: no such operator", "aws"),
        ("k.cpp:30:5: error: static assertion failed due to requirement 'N % 16 == 0'", ""),
        ("k.cu(30): error: static assertion failed\nptxas fatal   : Unresolved", "nvidia"),
    ],
)
def test_vendor_by_the_tool_that_prints_the_form(log: str, vendor: str) -> None:
    assert (vendor_of_log(log) or ("",))[0] == vendor


@pytest.mark.parametrize(
    "log",
    [
        "AssertionError:\nNot equal to tolerance rtol=1e-05, atol=1e-06\n\n"
        "Mismatched elements: 0 / 4096 (0%)\nMax absolute difference: 0.",
        "E   AssertionError: Tensor-likes are not close!\nE\nE   Mismatched elements: 0 / 512 (0.0%)",
        "FAILED test_scan - Arrays are not almost equal\nMismatched elements: 0 / 77 (0%)",
    ],
)
def test_failed_comparison_without_a_wrong_element(log: str) -> None:
    match = INDEX.match(log)[0]
    assert "elements differ in its report" in match.title
    assert "Synchronise" in match.remedy


@pytest.mark.parametrize(
    "log",
    [
        "FAILED test_sum - AssertionError: outputs differ between runs: 12.25 != 12.5",
        "CHECK failed: result changes on every run (checksum 0x91 then 0x7f)",
        "output differs in each run of the kernel",
    ],
)
def test_results_that_differ_between_runs(log: str) -> None:
    assert leading(log)[0] == "nondeterminism"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("Error while parsing WGSL: :14:9 error: no matching overload for + (u32, f32)", "Tint"),
        ("ERROR: reduce.comp:21: 'subgroupAdd' : no matching overloaded function found", "glslang"),
        ("reduce.hlsl:17:12: error: use of undeclared identifier 'WaveMatrix'", "shader model"),
        ("w/reduce.hlsl(17,12-30): error X3004: undeclared identifier 'WaveActiveSum'", "DXC"),
        ("reduce.slang(33): error 30015: undefined identifier 'CoopMat'.", "Slang"),
        ("Shader 'sum' parsing error: expected ';', found '}'", "syntax is wrong"),
        (
            "Failed to parse the shader:\nerror: unexpected subgroup operation\n"
            "  ┌─ sum.wgsl:8:13\n8 │ let a = subgroupAdd(x);\n",
            "refuses subgroup operation",
        ),
    ],
)
def test_front_ends_of_shading_languages(log: str, words: str) -> None:
    signal, remedy = leading(log)
    assert signal == "compile_error"
    assert words in remedy


@pytest.mark.parametrize(
    "log",
    [
        "E autotuning/conv_algorithm_picker.cc:800] Results mismatch between different convolution"
        " algorithms. This is likely a bug/unexpected loss of precision in cudnn.",
        "AssertionError: Incorrect result from choice TritonTemplateCaller(mm_12)\n"
        "Tensor-likes are not close!\nMismatched elements: 900 / 4096 (22.0%)",
        "[tuner] candidate 17 (tile 128x128x32): wrong result, max error 0.12, rejected",
        "E buffer_comparator.cc:156] Difference at 3: 1.25, expected 1.5",
    ],
)
def test_check_of_an_autotuner(log: str) -> None:
    signal, remedy = leading(log)
    assert signal == "correctness_mismatch"
    assert "precision" in remedy


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        (
            "tvm.error.InternalError: Check failed: (n % 16 == 0) is false: The extent is 100\n"
            "LHS = [100]\nRHS = [16]\nYou may want to pad the buffer to a multiple of 16",
            'says what to do: "You may want to pad the buffer to a multiple of 16"',
        ),
        (
            "error: 'vector.contract' op cannot be lowered for this target\n"
            "Consider using the lowering strategy outerproduct instead",
            'says what to do: "Consider using the lowering strategy outerproduct instead"',
        ),
        (
            "RuntimeError: shape '[8, 3]' is invalid for input of size 25\n"
            "You might need to call contiguous() before the view",
            'says what to do: "You might need to call contiguous() before the view"',
        ),
    ],
)
def test_advice_of_a_message_is_a_sentence(log: str, advice: str) -> None:
    assert advice in leading(log)[1]


@pytest.mark.parametrize(
    "log",
    [
        'loc("k.mlir":1:1): error: Failed to run the NVVM pipeline',
        "error: 'func.func' op failed to run translation pipeline for this target",
        "<unknown>:0: error: cannot execute pass pipeline 'tile-and-fuse'",
    ],
)
def test_name_of_a_pipeline_is_no_loop(log: str) -> None:
    assert "num_stages" not in leading(log)[1]


def test_loop_that_is_not_pipelined() -> None:
    log = 'loc("k.py":3:1): error: unable to pipeline the loop because of a dependence'
    assert "num_stages = 1" in leading(log)[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("warning: kernel add  compiled SIMD32 allocated 128 regs and spilled around 4", "a few"),
        ("warning: kernel gemm  compiled SIMD16 allocated 128 regs and spilled around 96", "many"),
        ("warning: kernel sort  compiled SIMD32 allocated 128 regs and spilled around 60", "of 16"),
    ],
)
def test_spills_by_size_and_mode(text: str, words: str) -> None:
    signals, notes = read(text)
    assert signals[0] == "register_spill"
    assert words in notes
    assert "large register file" in notes


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        (
            "> On average, each warp of this kernel spends 12.1 cycles being stalled waiting for"
            " sibling warps at a CTA barrier. This represents about 61.2% of the total average",
            "sync_stall",
        ),
        (
            'It says "each warp spends 30.2 cycles being stalled waiting for a scoreboard dependency'
            ' on a L1TEX (local, global, surface, texture) operation"',
            "memory_latency",
        ),
        ("- Stall LG Throttle: 48.1 %\n- Stall Long Scoreboard: 21.0 %\n", "not_vectorized"),
        ("Top stall: Long Scoreboard (62.3 %), then Barrier (9 %).", "memory_latency"),
        ("stall_lg_throttle 71%\nstall_mio_throttle 3%", "not_vectorized"),
    ],
)
def test_rules_and_stalls_of_ncu_in_any_text(text: str, signal: str) -> None:
    assert read(text)[0][0] == signal


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "| Kernel | Time (us) | DRAM throughput | Occupancy | Regs |\n|---|---|---|---|---|\n"
            "| `rms` | 14.2 | **91.8 %** | 88 % | 32 |\n| `rope` | 6.1 | **60.2 %** | 71 % | 40 |",
            "reaches 91.8 %",
        ),
        (
            "| kernel | HBM BW % peak | L2 hit |\n|:--|--:|--:|\n| attn | **88%** | 12% |\n"
            "| proj | 71% | 35% |",
            "reaches 88 %",
        ),
        (
            "| Kernel | Duration | SM throughput (%) | Memory bandwidth util (%) |\n|---|---|---|---|"
            "\n| **softmax** | **210 µs** | 22.1 | **73.9** |",
            "reaches 73.9 %",
        ),
    ],
)
def test_tables_of_people_with_emphasis_and_units(text: str, words: str) -> None:
    signals, notes = read(text)
    assert signals[0] == "memory_bound"
    assert words in notes


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        (
            " Performance counter stats for './stencil':\n\n    12.345.678.901      cycles   (66,70%)\n"
            "     6.100.200.300      instructions      #    0,49  insn per cycle   (66,60%)\n"
            "        80.123.456      cache-references                               (66,70%)\n"
            "        52.000.111      cache-misses      #   64,90 % of all cache refs (66,66%)\n\n"
            "       3,401222333 seconds time elapsed",
            "memory_latency",
        ),
        (
            " Performance counter stats for 'run':\n\n      3 345 678      LLC-loads\n"
            "      2 445 678      LLC-load-misses  #   73,10% of all LL-cache accesses  (50,10%)\n\n"
            "       0,045123456 seconds time elapsed",
            "memory_latency",
        ),
        (
            " Performance counter stats for 'lookup':\n\n   45’123’456      L1-dcache-loads\n"
            "   15’000’321      L1-dcache-load-misses   #   33.24% of all L1-dcache accesses\n\n"
            "       0.101234567 seconds time elapsed\n",
            "cache_thrash",
        ),
        (
            " Performance counter stats for './reduce':\n\n"
            "         28\u202f950,11 msec task-clock        #    7,238 CPUs utilized\n"
            "    99\u202f000\u202f123\u202f456      cycles            #    3,420 GHz\n"
            "    50\u202f000\u202f123\u202f456      instructions      #    0,51  insn per cycle\n"
            "    12\u202f000\u202f123\u202f456      branches          #  414,512 M/sec\n\n"
            "       4,000123456 seconds time elapsed",
            "sync_stall",
        ),
    ],
)
def test_perf_stat_of_any_locale(text: str, signal: str) -> None:
    signals, _ = read(text)
    assert signals[0] == signal
    assert "measurement_error" not in signals


def test_full_occupancy_is_no_question() -> None:
    text = (
        "    Section: Scheduler Statistics\n    Metric Name  Metric Unit Metric Value\n"
        "    WRN   each scheduler only issues an instruction every 5.0 cycles. Out of the maximum of\n"
        "          16 warps per scheduler, this kernel allocates an average of 15.60 active warps\n"
    )
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    verdict = DIAGNOSER.conclude(request, {}, [], []).verdict
    assert not [name for name in verdict.measure_next if "occupancy" in name]
    assert "more occupancy does not help" in readings(dict(request.metrics or {}))[0]


# -- refusals of compilers, drivers and run times that several tools word alike: the signal, and the
# names and numbers of the line in the remedy

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


LAUNCHES = [
    # a dimension of the grid or the block is compared with CUDA's limits
    (
        "RuntimeError: CUDA error: invalid configuration argument\n  grid: (64, 70000, 1) block: (256, 1, 1)",
        "70,000 blocks in y",
    ),
    (
        "CUDA_ERROR_INVALID_VALUE: cuLaunchKernel(f, gridDim=[1, 1, 100000], blockDim=[32, 1, 1])",
        "100,000 blocks in z",
    ),
    (
        "numba.cuda.cudadrv.driver.CudaAPIError: [1] Call to cuLaunchKernel results in CUDA_ERROR_INVALID_VALUE\n"
        "grid size = 4x80000x1, block size = 128x1x1",
        "80,000 blocks in y",
    ),
    (
        "cudaErrorInvalidConfiguration: launch of k<<<(12, 66000, 1), 256>>>",
        "66,000 blocks in y",
    ),
    (
        "Triton Error [CUDA]: invalid argument\ncuLaunchKernel: invalid argument, grid=(1, 1, 131072)",
        "131,072 blocks in z",
    ),
    (
        "cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_INVALID_VALUE: invalid argument\n"
        "block=(64, 32, 1), grid=(10, 1, 1)",
        "2,048 threads in x * y",
    ),
    # no dimension exceeds its limit
    (
        "CUDA_ERROR_INVALID_VALUE: cuLaunchKernel(f, gridDim=[100000, 4, 4], blockDim=[32, 4, 1])",
        "Check sizes, grid",
    ),
    # limits of the tool's own vendor
    (
        "[ERROR] [AscPlugin] Kernel: [add] BlockDim: [70000] kernel launch failure!",
        "70,000 blocks, and CANN allows 65,535",
    ),
    ("[ERROR] RUNTIME rtKernelLaunch: kernel launch failed, blockDim=0", "1 to 65,535 blocks"),
]


@pytest.mark.parametrize(("log", "words"), LAUNCHES)
def test_sizes_of_a_launch_are_compared_with_the_limits(log: str, words: str) -> None:
    signal, remedy = leading(log)
    assert signal == "launch_error"
    assert words in remedy


OF_CAUSE = [
    # the advice for the platform of the message
    (
        '  File "/v/jax/_src/pallas/x.py", line 5, in lower\n'
        "NotImplementedError: unsupported backend: cpu. To run on GPU, install the CUDA plugin. To run on CPU, pass interpret=True",
        "compile_error",
        "pass interpret=True",
    ),
    (
        '  File "/v/torch/_inductor/x.py", line 5, in lower\n'
        "RuntimeError: no kernel for device type: xpu. For CUDA, set TORCH_CUDA_ARCH_LIST. For XPU, install the Intel oneAPI compiler",
        "compile_error",
        "install the Intel oneAPI",
    ),
    # a type that the language lacks is no misspelt one
    (
        "program_source:9:4: error: unknown type name 'bfloat'; did you mean 'float'?",
        "compile_error",
        "version 3.1",
    ),
    (
        "k.metal:3:8: error: unknown type name 'bfloat16_t'; did you mean 'float16_t'?",
        "compile_error",
        "3.1",
    ),
    (
        "k.cu:7:3: error: unknown type name 'half2'; did you mean 'float2'?",
        "compile_error",
        "cuda_fp16.h",
    ),
    (
        "k.hip:7:3: error: unknown type name '__half'; did you mean 'half'?",
        "compile_error",
        "hip/hip_fp16.h",
    ),
    (
        "k.cl:2:1: error: unknown type name 'float16_t'; did you mean 'float16'?",
        "compile_error",
        "type of this language",
    ),
    # a dialect that is not loaded
    (
        "error: 'arith.constant' op created with unregistered dialect. If this is intended, please call allowUnregisteredDialects()",
        "compile_error",
        "dependent dialects",
    ),
    (
        "<unknown>:0: error: 'gpu.launch' created with unregistered dialect",
        "compile_error",
        "loadDialect",
    ),
    # the values that a message allows precede "make sure"
    (
        "k.mlir:1:1: error: unknown pipeline stage; ensure it is one of the registered ones (available = ['tile' 'vectorize'])",
        "compile_error",
        "tile, vectorize",
    ),
    (
        'error: unsupported mma kind "tf64"; make sure to choose a supported one (supported: [f16, bf16, tf32])',
        "compile_error",
        "f16, bf16, tf32",
    ),
    (
        "error: unregistered device alias \"cuda-nvptx\"; ensure it is linked into the compiler (available = [ 'local' ])",
        "compile_error",
        "--iree-hal-target-device",
    ),
    (
        "error: Unknown CUDA target 'gfx942'\nStack dump:\n0. Program arguments: iree-compile",
        "compile_error",
        "does not know gfx942",
    ),
    # features of Vulkan
    (
        "Validation Error: [ VUID-VkShaderModuleCreateInfo-pCode-08740 ] vkCreateShaderModule(): SPIR-V Capability Float16 was declared, but one of the following requirements is required (VkPhysicalDeviceVulkan12Features::shaderFloat16).",
        "launch_error",
        "shaderFloat16",
    ),
    (
        "Validation Error: [ VUID-VkShaderModuleCreateInfo-pCode-08740 ] SPIR-V Capability Int64Atomics was declared, but one of the following requirements is required (VkPhysicalDeviceVulkan12Features::shaderBufferInt64Atomics)",
        "launch_error",
        "the device was created without",
    ),
    # atomics by architecture
    (
        'k.cu(4): error: no instance of overloaded function "atomicAdd" matches the argument list\n  argument types are: (double *, double)',
        "compile_error",
        "Compare the argument types",
    ),
    (
        "error: no matching function for call to 'atomicAdd(__half*, __half)'",
        "unsupported_dtype",
        "sm_70",
    ),
    (
        'error: no instance of overloaded function "atomicMax" matches the argument list, argument types are: (float *, float)',
        "unsupported_dtype",
        "atomicCAS",
    ),
    (
        "error: no matching function for call to 'atomicAdd(int64_t*, int64_t)'",
        "unsupported_dtype",
        "unsigned long long",
    ),
    (
        'error: no instance of overloaded function "atomicAdd" matches the argument list, argument types are: (__nv_bfloat16 *, __nv_bfloat16)',
        "unsupported_dtype",
        "sm_80",
    ),
    # source of a function that Python does not have
    ("ValueError: @jit functions should be defined in a Python file", "compile_error", ".py file"),
    (
        "OSError: Can't get source for <function f at 0x7f>. TorchScript requires source access",
        "compile_error",
        ".py file",
    ),
    ("OSError: source code not available", "compile_error", "linecache"),
    ("RuntimeError: Cannot get source code of kernel add", "compile_error", "stdin"),
    ("OSError: could not get source code", "compile_error", "inspect"),
    # checks of a compiler's own source
    (
        "2024-03-01 10:00:00.1: F external/xla/xla/service/gpu/gpu_compiler.cc:88] Check failed: module != nullptr",
        "compile_error",
        "ptxas",
    ),
    (
        "F0301 10:00:00.100 77 external/tsl/tsl/platform/default/env.cc:74] Check failed: ret == 0 (11 vs. 0)Thread creation failed",
        "compile_error",
        "of XLA and not of your program",
    ),
    # unresolved functions of device code
    ("zeKernelCreate failed with error 2013265944", "link_error", "SYCL_EXTERNAL"),
    (
        "Native API returns: ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED",
        "link_error",
        "same device image",
    ),
    (
        "error : unresolved external symbol _Z3fooi at offset 1424 in instructions segment #1",
        "link_error",
        "build log",
    ),
    # double in OpenCL
    (
        "<program source>:3:14: warning: double precision constant is only supported with cl_khr_fp64, casting to single precision",
        "accidental_fp64",
        "1.0f",
    ),
    (
        "k.cl:1:26: warning: unsupported OpenCL extension 'cl_khr_fp64' - ignoring",
        "accidental_fp64",
        "CL_DEVICE_EXTENSIONS",
    ),
    (
        "<kernel>:5:3: error: use of type 'double' requires cl_khr_fp64 support",
        "unsupported_dtype",
        "#pragma OPENCL EXTENSION cl_khr_fp64",
    ),
    (
        "a.cl:5:3: error: declaring variable of type 'half' is not allowed",
        "unsupported_dtype",
        "vload_half",
    ),
    (
        "1:9: error: use of type 'half' requires cl_khr_fp16 extension to be enabled",
        "unsupported_dtype",
        "cl_khr_fp16",
    ),
]


@pytest.mark.parametrize(("log", "signal", "words"), OF_CAUSE)
def test_remedy_is_of_the_cause(log: str, signal: str, words: str) -> None:
    found, remedy = leading(log)
    assert found == signal
    assert words in remedy


ORDER = [
    # a failed call precedes wrong values and the frame of a test
    (
        "  REQUIRE( err == 0 )\nwith expansion:\n  CUDA error 700: an illegal memory access was encountered",
        "illegal_memory_access",
    ),
    (
        "mismatch at 3: cpu 1.0 vs gpu 0.0\nclBuildProgram: CL_INVALID_PROGRAM_EXECUTABLE",
        "link_error",
    ),
    (
        "Mismatched elements: 4096 / 4096 (100%)\nCUDA error: an illegal memory access was encountered",
        "illegal_memory_access",
    ),
    (
        "wrong result: expected 1 got 0\nptxas error   : Entry function 'k' uses too much shared data (0x10000 bytes, 0xc000 max)",
        "shared_memory_limit",
    ),
    (
        "Max abs diff: 3.0\nhipErrorNoBinaryForGpu: Unable to find code object for all current devices",
        "launch_error",
    ),
    # sizes precede the code of the call
    (
        "clEnqueueNDRangeKernel: CL_OUT_OF_RESOURCES\nlocal memory size (70000) exceeds device maximum of 65536",
        "shared_memory_limit",
    ),
    (
        "UR_RESULT_ERROR_OUT_OF_RESOURCES\nrequired shared memory 140000 bytes, maximum 131072 bytes is exceeded",
        "shared_memory_limit",
    ),
    # wrong values alone lead
    ("Mismatched elements: 12 / 4096 (0.3%)\nAborted (core dumped)", "correctness_mismatch"),
    ("with expansion:\n  0.5f == Approx( 0.25f )", "correctness_mismatch"),
]


@pytest.mark.parametrize(("log", "signal"), ORDER)
def test_cause_precedes_its_consequence(log: str, signal: str) -> None:
    assert leading(log)[0] == signal


GPU_DRIVERS = [
    "[   82.1] panfrost ffe40000.gpu: Unhandled Page fault in AS0 at VA 0x000000000A000000",
    "[   82.1] panthor fb000000.gpu: [drm] Unhandled Page fault in AS1 at VA 0x0000FFFF00000000",
    "[   82.1] v3d fec00000.v3d: [drm] MMU error from client L2T (0) at 0x1b5a100, pte invalid",
    "[   82.1] etnaviv-gpu 130000.gpu: MMU fault status 0x00000001",
    "[   82.1] msm_dpu ae01000.mdp: [drm:a6xx_irq] *** gpu fault: ttbr0=0001e2 iova=0000000000000000 dir=READ type=TRANSLATION",
    "[   82.1] nouveau 0000:01:00.0: fifo: fault 00 [READ] at 0000000000020000 engine 00 [GR] client 0f reason 02 [PTE]",
]


@pytest.mark.parametrize("line", GPU_DRIVERS)
def test_page_fault_of_any_gpu_driver(line: str) -> None:
    assert leading(line)[0] == "illegal_memory_access"


RACES = [
    "WARNING: ThreadSanitizer: data race (pid=21)",
    "WARNING: ThreadSanitizer: data race on vptr (ctor/dtor vs virtual call) (pid=3)",
    "WARNING: ThreadSanitizer: destroy of a locked mutex (pid=9)",
    "==9==WARNING: ThreadSanitizer: heap-use-after-free (pid=9)",
    "WARNING: ThreadSanitizer: unlock of an unlocked mutex (or by a wrong thread) (pid=4)",
]


@pytest.mark.parametrize("line", RACES)
def test_finding_of_a_sanitizer_is_no_mere_warning(line: str) -> None:
    signal, remedy = leading(line)
    assert signal == "nondeterminism"
    assert "libomp" in remedy


NKI_PSUM = (
    "Matmult dst tensor is not psum: TongaSB (1, 128, 512) = matmul(...)\n"
    "SyntaxError: Internal compiler error: kernel failed verifier check. See above for actual error"
    " message."
)
RULES = [
    (NKI_PSUM, "buffer=nl.psum"),
    (
        "k.cpp:33:9: error: dst must be in UB\nbisheng: error: clang frontend command failed with"
        " exit code 70 (use -v to see invocation)",
        "Change dst so that it holds",
    ),
    (
        "'hivm.hir.vadd' op operand is not aligned to 32 bytes\n"
        "Internal compiler error: verification failed",
        "Change op operand so that it holds",
    ),
    (
        "python: /llvm/lib/Dialect/TritonGPU/IR/Dialect.cpp:900: foo: Assertion `rank == 2 &&"
        """ "operand must be rank 2"' failed.""",
        "Change operand so that it holds",
    ),
    (
        "error: 'tpu.dma' op target memory space must be VMEM\ninternal compiler error",
        "target memory space so that it holds",
    ),
]


@pytest.mark.parametrize(("log", "remedy"), RULES)
def test_rule_about_the_source_leads_over_the_internal_error_after_it(
    log: str, remedy: str
) -> None:
    first = INDEX.match(log)[0]
    assert first.failure_class == "user_mistake"
    assert first.line_number == 1
    assert remedy in first.remedy
    assert "fault of the compiler" not in first.remedy


@pytest.mark.parametrize(
    "above", ["", "warning: operand should be aligned to 16 bytes\n", "source file is not open\n"]
)
def test_internal_error_without_a_rule_stays_a_fault_of_the_compiler(above: str) -> None:
    log = f"{above}k.cpp:3:1: internal compiler error: in gimplify_expr, at gimplify.cc:33"
    assert INDEX.match(log)[0].failure_class == "compiler_crash"
