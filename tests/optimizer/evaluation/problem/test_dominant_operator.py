"""The subject of a problem whose file names only a minor operator."""

from pathlib import Path

import pytest

from optimizer.evaluation.problem.load import load_problem
from optimizer.search.bench.local import problem_view
from optimizer.search.synthesizers.base import ProblemView
from tests.problem_files import model_text

ROWS = "torch.randn(64, 512)"
NEAR = "torch.randn(64, 40), torch.randn(128, 40), torch.randint(0, 10, (128,))"
VOTES = (
    "near = (x[:, None] - y).abs().sum(-1).topk(4, largest=False).indices; "
    "return torch.zeros(64, 10).scatter_add(1, z[near], near.to(x.dtype))"
)


def view_of(folder: Path, forward: str, inputs: str, inner: str = "None") -> ProblemView:
    names = ", ".join("xyz"[: inputs.count("torch.rand")])
    text = model_text(forward, inputs, takes=names, init=f"self.inner = {inner}")
    (folder / "sent.py").write_text(text)
    return problem_view(load_problem(folder / "sent.py"), "cpu")


@pytest.mark.parametrize(
    ("forward", "inputs", "guessed", "mostly"),
    [
        pytest.param(VOTES, NEAR, "sort", "reduction", id="distances behind a vote"),
        pytest.param("return x.topk(8).values", ROWS, "sort", "", id="its own work"),
        pytest.param(
            "return torch.tanh(x.flip(0).cumsum(0).flip(0).abs() + 1)",
            ROWS,
            "scan",
            "",
            id="elementwise operators do not take over",
        ),
        pytest.param(
            "return x.gather(1, y)",
            f"{ROWS}, torch.randint(0, 512, (64, 512))",
            "gather",
            "",
            id="a gather",
        ),
        pytest.param(
            "return torch.logcumsumexp(x, 1).cummax(1).values", ROWS, "scan", "", id="scans"
        ),
        pytest.param(
            "return x * 2 + torch.maximum(x, x.sin())", ROWS, "elementwise", "", id="two of each"
        ),
        pytest.param("return x.erfinv()", ROWS, "unknown", "elementwise", id="nothing known"),
        pytest.param(
            "return x.square().median(1).values",
            ROWS,
            "unknown",
            "sort",
            id="nothing known but an order",
        ),
    ],
)
def test_work_decides_if_name_is_incidental(
    tmp_path: Path, forward: str, inputs: str, guessed: str, mostly: str
) -> None:
    view = view_of(tmp_path, forward, inputs)
    assert (view.op, view.mostly) == (guessed, mostly)


def test_products_of_a_module_with_unnamed_layers(tmp_path: Path) -> None:
    layer = "torch.nn.TransformerDecoderLayer(64, 4, 128, batch_first=True)"
    view = view_of(tmp_path, "return self.inner(x, x)", "torch.randn(8, 32, 64)", layer)
    assert (view.op, view.mostly) == ("unknown", "bmm")


def test_elementwise_operator_with_dominant_one(tmp_path: Path) -> None:
    view = view_of(tmp_path, "return self.inner(x) * 2", ROWS, "torch.nn.AdaptiveMaxPool1d(4)")
    assert (view.op, view.mostly) == ("elementwise", "pooling")


def test_declared_operator_takes_precedence(tmp_path: Path) -> None:
    (tmp_path / "sent.toml").write_text('op = "scatter"\n')
    assert (view_of(tmp_path, VOTES, NEAR).op, view_of(tmp_path, VOTES, NEAR).mostly) == (
        "scatter",
        "",
    )
