"""How long an evaluation that was sent to a service takes, in a fork of a process that has imported
what it needs, and in an interpreter of its own.

    python -m benchmarks.evaluation.sent [--n 8] [--results FILE]

A new data directory, the problem `softmax`, torch's own softmax as the candidate, each time with
another comment, so that none is known already. Both ways in turn, one evaluation after the other;
the first of each is shown by itself, since it starts what later ones are forked from.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api.services import Services, evaluate_processes
from benchmarks.processes import descendants
from benchmarks.report import machine, table
from ingestion.builtin import builtin_hardware
from kb.settings import Settings
from optimizer.evaluation.queue import EvaluationProcesses, EvaluationQueue, submission

CANDIDATE = """\
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)  # {number}
"""
LOOK_SECONDS = 0.02


class Interpreters(EvaluationProcesses):
    """As where processes cannot be forked."""

    def __init__(self) -> None:
        super().__init__(evaluate_processes()._command, "")
        self._prepared = None


@contextmanager
def opened(folder: Path) -> Iterator[Services]:
    services = Services(Settings(data_dir=folder))
    for spec in builtin_hardware(services.settings.knowledge_dir):
        services.registry.put(spec, "builtin")
    try:
        yield services
    finally:
        services.close()


def seconds_of(services: Services, queue: EvaluationQueue, number: int) -> float:
    """From sending an evaluation to its end. Raises ValueError where it was not right."""
    candidate = {
        "files": {"kernel.py": CANDIDATE.format(number=number)},
        "main": "kernel.py",
        "language": "torch",
        "parameters": {},
    }
    sent = submission(services, "softmax", candidate, "x86-64")
    began = time.perf_counter()
    job = queue.submit(sent)
    while (job := queue.get(job.id)).state in ("queued", "running"):
        time.sleep(LOOK_SECONDS)
    took = time.perf_counter() - began
    if job.result is None or job.result["validity"] != "correct":
        raise ValueError(f"{job.error or job.result}")
    return took


def private_kib(pid: int) -> int:
    """Memory that this process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=8, help="evaluations each way")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    ways = {"forks": evaluate_processes(), "interpreters": Interpreters()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as services:
        queues = {way: EvaluationQueue(services, ways[way]) for way in ways}
        for number in range(options.n + 1):
            for place, (way, queue) in enumerate(queues.items()):
                times[way].append(seconds_of(services, queue, 2 * number + place))
        held = sum(map(private_kib, descendants(os.getpid())))
        for queue in queues.values():
            queue.close()
    rows = [
        (way, f"{took[0]:.2f}", f"{statistics.median(took[1:]):.2f}", f"{max(took[1:]):.2f}")
        for way, took in times.items()
    ]
    header = ("an evaluation that was sent, in", "first, s", "p50, s", "slowest, s")
    text = f"{table(header, rows)}\n\nWhat waits for the next holds {held / 2**10:.0f} MiB.\n\n"
    text += f"n={options.n} each. {machine()}\n"
    print(text)
    if options.results:
        options.results.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
