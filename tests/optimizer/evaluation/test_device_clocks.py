"""What the clocks of a GPU say beside the time of a call (rows 44, 45 and 50)."""

from __future__ import annotations

import pytest

from optimizer.evaluation.loaded_kernel import TimedBlock
from optimizer.evaluation.timing.integrity import charged_late_ns

CALLS = 10
BLANK = {
    "spans": (),
    "refresh_ns": 0,
    "touch_ns": 0,
    "total_ns": 0,
    "wall_ns": 0,
    "waited_ns": 0,
    "delayed_ns": 0,
    "busy_ns": 0,
    "threads": (1, 1),
    "patched": False,
}


def block(us: int, late_us: int, idle_us: int = 0) -> TimedBlock:
    return TimedBlock(
        times=(1000 * us,) * CALLS,
        walls=(1000 * (us + late_us),) * CALLS,
        idles=(1000 * idle_us,) * CALLS if idle_us else (),
        **BLANK,  # type: ignore[arg-type]
    )


def test_what_the_device_does_after_a_call_is_added_to_it() -> None:
    pairs = [(block(100, 30), block(60, 70 + spread)) for spread in (0, 5, 90)]
    assert charged_late_ns(pairs) == 40_000


@pytest.mark.parametrize("us", [5, 100, 10_000])
def test_a_delay_is_not_added(us: int) -> None:
    once = [(block(us, 30), block(us, 30 + spread)) for spread in (0, 5, 90)]
    assert charged_late_ns(once) == 0.0


def test_on_a_cpu_nothing_is_late() -> None:
    assert charged_late_ns([(block(100, 0), block(100, 0))]) == 0.0


def test_a_device_that_says_when_it_is_idle_is_believed_to_a_few_microseconds() -> None:
    idles = [(block(100, 30, 2), block(95, 60, 9 + spread)) for spread in (0, 1, 30)]
    assert charged_late_ns(idles) == 7_000
    assert charged_late_ns([(block(100, 30, 2), block(100, 30, 6))] * 3) == 0.0
    # Times that are too short say nothing about when it is idle; the host's clock does.
    assert charged_late_ns([(block(100, 30, 2), block(40, 90, 2))] * 3) == 60_000
