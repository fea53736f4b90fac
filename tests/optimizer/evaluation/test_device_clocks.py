"""What the clocks of a GPU say beside the time of a call (rows 44, 45, 50 and 52)."""

from __future__ import annotations

import pytest

from optimizer.evaluation.timed_block import Block
from optimizer.evaluation.timing.device_clocks import charged_late_ns, slowed

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


def block(us: int, late_us: int, held_us: int = 400) -> Block:
    return Block(
        times=(1000 * us,) * CALLS,
        walls=(1000 * (us + late_us),) * CALLS,
        held_ns=1000 * held_us * CALLS,
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


def test_a_device_that_is_slow_for_the_reference_alone_is_a_finding() -> None:
    own = [block(50, 30, 400), block(50, 30, 410)]
    assert [flag.defence for flag in slowed([block(50, 30, 900), block(50, 30, 800)], own)] == [50]
    assert not [*slowed([block(50, 30, 900), block(50, 30, 420)], own)]
    assert not [*slowed([block(50, 0, 0)], [block(50, 0, 0)])]  # no device is held
