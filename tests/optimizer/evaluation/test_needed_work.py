"""The part of the inputs that a result depends on, and the minimum work that follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.evaluation.correctness.prepared import PreparedProblem
from optimizer.evaluation.needed_work import dependence, least_share, needed_read_bytes
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.settings import EvaluationSettings
from tests.problem_files import model_text

pytestmark = pytest.mark.slow

SOURCE = model_text(
    "{result}", "torch.randn(n, 1024), torch.randn(1024)", takes="x, y", head="n = 256"
)
TABLE = model_text(
    "self.table(x)",
    "torch.randint(0, 100_000, (16,))",
    init="self.table = torch.nn.Embedding(100_000, 8)",
)
BYTES = 4 * (256 * 1024 + 1024)


def opened(folder: Path, result: str) -> OpenCase:
    path = folder / "problem.py"
    path.write_text(SOURCE.replace("{result}", result), encoding="utf-8")
    problem = load_problem(path)
    return OpenCase(problem, problem.cases[0])


@pytest.mark.parametrize(
    "result",
    [
        "x + y",
        "x.amax(dim=1)",  # changing all but one of a row has no effect, but all must be read
        "torch.where(x > 0, 1.0, 0.0)",
        "torch.arange(9.0)[(x.sigmoid() * 9).long()]",  # only values in its range can be tried
        "torch.special.entr(x.sigmoid())",
        "x.sort(dim=1).values[:, :8]",
    ],
)
def test_inputs_that_matter_everywhere_must_be_read_whole(tmp_path: Path, result: str) -> None:
    needed = needed_read_bytes(opened(tmp_path, result), "cpu", seed=1)
    assert needed == 4 * 256 * 1024  # y is too small to be tried


@pytest.mark.parametrize(
    ("result", "share"), [("x[::4] + y", 0.25), ("x[:8] * 2", 0.03), ("x[:, :256] * 2", 0.25)]
)
def test_elements_outside_slice_need_not_be_read(tmp_path: Path, result: str, share: float) -> None:
    needed = needed_read_bytes(opened(tmp_path, result), "cpu", seed=1)
    assert 0.5 * share * BYTES - 4096 < needed <= 1.2 * share * BYTES


def test_unused_weights_need_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text(TABLE, encoding="utf-8")
    problem = load_problem(path)
    needed = needed_read_bytes(OpenCase(problem, problem.cases[0]), "cpu", seed=1)
    assert needed < 4 * 100_000 * 8 / 4


def test_case_that_skips_most_inputs_has_less_work(tmp_path: Path) -> None:
    opened_case = opened(tmp_path, "x[:8] * 2")
    prepared = PreparedProblem(opened_case.problem, "cpu", EvaluationSettings())
    whole, needed = prepared.work(opened_case.case), prepared.needed_work(opened_case.case)
    assert whole.read_bytes == BYTES and whole.needed_read_bytes is None
    assert needed.needed_read_bytes == 4 * 8 * 1024 and needed.written_bytes == whole.written_bytes


def test_output_that_may_be_a_view_moves_no_bytes(tmp_path: Path) -> None:
    for result, viewed in (("x[:, ::4].t()", 256 * 256), ("x[:8] * 1", 0), ("x.half()", 0)):
        case = opened(tmp_path, result)
        prepared = PreparedProblem(case.problem, "cpu", EvaluationSettings())
        work = prepared.needed_work(case.case)
        assert work.view_bytes == 4 * viewed
        assert work.needed_read_bytes == 0 if viewed else work.needed_read_bytes


def test_share_is_the_lower_bound_of_an_interval() -> None:
    assert least_share(24, 24) == 1.0
    assert least_share(0, 24) == 0.0
    assert 0.3 < least_share(12, 24) < 0.5


PRODUCTS = """
import torch
import torch.nn.functional as F

i = torch.arange(64)
near = (i[:, None] - i).abs() < 4


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        {body}


def get_inputs():
    return [torch.{draw} for _ in range(3)]


def get_init_inputs():
    return []
"""
PAIRS, NEAR = 64 * 64, 64 * 7 - 2 * (3 + 2 + 1)
FUSED = "return F.scaled_dot_product_attention(q, k, v, "


def products(folder: Path, body: str, draw: str = "randn(2, 64, 16)") -> OpenCase:
    path = folder / "products.py"
    path.write_text(PRODUCTS.replace("{body}", body).replace("{draw}", draw), encoding="utf-8")
    problem = load_problem(path)
    return OpenCase(problem, problem.cases[0])


@pytest.mark.parametrize(
    ("body", "pairs"),
    [
        (f"{FUSED})", PAIRS),
        (f"{FUSED}is_causal=True)", 64 * 65 // 2),
        (f"{FUSED}attn_mask=near)", NEAR),
        (f"{FUSED}attn_mask=torch.where(near, 0.0, -65536.0))", NEAR),
        (f"{FUSED}attn_mask=near)[:, :1]", 4),
        ("return (q @ k.mT).masked_fill(~near, -torch.inf).softmax(-1) @ v", NEAR),
        ("return (q @ k.mT - 1e9 * ~near).softmax(-1) @ v", NEAR),
        ("return (q @ k.mT).tril() @ v", 64 * 65 // 2),
        ("return torch.einsum('btd,bsd->bts', q, k).tril() @ v", 64 * 65 // 2),
    ],
)
def test_only_admitted_pairs_are_needed(tmp_path: Path, body: str, pairs: int) -> None:
    case = products(tmp_path, body)
    assert case.flops == 2 * 2 * PAIRS * 2 * 16
    found = dependence(case, "cpu", 1, 1e-6).operations
    assert found is not None and found.certain == 0
    # The softmax of a row with one admitted pair does not depend on it.
    assert found.needed == pytest.approx(2 * 2 * pairs * 2 * 16, rel=1e-3)
    assert found.fewest <= found.needed


@pytest.mark.parametrize(
    ("body", "draw"),
    [
        ("return q.float() @ k.float().mT", "randint(-3, 3, (64, 64))"),  # no derivative
        ("return (q @ k.mT).argmax(-1)", "randn(64, 64)"),
        ("with torch.no_grad():\n            p = q @ k\n        return p + v", "randn(64, 64)"),
        ("return (q.detach() @ k.detach()) + v @ v[:, :1]", "randn(64, 64)"),
    ],
)
def test_dependence_invisible_to_autograd_is_not_counted(
    tmp_path: Path, body: str, draw: str
) -> None:
    case = products(tmp_path, body, draw)
    assert case.flops >= 2 * 64**3
    assert dependence(case, "cpu", 1, 1e-6).operations is None


def test_graph_beyond_memory_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = products(tmp_path, "return q @ k.mT")
    monkeypatch.setattr("optimizer.evaluation.needed_work.free_memory", lambda: 100_000)
    assert dependence(case, "cpu", 1, 1e-6) == (None, (0, 0, 0), frozenset())


@pytest.mark.parametrize(
    ("body", "certain"),
    [
        ("return q @ k", 1.0),
        ("return torch.tanh(q @ k.mT / 64) * 2 + v", 1.0),
        ("return torch.addmm(v, q, k)", 1.0),
        ("return (q @ k).tril()", 65 / 128),
        ("return q @ q.mT", 0.5),
        ("return q @ k @ v", 0.0),
        ("return (q @ k).sum(1)", 0.0),
        ("return q @ k + v @ v", 0.0),  # an output of two products may be one of sums
        ("return q @ k[:1].expand(64, 64)", 0.0),
        ("return (q @ k)[:, :16].cumsum(0)", 0.0),
        ("return q @ torch.relu(k)", 0.0),
    ],
)
def test_only_product_of_inputs_bounds_every_algorithm(
    tmp_path: Path, body: str, certain: float
) -> None:
    found = dependence(products(tmp_path, body, "randn(64, 64)"), "cpu", 1, 0.0).operations
    assert found is not None and found.certain == int(0.5 * certain * 2 * 64**3)


def test_weights_known_to_kernel_need_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text(TABLE.replace("self.table(x)", "self.table.weight * x[0]"), encoding="utf-8")
    whole = load_problem(path)
    assert needed_read_bytes(OpenCase(whole, whole.cases[0]), "cpu", seed=1) == 4 * 8 * 100_000
    (tmp_path / "problem.toml").write_text('[policy]\nweights = "frozen"\n')
    frozen = load_problem(path)
    assert needed_read_bytes(OpenCase(frozen, frozen.cases[0]), "cpu", seed=1) == 0


def test_frozen_weights_are_equal_for_all_seeds(tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text(TABLE, encoding="utf-8")
    for policy, same in (("varying", False), ("frozen", True)):
        (tmp_path / "problem.toml").write_text(f'[policy]\nweights = "{policy}"\n')
        problem = load_problem(path)
        case = PreparedProblem(problem, "cpu", EvaluationSettings()).case(problem.cases[0])
        first, second = (case.values(seed).tensors[-1] for seed in (3, 4))
        assert first.equal(second) is same
