"""Products of float32 as generated Triton kernels: their results in Triton's interpreter, which are
generated, and the fallback of a search when they are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from optimizer.search.synthesizers.base import HardwareView, ProblemView
from optimizer.search.synthesizers.traced import triton, triton_products
from optimizer.search.synthesizers.traced.expression import Program
from optimizer.search.synthesizers.traced.synthesizer import LIBRARY, TracedSynthesizer, lowered
from tests.optimizer.search.synthesizers.compiler.proposals import context, evaluated
from tests.optimizer.search.synthesizers.traced import test_traced_triton

pytestmark = pytest.mark.slow(seconds=10)

pytest.importorskip("triton")

# name -> body of the model, shape of x, second input, layer
MODELS = {
    "linear": ("F.relu(self.l(F.gelu(x))) + y", "(70, 40)", "torch.randn(50)", "nn.Linear(40, 50)"),
    "gated": (
        "F.silu(self.l(x)) * y",
        "(3, 70, 40)",
        "torch.randn(3, 70, 50)",
        "nn.Linear(40, 50)",
    ),
    "read twice": (
        "self.l(x).tanh(), self.l(x).sum(0) * y",
        "(70, 40)",
        "torch.randn(50)",
        "nn.Linear(40, 50)",
    ),
    "batches": ("F.gelu(x @ y.mT * 0.1)", "(2, 3, 65, 40)", "torch.randn(2, 3, 33, 40)", "None"),
    "scores": ("torch.softmax(x @ x.mT * 0.1 + y, -1)", "(6, 64, 40)", "torch.randn(64)", "None"),
    "scaled": (
        "torch.baddbmm(y, x, x.mT, beta=0.5, alpha=0.2)",
        "(3, 65, 40)",
        "torch.randn(65)",
        "None",
    ),
    "odd": ("(x @ y).sin()", "(65, 37)", "torch.randn(37, 129) * 0.1", "None"),
    "odd, turned": ("(x.mT @ y.mT).sin()", "(64, 65)", "torch.randn(129, 64) * 0.1", "None"),
    "a part": ("(x[:, 1:] @ y).sin()", "(64, 65)", "torch.randn(64, 128) * 0.1", "None"),
    "infinite": (
        "x @ y",
        "(64, 64)",
        "torch.where(torch.eye(64) > 0, float('inf'), torch.ones(64, 64))",
        "None",
    ),
    "convolution": (
        "F.gelu(self.l(x)) * y",
        "(2, 5, 9, 10)",
        "torch.randn(10)",
        "nn.Conv2d(5, 40, 3, padding=1)",
    ),
    "in steps": (
        "F.gelu(self.l(x)).sum((2, 3)) + y",
        "(2, 5, 9, 11)",
        "torch.randn(40)",
        "nn.Conv2d(5, 40, (3, 2), stride=2, padding=(1, 0), dilation=(1, 2), bias=False)",
    ),
    "of one place": ("self.l(x) + y", "(3, 48, 70)", "torch.randn(70)", "nn.Conv1d(48, 40, 1)"),
    "three dimensions": (
        "self.l(x) + y",
        "(2, 4, 6, 7, 5)",
        "torch.randn(5)",
        "nn.Conv3d(4, 40, 3, padding=1)",
    ),
    "transposed": (
        "F.gelu(self.l(x)) * y",
        "(2, 37, 9, 10)",
        "torch.randn(12)",
        "nn.ConvTranspose2d(37, 40, (1, 3))",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def small_ones() -> Iterator[None]:
    """Generate products that are too small for a device too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MIN_TILES", "MIN_COPIED"):
            patch.setattr(triton_products, name, 1)
        for name, (forward, shape, second, layer) in MODELS.items():
            patch.setitem(test_traced_triton.MODELS, name, (forward, shape, second))
            patch.setitem(test_traced_triton.INIT, name, f"self.l = {layer}")
        yield


def source_of(name: str) -> triton.CandidateText:
    values = {**triton.DEFAULTS_WITH_TF32, "products": triton_products.WINDOWS_TOO}
    return test_traced_triton.text_of(name, values)


@pytest.fixture(scope="module")
def results(small_ones: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the interpreter."""
    folder = tmp_path_factory.mktemp("products")
    for name in MODELS:
        path = folder / f"{file_of(name)}.py"
        path.write_text(source_of(name).text, encoding="utf-8")
        _, given, _ = test_traced_triton.model_of(name)
        torch.save(given, path.with_suffix(".given"))
    test_traced_triton.interpreted(folder)
    return folder


def file_of(name: str) -> str:
    return name.replace(" ", "_").replace(",", "")


@pytest.mark.parametrize("name", MODELS)
def test_products_equal_model(name: str, results: Path) -> None:
    _, _, expected = test_traced_triton.model_of(name)
    made = torch.load(results / f"{file_of(name)}.result")
    for output, golden in zip(made, expected, strict=True):
        torch.testing.assert_close(output.double(), golden, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "kernels", "left"),
    [
        ("linear", 2, ()),  # the preceding part, and the product with the following part
        ("gated", 1, ()),
        ("scores", 2, ()),
        ("convolution", 1, ()),
    ],
)
def test_following_operators_are_fused_into_product(
    name: str, kernels: int, left: tuple[str, ...]
) -> None:
    source = source_of(name)
    assert (source.kernels, source.left) == (kernels, left)


def test_other_dtypes_and_few_tiles_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    case, _, _ = test_traced_triton.model_of("linear")
    program = lowered(case, LIBRARY)
    assert isinstance(program, Program)
    monkeypatch.setattr(triton_products, "MIN_TILES", 96)
    source = triton.write_candidate(
        [(case.signature, program)], case.source, triton.DEFAULTS_WITH_TF32
    )
    assert source.left == ("aten.addmm",)


@pytest.mark.parametrize(("lineage", "ours"), [(("h100", "nvidia"), True), (("amd",), False)])
def test_wrong_product_is_left_to_torch_in_next_proposal(
    lineage: tuple[str, ...], ours: bool
) -> None:
    case, _, _ = test_traced_triton.model_of("linear")
    problem = ProblemView("p", "matmul", "", case.source, (case,), {"library": "allowed"})
    hardware = HardwareView(lineage[0], lineage, "cuda", ("triton",), {})
    at = replace(context(problem), hardware=hardware)
    synthesizer = TracedSynthesizer()
    first = synthesizer.propose(at)
    assert first is not None and ("tf32x3" in first.bundle.source) == ours
    node = evaluated(1, first, 1.0)
    assert node.evaluation is not None
    node = replace(node, evaluation=replace(node.evaluation, validity="incorrect"))
    second = synthesizer.propose(replace(at, tried=[node]))
    assert (second is not None) == ours
    if second is not None:
        assert "tf32x3" not in second.bundle.source
