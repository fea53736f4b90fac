"""Real messages are recognised quickly, and untrusted patterns cannot block the service."""

import re
import shutil
import subprocess
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb.errors import InvalidKnowledge
from retrieval.diagnose.linear_patterns import compile_linear
from retrieval.diagnose.message import Advice, excess_in
from retrieval.diagnose.signals import DATA
from retrieval.diagnose.signatures import (
    SignatureIndex,
    load_signatures,
    normalise_error,
    query_lines,
    signature_from_mapping,
    vendor_of_log,
)
from tests.places import ROOT

INDEX = SignatureIndex(load_signatures())
MANGLED = "_ZN6alpaka6detail9gpuKernel" + "I14LockStepKernel" * 300

MESSAGES = [
    (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, "
        "Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        "shared_memory_limit",
    ),
    ("arange's range must be a power of 2", "compile_error"),
    ("arange's arguments must be of type tl.constexpr", "compile_error"),
    ("input and other must have equal reduction dimensions", "compile_error"),
    ("Input shapes should have M >= 1, N >= 1 and K >= 16", "compile_error"),
    ("Both operands must be same dtype. Got fp16 and fp32", "compile_error"),
    (
        "type fp8e4nv not supported in this architecture. The supported fp8 dtypes are "
        "('fp8e4b15', 'fp8e5')",
        "unsupported_dtype",
    ),
    (
        "ValueError('Cannot make_shape_compatible: incompatible dimensions at index 0: 16 and 32')",
        "compile_error",
    ),
    ("unsupported AST node type: Break", "compile_error"),
    (
        f"ptxas error   : Entry function '{MANGLED}' uses too much shared data (0xe810 bytes, "
        "0xc000 max)",
        "shared_memory_limit",
    ),
    (
        "ptxas p.ptx, line 4; error   : Instruction 'wgmma.fence' not supported on .target 'sm_70'",
        "compile_error",
    ),
    (
        "ptxas p.ptx, line 4; error   : Feature '.bf16x2' requires .target sm_80 or higher",
        "unsupported_dtype",
    ),
    ("ptxas fatal   : Unresolved extern function '_Z1qf'", "link_error"),
    ("ptxas p.ptx, line 4; error   : Unknown modifier '.bar'", "compile_error"),
    ("nvcc fatal   : Unsupported gpu architecture 'sm_12'", "compile_error"),
    ('a.cu(1): error: identifier "undefined_fn" is undefined', "compile_error"),
    ('a.cu(1): error: expected a ";"', "compile_error"),
    (
        "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
        "illegal_memory_access",
    ),
    ("torch.AcceleratorError: CUDA error: misaligned address", "misaligned_access"),
    ("CUDA error: too many resources requested for launch", "register_limit"),
    ("CUDA error: no kernel image is available for execution on the device", "launch_error"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", "out_of_memory"),
    (
        "Memory access fault by GPU node-1 (Agent handle: 0x1f829860) on address 0x7a8a4be00000. "
        "Reason: Page not present or supervisor privilege.",
        "illegal_memory_access",
    ),
    ("RuntimeError: HIP error: invalid device function", "launch_error"),
    (
        "error: <unknown>:0:0: local memory (82944) exceeds limit (65536) in function 'gemm1'",
        "shared_memory_limit",
    ),
    ("error: ran out of registers during register allocation", "register_limit"),
    ("d.cpp:2:10: fatal error: nothere.h: No such file or directory", "compile_error"),
    ("e.cpp:4:24: error: cannot convert \u2018double\u2019 to \u2018int*\u2019", "compile_error"),
    ("f.cpp:(.text+0x5): undefined reference to `z()'", "link_error"),
    ("test.s:12: Error: illegal operands `vadd.vv v0,v1,v2,v0.t'", "compile_error"),
    ("Segmentation fault (core dumped)", "illegal_memory_access"),
    (
        "[NCC_EOOM002] The combined memory needed for the model tensors exceeds the limit",
        "out_of_memory",
    ),
    ("[NCC_EVRF007] The number of instructions generated exceeds the limit.", "compile_error"),
    ("[NCC_EVRF051] Data type F8E4M3FN is not supported on TRN1/TRN2.", "unsupported_dtype"),
    ("[NCC_EVRF031] The compiler encountered a scatter out-of-bounds error.", "compile_error"),
    (
        "ERROR  TDRV:exec_consume_infer_status_notifications (FATAL-RT-UNDEFINED-STATE) inference "
        "timeout (600000 ms) on Neuron Device 4 NC 1",
        "timeout",
    ),
    ("AssertionError: Tensor-likes are not close!", "correctness_mismatch"),
    ("subprocess.TimeoutExpired: Command 'python' timed out after 30 seconds", "timeout"),
    ("ModuleNotFoundError: No module named 'triton.backends.ascend'", "link_error"),
    ("ValueError: output contains NaN", "numerical_instability"),
]

# A line of each tool family: its signal, the kind of failure, the line.
FAMILIES = [
    tuple(row.split("\t"))
    for row in (Path(__file__).parent / "signature_lines.tsv").read_text("utf-8").splitlines()
    if not row.startswith("#")
]

TRITON_FRAME = '  File "/venv/site-packages/triton/language/semantic.py", line 3, in dot'
INDUCTOR_FRAME = '  File "/venv/site-packages/torch/_inductor/scheduler.py", line 3, in fuse'
USER_FRAME = '  File "/home/ann/bench.py", line 3, in main'

# Logs with similar lines, and the signal that leads.
TELLING_APART = [
    (
        "an allocation that fails before the heap breaks",
        "backend: buffer allocation of 91,226,112 bytes failed\ndouble free or corruption (out)",
        "out_of_memory",
    ),
    (
        "the cause of a lost device",
        "The driver stopped responding and was reset\nDEVICE LOST: Unknown: Device is lost",
        "timeout",
    ),
    (
        "an element type behind the name of a call",
        "RuntimeError: call aclnnMul failed, detail:EZ9: dtype not implemented for DT_INT4",
        "unsupported_dtype",
    ),
    (
        "a type in a test whose name looks like a code",
        "FAILED t.py::test_h[arch=vulkan-4] - RuntimeError: [emit.cpp:7] Type f16 not supported.",
        "unsupported_dtype",
    ),
    (
        "symbols that a later lookup misses",
        "JIT session error: Symbols not found: [ rt_open ]\nRuntimeError: Unknown function f_1",
        "link_error",
    ),
    (
        "memory inside a failed check",
        "InternalError: Check failed: (e == VK_SUCCESS) is false: VK_ERROR_OUT_OF_DEVICE_MEMORY",
        "out_of_memory",
    ),
    ("a tuner's launch", "Failed during launch reduce_k with config BLOCK: 4096", "launch_error"),
    (
        "an allocator of a TPU",
        "(1) Resource exhausted: Attempting to allocate 9.5G.",
        "out_of_memory",
    ),
    ("loss scaling", "Gradient overflow. Skipping step 12", "numerical_instability"),
    (
        "a warning before the error",
        'k.cu(2): warning #177-D: out of memory\nk.cu(9): error: expected a ";"',
        "compile_error",
    ),
    (
        "a note after the error",
        "a.c:1:2: error: too few arguments\na.c:9:1: note: Segmentation fault in the example",
        "compile_error",
    ),
    (
        "warnings alone",
        "a.c:3:1: warning: undefined reference to a label\n"
        "W1123 07:31:02 4121 x.py:15] out of memory, trying again",
        None,
    ),
    (
        "a warning of Python",
        "/w/a.py:5: UserWarning: CUDA initialization: Found no NVIDIA driver",
        None,
    ),
    (
        "spills next to an error",
        "8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
        'k.cu(9): error: expected a ";"',
        "compile_error",
    ),
    (
        "the linker's last line",
        "collect2: error: ld returned 1 exit status\n"
        "f.cpp:(.text+0x5): undefined reference to `z()'",
        "link_error",
    ),
    (
        "the build's last line",
        "ninja: build stopped: subcommand failed.\n/usr/bin/ld: cannot find -lcublas",
        "link_error",
    ),
    (
        "quoted source",
        "a.c:4:9: error: expected ';'\n    4 | throw std::bad_alloc()\n      |         ^",
        "compile_error",
    ),
    (
        "raise in a traceback",
        f"{USER_FRAME}\n    raise RuntimeError('CUDA out of memory')\nValueError: no",
        "launch_error",
    ),
    (
        "assertion in Triton",
        f"Traceback (most recent call last):\n{TRITON_FRAME}\nAssertionError: bad",
        "compile_error",
    ),
    ("assertion in Inductor", f"{INDUCTOR_FRAME}\n    assert x\nAssertionError", "compile_error"),
    (
        "assertion of the user",
        f"{INDUCTOR_FRAME}\n{USER_FRAME}\n    assert n > 0\nAssertionError",
        "launch_error",
    ),
    (
        "comparison by the user",
        f"{USER_FRAME}\n    assert torch.allclose(a, b)\nAssertionError",
        "correctness_mismatch",
    ),
    (
        "a frame of pytest",
        "E   AssertionError\n\n/venv/triton/compiler/code_generator.py:12: AssertionError",
        "compile_error",
    ),
    ("a program's own error", "ERROR: could not read the weights", None),
    ("a compiler's own error", "error: instruction is unknown", "compile_error"),
    (
        "a rank's line",
        f"[rank3]: Traceback\n[rank3]:{TRITON_FRAME}\n[rank3]: ValueError: no",
        "compile_error",
    ),
    (
        "configuration that succeeded",
        "-- Could NOT find MPI (missing: MPI_CXX_FOUND)\n-- Configuring done",
        None,
    ),
    (
        "a run that succeeded",
        "14 tests passed, max abs error 3.1e-07, no mismatches, 0 errors",
        None,
    ),
]


def test_signatures_have_remedies() -> None:
    assert len(load_signatures()) >= 45
    assert all(signature.title and signature.remedy for signature in load_signatures())


@pytest.mark.parametrize(("message", "signal"), MESSAGES)
def test_real_messages(message: str, signal: str) -> None:
    log = f'Traceback (most recent call last):\n  File "x.py", line 3, in f\n{message}\n'
    matches = INDEX.match(log)
    assert matches, message[-200:]
    assert matches[0].signature.signal == signal
    assert matches[0].line_number == 3


@pytest.mark.parametrize(("signal", "failure_class", "message"), FAMILIES)
def test_real_line_of_each_family(signal: str, failure_class: str, message: str) -> None:
    leading = INDEX.match(f"Traceback (most recent call last):\n{USER_FRAME}\n{message}\n")[0]
    assert (leading.signature.signal, leading.signature.failure_class) == (signal, failure_class)


@pytest.mark.parametrize(
    ("log", "signal"), [row[1:] for row in TELLING_APART], ids=[row[0] for row in TELLING_APART]
)
def test_leading_signature(log: str, signal: str | None) -> None:
    matches = INDEX.match(log)
    assert (matches[0].signature.signal if matches else None) == signal


def test_log_of_success_has_no_signature() -> None:
    log = (Path(__file__).parent / "success_lines.txt").read_text("utf-8")
    assert [(match.signature.id, match.line) for match in INDEX.match(log)] == []


def test_remedy_names_cause_in_line() -> None:
    (undefined,) = INDEX.match("a.o: undefined reference to `fill_border'")
    assert undefined.title == "The linker misses fill_border"
    assert "fill_border" in undefined.remedy
    (shared,) = INDEX.match("out of resource: shared memory, Required: 163840, Hardware limit: 101")
    assert "163,840" in shared.title and "101" in shared.title
    (long,) = INDEX.match(f"a.o: undefined reference to `{MANGLED}'")
    assert len(long.title) < 200


def test_placeholders_are_groups_of_pattern() -> None:
    for signature in load_signatures():
        named = set(re.findall(r"\{(\w+)\}", signature.title + signature.remedy))
        assert named <= compile_linear(signature.pattern).groups | {"stages"}, signature.id
        assert signature.failure_class is not None, signature.id


def test_numbers_are_extracted_in_canonical_units() -> None:
    (shared,) = INDEX.match(MESSAGES[9][0])
    assert shared.extracted == {"shared_memory_per_block_bytes": 0xE810}
    (spill,) = INDEX.match(
        "    412 bytes stack frame, 380 bytes spill stores, 620 bytes spill loads"
    )
    assert spill.signature.signal == "register_spill"
    assert spill.extracted["spill_store_bytes"] == 380
    (share,) = INDEX.match("Mismatched elements: 12 / 48 (25.0%)")
    assert share.extracted == {"mismatched_pct": 25.0}


def test_resource_report_without_spills_gives_no_signal() -> None:
    assert INDEX.match("    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") == []
    both = "4 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n" * 3
    both += "8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
    assert [match.line_number for match in INDEX.match(both)] == [4]


def test_specific_signature_outranks_generic_and_repeats_are_dropped() -> None:
    log = "\n".join(
        ["make: *** [all] Error 2", "a.cu(1): error: something"]
        + [f"CUDA error: an illegal memory access was encountered at 0x{i:x}" for i in range(50)]
    )
    matches = INDEX.match(log)
    assert matches[0].signature.id == "cuda-illegal-address"
    assert [m.signature.id for m in matches].count("cuda-illegal-address") == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_output_of_installed_compiler(tmp_path: Path) -> None:
    source = tmp_path / "f.cpp"
    source.write_text("void z(); int main() { z(); }\n")
    command = ["g++", str(source), "-o", str(tmp_path / "f")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert INDEX.match(ran.stderr)[0].signature.signal == "link_error"


def test_colours_carriage_returns_and_empty_logs() -> None:
    assert (
        INDEX.match("\x1b[31mCUDA error: \x1b[1mmisaligned address\x1b[0m\r\n")[0].line_number == 1
    )
    assert INDEX.match("") == []
    assert query_lines("") == []
    assert query_lines("\n\n") == []


def build_log(size: int) -> str:
    lines = [
        f"[{i}%] Building CXX object src/module_{i % 97}/file_{i}.cc.o with -O2 -Wall "
        f"warning: unused variable 'x{i}' at 0x{i * 7919:x}"
        for i in range(size // 110)
    ]
    middle = len(lines) // 2
    return "\n".join([*lines[:middle], MESSAGES[9][0], *lines[middle:]])


def test_log_of_five_megabytes_is_scanned_quickly() -> None:
    log = build_log(5_000_000)
    started = time.process_time()
    matches = INDEX.match(log)
    lines = query_lines(log)
    assert time.process_time() - started < 2.0  # 0.3 s alone; more on a busy machine
    assert matches[0].signature.id == "ptxas-shared-data"
    assert "uses too much shared data" in lines[0] or "ptxas error" in lines[0]


@pytest.mark.parametrize(
    "line",
    [
        *("error: " * 300, "a" * 5_000_000, "error" * 100_000, "x\n" * 500_000),
        "\n".join("a" * i + "needs 2 max 3 " * 120 for i in range(100)),
    ],
)
def test_malformed_logs_are_scanned_in_bounded_time(line: str) -> None:
    started = time.process_time()
    INDEX.match(line)
    query_lines(line)
    assert time.process_time() - started < 3.0


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300))
def test_any_text_can_be_scanned(log: str) -> None:
    INDEX.match(log)
    assert len(query_lines(log, limit=3)) <= 3


HARDWARE = {
    "pattern": r"TILE_OVERFLOW: need (?P<need>\d+) bytes",
    "signal": "shared_memory_limit",
    "title": "The tile does not fit the scratchpad",
    "remedy": "Shrink the tile.",
}


def test_chip_signature_does_not_precede_error() -> None:
    spill = {"pattern": "spilled words", "signal": "register_spill", "title": "t", "remedy": "r"}
    index = SignatureIndex([*load_signatures(), signature_from_mapping(spill, "acme1")])
    matches = index.match("3 spilled words\nk.nv:3:1: error: E1042")
    assert [match.signature.signal for match in matches] == ["compile_error", "register_spill"]


def test_chip_signature_is_added_to_built_in_ones() -> None:
    own = signature_from_mapping(
        HARDWARE | {"extract": {"need": "shared_memory_per_block_bytes"}}, "acme1"
    )
    again = signature_from_mapping(HARDWARE, "acme1")
    assert own.id == again.id and own.origin == "acme1"
    (match,) = SignatureIndex([*load_signatures(), own]).match(
        "error: TILE_OVERFLOW: need 70000 bytes"
    )
    assert match.signature == own
    assert match.extracted == {"shared_memory_per_block_bytes": 70000.0}


@pytest.mark.parametrize(
    "change",
    [
        {"pattern": "(?=x)failed"},
        {"pattern": "(?>fail)ed"},
        {"pattern": r"failed\Z"},
        {"pattern": "a{1001}failed"},
        {"pattern": "failed" + ".{0,300}x" * 3},
        {"pattern": "(failed)?"},
        {"pattern": "failed|bad"},
        {"pattern": r"(\w+) failed \1"},
        {"pattern": "(?i)failed"},
        {"pattern": "[failed"},
        {"pattern": "abc"},
        {"pattern": r"\d+"},
        {"pattern": "failed " * 60},
        {"pattern": ""},
        {"pattern": 7},
        {"signal": "no_such_signal"},
        {"title": " "},
        {"extract": {"need": "no_such_metric"}},
        {"extract": {"absent": "spill_bytes"}},
        {"level": "highest"},
        {"when": "import os"},
        {"colour": "red"},
        {"class": "mishap"},
        {"frames": "(?=x)failed"},
        {"frames": 7},
    ],
)
def test_dangerous_or_invalid_signatures_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidKnowledge) as caught:
        signature_from_mapping(HARDWARE | change, "acme1")
    assert caught.value.hint


def test_priority_of_an_older_description_has_no_effect() -> None:
    older = signature_from_mapping(HARDWARE | {"priority": 90}, "acme1")
    assert older == signature_from_mapping(HARDWARE, "acme1")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+failed",
        "([a-z]*)*failed",
        ".*error.*at.*line.*",
        "a?" * 40 + ".{0,40}failed",
        "(?:a{0,30}){0,30}.{0,40}failed",
    ],
)
def test_backtracking_patterns_match_in_linear_time(pattern: str) -> None:
    own = signature_from_mapping(HARDWARE | {"pattern": pattern}, "acme1")
    index = SignatureIndex([own])
    log = "\n".join(f"{'a' * (1900 + n)} error at the line: afailed?" for n in range(5))
    started = time.process_time()
    assert index.match(log)
    assert time.process_time() - started < 10.0  # 0.8 s for the last; `re` would take years


def test_normalised_error_has_no_paths_numbers_or_names() -> None:
    one = normalise_error('/home/ann/a.cu(12): error: identifier "foo" is undefined at 0x7fff12')
    two = normalise_error('/tmp/b9/kernel.cu(7): error: identifier "bar" is undefined at 0x1234')
    assert one == two == "<path>: error: identifier <name> is undefined at <hex>"
    assert (
        normalise_error("[NCC_EVRF051] sm_90 needs 12 bytes")
        == "[NCC_EVRF051] sm_90 needs <n> bytes"
    )


def test_query_lines_pick_message_of_a_traceback() -> None:
    log = """Traceback (most recent call last):
  File "/home/x/kernel.py", line 12, in <module>
    run()
  File "/opt/triton/compiler.py", line 80, in compile
    raise error
triton.compiler.errors.CompilationError: at 2:15:
def kernel(x, N: tl.constexpr):
    tl.store(x+tl.arange(0,N), 1.0)
               ^
arange's range must be a power of 2
"""
    lines = query_lines(log)
    assert "triton.compiler.errors.CompilationError: at 2:15:" in lines
    assert "arange's range must be a power of 2" in lines
    assert not any("File " in line for line in lines)


def test_query_lines_prefer_codes_and_errors_within_limit() -> None:
    log = "\n".join(
        [
            "note: something failed earlier",
            "a.cpp:3: error: no such thing",
            "[NCC_EVRF051] not supported",
        ]
        + [f"error: kind {chr(97 + i)}" for i in range(20)]
    )
    lines = query_lines(log, limit=5)
    assert len(lines) == 5
    assert lines[0] == "[NCC_EVRF051] not supported"
    assert query_lines("nothing special\nhere at all") == ["nothing special", "here at all"]


H100 = {"shared_memory_per_block": 232_448}
PTXAS = "ptxas error : Entry function 'f' uses too much shared data ({} bytes, {} max)"
TRITON = "out of resource: shared memory, Required: {}, Hardware limit: 232448."


@pytest.mark.parametrize(
    ("line", "facts", "excess", "factor", "reported", "not_says"),
    [
        # More than the chip has: no setting helps.
        (PTXAS.format("0x41000", "0x38c00"), H100, 33_792, 1.145, "same upper limit", "extern"),
        # More than static arrays may have, less than the chip has.
        (PTXAS.format("0x14000", "0xc000"), H100, None, None, "extern", "shrink by"),
        # Without a chip both are possible.
        (PTXAS.format("0x14000", "0xc000"), {}, 32_768, 1.667, "or declare them extern", "chip"),
        (TRITON.format(294_912), H100, 62_464, 1.269, "at most 4 stages", "tile sizes first"),
        (TRITON.format(266_240), H100, 33_792, 1.145, "at most 7 stages", "tile sizes first"),
        (TRITON.format(594_912), H100, 362_464, 2.559, "num_stages to 2 or 1", "at most"),
        ("local memory (70000) exceeds limit (65536)", {}, 4_464, 1.068, "LDS", "stages}"),
        (
            "Failed to set the allowed dynamic shared memory size to 300000",
            H100,
            67_552,
            1.291,
            "232,448 of this chip",
            "from the log",
        ),
        (
            "Shared memory size limit exceeded: requested 240000, available: 232448",
            H100,
            7552,
            1.032,
            "block shapes",
            "vmem",
        ),
        ("requested 1179648, available: 232448", H100, 947_200, 5.075, "block shapes", "vmem"),
        (
            "function 'd' uses 70000 bytes of shared memory; exceeded the limit of 65536 bytes",
            {},
            4_464,
            1.068,
            "workgroup tiles",
            "extern",
        ),
        (
            "Circular buffer size 28672 B exceeds allocated L1 buffer size of 4096 B",
            {},
            24576,
            7.0,
            "L1 buffer",
            "extern",
        ),
        (
            "out of resource: tensor memory, Required: 640, Hardware limit: 512",
            {},
            128,
            1.25,
            "128 columns",
            "bytes",
        ),
    ],
)
def test_numbers_of_a_line_choose_remedy(
    line: str,
    facts: dict[str, float],
    excess: float | None,
    factor: float | None,
    reported: str,
    not_says: str,
) -> None:
    match = replace(INDEX.match(line)[0], facts=facts)
    assert match.signature.signal == "shared_memory_limit"
    over = match.quantities or {"excess": None, "factor": None}
    assert (over["excess"], over["factor"]) == (excess, factor)
    assert reported in match.remedy and not_says not in match.remedy, match.remedy
    assert not re.search(r"\{\w+\}", match.remedy)


@pytest.mark.parametrize(
    ("line", "excess", "reported"),
    [
        (
            "Threadgroup memory size (36864) exceeds the maximum threadgroup memory"
            " allowed (32768)",
            4096,
            "factor of 1.13 or more",
        ),
        (
            "Requested shared memory size of 131072 larger than allowed size of 101376",
            29_696,
            "factor of 1.30",
        ),
        ("MoE GEMM requires 102400 bytes shared memory but device supports 101376", 1024, "stages"),
        (
            "out of resource: shared memory, Required: 65538, Hardware limit: 65536.",
            2,
            "factor of 1.01 or more. Lower num_stages by one;",
        ),
        (
            "(threadsPerThreadgroup.width(1024))(1024) must be <= 768. (kernel size limit)",
            256,
            "256 threads too much",
        ),
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB of"
            " which 1.00 GiB is free",
            2**30,
            "more than is free",
        ),
        (
            "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a capacity of 80 GiB of"
            " which 62.00 GiB is free",
            None,
            "not in one piece",
        ),
        ("error: stack frame size (131072) exceeds limit (65536) in function 'k'", 65_536, "2.00"),
        ("partition dimension 256 exceeds maximum 128", 128, "128 partitions too much"),
        ("Received message larger than max (5242880 vs. 4194304)", 1_048_576, "send less"),
        (
            "Failed to configure kernel dynamic shared memory for this device,"
            " tried to configure k for 101120 bytes, but maximum available is 101376",
            None,
            "static",
        ),
    ],
)
def test_amounts_of_all_tools_are_in_remedy(line: str, excess: float | None, reported: str) -> None:
    (match, *_) = INDEX.match(line)
    over = match.quantities
    assert (over["excess"] if over else None) == excess
    assert reported in match.remedy and not re.search(r"\{\w+\}", match.title + match.remedy)


def test_chip_signature_has_numbers_of_a_general_one() -> None:
    spec = {
        "pattern": "uses too much shared data",
        "signal": "shared_memory_limit",
        "title": "Static arrays end at 48 KB",
        "remedy": "Opt in to dynamic shared memory.",
    }
    index = SignatureIndex([signature_from_mapping(spec, "hardware"), *load_signatures()])
    (match,) = index.match(PTXAS.format("0x41000", "0x38c00"))
    match = replace(match, facts=H100)
    assert match.title == "Static arrays end at 48 KB"
    assert "33,792 bytes too much" in match.remedy and "Opt in" not in match.remedy


@pytest.mark.parametrize(
    "wrong",
    [
        {"unit": "bananas"},
        {"remedies": "text"},
        {"remedies": [{"when": "needed > limit"}]},
        {"remedies": [{"when": "needed >", "text": "Shrink."}]},
    ],
)
def test_invalid_quantity_is_named(wrong: dict[str, Any]) -> None:
    spec = {"pattern": "E12: no such", "signal": "compile_error", "title": "t", "remedy": "r"}
    with pytest.raises(InvalidKnowledge, match="signature of hardware"):
        signature_from_mapping(spec | wrong, "hardware")


@pytest.mark.parametrize(
    ("line", "signal", "failure_class"),
    [
        (
            "EZ9999: The DDR address of the MTE instruction is out of range",
            "illegal_memory_access",
            None,
        ),
        ("Encountered unlowered function call to air.simd_sum.f32", "compile_error", None),
        ("vkQueueSubmit failed: VK_ERROR_DEVICE_LOST", "timeout", None),
        (
            "amdgpu 0000:03:00.0: ring gfx_0.0.0 timeout, signaled seq=11, emitted seq=12",
            "timeout",
            None,
        ),
        ("i915 0000:00:02.0: [drm] GPU HANG: ecode 12:1:85dffffb", "timeout", None),
        ("'gfx1201' is not a recognized processor for this target", "compile_error", None),
        ("error: unhandled SGPR spill to memory", "register_limit", None),
        ("IndexError: list index out of range", "launch_error", "host_error"),
        ("UR_RESULT_ERROR_OUT_OF_RESOURCES", "launch_error", "limit"),
        (
            "ptxas info : (C7508) Potential Performance Loss: 'setmaxnreg' ignored",
            "register_limit",
            "warning_only",
        ),
        ("k.cu(3): error: argument of type std::complex is incompatible", "compile_error", None),
    ],
)
def test_dialects(line: str, signal: str, failure_class: str | None) -> None:
    match = INDEX.match(line)[0]
    assert match.signature.signal == signal
    assert failure_class in (None, match.failure_class)


@pytest.mark.parametrize(
    ("log", "vendor"),
    [
        ("[GCA035] Instruction: I-2 with opcode: TensorTensor couldn't be allocated in SB", "aws"),
        (PTXAS.format("0x41000", "0x38c00"), "nvidia"),
        ("local memory (70000) exceeds limit (65536)", "amd"),
        ("Encountered unlowered function call to air.simd_sum.f32", "apple"),
        (TRITON.format(294_912), None),  # Triton compiles for several vendors
        ("IndexError: list index out of range", None),
        ("nothing is known", None),
        (PTXAS.format("0x41000", "0x38c00") + "\nlocal memory (70000) exceeds limit (65536)", None),
        ("=== hipSYCL error report ===\nterminate called", ""),
        ("[AdaptiveCpp Error] cuda_queue: could not load module (error code = CU:218)", "nvidia"),
        ("[AdaptiveCpp Error] LLVMToAmdgpu: hiprtcLinkComplete() failed", "amd"),
        ("level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "intel"),
        ("sycl::_V1::exception: PI_ERROR_BUILD_PROGRAM_FAILURE", ""),
        ("UR CUDA ERROR: invalid value", "nvidia"),
        ("[AIE ERROR] _XAie_LoadProgMemSection():231: Overflow of program memory", "amd"),
        ("TT_FATAL @ a.cpp:3: is_sharded()", "tenstorrent"),
        ("NPU function error: call aclnnX failed, error code is 507015", ""),
        ("XLA:TPU compile permanent error. Ran out of memory in memory space vmem.", "google"),
        ("rocBLAS error: Cannot read TensileLibrary.dat", "amd"),
    ],
)
def test_tool_names_its_vendor(log: str, vendor: str | None) -> None:
    named = vendor_of_log(log)
    assert (named[0] if named else None) == vendor


def test_vendors_of_tools_are_built_in_families() -> None:
    table = tomllib.loads((DATA / "signatures.toml").read_text(encoding="utf-8"))
    for row in table["names"]:
        folder = ROOT / "hw_manuals" / "hardware" / row["vendor"]
        assert not row["vendor"] or (folder / "hardware.toml").is_file()
    toolchains = {signature.toolchain for signature in load_signatures()}
    for vendor, tools in table["vendors"].items():
        assert (ROOT / "hw_manuals" / "hardware" / vendor / "hardware.toml").is_file()
        assert set(tools) <= toolchains


def test_signatures_of_every_built_in_chip_compile() -> None:
    folder = Path(__file__).parents[2] / "hw_manuals" / "hardware"
    rows = [
        row
        for path in sorted(folder.glob("*/hardware.toml"))
        for row in tomllib.loads(path.read_text(encoding="utf-8")).get("signatures", ())
    ]
    index = SignatureIndex(signature_from_mapping(row, "hardware") for row in rows)
    assert len(rows) > 100 and index.match("no known line") == []


@pytest.mark.parametrize(
    ("log", "advice", "is_condition"),
    [
        (
            "error: cannot find the device library; provide its path via '--device-lib-path'",
            "provide its path via '--device-lib-path'",
            False,
        ),
        (
            "k.mlir:3:1: error: 'foo.bar' op cannot be partitioned\n    %1 = foo.bar %0\n    ^\n"
            "note: wrap the call in a shard_map",
            "wrap the call in a shard_map",
            False,
        ),
        (
            "RuntimeError: no choices to select\n\nTo fix this you can:\n"
            "  1. Add ATEN to the backends of products",
            "Add ATEN to the backends of products",
            False,
        ),
        (
            "RuntimeError: rows must be a multiple of 16, but got 8\n"
            "For debugging consider passing CUDA_LAUNCH_BLOCKING=1.",
            "rows must be a multiple of 16, but got 8",
            True,
        ),
    ],
)
def test_advice_of_message(log: str, advice: str, is_condition: bool) -> None:
    leading = INDEX.match(log)[0]
    assert leading.advice == Advice(advice, is_condition)
    assert leading.remedy.startswith("The message") and advice in leading.remedy


@pytest.mark.parametrize(
    "log",
    [
        "RuntimeError: CUDA error\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions.",
        "LLVM ERROR: bad state\nPLEASE submit a bug report and include the crash backtrace.",
        "error: use of undeclared identifier 'k'\n    y = use(k);\n            ^",
        'RuntimeError: failed\n  File "a.py", line 3\n    set the value of x to 3',
        "error: first failure\nerror: second failure; use --other instead",
        "error: call to 'as_ulong' is ambiguous\nnote: candidate function",
    ],
)
def test_no_advice_in_debugging_source_and_other_messages(log: str) -> None:
    assert INDEX.match(log)[0].advice is None


@pytest.mark.parametrize(
    ("line", "signal", "needed", "limit"),
    [
        ("local memory size (41492) exceeds maximum of 32768", "shared_memory_limit", 41492, 32768),
        (
            "group size [8, 8, 8] must be less or equal to [9, 9, 9] of total 256",
            "register_limit",
            512,
            256,
        ),
        ("`threadsPerThreadgroup.width(1025) must be <= 1024.'", "register_limit", 1025, 1024),
        ("scratch memory on level 0: requested 130, maximum 65", "shared_memory_limit", 130, 65),
        ("Buffer size 640 is greater than the maximum buffer size (268)", "launch_error", 640, 268),
        ("Estimated 268.96MB exceeds 67.11MB vmem.", "shared_memory_limit", 268.96e6, 67.11e6),
        ("registers per work-group cannot exceed 65536", "register_limit", None, 65536),
        ("group count 70000 in x is larger than the limit 65535", "launch_error", 70000, 65535),
    ],
)
def test_amount_over_limit(line: str, signal: str, needed: float | None, limit: float) -> None:
    excess = excess_in(line)
    assert excess is not None
    assert (excess.resource.signal, excess.needed, excess.limit) == (signal, needed, limit)
    assert INDEX.match(line)[0].signature.signal == signal


@pytest.mark.parametrize(
    "line",
    [
        "the batch exceeds 64 and we see a memory fault",
        "Used 128 registers, 48128 bytes smem, maximum 255",
        "version 12.4 is greater than 11.8",
        "allocated 3 buffers[2] in 40 ms, at most 50",
        "local memory size (100) exceeds nothing, the limit is 200",
    ],
)
def test_amount_within_limit(line: str) -> None:
    assert excess_in(line) is None


def test_amounts_of_next_line() -> None:
    log = (
        "Ran out of memory in memory space vmem.\nEstimated 268.96MB exceeds 67.11MB vmem capacity."
    )
    quantities = INDEX.match(log)[0].quantities
    assert quantities is not None and quantities["factor"] == 4.008


def test_origin_of_source() -> None:
    own = INDEX.match('k.cu(44): error: identifier "fp8_t" is undefined')[0]
    generated = INDEX.match('/tmp/tmpts72.cu(44): error: identifier "fp8_t" is undefined')[0]
    header = INDEX.match('/usr/local/cuda/include/a.hpp(5): error: identifier "x_t" is undefined')[
        0
    ]
    assert "correct the spelling" in own.remedy
    assert "temporary file" in generated.remedy and "installed header" in header.remedy
    assert "spelling" not in generated.remedy + header.remedy


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        (
            "ValueError: head_size (100) is not supported. Supported head sizes: [64, 96, 128]",
            "Allowed: 64, 96, 128; given: 100. Pad it to 128",
        ),
        ("ValueError: mode must be one of ('max', 'sum'), got 'mean'", "instead of mean"),
        ("RuntimeError: block size 512 is invalid. Allowed values: 64, 128, 256", "more than each"),
        ("RuntimeError: Unsupported head size: 32", "no implementation for head size: 32"),
        (
            "RuntimeError: backward for head dim > 64 requires A100 or H100 GPUs",
            "needs A100 or H100",
        ),
        ("RuntimeError: type requires the 'zve32f' extension", "-march=rv64gcv_zve32f"),
        ("RuntimeError: repo only supports head dimension 128, more later", "Allowed: 128."),
        ("ValueError: the accelerator architecture is unknown", "does not know or see the device"),
        ("ValueError: num_ctas > 1 not supported on gfx942", "gfx942 has no num_ctas > 1"),
        ("RuntimeError: Expected a 2D tensor but got a 3D tensor.", "Wanted: a 2D tensor; given:"),
        ("AssertionError: shape check failed: K_A = 32, K_B = 64", "K_A is 32 and K_B is 64"),
        ("SG-ERROR: Assertion 'd <= max' failed: Step=46208 > Max=32767", None),
    ],
)
def test_message_of_a_usual_form_fills_the_remedy(message: str, remedy: str | None) -> None:
    matches = INDEX.match(f"Traceback (most recent call last):\n{USER_FRAME}\n{message}\n")
    assert remedy is None or remedy in matches[0].remedy


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: Supported values: 1, 2 and 4; got 2",  # allowed, so another cause
        "RuntimeError: it did not work",
        "RuntimeError: 3 of 4 workers are ready",
    ],
)
def test_message_of_no_form_keeps_the_remedy(message: str) -> None:
    match = INDEX.match(f"Traceback (most recent call last):\n{USER_FRAME}\n{message}\n")[0]
    assert match.meaning == ""


def test_remedy_has_the_devices_and_arguments_of_the_log() -> None:
    device = (
        "Device 0: A100, compute capability 8.0\n"
        "CUDA error: no kernel image is available for execution on the device"
    )
    assert "-gencode arch=compute_80,code=sm_80" in INDEX.match(device)[0].remedy
    assertion = (
        'a.inl(321): error: static assertion failed with "BLK_K0 must be a multiple of 16"\n'
        '            instantiation of "auto f() [with T=float, BLK_MN=cute::_128, BLK_K=cute::_8]"'
    )
    assert "BLK_K = cute::_8" in INDEX.match(assertion)[0].remedy
    setting = (
        "hiprtcLinkComplete() failed. Setting the environment variables AMD_COMGR_SAVE_TEMPS=1"
    )
    assert "AMD_COMGR_SAVE_TEMPS=1" in INDEX.match(setting)[0].remedy


def test_line_takes_the_amount_of_its_neighbour() -> None:
    log = (
        "ld: a.elf section `.text' will not fit in region `FLASH'\n"
        "ld: region `FLASH' overflowed by 4388 bytes"
    )
    first = INDEX.match(log)[0]
    assert first.title == "The code does not fit the memory FLASH: 4388 bytes too much"
    alone = INDEX.match(log.splitlines()[0])[0]
    assert alone.title == "The code does not fit the memory FLASH"
    assert alone.remedy.startswith("-Os")


def test_excess_is_not_read_as_a_limit() -> None:
    assert excess_in("Exceeded the shared memory of 1024 bytes by 16 bytes") is None


def test_reason_precedes_the_failure_of_the_pipeline() -> None:
    log = (
        'loc("k.mlir":12:10): error: unsupported precision for dot on this target\n'
        "RuntimeError: PassManager::run failed"
    )
    assert INDEX.match(log)[0].signature.id == "unsupported-words"


@pytest.mark.parametrize(
    ("line", "tool"),
    [
        ("CUDA error: unspecified launch failure", "compute-sanitizer"),
        ("HIP error 719: unspecified launch failure", "rocgdb"),
        ("sycl::exception: UR_RESULT: unspecified launch failure", "sanitizer of DPC++"),
    ],
)
def test_remedy_names_tools_of_the_platform(line: str, tool: str) -> None:
    assert tool in INDEX.match(line)[0].remedy


def test_total_of_a_vector_is_compared_with_the_total_limit() -> None:
    over = excess_in(
        "workgroup size [8, 8, 8] of total 512 must be less or equal to [256, 256, 64] and of"
        " total 256"
    )
    assert over is not None and (over.needed, over.limit) == (512, 256)


def test_cause_below_a_failed_instantiation_is_the_remedy() -> None:
    log = (
        "a.mojo:1:1: error: function instantiation failed\n"
        "a.mojo:9:4: note: call expansion failed\n"
        "b.mojo:3:6: note: constraint failed: these instructions are only available on sm_100a\n"
    )
    assert "This path is for sm_100a alone" in INDEX.match(log)[0].remedy
    thrown = (
        "terminate called after throwing an instance of 'std::invalid_argument'\n"
        "  what():  Invalid configuration : frags_x=1 frags_y=14\n"
    )
    assert "no implementation for this configuration: frags_x=1" in INDEX.match(thrown)[0].remedy


def test_settings_are_those_that_the_message_proposes() -> None:
    trace = "thread 'main' panicked at a.rs:3:4:\nnote: run with `RUST_BACKTRACE=1` set"
    assert "RUST_BACKTRACE" not in INDEX.match(trace)[0].remedy
    printed = 'CUDA_COMPUTE_CAP=sm_75\na.cu(3): error: expected a ";"'
    assert "CUDA_COMPUTE_CAP" not in INDEX.match(printed)[0].remedy


def test_target_of_the_failed_line_precedes_those_of_lists_below() -> None:
    log = (
        "rocBLAS error: Cannot read /opt/TensileLibrary.dat: Illegal seek for GPU arch : gfx1201\n"
        '"/opt/rocblas/library/TensileLibrary_lazy_gfx908.dat"\n'
    )
    assert "built for this target: gfx1201" in INDEX.match(log)[0].remedy


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120'", "12.0 need 12.8"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_35'", "11.8 for 3.5"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_native'", "CMake before 3.24"),
        (
            "Installed CUDA version 12.2 does not match the version torch was compiled with 11.7",
            "PyTorch's version (11.7)",
        ),
        ('k.cu(6): error: identifier "None" is undefined', "plain C literals"),
        ("m.o: undefined reference to `cusolverDnCreate'", "-lcusolver"),
        ("m.o: undefined reference to symbol 'cuMemAlloc_v2'", "libcuda:"),
        ("ImportError: /v/k.so: undefined symbol: _ZN3c106detail4failEv", "import torch"),
        ("ImportError: /v/k.so: undefined symbol: _ZNSt6thread4waitEv", "libstdc++"),
        ("ptxas fatal   : Unresolved extern function '_Z3powfi'", "one type"),
        ("ImportError: /v/k.so: undefined symbol: my_kernel", "defines my_kernel"),
        ("k.c:4:9: fatal error: instruction requires: sme", "armv8-a+sme"),
        ("e: error: 'x.load' op pipeliner doesn't know this op", "num_stages = 1"),
        (
            "RuntimeError: dtype not implemented for I4, should be in support list [I8,I16]",
            "I8, I16",
        ),
        (
            "LLVM ERROR: no way\n1. Running pass 'Fold Loads' on function '@scan'",
            "pass Fold Loads on the function scan",
        ),
        (
            "(0) Resource exhausted: Attempting to allocate 3.0G. There are 1.0G free.",
            "more than is",
        ),
        ('k.cu(6): error: identifier "row_sum" is undefined', "Include the header"),
        (
            "/src/third_party/lib/a.hpp:7:3: error: no member named 'origin' in 'Block'",
            "bundled library",
        ),
    ],
)
def test_remedy_is_chosen_by_the_cause_in_the_line(line: str, remedy: str) -> None:
    assert remedy in INDEX.match(line)[0].remedy


def test_listing_does_not_lead_before_the_failure() -> None:
    log = (
        'def kernel(x):\n    raise RuntimeError("CUDA error: an illegal memory access")\n'
        "cudaErrorCheck(cudaErrorInvalidValue);\nexport NCCL_TIMEOUT=1800\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.\n"
    )
    assert [m.signature.signal for m in INDEX.match(log)] == ["out_of_memory"]


def test_source_below_a_frame_is_no_message_and_a_failed_assertion_is() -> None:
    frame = '  File "/src/run.py", line 3, in f\n'
    assert INDEX.match(f'{frame}    log("CUDA error: invalid argument")\n') == []
    failed = INDEX.match(f"{frame}    assert abs(diff) < tol\nAssertionError\n")
    assert failed[0].signature.signal == "correctness_mismatch"


def test_cause_below_a_wrapper_has_the_advice_alone() -> None:
    wrapper = "E   triton.compiler.errors.CompilationError: at 7:11:"
    cause = (
        "AssertionError: Loop-carried variable acc has initial type fp32 but is re-assigned to fp16"
    )
    both = INDEX.match(f"{wrapper}\n{cause}\n")
    assert both[0].signature.level != "wrapper" and both[0].remedy
    announced = [match for match in both if match.signature.level == "wrapper"]
    assert all(match.remedy == match.signature.remedy for match in announced)


def test_removed_warp_function_is_called_with_a_mask() -> None:
    (known,) = INDEX.match('scan.cu(88): error: identifier "__shfl_down" is undefined')
    assert "Write __shfl_down_sync(mask" in known.remedy
    (newer,) = INDEX.match('k.cu(9): error: identifier "__shfl_down_sync" is undefined')
    assert "newer toolkit" in newer.remedy


def test_instruction_of_another_generation_is_no_option_of_the_compiler() -> None:
    line = "error : Instruction 'wgmma.fence' cannot be compiled for architecture 'sm_80'"
    (known,) = INDEX.match(f"ptxas gemm.ptx, line 412; {line}")
    assert known.title == "wgmma.fence does not exist on sm_80"
    assert "if it is an sm_80, no option brings the instruction" in known.remedy
