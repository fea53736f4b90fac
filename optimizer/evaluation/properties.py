"""One check for each row of the exploit table that is about problems, figures or the harness, not
about what a kernel does. Each runs the real function on what it has to refuse or to keep, and says
what is wrong, or nothing.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from optimizer.evaluation.physics import Work, physics_flags
from optimizer.evaluation.records import CaseTiming, Interval
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.statistics import combined, ratio_interval
from optimizer.evaluation.timing import BETWEEN, order_of
from optimizer.problem.load import load_problem, shipped_problems
from optimizer.problem.spec import Problem

_FILE = """
import torch
import torch.nn as nn

size = 64

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x):
        return {forward}

def get_inputs():
    return [torch.randn(size, size)]
"""
TRIALS = 400


def _findings(forward: str) -> str:
    """What `problem check` says of a model."""
    from optimizer.problem.check import check_problem  # imports torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checked.py"
        path.write_text(_FILE.format(forward=forward), encoding="utf-8")
        found = check_problem(load_problem(path))
    return "; ".join(f"{f.severity}: {f.message}" for f in found)


def controls() -> str:
    """Row 17."""
    told = _findings("(x + self.weight) * 1e-30 + 1.0")
    if "would pass" not in told:
        return "a case that a constant passes counts as valid"
    told = _findings("torch.softmax(x + self.weight, dim=-1)")
    return f"a softmax counts as invalid: {told}" if "invalid" in told else ""


def collapse() -> str:
    """Row 18."""
    told = _findings("torch.softmax(x.sum(1, keepdim=True) + 0 * self.weight[0], dim=1)")
    if "the same everywhere" not in told:
        return "a constant output counts as valid"
    told = _findings("x * 2 + 0 * self.weight")
    return "" if "depends on the weight" in told else "an idle weight counts as valid"


def means() -> str:
    """Row 23: a mean of ratios is geometric, carries its n, and takes no time that is not one."""
    twice, half = Interval(2.0, 1.9, 2.1, 8), Interval(0.5, 0.45, 0.55, 6)
    whole = combined([(twice, 1.0), (half, 1.0)])
    if abs(whole.value - 1.0) > 1e-9 or whole.n != 6:
        return f"twice and half as fast make {whole}"
    try:
        ratio_interval([1.0, 1.0], [0.0, 1.0], 0.01)
    except (ValueError, ZeroDivisionError):
        return ""
    return "a time of zero has a speed-up"


def sizes() -> str:
    """Row 25."""
    if "too little to time" not in _findings("x * self.weight"):
        return "a case of 16 KiB counts as large enough"
    for name in shipped_problems():
        problem = load_problem(Path(name))
        kinds = {case.distribution for case in problem.searched}
        if len(kinds) < 2 and _takes_floats(problem):
            return f"{name} has one distribution of values"
    return ""


def _takes_floats(problem: Problem) -> bool:
    from optimizer.problem.tensors import open_case  # imports torch

    small = next((case for case in problem.searched if not case.timed), problem.searched[0])
    inputs = open_case(problem, small).inputs(0)
    return any(
        value.is_floating_point() and name not in problem.policy.fixed
        for name, value in zip(open_case(problem, small).input_names, inputs, strict=True)
    )


def baseline() -> str:
    """Row 26: another reference is another problem, and the sides take turns."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frozen.py"
        path.write_text(_FILE.format(forward="x * self.weight"), encoding="utf-8")
        before = load_problem(path).sha256
        path.write_text(_FILE.format(forward="x * self.weight * 1"), encoding="utf-8")
        if load_problem(path).sha256 == before:
            return "a changed reference keeps its key"
    turns = [first for pair in order_of("baseline", "candidate", 4) for first in pair]
    wanted = ["baseline", "candidate", "candidate", "baseline"] * 2
    return "" if turns == wanted else f"the sides take turns as {turns}"


def noise() -> str:
    """Row 27: of A/A comparisons under noise, one in twenty may show a gain or a loss."""
    between, chance = min(BETWEEN.values()), random.Random(7)
    gains = 0
    for _ in range(TRIALS):
        sides = [[chance.lognormvariate(0.0, 0.05) for _ in range(12)] for _ in range(2)]
        found = ratio_interval(sides[0], sides[1], between)
        gains += not found.low <= 1.0 <= found.high
    if gains > 0.07 * TRIALS:
        return f"{gains} of {TRIALS} comparisons of a thing with itself show a difference"
    same = ratio_interval([1.0] * 12, [1.0] * 12, between)
    return "" if same.low < 1.0 < same.high else f"two processes never differ by chance: {same}"


def held_out() -> str:
    """Row 28."""
    for name in shipped_problems():
        problem = load_problem(Path(name))
        for device in ("cpu", "cuda"):
            if not any(case.fits(device) for case in problem.held_out):
                return f"{name} has no held-out case for {device}"
        if any(case.held_out for case in problem.searched):
            return f"a search of {name} sees held-out cases"
    settings = EvaluationSettings()
    weak = replace(settings, without=frozenset({24}))
    return "" if weak.fingerprint != settings.fingerprint else "defences are not part of the key"


def physics() -> str:
    """Row 29."""
    work = Work(bytes=10**9, flops=10**9, bandwidth=1e11, peak=1e13)
    fast = CaseTiming("main", "measured", candidate_us=5_000.0)
    if not any(flag.severity == "reject" for flag in physics_flags(fast, work)):
        return "twice the bandwidth of the device is believed"
    slow = CaseTiming("main", "measured", candidate_us=10_500.0)
    if list(physics_flags(slow, work)):
        return "a time that the device allows is refused"
    great = replace(slow, speedup=Interval(11.0, 10.0, 12.0, 8))
    told = [flag.severity for flag in physics_flags(great, work)]
    return "" if told == ["review"] else "eleven times is shown to nobody"


CHECKS: Mapping[int, Callable[[], str]] = {
    17: controls,
    18: collapse,
    23: means,
    25: sizes,
    26: baseline,
    27: noise,
    28: held_out,
    29: physics,
}
