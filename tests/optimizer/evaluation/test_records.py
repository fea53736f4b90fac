"""Rough times of a kernel that a busy machine could not time."""

from __future__ import annotations

from dataclasses import asdict, replace

from api.cli.commands.problem import timing_text
from optimizer.evaluation.records import CaseTiming, rough_ratio

NOISY = "timing must be repeated: the processors were busy in 10 of 10 pairs of blocks"
UNTIMED = CaseTiming(
    "declared", "repeat", reason=NOISY, rough_us=1209.966, rough_baseline_us=24594.467
)


def test_rough_ratio_has_two_digits_and_label() -> None:
    message = "roughly 20x (not confirmed: the processors were busy)"
    assert rough_ratio([UNTIMED]) == rough_ratio([asdict(UNTIMED)]) == message
    twice = replace(UNTIMED, rough_us=24594.467 / 5)
    assert rough_ratio([UNTIMED, twice]).startswith("roughly 10x")
    assert rough_ratio([CaseTiming("declared", "repeat", reason=NOISY)]) == ""


def test_evaluate_prints_rough_ratio_with_its_reason() -> None:
    line = timing_text(asdict(UNTIMED))
    assert line == (
        "declared: roughly 20x (not confirmed: the processors were busy);"
        f" about 1200 us a call, reference 25000 us. {NOISY}"
    )
    unknown = timing_text(asdict(CaseTiming("declared", "repeat", reason=NOISY)))
    assert unknown == f"declared: no figure. {NOISY}"
