"""Where searches stand after a few candidates."""

from __future__ import annotations

from benchmarks.search.replay.arms import Replayed
from benchmarks.search.replay.reporting import Comparison
from benchmarks.skills.learning.standing import shares, standing_table, told_start


def run(arm: str, *after: float, seed: int = 0, problem: str = "softmax") -> Replayed:
    """The reference is at a quarter of the best."""
    return Replayed(problem, arm, "best-first", seed, len(after), True, "", (0.25, *after))


def test_a_run_that_ended_keeps_what_it_had() -> None:
    runs = [run("curated", 0.5, 0.9, 1.0, seed=1), run("curated", 0.8)]
    assert [shares(runs, after)["softmax"] for after in (1, 2, 8)] == [
        [0.8, 0.5],
        [0.8, 0.9],
        [0.8, 1.0],
    ]
    assert shares([run("nothing")], 2) == {"softmax": [0.25]}  # it made no candidate


def test_an_arm_is_told_beside_the_others() -> None:
    runs = [
        run(arm, start, 1.0, seed=seed, problem=problem)
        for arm, start in (("nothing", 0.5), ("curated", 0.8), ("curated + learned", 1.0))
        for problem in ("softmax", "scan")
        for seed in (0, 1)
    ]
    compared = Comparison(runs, 7)
    told = told_start(compared, "curated + learned")
    assert "stands at 100% of the best in the table, curated knowledge at 80%" in told
    assert "1.25 [1.25, 1.25] times as high as curated" in told
    header, _, nothing, curated, learned = standing_table(compared).splitlines()
    assert header.startswith("| arm | after 1 | times none | after 2 |")
    assert nothing.startswith("| nothing | 50% |  | 100% |")
    assert curated.startswith("| curated | 80% | 1.60 [1.60, 1.60] | 100% | 1.00 [1.00, 1.00] |")
    assert learned.startswith("| curated + learned | 100% | 2.00 [2.00, 2.00] |")
