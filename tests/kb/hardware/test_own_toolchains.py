"""A chip's own toolchain in hardware.toml: entry, interface, sample, arguments, scalars, and
counter rules.
"""

from __future__ import annotations

import pytest

from kb.errors import InvalidKnowledge, InvalidPredicate
from kb.hardware.schema import dump_hardware, parse_hardware
from kb.hardware.spec import HardwareSpec, MetricAlias, RuleSpec, SampleArgument, ScalarSpec
from kb.hardware.toolchains import DTYPES, compile_scalar
from optimizer.evaluation.abi import DTYPE_CODES

WHOLE = '''
id = "toy"
name = "Toy"
vendor = "toys"
languages = ["toyc"]

[[rules]]
id = "waits-on-memory"
when = "toy_stall_dram / toy_cycles > 0.4"
signal = "latency_bound"
title = "The core waits for memory"
why = "Double buffering hides it."

[metrics]
"toy.dram.bytes" = {canonical = "dram_bytes", scale = 64}

[toolchains.toyc]
run = "python {source} {input}"
entry = "main"
interface = """
A kernel is called once for each core.
"""
sample = "kernel main() {}"
sample_arguments = [
  {name = "x", role = "input", dtype = "float32", shape = [4, 8]},
  {name = "w", role = "weight", shape = [8]},
  {name = "out", role = "output", dtype = "float32", shape = [4, 8]},
]
sample_reference = "torch.relu(x) * w"

[toolchains.toyc.arguments]
input = "in{index}"
output = "out{index}"
single_output = "out"

[toolchains.toyc.scalars]
rows = "x.shape[0]"
eps = {value = "eps", optional = true}
'''


def read(text: str = WHOLE, *changes: tuple[str, str]) -> HardwareSpec:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_hardware(text, "toy.toml")


def test_toolchain_description_round_trips() -> None:
    spec = read()
    chain = spec.toolchains["toyc"]
    assert (chain.entry, chain.sample_reference) == ("main", "torch.relu(x) * w")
    assert chain.interface.strip() == "A kernel is called once for each core."
    assert chain.sample_arguments[1] == SampleArgument("w", "weight", "float32", (8,))
    assert dict(chain.arguments)["single_output"] == "out"
    assert dict(chain.scalars) == {
        "rows": ScalarSpec("x.shape[0]"),
        "eps": ScalarSpec("eps", optional=True),
    }
    assert [rule.confidence for rule in spec.rules] == ["C"]
    assert isinstance(spec.rules[0], RuleSpec)
    assert dict(spec.metrics) == {"toy.dram.bytes": MetricAlias("dram_bytes", 64.0)}
    assert parse_hardware(dump_hardware(spec), "again") == spec


@pytest.mark.parametrize(
    ("old", "new", "place", "fix"),
    [
        ('"main"', '"ma in"', "toolchains.toyc.entry", 'entry = "main"'),
        ('"in{index}"', '"in"', "toolchains.toyc.arguments.input", 'input = "in{index}"'),
        ('"in{index}"', '"{row}"', "toolchains.toyc.arguments.input", "{index} {name} {number}"),
        ('"in{index}"', '"out{index}"', "toolchains.toyc.arguments.output", "another name"),
        ("single_output", "only_output", "arguments.only_output", "single_output"),
        ('"x.shape[0]"', '"x.shape"', "toolchains.toyc.scalars.rows", "x.shape[0]"),
        ('"x.shape[0]"', '"open(1)"', "toolchains.toyc.scalars.rows", "no such function"),
        ('"x.shape[0]"', '"x.shape[0] > 1"', "toolchains.toyc.scalars.rows", "number"),
        ("optional = true", "optional = 1", "scalars.eps.optional", "optional = true"),
        ("torch.relu(x)", "torch.relu(y)", "toolchains.toyc.sample_reference", "torch, w, x"),
        ("shape = [8]", "shape = [-8]", "sample_arguments[1].shape", "shape = [64, 64]"),
        ('role = "output"', 'role = "input"', "toolchains.toyc.sample_arguments", "output"),
        ('dtype = "float32"', 'dtype = "f32"', "sample_arguments[0].dtype", "float32"),
        ('sample = "kernel main() {}"', "", "toolchains.toyc.sample", "text of a kernel"),
        ('"waits-on-memory"', '"Waits"', "rules[0].id", "stalls-on-memory"),
        ("> 0.4", "", "rules[0].when", "Compare it"),
        ('"toy_stall_dram / toy_cycles > 0.4"', '"1 > 0"', "rules[0].when", "compare a counter"),
        ("scale = 64", "scale = 0", "metrics.toy.dram.bytes.scale", "positive number"),
    ],
)
def test_invalid_entry_error_has_fix(old: str, new: str, place: str, fix: str) -> None:
    with pytest.raises(InvalidKnowledge) as refused:
        read(WHOLE, (old, new))
    assert place in refused.value.message and fix in refused.value.message


def test_built_in_toolchain_refuses_entry() -> None:
    with pytest.raises(InvalidKnowledge, match="entry: belongs to command templates"):
        read(WHOLE, ('run = "python {source} {input}"', 'builtin = "g++"'))


def test_dtypes_equal_those_of_interface() -> None:
    assert {*DTYPES} == {*DTYPE_CODES}


@pytest.mark.parametrize(
    ("text", "values", "result"),
    [
        ("x.shape[0]", {"x.shape[0]": 64}, 64),
        ("1 / x.shape[-1]", {"x.shape[-1]": 4}, 0.25),
        ("max(input[0].elements, 8) // 3", {"input[0].elements": 2}, 2),
        ("norm.weight.shape[0] * eps", {"norm.weight.shape[0]": 2, "eps": 0.5}, 1.0),
    ],
)
def test_scalar_expression_is_computed(text: str, values: dict[str, float], result: float) -> None:
    formula = compile_scalar(text)
    assert {*formula.references} == {*values}
    assert formula.compute(values).value == result
    assert formula.compute({}).missing == formula.references


@pytest.mark.parametrize(
    "text", ["", "x[y]", "x.shape[0:1]", "lambda: 1", "'a'", "f'{x}'", "x = 1"]
)
def test_non_arithmetic_scalar_is_refused(text: str) -> None:
    with pytest.raises(InvalidPredicate) as refused:
        compile_scalar(text)
    assert "x.shape[0]" in refused.value.hint
