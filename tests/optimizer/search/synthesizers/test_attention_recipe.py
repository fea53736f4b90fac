"""The recipes of attention: where they fit, and that the Triton one is correct."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kb.hardware.table_reader import Problems
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.operators import traits_of
from optimizer.search.synthesizers.recipe.recipe import Binding, Recipe, filled, match, parse_recipe
from skills.format.skillfile import read_skill
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=8)

LIBRARY = Path(__file__).parents[4] / "skills" / "library"
NAME = "triton-online-softmax-attention"
IN_CPP = "cpp-row-block-causal-attention"
MODEL = model_text(
    "{call}", "torch.randn(2, 3, 37, 16) for _ in range(3)", takes="query, key, value"
)
CHECK = """
import torch
import torch.nn.functional as F
for length, width in ((37, 16), (64, 24), (5, 16)):
    q, k, v = (torch.randn(2, 3, length, width) for _ in range(3))
    torch.testing.assert_close(
        run(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal={causal}),
        atol=1e-4, rtol=1e-4,
    )
"""


def recipe(name: str = NAME) -> Recipe:
    files = {path: content.decode() for path, content in read_skill(LIBRARY / name).files.items()}
    problems = Problems(name)
    parsed = parse_recipe(name, json.loads(files["references/recipe.json"]), files, problems)
    assert parsed is not None, problems.entries
    return parsed


def bound(tmp_path: Path, call: str, name: str = NAME) -> object:
    path = tmp_path / "attention.py"
    path.write_text(MODEL.format(call=call), encoding="utf-8")
    problem = load_problem(path)
    case = OpenCase(problem, problem.cases[0])
    return match(recipe(name), case.signature, traits_of(case), {}, "attention")


@pytest.mark.parametrize(
    ("arguments", "causal"),
    [
        ("", False),
        (", is_causal=True", True),
        (", is_causal=True, scale=0.25", True),  # torch's default for a width of 16
        (", scale=0.5", None),
        (", attn_mask=torch.zeros(37, 37)", None),
    ],
)
def test_triton_recipe_fits_causal_or_no_mask_and_default_scale(
    tmp_path: Path, arguments: str, causal: bool | None
) -> None:
    result = bound(tmp_path, f"F.scaled_dot_product_attention(query, key, value{arguments})")
    assert isinstance(result, Binding) is (causal is not None)
    if isinstance(result, Binding):
        assert result.traits["causal"] is causal


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [("is_causal=True", True), ("is_causal=True, scale=0.5", False), ("scale=0.25", False)],
)
def test_cpp_recipe_fits_causal_mask_and_default_scale(
    tmp_path: Path, arguments: str, fits: bool
) -> None:
    call = f"F.scaled_dot_product_attention(query, key, value, {arguments})"
    assert isinstance(bound(tmp_path, call, IN_CPP), Binding) is fits


def test_decomposed_attention_is_not_matched(tmp_path: Path) -> None:
    """The trace does not show whether later keys are masked."""
    result = bound(tmp_path, "(query @ key.transpose(-1, -2)).softmax(-1) @ value")
    assert not isinstance(result, Binding)


@pytest.mark.skipif(sys.platform != "linux", reason="triton has wheels for Linux only")
def test_both_kernels_are_correct(tmp_path: Path) -> None:
    """In Triton's interpreter, also for lengths that are not a multiple of a block."""
    plain = recipe()
    values = {**plain.defaults, "tile_m": 64, "tile_n": 32}
    for causal in (True, False):
        text = filled(plain.template, {**values, "causal": causal}, "", python=True)
        module = tmp_path / f"kernel_{causal}.py"
        module.write_text(text + CHECK.format(causal=causal), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "import kernel_True, kernel_False"],
        cwd=tmp_path,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
