"""What is said of a kernel that a busy machine could not time, and of the machine before that."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from api.cli.commands.problem import timing_text
from optimizer.evaluation import rough
from optimizer.evaluation.isolation.processors import Account, usable_processors
from optimizer.evaluation.records import CaseTiming
from optimizer.evaluation.rough import rough_ratio, too_busy

NOISY = "timing must be repeated: the processors were busy in 10 of 10 pairs of blocks"
UNTIMED = CaseTiming(
    "declared", "repeat", reason=NOISY, rough_us=1209.966, rough_baseline_us=24594.467
)


def test_a_rough_ratio_has_two_digits_and_says_what_it_is() -> None:
    said = "roughly 20x (not confirmed: the processors were busy)"
    assert rough_ratio([UNTIMED]) == rough_ratio([asdict(UNTIMED)]) == said
    twice = replace(UNTIMED, rough_us=24594.467 / 5)
    assert rough_ratio([UNTIMED, twice]).startswith("roughly 10x")
    assert rough_ratio([CaseTiming("declared", "repeat", reason=NOISY)]) == ""


def test_evaluate_prints_it_beside_the_reason() -> None:
    line = timing_text(asdict(UNTIMED))
    assert line == (
        "declared: roughly 20x (not confirmed: the processors were busy);"
        f" about 1200 us a call, reference 25000 us. {NOISY}"
    )
    unknown = timing_text(asdict(CaseTiming("declared", "repeat", reason=NOISY)))
    assert unknown == f"declared: no figure. {NOISY}"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the account is Linux's")
def test_a_machine_that_is_busy_is_said_to_be() -> None:
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(2 * usable_processors())]
    try:
        said = too_busy(usable_processors())
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert "most get no figure" in said and "begins with what is right" in said


def test_a_machine_that_is_idle_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = iter([Account(5.0, 1.0, 10.0, 2), Account(5.1, 1.0, 11.0, 2)])
    monkeypatch.setattr(rough, "account", lambda processes: next(accounts))
    assert too_busy(2, seconds=0.0) == ""
