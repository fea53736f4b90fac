"""Names of arguments and scalars in the manifest of a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kb.errors import InvalidRequest
from kb.hardware.spec import ScalarSpec, ToolchainSpec
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.evaluate import problem_from_text
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Case
from optimizer.evaluation.toolchains.command import argument_names, scalar_values, write_manifest

NORM = Signature(
    (
        TensorSpec("x", "input", "float32", (4, 8)),
        TensorSpec("norm.weight", "parameter", "float32", (8,)),
        TensorSpec("output", "output", "float32", (4, 8)),
    )
)
PATTERNS = {"input": "in{index}", "weight": "w{number}", "output": "o{index}"}
PROBLEM = """
import torch
ROWS = 4
class Model(torch.nn.Module):
    def __init__(self, width, eps=1e-3):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width, eps=eps)
        self.scale = 2.5
    def forward(self, x):
        return self.norm(x) * self.scale
def get_inputs():
    return [torch.randn(ROWS, 8)]
def get_init_inputs():
    return [8]
"""


def chain(**stated: Any) -> ToolchainSpec:
    scalars = {
        n: ScalarSpec(v) if isinstance(v, str) else v for n, v in stated.pop("scalars", {}).items()
    }
    return ToolchainSpec(run="r {source} {input}", scalars=scalars, **stated)


def test_names_follow_patterns_with_single_ones_separate() -> None:
    assert argument_names(NORM, chain()) == ()
    assert argument_names(NORM, chain(arguments=PATTERNS)) == ("in0", "w1", "o0")
    single = {**PATTERNS, "single_output": "out", "weight": "{name}"}
    assert argument_names(NORM, chain(arguments=single)) == ("in0", "norm_weight", "out")
    only = chain(arguments={"output": "out{index}"})
    assert argument_names(NORM, only) == ("x", "norm.weight", "out0")


def test_two_tensors_of_one_name_are_refused() -> None:
    two = Signature((NORM.tensors[0], TensorSpec("x.", "input", "float32", (1,)), NORM.tensors[2]))
    same = chain(arguments={"input": "{name}"})
    assert argument_names(two, same) == ("x", "x_", "output")
    again = Signature((*two.tensors[:2], TensorSpec("x_", "output", "float32", (1,))))
    with pytest.raises(InvalidRequest, match="called 'x_'"):
        argument_names(again, same)


def test_scalars_are_read_from_shapes_and_constants() -> None:
    scalars = {
        "rows": "x.shape[0]",
        "inverse": "1 / input[0].shape[-1]",
        "width": "weight[0].elements",
        "rank": "output[0].ndim",
        "eps": "eps",
        "stride": "convolution.stride[1]",
    }
    constants = {"native_layer_norm.eps": 1e-5, "convolution.stride[1]": 2, "word": "mean"}
    assert scalar_values(NORM, chain(scalars=scalars), constants) == {
        "rows": 4,
        "inverse": 0.125,
        "width": 8,
        "rank": 2,
        "eps": 1e-5,
        "stride": 2,
    }


def test_scalar_without_value_has_hint() -> None:
    with pytest.raises(InvalidRequest) as refused:
        scalar_values(NORM, chain(scalars={"eps": "epsilon * 2"}), {"eps": 1e-5, "model.eps": 1e-5})
    assert "eps = 'epsilon * 2'" in refused.value.message
    assert "there is no epsilon" in refused.value.message
    assert "x [4, 8]" in refused.value.hint and "constants eps, model.eps" in refused.value.hint
    optional = chain(scalars={"eps": ScalarSpec("eps", optional=True)})
    assert scalar_values(NORM, optional, {}) == {}
    with pytest.raises(InvalidRequest, match=r"no x\.shape\[2\]"):
        scalar_values(NORM, chain(scalars={"depth": "x.shape[2]"}), {})
    with pytest.raises(InvalidRequest, match="no eps"):  # two layers with different values of it
        scalar_values(NORM, chain(scalars={"e": "eps"}), {"a.eps": 1.0, "b.eps": 2.0})


def test_manifest_omits_unstated_names(tmp_path: Path) -> None:
    tensors = [torch.zeros(4, 8), torch.zeros(8)]
    known: dict[str, Any] = {"entry": "main", "hardware": "toy"}
    plain = json.loads(write_manifest(tensors, NORM, tmp_path, **known).read_text())
    assert "scalars" not in plain and "argument" not in plain["tensors"][0]
    stated = write_manifest(
        tensors, NORM, tmp_path, **known, arguments=("a", "b", "c"), scalars={"rows": 4}
    )
    manifest = json.loads(stated.read_text())
    assert manifest["scalars"] == {"rows": 4}
    assert [row["argument"] for row in manifest["tensors"]] == ["a", "b", "c"]
    assert [row["name"] for row in manifest["tensors"]] == ["x", "norm.weight", "output"]


def test_constants_come_from_file_model_and_attributes() -> None:
    opened = OpenCase(problem_from_text(PROBLEM), Case("main"))
    known = opened.constants()
    assert known["ROWS"] == 4 and known["width"] == 8
    assert known["eps"] == 1e-3 and known["scale"] == 2.5
