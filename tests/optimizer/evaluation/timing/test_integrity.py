"""Comparison of clocks, on synthetic blocks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from optimizer.evaluation.loaded_kernel import TimedBlock
from optimizer.evaluation.records import CaseTiming, Flag
from optimizer.evaluation.runner.defences import Defences
from optimizer.evaluation.timing.measure import (
    TimingResult,
    charged_late_ns,
    clock_flags,
    hidden_ns,
    unreported_ns,
)
from tests.optimizer.evaluation.timing.timed_blocks import timed_block

CALLS = 20
FLUSH_NS = 60_000  # for which the device is still busy when a call begins


def block(time_ns: int, wall_ns: int, seed: int, skipped: float = 0.0) -> TimedBlock:
    """skipped: share of calls whose clock includes all the work."""
    chance = random.Random(seed)
    times, walls = [], []
    for _ in range(CALLS):
        seen = wall_ns if chance.random() < skipped else time_ns
        times.append(seen + chance.randrange(500))
        walls.append(wall_ns + FLUSH_NS + chance.randrange(500))
    total = sum(walls)
    return timed_block(
        tuple(times),
        walls=tuple(walls),
        spans=((CALLS, sum(times), 0),),
        total_ns=total,
        wall_ns=total + 1_000_000,
    )


def flags(candidate: tuple[int, int], skipped: float = 0.0) -> list[Flag]:
    theirs = [block(300_000, 300_000, seed) for seed in range(4)]
    ours = [block(*candidate, seed + 100, skipped) for seed in range(4)]
    return list(clock_flags(theirs, ours, Defences()))


@pytest.mark.parametrize("took", [20_000, 100_000, 300_000, 900_000])
def test_honest_kernel_is_not_flagged(took: int) -> None:
    assert flags((took, took)) == []


@pytest.mark.parametrize("skipped", [0.0, 0.3])
def test_work_on_another_stream_is_detected(skipped: float) -> None:
    """In some blocks each call waits for the unfinished work of the previous one."""
    (flag,) = flags((20_000, 300_000), skipped)
    assert (flag.defence, flag.severity) == (1, "reject")
    assert "outside the timed call" in flag.message


@pytest.mark.parametrize("blocks, rows", [(4, [36]), (3, [])])
def test_outputs_completed_by_reader_are_detected(blocks: int, rows: list[int]) -> None:
    """On a busy machine a single block of an honest kernel may take as long to read."""
    theirs = [block(300_000, 300_000, seed) for seed in range(blocks)]
    ours = [
        replace(block(300_000, 300_000, seed), touch_ns=CALLS * 171_000) for seed in range(blocks)
    ]
    assert [flag.defence for flag in clock_flags(theirs, ours, Defences())] == rows


@pytest.mark.parametrize(
    ("pages", "touch_ns", "rows"),
    [(2_048, 171_000, []), (2_048, 500_000, []), (2_048, 700_000, [36]), (64, 171_000, [36])],
)
def test_outputs_in_no_cache_are_no_late_outputs(
    pages: int, touch_ns: int, rows: list[int]
) -> None:
    """Streaming stores leave 8 MiB in memory only: reading each page misses once."""
    theirs = [replace(block(300_000, 300_000, seed), pages=pages) for seed in range(6)]
    ours = [replace(one, touch_ns=CALLS * touch_ns) for one in theirs]
    assert [flag.defence for flag in clock_flags(theirs, ours, Defences())] == rows


def test_time_to_read_outputs_is_charged() -> None:
    """Cold outputs are allowed, and cost the candidate what the reader waits."""
    theirs = [
        replace(cpu_block(300_000, 400_000, 400_000, 400_000, seed), pages=2_048)
        for seed in range(6)
    ]
    ours = [
        replace(
            cpu_block(300_000, 550_000, 550_000, 550_000, seed),
            touch_ns=CALLS * 150_000,
            pages=2_048,
        )
        for seed in range(6)
    ]
    assert list(clock_flags(theirs, ours, Defences())) == []
    assert hidden_ns(list(zip(theirs, ours, strict=True)), 2) == pytest.approx(150_000, abs=6_000)


@pytest.mark.parametrize("rows, doubtful", [((36,), True), ((1, 36), True), ((4, 36), False)])
def test_clock_findings_are_measured_again(rows: tuple[int, ...], doubtful: bool) -> None:
    flags = tuple(Flag(row, "reject", "") for row in rows)
    assert TimingResult(CaseTiming("small", "none"), flags).doubtful == doubtful


def cpu_block(shown_ns: int, worked_ns: int, wall_ns: int, beside_ns: int, seed: int) -> TimedBlock:
    """A block by nanoseconds per call: by its own clock, CPU time of the main thread, by the
    supervisor's clock, and CPU time of all threads. All but the first vary by up to 3 us.
    """
    chance = random.Random(seed)
    times = (shown_ns,) * CALLS
    worked, wall, nearby = (
        CALLS * (value + chance.randrange(3_000)) for value in (worked_ns, wall_ns, beside_ns)
    )
    return timed_block(
        times,
        spans=((CALLS, sum(times), 0),),
        total_ns=wall,
        wall_ns=wall,
        busy_ns=worked,
        worked_ns=nearby,
    )


def charged(shown: int, worked: int, wall: int, nearby: int, threads: int = 1) -> float:
    """For a kernel and a reference of 300 us, with 100 us between two calls."""
    sides = [
        [cpu_block(*of, seed + 50 * n) for seed in range(6)]
        for n, of in enumerate(
            ((300_000, 400_000, 400_000, 400_000), (shown, worked, wall, nearby))
        )
    ]
    return hidden_ns(list(zip(*sides, strict=True)), threads)


def test_honest_kernel_is_not_charged() -> None:
    for took in (20_000, 300_000, 2_000_000):
        assert charged(took, took + 100_000, took + 100_000, took + 100_000) == 0


@pytest.mark.parametrize("worked", [360_000, 110_000])
def test_time_missing_from_runner_clock_is_charged(worked: int) -> None:
    """Row 40: reported as 200 us, 260 us by the kernel's accounting or, of another thread, by the
    wall clock.
    """
    assert charged(200_000, worked, 360_000, 360_000) == pytest.approx(60_000, abs=6_000)


def test_single_thread_work_between_calls_is_charged() -> None:
    """Work on another processor while the harness is busy between two calls."""
    seen = charged(200_000, 300_000, 300_000, 390_000)
    assert seen == pytest.approx(90_000, abs=6_000)
    assert charged(200_000, 300_000, 300_000, 390_000, threads=2) == 0


def test_waits_of_reference_are_not_charged() -> None:
    """Its main thread reports sleep or waiting for 200 of 300 us per call; the kernel works for 20
    us. No other process runs.
    """
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
    assert list(clock_flags(theirs, ours, Defences())) == []
    late = [replace(b, busy_ns=b.busy_ns + CALLS * 60_000) for b in ours]
    late_pairs = list(zip(theirs, late, strict=True))
    assert hidden_ns(late_pairs, 2) == pytest.approx(60_000, abs=6_000)


@pytest.mark.parametrize("hidden", [0, 150_000])
def test_waits_within_calls_of_reference_are_not_charged(hidden: int) -> None:
    """Other work has the processor for 200 of the 300 us of its calls, and for 50 us between two,
    and leaves cold caches; the kernel works for 20 us and does not wait, or hides 150 us more.
    """
    theirs = [
        replace(
            cpu_block(300_000, 225_000, 450_000, 200_000, seed),
            spans=((CALLS, CALLS * 300_000, CALLS * 200_000),),
            inside_ns=CALLS * 100_000,
            waited_ns=CALLS * 250_000,
            outer=(500_000,) * CALLS,
        )
        for seed in range(6)
    ]
    seen = 120_000 + hidden
    ours = [
        replace(cpu_block(20_000, seen, seen, seen, seed), outer=(seen + 50_000,) * CALLS)
        for seed in range(6)
    ]
    charge = hidden_ns(list(zip(theirs, ours, strict=True)), 1)
    assert charge == pytest.approx(hidden, abs=6_000)
    assert bool(list(clock_flags(theirs, ours, Defences()))) == bool(hidden)


@pytest.mark.parametrize("hidden", [0, 1_000_000])
def test_cold_caches_of_long_calls_of_reference_are_not_hidden_work(hidden: int) -> None:
    """Its calls take 30 ms, for 25 ms of which other work has the processor."""
    theirs = [
        replace(
            cpu_block(30_000_000, 5_300_000, 30_300_000, 5_300_000, seed),
            spans=((CALLS, CALLS * 30_000_000, CALLS * 25_000_000),),
            inside_ns=CALLS * 5_000_000,
            waited_ns=CALLS * 25_000_000,
        )
        for seed in range(6)
    ]
    seen = 600_000 + hidden
    ours = [cpu_block(300_000, seen, seen, seen, seed) for seed in range(6)]
    flagged = list(clock_flags(theirs, ours, Defences()))
    assert [flag.severity for flag in flagged[:1]] == ["reject"] * bool(hidden)


def test_processor_time_of_a_gpu_reference_is_not_compared() -> None:
    """Its calls wait for the device with a processor, which is more than the thread worked."""
    theirs = [
        replace(block(300_000, 300_000, seed), inside_ns=CALLS * 5_000_000) for seed in range(4)
    ]
    ours = [block(300_000, 300_000, seed + 100) for seed in range(4)]
    assert list(clock_flags(theirs, ours, Defences())) == []


def test_few_blocks_and_gpus_are_not_charged() -> None:
    pairs = [(block(300_000, 300_000, n), block(20_000, 300_000, n + 9)) for n in range(6)]
    assert hidden_ns(pairs, 1) == 0
    few = [cpu_block(200_000, 500_000, 500_000, 500_000, n) for n in range(2)]
    assert hidden_ns(list(zip(few, few, strict=True)), 1) == 0


def timed_outside(reported_us: int, outer_us: int) -> TimedBlock:
    times = (1000 * reported_us,) * CALLS
    outer = (1000 * outer_us,) * (CALLS - 1) + (900_000_000,)  # the machine did other work
    return timed_block(times, outer=outer)


def test_time_seen_only_by_supervisor_is_charged() -> None:
    theirs = timed_outside(50, 200)
    shortened = [timed_outside(38, 200 + noise) for noise in (0, 1, -1, 40)]
    assert unreported_ns([(theirs, ours) for ours in shortened]) == pytest.approx(12_500, abs=1e3)
    honest = [timed_outside(38, 188 + noise) for noise in (0, 2, -2, 90)]
    assert unreported_ns([(theirs, ours) for ours in honest]) == 0.0
    assert unreported_ns([(theirs, ours) for ours in shortened[:3]]) == 0.0  # too few


# -- work of a GPU after a call (rows 44, 45 and 50)


def gpu_block(us: int, late_us: int, idle_us: int = 0) -> TimedBlock:
    return timed_block(
        (1000 * us,) * CALLS,
        walls=(1000 * (us + late_us),) * CALLS,
        idles=(1000 * idle_us,) * CALLS if idle_us else (),
    )


def test_later_work_of_device_is_charged() -> None:
    pairs = [(gpu_block(100, 30), gpu_block(60, 70 + spread)) for spread in (0, 5, 90)]
    assert charged_late_ns(pairs) == 40_000


@pytest.mark.parametrize("us", [5, 100, 10_000])
def test_single_delay_is_not_charged(us: int) -> None:
    once = [(gpu_block(us, 30), gpu_block(us, 30 + spread)) for spread in (0, 5, 90)]
    assert charged_late_ns(once) == 0.0


def test_cpu_has_no_late_work() -> None:
    assert charged_late_ns([(gpu_block(100, 0), gpu_block(100, 0))]) == 0.0


def test_idle_times_of_device_are_exact_to_microseconds() -> None:
    idles = [(gpu_block(100, 30, 2), gpu_block(95, 60, 9 + spread)) for spread in (0, 1, 30)]
    assert charged_late_ns(idles) == 7_000
    assert charged_late_ns([(gpu_block(100, 30, 2), gpu_block(100, 30, 6))] * 3) == 0.0
    # If idle times are too short, the host's clock decides.
    assert charged_late_ns([(gpu_block(100, 30, 2), gpu_block(40, 90, 2))] * 3) == 60_000
