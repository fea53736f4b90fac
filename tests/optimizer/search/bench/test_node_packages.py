"""Packages that a node of a cluster needs for searches, as listed in docs/several-machines.md."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.places import ROOT

NEEDED = {"torch", "numpy", "pydantic", "google-re2"}  # in addition to Ray, and Triton on a GPU
PROGRAM = """\
import sys
sys.modules.update(dict.fromkeys({modules!r}))  # None: an import of it fails
import optimizer.search.bench.on_node, optimizer.evaluation.diagnose
import optimizer.evaluation.runner.__main__, optimizer.evaluation.toolchains.registry
"""


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


@pytest.mark.slow(seconds=6)
def test_searching_node_imports_four_of_dependencies(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    dependencies = {_name(line) for line in project["dependencies"]}
    assert dependencies >= NEEDED
    absent = dependencies - NEEDED
    modules = {
        module
        for module, owners in packages_distributions().items()
        if {owner.lower() for owner in owners} & absent and module.isidentifier()
    }
    assert {"sqlalchemy", "structlog", "typer", "chromadb"} <= modules
    program = PROGRAM.format(modules=sorted(modules))
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-800:]
    stated = (ROOT / "docs" / "several-machines.md").read_text(encoding="utf-8")
    assert all(name in stated for name in NEEDED)
