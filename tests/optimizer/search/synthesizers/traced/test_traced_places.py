"""C++ kernels with data-dependent positions: sorts, scatters, running extremes, and special
functions, compared with torch on odd shapes, with NaN, and on empty inputs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.search.synthesizers.base import CaseView
from optimizer.search.synthesizers.traced.expression import Program
from optimizer.search.synthesizers.traced.synthesizer import lowered
from tests.optimizer.search.synthesizers.traced.test_traced_kernels import called
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=10)

HOLES = "torch.where(torch.rand(6, 77) < 0.1, float('nan'), torch.randn(6, 77))"
REDUCED = "('sum', 'prod', 'mean', 'amax', 'amin')"
# name -> body of the model, its inputs
MODELS = {
    "sorted": ("torch.sort(x)", ["torch.randn(8000)"]),
    "sorted with NaN": ("torch.sort(x, 1, True)[0]", [HOLES]),
    "equal ones": ("torch.sort(x, dim=0, stable=True)", ["torch.randint(-9, 9, (40, 7))"]),
    "short numbers": (
        "torch.sort(x.int(), dim=1, stable=True)",
        ["torch.randint(-9, 9, (4, 3000))"],
    ),
    "long numbers": ("torch.sort(x, dim=1)", ["torch.randn(4, 3000, dtype=torch.float64)"]),
    "halves": ("torch.sort(x, dim=1, stable=True)", ["torch.randn(4, 300).half()"]),
    "booleans": ("torch.sort(x, dim=1, stable=True)", ["torch.randn(4, 300) > 0"]),
    "greatest": ("torch.topk(x, 5)[0]", [HOLES]),
    "least of columns": ("torch.topk(x, 5, 0, False)", ["torch.randn(300, 9)"]),
    "third": ("torch.kthvalue(x, 3, 1, True)", ["torch.randn(5, 300)"]),
    "middle": (
        "torch.median(x, 1)[0], torch.median(y), torch.median(y, 1)[1]",
        [HOLES, "torch.randn(3, 9)"],
    ),
    "middle of numbers": (
        "torch.nanmedian(x, 1)[0], torch.nanmedian(x), torch.nanmedian(x * float('nan'), 0)[0]",
        [HOLES],
    ),
    "most frequent": (
        "torch.mode(x, 1)[0], torch.mode(x, 0, True)[0]",
        ["torch.randint(0, 9, (7, 50)).float()"],
    ),
    "running extremes": ("*torch.cummax(x, 1), *torch.cummin(x, 0)", [HOLES]),
    "running sums of exponentials": (
        "torch.logcumsumexp(x, 1), torch.logcumsumexp(x, 0)",
        ["torch.randn(9, 77) * 50"],
    ),
    "put": (
        "torch.scatter(x, 1, y, z), torch.scatter(x, 0, w, 2.5)",
        [
            "torch.randn(5, 9)",
            "torch.stack([torch.randperm(9)[:4] for _ in range(5)])",
            "torch.randn(5, 6)",
            "torch.randint(0, 5, (1, 3))",
        ],
    ),
    "added": (
        "torch.scatter_add(x, 0, y, z)",
        ["torch.randn(5, 900)", "torch.randint(0, 5, (60, 900))", "torch.randn(60, 900)"],
    ),
    "nothing added": (
        "torch.scatter_add(x, 0, y, z)",
        ["torch.randn(5, 9)", "torch.zeros(0, 9, dtype=torch.int64)", "torch.randn(0, 9)"],
    ),
    "halves added": (
        "torch.scatter_add(x, 0, y, z)",
        [
            "torch.randn(5, 9).bfloat16()",
            "torch.randint(0, 5, (60, 9))",
            "torch.randn(60, 9).bfloat16()",
        ],
    ),
    "combined": (
        f"tuple(torch.scatter_reduce(x, 1, y, z, h, include_self=s) for h in {REDUCED}"
        " for s in (True, False))",
        ["torch.randn(5, 9)", "torch.randint(0, 9, (5, 14))", "torch.randn(5, 14)"],
    ),
    "whole numbers combined": (
        "tuple(torch.scatter_reduce(x, 1, y, z, h, include_self=s) for h in ('prod', 'amax')"
        " for s in (True, False))",
        [
            "torch.randint(-9, 9, (5, 9))",
            "torch.randint(0, 9, (5, 14))",
            "torch.randint(-9, 9, (5, 14))",
        ],
    ),
    "rows": (
        "torch.index_add(x, 0, y, z, alpha=2), torch.index_copy(x, 0, w, z[:3])",
        [
            "torch.randn(50, 900)",
            "torch.randint(0, 50, (60,))",
            "torch.randn(60, 900)",
            "torch.randperm(50)[:3]",
        ],
    ),
    "rows combined": (
        f"tuple(torch.index_reduce(x, 1, y, z, h, include_self=s) for h in {REDUCED}[1:]"
        " for s in (True, False))",
        ["torch.randn(5, 9)", "torch.randint(0, 9, (14,))", "torch.randn(5, 14)"],
    ),
    "from the end": (
        "torch.index_put(x, (y,), z), torch.index_put(x, (y, y), z[:, 0], accumulate=True)",
        ["torch.randn(9, 9)", "torch.tensor([3, -1, 5])", "torch.randn(3, 9)"],
    ),
    "flat": (
        "torch.put(x, y, z, accumulate=True)",
        ["torch.randn(5, 9)", "torch.randint(-45, 45, (2, 7))", "torch.randn(2, 7)"],
    ),
    "strided": (
        "torch.as_strided_scatter(x, y, (2, 3), (1, 4), 3)",
        ["torch.randn(5, 9)", "torch.randn(2, 3)"],
    ),
    "parts of floats": ("torch.frexp(x)", ["torch.randn(5, 9) * 100"]),
    "polynomials": (
        "tuple(getattr(torch.special, name)(x, y) for name in ("
        "'chebyshev_polynomial_t', 'chebyshev_polynomial_u', 'chebyshev_polynomial_v', "
        "'chebyshev_polynomial_w', 'hermite_polynomial_h', 'hermite_polynomial_he', "
        "'laguerre_polynomial_l', 'legendre_polynomial_p'))",
        [
            "torch.cat([torch.randn(40) * 2, torch.tensor([1.0, -1, 0])])",
            "torch.randint(-2, 9, (43,)).float()",
        ],
    ),
    "special": (
        "torch.special.erfcx(x), torch.special.spherical_bessel_j0(x)",
        [
            "torch.cat([torch.randn(400) * 3, torch.tensor([0.0, 30, 100, 1e9, -3, "
            "float('inf'), float('nan'), 1e-6])])"
        ],
    ),
    "places of a pooling": (
        "F.max_pool2d(x, 3, 2, 1, return_indices=True)"
        " + F.adaptive_max_pool2d(x, (3, 4), return_indices=True)",
        ["torch.randn(2, 3, 9, 11)"],
    ),
}


def case_of(forward: str, inputs: list[str]) -> tuple[CaseView, list[torch.Tensor], list[object]]:
    """The case, its inputs, and torch's result."""
    names = ", ".join("xyzw"[: len(inputs)])
    source = model_text(forward, ", ".join(inputs), takes=names)
    module: dict[str, object] = {}
    exec(compile(source, "problem", "exec"), module)
    torch.manual_seed(1)
    given = module["get_inputs"]()  # type: ignore[operator]
    result = module["Model"]()(*given)  # type: ignore[operator]
    expected = list(result) if isinstance(result, tuple) else [result]
    specs = [
        TensorSpec(f"{role}{n}", role, str(t.dtype).removeprefix("torch."), tuple(t.shape))  # type: ignore[arg-type]
        for role, tensors in (("input", given), ("output", expected))
        for n, t in enumerate(tensors)
    ]
    case = CaseView("main", Signature(tuple(specs)), {}, True, None, {}, source)
    return case, given, expected


@pytest.mark.parametrize("name", MODELS)
def test_kernel_scatters_and_sorts_as_torch_does(name: str, tmp_path: Path) -> None:
    case, given, expected = case_of(*MODELS[name])
    program = lowered(case)
    assert isinstance(program, Program), program
    for output, wanted in zip(called(case, program, given, tmp_path), expected, strict=True):
        torch.testing.assert_close(output, wanted, rtol=2e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    ("forward", "inputs", "reason"),
    [
        ("torch.sort(x)", ["torch.randn(3, 0)"], "an order of nothing"),
        ("torch.index_put(x, (y,), x[:1])", ["torch.randn(4, 3)", "torch.ones(4) > 0"], "a mask"),
    ],
)
def test_unsupported_operator_is_named(forward: str, inputs: list[str], reason: str) -> None:
    case, _, _ = case_of(forward, inputs)
    problem = lowered(case)
    assert isinstance(problem, str) and reason in problem
