"""Changes of state by a person and by a new toolchain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kb.catalog import Catalog
from kb.catalog.skills.reading import (
    SkillDraft,
    SkillEvent,
    SkillScopes,
    SkillTier,
    events_of,
    get_skill,
    skill_names,
)
from kb.catalog.skills.writing import add_evidence, store_skill
from kb.errors import Conflict, InvalidRequest
from skills import lifecycle
from skills.lifecycle import Wanted, change_state
from tests.kb.catalog.stored_skills import ablation
from tests.skills.curator import planted
from tests.skills.curator.planted import distil

OLD, NEW = "triton-nvidia triton 3.4.0, torch 2.8.0", "triton-nvidia triton 3.5.0, torch 2.9.0"


def step(wanted: Wanted) -> Callable[..., SkillEvent]:
    def change(catalog: Catalog, name: str, **signed: Any) -> SkillEvent:
        return change_state(catalog, name, wanted, **signed)

    return change


approve, quarantine = step("active"), step("quarantined")
retire, restore = step("retired"), step("restored")


def put(catalog: Catalog, name: str, tier: SkillTier = "learned") -> None:
    draft = SkillDraft(
        name=name,
        tier=tier,
        transformation=name,
        description="Use when loads are narrow.",
        body="Load wider.",
        scopes=SkillScopes(signals=("memory_bound",)),
        content_sha256=name,
        origin="run",
    )
    with catalog.write() as connection:
        store_skill(connection, draft, state="candidate", actor="curator", reason="drafted")


def measure(catalog: Catalog, name: str, toolchain: str = OLD, hardware: str = "h100") -> None:
    with catalog.write() as connection:
        row = ablation(1.1, hardware, n=8, toolchain_id=toolchain)
        add_evidence(connection, name, row, actor="curator", reason="held-out shapes")


def state(catalog: Catalog, name: str) -> str:
    with catalog.read() as connection:
        return get_skill(connection, name).state


def test_learned_skill_is_approved_only_when_measured(catalog: Catalog) -> None:
    put(catalog, "narrow-loads")
    with pytest.raises(Conflict, match="no measurement"):
        approve(catalog, "narrow-loads", actor="ann", reason="looks right")
    measure(catalog, "narrow-loads")
    event = approve(catalog, "narrow-loads", actor="ann", reason="measured")
    assert (event.from_state, event.to_state, event.actor) == ("candidate", "active", "ann")
    with pytest.raises(InvalidRequest, match="actor and a reason"):
        quarantine(catalog, "narrow-loads", actor="ann", reason=" ")
    assert state(catalog, "narrow-loads") == "active"


def test_withdrawn_skill_can_be_restored(catalog: Catalog) -> None:
    put(catalog, "narrow-loads")
    measure(catalog, "narrow-loads")
    approve(catalog, "narrow-loads", actor="ann", reason="measured")
    with pytest.raises(Conflict, match="nothing to restore"):
        restore(catalog, "narrow-loads", actor="ann", reason="why not")
    retire(catalog, "narrow-loads", actor="ann", reason="superseded")
    restore(catalog, "narrow-loads", actor="ann", reason="it was not")
    assert state(catalog, "narrow-loads") == "active"
    quarantine(catalog, "narrow-loads", actor="ann", reason="reads like an attack")
    with pytest.raises(Conflict, match="in one step"):
        approve(catalog, "narrow-loads", actor="ann", reason="hurry")
    restore(catalog, "narrow-loads", actor="bob", reason="it is none")
    assert state(catalog, "narrow-loads") == "candidate"


def test_invalid_step_error_names_valid_ones(catalog: Catalog) -> None:
    put(catalog, "narrow-loads")
    measure(catalog, "narrow-loads")

    def refused(step: Callable[..., object]) -> Conflict:
        with pytest.raises(Conflict) as error:
            step(catalog, "narrow-loads", actor="ann", reason="again")
        return error.value

    restoring = refused(restore)
    assert (
        "skills approve narrow-loads" in restoring.hint and "skills restore" not in restoring.hint
    )
    approve(catalog, "narrow-loads", actor="ann", reason="measured")
    for step in (approve, restore):
        error = refused(step)
        assert "is active already" in error.message
        assert "restore" not in error.hint and "approve" not in error.hint
    quarantine(catalog, "narrow-loads", actor="ann", reason="doubtful")
    error = refused(quarantine)
    assert error.message == "narrow-loads is quarantined already"
    assert "skills restore narrow-loads" in error.hint and "skills approve" not in error.hint
    retire(catalog, "narrow-loads", actor="ann", reason="no")
    assert refused(retire).message == "narrow-loads is retired already"
    assert "in one step" in refused(approve).message


def test_unmeasured_skill_is_restored_as_a_candidate(catalog: Catalog) -> None:
    put(catalog, "narrow-loads")
    retire(catalog, "narrow-loads", actor="ann", reason="no")
    restore(catalog, "narrow-loads", actor="ann", reason="yes")
    assert state(catalog, "narrow-loads") == "candidate"
    put(catalog, "by-hand", "curated")
    approve(catalog, "by-hand", actor="ann", reason="sourced")
    retire(catalog, "by-hand", actor="ann", reason="no")
    restore(catalog, "by-hand", actor="ann", reason="yes")
    assert state(catalog, "by-hand") == "active"
    quarantine(catalog, "by-hand", actor="ann", reason="a slip")
    restore(catalog, "by-hand", actor="ann", reason="it was a slip")
    assert state(catalog, "by-hand") == "active"


@pytest.mark.parametrize("tier", ["learned", "curated"])
def test_restored_skill_has_at_most_its_former_state(catalog: Catalog, tier: SkillTier) -> None:
    put(catalog, "narrow-loads", tier)
    measure(catalog, "narrow-loads")
    retire(catalog, "narrow-loads", actor="ann", reason="no")
    restore(catalog, "narrow-loads", actor="ann", reason="yes")
    assert state(catalog, "narrow-loads") == "candidate"
    approve(catalog, "narrow-loads", actor="ann", reason="measured")
    quarantine(catalog, "narrow-loads", actor="ann", reason="doubtful")
    retire(catalog, "narrow-loads", actor="ann", reason="no")
    restore(catalog, "narrow-loads", actor="ann", reason="yes")
    assert state(catalog, "narrow-loads") == "candidate"


def test_distilled_skill_is_a_candidate_until_measured(tmp_path: Path) -> None:
    catalog = planted.catalog_in(tmp_path / "planted")
    distil(planted.trajectory(planted.tuned()), catalog, roles=planted.ROLES)
    with catalog.read() as connection:
        (name,) = skill_names(connection)
    retire(catalog, name, actor="ann", reason="no")
    restore(catalog, name, actor="ann", reason="yes")
    assert state(catalog, name) == "candidate"
    with pytest.raises(Conflict, match="no measurement here") as refused:
        approve(catalog, name, actor="ann", reason="it was fast once")
    assert f"skills verify {name}" in refused.value.hint
    measure(catalog, name)
    approve(catalog, name, actor="ann", reason="measured")
    catalog.close()


def test_forced_approval_is_marked_and_ends_with_retirement(catalog: Catalog) -> None:
    put(catalog, "narrow-loads")
    event = approve(catalog, "narrow-loads", actor="ann", reason="I know it", force=True)
    assert event.to_state == "active" and event.details == {"approved_without_measurement": True}
    retire(catalog, "narrow-loads", actor="ann", reason="no")
    restore(catalog, "narrow-loads", actor="ann", reason="yes")
    assert state(catalog, "narrow-loads") == "candidate"
    measure(catalog, "narrow-loads")
    event = approve(catalog, "narrow-loads", actor="ann", reason="known", force=True)
    assert event.details == {}  # no check to override


def test_new_toolchain_makes_its_skills_suspect_and_queues_them(catalog: Catalog) -> None:
    for name, hardware, tier in (
        ("on-h100", "h100", "learned"),
        ("on-a100", "a100", "learned"),
        ("by-hand", "h100", "curated"),
    ):
        put(catalog, name, "curated" if tier == "curated" else "learned")
        measure(catalog, name, OLD, hardware)
        approve(catalog, name, actor="ann", reason="measured")
    put(catalog, "in-cpp")
    measure(catalog, "in-cpp", "cpp g++ 13.2.0")
    approve(catalog, "in-cpp", actor="ann", reason="measured")

    assert lifecycle.note_toolchain(catalog, "h100", OLD) == []
    assert lifecycle.note_toolchain(catalog, "h100", NEW) == ["on-h100"]
    assert lifecycle.note_toolchain(catalog, "h100", NEW) == []
    assert lifecycle.queue(catalog) == ["on-h100"]
    with catalog.read() as connection:
        last = events_of(connection, get_skill(connection, "on-h100").id)[-1]
    assert last.details == {"hardware": "h100", "was": OLD, "now": NEW} and OLD in last.reason

    measure(catalog, "on-h100", NEW)
    approve(catalog, "on-h100", actor="verifier", reason="it still helps")
    assert lifecycle.queue(catalog) == []
    assert [state(catalog, name) for name in ("on-a100", "by-hand", "in-cpp")] == ["active"] * 3


def test_toolchain_unknown_to_catalog_is_compared(catalog: Catalog) -> None:
    put(catalog, "on-h100")
    measure(catalog, "on-h100", OLD)
    approve(catalog, "on-h100", actor="ann", reason="measured")
    assert lifecycle.note_toolchain(catalog, "h100", NEW) == ["on-h100"]
