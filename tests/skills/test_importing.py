"""An import reports all problems together, and an imported skill can be revised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kb.catalog import Catalog
from kb.errors import Conflict, InvalidKnowledge
from skills.format.skillfile import write_skill
from skills.skill_library import SkillLibrary
from tests.skills.states import set_state
from tests.skills.test_library import LEARNED, import_skill, measure, stocked

pytestmark = pytest.mark.slow(seconds=4)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = stocked(tmp_path / "data")
    yield opened
    opened.close()


@pytest.fixture
def library(catalog: Catalog) -> SkillLibrary:
    return SkillLibrary(catalog)


def test_retired_skill_is_revised_under_its_name(
    library: SkillLibrary, catalog: Catalog, tmp_path: Path
) -> None:
    import_skill(library, tmp_path)
    measure(catalog, LEARNED.name)
    set_state(library, LEARNED.name, "active", actor="ann", reason="measured")
    set_state(library, LEARNED.name, "retired", actor="ann", reason="to revise it")
    folder = write_skill(replace(LEARNED, body="Another step."), tmp_path / "in")
    imported = library.import_folder(folder, actor="ann")
    assert (imported.outcome, imported.state) == ("updated", "candidate")
    detail = library.show(LEARNED.name)
    assert (detail.body, detail.summary.state) == ("Another step.", "candidate")
    assert detail.summary.version == 2
    with pytest.raises(Conflict, match="no measurement"):  # it belongs to the old text
        set_state(library, LEARNED.name, "active", actor="ann", reason="measured")


def test_quarantined_skill_cannot_be_revised(library: SkillLibrary, tmp_path: Path) -> None:
    import_skill(library, tmp_path)
    set_state(library, LEARNED.name, "quarantined", actor="ann", reason="wrong")
    with pytest.raises(Conflict) as error:
        import_skill(library, tmp_path, replace(LEARNED, body="Another step."))
    assert f"kernlore skills restore {LEARNED.name}" in error.value.hint


def test_all_problems_of_a_file_are_reported_together(
    library: SkillLibrary, tmp_path: Path
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
        library.import_folder(folder, actor="ann")
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


def test_two_unknown_ids_are_both_reported(library: SkillLibrary, tmp_path: Path) -> None:
    odd = replace(
        LEARNED,
        metadata={"kb.signals": "memory_bund", "kb.predicate": "signals.latency_bund"},
        files={},
    )
    with pytest.raises(InvalidKnowledge) as error:
        import_skill(library, tmp_path, odd)
    assert [p["path"] for p in error.value.details["problems"]] == [
        "metadata.kb.signals",
        "metadata.kb.predicate",
    ]
