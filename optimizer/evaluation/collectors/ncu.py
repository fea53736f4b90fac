"""NVIDIA Nsight Compute over a few calls of a candidate: the smallest set of counters that the
diagnosis rules need. `retrieval.profiles.nsight` reads its CSV.

The verdict is about the kernel that takes most of the time. Does not run in a network namespace:
ncu talks to the profiled process over the loopback. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.evaluation.collectors.job import Collected, Job, failed, refused
from optimizer.evaluation.collectors.probe import tool
from retrieval.profiles.nsight import Launch, kernel_times, longest_launch, read_launches
from retrieval.profiles.profile import time_shares

NAME = "ncu"
SECONDS = 300.0
MAX_LAUNCHES = 24
_STALLS = (
    *("long_scoreboard", "short_scoreboard", "mio_throttle", "lg_throttle", "barrier", "membar"),
    *("wait", "math_pipe_throttle", "no_instruction", "imc_miss", "branch_resolving", "gmma"),
)
METRICS = (
    "gpu__time_duration.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "dram__bytes.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "l1tex__t_sector_hit_rate.pct",
    "lts__t_sector_hit_rate.pct",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "launch__occupancy_limit_blocks",
    "launch__waves_per_multiprocessor",
    "launch__grid_size",
    "sm__cycles_active.avg",
    "sm__cycles_active.max",
    "smsp__inst_executed.sum",
    "smsp__inst_executed_op_local_ld.sum",
    "smsp__inst_executed_op_local_st.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smsp__thread_inst_executed_per_inst_executed.ratio",
    "smsp__sass_branch_targets_threads_divergent.sum",
    "smsp__sass_branch_targets_threads_uniform.sum",
    "smsp__average_warps_active_per_issue_active.ratio",
    *(f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in _STALLS),
)
_NOT_ASKED = "ncu may not read counters here"


def collect(job: Job, metrics: Sequence[str] = METRICS) -> Collected:
    """Profile one call. ncu replays every launch once for each group of counters."""
    known = tool(NAME)
    if not known.available:
        return refused(NAME, known.reason)
    job = job.calling(1)
    command = [
        *("ncu", "--clock-control", "none", "--csv", "--print-units", "base"),
        *("--profile-from-start", "off", "--launch-count", str(MAX_LAUNCHES)),
        *("--target-processes", "all", "--metrics", ",".join(metrics)),
        *job.command("plain"),
    ]
    done = job.run(command, SECONDS)
    if "ERR_NVGPUCTRPERM" in done.log:
        return refused(NAME, f"{_NOT_ASKED}: the driver keeps them for administrators")
    launches = read_launches(done.stdout)
    if not launches:
        return failed(NAME, done)
    return summarise(launches, done.seconds)


def summarise(launches: Sequence[Launch], seconds: float = 0.0) -> Collected:
    """The metrics of the longest launch of the kernel that takes most time, and a row for each."""
    longest = longest_launch(launches)
    kernels = time_shares(kernel_times(launches))
    notes: tuple[str, ...] = ()
    if len(kernels) > 1:
        share = kernels[0]["pct"]
        notes = (f"ncu: the metrics are of {longest.kernel}, {share} % of the device's time",)
    whole = _call_bytes(launches) if len(launches) < MAX_LAUNCHES else None
    return Collected(
        NAME, dict(longest.metrics), kernels, notes=notes, seconds=seconds, call_bytes=whole
    )


def _call_bytes(launches: Sequence[Launch]) -> float | None:
    """Device memory traffic of all launches together."""
    counts = [launch.metrics.get("dram__bytes.sum") for launch in launches]
    numbers = [float(str(value).removesuffix(" B")) for value in counts if value is not None]
    return sum(numbers) if len(numbers) == len(launches) else None
