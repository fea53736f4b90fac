"""The built-in chips with an emulator: their samples run, and costs keep their kind. Skipped for
chips whose compiler or emulator is not installed (`make emulators`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingestion.builtin import builtin_hardware
from ingestion.builtin.samples import ShippedSample, shipped_samples
from kb.hardware.lineage import lineage
from kb.hardware.spec import ToolchainSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.hardware_check import SampleRun, run_sample, signature_of
from optimizer.evaluation.records import CaseTiming
from optimizer.evaluation.sample_checks import check_sample
from optimizer.evaluation.toolchains.base import CompileCase, EvaluationTarget
from optimizer.evaluation.toolchains.command import BadOutput, CommandToolchain, read_report
from optimizer.search.bench.simulated import _ratio, clock_of
from retrieval.diagnose.linear_patterns import compile_linear
from tests.places import ROOT

pytestmark = pytest.mark.slow(seconds=13)

MANUALS = ROOT / "hw_manuals"
SPECS = {spec.id: spec for spec in builtin_hardware(MANUALS)}
CHAINS = {
    (spec.id, language): chain
    for spec in SPECS.values()
    for language, chain in spec.toolchains.items()
    if chain.install
}
SAMPLES = [sample for sample in shipped_samples(MANUALS) if sample.check == "toolchain"]


def _target(hardware: str) -> EvaluationTarget:
    return EvaluationTarget(hardware, lineage(hardware, SPECS))


def _toolchain(hardware: str, language: str) -> CommandToolchain:
    """The toolchain, or a skip that names what to install."""
    chain = CommandToolchain(language, CHAINS[hardware, language])
    available = chain.available(_target(hardware))
    if not available.ok:
        pytest.skip(f"{available.reason}. {available.hint}")
    return chain


def _ran(hardware: str, language: str, template: ToolchainSpec) -> SampleRun:
    _toolchain(hardware, language)
    return run_sample(language, template, _target(hardware))


@pytest.mark.parametrize(("hardware", "language"), CHAINS)
def test_sample_of_a_chip_is_correct_with_kind_of_cost(hardware: str, language: str) -> None:
    template = CHAINS[hardware, language]
    ran = _ran(hardware, language, template)
    assert ran.correct, ran.message
    assert ran.time.endswith(f" {template.cost}")
    assert all(value >= 0 for value in ran.metrics.values() if isinstance(value, int | float))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.path)
def test_shipped_kernels_of_emulated_chips_are_correct(sample: ShippedSample) -> None:
    _toolchain(sample.hardware, sample.language)
    checked = check_sample(MANUALS, sample, SPECS)
    assert checked.outcome == "right", checked.detail


def test_vector_lengths_change_count_and_not_the_result() -> None:
    costs = []
    for bits in (128, 256, 512):
        ran = _ran(f"riscv-v-{bits}", "rvv", CHAINS[f"riscv-v-{bits}", "rvv"])
        assert ran.correct
        costs.append(int(ran.time.split()[0]))
    assert costs == sorted(costs, reverse=True) and costs[0] > 1.8 * costs[1] > 3 * costs[2]


def test_counts_are_those_of_kernel_alone() -> None:
    template = CHAINS["riscv-v", "rvv"]
    empty = '#include "chip.h"\nvoid kernlore_run(const tensor *t) { (void)t; }\n'
    nothing = _ran("riscv-v", "rvv", replace(template, sample=empty, sample_reference=""))
    assert nothing.metrics["instructions"] == 1  # the return
    wrong = _ran("riscv-v", "rvv", replace(template, sample=empty))
    assert wrong.ran and wrong.correct is False


@pytest.mark.parametrize(
    ("hardware", "language", "source", "title"),
    [
        (
            "hexagon-v66-hvx",
            "hvx",
            "#include <hexagon_types.h>\n#include <hvx_hexagon_protos.h>\n"
            "HVX_Vector f(HVX_Vector a) { return Q6_Vsf_vadd_VsfVsf(a, a); }\n",
            "not declared for this version",
        ),
        (
            "riscv-v",
            "rvv",
            "#include <riscv_vector.h>\n"
            "vfloat32m1_t f(vfloat32m2_t a) { return __riscv_vfadd_vv_f32m1(a, a, 1); }\n",
            "types of two vector operands",
        ),
        (
            "armv9-sme",
            "sme",
            "#include <arm_sme.h>\nvoid f(void) __arm_streaming { svzero_za(); }\n",
            "ZA",
        ),
    ],
)
def test_compiler_errors_have_signature(
    hardware: str, language: str, source: str, title: str, tmp_path: Path
) -> None:
    chain = _toolchain(hardware, language)
    bundle = Bundle({"k.c": source}, "k.c", language, "kernlore_run")
    signature = signature_of(chain.template.sample_arguments)
    compiled = chain.compile(bundle, _target(hardware), tmp_path, (CompileCase(signature),))
    assert not compiled.ok
    found = [
        s.title
        for s in SPECS[hardware].signatures
        if any(
            compile_linear(s.pattern).search(line) is not None for line in compiled.log.splitlines()
        )
    ]
    assert any(title in text for text in found), compiled.log


def test_missing_program_is_named_with_its_install_command() -> None:
    template = replace(CHAINS["riscv-v", "rvv"], programs=("no-such-emulator",))
    available = CommandToolchain("rvv", template).available(_target("riscv-v"))
    assert not available.ok and "no-such-emulator" in available.reason
    assert "apt-get install" in available.hint


def test_costs_of_different_kinds_are_never_compared() -> None:
    packets = CaseTiming("main", "simulator", count=100, counted="packets")
    instructions = replace(packets, count=50, counted="instructions")
    assert _ratio(instructions, packets).speedup is None
    assert _ratio(replace(packets, count=50), packets).speedup is not None
    assert packets.simulated_cost == "100 packets"
    assert replace(packets, count=None, counted="", cycles=7).simulated_cost == "7 cycles"
    clocks = {clock_of(CommandToolchain("x", CHAINS[key])) for key in CHAINS}
    assert clocks == {"instructions", "packets", "simulator"}


def test_report_without_declared_kind_of_cost_has_no_cost(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text('{"cycles": 12, "time_us": 3.0}')
    assert read_report(report, "packets").count is None
    assert read_report(report, "packets").time_us is None
    report.write_text('{"packets": -1}')
    with pytest.raises(BadOutput, match="packets"):
        read_report(report, "packets")
