"""The fictional chip: drawn by its script, described by its files, run by the command toolchain."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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
from retrieval.diagnose.signatures import SignatureIndex, signature_from_mapping

pytestmark = pytest.mark.slow(seconds=20)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "new_chip"
SEEDS = (3, 5, 6)
SMALL, LARGE = 5, 6  # by their scratchpads


@dataclass(frozen=True)
class Drawn:
    folder: Path
    numbers: dict[str, Any]
    spec: HardwareSpec

    @property
    def manual(self) -> str:
        return (self.folder / "manual.md").read_text(encoding="utf-8")

    @property
    def toolchain(self) -> CommandToolchain:
        return CommandToolchain("novac", self.spec.toolchains["novac"])

    @property
    def target(self) -> EvaluationTarget:
        return EvaluationTarget(self.spec.id, (self.spec.id,))

    def kernel(self, name: str) -> Bundle:
        return read_bundle(self.folder / "kernels" / f"{name}.nv", "novac")

    def compiled(self, kernel: str | Bundle, workdir: Path) -> Compiled:
        bundle = self.kernel(kernel) if isinstance(kernel, str) else kernel
        return self.toolchain.compile(bundle, self.target, workdir, ())

    def ran(
        self, kernel: str | Bundle, tensors: list[torch.Tensor], workdir: Path, seconds: float = 20
    ) -> CommandRun:
        made = self.compiled(kernel, workdir)
        assert made.ok, made.log
        return self.toolchain.run(made, tensors, signature(tensors), workdir, seconds)


Case = Callable[[], tuple[list[torch.Tensor], torch.Tensor]]
Sample = Callable[[Drawn, str], CommandRun]


def signature(tensors: list[torch.Tensor], dtype: str = "float32") -> Signature:
    """The output of every sample has the shape of its first input."""
    given = (TensorSpec(f"x{i}", "input", dtype, tuple(t.shape)) for i, t in enumerate(tensors))
    return Signature((*given, TensorSpec("y", "output", dtype, tuple(tensors[0].shape))))


def python(script: str, *arguments: str | Path) -> None:
    subprocess.run([sys.executable, EXAMPLE / script, *map(str, arguments)], check=True, timeout=60)


def drawn_in(folder: Path, seed: int) -> Drawn:
    python("chip.py", str(seed), folder)
    python("kernels.py", folder)
    text = (folder / "hardware.toml").read_text(encoding="utf-8")
    numbers = json.loads((folder / "chip.json").read_text(encoding="utf-8"))
    return Drawn(folder, numbers, parse_hardware(text, "hardware.toml"))


@pytest.fixture(scope="module")
def chips(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Drawn]:
    folder = tmp_path_factory.mktemp("chips")
    return {seed: drawn_in(folder / f"nova {seed}", seed) for seed in SEEDS}


@pytest.fixture(params=SEEDS)
def chip(request: pytest.FixtureRequest, chips: dict[int, Drawn]) -> Drawn:
    return chips[request.param]


def elementwise() -> tuple[list[torch.Tensor], torch.Tensor]:
    x = torch.randn(128, 128, generator=torch.Generator().manual_seed(1))
    return [x], torch.tanh(2 * x) + x


def softmax() -> tuple[list[torch.Tensor], torch.Tensor]:
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(2))
    return [x], torch.softmax(x, dim=-1)


def matmul() -> tuple[list[torch.Tensor], torch.Tensor]:
    a, b = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(3))
    return [a, b], a @ b


CASES: dict[str, Case] = {
    "elementwise_good": elementwise,
    "elementwise_plain": elementwise,
    "softmax_good": softmax,
    "softmax_conflicting": softmax,
    "matmul_good": matmul,
}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The run of a chip's kernel on the arrays of its case, made once."""
    runs: dict[tuple[str, str], CommandRun] = {}

    def run(chip: Drawn, kernel: str) -> CommandRun:
        key = (chip.spec.id, kernel)
        if key not in runs:
            runs[key] = chip.ran(kernel, CASES[kernel]()[0], tmp_path_factory.mktemp("run"))
        return runs[key]

    return run


# -- drawing


def test_equal_seeds_draw_equal_chips(chips: dict[int, Drawn], tmp_path: Path) -> None:
    again = drawn_in(tmp_path / "again", SEEDS[0])
    assert again.numbers == chips[SEEDS[0]].numbers and again.manual == chips[SEEDS[0]].manual


def test_chips_differ_in_numbers_names_and_codes(chips: dict[int, Drawn]) -> None:
    first, second, third = (chips[seed].numbers for seed in SEEDS)
    for key in ("scratchpad_bytes", "lanes", "dram_latency", "clock_hz"):
        assert len({first[key], second[key], third[key]}) == 3, key
    for left, right in ((first, second), (second, third), (first, third)):
        changed = [
            name for name in left["opcodes"] if left["opcodes"][name] != right["opcodes"][name]
        ]
        assert len(changed) >= 8
        assert not set(left["errors"].values()) & set(right["errors"].values())


def test_manual_states_drawn_numbers_and_names(chip: Drawn) -> None:
    reported = chip.manual
    assert "$" not in reported
    for word in (
        *chip.numbers["opcodes"].values(),
        *chip.numbers["errors"].values(),
        *chip.numbers["traps"].values(),
    ):
        assert word in reported
    for text in (
        f"scratchpad of {chip.numbers['scratchpad_bytes']} bytes",
        f"{chip.numbers['banks']} banks of {chip.numbers['bank_width']} bytes",
        f"{chip.numbers['lanes']} lanes",
        f"{chip.numbers['dram_latency']} cycles of latency",
        f"{chip.numbers['vector_registers']} vector registers",
        f"after {chip.numbers['mac_latency']} cycles",
        f"bursts of {chip.numbers['burst_bytes']} bytes",
    ):
        assert text in reported, text


def test_facts_of_manual_equal_description(chip: Drawn) -> None:
    read = {f.key: f.value for f in propose_facts(parse(chip.manual.encode(), "m.md").elements)}
    stated = {fact.key: fact.value for fact in chip.spec.facts if not fact.key.startswith("x_")}
    assert read == pytest.approx(stated)
    assert stated["shared_memory_per_block"] == chip.numbers["scratchpad_bytes"]


def test_description_is_complete(chip: Drawn) -> None:
    assert chip.spec.id == chip.numbers["id"] and chip.spec.languages == ("novac",)
    assert chip.spec.toolchains["novac"].timing == "simulator"
    assert chip.toolchain.available(chip.target).ok
    assert len(chip.spec.signatures) == len(chip.numbers["errors"]) + len(chip.numbers["traps"])
    for one in chip.spec.signatures:
        compile_linear(one.pattern)


@pytest.mark.parametrize("example", ["new_chip", "assembly_chip"])
def test_tools_are_plain_programs(example: str) -> None:
    paths = [*(EXAMPLE.parent / example).glob("*.py")]
    own = {path.stem for path in paths} | {"examples"}  # that for the type checker only
    assert paths
    for path in paths:
        module = ast.parse(path.read_text(encoding="utf-8"))
        names = {a.name for n in ast.walk(module) if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in ast.walk(module) if isinstance(n, ast.ImportFrom)}
        foreign = {n.split(".")[0] for n in names} - set(sys.stdlib_module_names) - own
        assert foreign <= {"numpy"}, path


# -- kernels


@pytest.mark.parametrize("kernel", CASES)
def test_good_kernels_are_correct(chip: Drawn, kernel: str, sample: Sample) -> None:
    _, expected = CASES[kernel]()
    result = sample(chip, kernel)
    assert result.ok, result.message
    np.testing.assert_allclose(result.outputs[0].numpy(), expected.numpy(), atol=1e-4, rtol=1e-5)
    assert result.timing == "simulator" and result.cycles is not None and result.cycles > 1000
    assert result.time_us == pytest.approx(result.cycles / chip.numbers["clock_hz"] * 1e6)


def test_problems_equal_kernels() -> None:
    for name, case in (("elementwise", elementwise), ("softmax", softmax), ("matmul", matmul)):
        scope: dict[str, Any] = {}
        exec((EXAMPLE / "problems" / f"{name}.py").read_text(encoding="utf-8"), scope)
        tensors, expected = case()
        assert [t.shape for t in scope["get_inputs"]()] == [t.shape for t in tensors]
        assert torch.equal(scope["Model"]()(*tensors), expected)


def test_wrong_kernel_runs_with_wrong_results(chip: Drawn, tmp_path: Path) -> None:
    tensors, expected = elementwise()
    result = chip.ran("elementwise_wrong", tensors, tmp_path)
    assert result.ok and (result.outputs[0] - expected).abs().max() > 0.5


def test_crashing_kernel_traps(chip: Drawn, tmp_path: Path) -> None:
    result = chip.ran("elementwise_crashing", elementwise()[0], tmp_path)
    assert (result.failure, result.timing) == ("crashed", "none")
    code = chip.numbers["traps"]["bounds"]
    assert f":6: trap {code}: access outside argument X: rows 128..136 of 128" in result.message
    assert signals_of(chip, result.log) == ["illegal_memory_access"]


def test_hanging_kernel_is_stopped(chips: dict[int, Drawn], tmp_path: Path) -> None:
    result = chips[SEEDS[0]].ran("elementwise_hanging", elementwise()[0], tmp_path, seconds=1.5)
    assert (result.failure, result.outputs) == ("timed_out", ())


def test_compile_error_has_place_and_reason(chip: Drawn, tmp_path: Path) -> None:
    made = chip.compiled("elementwise_not_compiling", tmp_path)
    errors, lanes = chip.numbers["errors"], chip.numbers["lanes"]
    assert not made.ok
    width = f"x has {lanes + 1} columns, a vector has {lanes} lanes"
    assert f":3:8: error {errors['width']}: vector width mismatch: {width}" in made.log
    assert re.search(rf":5:\d+: error {errors['undeclared']}: undeclared name: z", made.log)
    assert f":6:5: error {errors['opcode']}: unknown opcode: no_such_instruction" in made.log


@pytest.mark.parametrize(
    ("kernel", "kind", "signal"),
    [
        ("elementwise_too_large", "scratchpad", "shared_memory_limit"),
        ("elementwise_out_of_range", "range", "illegal_memory_access"),
    ],
)
def test_limits_are_checked_by_compiler(
    chip: Drawn, kernel: str, kind: str, signal: str, tmp_path: Path
) -> None:
    made = chip.compiled(kernel, tmp_path)
    assert not made.ok and chip.numbers["errors"][kind] in made.log
    assert signals_of(chip, made.log)[0] == signal


def test_tiles_for_larger_scratchpad_do_not_fit_smaller_one(
    chips: dict[int, Drawn], tmp_path: Path
) -> None:
    large, small = chips[LARGE], chips[SMALL]
    bundle = large.kernel("elementwise_plain")
    assert large.compiled(bundle, tmp_path / "large").ok
    names = {name: small.numbers["opcodes"][op] for op, name in large.numbers["opcodes"].items()}
    text = re.sub(r"\w+", lambda found: names.get(found[0], found[0]), bundle.source)
    made = small.compiled(Bundle({"k.nv": text}, "k.nv", "novac", "kernlore_run"), tmp_path)
    limit = small.numbers["scratchpad_bytes"]
    assert not made.ok and f"need 65536 bytes, the scratchpad has {limit} bytes" in made.log


def test_instructions_of_another_chip_are_unknown(chips: dict[int, Drawn], tmp_path: Path) -> None:
    made = chips[SMALL].compiled(chips[LARGE].kernel("elementwise_plain"), tmp_path)
    assert not made.ok and "unknown opcode" in made.log


def test_sample_of_manual_compiles_and_is_correct(chip: Drawn, tmp_path: Path) -> None:
    (text,) = re.findall(r"```novac\n(.*?)```", chip.manual, re.DOTALL)
    tensors, expected = matmul()
    bundle = Bundle({"sample.nv": text}, "sample.nv", "novac", "kernlore_run")
    result = chip.ran(bundle, tensors, tmp_path)
    assert torch.allclose(result.outputs[0], expected, atol=1e-4)


def signals_of(chip: Drawn, log: str) -> list[str]:
    known = [signature_from_mapping(_told(one), "nova") for one in chip.spec.signatures]
    return [match.signature.signal for match in SignatureIndex(known).match(log)]


def _told(signature: Any) -> dict[str, str]:
    return {key: value for key, value in asdict(signature).items() if value}


# -- compiler and simulator

BROKEN = {
    "syntax": "tile x[8][LANES]; for i 0..8 { }",
    "registers": "acc s[4096][LANES];",
    "alignment": "tile x[8][LANES]; LOAD x, X[0][1];",
    "shape": "tile x[8][LANES]; tile m[4][1]; ROWSUM m, x;",
    "operand": "tile x[8][LANES]; LOAD x, x;",
    "undeclared": "tile x[8][LANES]; LOAD x, Z[0][0];",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_each_error_has_its_code_and_signal(chip: Drawn, kind: str, tmp_path: Path) -> None:
    made = chip.compiled(small_kernel(chip, BROKEN[kind]), tmp_path)
    assert not made.ok and f"error {chip.numbers['errors'][kind]}: " in made.log
    assert chip.numbers["lanes"] and len(signals_of(chip, made.log)) >= 1


def small_kernel(chip: Drawn, body: str) -> Bundle:
    """LANES and upper-case operations are replaced by those of this chip."""
    words = {name.upper(): word for name, word in chip.numbers["opcodes"].items()}
    words["LANES"] = str(chip.numbers["lanes"])
    body = re.sub(r"[A-Z]{3,}", lambda found: words[found[0]], body)
    text = f"kernel k(in X[64][128], out Y[64][128]) {{ {body} }}\n"
    return Bundle({"k.nv": text}, "k.nv", "novac", "k")


def test_undeclared_arrays_are_launch_error(chip: Drawn, tmp_path: Path) -> None:
    result = chip.ran("matmul_good", matmul()[0][:1], tmp_path)
    assert result.failure == "crashed" and "argument mismatch" in result.message
    assert signals_of(chip, result.log) == ["launch_error"]


def test_half_precision_arrays_are_converted_at_transfer(chip: Drawn, tmp_path: Path) -> None:
    (x,), _ = softmax()
    half = x.bfloat16()
    made = chip.compiled("softmax_good", tmp_path)
    result = chip.toolchain.run(made, [half], signature([half], "bfloat16"), tmp_path, 20)
    assert result.ok, result.message
    assert torch.equal(result.outputs[0], torch.softmax(half.float(), -1).bfloat16())


def test_metrics_have_known_names(chip: Drawn, sample: Sample) -> None:
    metrics = sample(chip, "matmul_good").metrics
    strange = {name for name in metrics if name not in load_metrics()}
    assert all(name.startswith("nova_") for name in strange)
    for name, value in metrics.items():
        if name.endswith("_pct"):
            assert isinstance(value, float) and 0 <= value <= 100, name


def test_traffic_is_counted(chip: Drawn, sample: Sample) -> None:
    metrics = sample(chip, "elementwise_good").metrics
    assert metrics["dram_read_bytes"] == metrics["dram_write_bytes"] == 128 * 128 * 4
    assert metrics["bytes_ratio"] == 1.0 and metrics["load_efficiency_pct"] == 100.0


def test_padding_removes_bank_conflicts(chip: Drawn, sample: Sample) -> None:
    padded, packed = sample(chip, "softmax_good"), sample(chip, "softmax_conflicting")
    assert padded.metrics["bank_conflict_ratio"] == 0.0
    assert float(packed.metrics["bank_conflict_ratio"]) > 0.3
    assert packed.cycles is not None and padded.cycles is not None
    assert packed.cycles > 1.2 * padded.cycles


def test_accumulators_that_cover_latency_do_not_stall(chip: Drawn, tmp_path: Path) -> None:
    def stall(rows: int) -> float:
        body = (
            f"tile a[{rows}][LANES]; tile b[LANES][LANES]; acc s[{rows}][LANES];"
            "FILL s, 0.0; FILL a, 1.0; FILL b, 1.0; MAC s, a, b;"
        )
        result = chip.ran(small_kernel(chip, body), softmax()[0], tmp_path / str(rows))
        return float(result.metrics["nova_stall_dependency_cycles"])

    assert stall(1) == chip.numbers["lanes"] * (chip.numbers["mac_latency"] - 1)
    assert stall(chip.numbers["mac_latency"]) == 0


def test_narrow_transfer_moves_whole_bursts(chip: Drawn, tmp_path: Path) -> None:
    kernel = small_kernel(chip, "tile m[64][1]; LOAD m, X[0][0]; STORE Y[0][0], m;")
    metrics = chip.ran(kernel, softmax()[0], tmp_path).metrics
    assert metrics["dram_read_bytes"] == 64 * chip.numbers["burst_bytes"]
    assert metrics["load_efficiency_pct"] == 100 * 4 / chip.numbers["burst_bytes"]


def test_run_is_repeatable(chip: Drawn, sample: Sample, tmp_path: Path) -> None:
    first, second = sample(chip, "matmul_good"), chip.ran("matmul_good", matmul()[0], tmp_path)
    assert first.cycles == second.cycles and first.metrics == second.metrics
    assert torch.equal(first.outputs[0], second.outputs[0])
