"""Calls the winners' modules of a portable session, on the machine that searched them.

Every finished run's winner is written as a module and called on the device in a process that has
only torch; its results are held against the reference's. What it came to is appended to
FOLDER/modules.jsonl, and a run that stands there is not checked again.

Needs torch and nothing else of Kernlore's dependencies.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.evaluation.gpu_machine import keep
from benchmarks.report import ended, say
from benchmarks.search.gains.module_check import checked
from benchmarks.search.gains.sessions import (
    MODULES,
    Searched,
    checks_in,
    is_finished,
    opened,
    runs_in,
    searched,
)
from kb.errors import KernloreError
from optimizer.evaluation.isolation.machine import DeviceLock


def check(searched_run: Searched, device: str) -> str:
    """As `module_check.checked` says it; a module that cannot be written has failed too."""
    with (
        tempfile.TemporaryDirectory(prefix="kernlore-modules-") as scratch,
        DeviceLock(device),  # a session that measures is not disturbed
    ):
        try:
            return checked(
                searched_run.tree, searched_run.outcome, searched_run.problem, Path(scratch), device
            )
        except KernloreError as problem:
            return f"failed: {problem.message[:120]}"
        finally:
            if device == "cuda":
                torch.cuda.empty_cache()  # the next module's process needs the room


def run(folder: Path, device: str, seconds: float) -> int:
    """How many runs could not be checked for a reason that is not the module's; they get no row."""
    until = time.monotonic() + seconds
    target = folder if folder.is_dir() else folder.parent
    unchecked = 0
    with opened(folder) as source:
        done = checks_in(source)
        for row in runs_in(source):
            if row.id in done or not is_finished(row):
                continue
            if time.monotonic() >= until:
                say(f"{row.problem}: not begun, the time is over")
                continue
            try:
                searched_run = searched(source, row)
                verdict = check(searched_run, device)
            except (KernloreError, OSError, torch.OutOfMemoryError) as problem:
                unchecked += 1
                say(f"{row.problem}: not checked: {problem}")
                continue
            say(f"{searched_run.problem.name}: {verdict}")
            keep(
                target,
                MODULES,
                {"problem": searched_run.problem.name, "run": row.id, "checked": verdict},
            )
    return unchecked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="of a session's --out, or its results.zip")
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start none after these")
    options = parser.parse_args()

    def go() -> None:
        if run(options.folder, options.device, options.seconds):
            sys.exit(1)

    ended(go)


if __name__ == "__main__":
    main()
