"""Uses of skills: shown, used and withheld, their effect, and the lift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kb.catalog import Catalog
from kb.catalog.evaluations import CandidateRow, Evaluations, ProblemRow
from kb.catalog.runs import NodeRow, Runs
from kb.catalog.skills.reading import NewUse, SkillLift, get_skill
from kb.catalog.skills.writing import lift_of, record_uses, set_state, uses_of
from kb.ids import new_id
from retrieval.knowledge_base import Journal
from retrieval.request import RetrieveRequest
from retrieval.snapshot.store import SnapshotStore
from tests.kb.catalog.stored_skills import DRAFT, named, put


def retrieval(
    catalog: Catalog,
    shown: Sequence[str] = (),
    withheld: Sequence[str] = (),
    run_id: str | None = None,
    node_id: str | None = None,
) -> str:
    request = RetrieveRequest(
        signal="memory_bound",
        hardware="h100",
        op="log_softmax",
        dtype="fp32",
        problem={"reduction_length": 512},
    )
    identity = new_id("ret")
    journal = Journal(catalog)
    journal.record(
        {
            "id": identity,
            "request": vars(request) | {"access_scope": request.access_scope.owner},
            "hardware_id": "h100",
            "signals": ["memory_bound"],
            "excerpt_ids": ["psg_1"],
            "skill_ids": list(shown),
            "move_ids": [],
            "skills_withheld": list(withheld),
            "context_sha256": "",
            "run_id": run_id,
            "node_id": node_id,
            "milliseconds": 1.0,
            "catalog_revision": 1,
            "access_scope": "all",
        }
    )
    journal.flush()
    return identity


def test_use_counts_once_its_effect_is_known(catalog: Catalog) -> None:
    with catalog.write() as connection:
        put(connection, DRAFT)
    shown = retrieval(catalog, shown=["widen-loads"])
    with catalog.write() as connection:
        assert record_uses(connection, [NewUse(shown, "nowhere", "used", 1)]) == 0
        for helped in (1, 0, None):
            record_uses(connection, [NewUse(shown, "widen-loads", "used", helped, 1.3)])
        skill = get_skill(connection, "widen-loads")
        used = uses_of(connection, skill.id, role="used")
        uses = uses_of(connection, skill.id)
    assert (skill.trials, skill.wins) == (2, 1) and skill.last_used_at is not None
    assert [use.helped for use in used] == [1, 0, None]
    assert [use.role for use in uses] == ["shown", "used", "used", "used"]
    assert uses[0].situation == {
        "op": "softmax",
        "op_family": "softmax",
        "dtype": "float32",
        "hardware": "h100",
        "reduction_length": 512,
    }


@pytest.mark.parametrize(
    ("outcome", "helped"),
    [
        ({"correct": True, "speedup": 1.5}, 1),
        ({"correct": True, "speedup": 1.5, "baseline_speedup": 1.6}, 0),
        ({"correct": True, "speedup": 0.9, "baseline_speedup": 0.5}, 1),
        ({"correct": True, "speedup": 1.01}, 0),  # within the noise
        ({"correct": False, "speedup": 1.5}, 0),
        ({"correct": True, "speedup": None}, None),
        ({"correct": None, "speedup": 1.5}, None),
        ({"correct": None, "speedup": 0.5}, 0),
    ],
)
def test_use_helped_if_correct_and_faster_than_before(
    catalog: Catalog, outcome: dict[str, float | bool | None], helped: int | None
) -> None:
    with catalog.write() as connection:
        put(connection, DRAFT, named("tile"))
    shown = retrieval(catalog, shown=["widen-loads", "tile"])
    Journal(catalog).report(shown, used=["widen-loads", "psg_1"], **outcome)  # type: ignore[arg-type]
    with catalog.read() as connection:
        for name, expected in (("widen-loads", [helped]), ("tile", [])):
            skill = get_skill(connection, name)
            used = uses_of(connection, skill.id, role="used")
            assert [use.helped for use in used] == expected


def test_lift_compares_answers_with_and_without_skill(catalog: Catalog) -> None:
    with catalog.write() as connection:
        put(connection, DRAFT)
    journal = Journal(catalog)
    for speedup in (1.5, 1.4, 1.0):
        shown = retrieval(catalog, shown=["widen-loads"], run_id="run_x")
        journal.report(shown, used=[], correct=True, speedup=speedup)
    without = retrieval(catalog, withheld=["widen-loads"], run_id="run_x")
    journal.report(without, used=[], correct=True, speedup=1.0)
    retrieval(catalog, withheld=["widen-loads"], run_id="run_x")  # no outcome reported
    for no_run in (None, ""):  # a person's request, not randomised
        shown = retrieval(catalog, shown=["widen-loads"], run_id=no_run)
        journal.report(shown, used=[], correct=True, speedup=1.5)
    with catalog.read() as connection:
        skill = get_skill(connection, "widen-loads")
        assert lift_of(connection, skill.id) == SkillLift(3, 2, 1, 0)
        assert skill.trials == 0


def test_lift_counts_only_present_text(catalog: Catalog) -> None:
    with catalog.write() as connection:
        put(connection, DRAFT)
    journal = Journal(catalog)
    for shown, withheld in ((["widen-loads"], []), ([], ["widen-loads"])):
        before = retrieval(catalog, shown, withheld, run_id="run_x")
        journal.report(before, used=[], correct=True, speedup=1.5)
    with catalog.write() as connection:
        put(connection, replace(DRAFT, content_sha256="sha-2", body="Another text."))
    after = retrieval(catalog, shown=["widen-loads"], run_id="run_x")
    journal.report(after, used=[], correct=True, speedup=1.5)
    with catalog.read() as connection:
        skill = get_skill(connection, "widen-loads")
        assert lift_of(connection, skill.id) == SkillLift(1, 1, 0, 0)


def node_of_a_run(catalog: Catalog, number: int, validity: str, speedup: float | None) -> None:
    key = f"evaluation-{number}"
    problem = ProblemRow("rows", "sha", "file", "softmax", "blob", {})
    candidate = CandidateRow(f"bundle-{number}", "cpp", "run", "recipe", {}, "blob")
    evaluations = Evaluations(catalog)
    evaluations.begin(key, problem, [], candidate, "1", None)
    record = {"reached": "benchmark", "validity": validity, "timing": "wall"}
    if speedup is not None:
        record["speedup"] = {"value": speedup, "low": speedup, "high": speedup}  # type: ignore[assignment]
    evaluations.finish(key, record, [], op_family="softmax", hardware_id="h100")
    runs = Runs(catalog)
    if number == 0:
        runs.begin("run_1", "sha", "h100", "best_first", 0, {})
    parent = None if number == 0 else 0
    runs.add(
        "run_1",
        NodeRow(number, parent, 0, "none", "recipe", "evaluated", {}, f"bundle-{number}", key),
    )


@pytest.mark.parametrize(
    ("node", "gain", "helped"),
    [("0", 1.8, 1), ("1", 0.9, 0), ("2", None, None), ("7", 1.8, 1), ("root", 1.8, 1)],
)
def test_use_in_run_is_compared_with_its_parent_node(
    catalog: Catalog, node: str, gain: float | None, helped: int | None
) -> None:
    with catalog.write() as connection:
        put(connection, DRAFT)
    node_of_a_run(catalog, 0, "correct", None)  # the reference
    node_of_a_run(catalog, 1, "correct", 2.0)
    node_of_a_run(catalog, 2, "incorrect", None)  # no parent to compare with
    shown = retrieval(catalog, shown=["widen-loads"], run_id="run_1", node_id=node)
    Journal(catalog).report(shown, used=["widen-loads"], correct=True, speedup=1.8)
    with catalog.read() as connection:
        (use,) = uses_of(connection, get_skill(connection, "widen-loads").id, role="used")
    assert (use.gain, use.helped) == (gain, helped)


def test_cached_answers_see_new_uses_of_skills(catalog: Catalog) -> None:
    with catalog.write() as connection:
        put(connection, DRAFT)
    snapshots = SnapshotStore(catalog, "model")

    def fitting() -> list[tuple[str, int, int]]:
        skills = snapshots.current().knowledge.fitting_skills(
            [], None, None, None, None, ("candidate", "active")
        )
        return [(skill.head.name, skill.head.trials, skill.head.wins) for skill in skills]

    assert fitting() == [("widen-loads", 0, 0)]
    shown = retrieval(catalog, shown=["widen-loads"])
    with catalog.write() as connection:
        record_uses(connection, [NewUse(shown, "widen-loads", "used", 1, 1.3)])
    assert fitting() == [("widen-loads", 1, 1)]
    with catalog.write() as connection:
        set_state(connection, "widen-loads", "retired", actor="ana", reason="replaced")
    assert fitting() == []
