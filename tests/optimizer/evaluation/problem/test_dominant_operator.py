"""The subject of a problem whose file names only a minor operator."""

from pathlib import Path

import pytest
import torch

from optimizer.evaluation.problem.check import check_problem, distrust
from optimizer.evaluation.problem.load import guess_op, load_problem
from optimizer.evaluation.problem.operators import reference_cost
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


# -- operators unknown to torch's counter

BATCH, STEPS, IN, HIDDEN = 3, 7, 5, 11


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_are_counted(kind: str, gates: int) -> None:
    model = getattr(torch.nn, kind)(IN, HIDDEN, 2, bidirectional=True, batch_first=True)
    first, second = IN + HIDDEN, 2 * HIDDEN + HIDDEN
    expected = 2 * BATCH * STEPS * 2 * gates * HIDDEN * (first + second)
    with torch.no_grad():
        assert reference_cost(lambda: model(torch.ones(BATCH, STEPS, IN))).flops == expected
    assert guess_op(f"class Model:\n    def __init__(self):\n        self.r = nn.{kind}(1, 2)") == (
        "recurrent"
    )


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_products_are_counted_by_elements() -> None:
    matrix, dense = torch.zeros(8, 8), torch.ones(8, 5)
    matrix[0, :3] = 1
    csr, coo = matrix.to_sparse_csr(), matrix.to_sparse()
    assert reference_cost(lambda: csr @ dense).flops == 2 * 3 * 5
    assert reference_cost(lambda: torch.sparse.mm(coo, dense)).flops == 2 * 3 * 5
    assert reference_cost(lambda: coo @ dense[:, 0]).flops == 2 * 3
    assert reference_cost(lambda: matrix @ dense).flops == 2 * 8 * 8 * 5


MODES = model_text(
    "{result}",
    "torch.randn(400, 16)",
    init="self.d, self.bn, self.none = nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Dropout(0.0)"
    "\n{mode}",
)


def _file(folder: Path, mode: str = "pass", result: str = "self.bn(self.d(x))") -> Path:
    path = folder / "modes.py"
    path.write_text(MODES.format(mode=mode, result=result), encoding="utf-8")
    return path


def test_modules_that_differ_in_training_are_named(tmp_path: Path) -> None:
    warnings = [f.message for f in check_problem(load_problem(_file(tmp_path)))]
    named = [message for message in warnings if "d (Dropout), bn (BatchNorm1d)" in message]
    assert named and "none" not in named[0]
    in_eval_mode = check_problem(load_problem(_file(tmp_path, "self.eval()")))
    assert not any("eval mode" in fault.message for fault in in_eval_mode)


def test_search_reports_invalid_problem_first(tmp_path: Path) -> None:
    good = distrust(load_problem(_file(tmp_path, "self.eval()", "self.bn(x)")))
    assert good == []
    zeros = distrust(load_problem(_file(tmp_path, "self.eval()", "self.bn(x) * 0")))
    assert any(
        "cannot be trusted" in output and "the same everywhere" in output for output in zeros
    )
