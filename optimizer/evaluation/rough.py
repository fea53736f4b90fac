"""What is known of a kernel that could not be timed: a rough ratio, marked as one, for readers.

Nothing is ranked or stored by it: other work only adds to a time, to the two sides unequally.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from optimizer.evaluation.isolation.processors import account, left_between
from optimizer.evaluation.records import CaseTiming

BUSY = "not confirmed: the processors were busy"
CROWD = 0.5  # processors that other work may use before nothing can be timed
LOOK_SECONDS = 0.3


def rough_ratio(timings: Sequence[CaseTiming | Mapping[str, Any]]) -> str:
    """About how much faster than the reference, over the cases of which something is known, such as
    `roughly 20x (not confirmed: the processors were busy)`; empty where nothing is."""
    ratios = [
        float(baseline) / float(candidate)
        for row in (asdict(t) if isinstance(t, CaseTiming) else t for t in timings)
        if (baseline := row.get("rough_baseline_us")) and (candidate := row.get("rough_us"))
    ]
    if not ratios:
        return ""
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"roughly {_two_digits(mean)}x ({BUSY})"


def rough_times(timing: Mapping[str, Any]) -> str:
    """The fastest disturbed calls of one case in words; empty where there are none."""
    candidate, baseline = timing.get("rough_us"), timing.get("rough_baseline_us")
    if not candidate or not baseline:
        return ""
    return f"about {_two_digits(candidate)} us a call, reference {_two_digits(baseline)} us"


def too_busy(threads: int, seconds: float = LOOK_SECONDS) -> str:
    """What to do where other work leaves too little of the processors to time anything; empty where
    it leaves enough, or where the system does not say. Looks for `seconds`."""
    before = account(())
    if before is None:
        return ""
    time.sleep(seconds)
    after = account(())
    left = left_between(before, after)
    if left is None or left >= threads - CROWD:
        return ""
    return (
        f"other work leaves about {max(0.0, left):.1f} of {before.processors} processors, and"
        f" timing needs {threads}: kernels are checked, but most get no figure until it ends."
        " Stop it, or search again while the machine is idle, which begins with what is right"
    )


def _two_digits(value: float) -> str:
    """More would be read as a measurement."""
    return f"{float(f'{value:.2g}'):g}"
