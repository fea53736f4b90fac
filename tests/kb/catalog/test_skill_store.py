"""Skills in the catalog: evidence, relations, uses, search, and versions that narrow a skill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from kb.catalog import Catalog
from kb.catalog.evaluations import CandidateRow, Evaluations, ProblemRow
from kb.catalog.runs import NodeRow, Runs
from kb.catalog.skills.evidence import (
    evidence_line,
    evidence_lines,
    evidence_of,
    is_measured,
    trial_counts,
)
from kb.catalog.skills.reading import (
    EvidenceKind,
    EvidenceRow,
    NewUse,
    SkillHead,
    SkillLift,
    SkillScopes,
    events_of,
    get_skill,
    list_skills,
    search_skills,
    skill_heads,
    skill_names,
    skills_about,
    structured_key,
)
from kb.catalog.skills.writing import (
    add_evidence,
    lift_of,
    link_skills,
    links_of,
    narrow_skill,
    record_uses,
    set_state,
    store_skill,
    uses_of,
)
from kb.errors import Conflict, InvalidRequest, NotFound
from kb.ids import new_id
from retrieval.knowledge_base import Journal
from retrieval.request import RetrieveRequest
from retrieval.snapshot.store import SnapshotStore
from tests.kb.catalog.stored_skills import DRAFT, SCOPES, named, put


@pytest.fixture
def connection(catalog: Catalog) -> Iterator[Connection]:
    with catalog.write() as opened:
        yield opened


def events(connection: Connection, name: str) -> list[str]:
    skill = get_skill(connection, name)
    return [event.event for event in events_of(connection, skill.id)]


def ablation(connection: Connection, name: str, low: float = 1.1) -> EvidenceRow:
    return add_evidence(
        connection,
        name,
        EvidenceRow(
            kind="ablation",
            hardware_id="h100",
            device_id="NVIDIA H100",
            toolchain_id="triton-nvidia triton 3.4.0",
            problem_id="prb_1",
            case_id="cas_1",
            evaluation_id="evl_1",
            n=12,
            baseline_us=20.0,
            measured_us=16.0,
            speedup=low + 0.1,
            speedup_low=low,
            speedup_high=low + 0.2,
            details={"pairs": 6},
        ),
        actor="curator",
        reason="held-out shapes",
    )


# -- finding


def test_skills_about_family_include_its_operators_any_and_named(connection: Connection) -> None:
    ops = {"a-sibling": ("log_softmax",), "b-other": ("matmul",), "c-any": (), "d-odd": ("xyz",)}
    put(connection, DRAFT, *(named(name, scopes=SkillScopes(ops=op)) for name, op in ops.items()))
    assert names(skills_about(connection, "softmax")) == ["a-sibling", "c-any", "widen-loads"]
    assert names(skills_about(connection, "xyz")) == ["c-any", "d-odd"]
    other = get_skill(connection, "b-other").id
    for called in ("b-other", other):
        assert "b-other" in names(skills_about(connection, "softmax", [called, "nowhere"]))
    assert skill_names(connection) == ["a-sibling", "b-other", "c-any", "d-odd", "widen-loads"]


def names(rows: Sequence[SkillHead]) -> list[str]:
    return [row.name for row in rows]


def test_search_covers_name_description_operators_and_signals(connection: Connection) -> None:
    put(
        connection,
        DRAFT,
        named("tile-matmul", description="Use for products.", scopes=SkillScopes(ops=("matmul",))),
        named("hide-latency", description="Matmul too.", scopes=SkillScopes(signals=("latency",))),
    )
    assert names(search_skills(connection, "SOFTMAX")) == ["widen-loads"]
    assert names(search_skills(connection, "narrow row")) == ["widen-loads"]
    assert names(search_skills(connection, "matmul")) == ["tile-matmul", "hide-latency"]
    assert names(search_skills(connection, "latency matmul")) == ["hide-latency", "tile-matmul"]
    assert names(search_skills(connection, "tile-matmul", limit=1)) == ["tile-matmul"]
    assert names(search_skills(connection, "matmul", states=("retired",))) == []
    assert search_skills(connection, "100%") == search_skills(connection, " ") == []


def test_heads_are_rows_without_bodies(connection: Connection) -> None:
    put(connection, DRAFT, named("tile"))
    rows, heads = list_skills(connection), skill_heads(connection, states=("candidate",))
    for row, head in zip(rows, heads, strict=True):
        assert vars(head).items() <= vars(row).items()
        assert row.body and not hasattr(head, "body")


# -- evidence


def test_evidence_is_stored_with_event(connection: Connection) -> None:
    put(connection, DRAFT)
    added = ablation(connection, "widen-loads")
    skill = get_skill(connection, "widen-loads")
    assert evidence_of(connection, skill.id) == [added]
    assert skill.toolchain_id == "triton-nvidia triton 3.4.0"
    last = events_of(connection, skill.id)[-1]
    assert (last.event, last.details["evidence"]) == ("evidence", added.id)
    assert trial_counts(connection, [skill.id]) == {skill.id: (1, 1)}
    ablation(connection, "widen-loads", low=0.9)
    assert trial_counts(connection, [skill.id]) == {skill.id: (2, 1)}
    line = "n=24;speedup_lcb=0.90;shapes=1;runs=1"
    assert evidence_line(evidence_of(connection, skill.id)) == line
    none = "sk_none"
    lines = evidence_lines(connection, [skill.id, none])
    assert lines == {skill.id: line, none: "not measured here"}


def test_simulated_evidence_has_no_time(connection: Connection) -> None:
    put(connection, DRAFT)
    sim = {"hardware_id": "mtia-v2i", "n": 1, "toolchain_id": "sim 1"}
    figure(connection, "widen-loads", "simulator", 3.0, 3.0, **sim)
    skill = get_skill(connection, "widen-loads")
    assert trial_counts(connection, [skill.id]) == {}
    found = evidence_of(connection, skill.id)
    assert skill.toolchain_id is None and len(found) == 1
    line = "not measured here;simulated=1"
    assert evidence_line(found) == line
    assert evidence_lines(connection, [skill.id]) == {skill.id: line}
    with pytest.raises(Conflict, match="no measurement here"):
        set_state(connection, "widen-loads", "active", actor="ann", reason="simulated")
    found.append(ablation(connection, "widen-loads"))
    line = "n=12;speedup_lcb=1.10;shapes=1;runs=1;simulated=1"
    assert evidence_line(found) == line
    assert evidence_lines(connection, [skill.id]) == {skill.id: line}


def figure(
    connection: Connection, name: str, kind: EvidenceKind, low: float, high: float, **fields: Any
) -> None:
    figures = {"speedup": (low * high) ** 0.5, "speedup_low": low, "speedup_high": high}
    row = EvidenceRow(**{"kind": kind, "hardware_id": "h100", "n": 12, **figures, **fields})
    add_evidence(connection, name, row, actor="curator", reason="test")


def test_pairs_that_formed_skill_are_not_its_trials(connection: Connection) -> None:
    put(connection, DRAFT)
    figure(connection, "widen-loads", "pair", 1.4, 1.6)
    skill = get_skill(connection, "widen-loads")
    assert trial_counts(connection, [skill.id]) == {}
    assert not is_measured(connection, skill)
    figure(connection, "widen-loads", "lift", 1.1, 1.2)
    assert trial_counts(connection, [skill.id]) == {skill.id: (1, 1)}
    assert is_measured(connection, skill)


def test_avoid_skill_is_confirmed_by_slower_trials(connection: Connection) -> None:
    put(connection, named("no-atomics", polarity="avoid"))
    skill = get_skill(connection, "no-atomics")
    figure(connection, "no-atomics", "ablation", 1.2, 1.4)
    assert trial_counts(connection, [skill.id]) == {skill.id: (1, 0)}
    assert not is_measured(connection, skill)
    figure(connection, "no-atomics", "ablation", 0.7, 0.8)
    assert trial_counts(connection, [skill.id]) == {skill.id: (2, 1)}
    assert is_measured(connection, skill)


@pytest.mark.parametrize(
    ("trials", "borne_out"),
    [
        ([(1.1, 1.3)], True),
        ([(0.9, 1.3)], False),  # interval includes 1
        ([(0.99, 1.2), (0.99, 1.2)], True),  # significant together, as in verification
        ([(0.7, 0.8)], False),
        ([(1.1, 1.3), (0.7, 0.8)], False),  # the newest is significantly against it
        ([(0.7, 0.8), (1.1, 1.3)], True),
    ],
)
def test_newest_trials_decide_whether_skill_is_confirmed(
    connection: Connection, trials: list[tuple[float, float]], borne_out: bool
) -> None:
    put(connection, DRAFT)
    for low, high in trials:
        figure(connection, "widen-loads", "ablation", low, high)
    assert is_measured(connection, get_skill(connection, "widen-loads")) is borne_out


def test_skill_with_wrong_kernel_is_not_confirmed(connection: Connection) -> None:
    put(connection, DRAFT)
    figure(connection, "widen-loads", "ablation", 1.4, 1.6, n=4, details={"wrong": 1})
    assert not is_measured(connection, get_skill(connection, "widen-loads"))


def failure(connection: Connection, run: str, problem: str, case: str | None = None) -> None:
    add_evidence(
        connection,
        "no-atomics",
        EvidenceRow(
            kind="pair",
            hardware_id="h100",
            n=1,
            problem_id=problem,
            case_id=case,
            details={"run": run, "validity": "incorrect", "polarity": "avoid"},
        ),
        actor="curator",
        reason="test",
    )


def test_failure_confirms_avoid_skill_only_in_other_problems(connection: Connection) -> None:
    put(connection, named("no-atomics", polarity="avoid", origin_run_id="run_1"))
    skill = get_skill(connection, "no-atomics")
    failure(connection, "run_1", "prb_1")
    failure(connection, "run_2", "prb_1")  # the same failure again
    assert not is_measured(connection, skill)
    with pytest.raises(Conflict, match="no measurement here") as refused:
        set_state(connection, "no-atomics", "active", actor="ann", reason="it failed")
    assert "on another problem or case" in refused.value.hint and "force" in refused.value.hint
    failure(connection, "run_3", "prb_2")
    assert is_measured(connection, skill)
    set_state(connection, "no-atomics", "active", actor="ann", reason="it failed twice")


def test_failure_does_not_support_positive_skill(connection: Connection) -> None:
    put(connection, named("no-atomics", origin_run_id="run_1"))
    failure(connection, "run_1", "prb_1")
    failure(connection, "run_2", "prb_2")
    assert not is_measured(connection, get_skill(connection, "no-atomics"))


def test_evidence_of_an_older_text_does_not_count(connection: Connection) -> None:
    put(connection, DRAFT)
    ablation(connection, "widen-loads")
    set_state(connection, "widen-loads", "active", actor="ann", reason="measured")
    put(connection, replace(DRAFT, content_sha256="sha-2", body="Another text."))
    skill = get_skill(connection, "widen-loads")
    assert skill.state == "candidate" and not is_measured(connection, skill)
    assert trial_counts(connection, [skill.id]) == {}
    assert len(evidence_of(connection, skill.id)) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "opinion"}, {"n": 0}, {"speedup_low": 1.5}, {"speedup": -1.0}, {"speedup_high": 0.5}],
)
def test_invalid_evidence_is_refused(connection: Connection, wrong: dict[str, Any]) -> None:
    put(connection, DRAFT)
    figures = {"speedup": 1.2, "speedup_low": 1.1, "speedup_high": 1.3}
    given: dict[str, Any] = {"kind": "pair", "n": 3, **figures, **wrong}
    with pytest.raises(InvalidRequest):
        add_evidence(
            connection,
            "widen-loads",
            EvidenceRow(hardware_id="h100", **given),
            actor="curator",
            reason="r",
        )


# -- relations


def test_relations_are_read_from_both_ends(connection: Connection) -> None:
    put(connection, DRAFT, named("tile"), named("fuse"))
    assert link_skills(connection, "widen-loads", "conflicts_with", "tile", actor="c", reason="r")
    assert not link_skills(
        connection, "tile", "conflicts_with", "widen-loads", actor="c", reason="r"
    )
    assert link_skills(connection, "tile", "conflicts_with", "fuse", actor="c", reason="r")
    found = links_of(connection, "tile")
    assert {(link.source, link.kind, link.target) for link in found} == {
        ("tile", "conflicts_with", "widen-loads"),
        ("fuse", "conflicts_with", "tile"),
    }
    assert links_of(connection, "fuse")[0].target == "tile"
    assert events(connection, "fuse") == ["created", "linked"]
    assert events(connection, "tile") == ["created", "linked", "linked"]
    with pytest.raises(InvalidRequest, match="itself"):
        link_skills(connection, "tile", "conflicts_with", "tile", actor="c", reason="r")
    with pytest.raises(InvalidRequest, match="not a kind of link"):
        link_skills(connection, "tile", "likes", "fuse", actor="c", reason="r")  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="no skill"):
        link_skills(connection, "tile", "conflicts_with", "nowhere", actor="c", reason="r")


# -- narrowing


def narrow(connection: Connection, name: str) -> None:
    narrow_skill(
        connection,
        name,
        scopes=replace(SCOPES, dtypes=("float16",)),
        predicate='problem.op != "softmax"',
        content_sha256="narrow",
        counted=(3, 2),
        actor="observer",
        reason="it lost elsewhere",
        details={"parts": []},
    )


def test_narrowing_makes_version_with_state_and_evidence(connection: Connection) -> None:
    put(connection, DRAFT)
    ablation(connection, "widen-loads")
    set_state(connection, "widen-loads", "active", actor="ann", reason="measured")
    narrow(connection, "widen-loads")
    skill = get_skill(connection, "widen-loads")
    assert (skill.version, skill.state, skill.scopes.dtypes) == (2, "active", ("float16",))
    assert (skill.trials, skill.wins, skill.content_sha256) == (3, 2, "narrow")
    assert is_measured(connection, skill)
    event = events_of(connection, skill.id)[-1]
    assert event.event == "narrowed" and event.details["before"]["predicate"] is None
    assert skill.structured_key == structured_key(skill.scopes, "vectorise")


def test_built_in_skill_stays_narrow_until_its_text_changes(connection: Connection) -> None:
    shipped = replace(DRAFT, tier="curated", origin="shipped")
    put(connection, shipped)
    narrow(connection, "widen-loads")
    stored = store_skill(connection, shipped, state="active", actor="builtin", reason="ships")
    assert stored.outcome == "unchanged"
    assert get_skill(connection, "widen-loads").predicate == 'problem.op != "softmax"'
    revised = replace(shipped, content_sha256="sha-2")
    stored = store_skill(connection, revised, state="active", actor="builtin", reason="ships")
    skill = get_skill(connection, "widen-loads")
    assert (stored.outcome, skill.version, skill.predicate) == ("updated", 3, None)
    assert (skill.trials, skill.wins) == (0, 0)


# -- uses of skills: shown, used and withheld, their effect, and the lift


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
