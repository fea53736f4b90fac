"""Planted outcomes in the real store: losing skills are narrowed or retired, winning ones stay
active.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from kb.catalog import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills.evidence import evidence_of
from kb.catalog.skills.reading import SkillRow, SkillScopes, events_of, get_skill
from kb.catalog.skills.writing import set_state, uses_of
from kb.hardware.schema import parse_hardware
from kb.ids import new_id
from kb.predicates import Bindings, compile_predicate
from retrieval.knowledge_base import Journal
from retrieval.request import RetrieveRequest
from skills.format.schema import advice
from skills.format.skillfile import content_sha256
from skills.lifecycle import observe, retire_unused, without
from skills.uses import (
    ScopePart,
    SkillUse,
    UseRecord,
    assess_uses,
    log_e_value,
    outside,
    parts_of,
    record_of,
)
from tests.skills.planted_uses import Gain, Uses, learned, row

pytestmark = pytest.mark.slow(seconds=11)

SEEDS = range(10)


@pytest.fixture
def catalog(catalog: Catalog) -> Catalog:
    registry = HardwareRegistry(catalog)
    for name, parent in (("nvidia", None), ("h100", "nvidia"), ("a100", "nvidia")):
        spec = {"id": name, "name": name.upper(), "vendor": "nvidia", "summary": "A test chip."}
        registry.put(parse_hardware({**spec, "parent": parent} if parent else spec, name), "user")
    return catalog


def skill_of(catalog: Catalog, name: str) -> SkillRow:
    with catalog.read() as connection:
        return get_skill(connection, name)


def after(catalog: Catalog, seed: int, gain: Gain, uses: int) -> SkillRow:
    """The skill after a number of uses, or when it was first narrowed or retired."""
    name = f"planted-{seed}"
    learned(catalog, name)
    planted = Uses(catalog, gain, seed)
    done = 0
    while done < uses and planted.ask(name):
        done += 1
        skill = skill_of(catalog, name)
        if skill.version > 1 or skill.state != "active":
            return skill
    return skill_of(catalog, name)


# -- planted outcomes


def test_half_losing_skill_is_narrowed_or_retired_within_20_uses(catalog: Catalog) -> None:
    for seed in SEEDS:
        skill = after(
            catalog, seed, lambda situation: 0.85 if situation["op"] == "softmax" else 1.15, 20
        )
        assert skill.version > 1 or skill.state == "retired", seed
        with catalog.read() as connection:
            last = events_of(connection, skill.id)[-1]
            uses = uses_of(connection, skill.id, role="used")
        assert last.actor == "observer" and last.event in ("narrowed", "state")
        assert set(last.details["retrievals"]) <= {use.retrieval_id for use in uses}
        with catalog.write() as connection:  # so that it does not match the next one
            if skill.state == "active":
                set_state(connection, skill.name, "retired", actor="t", reason="t")


def test_narrowed_skill_is_shown_only_where_it_wins(catalog: Catalog) -> None:
    skill = after(catalog, 3, lambda situation: 0.85 if situation["op"] == "softmax" else 1.15, 20)
    assert skill.predicate == 'problem.op != "softmax"' and skill.state == "active"
    assert skill.content_sha256 == content_sha256(advice(skill))
    assert 0 < skill.wins == skill.trials  # uses in the removed part no longer count
    planted = Uses(catalog, lambda situation: 1.15, 0)
    shown = [planted.ask(skill.name) for _ in range(40)]
    assert 10 < sum(shown) < 30  # half softmax, half matmul
    now = skill_of(catalog, skill.name)
    assert (now.version, now.state) == (2, "active")


@pytest.mark.parametrize("gain", (1.15, 1.05))
def test_winning_skill_survives(catalog: Catalog, gain: float) -> None:
    survivors = 0
    for seed in SEEDS:
        skill = after(catalog, seed, lambda situation: gain, 20)
        survivors += (skill.version, skill.state) == (1, "active")
        with catalog.write() as connection:
            if skill.state == "active":
                set_state(connection, skill.name, "retired", actor="t", reason="t")
    assert survivors >= 9


def test_losing_skill_is_retired_and_readable(catalog: Catalog) -> None:
    skill = after(catalog, 0, lambda situation: 0.85, 20)
    assert skill.state == "retired" and skill.trials == 8
    with catalog.read() as connection:
        last = events_of(connection, skill.id)[-1]
        assert evidence_of(connection, skill.id)
    assert last.reason == "helped in 0 of 8 uses" and len(last.details["retrievals"]) == 8


def test_restored_skill_is_counted_from_zero(catalog: Catalog) -> None:
    skill = after(catalog, 0, lambda situation: 0.85, 20)
    with catalog.write() as connection:
        set_state(connection, skill.name, "active", actor="ann", reason="it was the driver")
    assert observe(catalog, [skill.name])[skill.name].record.uses == 0
    assert skill_of(catalog, skill.name).trials == 0


# -- judging


def outcomes_of_uses(wins: int, losses: int, **situation: Any) -> list[SkillUse]:
    return [SkillUse(n < wins, situation) for n in range(wins + losses)]


def test_e_value_equals_its_integral() -> None:
    def integral(record: UseRecord) -> float:
        steps = 20_000
        width = 0.5 / steps
        middle = [(n + 0.5) * width for n in range(steps)]
        return sum(q**record.wins * (1 - q) ** (record.losses + 23) for q in middle) * width

    for record in (UseRecord(0, 7), UseRecord(3, 9), UseRecord(12, 1)):
        expected = 2**record.uses * integral(record) / integral(UseRecord(0, 0))
        assert math.exp(log_e_value(record)) == pytest.approx(expected, rel=1e-4)


def test_e_value_of_an_even_skill_does_not_grow_on_average() -> None:
    for wins, losses in ((0, 0), (2, 5), (6, 1)):
        now = math.exp(log_e_value(UseRecord(wins, losses)))
        won = math.exp(log_e_value(UseRecord(wins + 1, losses)))
        lost = math.exp(log_e_value(UseRecord(wins, losses + 1)))
        assert (won + lost) / 2 == pytest.approx(now)
        assert 0.6 * won + 0.4 * lost < now


def test_fewer_than_eight_uses_decide_nothing() -> None:
    assert assess_uses(outcomes_of_uses(0, 7)).action == "keep"
    assert assess_uses(outcomes_of_uses(0, 8)).action == "retire"


@pytest.mark.parametrize(
    ("losing", "winning", "part"),
    [
        ({"dtype": "bfloat16"}, {"dtype": "float32"}, ScopePart("dtype", "bfloat16")),
        ({"hardware": "a100"}, {"hardware": "h100"}, ScopePart("hardware", "a100")),
        ({"language": "cuda"}, {"language": "triton"}, ScopePart("language", "cuda")),
        ({"flops": 300.0}, {"flops": 5000.0}, ScopePart("flops", below=4096.0)),
    ],
)
def test_losses_in_one_part_narrow_to_other(
    losing: dict[str, Any], winning: dict[str, Any], part: ScopePart
) -> None:
    trials = [*outcomes_of_uses(0, 9, **losing), *outcomes_of_uses(8, 1, **winning)]
    finding = assess_uses(trials)
    assert (finding.action, finding.part) == ("narrow", part)
    assert record_of(outside(trials, part)) == UseRecord(8, 1)


def test_operators_of_a_family_are_removed_together() -> None:
    trials = [
        *outcomes_of_uses(0, 4, op="layernorm", op_family="norm"),
        *outcomes_of_uses(0, 4, op="rmsnorm", op_family="norm"),
        *outcomes_of_uses(9, 0, op="matmul", op_family="matmul"),
    ]
    finding = assess_uses(trials)
    assert finding.part == ScopePart("op_family", "norm")
    scopes, predicate = without(SkillScopes(), None, finding.part, trials[8:])
    assert scopes == SkillScopes() and predicate is not None
    holds = compile_predicate(predicate)
    assert holds.evaluate(bound(op="groupnorm")).value is False
    assert holds.evaluate(bound(op="matmul")).value is True
    listed = SkillScopes(ops=("layernorm", "matmul", "rmsnorm"))
    assert without(listed, None, finding.part, trials[8:]) == (SkillScopes(ops=("matmul",)), None)


def bound(**problem: Any) -> Bindings:
    return Bindings(signals=set(), metrics={}, facts={}, problem=problem)


def test_every_clause_is_a_predicate_that_excludes_part() -> None:
    for part in (
        ScopePart("op", "odd.name"),
        ScopePart("flops", below=2.0**40),
        ScopePart("flops", at_least=2.0**40),
        ScopePart("dtype", "float32"),
    ):
        _, predicate = without(SkillScopes(), "facts.wave == 64", part, [])
        assert predicate is not None
        inside = {part.key: part.value or (1.0 if part.below else 2.0**41)}
        outside = {part.key: "other" if part.value else (2.0**41 if part.below else 1.0)}
        facts = {"wave": 64}
        for problem, expected in ((inside, False), (outside, True)):
            where = Bindings(signals=set(), metrics={}, facts=facts, problem=problem)
            assert compile_predicate(predicate).evaluate(where).value is expected


def test_name_without_predicate_syntax_is_not_a_part() -> None:
    stored = [*outcomes_of_uses(5, 0, op="matmul"), *outcomes_of_uses(5, 0, op="softmax")]
    parts = parts_of([*outcomes_of_uses(0, 9, op='odd" or "name'), *stored])
    assert [part.value for part in parts] == ["matmul", "softmax"]


def test_chip_family_is_narrowed_to_its_winning_chips() -> None:
    trials = [*outcomes_of_uses(0, 9, hardware="a100"), *outcomes_of_uses(5, 0, hardware="h100")]
    finding = assess_uses(trials)
    assert finding.part is not None
    scopes, _ = without(SkillScopes(hardware=("nvidia",)), None, finding.part, trials[9:])
    assert scopes.hardware == ("h100",)
    both = SkillScopes(hardware=("a100", "h100"))
    assert without(both, None, finding.part, trials[9:])[0].hardware == ("h100",)


def test_parts_do_not_depend_on_outcomes() -> None:
    situations = [{"op": op, "dtype": dtype} for op in "ab" for dtype in "cd" for _ in range(4)]
    lost = [SkillUse(False, situation) for situation in situations]
    won = [SkillUse(True, situation) for situation in situations]
    assert parts_of(lost) == parts_of(won) != []
    assert record_of(won) == UseRecord(16, 0)


# -- unused


def test_skill_unused_for_many_retrievals_is_retired(catalog: Catalog) -> None:
    learned(catalog, "for-a100", SkillScopes(hardware=("a100",), signals=("memory_bound",)))
    learned(catalog, "for-nvidia", SkillScopes(hardware=("nvidia",), signals=("memory_bound",)))
    learned(catalog, "used", SkillScopes(signals=("memory_bound",)))
    learned(catalog, "warning", SkillScopes(signals=("memory_bound",)), "avoid")
    journal = Journal(catalog)
    request = RetrieveRequest(signal="memory_bound", hardware="h100")
    for _ in range(20):
        journal.record(row(new_id("ret"), request, []))
    journal.flush()
    assert retire_unused(catalog, retrievals=21) == []
    last = new_id("ret")
    journal.record(row(last, request, ["used"]))
    journal.report(last, used=["used"], correct=True, speedup=1.5)
    assert retire_unused(catalog, retrievals=20) == ["for-nvidia"]
    assert skill_of(catalog, "for-nvidia").state == "retired"
    assert retire_unused(catalog, retrievals=20) == []
