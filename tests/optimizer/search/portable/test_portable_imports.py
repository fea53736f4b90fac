"""Allowed imports of the search, enforced by an importer that refuses others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.optimizer.search.portable.bare_machine import required, top_level

pytestmark = pytest.mark.slow(seconds=5)

ROOT = Path(__file__).resolve().parents[4]
OWN = {"kb", "retrieval", "skills", "optimizer", "tests"}
REFUSING = """
import json, sys
from importlib.abc import MetaPathFinder

class Refusing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in allowed or top in sys.stdlib_module_names or top.startswith("_"):
            return None
        raise ModuleNotFoundError(f"refused: {name}", name=name)

allowed = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Refusing())
"""
EVERY_MODULE = """
import importlib, pkgutil
import optimizer.search
for module in pkgutil.iter_modules(optimizer.search.__path__, "optimizer.search."):
    if not module.ispkg:
        importlib.import_module(module.name)
"""
SEARCH = """
from pathlib import Path
import optimizer.search.synthesizers.external
import optimizer.search.synthesizers.recipe.synthesizer
from optimizer.search.goal import Goal
from optimizer.search.knowledge import SnapshotKnowledge
from optimizer.search.loop import Search
from optimizer.search.store import FileStore, RunRow
from tests.optimizer.search.landscape import HARDWARE, VIEW, Steps, TableBench

class Silent:
    def node(self, node, tree): ...
    def asking(self, asking): ...
    def log(self, message): ...

store = FileStore(Path(sys.argv[2]))
run = RunRow("run_bare", "hill", "sha", "x86-64", Goal(candidates=9))
store.begin(run)
knowledge = SnapshotKnowledge({}, "softmax", HARDWARE.facts)
search = Search(run, store, TableBench(), [Steps()], knowledge, VIEW, HARDWARE, Silent())
ended = search.run()
print(ended.state, search.tree.best.proposal.values["x"])
"""


def refused(code: str, allowed: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", REFUSING + code, json.dumps(sorted(allowed)), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("code", [EVERY_MODULE, SEARCH], ids=["every module", "a search"])
def test_core_needs_only_standard_library(code: str, tmp_path: Path) -> None:
    done = refused(code, OWN, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("" if code is EVERY_MODULE else "finished 7\n")


def test_session_needs_torch_and_its_requirements() -> None:
    packages = top_level(required())
    assert "torch" in packages and not packages & {
        "numpy",
        "pydantic",
        "sqlalchemy",
        "typer",
        "httpx",
    }
    done = refused("import optimizer.search.portable.session\n", OWN | packages)
    assert done.returncode == 0, done.stderr


def test_session_starter_needs_no_package() -> None:
    """It waits for processes that import torch themselves."""
    done = refused("import optimizer.search.portable.launch\n", {"kb", "optimizer"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module", ["optimizer.search.bench.local", "optimizer.search.runs.run_store"]
)
def test_importer_refuses_other_packages(module: str) -> None:
    """Check of the tests above: imports outside the core fail."""
    done = refused(f"import {module}\n", OWN)
    assert done.returncode != 0 and "refused: " in done.stderr
