"""Skills in the catalog: evidence, relations, uses, search, and versions that narrow a skill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from kb.catalog import Catalog
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
    SkillHead,
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
    link_skills,
    links_of,
    narrow_skill,
    set_state,
    store_skill,
)
from kb.errors import Conflict, InvalidRequest, NotFound
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


def test_skills_about_family_include_its_operators_any_and_named(
    connection: Connection,
) -> None:
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
    add_evidence(
        connection,
        "widen-loads",
        EvidenceRow(
            kind="simulator",
            hardware_id="mtia-v2i",
            n=1,
            speedup=3.0,
            speedup_low=3.0,
            speedup_high=3.0,
            toolchain_id="sim 1",
        ),
        actor="curator",
        reason="simulated",
    )
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


def figure(connection: Connection, name: str, kind: EvidenceKind, low: float, high: float) -> None:
    add_evidence(
        connection,
        name,
        EvidenceRow(
            kind=kind,
            hardware_id="h100",
            n=12,
            speedup=(low * high) ** 0.5,
            speedup_low=low,
            speedup_high=high,
        ),
        actor="curator",
        reason="test",
    )


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
    add_evidence(
        connection,
        "widen-loads",
        EvidenceRow(
            kind="ablation",
            hardware_id="h100",
            n=4,
            speedup=1.5,
            speedup_low=1.4,
            speedup_high=1.6,
            details={"wrong": 1},
        ),
        actor="c",
        reason="r",
    )
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
