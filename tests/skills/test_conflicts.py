"""A skill and a warning about one transformation: each names the other, also in exports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kb.catalog import Catalog
from skills.format.schema import SkillFile
from skills.format.skillfile import read_skill, write_skill
from skills.skill_library import Imported, SkillLibrary
from tests.skills.states import set_state

pytestmark = pytest.mark.slow(seconds=3)

ADVICE = SkillFile(
    name="double-buffer",
    description="Begin the load of the next block first.",
    body="## Steps\n\n1. Load early.",
    metadata={"kb.signals": "memory_latency", "kb.ops": "matmul"},
)
WARNING = replace(
    ADVICE,
    name="no-double-buffer",
    metadata={
        "kb.polarity": "avoid",
        "kb.transformation": "double-buffer",
        "kb.signals": "memory_latency",
    },
)


def import_skill(catalog: Catalog, tmp_path: Path, skill: SkillFile) -> Imported:
    return SkillLibrary(catalog).import_folder(write_skill(skill, tmp_path), actor="ann")


def test_conflicting_skills_name_each_other_without_evidence(
    catalog: Catalog, tmp_path: Path
) -> None:
    library = SkillLibrary(catalog)
    assert import_skill(catalog, tmp_path, ADVICE).warnings == ()
    (message,) = import_skill(catalog, tmp_path, WARNING).warnings
    assert (
        message == "It conflicts with double-buffer (candidate), which advises it. Both are shown."
    )
    for name, other in (
        ("double-buffer", "no-double-buffer"),
        ("no-double-buffer", "double-buffer"),
    ):
        (conflict,) = library.show(name).conflicts
        assert conflict.name == other
    event = set_state(library, "double-buffer", "retired", actor="ann", reason="old")
    assert library.warnings("double-buffer", event) == ()
    assert library.show("no-double-buffer").conflicts == ()


def test_approval_names_conflicting_skills(catalog: Catalog, tmp_path: Path) -> None:
    from kb.catalog.skills.writing import set_state

    library = SkillLibrary(catalog)
    import_skill(catalog, tmp_path, ADVICE)
    import_skill(catalog, tmp_path, WARNING)
    with catalog.write() as connection:
        event = set_state(
            connection, "no-double-buffer", "active", actor="ann", reason="known", force=True
        )
    (message,) = library.warnings("no-double-buffer", event)
    assert message.startswith("It conflicts with double-buffer (candidate)")


def test_other_operators_or_transformations_do_not_conflict(
    catalog: Catalog, tmp_path: Path
) -> None:
    import_skill(catalog, tmp_path, ADVICE)
    elsewhere = {**WARNING.metadata, "kb.ops": "softmax"}
    another = {**WARNING.metadata, "kb.transformation": "unroll"}
    for metadata in (elsewhere, another):
        assert import_skill(catalog, tmp_path, replace(WARNING, metadata=metadata)).warnings == ()


def test_exported_warning_is_marked_and_imports_unchanged(catalog: Catalog, tmp_path: Path) -> None:
    import_skill(catalog, tmp_path / "in", WARNING)
    library = SkillLibrary(catalog)
    (folder,) = library.export(tmp_path / "out", [WARNING.name])
    exported = read_skill(folder)
    assert exported.description == "Avoid: Begin the load of the next block first."
    assert exported.body.splitlines()[0] == exported.description
    assert library.import_folder(folder, actor="bob").outcome == "unchanged"
    detail = library.show(WARNING.name)
    assert (detail.summary.description, detail.body) == (WARNING.description, WARNING.body)
    assert len(detail.events) == 1


def test_warning_with_use_when_description_is_reported(catalog: Catalog, tmp_path: Path) -> None:
    advising = replace(WARNING, description="Use when a kernel waits: load early.")
    (message,) = import_skill(catalog, tmp_path, advising).warnings
    assert "let the description name the change to avoid" in message
    (folder,) = SkillLibrary(catalog).export(tmp_path / "out", [WARNING.name])
    assert read_skill(folder).description.startswith("Avoid: Use when")


def test_unknown_operator_is_reported(catalog: Catalog, tmp_path: Path) -> None:
    odd = replace(ADVICE, metadata={"kb.signals": "memory_latency", "kb.ops": "sofmax,matmul"})
    (message,) = import_skill(catalog, tmp_path, odd).warnings
    assert "'sofmax'" in message and "Did you mean softmax" in message


def test_long_warning_is_marked_in_its_body_only(catalog: Catalog, tmp_path: Path) -> None:
    long = replace(WARNING, description="Load " + "very " * 202 + "early.")
    assert len(long.description) > 1020
    import_skill(catalog, tmp_path / "in", long)
    library = SkillLibrary(catalog)
    (folder,) = library.export(tmp_path / "out", [long.name])
    assert read_skill(folder).description == long.description
    assert read_skill(folder).body.startswith("Avoid: Load very")
    assert library.import_folder(folder, actor="bob").outcome == "unchanged"
