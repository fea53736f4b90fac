"""Recipes in contexts are sources that a compiler accepts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retrieval.compose.kernels import with_defaults

RECIPES = sorted(Path("skills/library").resolve().glob("*/references/recipe.json"))


def source_of(path: Path) -> tuple[str, str]:
    """The language and the source of a recipe as a context prints it."""
    body = json.loads(path.read_text(encoding="utf-8"))
    template = (path.parents[1] / body["template"]).read_text(encoding="utf-8")
    return body["language"], with_defaults(body, template)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_cpp_recipes_compile_as_printed() -> None:
    command = ["g++", "-std=c++17", "-fopenmp", "-march=native", "-fsyntax-only", "-x", "c++", "-"]
    failed = {}
    for path in RECIPES:
        language, source = source_of(path)
        if language == "cpp" and "amx" not in path.as_posix():
            compiled = subprocess.run(command, input=source, capture_output=True, text=True)
            if compiled.returncode:
                failed[path.parents[1].name] = compiled.stderr
    assert not failed


def test_python_recipes_define_every_name(tmp_path: Path) -> None:
    for path in RECIPES:
        language, source = source_of(path)
        if language != "cpp":
            (tmp_path / f"{path.parents[1].name}.py").write_text(source, encoding="utf-8")
    rules = ["check", "--isolated", "--no-cache", "--select", "F821,F823,E9", str(tmp_path)]
    checked = subprocess.run([sys.executable, "-m", "ruff", *rules], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
