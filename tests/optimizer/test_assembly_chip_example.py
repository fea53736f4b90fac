"""The fictional chip programmed in assembly: drawn, documented, assembled and run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from examples.assembly_chip.dialect import Dialect
from ingestion.findings.facts import propose_facts
from ingestion.formats import parse
from kb.hardware.schema import parse_hardware
from kb.hardware.spec import HardwareSpec
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle, read_bundle
from optimizer.evaluation.toolchains.base import Compiled, EvaluationTarget
from optimizer.evaluation.toolchains.command import CommandRun, CommandToolchain
from retrieval.diagnose.linear_patterns import compile_linear
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import load_signals

pytestmark = pytest.mark.slow(seconds=12)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "assembly_chip"
SEEDS = (8, 9)  # they differ in operand order, address unit, base of exponentials and reductions
Case = tuple[list[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Drawn:
    folder: Path
    numbers: dict[str, Any]
    spec: HardwareSpec

    @property
    def documents(self) -> dict[str, str]:
        paths = sorted((self.folder / "docs").iterdir())
        return {path.name: path.read_text(encoding="utf-8") for path in paths}

    @property
    def dialect(self) -> Dialect:
        return Dialect(self.numbers)

    @property
    def language(self) -> str:
        return str(self.numbers["language"])

    @property
    def toolchain(self) -> CommandToolchain:
        return CommandToolchain(self.language, self.spec.toolchains[self.language])

    @property
    def target(self) -> EvaluationTarget:
        return EvaluationTarget(self.spec.id, (self.spec.id,))

    def code(self, kind: str) -> str:
        return str(self.numbers["errors"][kind]["code"])

    def kernel(self, name: str) -> Bundle:
        path = self.folder / "kernels" / f"{name}{self.numbers['suffix']}"
        return read_bundle(path, self.language)

    def written(self, text: str) -> Bundle:
        """A bundle of text in the chip's own words."""
        name = f"k{self.numbers['suffix']}"
        return Bundle({name: text}, name, self.language, "kernlore_run")

    def small(self, body: str, head: str = "") -> Bundle:
        """A kernel of canonical text with the input x and the output y."""
        lines = [head or f".part {self.numbers['id']}", ".kernel kernlore_run"]
        lines += [".input x", ".output y", ".scratch room, 8VB", *body.split("; "), "halt", ".end"]
        return self.written(self.dialect.text("\n".join(lines)) + "\n")

    def compiled(self, bundle: Bundle, workdir: Path) -> Compiled:
        return self.toolchain.compile(bundle, self.target, workdir, ())

    def ran(self, bundle: Bundle, case: Case, workdir: Path) -> CommandRun:
        made = self.compiled(bundle, workdir)
        assert made.ok, made.log
        tensors, expected = case
        given = [
            TensorSpec(f"x{place}", "input", "float32", tuple(tensor.shape))
            for place, tensor in enumerate(tensors)
        ]
        output = TensorSpec("y", "output", "float32", tuple(expected.shape))
        return self.toolchain.run(made, tensors, Signature((*given, output)), workdir, 60)


def python(script: str, *arguments: str | Path) -> None:
    command = [sys.executable, EXAMPLE / script, *arguments]
    subprocess.run(command, check=True, timeout=60, capture_output=True)


def drawn_in(folder: Path, seed: int) -> Drawn:
    python("chip.py", str(seed), folder)
    python("kernels.py", folder)
    text = (folder / "hardware.toml").read_text(encoding="utf-8")
    numbers = json.loads((folder / "chip.json").read_text(encoding="utf-8"))
    return Drawn(folder, numbers, parse_hardware(text, "hardware.toml"))


@pytest.fixture(scope="module")
def chips(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Drawn]:
    folder = tmp_path_factory.mktemp("chips")
    return {seed: drawn_in(folder / f"chip {seed}", seed) for seed in SEEDS}


@pytest.fixture(params=SEEDS)
def chip(request: pytest.FixtureRequest, chips: dict[int, Drawn]) -> Drawn:
    return chips[request.param]


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def elementwise() -> Case:
    x, g, z = random(3, 120, 160)
    return [x, g, z], x * torch.sigmoid(g) + z


def rmsnorm() -> Case:
    x, gain = random(96, 320), random(320, seed=2)
    return [x, gain], x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5) * gain


def matmul() -> Case:
    a, b = random(64, 96), random(96, 64, seed=2)
    return [a, b], a @ b


CASES: dict[str, Callable[[], Case]] = {
    "elementwise": elementwise,
    "rmsnorm": rmsnorm,
    "matmul": matmul,
}


# -- drawing


def test_equal_seeds_draw_equal_chips(chips: dict[int, Drawn], tmp_path: Path) -> None:
    first, again = chips[SEEDS[0]], tmp_path / "again"
    python("chip.py", str(SEEDS[0]), again)
    for path in (first.folder / "chip.json", *(first.folder / "docs").iterdir()):
        other = again / path.relative_to(first.folder)
        assert path.read_text(encoding="utf-8") == other.read_text(encoding="utf-8")


def test_chips_differ_in_words_signs_and_codes(chips: dict[int, Drawn]) -> None:
    left, right = (chips[seed].numbers for seed in SEEDS)
    names = [
        {op: row["name"] for op, row in numbers["operations"].items()} for numbers in (left, right)
    ]
    assert sum(names[0][op] != names[1][op] for op in names[0]) >= 20
    assert sum(left["syntax"][sign] != right["syntax"][sign] for sign in left["syntax"]) >= 6
    codes = [{error["code"] for error in numbers["errors"].values()} for numbers in (left, right)]
    assert not codes[0] & codes[1]
    for numbers in (left, right):
        words = [row["name"] for row in numbers["operations"].values()]
        assert len(set(words)) == len(words) == 34
        assert len({error["code"] for error in numbers["errors"].values()}) == 36


def test_documents_state_every_word_and_code(chip: Drawn) -> None:
    documents = chip.documents
    whole = "\n".join(documents.values())
    assert "{{" not in whole and "}}" not in whole
    assert 9 <= len(documents) <= 11 and 10_000 <= len(whole.split()) <= 13_000
    dialect, numbers = chip.dialect, chip.numbers
    for operation, row in numbers["operations"].items():
        described = f".. describe:: {dialect.syntax_line(operation)}\n"
        assert described in documents["05-instructions.rst"], row["name"]
    for name in numbers["directives"]:
        assert f".. describe:: {dialect.directive(name)}" in documents["03-directives.rst"] or (
            f"              {dialect.directive(name)}" in documents["03-directives.rst"]
        )
    for error in numbers["errors"].values():
        assert f"\n{error['code']}: {error['text']}\n~~~" in documents["08-errors.rst"]
    for field in numbers["fields"].values():
        assert f"* - ``{field}``" in documents["07-launch.rst"]


def test_documents_state_drawn_numbers(chip: Drawn) -> None:
    numbers, documents = chip.numbers, chip.documents
    for name, text in (
        ("01-overview.rst", f"Works on {numbers['lanes']} lanes"),
        ("01-overview.rst", f"has a latency of {numbers['arith_latency']} cycles"),
        ("02-language.rst", f"({numbers['imm_bits']} bits, signed)"),
        ("03-directives.rst", f"fit the {numbers['scratch_bytes']} bytes of the scratchpad"),
        ("04-registers.md", f"has a latency of {numbers['mac_latency']} cycles"),
        ("05-instructions.rst", f"a vector every {numbers['special_cycles']} cycles"),
        ("06-transfers.rst", f"at most {numbers['outstanding']}\n"),
        ("06-transfers.rst", f"at most {numbers['max_transfer']} bytes"),
        ("06-transfers.rst", f"1 to {numbers['max_rows']}\n"),
        ("06-transfers.rst", f"* {numbers['dma_latency']} cycles after it was started"),
        ("09-counters.html", f"after {numbers['watchdog']} instructions"),
    ):
        assert text in documents[name], text


def test_documents_are_read_without_loss(chip: Drawn) -> None:
    for name, text in chip.documents.items():
        document = parse(text.encode(), name)
        assert not document.warnings, (name, document.warnings)
        assert document.title, name


def test_facts_of_overview_equal_description(chip: Drawn) -> None:
    name = "01-overview.rst"
    elements = parse(chip.documents[name].encode(), name).elements
    read = {fact.key: fact.value for fact in propose_facts(elements)}
    stated = {fact.key: fact.value for fact in chip.spec.facts if not fact.key.startswith("x_")}
    assert read == pytest.approx(stated)


def test_description_is_complete(chip: Drawn) -> None:
    assert chip.spec.id == chip.numbers["id"] and chip.spec.languages == (chip.language,)
    assert chip.spec.toolchains[chip.language].timing == "simulator"
    assert chip.toolchain.available(chip.target).ok
    assert len(chip.spec.signatures) == len(chip.numbers["errors"])
    for signature in chip.spec.signatures:
        compile_linear(signature.pattern)
        assert signature.signal in load_signals(), signature.signal


# -- kernels


@pytest.mark.parametrize("name", CASES)
def test_good_kernels_are_correct(chip: Drawn, name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    result = chip.ran(chip.kernel(f"{name}_good"), case, tmp_path)
    assert result.ok, result.message
    np.testing.assert_allclose(result.outputs[0].numpy(), case[1].numpy(), atol=1e-5, rtol=1e-5)
    assert result.timing == "simulator" and result.cycles is not None
    assert result.time_us == pytest.approx(result.cycles / chip.numbers["clock_hz"] * 1e6)
    family, metrics = chip.numbers["family"], result.metrics
    strange = {metric for metric in metrics if metric not in load_metrics()}
    assert all(metric.startswith(f"{family}_") for metric in strange)
    stalls = [value for metric, value in metrics.items() if metric.startswith(f"{family}_stall_")]
    issued = float(metrics[f"{family}_instructions"])
    assert issued + sum(map(float, stalls)) == result.cycles
    for metric in metrics:
        assert metric in chip.documents["09-counters.html"] or metric == "launches", metric


def test_problems_equal_kernels() -> None:
    for name, case in CASES.items():
        scope: dict[str, Any] = {}
        exec((EXAMPLE / "problems" / f"{name}.py").read_text(encoding="utf-8"), scope)
        tensors, expected = case()
        assert [t.shape for t in scope["get_inputs"]()] == [t.shape for t in tensors]
        assert torch.equal(scope["Model"]()(*tensors), expected)


def test_wrong_kernel_runs_with_wrong_results(chips: dict[int, Drawn], tmp_path: Path) -> None:
    chip, case = chips[SEEDS[0]], elementwise()
    result = chip.ran(chip.kernel("elementwise_wrong"), case, tmp_path)
    assert result.ok and (result.outputs[0] - case[1]).abs().max() > 0.5


def test_assembly_error_has_place_and_reason(chip: Drawn, tmp_path: Path) -> None:
    made = chip.compiled(chip.kernel("elementwise_not_assembling"), tmp_path)
    assert not made.ok
    suffix = chip.numbers["suffix"]
    for kind, text in (
        ("mnemonic", "unknown instruction: nosuch"),
        ("kind", "wrong kind of operand: operand"),
    ):
        assert re.search(rf"{re.escape(suffix)}:\d+: {chip.code(kind)} {text}", made.log)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("elementwise_racing", "hazard"),
        ("elementwise_leaving", "device"),
        ("elementwise_hanging", "watchdog"),
    ],
)
def test_failing_kernels_trap_with_their_codes(
    chips: dict[int, Drawn], kernel: str, kind: str, tmp_path: Path
) -> None:
    chip = chips[SEEDS[1]]
    result = chip.ran(chip.kernel(kernel), elementwise(), tmp_path)
    assert (result.failure, result.timing) == ("crashed", "none")
    text = chip.numbers["errors"][kind]["text"]
    assert re.search(rf":\d+: {chip.code(kind)} {text}: ", result.message), result.message


# -- examples in the documents


def test_worked_examples_are_correct_for_their_sizes(chip: Drawn, tmp_path: Path) -> None:
    name = "11-examples.rst"
    elements = parse(chip.documents[name].encode(), name).elements
    scaled, peaks = (chip.written(part.text + "\n") for part in elements if part.kind == "code")
    lanes = chip.numbers["lanes"]
    for shape in ((3, 16 * lanes), (1, 35 * lanes + 5)):
        x, z = random(*shape), random(*shape, seed=2)
        expected = 2.5 * x + z
        result = chip.ran(scaled, ([x, z], expected), tmp_path)
        assert result.ok, result.message
        np.testing.assert_allclose(result.outputs[0].numpy(), expected.numpy(), atol=1e-6)
    x = random(6, 160)
    expected = x - x.max(dim=1, keepdim=True).values
    result = chip.ran(peaks, ([x], expected), tmp_path)
    assert result.ok and torch.equal(result.outputs[0], expected), result.message


def test_example_of_each_instruction_assembles(chip: Drawn, tmp_path: Path) -> None:
    text = chip.documents["05-instructions.rst"]
    examples = re.findall(r":Example: ``(.*)``", text)
    assert len(examples) == 34
    lines = chip.small("next:").source.splitlines()
    made = chip.compiled(chip.written("\n".join([*lines[:-2], *examples, *lines[-2:]])), tmp_path)
    assert made.ok, made.log


# -- errors and traps

# Canonical lines; each is refused with its code.
REFUSED = {
    "operands": "vadd v1, v2",
    "kind": "vadd v1, v2, a0",
    "register": "vadd v1, v2, v99",
    "tag": "wait t77",
    "name": "set s1, #nowhere",
    "duplicate": ".const room, 4",
    "immediate": "add s1, s1, #1000000",
    "float": "vset v1, #2",
    "displacement": "vload v1, [s1+99999VB]",
    "lane": "vlane v1, v2, #32",
    "block": ".scratch nothing, 0",
    "direction": "dmain [s1], y@s2, s3, t0",
    "structure": ".endrepeat",
    "label": "jump nowhere",
    "scratch": ".scratch huge, 90000B",
}
WHOLE = {
    "repeat": ".repeat 0; .endrepeat",
    "program": ".repeat 60; .repeat 60; add s1, s1, #1; .endrepeat; .endrepeat",
    "ending": "halt; last:; add s1, s1, #1; .end; .kernel other; add s1, s1, #1; .end",
}


def test_each_error_has_its_code(chip: Drawn, tmp_path: Path) -> None:
    numbers = chip.numbers
    made = chip.compiled(chip.small("; ".join(REFUSED.values())), tmp_path)
    assert not made.ok
    for kind in REFUSED:
        error = numbers["errors"][kind]
        assert f" {error['code']} {error['text']}: " in made.log, (kind, made.log)
    for kind, text in WHOLE.items():
        made = chip.compiled(chip.small(text), tmp_path)
        assert not made.ok and f" {chip.code(kind)} " in made.log, (kind, made.log)
    mnemonic = numbers["operations"]["param"]["name"]
    source = chip.small("next:").source
    fields = [chip.dialect.register("s", 1), "x.nosuch"]
    order = fields if numbers["syntax"]["order"] == "first" else fields[::-1]
    raw = {
        "syntax": "?!*",
        "directive": f"{numbers['syntax']['leader']}nosuch",
        "field": f"{mnemonic} {', '.join(order)}",
    }
    place = chip.dialect.line("next:")
    made = chip.compiled(chip.written(source.replace(place, "\n".join(raw.values()))), tmp_path)
    for kind in raw:
        assert f" {chip.code(kind)} " in made.log, (kind, made.log)


def test_part_and_entry_are_checked(chips: dict[int, Drawn], tmp_path: Path) -> None:
    chip, other = (chips[seed] for seed in SEEDS)
    made = chip.compiled(chip.small("next:", f".part {other.numbers['id']}"), tmp_path)
    assert not made.ok and f":1: {chip.code('part')} " in made.log
    bundle = chip.small("next:")
    unnamed = Bundle(bundle.files, bundle.main, bundle.language, "elsewhere")
    made = chip.compiled(unnamed, tmp_path)
    assert f"{chip.code('entry')} no such kernel: elsewhere; the file has kernlore_run" in made.log
    made = chip.compiled(chip.written(other.kernel("matmul_good").source), tmp_path)
    assert not made.ok and "Traceback" not in made.log


TRAPS = {
    "bounds": "set s1, #9000000; vload v0, [s1]",
    "vector_align": "set s1, #4B; vload v0, [s1]",
    "dma_align": "set s1, #0; set s2, #4B; dmain [s1], x@s2, #4B, t0",
    "dma_size": "set s1, #0; dmain [s1], x@#0, #0, t0",
    "queue": "set s1, #0; .repeat 17; dmaout y@#0, [s1], #4B, t0; .endrepeat",
    "unfinished": "set s1, #0; dmain [s1], x@#0, #4B, t0",
    "unset": "vadd v0, v1, v2",
    "length": "setlen #0",
}


@pytest.mark.parametrize("kind", TRAPS)
def test_each_trap_has_its_code(chips: dict[int, Drawn], kind: str, tmp_path: Path) -> None:
    chip, x = chips[SEEDS[0]], random(4, 64)
    result = chip.ran(chip.small(TRAPS[kind]), ([x], x), tmp_path)
    assert result.failure == "crashed" and f": {chip.code(kind)} " in result.message
    assert "Traceback" not in result.log


def test_undeclared_arguments_are_launch_error(chips: dict[int, Drawn], tmp_path: Path) -> None:
    chip = chips[SEEDS[0]]
    tensors, expected = matmul()
    result = chip.ran(chip.kernel("matmul_good"), (tensors[:1], expected), tmp_path)
    assert result.failure == "crashed" and f"{chip.code('launch')} " in result.message
