"""Packs a session: problems, the knowledge that they need, and the parts of this program that the
search needs, as one zip that `python session.zip` runs.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer.evaluation.problem.load import SHIPPED
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.portable.session import SESSION
from optimizer.search.portable.snapshot import Snapshot

ROOT = Path(__file__).resolve().parents[3]
# Packages whose files travel. Modules of theirs that need more than torch are never imported there.
PACKAGES = ("kb", "retrieval", "optimizer")
SUFFIXES = (".py", ".toml", ".md", ".json")
LEFT_OUT = ("optimizer/problems", "kb/catalog/migrations")
_MAIN = '''\
"""Unpacks itself and searches; see --help."""

import sys
import tempfile
import zipfile
from pathlib import Path

with tempfile.TemporaryDirectory(prefix="kernlore-session-") as folder:
    with zipfile.ZipFile(Path(__file__).parent) as packed:
        packed.extractall(folder)
    sys.path[0] = folder
    from optimizer.search.portable.session import main

    code = main(Path(folder), sys.argv[1:])
raise SystemExit(code)
'''


def write_session(
    path: Path,
    *,
    session_id: str,
    goal: Mapping[str, Any],
    target: Mapping[str, Any],
    problems: Sequence[Problem],
    knowledge: Snapshot,
    recipes: Sequence[Mapping[str, Any]],
) -> Path:
    """target: {hardware, lineage, device, arch: by language, languages: to toolchain, facts}.

    recipes: {name, recipe, files} each.
    """
    told = {
        "id": session_id,
        "goal": dict(goal),
        "target": dict(target),
        "recipes": list(recipes),
        "knowledge": knowledge.as_json(),
        "problems": [
            {"name": p.name, "path": f"problems/{p.name}", "known_as": _known_as(p)}
            for p in problems
        ],
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("__main__.py", _MAIN)
        packed.writestr(SESSION, json.dumps(told))
        for source in _sources():
            packed.write(source, source.relative_to(ROOT))
        for problem in problems:
            _add_problem(packed, problem)
    return path


def _known_as(problem: Problem) -> str:
    """What finds it again where the results are imported: a shipped name or the file's place."""
    shipped = problem.path.is_relative_to(SHIPPED)
    return problem.path.parent.name if shipped else str(problem.path)


def _sources() -> list[Path]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            travels = path.suffix in SUFFIXES and "__pycache__" not in path.parts
            if travels and not name.startswith(LEFT_OUT):
                found.append(path)
    return found


def _add_problem(packed: zipfile.ZipFile, problem: Problem) -> None:
    folder = f"problems/{problem.name}"
    packed.writestr(f"{folder}/problem.py", problem.source)
    toml = problem.path.with_name("problem.toml")
    if not toml.is_file():
        toml = problem.path.with_suffix(".toml")
    if problem.declared and toml.is_file():
        packed.writestr(f"{folder}/problem.toml", toml.read_text(encoding="utf-8"))
