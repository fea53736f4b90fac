"""The packages of skills/ import one another in one direction."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SKILLS = Path(__file__).resolve().parents[2] / "skills"
LIBRARY = "(library)"  # modules directly in skills/
ALLOWED = {
    "format": set[str](),
    LIBRARY: {"format"},
    "trajectories": {"format", LIBRARY},
    "trials": {"format", LIBRARY, "trajectories"},
    "curator": {"format", LIBRARY, "trajectories", "trials"},
    "training": {"format", LIBRARY, "trajectories"},
    "lineage": {"format", LIBRARY, "trajectories", "curator"},
}


def rooms_imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skills."):
            parts = (node.module or "").split(".")
            yield parts[1] if parts[1] in ALLOWED else LIBRARY


@pytest.mark.parametrize("room", ALLOWED)
def test_package_imports_only_lower_packages(room: str) -> None:
    paths = SKILLS.glob("*.py") if room == LIBRARY else (SKILLS / room).rglob("*.py")
    imported = {(path.name, other) for path in paths for other in rooms_imported(path)}
    assert imported, room
    assert {(name, o) for name, o in imported if o not in ALLOWED[room] | {room}} == set()


def test_every_code_folder_is_a_listed_package() -> None:
    folders = {path.parent.name for path in SKILLS.glob("*/*.py")}
    assert folders == ALLOWED.keys() - {LIBRARY}
