"""NVIDIA Nsight Compute over a few calls of a candidate: the smallest set of counters that the
diagnosis rules need, read from its CSV.

One row of the CSV is one metric of one launch; the verdict is about the kernel that takes most of
the time. A metric that this ncu does not know, or that is "n/a", is left out. Does not run in a
network namespace: ncu talks to the profiled process over the loopback. Standard library only.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optimizer.evaluation.collectors.job import Collected, Job, Metric, failed, refused
from optimizer.evaluation.collectors.probe import tool

NAME = "ncu"
SECONDS = 300.0
MAX_LAUNCHES = 24
DURATION = "gpu__time_duration.sum"
_STALLS = (
    *("long_scoreboard", "short_scoreboard", "mio_throttle", "lg_throttle", "barrier", "membar"),
    *("wait", "math_pipe_throttle", "no_instruction", "imc_miss", "branch_resolving"),
)
METRICS = (
    DURATION,
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
# Shares of what was accessed: 0 says that nothing was, as where all loads are asynchronous copies.
_OF_ACCESSES = frozenset(
    (
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
        "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    )
)
_COLUMNS = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
_NOT_ASKED = "ncu may not read counters here"
# Units of bytes and time as factors of a base unit, which stands beside the number; older versions
# print larger units whatever is requested.
_SIZES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}
_TIMES = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}
_TIMES |= {"s": 1e9, "second": 1e9}


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel: raw metric name to value, with its unit where it has one."""

    kernel: str
    metrics: Mapping[str, Metric]
    nanoseconds: float


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
    launches = parse(done.stdout)
    if not launches:
        return failed(NAME, done)
    return summarise(launches, done.seconds)


def parse(text: str) -> list[Launch]:
    """The launches in an ncu CSV, whatever else was printed before it."""
    rows = _table(text)
    launches: dict[str, dict[str, Metric]] = {}
    kernels: dict[str, str] = {}
    for row in rows:
        launch = launches.setdefault(row["ID"], {})
        kernels[row["ID"]] = row["Kernel Name"]
        value = _value(row["Metric Value"], row["Metric Unit"])
        if value is not None and (value or row["Metric Name"] not in _OF_ACCESSES):
            launch[row["Metric Name"]] = value
    return [
        Launch(kernels[number], metrics, _nanoseconds(metrics.get(DURATION)))
        for number, metrics in launches.items()
    ]


def _table(text: str) -> Iterable[Mapping[str, str]]:
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    reader = csv.DictReader(io.StringIO("\n".join(lines[start:])))
    if any(column not in (reader.fieldnames or ()) for column in _COLUMNS):
        return []
    return [row for row in reader if row["Metric Value"] is not None]


def _value(text: str, unit: str) -> Metric | None:
    """A number, with its unit when that is a unit of bytes or time."""
    number = _number(text)
    if number is None:
        return None
    head, _, per = unit.partition("/")
    if per in ("", "block", "thread"):
        for base, factors in (("B", _SIZES), ("ns", _TIMES)):
            if head in factors:
                return f"{number * factors[head]:.15g} {base}"
    return number


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _nanoseconds(value: Metric | None) -> float:
    return float(str(value).removesuffix(" ns")) if value is not None else 0.0


def summarise(launches: Sequence[Launch], seconds: float = 0.0) -> Collected:
    """The metrics of the longest launch of the kernel that takes most time, and a row for each."""
    times: dict[str, float] = {}
    for launch in launches:
        times[launch.kernel] = times.get(launch.kernel, 0.0) + launch.nanoseconds
    total = sum(times.values()) or 1.0
    ordered = sorted(times, key=lambda kernel: -times[kernel])
    leading = [launch for launch in launches if launch.kernel == ordered[0]]
    longest = max(leading, key=lambda launch: launch.nanoseconds)
    kernels = [
        {
            "name": kernel,
            "calls": sum(launch.kernel == kernel for launch in launches),
            "us": times[kernel] / 1e3,
            "pct": round(100 * times[kernel] / total, 2),
        }
        for kernel in ordered
    ]
    notes: tuple[str, ...] = ()
    if len(ordered) > 1:
        share = kernels[0]["pct"]
        notes = (f"ncu: the metrics are of {ordered[0]}, {share} % of the device's time",)
    whole = _call_bytes(launches) if len(launches) < MAX_LAUNCHES else None
    return Collected(
        NAME, dict(longest.metrics), kernels, notes=notes, seconds=seconds, call_bytes=whole
    )


def _call_bytes(launches: Sequence[Launch]) -> float | None:
    """Device memory traffic of all launches together."""
    counts = [launch.metrics.get("dram__bytes.sum") for launch in launches]
    numbers = [float(str(value).removesuffix(" B")) for value in counts if value is not None]
    return sum(numbers) if len(numbers) == len(launches) else None
