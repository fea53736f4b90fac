"""Work moved from activations into weights: the same result, and nothing without a gain."""

from __future__ import annotations

import pytest

from tests.optimizer.search.synthesizers.compiler.small_models import applied, model, same_result

IMAGE = "torch.randn(2, 3, 12, 12)"
ROWS = "torch.randn(64, 8)"
PAIR = "self.a = nn.Linear(8, 64{}); self.b = nn.Linear(64, 8{})"
NO_BIAS = ", bias=False"
TWO_LAYERS = "return self.b(self.a(x))"
NORMED = "return self.norm(self.layer(x)).relu()"
SEPARABLE = "nn.Conv2d(3, 6, 3, padding='same', groups=3, bias=False)"
WEIGHT_CASES = [
    ("linear_twice", model(TWO_LAYERS, ROWS, PAIR.format("", "")), "torch.matmul"),
    ("linear_twice", model(TWO_LAYERS, ROWS, PAIR.format("", NO_BIAS)), "torch.mv"),
    ("linear_twice", model(TWO_LAYERS, ROWS, PAIR.format(NO_BIAS, NO_BIAS)), "torch.matmul"),
    (
        "norm_in_weights",
        model(NORMED, IMAGE, "self.layer = nn.Conv2d(3, 4, 3); self.norm = nn.BatchNorm2d(4)"),
        "conv2d",
    ),
    (
        "norm_in_weights",
        model(
            NORMED, IMAGE, f"self.layer = {SEPARABLE}; self.norm = nn.BatchNorm2d(6, affine=False)"
        ),
        "conv2d",
    ),
    (
        "norm_in_weights",
        model(NORMED, ROWS, "self.layer = nn.Linear(8, 16); self.norm = nn.BatchNorm1d(16)"),
        "linear",
    ),
    ("scale_in_weights", model("return self.l(x) * 0.5", ROWS, "self.l = nn.Linear(8, 4)"), "mul"),
    (
        "scale_in_weights",
        model("return self.l(x) / self.t", IMAGE, "self.l = nn.Conv2d(3, 4, 3); self.t = 3.0"),
        "self.t",
    ),
    (
        "scale_in_weights",
        model(
            "return self.g * F.linear(x, self.w)",
            ROWS,
            "self.w = nn.Parameter(torch.randn(4, 8)); self.g = nn.Parameter(torch.randn(4))",
        ),
        "reshape",
    ),
]


@pytest.mark.parametrize(("rule", "source", "expected"), WEIGHT_CASES)
def test_work_moves_from_activations_to_weights(rule: str, source: str, expected: str) -> None:
    rewritten = applied(source, rule)
    assert rewritten is not None and rewritten.names == (rule,)
    assert expected in rewritten.text.forward and not rewritten.text.kept
    same_result(source, rewritten)


@pytest.mark.parametrize(
    ("forward", "inputs", "init"),
    [
        (TWO_LAYERS, "torch.randn(4, 8)", PAIR.format("", "")),
        ("y = self.a(x)\nreturn self.b(y), y", ROWS, PAIR.format("", "")),
        ("return self.b(self.a(x).relu())", ROWS, PAIR.format("", "")),
        ("return self.a(x) * 0.5", "torch.randn(4, 8)", PAIR.format("", "")),
        ("return self.a(x) * x.sum()", ROWS, PAIR.format("", "")),
        (
            NORMED,
            "torch.randn(64, 16, 8)",
            "self.layer = nn.Linear(8, 4); self.norm = nn.BatchNorm1d(16)",
        ),
        (
            NORMED,
            IMAGE,
            "self.layer = nn.Conv2d(3, 4, 3); "
            "self.norm = nn.BatchNorm2d(4, track_running_stats=False)",
        ),
        (
            NORMED,
            IMAGE,
            "self.layer = nn.Conv2d(3, 4, 3); self.norm = nn.BatchNorm2d(4); "
            "self.norm.train = lambda mode=True: self.norm",  # stays in training
        ),
    ],
)
def test_weights_are_unchanged_without_gain_or_equality(
    forward: str, inputs: str, init: str
) -> None:
    rules = {case[0] for case in WEIGHT_CASES}
    assert applied(model(forward, inputs, init), *rules) is None


def test_one_layer_takes_all_foldable_work() -> None:
    source = model(TWO_LAYERS + " * 0.5", ROWS, PAIR.format("", ""))
    rewritten = applied(source, "linear_twice", "scale_in_weights")
    assert rewritten is not None and rewritten.names == ("linear_twice", "scale_in_weights")
    assert rewritten.text.forward.count("functional.linear(") == 1
    same_result(source, rewritten)


def test_scale_after_folded_norm_is_folded_too() -> None:
    init = "self.layer = nn.Conv2d(3, 4, 3, stride=2); self.norm = nn.BatchNorm2d(4)"
    source = model("return self.norm(self.layer(x)) * 2.0", "torch.randn(2, 3, 32, 32)", init)
    rewritten = applied(source, "norm_in_weights", "scale_in_weights")
    assert rewritten is not None and rewritten.names == ("norm_in_weights", "scale_in_weights")
    same_result(source, rewritten)


# -- constants
