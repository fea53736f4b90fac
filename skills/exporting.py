"""A folder of exported skills, as an agent reads it: what was withdrawn since does not stay there.

An export recognises its own folders by what it wrote into them: `kb.id`, and a hash that the
folder's files still have. Whatever else lies there, and what was changed by hand, is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kb.errors import KernloreError
from skills.format.schema import SkillFile
from skills.format.skillfile import VOLATILE, content_sha256, read_skill, skill_folders, write_skill
from skills.format.warning_marks import unmarked


@dataclass(frozen=True)
class Exported:
    """`removed`: names of skills that are no longer active, whose folders were removed, with their
    states. `kept`: those whose folders were changed by hand and stay."""

    folders: tuple[Path, ...]
    removed: Mapping[str, str]
    kept: Mapping[str, str]


def write_export(files: Sequence[SkillFile], parent: Path, states: Mapping[str, str]) -> Exported:
    """Write skills as folders below `parent`, and remove those of an earlier export that are no
    longer active. `states`: of every skill that the caller may see."""
    written = tuple(write_skill(file, parent) for file in files)
    removed, kept = {}, {}
    for folder in skill_folders(parent):
        state = states.get(folder.name, "active")  # of another store: not ours to judge
        if folder in written or state == "active":
            continue
        try:
            found = read_skill(folder)
        except KernloreError:  # no folder of ours
            continue
        if "kb.id" not in found.metadata or found.metadata.get("kb.status") == state:
            continue
        if _is_untouched(found):
            _remove(folder, found)
            removed[folder.name] = state
        else:
            kept[folder.name] = state
    return Exported(written, removed, kept)


def _is_untouched(skill: SkillFile) -> bool:
    lasting = {key: value for key, value in skill.metadata.items() if key not in VOLATILE}
    advice = replace(unmarked(skill), metadata=lasting)
    return content_sha256(advice) == skill.metadata.get("kb.content-sha256")


def _remove(folder: Path, skill: SkillFile) -> None:
    for name in ("SKILL.md", *skill.files):
        (folder / name).unlink()
    below = sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)
    for empty in (*below, folder):
        if not any(empty.iterdir()):
            empty.rmdir()
