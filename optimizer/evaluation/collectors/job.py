"""A candidate on one case as files, for a profiler to run in a process of its own.

The supervisor writes the job, `driver` reads it and calls the candidate a few times. The profiled
process gets the values of a case and no expected outputs, a folder to write in, limits and a
deadline. Only correct and honest candidates are profiled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optimizer.evaluation.collectors.probe import DeviceKind
from optimizer.evaluation.toolchains.base import Loader
from optimizer.evaluation.toolchains.processes import Finished, Limits, clean_env, run
from retrieval.profiles.profile import Metric as Metric

if TYPE_CHECKING:
    import torch

    from optimizer.evaluation.problem.tensors import OpenCase

DRIVER = Path(__file__).with_name("driver.py")
Mode = Literal["plain", "counted", "torch_profiler", "proton"]


@dataclass(frozen=True)
class Job:
    """A candidate to profile. `spec` is what the driver reads, `folder` the only place it writes
    to."""

    folder: Path
    device: DeviceKind
    threads: int
    spec: Mapping[str, Any]

    def calling(self, calls: int) -> Job:
        """The same job with another number of calls."""
        return replace(self, spec={**self.spec, "calls": calls})

    def command(self, mode: Mode) -> list[str]:
        """The driver's command line; writes its job file."""
        path = self.folder / f"job-{mode}.json"
        spec = {**self.spec, "mode": mode, "result": str(self.result(mode))}
        path.write_text(json.dumps(spec), encoding="utf-8")
        return [sys.executable, "-I", str(DRIVER), str(path)]

    def result(self, mode: Mode) -> Path:
        """The file that the driver writes its result to."""
        return self.folder / f"result-{mode}.json"

    def run(self, command: Sequence[str], seconds: float) -> Finished:
        """Run a command in the job's folder, within `seconds`."""
        threads = str(self.threads)
        env = clean_env(
            self.folder,
            OMP_NUM_THREADS=threads,
            MKL_NUM_THREADS=threads,
            TRITON_CACHE_DIR=str(self.folder / "triton"),
        )
        limits = Limits(seconds=seconds, memory_bytes=None, output_bytes=16 << 20)
        return run(command, cwd=self.folder, limits=limits, env=env)


@dataclass(frozen=True)
class Collected:
    """The report of one collector.

    `metrics` have raw names as retrieval/data/metrics.toml knows them, and are those of the kernel
    that takes most of the time; `kernels` has a row for each kernel. `not_measured` is the reason
    why there are none. `call_bytes` is device memory traffic of a whole call.
    """

    collector: str
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    kernels: Sequence[Mapping[str, Any]] = ()
    not_measured: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    call_bytes: float | None = None


def refused(collector: str, reason: str, seconds: float = 0.0) -> Collected:
    """The report of a collector that measured nothing, with the reason."""
    return Collected(collector, not_measured=reason, seconds=seconds)


def failed(collector: str, done: Finished) -> Collected:
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
    calls: int = 3,
) -> Job:
    """Write a job. `tensors` are inputs, then weights, as the sample of a `PreparedCase` has
    them."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.save(list(tensors), folder / "tensors.pt")
    signature = case.signature
    spec = {
        "kind": loader.kind,
        "path": str(loader.path),
        "entry": loader.entry,
        "init_args": case.init_args,
        "dtype": case.case.dtype,
        "scalars": list(case.scalars),
        "state": [t.name for t in signature.of("parameter", "buffer")],
        "expected": [[t.dtype, list(t.shape)] for t in signature.of("output")],
        "tensors": str(folder / "tensors.pt"),
        "scratch": str(folder),
        "device": device,
        "threads": threads,
        "calls": calls,
    }
    return Job(folder, device, threads, spec)
