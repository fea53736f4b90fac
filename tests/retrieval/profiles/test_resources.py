"""Reports of compilers about registers, spills and occupancy, old logs, and advice of profilers."""

import pytest

from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.given_profile import advice_of, with_known_counters
from retrieval.diagnose.metrics import normalise
from retrieval.diagnose.signals import load_signals
from retrieval.pasted import pasted
from retrieval.profiles.reader import read_profile
from retrieval.request import RetrieveRequest

REMARKS = "\n".join(
    f"k.hip:9:1: remark: {text} [-Rpass-analysis=kernel-resource-usage]"
    for text in (
        "Function Name: _Z4fullPf",
        "    VGPRs: 96",
        "    ScratchSize [bytes/lane]: 0",
        "    Occupancy [waves/SIMD]: 5",
        "    VGPRs Spill: 0",
        "Function Name: _Z4widePf",
        "    VGPRs: 256",
        "    ScratchSize [bytes/lane]: 64",
        "    Occupancy [waves/SIMD]: 1",
        "    VGPRs Spill: 15",
        "    LDS Size [bytes/block]: 65536",
    )
)
PTXAS = """ptxas info    : Compiling entry function '_Z1aPf' for 'sm_90'
ptxas info    : Function properties for _Z1aPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, 356 bytes cmem[0]
ptxas info    : Compiling entry function '_Z1bPf' for 'sm_90'
ptxas info    : Function properties for _Z1bPf
    40 bytes stack frame, 36 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 168 registers, 4096 bytes smem, 356 bytes cmem[0]
"""
ASSEMBLY = """; Kernel info:
; codeLenInByte = 4812
; NumSgprs: 42
; NumVgprs: 128
; ScratchSize: 24
; Occupancy: 4
; LDSByteSize: 16384 bytes/workgroup (compile time only)
"""
METADATA = """amdhsa.kernels:
  - .name:           step
    .group_segment_fixed_size: 2048
    .private_segment_fixed_size: 0
    .sgpr_count:     40
    .vgpr_count:     72
    .vgpr_spill_count: 3
"""
IGC = "kernel: conv simd_size: 8 grf_count: 128 spill_mem_used: 4096 slm_used: 512"
OCLOC = """Build succeeded with warnings:
warning: kernel conv compiled SIMD16 allocated 128 regs and spilled around 40
"""
TRITON = "attn_kernel: n_regs=255, n_spills=18"
MARKDOWN = """| kernel | VGPRs | VGPR spills | LDS | occupancy |
|---|---|---|---|---|
| fwd | 128 | 0 | 32768 | 4 |
| bwd | 256 | 70 | 65536 | 1 |
"""
SPACED = """kernel        registers   spill stores   smem
transpose     32          0              4352
softmax_bwd   255         144            1024
"""


@pytest.mark.parametrize(
    ("text", "kernel", "metrics"),
    [
        (REMARKS, "_Z4widePf", {"spilled_registers": 15.0, "theoretical_occupancy_pct": 12.5}),
        (PTXAS, "_Z1bPf", {"spill_store_bytes": 36.0, "registers_per_thread": 168.0}),
        (ASSEMBLY, "", {"scratch_bytes": 24.0, "theoretical_occupancy_pct": 50.0}),
        (METADATA, "step", {"spilled_registers": 3.0, "shared_memory_per_block_bytes": 2048.0}),
        (IGC, "conv", {"spill_bytes": 4096.0}),
        (OCLOC, "conv", {"spilled_registers": 40.0}),
        (TRITON, "attn_kernel", {"registers_per_thread": 255.0, "spilled_registers": 18.0}),
        (MARKDOWN, "bwd", {"spilled_registers": 70.0, "theoretical_occupancy_pct": 12.5}),
        (SPACED, "softmax_bwd", {"spill_store_bytes": 144.0}),
    ],
)
def test_resources_of_the_kernel_that_spills_most(
    text: str, kernel: str, metrics: dict[str, float]
) -> None:
    profile = read_profile(text)
    assert profile.kind == "resources" and profile.kernel == kernel
    assert metrics.items() <= profile.metrics.items()
    assert diagnosed(text)[0] == "register_spill"


def test_resources_without_spills_name_the_occupancy() -> None:
    text = REMARKS.replace("Spill: 15", "Spill: 0").replace("lane]: 64", "lane]: 0")
    assert diagnosed(text) == ["occupancy_limited"]
    assert any("_Z4widePf: 256 registers of a thread" in note for note in read_profile(text).notes)


def test_report_of_a_failed_compilation_is_no_profile() -> None:
    text = PTXAS + "ptxas error   : Entry function '_Z1cPf' uses too much shared data\n"
    assert pasted(text)[0] == "log"


OLD_LOG = """# CUDA_PROFILE_LOG_VERSION 2.0
# CUDA_DEVICE 0 GeForce GTX 580
method,gputime,cputime,regperthread,occupancy
method=[ memcpyHtoD ] gputime=[ 120.5 ] cputime=[ 140.0 ]
method=[ _Z6solverPfi ] gputime=[ 5211.25 ] cputime=[ 11.0 ] regperthread=[ 63 ] occupancy=[ 0.167 ]
"""
OLD_CSV = """# CUDA_PROFILE_LOG_VERSION 2.0
# CUDA_PROFILE_CSV 1
method,gputime,cputime,occupancy
memcpyHtoD,120.5,140.0,
_Z6solverPfi,5211.25,11.0,0.167
"""
PCM = """ Core (SKT) | EXEC | IPC  | FREQ  | AFREQ | L3MISS | L2MISS | L3HIT | L2HIT | L3MPI | TEMP

   0    0     0.31   0.34   0.91    1.00      24 M     29 M    0.16    0.12    0.02     52
 TOTAL  *     0.30   0.36   0.91    1.00     610 M    720 M    0.10    0.12    0.02     N/A

          |  READ |  WRITE | LOCAL | CPU energy | DIMM energy |
 SKT   0    95.31    31.10      99 %     165.21      30.10
"""
SOCKETS = """|-- NODE 0 Memory (MB/s):   122522.73 --||-- NODE 1 Memory (MB/s):     190.51 --|
|--          System Memory Throughput(MB/s):     122713.24                  --|
"""


@pytest.mark.parametrize("text", [OLD_LOG, OLD_CSV])
def test_log_of_the_command_line_profiler(text: str) -> None:
    profile = read_profile(text)
    assert [kernel.name for kernel in profile.kernels] == ["_Z6solverPfi", "memcpyHtoD"]
    assert float(profile.metrics["theoretical_occupancy_pct"]) == pytest.approx(16.7)
    assert diagnosed(text) == ["occupancy_limited"]


def test_counters_of_processors_by_the_meaning_of_their_columns() -> None:
    request, _ = with_known_counters(RetrieveRequest(profile=PCM))
    metrics = normalise(request.metrics or {}).values
    assert (metrics["ipc"], metrics["llc_miss_pct"]) == (0.36, 90.0)
    assert metrics["llc_miss_bytes_per_cycle"] == pytest.approx(0.4608)
    assert metrics["socket_bytes_per_s"] == pytest.approx(126.41e9)
    assert diagnosed(PCM)[0] == "memory_bound"


def test_traffic_of_one_socket_alone_is_stated() -> None:
    (note,) = read_profile(SOCKETS).notes
    assert note.startswith("socket 0 has 123 GB/s and the others at most 0.2")


MIOPEN = """GPU Kernel Time Forward Conv. Elapsed: 2.45 ms (average)
stats: name, n, c, ho, wo, flopCnt, GFLOPs, GB/s, timeMs
stats: fwd-conv3x3u1, 128, 64, 56, 56, 29595009024, 12070, 84, 2.452000
Forward Convolution Verifies OK on CPU reference (4.2e-08 < 1e-05)
"""
PROSE = [
    "It reaches 35 % of the peak, and the kernel takes about 12 ms on this GPU.",
    "The remaining 19 ms is too long, because the library needs 7 ms for it.",
    "My batch is 16 and what I see after the change is 31 ms per step.",
]


def test_timing_lines_of_a_library_are_rates() -> None:
    assert read_profile(MIOPEN).metrics["achieved_flops"] == 12070e9


@pytest.mark.parametrize("text", [*PROSE, "\n".join(PROSE)])
def test_sentences_of_a_person_are_no_table(text: str) -> None:
    assert not kernels_of(text)


BARRIER = """    OPT   Est. Speedup: 41.2%
          On average, each warp of this kernel spends 9.9 cycles being stalled waiting for
          sibling warps at a CTA barrier. This stall type represents about 41.2% of the total.
    OPT   Est. Speedup: 12%
          The memory access pattern for stores is not optimal. On average, only 8.0 of the 32
          bytes transmitted per sector are utilized by each thread. Check uncoalesced global
          accesses.
"""
WRN = """    WRN   This kernel grid is too small to fill the available resources on this device,
          resulting in only 0.1 full waves across all SMs.
"""
QUOTED = """> each warp spends 130.5 cycles being stalled waiting for the local/global instruction
> queue to be not full. This represents about 77.5% of the total average of 168.3 cycles.
"""


@pytest.mark.parametrize(
    ("text", "signals"),
    [
        (BARRIER, ["sync_stall", "uncoalesced_access"]),
        (WRN, ["grid_too_small"]),
        (QUOTED, ["not_vectorized"]),
        ("Duration 12 us, no bank conflicts, warps are never stalled", []),
        ("the grid is large enough to fill the device", []),
    ],
)
def test_rules_of_a_profiler_are_a_diagnosis(text: str, signals: list[str]) -> None:
    assert [advised.signal for advised in advice_of(text)] == signals
    assert diagnosed(text)[: len(signals)] == signals


def test_advice_names_its_line_and_its_gain() -> None:
    barrier, store = advice_of(BARRIER)
    assert (barrier.line, barrier.pct) == (2, 41.2)
    assert store.line == 5 and "stores" not in barrier.sentence


def diagnosed(text: str) -> list[str]:
    request, _ = with_known_counters(RetrieveRequest(profile=text))
    verdict = Diagnoser(load_signals()).conclude(request, {}, (), ()).verdict
    return list(verdict.signal_ids)


def kernels_of(text: str) -> object:
    read = with_known_counters(RetrieveRequest(profile=text))[1]
    assert read is not None
    return read.kernels


SPILLED = "a.hip:1:1: remark: VGPRs: 63\na.hip:1:1: remark: VGPRs Spill: 298"


@pytest.mark.parametrize("sent", [RetrieveRequest(log=SPILLED), RetrieveRequest(profile=SPILLED)])
def test_compilers_report_is_read_in_either_field(sent: RetrieveRequest) -> None:
    """With its numbers, and as a log for the remedies of its lines."""
    request, read = with_known_counters(sent)
    assert read is not None and read.kind == "resources"
    assert request.log == SPILLED and request.metrics == read.metrics


def test_profile_without_known_errors_is_no_log() -> None:
    text = "Function Name: k\nVGPRs: 63\nOccupancy [waves/SIMD]: 8\n"
    assert with_known_counters(RetrieveRequest(log=text))[0].log is None


def test_scratch_without_spills_is_no_spill() -> None:
    """A kernel trace of OpenMP on AMD: a local array lies in scratch, both counts of spills are 0,
    and the achieved occupancy is not what the resources allow."""
    text = (
        "DEVID: 0 SGN:2 ConstWGSize:256 args: 4 teamsXthrds:(   1X 256) reqd:(   0X   0)"
        " lds_usage:4B scratch:528B sgpr_count:22 vgpr_count:12 agpr_count:0 sgpr_spill_count:0"
        " vgpr_spill_count:0 tripcount:1000 Max Occupancy: 8 Achieved Occupancy: 3%"
    )
    read = with_known_counters(RetrieveRequest(profile=text))[1]
    assert read is not None and read.metrics["spilled_registers"] == 0
    assert read.metrics["registers_per_thread"] == 12 and read.metrics["scratch_bytes"] == 528
    assert diagnosed(text) == []
    spilled = text.replace("vgpr_spill_count:0", "vgpr_spill_count:9")
    assert diagnosed(spilled) == ["register_spill"]


SCRATCH = """\
remark: k.hip:3:0: Function Name: fill [-Rpass-analysis=kernel-resource-usage]
remark: k.hip:3:0:     VGPRs: 12 [-Rpass-analysis=kernel-resource-usage]
remark: k.hip:3:0:     ScratchSize [bytes/lane]: 528 [-Rpass-analysis=kernel-resource-usage]
remark: k.hip:3:0:     VGPRs Spill: 0 [-Rpass-analysis=kernel-resource-usage]
"""


def test_scratch_without_a_spill_is_a_local_array() -> None:
    _, read = with_known_counters(RetrieveRequest(profile=SCRATCH))
    assert read is not None and read.notes[0].startswith("keep the local array in registers")
