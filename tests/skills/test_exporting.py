"""An export removes withdrawn skills from the agent's folder and touches no other folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kb.catalog import Catalog
from skills.format.schema import SkillFile
from skills.format.skillfile import Exported, write_export, write_skill
from skills.skill_library import SkillLibrary
from tests.skills.states import set_state

pytestmark = pytest.mark.slow(seconds=2)

SKILL = SkillFile(
    name="load-early",
    description="Begin the load of the next block first.",
    body="1. Load early.",
    metadata={"kb.signals": "memory_latency", "team": "kernels"},
    files={"references/notes.md": b"Notes.\n"},
)
WARNING = replace(
    SKILL, name="no-unroll", metadata={**SKILL.metadata, "kb.polarity": "avoid"}, files={}
)


@pytest.fixture
def catalog(catalog: Catalog, tmp_path: Path) -> Catalog:
    library = SkillLibrary(catalog)
    for skill in (SKILL, WARNING):
        folder = write_skill(skill, tmp_path / "in")
        library.import_folder(folder, actor="ann")
    return catalog


def export(catalog: Catalog, parent: Path, names: list[str]) -> Exported:
    library = SkillLibrary(catalog)
    states: Mapping[str, str] = {skill.name: skill.state for skill in library.list()}
    return write_export(library.files(names), parent, states)


def names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


def test_only_withdrawn_skills_are_removed(catalog: Catalog, tmp_path: Path) -> None:
    out, library = tmp_path / "agent", SkillLibrary(catalog)
    assert export(catalog, out, ["load-early", "no-unroll"]).removed == {}
    own = out / "team-rules"
    own.mkdir()
    (own / "SKILL.md").write_text("---\nname: team-rules\ndescription: Ours.\n---\nBe kind.\n")
    assert export(catalog, out, []).removed == {}  # candidates that are not promoted
    for name in ("load-early", "no-unroll"):
        set_state(library, name, "retired", actor="ann", reason="wrong")
    exported = export(catalog, out, [])
    assert exported.removed == {"load-early": "retired", "no-unroll": "retired"}
    assert names(out) == ["team-rules"]


@pytest.mark.parametrize("changed", ["SKILL.md", "references/mine.md"])
def test_edited_file_is_preserved_and_named(catalog: Catalog, tmp_path: Path, changed: str) -> None:
    out = tmp_path / "agent"
    export(catalog, out, ["load-early"])
    file = out / "load-early" / changed
    text = file.read_text() if file.exists() else ""
    file.write_text(text + "My own remark.\n")
    set_state(SkillLibrary(catalog), "load-early", "quarantined", actor="ann", reason="wrong")
    exported = export(catalog, out, [])
    assert (exported.removed, exported.kept) == ({}, {"load-early": "quarantined"})
    assert file.read_text() == text + "My own remark.\n"


def test_folder_written_by_another_store_is_untouched(catalog: Catalog, tmp_path: Path) -> None:
    out = tmp_path / "agent"
    export(catalog, out, ["load-early"])
    assert write_export([], out, {}).removed == {} and names(out) == ["load-early"]
