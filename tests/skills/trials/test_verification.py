"""The outcome of trials: a skill becomes active, narrowed or suspect, or stays unchanged."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from kb.catalog.skills.evidence import evidence_of
from kb.catalog.skills.reading import SkillRow, events_of, get_skill
from kb.catalog.skills.writing import set_state
from kb.errors import Conflict, Unavailable
from optimizer.evaluation.records import Interval
from skills.trials.trial import Arm, Trial, classify_trials, together
from skills.trials.verification import Ablation, losing_part, verify
from skills.uses import ScopePart
from tests.skills.curator import planted
from tests.skills.trials.curated import TEMPLATE, skill_in


def ratio(value: float, spread: float = 0.05) -> Interval:
    return Interval(value, value * (1 - spread), value * (1 + spread), 12)


def trial(
    gain: Interval | None,
    wrong: int = 0,
    case: str = "main",
    end: Interval | None = None,
    sizes: Mapping[str, float] | None = None,
) -> Trial:
    arm = Arm(2, 2, ratio(1.5), "ev-best")
    sha256 = planted.subject().sha256
    fields = (
        "norm",
        sha256,
        case,
        "held out",
        0,
        arm,
        arm,
        gain,
        wrong,
        "x86-64",
        "cpu0",
        "gcc 13",
    )
    return Trial(*fields, end=end, sizes=sizes or {})


SAME = Interval(1.0, 1.0, 1.0, 1)  # both searches end at one kernel


class Planted(Ablation):
    """Trials with a known outcome."""

    def __init__(self, *trials: Trial, missing: str = "") -> None:
        self.made, self.missing = trials, missing

    def trials(
        self, skill: SkillRow, budget: int, apart_from: Collection[tuple[str, str]] = ()
    ) -> tuple[Trial, ...]:
        if self.missing:
            raise Unavailable(self.missing)
        return self.made


@pytest.mark.parametrize(
    ("trials", "helps", "message"),
    [
        ([trial(ratio(1.5)), trial(ratio(1.4))], True, "over the search without it"),
        ([trial(ratio(1.5))], False, "2 are needed"),
        ([trial(ratio(1.5)), trial(None)], False, "2 are needed"),
        ([trial(ratio(1.0)), trial(ratio(1.01))], False, "no certain gain"),
        ([trial(ratio(3.0)), trial(ratio(0.8), case="odd")], False, "slower on norm odd"),
        ([trial(ratio(3.0)), trial(ratio(3.0), wrong=1)], False, "1 candidates made by it"),
        ([trial(ratio(1.5), end=SAME), trial(ratio(1.4), end=SAME)], True, "over the budget"),
        (
            [trial(ratio(1.5)), trial(ratio(1.4), case="odd", end=ratio(0.8))],
            False,
            "ends certainly slower on norm odd",
        ),
        ([], False, "2 are needed"),
    ],
)
def test_skill_helps_if_all_trials_together_show_gain(
    trials: list[Trial], helps: bool, message: str
) -> None:
    verdict = classify_trials(trials)
    assert verdict.helps is helps and message in verdict.reason


def test_combined_interval_is_the_narrower_geometric_mean() -> None:
    first, other = ratio(1.2), ratio(1.8)
    both = together([first, other])
    assert both.value == pytest.approx((1.2 * 1.8) ** 0.5) and both.n == 24
    assert both.high / both.low < first.high / first.low
    assert together([first]).low == pytest.approx(first.low, rel=2e-3)


def test_helpful_candidate_becomes_active_with_its_trials_as_evidence(tmp_path: Path) -> None:
    catalog = planted.catalog_in(tmp_path / "data")
    name = skill_in(catalog, tmp_path, TEMPLATE).name
    helpful = Planted(trial(ratio(1.5)), trial(ratio(1.4), case="odd"))
    hopeless = Planted(trial(ratio(1.0)), trial(None, case="odd"))
    stays = verify(catalog, name, hopeless, actor="ann")
    assert stays.state == "candidate" and "2 are needed" in stays.verdict.reason
    with pytest.raises(Unavailable):
        verify(catalog, name, Planted(missing="no chip here"), actor="ann")
    done = verify(catalog, name, helpful, actor="ann")
    assert done.state == "active" and json.dumps(asdict(done))
    with catalog.read() as connection:
        row = get_skill(connection, name)
        stored = evidence_of(connection, row.id)
        events = events_of(connection, row.id)
    assert row.state == "active"
    assert [(e.kind, e.case_id, e.speedup) for e in stored] == [
        ("ablation", "main", 1.0),
        ("ablation", "odd", None),
        ("ablation", "main", 1.5),
        ("ablation", "odd", 1.4),
    ]
    moves = [
        (e.event, e.to_state) for e in events if e.event in ("verified", "not_verified", "state")
    ]
    assert moves == [("verified", "candidate"), ("not_verified", "candidate"), ("state", "active")]
    assert all(e.actor == "ann" and e.reason for e in events if e.event != "created")
    still = verify(catalog, name, hopeless, actor="ann")
    assert still.state == "active"  # one trial too few changes no state
    harmful = Planted(trial(ratio(0.5)), trial(ratio(1.5), case="odd"))
    assert verify(catalog, name, harmful, actor="ann").state == "suspect"
    assert verify(catalog, name, helpful, actor="ann").state == "active"
    catalog.close()


class Rounds(Planted):
    """One set of trials first, then another for untried cases."""

    def __init__(self, first: Sequence[Trial], then: Sequence[Trial]) -> None:
        super().__init__()
        self.first, self.then = tuple(first), tuple(then)
        self.asked: list[tuple[str | None, Collection[tuple[str, str]]]] = []

    def trials(
        self, skill: SkillRow, budget: int, apart_from: Collection[tuple[str, str]] = ()
    ) -> tuple[Trial, ...]:
        self.asked.append((skill.predicate, apart_from))
        return self.then if apart_from else self.first


def sized(gain: float, case: str, **sizes: float) -> Trial:
    return trial(ratio(gain), case=case, sizes=sizes)


@pytest.mark.parametrize(
    ("then", "state"),
    [
        ([sized(1.3, "new", compulsory_bytes=9e6), sized(1.3, "newer", compulsory_bytes=8e6)],
         "active"),
        ([], "candidate"),
        ([sized(1.3, "new", compulsory_bytes=9e6), sized(0.7, "newer", compulsory_bytes=8e6)],
         "candidate"),
    ],
)  # fmt: skip
def test_skill_harmful_on_some_sizes_is_narrowed_and_tried_on_others(
    tmp_path: Path, then: Sequence[Trial], state: str
) -> None:
    catalog = planted.catalog_in(tmp_path / "data")
    name = skill_in(catalog, tmp_path, TEMPLATE).name
    first = [
        sized(1.4, "large", compulsory_bytes=16e6, reduction_length=64),
        sized(1.0, "middle", compulsory_bytes=5e6, reduction_length=64),  # no information
        sized(0.8, "small", compulsory_bytes=1e6, reduction_length=64),
    ]
    rounds = Rounds(first, then)
    done = verify(catalog, name, rounds, actor="ann")
    assert done.state == state
    assert "not offered with compulsory_bytes below 4e+06 any more" in done.verdict.reason
    (_, nobody), (predicate, known) = rounds.asked
    assert not nobody and {case for _, case in known} == {"large", "middle", "small"}
    assert predicate == "problem.compulsory_bytes >= 4000000"
    assert [t.case for t in done.trials] == [t.case for t in (*first, *then)]
    with catalog.read() as connection:
        row = get_skill(connection, name)
        events = [e for e in events_of(connection, row.id) if e.event == "narrowed"]
    assert row.predicate == predicate
    assert [e.details["parts"][0]["below"] for e in events] == [4e6]
    catalog.close()


def test_only_sizes_that_separate_help_from_harm_narrow() -> None:
    def part(harmed: list[float], helped: list[float]) -> ScopePart | None:
        sides = ([{"flops": n, "same": 1.0} for n in side] for side in (harmed, helped))
        return losing_part(*sides)

    assert part([100.0, 400.0], [1.0, 4.0]) == ScopePart("flops", at_least=20.0)
    assert part([4.0], [9.0, 100.0]) == ScopePart("flops", below=6.0)
    assert part([1.0, 10.0], [5.0]) is None  # on both sides
    assert part([], [5.0]) is None and part([5.0], []) is None and part([5.0], [5.0]) is None
    both = losing_part([{"a": 1.0, "b": 1.0}], [{"a": 2.0, "b": 9.0, "c": 1.0}])
    assert both == ScopePart("b", below=3.0)  # further apart


def test_retired_skill_is_not_verified(tmp_path: Path) -> None:
    catalog = planted.catalog_in(tmp_path / "data")
    name = skill_in(catalog, tmp_path, TEMPLATE).name
    with catalog.write() as connection:
        set_state(connection, name, "retired", actor="ann", reason="a test")
    with pytest.raises(Conflict, match="is retired"):
        verify(catalog, name, Planted(trial(ratio(1.5))))
    catalog.close()
