"""A skill stays in use while its revision is a candidate, which then replaces its text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kb.catalog import Catalog
from kb.catalog.skills.evidence import is_measured
from kb.catalog.skills.reading import get_skill
from kb.errors import Conflict, Forbidden, InvalidKnowledge, UnknownSignal
from kb.scope import AccessScope
from skills.format.skillfile import write_skill
from skills.lifecycle import change_state
from skills.skill_library import Revision, SkillLibrary
from tests.skills.states import set_state
from tests.skills.test_library import LEARNED, SHIPPED, import_skill, measure, stocked

pytestmark = pytest.mark.slow(seconds=8)
NAME = LEARNED.name
REVISION = f"{NAME}-r2"
ANN: Any = {"actor": "ann", "reason": "a better text"}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = stocked(tmp_path / "data")
    yield opened
    opened.close()


@pytest.fixture
def library(catalog: Catalog, tmp_path: Path) -> SkillLibrary:
    """A library with one skill in use."""
    library = SkillLibrary(catalog)
    import_skill(library, tmp_path)
    measure(catalog, NAME)
    set_state(library, NAME, "active", actor="ann", reason="measured")
    return library


def test_import_is_a_revision_next_to_active_skill(library: SkillLibrary, tmp_path: Path) -> None:
    before = library.show(NAME)
    imported = import_skill(library, tmp_path, replace(LEARNED, body="Another step."))
    assert (imported.name, imported.outcome, imported.state) == (REVISION, "created", "candidate")
    assert imported.revises == NAME
    after = library.show(NAME)
    assert (after.body, after.summary.state) == (before.body, "active")
    assert after.revision == REVISION and after.revises is None
    revision = library.show(REVISION)
    assert (revision.revises, revision.transformation) == (NAME, before.transformation)
    assert "+Another step." in revision.changes.splitlines()
    again = import_skill(library, tmp_path, replace(LEARNED, body="Another step."))
    assert (again.name, again.outcome) == (REVISION, "unchanged")
    further = import_skill(library, tmp_path, replace(LEARNED, body="A third step."))
    assert (further.name, further.outcome) == (REVISION, "updated")
    assert import_skill(library, tmp_path, LEARNED).outcome == "unchanged"


def test_measured_revision_replaces_skill(
    library: SkillLibrary, catalog: Catalog, tmp_path: Path
) -> None:
    old = library.show(NAME)
    import_skill(library, tmp_path, replace(LEARNED, body="Another step."))
    with pytest.raises(Conflict, match="no measurement"):  # the old text does not count
        change_state(catalog, REVISION, "active", **ANN)
    measure(catalog, REVISION)
    event = change_state(catalog, REVISION, "active", **ANN)
    assert (event.event, event.from_state, event.to_state) == ("revised", "active", "active")
    assert event.details["before"]["body"] == old.body
    new = library.show(NAME)
    assert (new.body, new.summary.state, new.summary.version) == ("Another step.", "active", 2)
    assert new.id == old.id and new.revision is None
    assert len(new.evidence) == len(old.evidence) + 1
    assert new.evidence[-1].details["measured_as"] == REVISION
    with catalog.read() as connection:
        assert is_measured(connection, get_skill(connection, NAME))
    assert library.show(REVISION).summary.state == "retired"
    assert library.import_folder(tmp_path / "in" / NAME, actor="ann").outcome == "unchanged"
    third = import_skill(library, tmp_path, replace(LEARNED, body="Yet another."))
    assert third.name == f"{NAME}-r3"


def test_force_approved_revision_needs_later_measurement(
    library: SkillLibrary, catalog: Catalog
) -> None:
    stored = library.revise(NAME, Revision(predicate="problem.product_rows >= 32"), **ANN)
    assert stored.name == REVISION
    event = change_state(catalog, REVISION, "active", force=True, **ANN)
    assert event.details["approved_without_measurement"]
    assert library.show(NAME).predicate == "problem.product_rows >= 32"
    assert library.show(NAME).origin == "person"
    with catalog.read() as connection:
        assert not is_measured(connection, get_skill(connection, NAME))


def test_second_change_builds_on_first(library: SkillLibrary) -> None:
    library.revise(NAME, Revision(body="Another step.\r\n"), **ANN)
    library.revise(NAME, Revision(description="Use when rows are short."), **ANN)
    library.revise(REVISION, Revision(predicate="problem.product_rows >= 8"), **ANN)
    revision = library.show(REVISION)
    assert revision.body == "Another step." and revision.revises == NAME
    assert revision.summary.description == "Use when rows are short."
    assert revision.predicate == "problem.product_rows >= 8"
    with pytest.raises(Conflict, match="already"):
        library.revise(NAME, Revision(body="Another step."), **ANN)


def test_unrevisable_skill_has_reason(library: SkillLibrary, catalog: Catalog) -> None:
    library.sync_builtin(SHIPPED)
    with pytest.raises(Conflict, match="comes with Kernlore"):
        library.revise("triton-mask-block-tail", Revision(body="x"), **ANN)
    with pytest.raises(InvalidKnowledge, match="predicate"):
        library.revise(NAME, Revision(predicate="and ("), **ANN)
    with pytest.raises(UnknownSignal):
        library.revise(NAME, Revision(predicate="signals.memory_bund"), **ANN)
    library.revise(NAME, Revision(body="Another step."), **ANN)
    set_state(library, NAME, "quarantined", actor="ann", reason="wrong")
    with pytest.raises(Conflict, match="quarantined"):
        change_state(catalog, REVISION, "active", force=True, **ANN)
    assert library.show(REVISION).summary.state == "candidate"
    with pytest.raises(Conflict, match="quarantined"):
        library.revise(NAME, Revision(body="Another."), **ANN)


def test_refused_revision_leaves_skill(library: SkillLibrary, catalog: Catalog) -> None:
    library.revise(NAME, Revision(body="Another step."), **ANN)
    change_state(catalog, REVISION, "retired", **ANN)
    assert library.show(NAME).revision is None
    assert library.show(NAME).summary.state == "active"
    again = library.revise(NAME, Revision(body="A third step."), **ANN)
    assert again.name != REVISION and again.outcome == "created"


def test_restricted_caller_revises_only_own_skills(library: SkillLibrary, tmp_path: Path) -> None:
    """The skill is about h100, below another chip's family, so the caller may read it."""
    other = AccessScope(hardware=frozenset({"h100", "h200", "any"}), own=frozenset({"h200"}))
    with pytest.raises(Forbidden):
        library.revise(NAME, Revision(body="Another step."), access_scope=other, **ANN)
    folder = write_skill(replace(LEARNED, body="Another step."), tmp_path / "other")
    with pytest.raises(Forbidden):
        library.import_folder(folder, actor="eve", access_scope=other)


# -- imports: all problems are reported together, and imported skills can be revised


@pytest.fixture
def bare_library(catalog: Catalog) -> SkillLibrary:
    return SkillLibrary(catalog)


def test_retired_skill_is_revised_under_its_name(
    bare_library: SkillLibrary, catalog: Catalog, tmp_path: Path
) -> None:
    import_skill(bare_library, tmp_path)
    measure(catalog, LEARNED.name)
    set_state(bare_library, LEARNED.name, "active", actor="ann", reason="measured")
    set_state(bare_library, LEARNED.name, "retired", actor="ann", reason="to revise it")
    folder = write_skill(replace(LEARNED, body="Another step."), tmp_path / "in")
    imported = bare_library.import_folder(folder, actor="ann")
    assert (imported.outcome, imported.state) == ("updated", "candidate")
    detail = bare_library.show(LEARNED.name)
    assert (detail.body, detail.summary.state) == ("Another step.", "candidate")
    assert detail.summary.version == 2
    with pytest.raises(Conflict, match="no measurement"):  # it belongs to the old text
        set_state(bare_library, LEARNED.name, "active", actor="ann", reason="measured")


def test_quarantined_skill_cannot_be_revised(bare_library: SkillLibrary, tmp_path: Path) -> None:
    import_skill(bare_library, tmp_path)
    set_state(bare_library, LEARNED.name, "quarantined", actor="ann", reason="wrong")
    with pytest.raises(Conflict) as error:
        import_skill(bare_library, tmp_path, replace(LEARNED, body="Another step."))
    assert f"kernlore skills restore {LEARNED.name}" in error.value.hint


def test_all_problems_of_a_file_are_reported_together(
    bare_library: SkillLibrary, tmp_path: Path
) -> None:
    folder = tmp_path / "bad-one"
    folder.mkdir()
    (folder / "SKILL.md").write_text(
        "---\nname: bad-one\ndescription: Use when.\nmetadata:\n"
        '  kb.hardware: "h1000,b200"\n  kb.signals: "memory_bund"\n'
        '  kb.predicate: "signals.memory_bound and ("\n  kb.polrity: "use"\n---\nDo.\n',
        encoding="utf-8",
    )
    with pytest.raises(InvalidKnowledge) as error:
        bare_library.import_folder(folder, actor="ann")
    found = {(problem["path"], problem["fix"]) for problem in error.value.details["problems"]}
    paths = [path for path, _ in found]
    assert sorted(paths) == [
        "metadata.kb.hardware",
        "metadata.kb.polrity",
        "metadata.kb.predicate",
        "metadata.kb.signals",
    ]
    assert ("metadata.kb.signals", "did you mean memory_bound?") in found
    assert ("metadata.kb.hardware", "did you mean h100?") in found


def test_two_unknown_ids_are_both_reported(bare_library: SkillLibrary, tmp_path: Path) -> None:
    odd = replace(
        LEARNED,
        metadata={"kb.signals": "memory_bund", "kb.predicate": "signals.latency_bund"},
        files={},
    )
    with pytest.raises(InvalidKnowledge) as error:
        import_skill(bare_library, tmp_path, odd)
    assert [p["path"] for p in error.value.details["problems"]] == [
        "metadata.kb.signals",
        "metadata.kb.predicate",
    ]
