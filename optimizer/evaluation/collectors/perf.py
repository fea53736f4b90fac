"""Hardware counters of a CPU by `perf stat`, of the calls only: the counters are off until the
driver says over a pipe that the calls begin.

Many virtual machines count nothing; what is refused is "not measured", never zero. Standard library
only.
"""

from __future__ import annotations

import os

from optimizer.evaluation.collectors.job import Collected, Job, failed, refused
from optimizer.evaluation.collectors.probe import tool
from retrieval.profiles.linux_perf import Counts, counts_of_csv

NAME = "perf"
SECONDS = 120.0
CALLS = 20
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


def collect(job: Job) -> Collected:
    """Count events while the candidate is called."""
    known = tool(NAME)
    if not known.available:
        return refused(NAME, known.reason)
    control = job.folder / "perf.control"
    for path in (control, control.with_name(control.name + ".ack")):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    counted = Job(
        job.folder, job.device, job.threads, {**job.spec, "calls": CALLS, "control": str(control)}
    )
    output = job.folder / "perf.txt"
    command = [
        *("perf", "stat", "-x,", "-D", "-1", "-o", str(output)),
        *("--control", f"fifo:{control},{control}.ack", "-e", ",".join(EVENTS), "--"),
        *counted.command("counted"),
    ]
    done = job.run(command, SECONDS)
    if not done.ok or not output.is_file():
        return failed(NAME, done)
    return parse(output.read_text(encoding="utf-8"), done.seconds)


def parse(text: str, seconds: float = 0.0) -> Collected:
    """The report on what `perf stat -x,` printed."""
    counts = counts_of_csv(text) or Counts()
    if not counts.metrics:
        named = ", ".join(counts.missing) or "anything"
        return refused(NAME, f"perf did not count {named}", seconds)
    notes = (f"perf did not count {', '.join(counts.missing)}",) if counts.missing else ()
    return Collected(NAME, counts.metrics, notes=notes, seconds=seconds)
