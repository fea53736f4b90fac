"""Hardware counters of a CPU by `perf stat`, of the calls only: the counters are off until the
driver says over a pipe that the calls begin.

Many virtual machines count nothing; what is refused is "not measured", never zero. Standard library
only.
"""

from __future__ import annotations

import os

from optimizer.evaluation.collectors.job import Collected, Job, Metric, failed, refused
from optimizer.evaluation.collectors.probe import tool

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
# More events than counters are multiplexed; below this share of the time a count is a guess.
MIN_SHARE_PCT = 20.0


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
    """Read the lines of `perf stat -x,`: value, unit, event, time counted, share of it, metric,
    unit."""
    metrics: dict[str, Metric] = {}
    missing: list[str] = []
    for line in text.splitlines():
        cells = line.strip().split(",")
        if line.startswith("#") or len(cells) < 5:
            continue
        event = _plain(cells[2])
        value, share = _number(cells[0]), _number(cells[4])
        if value is None or (share is not None and share < MIN_SHARE_PCT):
            missing.append(event)
            continue
        metrics[event] = metrics_sum(metrics.get(event), value)
    if not metrics:
        named = ", ".join(missing) or "anything"
        return refused(NAME, f"perf did not count {named}", seconds)
    notes = (f"perf did not count {', '.join(missing)}",) if missing else ()
    return Collected(NAME, metrics, notes=notes, seconds=seconds)


def metrics_sum(before: Metric | None, value: float) -> float:
    """The sum of both: hybrid processors report an event once for each kind of core."""
    return value + (before if isinstance(before, float) else 0.0)


def _plain(event: str) -> str:
    """`cpu_core/cycles/` and `cycles:u` are cycles."""
    inner = event.split("/")[1] if event.count("/") >= 2 else event
    return inner.split(":", 1)[0]


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None  # <not supported>, <not counted>
