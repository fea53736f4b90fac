"""Recipes in contexts are sources that a compiler accepts."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from retrieval.compose.kernels import with_defaults

LIBRARY = Path(__file__).parents[2] / "skills" / "library"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
@pytest.mark.parametrize("name", ["cpp-address-by-value-map-id", "cpp-fused-row-softmax"])
def test_cpp_recipe_compiles_as_printed(name: str) -> None:
    folder = LIBRARY / name
    body = json.loads((folder / "references" / "recipe.json").read_text())
    source = with_defaults(body, (folder / body["template"]).read_text())
    command = ["g++", "-std=c++17", "-fopenmp", "-fsyntax-only", "-x", "c++", "-"]
    compiled = subprocess.run(command, input=source, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
