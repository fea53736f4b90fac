"""Sizes of problems as conditions of skills read them, from references in many styles."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import problem_terms
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.operators import observe
from optimizer.evaluation.problem.spec import SIZES
from optimizer.search.bench.local import problem_view
from skills.format.skillfile import read_skill
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=6)
ROOT = Path(__file__).resolve().parents[4]
LIBRARY, PROBLEMS = ROOT / "skills" / "library", ROOT / "optimizer" / "problems"

LAYER = model_text(
    "self.down(F.gelu(self.up(x)))",
    "torch.rand(3, 5, 24)",
    init="self.up, self.down = nn.Linear(24, 96), nn.Linear(96, 8, bias=False)",
)
PAIRS = model_text(
    'torch.einsum("bij,bkj->bik", a, b)',
    "torch.rand(6, 10, 20), torch.rand(6, 30, 20)",
    takes="a, b",
)
WINDOWS = model_text(
    "F.max_pool2d(self.conv(x), 2, stride=3)",
    "torch.rand(2, 8, 30, 30)",
    init="self.conv = nn.Conv2d(8, 16, 3, stride=(1, 2), dilation=2, groups=4)",
)
MASKED = model_text(
    "F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
    "*(torch.rand(1, 2, n, 16) for n in (1, 40, 40)), torch.rand(1, 2, 1, 40) > 0.2",
    takes="q, k, v, mask",
)
INTEGERS = model_text("x.sum(-1)", "torch.arange(28).reshape(4, 7)")

KNOWN: dict[str, dict[str, float | str]] = {
    LAYER: {
        "rows": 15,
        "row_length": 24,
        "product_count": 1,
        "product_rows": 15,
        "product_columns": 96,
        "product_depth": 24,
        "product_narrow": 15,
    },
    PAIRS: {"product_count": 6, "product_rows": 10, "product_columns": 30, "product_depth": 20},
    WINDOWS: {"window_stride": 2, "window_dilation": 2, "channel_groups": 4},
    MASKED: {"query_length": 1, "key_length": 40, "attention_mask": "tensor"},
    INTEGERS: {"rows": 4, "row_length": 7},
}


@pytest.mark.parametrize("elsewhere", [False, True], ids=["run", "imagined"])
@pytest.mark.parametrize("source", KNOWN, ids=["layer", "pairs", "windows", "masked", "integers"])
def test_sizes_equal_those_of_reference(tmp_path: Path, source: str, elsewhere: bool) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source, encoding="utf-8")
    sizes = problem_view(load_problem(path), "cpu", elsewhere).main.quantities
    assert sizes.items() >= KNOWN[source].items()
    assert sizes.keys() <= SIZES <= problem_terms().quantities.keys()
    if source is INTEGERS:
        assert sizes == KNOWN[INTEGERS]


def applies(skill: str, problem: str, **signals: bool) -> bool | None:
    """Whether the shipped skill's condition holds for the main case of a shipped problem."""
    predicate = read_skill(LIBRARY / skill).metadata["kb.predicate"]
    view = problem_view(load_problem(PROBLEMS / problem), "cpu")
    quantities = {**view.main.quantities, "op": view.op}
    return compile_predicate(predicate).evaluate(Bindings(set(signals), problem=quantities)).value


@pytest.mark.parametrize(
    ("skill", "fits", "does_not"),
    [
        ("triton-split-k-skinny-matmul", "skinny_matmul", "matmul_bias_gelu"),
        ("cpp-weight-stream-skinny-matmul", "skinny_matmul", "matmul_bias_gelu"),
        ("cpp-packed-panel-matmul-gelu", "matmul_bias_gelu", "skinny_matmul"),
        ("triton-phase-split-conv-transpose2d", "conv_transpose2d", "conv1d"),
        ("triton-shifted-products-conv1d", "conv1d", "depthwise_conv2d"),
    ],
)
def test_shipped_skill_applies_as_its_text_says(skill: str, fits: str, does_not: str) -> None:
    assert applies(skill, fits) is True
    assert applies(skill, does_not) is False


def test_condition_on_unknown_sizes_excludes_nothing() -> None:
    texts = [read_skill(folder).metadata.get("kb.predicate") for folder in LIBRARY.iterdir()]
    predicates = [compile_predicate(text) for text in texts if text]
    sizes = problem_terms().quantities.keys()
    of_sizes = [p for p in predicates if not p.names().signals and sizes >= {*p.names().problem}]
    assert len(of_sizes) >= 15
    for predicate in of_sizes:
        assert predicate.evaluate(Bindings(set())).value is True, predicate.text


def test_model_that_converts_weights_is_inferred_without_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays without memory cannot be converted in a constructor."""
    (tmp_path / "mixed.py").write_text(
        model_text(
            "self.norm(self.up(x))",
            "torch.randn(256, 64).bfloat16()",
            init="self.up = nn.Linear(64, 128).bfloat16()\n"
            "self.norm = nn.BatchNorm1d(128).bfloat16()",
        )
    )
    problem = load_problem(tmp_path / "mixed.py")
    inferred = OpenCase(problem, problem.cases[0], shapes_only=True)
    monkeypatch.setattr(inferred, "reference", lambda *_, **__: pytest.fail("it was run"))
    real = OpenCase(problem, problem.cases[0])
    assert inferred.signature == real.signature and inferred.flops == real.flops > 0
    assert observe(inferred).kinds == observe(real).kinds
    assert real._model is inferred._model  # built once
    real.reference(*real.drawn(1))
