"""Profiles by line: rows of each tool's source view, hot lines of a kernel, and their causes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kb.errors import InvalidRequest
from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.given_profile import with_known_counters
from retrieval.diagnose.hot_lines import hot_lines, load_causes, words_of
from retrieval.diagnose.signals import load_signals
from retrieval.profiles.lines import access_of, stall_name
from retrieval.profiles.reader import read_profile
from retrieval.request import RetrieveRequest

COLUMNS = (
    *("Line No", "Source", "Address", "Source", "Warp Stall Sampling (All Samples)"),
    *("Warp Stall Sampling (Not-issued Samples)", "# Samples", "Instructions Executed"),
    *("Avg. Threads Executed", "L1 Wavefronts Shared Excessive", "L1 Wavefronts Shared"),
    *("L2 Theoretical Sectors Global Excessive", "L2 Theoretical Sectors Global"),
    *("stall_barrier", "stall_long_sb", "stall_selected", "stall_short_sb"),
    "stall_long_sb (Not Issued)",
)
# Samples, not-issued samples, executions, excessive and total wavefronts, excessive and total
# sectors, then stalls: barrier, long scoreboard, selected, short scoreboard, long scoreboard (not
# issued).
LOAD = (70, 60, "2,048", 0, 0, 28672, 32768, 0, 60, 4, 0, 55)
ADD = (620, 590, "1,024", 0, 0, 0, 0, 0, 610, 5, 0, 580)
STORE = (150, 20, "512", 15872, 16384, 0, 0, 0, 0, 20, 120, 0)
WAIT = (224, 200, "512", 0, 0, 0, 0, 210, 0, 8, 0, 0)


def in_ncu(line: int, source: str, address: str, instruction: str, counts: Any) -> str:
    """A source line and its instruction in both views."""
    samples, idle, executed, *rest = counts
    numbers = [samples, idle, samples, executed, 32, *rest]
    rows = ([line, source, "-", "1 instruction"], ["", "", address, f"      {instruction} "])
    return "".join(",".join(f'"{cell}"' for cell in [*row, *numbers]) + "\n" for row in rows)


# A loop whose add waits for a strided load of one float, then a reduction in shared memory.
NCU = (
    '"File Path","/src/reduce.cu"\n"Function Name","reduce(const float *, float *, int)"\n'
    + ",".join(f'"{name}"' for name in COLUMNS)
    + "\n"
    + in_ncu(41, "    float v = x[i * stride];", "0x7f10", "LDG.E R5, [R2.64]", LOAD)
    + in_ncu(44, "    s += v;", "0x7f30", "FADD R9, R9, R5", ADD)
    + in_ncu(52, "    t[threadIdx.x * 32] = s;", "0x7f50", "STS [R7], R9", STORE)
    + in_ncu(53, "    __syncthreads();", "0x7f60", "BAR.SYNC.DEFER_BLOCKING 0x0", WAIT)
)
DRAFT = "\n".join(
    ["// head"] * 40
    + ["    float v = x[i * stride];", "    // reads one", "", "    s += v;"]
    + ["  }"] * 7
    + ["    t[threadIdx.x * 32] = s;", "    __syncthreads();", ""]
)


def diagnosed(text: str, draft: str | None = None, hardware: str = "nvidia"):  # type: ignore[no-untyped-def]
    request, _ = with_known_counters(RetrieveRequest(profile=text, draft=draft))
    lineage = (hardware,)
    return Diagnoser(load_signals()).conclude(request, {}, lineage, ()).verdict


def test_ncu_gives_lines_with_shares_and_causes() -> None:
    verdict = diagnosed(NCU, DRAFT)
    first, *rest = verdict.lines
    assert (first.place, first.first, first.last, first.share_pct) == (
        "reduce.cu lines 41 to 44",
        41,
        44,
        64.8,
    )
    assert first.stall == "long_scoreboard" and first.cause == "uncoalesced"
    assert first.finding.startswith(
        "reduce.cu lines 41 to 44: 64.8 % of samples, long scoreboard on a load of 4 bytes (LDG.E),"
        " 28,672 of 32,768 sectors are excessive"
    )
    assert first.awaited.startswith("LDG.E")
    assert first.source[0] == "41:     float v = x[i * stride];" and len(first.source) == 4
    assert {line.cause for line in rest} == {"bank-conflict", "barrier"}
    assert verdict.signal_ids == ("uncoalesced_access", "sync_stall", "bank_conflict")
    coalesced = NCU.replace('"28672"', '"0"')
    first = diagnosed(coalesced).lines[0]
    assert first.cause == "narrow-loads" and "long scoreboard on a load of 4 bytes" in first.finding
    assert diagnosed(coalesced).primary == "memory_latency"


def test_shorter_draft_is_aligned_by_text_and_another_file_is_not_quoted() -> None:
    moved = "\n".join(DRAFT.splitlines()[30:])
    assert diagnosed(NCU, moved).lines[0].source[0] == "41:     float v = x[i * stride];"
    assert "__global__" not in " ".join(diagnosed(NCU, "__global__ void f() {}\n").lines[0].source)


SASS = (
    '"Kernel Name","attn(float*)"\n"Address","Source","Warp Stall Sampling (All Samples)",'
    '"# Samples","stall_short_sb","stall_math","stall_wait"\n'
    '"0x10","      MUFU.EX2 R4, R8 ","30","30","0","0","20"\n'
    '"0x20","      FMUL R6, R4, R5 ","600","600","560","0","20"\n'
    '"0x30","      STL [R1+0x8], R6 ","300","300","0","0","10"\n'
    '"0x40","      HMMA.16816.F32 R12, R4, R8, R12 ","70","70","0","60","5"\n'
)
TEXT = """
------------------ --------------------------- ------ ------ ------
Kernel Name        copy(const unsigned char *)
------------------ --------------------------- ------ ------ ------
Address            Source                      Warp S stall_ stall_
                                               tall S lg     wait
                                               amplin
                                               g (All
                                                Sampl
                                               es)
0x7f7c237a1c00           LDG.E.U8 R3, [R4.64]  900    880    10
0x7f7c237a1c10     @!P0  EXIT                  100    0      90
"""
ATT = """CodeObj,Vaddr,Instruction,Hitcount,Latency,Stall,Idle,Source
1,4096,"; _Z4gemmv",0,0,0,0,"gemm()"
1,4100,"global_load_dword v1, v[2:3], off",10,100,20,0,"gemm.cpp:12"
1,4108,"s_waitcnt vmcnt(0)",10,8000,7900,10,"gemm.cpp:13"
1,4112,"v_mfma_f32_32x32x8_f16 a[0:15], v[4:5], v[6:7], 0",10,900,100,100,"hip.h:3 -> gemm.cpp:15"
1,4120,"ds_read_b128 v[8:11], v1",10,900,800,100,"gemm.cpp:16"
"""
CODE = {
    "header": "ISA, _, LineNumber, Source, Codeobj, Vaddr, Hit, Latency, Stall, Idle",
    "code": [
        ["; _Z4copyv", 0, 0, "copy()", 1, 256, 0, 0, 0, 0],
        ["scratch_load_dword v1, off, s33", 0, 1, "", 1, 256, 9, 500, 100, 10],
        ["s_barrier", 0, 2, "", 1, 260, 9, 400, 390, 10],
    ],
}
PC = (
    '"Sample_Timestamp","Exec_Mask","Dispatch_Id","Instruction","Instruction_Comment",'
    '"Correlation_Id","Wave_Issued_Instruction","Instruction_Type","Stall_Reason","Wave_Count"\n'
    + '1,18446744073709551615,1,"s_barrier","k.hip:7",1,0,"",'
    '"ROCPROFILER_PC_SAMPLING_INSTRUCTION_NOT_ISSUED_REASON_BARRIER_WAIT",8\n'
    * 7
    + '2,18446744073709551615,1,"v_add_f32 v0, v1, v2","k.hip:9",1,1,"VALU","",8\n' * 3
)
PROTON = [
    {
        "frame": {"name": "ROOT"},
        "metrics": {},
        "children": [
            {
                "frame": {"name": "softmax_kernel"},
                "metrics": {},
                "children": [
                    {
                        "frame": {"name": "/w/soft.py:22@softmax_kernel"},
                        "metrics": {
                            "num_samples": 80,
                            "num_stalled_samples": 70,
                            "stalled_long_scoreboard": 66,
                        },
                        "children": [],
                    },
                    {
                        "frame": {"name": "/w/soft.py:25@softmax_kernel"},
                        "metrics": {"num_samples": 20, "stalled_barrier": 15},
                        "children": [],
                    },
                ],
            }
        ],
    }
]
PERF = """ Percent |   Source code & Disassembly of libk.so for cycles:u (12,953 samples)
-----------------------------------------------------------------------------------------------
         : 5    0000000000001060 <kernel>:
         : 6    kernel():
         : 4    s += a[index[i]];
    0.02 :   10d7:   addss  (%rcx,%rdx,4),%xmm0
   88.31 :   10dc:   cmp    %rsi,%rax // k.cpp:4
   11.02 :   10df:   vdivps %ymm1,%ymm0,%ymm2 // k.cpp:9
"""


@pytest.mark.parametrize(
    ("text", "kind", "place", "cause"),
    [
        (NCU, "ncu", "reduce.cu lines 41 to 44", "uncoalesced"),
        (SASS, "ncu", "2 instructions, most at 0x20", "special-functions"),
        (TEXT, "ncu", "instruction 0x7f7c237a1c00", "memory-queue"),
        (ATT, "rocprof", "gemm.cpp lines 12 to 13", "narrow-loads"),
        (json.dumps(CODE), "rocprof", "instruction 0x100", "spill"),
        (PC, "rocprof", "k.hip line 7", "barrier"),
        (json.dumps(PROTON), "proton", "soft.py line 22", "loads-late"),
        (PERF, "perf", "k.cpp line 4", "cpu-scalar-load"),
    ],
)
def test_each_tool_gives_its_hottest_line_and_cause(
    text: str, kind: str, place: str, cause: str
) -> None:
    profile = read_profile(text)
    assert profile.kind == kind and profile.lines
    first = hot_lines(profile.lines, profile.unit)[0]
    assert (first.place, first.cause) == (place, cause), first.finding


PLANTED = {
    "uncoalesced": "uncoalesced_access",
    "bank_conflict": "bank_conflict",
    "atomics": "sync_stall",
    "spill": "register_spill",
    "mufu": "instruction_mix",
    "barrier_imbalance": "sync_stall",
    "serial_copy": "memory_latency",
    "registers": "latency_bound",
    "tail": "divergence",
}


@pytest.mark.parametrize(("name", "signal"), PLANTED.items())
def test_faults_recorded_on_h200_are_first_lines(name: str, signal: str) -> None:
    """Views of ncu 2025.3.1 on kernels with one fault each, cut to their main columns and rows."""
    text = (Path(__file__).parent / "planted" / f"{name}.csv").read_text()
    fault = next(row for row in text.splitlines() if f"// FAULT {name}" in row)
    line = int(fault.split('"')[1])
    verdict = diagnosed(text, hardware="hopper")
    first = verdict.lines[0]
    assert first.first <= line <= first.last <= first.first + 2, first.finding
    assert first.signals[0] == signal and verdict.primary == signal
    assert any(quoted.startswith(f"{line}: ") for quoted in first.source)


WIDE = (
    *COLUMNS[:13],
    *("stall_lg", "stall_long_sb", "stall_selected", "stall_short_sb", "stall_mio", "stall_wait"),
)


def view(*files: tuple[str, list[Any]]) -> str:
    """A view of ncu: files of (line, source, instructions), these as (address, text, samples,
    executions, lanes, excessive and all sectors, stalls in the order of WIDE)."""
    text = ""
    for file, lines in files:
        text += f'"File Path","{file}"\n"Function Name","k(float *)"\n'
        text += ",".join(f'"{name}"' for name in WIDE) + "\n"
        for line, source, instructions in lines:
            head = [line, source, "-", "-", *[0] * (len(WIDE) - 4)]
            text += ",".join(f'"{cell}"' for cell in head) + "\n"
            for address, code, samples, executed, lanes, *rest in instructions:
                row = ["", "", hex(address), code, samples, samples, samples, executed, lanes]
                row += [0, 0, *rest, *[0] * (8 - len(rest))]
                text += ",".join(f'"{cell}"' for cell in row) + "\n"
    return text


def concluded(text: str) -> Any:
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    return Diagnoser(load_signals()).conclude(request, {}, ("nvidia",), ())


LOAD_AND_RED: list[Any] = [
    (6, "int id = ids[i] % 4;", [(0x10, "LDG.E R8, [R4.64]", 20, 64, 32, 0, 256, 5, 15)]),
    (7, "id *= 2;", [(0x20, "IADD3 R9, R8, R8, RZ", 640, 64, 32, 0, 0, 0, 640)]),
]


@pytest.mark.parametrize(("sectors", "first"), [(64, (6, 9)), (2048, (6, 7))])
def test_loads_wait_behind_atomics_on_few_addresses(sectors: int, first: tuple[int, int]) -> None:
    red = (0x30, "REDG.E.ADD.F32 [R6.64], R9", 90, 64, 32, 0, sectors, 88)
    line = (9, "atomicAdd(bins + id, w);", [red])
    conclusion = concluded(view(("/src/k.cu", [*LOAD_AND_RED, line])))
    lead = conclusion.verdict.lines[0]
    assert (lead.first, lead.last) == first
    if sectors == 64:  # 32 lanes add to the eight words of one sector
        assert lead.cause == "atomic" and conclusion.verdict.primary == "sync_stall"
        assert conclusion.metrics["atomic_sample_pct"] == 100
    else:
        assert lead.cause == "narrow-loads"


@pytest.mark.parametrize(
    "header",
    [
        "/opt/cuda/include/cccl/cuda/std/__thread/threading_support.h",
        "/src/wait.cuh",
        "/usr/lib/python3.12/site-packages/triton/language/standard.py",
    ],
)
def test_code_inlined_from_header_is_at_line_of_call(header: str) -> None:
    """ncu lists the last instructions of a wait in the header only."""
    wait = (0x50, "@P0 BRA 0x90", 700, 64, 32, 0, 0, 0, 690)
    trial = (0x40, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R11+URZ], R5", 20, 64, 32, 0, 0, 0, 20)
    text = view(
        (header, [(68, "if (__f())", [trial, wait])]),
        (
            "/src/k.cu",
            [
                (3, "__global__ void k(float *y) {", [(0x10, "LDC R1, c[0x0][0x28]", 1, 4, 32)]),
                (17, "cp_async_bulk(tile);", [(0x20, "UBLKCP.S.G [UR8], [UR4], UR7", 3, 9, 1)]),
                (22, "full.wait(token);", [(0x30, "CS2R R6, SR_GLOBALTIMERLO", 9, 64, 32)]),
                (23, "sum += tile[k];", [(0x90, "FADD R0, R5, R0", 400, 99, 32, *[0] * 5, 200)]),
            ],
        ),
    )
    conclusion = concluded(text)
    lead = conclusion.verdict.lines[0]
    assert lead.cause == "copies-not-ahead" and lead.first <= 22 <= lead.last
    assert lead.finding.startswith("k.cu lines 17 to 22")
    assert f"inlined from {Path(header).name} line 68" in lead.finding
    assert conclusion.metrics["copy_sample_pct"] > 50


def test_idle_lanes_lead_over_wait_for_load() -> None:
    tail = [
        (0x100 + k, "FFMA R9, R9, R0, R8", 90, 64, 1, 0, 0, 0, 40, 0, 0, 0, 50) for k in range(8)
    ]
    load = (0x10, "LDG.E R8, [R4.64]", 20, 64, 32, 0, 256, 5, 15)
    text = view(("/src/k.cu", [(8, "float v = x[c];", [load]), (9, "v = v * v + a;", tail)]))
    verdict = concluded(text).verdict
    assert verdict.lines[0].cause == "idle-lanes" and verdict.primary == "divergence"
    assert verdict.lines[0].first <= 9 <= verdict.lines[0].last


def test_registers_of_listing_limit_resident_warps() -> None:
    sums = [(0x100 + k, f"FFMA R{40 + k}, R8, R0, R{40 + k}", 2, 64, 32) for k in range(130)]
    rows = [*LOAD_AND_RED, (12, "acc[k] += v;", sums)]
    verdict = concluded(view(("/src/k.cu", rows))).verdict
    assert verdict.lines[0].cause == "few-warps" and verdict.primary == "occupancy_limited"
    assert "with 176 registers a thread at most 11 warps" in verdict.lines[0].finding


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ("a = b;", ["MUFU.EX2 R4, R4", "FMUL R4, R4, R5", "FADD R4, R4, R6"]),
        ("a = erff(a);", ["FFMA R4, R4, R5, R6", "FFMA R4, R4, R7, R8"]),
    ],
)
def test_functions_lead_where_pipes_are_full(source: str, codes: list[str]) -> None:
    rows = [(0x10 * k, code, 90, 64, 32, 0, 0, 0, 0, 0, 0, 0, 80) for k, code in enumerate(codes)]
    conclusion = concluded(view(("/src/k.cu", [(5, source, rows)])))
    assert conclusion.verdict.primary == "instruction_mix"
    assert conclusion.metrics["special_sample_pct"] == 100


def test_strided_store_leads_over_loads_behind_it() -> None:
    store = (0x40, "STG.E [R6.64], R9", 90, 64, 32, 1792, 2048, 80)
    rows = [*LOAD_AND_RED, (9, "y[c * n + r] = v;", [store])]
    verdict = concluded(view(("/src/k.cu", rows))).verdict
    assert verdict.lines[0].first == 9 and verdict.primary == "uncoalesced_access"


def test_view_without_samples_error_names_right_view() -> None:
    with pytest.raises(InvalidRequest, match="cuda,sass"):
        read_profile('"File Path","k.cu"\n"Line No","Source"\n"1","int i;"\n')


def test_barrier_stall_of_warpgroup_product_waits_for_matrix_unit() -> None:
    """Recorded on an H200: `warpgroup_mma` in Gluon, awaited at once."""
    text = (
        '"Kernel Name","attn"\n"Address","Source","Warp Stall Sampling (All Samples)",'
        '"# Samples","stall_barrier","stall_wait"\n'
        '"0x10","  HGMMA.64x64x16.F32.BF16 R88, gdesc[UR44], RZ, !UPT, gsb0 ","40","40","0","9"\n'
        '"0x20","      WARPGROUP.DEPBAR.LE gsb0, 0x0 ","800","800","760","10"\n'
        '"0x30","      BAR.SYNC.DEFER_BLOCKING 0x0 ","160","160","150","10"\n'
    )
    verdict = diagnosed(text)
    assert [line.cause for line in verdict.lines[:2]] == ["matrix-late", "barrier"]
    assert verdict.primary == "tensor_core_underuse"


def test_sums_of_lines_are_metrics_of_kernel() -> None:
    metrics = read_profile(NCU).metrics
    assert metrics["long_scoreboard_stall_share"] == pytest.approx(0.6297)
    assert metrics["load_efficiency_pct"] == pytest.approx(12.5)
    assert metrics["bank_conflict_ratio"] == pytest.approx(0.9688)
    assert read_profile(ATT).metrics["waitcnt_sample_pct"] == pytest.approx(79.2, abs=0.1)


def test_instructions_without_source_lines_have_hint() -> None:
    _, read = with_known_counters(RetrieveRequest(profile=SASS))
    assert read is not None and any("-lineinfo" in note for note in read.notes)


@pytest.mark.parametrize(
    ("instruction", "kind", "bits"),
    [
        ("@!P0 LDG.E.128.CONSTANT R4, [R2.64]", "global_load", 128),
        ("LDG.E.U16 R4, [R2.64]", "global_load", 16),
        ("LDGSTS.E.BYPASS.128 [R1], [R2.64]", "async_copy", 128),
        ("STL.64 [R1], R2", "local_store", 64),
        ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU [R2.64], R5", "atomic", 32),
        ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24", "matrix", 0),
        ("buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen", "global_load", 128),
        ("global_load_b64 v[0:1], v[2:3], off", "global_load", 64),
        ("ds_read_u16 v1, v2", "shared_load", 16),
        ("s_waitcnt lgkmcnt(0)", "wait", 0),
        ("vfmadd231ps (%rax,%rcx,1),%zmm1,%zmm0", "load", 512),
        ("vmovups %ymm0,(%rdi)", "store", 256),
        ("vgatherdps %ymm2,(%rsi,%ymm1,4),%ymm0", "gather", 256),
        ("lock addq $0x1,(%rax)", "atomic", 0),
        ("callq  1030 <expf@plt>", "call", 0),
        ("fdiv v0.4s, v1.4s, v2.4s", "divide", 128),
        ("ldr q0, [x1], #16", "load", 128),
        ("ldr s0, [x1, x2, lsl #2]", "load", 32),
    ],
)
def test_memory_access_of_an_instruction(instruction: str, kind: str, bits: int) -> None:
    access = access_of(instruction)
    assert (access.kind, access.bits) == (kind, bits)


def test_stall_names_of_all_tools() -> None:
    for column in (
        "stall_long_sb",
        "smsp__pcsamp_warps_issue_stalled_long_scoreboard",
        "stalled_long_scoreboard",
        "Stall Long Scoreboard",
    ):
        assert stall_name(column) == "long_scoreboard"
    assert stall_name("stalled_amd_waitcnt") == stall_name("WAITCNT") == "waitcnt"
    assert stall_name("stall_long_sb (Not Issued)") is None and stall_name("Address") is None


def test_causes_are_distinct_and_have_query_words() -> None:
    causes = load_causes()
    assert len({cause.id for cause in causes}) == len(causes)
    assert "data layout" in words_of(diagnosed(NCU).lines)


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_real_output_of_perf_annotate(tmp_path: Path) -> None:
    source = tmp_path / "walk.c"
    source.write_text(
        "#include <stdlib.h>\nint main(void) {\n  int n = 1 << 22; float *a = calloc(n, 4);\n"
        "  volatile float out; float s = 0;\n  for (int r = 0; r < 8; r++)\n"
        "    for (long i = 0; i < n; i++)\n      s += a[(i * 16807) & (n - 1)];\n"
        "  out = s; return 0;\n}\n"
    )
    subprocess.run(["gcc", "-O1", "-g", "walk.c", "-o", "walk"], cwd=tmp_path, check=True)
    record = ["perf", "record", "-q", "-e", "cpu-clock:u", "-o", "p.data", "./walk"]
    done = subprocess.run(record, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"perf may not record: {done.stderr[:200]}")
    text = subprocess.run(
        ["perf", "annotate", "--stdio", "-l", "-i", "p.data", "-s", "main"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    profile = read_profile(text)
    lines = hot_lines(profile.lines, profile.unit, source.read_text())
    assert profile.kernel == "main" and 6 <= lines[0].first <= 7 and lines[0].share_pct > 50
