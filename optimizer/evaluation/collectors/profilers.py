"""Profile a candidate on one case with every profiler of the device: perf or Nsight Compute for
counters, PyTorch's profiler and Triton's Proton for times by kernel; perf or Nsight Compute for
samples by line.

Each profiler runs the candidate in a process (`profile_child`) that gets the values of a case, no
expected outputs, a folder to write to, limits and a deadline. Only correct and honest candidates
are profiled. `retrieval.profiles` parses the reports. Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from optimizer.evaluation.collectors.probe import DeviceKind, tool
from optimizer.evaluation.toolchains.base import Loader
from optimizer.evaluation.toolchains.processes import CommandLimits, FinishedCommand, clean_env, run
from retrieval.profiles import linux_perf, nsight, proton
from retrieval.profiles.lines import TIME_UNIT, LineRow, of_leading
from retrieval.profiles.linux_perf import Counts, counts_of_csv
from retrieval.profiles.nsight import Launch, longest_launch, read_launches
from retrieval.profiles.profile import Metric, time_shares
from retrieval.profiles.torch_profile import read_events

if TYPE_CHECKING:
    import torch

    from optimizer.evaluation.problem.open_case import OpenCase

CHILD = Path(__file__).with_name("profile_child.py")
PERF: Final = "perf"
NCU: Final = "ncu"
TORCH: Final = "torch_profiler"
PROTON: Final = "proton"
SECONDS = 120.0
NCU_SECONDS = 300.0
TORCH_CALLS = 5
PERF_CALLS = 20
NCU_MAX_LAUNCHES = 24
LINE_LAUNCHES = 8  # launches of one call that ncu samples by line
LINE_SECONDS = 0.5  # of calls that perf samples
Mode = Literal["plain", "counted", "torch_profiler", "proton"]


@dataclass(frozen=True)
class ProfileJob:
    """A candidate to profile. `spec` is the input of `profile_child`; it writes to `folder`
    only."""

    folder: Path
    device: DeviceKind
    threads: int
    spec: Mapping[str, Any]

    def with_calls(self, calls: int) -> ProfileJob:
        """The same job with another number of calls."""
        return replace(self, spec={**self.spec, "calls": calls})

    def command(self, mode: Mode) -> list[str]:
        """The child's command line; writes its job file."""
        path = self.folder / f"job-{mode}.json"
        spec = {**self.spec, "mode": mode, "result": str(self.result(mode))}
        path.write_text(json.dumps(spec), encoding="utf-8")
        return [sys.executable, "-I", str(CHILD), str(path)]

    def result(self, mode: Mode) -> Path:
        """The child's result file."""
        return self.folder / f"result-{mode}.json"

    def run(self, command: Sequence[str], seconds: float) -> FinishedCommand:
        """Run a command in the job's folder, within `seconds`."""
        threads = str(self.threads)
        env = clean_env(
            self.folder,
            OMP_NUM_THREADS=threads,
            MKL_NUM_THREADS=threads,
            TRITON_CACHE_DIR=str(self.folder / "triton"),
        )
        limits = CommandLimits(seconds=seconds, memory_bytes=None, output_bytes=16 << 20)
        return run(command, cwd=self.folder, limits=limits, env=env)


@dataclass(frozen=True)
class Collected:
    """The report of one collector.

    `metrics`, by the raw names of retrieval/data/metrics.toml, are those of the kernel with the
    longest time; `kernels` has a row for each kernel. `not_measured` is the reason for no metrics.
    `call_bytes` is the device memory traffic of a whole call. `lines` are the rows of the kernel
    with the most samples, counted in `unit`.
    """

    collector: str
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    kernels: Sequence[Mapping[str, Any]] = ()
    not_measured: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    call_bytes: float | None = None
    lines: tuple[LineRow, ...] = ()
    unit: str = "samples"


def refused(collector: str, reason: str, seconds: float = 0.0) -> Collected:
    """The report of a collector that measured nothing."""
    return Collected(collector, not_measured=reason, seconds=seconds)


def failed(collector: str, done: FinishedCommand) -> Collected:
    """The report of a profiler that did not complete."""
    last = " ".join(done.log.split())[-300:] or f"exit code {done.code}"
    why = "no result within its deadline" if done.timed_out else last
    return refused(collector, f"{collector} failed: {why}", done.seconds)


def write_job(
    folder: Path,
    loader: Loader,
    case: OpenCase,
    tensors: Sequence[torch.Tensor],
    *,
    device: DeviceKind,
    threads: int,
) -> ProfileJob:
    """Write a job. `tensors` are inputs, then weights, as in `CaseValues`."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.save(list(tensors), folder / "tensors.pt")
    spec = {
        "kind": loader.kind,
        "path": str(loader.path),
        "entry": loader.entry,
        **case.calling_convention(),
        "tensors": str(folder / "tensors.pt"),
        "scratch": str(folder),
        "device": device,
        "threads": threads,
    }
    return ProfileJob(folder, device, threads, spec)


def collect_all(job: ProfileJob) -> list[Collected]:
    """Reports of counters, then of times by kernel; of Proton only if no other has times. A failure
    is a report, not an exception."""
    if job.device == "cpu":
        return [collect_perf(job), collect_torch_profile(job)]
    reports = [collect_ncu(job), collect_torch_profile(job)]
    if not any(collected.kernels for collected in reports):
        reports.append(collect_proton(job))
    return reports


# -- perf

EVENTS = (
    "cycles",
    "instructions",
    "L1-dcache-loads",
    "L1-dcache-load-misses",
    "LLC-loads",
    "LLC-load-misses",
    "cache-references",
    "cache-misses",
    "branches",
    "branch-misses",
)


def collect_perf(job: ProfileJob) -> Collected:
    """Count hardware events of the calls only: counters are off until the child enables them."""
    known = tool(PERF)
    if not known.available:
        return refused(PERF, known.reason)
    output = job.folder / "perf.txt"
    stat = ("perf", "stat", "-x,", "-D", "-1", "-o", str(output), "-e", ",".join(EVENTS))
    done = _controlled(job.with_calls(PERF_CALLS), stat)
    if not done.ok or not output.is_file():
        return failed(PERF, done)
    return parse_perf(output.read_text(encoding="utf-8"), done.seconds)


def _controlled(job: ProfileJob, command: Sequence[str]) -> FinishedCommand:
    """Run the child under a command of perf that measures only while the child enables it."""
    control = job.folder / "perf.control"
    for path in (control, control.with_name(control.name + ".ack")):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    counted = replace(job, spec={**job.spec, "control": str(control)})
    by_fifo = ("--control", f"fifo:{control},{control}.ack", "--")
    return job.run([*command, *by_fifo, *counted.command("counted")], SECONDS)


def parse_perf(text: str, seconds: float = 0.0) -> Collected:
    """Parse the output of `perf stat -x,`."""
    counts = counts_of_csv(text) or Counts()
    if not counts.metrics:
        missing = ", ".join(counts.missing) or "anything"
        return refused(PERF, f"perf did not count {missing}", seconds)
    notes = (f"perf did not count {', '.join(counts.missing)}",) if counts.missing else ()
    return Collected(PERF, counts.metrics, notes=notes, seconds=seconds)


# -- Nsight Compute

_STALLS = (
    *("long_scoreboard", "short_scoreboard", "mio_throttle", "lg_throttle", "barrier", "membar"),
    *("wait", "math_pipe_throttle", "no_instruction", "imc_miss", "branch_resolving", "gmma"),
)
NCU_METRICS = (
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


FORBIDDEN = "ncu may not read counters here: the driver keeps them for administrators"
LINE_SECTIONS = ("SourceCounters", "WarpStateStats", "SpeedOfLight", "Occupancy", "LaunchStats")


def collect_ncu(job: ProfileJob) -> Collected:
    """Profile one call. ncu replays every launch once for each group of counters."""
    known = tool(NCU)
    if not known.available:
        return refused(NCU, known.reason)
    job = job.with_calls(1)
    command = [
        *("ncu", "--clock-control", "none", "--csv", "--print-units", "base"),
        *("--profile-from-start", "off", "--launch-count", str(NCU_MAX_LAUNCHES)),
        *("--target-processes", "all", "--metrics", ",".join(NCU_METRICS)),
        *job.command("plain"),
    ]
    done = job.run(command, NCU_SECONDS)
    if "ERR_NVGPUCTRPERM" in done.log:
        return refused(NCU, FORBIDDEN)
    launches = read_launches(done.stdout)
    if not launches:
        return failed(NCU, done)
    return summarise_ncu(launches, done.seconds)


def summarise_ncu(launches: Sequence[Launch], seconds: float = 0.0) -> Collected:
    """The metrics of the longest launch of the kernel with the longest time, and a row for each
    kernel."""
    longest = longest_launch(launches)
    kernels = time_shares(nsight.kernel_times(launches))
    notes: tuple[str, ...] = ()
    if len(kernels) > 1:
        share = kernels[0]["pct"]
        notes = (f"ncu: the metrics are of {longest.kernel}, {share} % of the device's time",)
    whole = _call_bytes(launches) if len(launches) < NCU_MAX_LAUNCHES else None
    return Collected(
        NCU, dict(longest.metrics), kernels, notes=notes, seconds=seconds, call_bytes=whole
    )


def _call_bytes(launches: Sequence[Launch]) -> float | None:
    """Device memory traffic of all launches, in bytes."""
    counts = [launch.metrics.get("dram__bytes.sum") for launch in launches]
    numbers = [float(str(value).removesuffix(" B")) for value in counts if value is not None]
    return sum(numbers) if len(numbers) == len(launches) else None


# -- samples by line


def collect_lines(job: ProfileJob, call_us: float) -> Collected:
    """The lines of a candidate that take its time. A call takes `call_us` microseconds. A failure
    is a report, not an exception."""
    if job.device == "cuda":
        return _lines_of_ncu(job)
    if job.spec["kind"] != "c_abi":
        return refused(PERF, "perf samples lines of compiled candidates only")
    return _lines_of_perf(job, call_us)


def _lines_of_perf(job: ProfileJob, call_us: float) -> Collected:
    """Sample the calls only, by cycles or, without such a counter, by the clock."""
    if shutil.which(PERF) is None:
        return refused(PERF, "perf is not installed")
    calls = int(min(max(LINE_SECONDS * 1e6 / max(call_us, 0.1), 5), 200_000))
    output = job.folder / "perf.data"
    event = "cycles:u" if tool(PERF).available else "cpu-clock:u"
    record = ("perf", "record", "-q", "-e", event, "-F", "4000", "-o", str(output), "-D", "-1")
    done = _controlled(job.with_calls(calls), record)
    if not done.ok or not output.is_file():
        return failed(PERF, done)
    library = str(job.spec["path"])
    annotate = ("perf", "annotate", "--stdio", "-l", "-i", str(output), "-d", library)
    listed = job.run(annotate, SECONDS)
    kernel, rows = of_leading(linux_perf.read_lines(listed.stdout))
    seconds = done.seconds + listed.seconds
    if not rows:
        return refused(PERF, "perf sampled no instruction of the candidate", seconds)
    note = f"perf: the lines are of {kernel}, sampled by {event}"
    return Collected(PERF, lines=rows, unit=TIME_UNIT, notes=(note,), seconds=seconds)


def _lines_of_ncu(job: ProfileJob) -> Collected:
    """Sample one call, and read the samples by source line, or by instruction without these."""
    known = tool(NCU)
    if not known.available:
        return refused(NCU, known.reason)
    report = job.folder / "lines.ncu-rep"
    command = [
        *("ncu", "--clock-control", "none", "--profile-from-start", "off", "-f", "-o"),
        *(str(report), "--launch-count", str(LINE_LAUNCHES), "--target-processes", "all"),
        *("--import-source", "yes"),
        *(word for section in LINE_SECTIONS for word in ("--section", section)),
        *job.with_calls(1).command("plain"),
    ]
    done = job.run(command, NCU_SECONDS)
    if "ERR_NVGPUCTRPERM" in done.log:
        return refused(NCU, FORBIDDEN)
    if not report.is_file():
        return failed(NCU, done)
    seconds = done.seconds
    for view in ("cuda,sass", "sass"):
        show = ("ncu", "-i", str(report), "--page", "source", "--print-source", view, "--csv")
        listed = job.run(show, NCU_SECONDS)
        seconds += listed.seconds
        kernel, rows = of_leading(nsight.read_lines(listed.stdout))
        if rows:
            raw = job.run(("ncu", "-i", str(report), "--page", "raw", "--csv"), NCU_SECONDS)
            return _sampled(kernel, rows, read_launches(raw.stdout), seconds + raw.seconds)
    return refused(NCU, "ncu sampled no instruction of the candidate", seconds)


def _sampled(
    kernel: str, rows: tuple[LineRow, ...], launches: Sequence[Launch], seconds: float
) -> Collected:
    """The report of a source view, with the counters of the same kernel."""
    of_kernel = [launch for launch in launches if launch.kernel.partition("(")[0] in kernel]
    metrics = dict(longest_launch(of_kernel).metrics) if of_kernel else {}
    metrics = {name: value for name, value in metrics.items() if name in NCU_METRICS}
    note = f"ncu: the lines are of {kernel}"
    return Collected(NCU, metrics, notes=(note,), seconds=seconds, lines=rows)


# -- PyTorch's profiler and Proton


def collect_torch_profile(job: ProfileJob) -> Collected:
    """Run the candidate under PyTorch's profiler."""
    known = tool(TORCH)
    if not known.available:
        return refused(TORCH, known.reason)
    job = job.with_calls(TORCH_CALLS)
    done = job.run(job.command(TORCH), SECONDS)
    if not done.ok:
        return failed(TORCH, done)
    profile = json.loads(job.result(TORCH).read_text(encoding="utf-8"))
    return parse_torch_profile(profile, job.device, done.seconds)


def parse_torch_profile(
    profile: Mapping[str, Any], device: DeviceKind, seconds: float = 0.0
) -> Collected:
    """Summarise the child's result: {calls, wall_us, events: [{name, device, ...}], operators}."""
    metrics, kernels = read_events(profile, device)
    if not kernels:
        return refused(TORCH, "the profiler saw no operator of the candidate", seconds)
    rows = time_shares(kernels, profile["calls"])
    return Collected(TORCH, metrics, rows, seconds=seconds)


def collect_proton(job: ProfileJob) -> Collected:
    """Run the candidate under Proton, which has times and no counters; GPUs only."""
    known = tool(PROTON)
    if not known.available:
        return refused(PROTON, known.reason)
    if job.device != "cuda":
        return refused(PROTON, "Proton times kernels of a GPU, and there is none")
    job = job.with_calls(TORCH_CALLS)
    done = job.run(job.command(PROTON), SECONDS)
    if not done.ok:
        return failed(PROTON, done)
    profile = json.loads(job.result(PROTON).read_text(encoding="utf-8"))
    return parse_proton(profile["tree"], profile["calls"], done.seconds)


def parse_proton(tree: Sequence[Mapping[str, Any]], calls: int, seconds: float = 0.0) -> Collected:
    """Summarise Proton's tree of `calls` calls."""
    kernels = proton.kernel_times(tree)
    if not any(kernel.us for kernel in kernels):
        return refused(PROTON, "Proton saw no kernel", seconds)
    metrics: dict[str, Metric] = {"num_launches": sum(k.calls for k in kernels) / calls}
    return Collected(PROTON, metrics, time_shares(kernels, calls), seconds=seconds)
