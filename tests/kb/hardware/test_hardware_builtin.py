"""The hardware descriptions that ship with the product are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kb.hardware.facts import formula_problem
from kb.hardware.lineage import effective_facts, registry_problems
from kb.hardware.schema import dump_hardware, parse_hardware
from kb.hardware.spec import HardwareSpec, SignatureSpec

FOLDER = Path(__file__).parents[3] / "hw_manuals" / "hardware"


def shipped() -> dict[str, HardwareSpec]:
    files = sorted(FOLDER.glob("*/hardware.toml"))
    assert files
    specs = {f.parent.name: parse_hardware(f.read_text("utf-8"), f.parent.name) for f in files}
    assert {name: spec.id for name, spec in specs.items()} == {name: name for name in specs}
    return specs


def test_shipped_descriptions_are_valid_and_round_trip() -> None:
    specs = shipped()
    assert registry_problems(specs) == []
    for name, spec in specs.items():
        assert parse_hardware(dump_hardware(spec), name) == spec


def test_shipped_formulas_give_stated_values() -> None:
    specs = shipped()
    for name, spec in specs.items():
        effective = effective_facts(name, specs)
        numbers = {
            key: float(found.fact.value)
            for key, found in effective.items()
            if not isinstance(found.fact.value, str)
        }
        for fact in spec.facts:
            if fact.kind == "derived":
                problem = formula_problem(fact, numbers)
                assert problem == "", (name, fact.key)


# Lines as the compilers and run times of these chips print them.
LINES = [
    ("tpu-v6e", "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:", "shared_memory_limit"),
    (
        "tpu-v7",
        "XLA:TPU compile permanent error. Ran out of memory in memory space vmem. Used 115.95M",
        "shared_memory_limit",
    ),
    (
        "tpu-v6e",
        "Allocation (size=4194304) would exceed memory (size=1048576) :: #allocation3 "
        "[shape = 'u8[4194304]{0}', space=smem, size = 0x400000, scoped]",
        "shared_memory_limit",
    ),
    (
        "tpu-v6e",
        "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required",
        "out_of_memory",
    ),
    (
        "tpu-v7",
        "E2003: CompileTimeMosaicUnprovenMemoryAccessAlignment: cannot statically prove that "
        "index in dimension 1 is a multiple of 128",
        "misaligned_access",
    ),
    (
        "tpu-v6e",
        "Unimplemented primitive in Pallas TPU lowering for tc: sort. Please file an issue",
        "compile_error",
    ),
    (
        "tpu-v6e",
        "`<no name>` HLO name `_lambda_.1`: float acc with int lhs. Expected float lhs.",
        "unsupported_dtype",
    ),
    (
        "tpu-v6e",
        "INTERNAL: Mosaic failed to compile TPU kernel with MLIR module name `<no name>` HLO name "
        "`_lambda_.1`: Not implemented: Only vector<i16> and vector<i32> are supported, but got",
        "unsupported_dtype",
    ),
    (
        "tpu-v7",
        "INTERNAL: Mosaic failed to compile TPU kernel with MLIR module name `<no name>` HLO name "
        "`f.1`: Not implemented: Rotate with non-zero stride",
        "compile_error",
    ),
    (
        "gaudi3",
        "RuntimeError: Graph compile failed. synStatus=synStatus 26 [Generic failure].",
        "compile_error",
    ),
    (
        "gaudi3",
        "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::939524096 (896)MB",
        "out_of_memory",
    ),
    (
        "apple-m4",
        "Threadgroup memory size (33024) exceeds the maximum threadgroup memory allowed (32768)",
        "shared_memory_limit",
    ),
    (
        "apple-m4",
        "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)",
        "illegal_memory_access",
    ),
    ("trainium3", "NCC_EBIR023: MLP kernel intermediate size exceeds", "compile_error"),
]


@pytest.mark.parametrize(("hardware", "line", "signal"), LINES)
def test_lines_of_a_chips_own_tools_match_its_signatures(
    hardware: str, line: str, signal: str
) -> None:
    specs = shipped()
    chip: str | None = hardware
    known: list[SignatureSpec] = []
    while chip is not None:
        known += specs[chip].signatures
        chip = specs[chip].parent
    assert {s.signal for s in known if re.search(s.pattern, line)} == {signal}
