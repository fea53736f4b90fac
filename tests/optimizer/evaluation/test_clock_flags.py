"""What the comparison of clocks says of blocks that were made up."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from optimizer.evaluation.loaded_kernel import TimedBlock
from optimizer.evaluation.records import CaseTiming, Flag
from optimizer.evaluation.timing.integrity import hidden_ns, integrity
from optimizer.evaluation.timing.measure import TimingResult

CALLS = 20
FLUSH_NS = 60_000  # the device is still busy with it when a call begins


def block(time_ns: int, wall_ns: int, seed: int, skipped: float = 0.0) -> TimedBlock:
    """skipped: share of calls in which all the work is seen by the clock of the call."""
    chance = random.Random(seed)
    times, walls = [], []
    for _ in range(CALLS):
        seen = wall_ns if chance.random() < skipped else time_ns
        times.append(seen + chance.randrange(500))
        walls.append(wall_ns + FLUSH_NS + chance.randrange(500))
    total = sum(walls)
    return TimedBlock(
        times=tuple(times),
        walls=tuple(walls),
        spans=((CALLS, sum(times), 0),),
        refresh_ns=0,
        touch_ns=0,
        total_ns=total,
        wall_ns=total + 1_000_000,
        waited_ns=0,
        delayed_ns=0,
        busy_ns=0,
        threads=(1, 1),
        patched=False,
    )


def flags(candidate: tuple[int, int], skipped: float = 0.0) -> list[Flag]:
    theirs = [block(300_000, 300_000, seed) for seed in range(4)]
    ours = [block(*candidate, seed + 100, skipped) for seed in range(4)]
    return list(integrity(theirs, ours, lambda *rows: True))


@pytest.mark.parametrize("took", [20_000, 100_000, 300_000, 900_000])
def test_an_honest_kernel_is_not_flagged_whatever_it_takes(took: int) -> None:
    assert flags((took, took)) == []


@pytest.mark.parametrize("skipped", [0.0, 0.3])
def test_work_on_another_stream_is_seen_though_not_in_every_call(skipped: float) -> None:
    """In some blocks every call waits for what the call before left behind."""
    (flag,) = flags((20_000, 300_000), skipped)
    assert (flag.defence, flag.severity) == (1, "reject")
    assert "outside the timed call" in flag.message


@pytest.mark.parametrize("blocks, rows", [(4, [36]), (3, [])])
def test_outputs_that_wait_for_a_reader_are_seen_in_blocks_enough(
    blocks: int, rows: list[int]
) -> None:
    """On a busy machine a single block of an honest kernel may be read as late as that."""
    theirs = [block(300_000, 300_000, seed) for seed in range(blocks)]
    ours = [
        replace(block(300_000, 300_000, seed), touch_ns=CALLS * 171_000) for seed in range(blocks)
    ]
    assert [flag.defence for flag in integrity(theirs, ours, lambda *rows: True)] == rows


@pytest.mark.parametrize("rows, doubtful", [((36,), True), ((1, 36), True), ((4, 36), False)])
def test_what_only_clocks_say_is_measured_again(rows: tuple[int, ...], doubtful: bool) -> None:
    flags = tuple(Flag(row, "reject", "") for row in rows)
    assert TimingResult(CaseTiming("small", "none"), flags).doubtful == doubtful


def cpu_block(shown_ns: int, worked_ns: int, wall_ns: int, beside_ns: int, seed: int) -> TimedBlock:
    """A call's time by its own clock, processor time of the main thread, time by the supervisor's
    clock, and processor time of all threads; with up to 3 us of chance in all but the first."""
    chance = random.Random(seed)
    times = (shown_ns,) * CALLS
    worked, wall, beside = (
        CALLS * (value + chance.randrange(3_000)) for value in (worked_ns, wall_ns, beside_ns)
    )
    return TimedBlock(
        times=times,
        walls=times,
        spans=((CALLS, sum(times), 0),),
        refresh_ns=0,
        touch_ns=0,
        total_ns=wall,
        wall_ns=wall,
        waited_ns=0,
        delayed_ns=0,
        busy_ns=worked,
        threads=(1, 1),
        patched=False,
        worked_ns=beside,
    )


def charged(shown: int, worked: int, wall: int, beside: int, threads: int = 1) -> float:
    """Of a kernel beside a reference that takes 300 us, with 100 us between two calls."""
    sides = [
        [cpu_block(*of, seed + 50 * n) for seed in range(6)]
        for n, of in enumerate(
            ((300_000, 400_000, 400_000, 400_000), (shown, worked, wall, beside))
        )
    ]
    return hidden_ns(list(zip(*sides, strict=True)), threads)


def test_an_honest_kernel_is_charged_nothing() -> None:
    for took in (20_000, 300_000, 2_000_000):
        assert charged(took, took + 100_000, took + 100_000, took + 100_000) == 0


def test_time_that_its_clock_misses_is_a_kernels_time() -> None:
    """Row 40: shown as 200 us, worked for 260 us by the kernel's account."""
    assert charged(200_000, 360_000, 360_000, 360_000) == pytest.approx(60_000, abs=6_000)


def test_a_thread_that_hides_the_work_from_the_main_ones_account_hides_it_not_from_the_wall() -> (
    None
):
    assert charged(200_000, 110_000, 360_000, 360_000) == pytest.approx(60_000, abs=6_000)


def test_with_one_thread_work_beside_the_calls_counts_too() -> None:
    """Work on another processor while the harness is busy between two calls."""
    seen = charged(200_000, 300_000, 300_000, 390_000)
    assert seen == pytest.approx(90_000, abs=6_000)
    assert charged(200_000, 300_000, 300_000, 390_000, threads=2) == 0


def test_a_reference_that_waits_for_itself_does_not_make_a_kernel_slow() -> None:
    """Its main thread sleeps or waits for 200 of 300 us a call, by its own report; the kernel
    works for 20 us. Nobody else runs."""
    waiting, quick = (
        [cpu_block(*of, seed) for seed in range(6)]
        for of in ((300_000, 200_000, 400_000, 200_000), (20_000, 120_000, 120_000, 120_000))
    )
    theirs = [
        replace(b, inside_ns=CALLS * 100_000, waited_ns=CALLS * 200_000, others_ns=0.0)
        for b in waiting
    ]
    ours = [replace(b, others_ns=0.0) for b in quick]
    pairs = list(zip(theirs, ours, strict=True))
    assert hidden_ns(pairs, 2) == 0
    assert list(integrity(theirs, ours, lambda *rows: True)) == []
    late = [replace(b, busy_ns=b.busy_ns + CALLS * 60_000) for b in ours]
    late_pairs = list(zip(theirs, late, strict=True))
    assert hidden_ns(late_pairs, 2) == pytest.approx(60_000, abs=6_000)


def test_few_blocks_and_a_gpu_charge_nothing() -> None:
    pairs = [(block(300_000, 300_000, n), block(20_000, 300_000, n + 9)) for n in range(6)]
    assert hidden_ns(pairs, 1) == 0
    few = [cpu_block(200_000, 500_000, 500_000, 500_000, n) for n in range(2)]
    assert hidden_ns(list(zip(few, few, strict=True)), 1) == 0
