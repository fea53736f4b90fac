"""Every rule on a small model: the same result, fewer operators, readable source."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from optimizer.search.synthesizers.compiler.configurations import rewritten_bundle
from optimizer.search.synthesizers.compiler.rewrites.rules import RULES, variants
from optimizer.search.synthesizers.compiler.rewrites.trace import (
    NoSymbolicGraph,
    SymbolicGraph,
    operators,
    trace,
)
from tests.optimizer.search.synthesizers.compiler.small_models import (
    applied,
    loaded,
    model,
    same_result,
)
from tests.optimizer.search.synthesizers.compiler.test_weight_rewrites import WEIGHT_CASES

pytestmark = pytest.mark.slow(seconds=5)

SQUARE = "torch.randn(2, 4, 6), torch.randn(2, 4, 6), torch.randn(2, 4, 6)"
LONG = "torch.randn(64, 4), torch.randn(4, 64), torch.randn(64, 3)"
FLAT = "torch.randn(3, 64), torch.randn(64, 4), torch.randn(4, 64)"
SCALE = "self.scale = nn.Parameter(torch.rand(8) + 0.5); self.eps = 1e-5"
CENTRED = "m = x.mean(-1, keepdim=True)\n"
IMAGES = "self.conv = nn.Conv2d(3, 4, 3)"
HIDING = "self.l = nn.Linear(8, 8); self.l.table = torch.arange(16)"
SOFTMAX = (
    "e = torch.exp(x - x.max(dim=-1, keepdim=True)[0])\nreturn e / e.sum(dim=-1, keepdim=True)"
)
CAUSAL = (
    "n = x.size(-1)\nmask = torch.triu(torch.ones(n, n, device=x.device), diagonal=1).bool()\n"
    "return x.masked_fill(mask, float('-inf'))"
)
BUFFERS = (
    "self.a = torch.arange(24.0).view(3, 8); "
    "self.register_buffer('b', torch.ones(8), persistent=False)"
)
RULE_CASES = [
    ("idle_module", model("return torch.exp(self.d(x))", init="self.d = nn.Dropout(0.5)"), 2, 1),
    ("idle_module", model("return torch.exp(F.dropout(x, 0.5, self.training))"), 2, 1),
    ("neutral_number", model("return torch.exp(0 + x) - 0"), 3, 1),
    ("done_twice", model("return torch.exp(x) * torch.exp(x)"), 3, 2),
    ("neutral_number", model("return torch.exp(x * 1.0) / 1"), 3, 1),
    ("twice_undone", model("return torch.exp(x.transpose(0, 1).transpose(-1, -2))"), 3, 1),
    ("twice_undone", model("return x.permute(1, 0).permute(1, 0).exp()"), 3, 1),
    ("same_again", model("return x.float().float().contiguous().contiguous()"), 4, 2),
    ("needless_copy", model("return torch.exp(x).clone().sum(-1)"), 3, 2),
    ("same_shape", model("return x.view(x.shape).exp()"), 2, 1),
    ("numbers_together", model("return (x * 2.0) * 3.0 + 1.0 + 2.0"), 4, 2),
    ("softmax", model(SOFTMAX), 5, 1),
    ("softmax", model("e = x.exp()\nreturn e / e.sum(-1, keepdim=True)"), 3, 1),
    ("log_softmax", model("return torch.log(F.softmax(x, dim=-1))"), 2, 1),
    ("log_softmax", model("return x - torch.logsumexp(x, -1, keepdim=True)"), 2, 1),
    ("logsumexp", model("return torch.log(torch.exp(x).sum(dim=1))"), 3, 1),
    (
        "rms_norm",
        model(
            "y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)\n"
            "return y * self.scale",
            init=SCALE,
        ),
        6,
        1,
    ),
    ("rms_norm", model("return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)"), 5, 1),
    (
        "layer_norm",
        model(
            CENTRED + "c = x - m\nv = (c * c).mean(dim=-1, keepdim=True)\n"
            "return c / torch.sqrt(v + self.eps) * self.scale + self.scale",
            init=SCALE,
        ),
        9,
        1,
    ),
    (
        "layer_norm",
        model(
            CENTRED + "v = x.var(dim=-1, keepdim=True, unbiased=False)\n"
            "return (x - m) * torch.rsqrt(v + 1e-5)"
        ),
        6,
        1,
    ),
    ("gelu", model("return 0.5 * x * (1 + torch.erf(x / math.sqrt(2.0)))"), 5, 1),
    ("silu", model("return x * torch.sigmoid(x)"), 2, 1),
    (
        "attention",
        model("s = x @ y.transpose(-2, -1) / 2.0\nreturn torch.softmax(s, -1) @ z", SQUARE),
        5,
        1,
    ),
    (
        "attention",
        model(
            "s = torch.matmul(x, y.transpose(1, 2)) * x.size(-1) ** -0.5\n"
            "return torch.matmul(F.softmax(s + 0.25 * x @ y.mT, dim=-1), z)",
            SQUARE,
        ),
        9,
        4,
    ),
    (
        "merged_products",
        model(
            "return torch.stack([x[0] @ y[0], x[1] @ y[1]])",
            "torch.randn(2, 3, 4), torch.randn(2, 4, 5)",
        ),
        3,
        1,
    ),
    (
        "linear",
        model(
            "return x @ self.w.t() + self.b",
            init="self.w = nn.Parameter(torch.randn(3, 8)); self.b = nn.Parameter(torch.randn(3))",
        ),
        3,
        1,
    ),
    ("added_product", model("return torch.bmm(x, y.mT) + z", SQUARE.replace("6)", "4)")), 2, 1),
    ("common_factor", model("return x * y + x * z", "*torch.randn(3, 5, 8)"), 3, 2),
    ("kept_constant", model(CAUSAL, "torch.randn(2, 5, 5)"), 4, 1),
    ("kept_constant", model("return x * torch.arange(8).float().div(8).exp()"), 5, 1),
    ("kept_constant", model("return x + (self.a * self.b).sum(0)", init=BUFFERS), 3, 1),
]


@pytest.mark.parametrize(("rule", "source", "before", "after"), RULE_CASES)
def test_rule_removes_operators_and_preserves_result(
    rule: str, source: str, before: int, after: int
) -> None:
    rewritten = applied(source, rule)
    assert rewritten is not None and rewritten.names == (rule,)
    assert (rewritten.before, rewritten.after) == (before, after), rewritten.text.forward
    same_result(source, rewritten)


def test_every_rule_has_case() -> None:
    others = {"cheaper_order", "channels_last", *(case[0] for case in WEIGHT_CASES)}
    assert {rule.name for rule in RULES} == others | {case[0] for case in RULE_CASES}


@pytest.mark.parametrize(
    ("forward", "cheaper"), [("return (x @ y) @ z", "y, z"), ("return x @ (y @ z)", "x, y")]
)
def test_products_take_order_with_fewer_multiplications(forward: str, cheaper: str) -> None:
    inputs = LONG if cheaper == "y, z" else FLAT
    rewritten = applied(model(forward, inputs), "cheaper_order")
    assert rewritten is not None and f"torch.matmul({cheaper})" in rewritten.text.forward
    same_result(model(forward, inputs), rewritten)
    other = "return x @ (y @ z)" if cheaper == "y, z" else "return (x @ y) @ z"
    assert applied(model(other, inputs), "cheaper_order") is None


@pytest.mark.parametrize(
    ("forward", "inputs", "init"),
    [
        ("return x * (self.w + 1).exp()", "torch.randn(5, 8)", "self.w = nn.Parameter(x0)"),
        ("return x * (self.w + 1).exp()", "torch.randn(5, 8)", "self.register_buffer('w', x0)"),
        ("return x * torch.arange(y).exp()", "torch.randn(5, 8), 8", "pass"),
        ("return x * torch.randn(8).exp()", "torch.randn(5, 8)", "pass"),
        ("return torch.arange(8).float().exp().expand_as(x)", "torch.randn(5, 8)", "pass"),
        ("return x, torch.arange(8).float().exp()", "torch.randn(5, 8)", "pass"),
        ("return self.r(torch.ones(8)) * x", "torch.randn(5, 8)", "self.r = nn.ReLU(True)"),
    ],
    ids=["parameter", "buffer", "number", "random", "view", "output", "overwritten"],
)
def test_variable_value_is_not_cached(forward: str, inputs: str, init: str) -> None:
    source = model(forward, inputs, init.replace("x0", "torch.ones(8)"))
    assert applied(source, "kept_constant") is None


def candidate_of(source: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    rewritten = applied(source, "kept_constant")
    assert rewritten is not None
    bundle = rewritten_bundle(source, rewritten.text, rewritten.names)
    return loaded(source, "Model")[0], loaded(bundle.source, "ModelNew")[0]


def test_cached_constant_is_remade_for_another_size_or_dtype() -> None:
    reference, candidate = candidate_of(
        model("return x + torch.arange(x.size(-1), dtype=x.dtype).exp()")
    )
    for x in (torch.randn(3, 8), torch.randn(3, 4), torch.randn(3, 4).double()):
        result = candidate(x)
        assert result.dtype == x.dtype and torch.equal(result, reference(x))


def test_cached_constant_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, candidate = candidate_of(model("return x + torch.arange(x.size(-1)).exp()"))
    calls: list[tuple[Any, ...]] = []
    arange = torch.arange

    def counted(*args: Any, **named: Any) -> torch.Tensor:
        calls.append(args)
        return arange(*args, **named)

    monkeypatch.setattr(torch, "arange", counted)
    for _ in range(3):
        candidate(torch.randn(3, 8))
    assert calls == [(8,)]


@pytest.mark.parametrize("change", ["written", "replaced", "written in inference mode"])
def test_cached_constant_follows_its_source_tensors(change: str) -> None:
    with torch.inference_mode("inference" in change):
        follows(change)


def follows(change: str) -> None:
    models = candidate_of(model("return x + (self.a * self.b).sum(0)", init=BUFFERS))
    x = torch.randn(5, 8)
    before = models[1](x)
    for each in models:
        stored = each.a
        assert isinstance(stored, torch.Tensor)
        if "written" in change:
            stored.mul_(2)
        else:
            each.a = stored * 2
    after = models[1](x)
    assert torch.equal(after, models[0](x)) and not torch.equal(after, before)


def test_tensors_made_by_forward_are_written_out() -> None:
    """Tracing stores them as attributes, which the candidate would lack."""
    source = model("return (x + torch.arange(8)) * 1.0")
    rewritten = applied(source, "neutral_number")
    assert rewritten is not None and "torch.arange(8)" in rewritten.text.forward
    same_result(source, rewritten)


def test_unnamed_tensors_leave_no_graph() -> None:
    traced = trace(model("return (x + self.l.table[:8]) * 1.0", init=HIDING))
    assert isinstance(traced, NoSymbolicGraph) and "no name" in traced.reason


def test_other_threads_make_tensors_during_tracing() -> None:
    with ThreadPoolExecutor(1) as other:
        tracing = other.submit(lambda: [trace(model(f"return x + {n}")) for n in range(30)])
        while not tracing.done():
            assert type(torch.zeros(2)) is torch.Tensor
    assert all(isinstance(traced, SymbolicGraph) for traced in tracing.result())


# -- modules that overwrite their argument


OVERWRITES = "self.r = nn.ReLU(inplace=True)"


def test_overwritten_results_stay_separate() -> None:
    forward = "a = self.r(x - 1.0)\nreturn a + (x - 1.0)"
    assert applied(model(forward, init=OVERWRITES), "done_twice") is None
    forward = "return self.r((x - 1.0).clone()) + 1.0"
    assert applied(model(forward, init=OVERWRITES), "needless_copy") is None
    traced = trace(model("y = x - 1.0\nz = self.r(y)\nreturn z + y", init=OVERWRITES))
    assert isinstance(traced, NoSymbolicGraph) and "place" in traced.reason


def test_rounded_quotients_are_not_combined() -> None:
    forward = "return torch.div(torch.div(x, 3.0, rounding_mode='floor'), 2.0)"
    assert applied(model(forward), "numbers_together") is None


def test_convolution_inputs_become_channels_last() -> None:
    source = model("return self.conv(x).relu()", "torch.randn(2, 3, 8, 8)", IMAGES)
    rewritten = applied(source, "channels_last")
    assert rewritten is not None and rewritten.text.forward.count("channels_last") == 1
    same_result(source, rewritten)


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.relu(x)",
        "e = x.exp()\nreturn e / e.sum(0, keepdim=True).sum(1, keepdim=True)",
        "return x * torch.sigmoid(x + 1)",
        "return x.clone()",
        "return x * torch.rsqrt((x * x).mean(0, keepdim=True) + 1e-6)",
        "return x.transpose(0, 1).transpose(0, 0)",
    ],
)
def test_similar_patterns_are_unchanged(forward: str) -> None:
    traced = trace(model(forward))
    assert isinstance(traced, SymbolicGraph) and variants(traced) == []


def test_parts_with_other_uses_are_not_replaced() -> None:
    forward = "g = torch.sigmoid(x)\nreturn x * g, g"
    assert applied(model(forward), "silu") is None


def test_graph_with_writes_in_place_is_unchanged() -> None:
    traced = trace(model("y = x.clone()\ny += 1\nreturn y * 1.0"))
    assert isinstance(traced, NoSymbolicGraph) and "place" in traced.reason


def test_value_dependent_forward_has_no_graph() -> None:
    traced = trace(model("return x if x.sum() > 0 else -x"))
    assert isinstance(traced, NoSymbolicGraph)


def test_numbers_of_model_stay_attributes() -> None:
    rewritten = applied(model("return (x * 1.0) * self.eps"), "neutral_number")
    assert rewritten is not None and "self.eps" in rewritten.text.forward
    same_result(model("return (x * 1.0) * self.eps"), rewritten)


def test_rewrite_does_not_change_source_graph() -> None:
    traced = trace(model(SOFTMAX))
    assert isinstance(traced, SymbolicGraph)
    before = operators(traced.graph.graph)
    assert variants(traced) == variants(traced)
    assert operators(traced.graph.graph) == before == 5
