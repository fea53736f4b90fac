"""Packs a session: one zip with problems, their knowledge, and the parts of this program that the
search needs. `python session.zip` runs `launch`.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kb.cluster import ROOT, source_files
from optimizer.evaluation.problem.load import SHIPPED
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.knowledge import KnowledgeSnapshot
from optimizer.search.portable.launch import SESSION
from optimizer.search.portable.skill_trial import PlannedTrial
from optimizer.search.records import Node
from optimizer.search.store import RunRow

# Packages in a session, and on the nodes of a cluster. Modules of them that need more than torch
# are never imported there.
PACKAGES = ("kb", "retrieval", "optimizer")
_MAIN = '''\
"""Unpacks itself and runs; see --help."""

import sys
import tempfile
import zipfile
from pathlib import Path

with tempfile.TemporaryDirectory(prefix="kernlore-session-") as folder:
    with zipfile.ZipFile(Path(__file__).parent) as packed:
        packed.extractall(folder)
    sys.path[0] = folder
    from {module} import main

    code = main(Path(folder), sys.argv[1:])
raise SystemExit(code)
'''


@dataclass(frozen=True)
class Drafted:
    """A run whose drafts a session evaluates: its row and its nodes, the last ones in flight."""

    problem: Problem
    run: RunRow
    nodes: Sequence[Node]

    def as_json(self) -> dict[str, Any]:
        """The entry of a session, named after the run, since two runs may be of one problem."""
        return {
            "name": self.run.id,
            "path": f"problems/{self.problem.name}",
            "known_as": _known_as(self.problem),
            "run": self.run.as_json(),
            "nodes": [node.as_json() for node in self.nodes],
        }


def write_session(
    path: Path,
    *,
    session_id: str,
    goal: Mapping[str, Any],
    target: Mapping[str, Any],
    problems: Sequence[Problem] = (),
    drafted: Sequence[Drafted] = (),
    trials: Sequence[PlannedTrial] = (),
    knowledge: KnowledgeSnapshot,
    recipes: Sequence[Mapping[str, Any]],
) -> Path:
    """Write the session to `path` atomically. It searches `problems`, evaluates the drafts of
    `drafted` runs, and runs `trials` of recipes.

    `target` is {hardware, lineage, device, arch (by language), languages (to toolchains), facts}.
    Each of `recipes` is {name, recipe, files}.
    """
    session = {
        "id": session_id,
        "goal": dict(goal),
        "target": dict(target),
        "recipes": list(recipes),
        "knowledge": knowledge.as_json(),
        "problems": [
            *(
                {"name": p.name, "path": f"problems/{p.name}", "known_as": _known_as(p)}
                for p in problems
            ),
            *(run.as_json() for run in drafted),
            *(
                {"name": t.name, "path": f"problems/{t.problem.name}", "trial": t.as_json()}
                for t in trials
            ),
        ],
    }
    packed_problems = [*problems, *(r.problem for r in drafted), *(t.problem for t in trials)]
    files: dict[str, str | bytes] = {SESSION: json.dumps(session)}
    for problem in packed_problems:
        files |= _problem_files(problem)
    return write_program(path, "optimizer.search.portable.launch", files)


def write_program(path: Path, module: str, files: Mapping[str, str | bytes]) -> Path:
    """Write a zip to `path` atomically that `python` runs on a machine without Kernlore: it unpacks
    `files` and its own sources into a folder, and calls `main(folder, arguments)` of `module`."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("__main__.py", _MAIN.format(module=module))
            for name, text in files.items():
                packed.writestr(name, text)
            for source in source_files(PACKAGES):
                packed.write(source, source.relative_to(ROOT))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _known_as(problem: Problem) -> str:
    """Identifies the problem when the results are imported: a shipped name or a path."""
    shipped = problem.path.is_relative_to(SHIPPED)
    return problem.path.parent.name if shipped else str(problem.path)


def _problem_files(problem: Problem) -> dict[str, str]:
    folder = f"problems/{problem.name}"
    files = {f"{folder}/problem.py": problem.source}
    toml = problem.path.with_name("problem.toml")
    if not toml.is_file():
        toml = problem.path.with_suffix(".toml")
    if problem.declared and toml.is_file():
        files[f"{folder}/problem.toml"] = toml.read_text(encoding="utf-8")
    return files
