"""Triton kernels generated from a graph give its results in Triton's interpreter, and compile for
absent chips.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains.base import CompileCase, EvaluationTarget
from optimizer.evaluation.toolchains.python import TritonAmd, TritonNvidia
from optimizer.search.records import Value
from optimizer.search.synthesizers.base import CaseView, HardwareView, ProblemView
from optimizer.search.synthesizers.traced import triton
from optimizer.search.synthesizers.traced import triton_products as filling
from optimizer.search.synthesizers.traced.expression import Program
from optimizer.search.synthesizers.traced.synthesizer import LIBRARY, TracedSynthesizer, lowered
from tests.optimizer.search.synthesizers.compiler.proposals import context
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=20)

pytest.importorskip("triton")

FILE = model_text("{forward}", "torch.randn({shape}), {second}", takes="x, y", init="{init}")
# name -> body of the model, shape of x, second input
MODELS = {
    "chain": ("F.gelu(x * 2 + y).sin() - torch.tanh(x)", "(7, 33)", "torch.randn(33)"),
    "elementary": (
        "torch.log1p(x * x) + torch.expm1(-x.abs()) + F.softplus(y) + x.abs() ** 1.5 + x.round()",
        "(9, 40)",
        "torch.randn(40)",
    ),
    "functions": (
        "torch.stack([x.sinh(), x.cosh(), x.asinh(), (x * 1000).asinh(), (x.abs() + 1).acosh(), "
        "(x.tanh() * 0.9).atanh(), (x.tanh() * 0.99).asin(), x.atan(), x.tan(), torch.fmin(x, y), "
        "(x.abs() + 0.1).log10(), torch.copysign(x, y), torch.where(x.signbit(), y, 0.0)])",
        "(9, 40)",
        "torch.randn(40)",
    ),
    "bits": (
        "(y & 12) | (y ^ 5), ~y, y << 2, y >> 1, (x > 0) * (x < 1)",
        "(9, 40)",
        "torch.randint(-90, 90, (9, 40))",
    ),
    "made of others": (
        "torch.stack([torch.lgamma(x * 4), torch.digamma(x * 4), torch.erfinv(x.tanh()), "
        "torch.fmod(x * 9, y), torch.remainder(x * 9, y), torch.atan2(x, y), torch.hypot(x, y), "
        "x.tanh().acos(), x.abs() ** y, torch.lgamma(x.round()), torch.atan2(x * 0, x.sign()), "
        "torch.floor_divide(x * 9, y.sign() * 2), torch.erfinv(x.sign()), 2.5 ** x, "
        "torch.remainder(x, -0.7), torch.fmod(x, 0.3), torch.remainder(3.5, x.abs() + 1)])",
        "(9, 40)",
        "torch.randn(40)",
    ),
    "double": (
        "torch.stack([x.double().atan(), x.double().tanh().acos(), x.double().tanh().asin(), "
        "torch.atan2(x.double(), y.double()), torch.lgamma(x.double() * 1e-9)])",
        "(9, 40)",
        "torch.randn(40)",
    ),
    "quotients of integers": (
        "torch.floor_divide((x * 9).long(), y), torch.div((x * 9).long(), y, "
        "rounding_mode='trunc'), torch.fmod((x * 9).long(), y), torch.remainder((x * 9).int(), y)",
        "(9, 40)",
        "torch.randint(1, 5, (40,)) * (1 - 2 * torch.randint(0, 2, (40,)))",
    ),
    "rows": ("(x * y).sum(-1)", "(9, 129)", "torch.randn(129)"),
    "long rows": ("(x + y).amax(-1), x.std(-1)", "(7, 150)", "torch.randn(150)"),
    "columns": ("(x * y).mean(0)", "(50, 70)", "torch.randn(70)"),
    "everything": ("F.mse_loss(x, y)", "(60, 301)", "torch.randn(60, 301)"),
    "parts": ("F.huber_loss(x, y)", "(600, 530)", "torch.randn(600, 530)"),
    "softmax": ("torch.softmax(x / 3 + y, -1)", "(7, 129)", "torch.randn(129)"),
    "softmax of channels": ("torch.log_softmax(x, 1) + y", "(3, 5, 6, 17)", "torch.randn(17)"),
    "softmax of few": ("torch.softmax(x, 1) + y", "(30, 5, 3)", "torch.randn(3)"),
    "log-sum-exp": ("torch.logsumexp(x, 1) * y", "(7, 70)", "torch.randn(7)"),
    "norm": ("F.silu(F.layer_norm(x, (70,))) + y", "(7, 70)", "torch.randn(70)"),
    "groups": ("F.group_norm(x, 2) * y", "(3, 6, 5, 9)", "torch.randn(9)"),
    "batch": ("F.batch_norm(x, None, None, training=True) * y", "(5, 2, 6)", "torch.randn(6)"),
    "pooling": ("F.max_pool2d(x, 3, 2, 1) * y", "(2, 3, 11, 14)", "torch.randn(7)"),
    "means": ("F.gelu(F.avg_pool3d(x, 2)) + y", "(2, 3, 4, 6, 10)", "torch.randn(5)"),
    "means at the border": (
        "F.avg_pool2d(x, 3, 2, 1, True, False) + F.avg_pool2d(x, 3, 2, 1, True) * y",
        "(2, 3, 8, 10)",
        "torch.randn(6)",
    ),
    "gather": ("x.gather(1, y).relu()", "(8, 40)", "torch.randint(0, 40, (8, 20))"),
    "rows by number": ("x[y] * 2", "(30, 17)", "torch.randint(0, 30, (50,))"),
    "turned": ("torch.roll(x, (1, -2), (0, 1)).flip(1) + y", "(8, 10)", "torch.randn(10)"),
    "nan": ("(x / (x - x).abs()).amax(-1) + y", "(20, 9)", "torch.randn(20)"),
    "two results": ("x.argmax(1), (x > y).sum(1)", "(6, 130)", "torch.randn(130)"),
    "library": ("F.relu(self.l(F.gelu(x))) + y", "(9, 24)", "torch.randn(10)"),
    # Three products of one norm, which is stored once.
    "projections": (
        "(lambda n: self.q(n) * self.k(n) + self.v(n))(F.layer_norm(x, (24,))) + y",
        "(2, 9, 24)",
        "torch.randn(10)",
    ),
    "batches": ("F.gelu(x) @ y", "(2, 3, 5, 8)", "torch.randn(2, 3, 8, 4)"),
    "attention": (
        "F.scaled_dot_product_attention(x * 0.5, x, y, is_causal=True, scale=0.3).sin()",
        "(2, 3, 5, 8)",
        "torch.randn(2, 3, 5, 4)",
    ),
    "heads": (
        "F.scaled_dot_product_attention(x, x, x).transpose(1, 2).reshape(2, 5, 24).relu() + y",
        "(2, 3, 5, 8)",
        "torch.randn(24)",
    ),
    "far from zero": (
        "(F.layer_norm(x + 30, (150,)) + y, x.var(-1), (x * y).sum(1), (x * y).sum(1) * 2)",
        "(7, 150)",
        "torch.randn(150)",
    ),
    "planes": (
        "F.instance_norm(x) * y + x.var((2, 3), keepdim=True)",
        "(3, 4, 8, 20)",
        "torch.randn(20)",
    ),
    "scans": (
        "(torch.tanh(x).cumsum(1) * y, (x > 0).cumsum(2), x.abs().cumprod(0), "
        "x.flip(2).cumsum(2).flip(2) - torch.softmax(x.cumsum(2), 2))",
        "(8, 17, 17)",
        "torch.randn(17)",
    ),
    # Its log-softmax is read at indices and summed: one more pass, and no separate array.
    "odd sides": (
        "self.b(torch.tanh(self.a((x * y).type_as(self.a.weight)))) + x.type_as(self.a.weight)",
        "(2, 5, 17)",
        "torch.randn(17)",
    ),
    "kept dimensions": ("x.norm(dim=1, keepdim=True) * y", "(6, 7, 40)", "torch.randn(40)"),
    "lone dimensions": ("(x * y).amax((1, 2), keepdim=True)", "(9, 7, 40)", "torch.randn(40)"),
    # Small, because the interpreter calls a function for each element of a scan of pairs.
    "scans of powers": (
        "(x * 9).logcumsumexp(1) * y, "
        "torch.where(x > 0, x, float('-inf')).flatten(0, 1)[:, :5].logcumsumexp(1).exp()",
        "(16, 9, 9)",
        "torch.randn(9)",
    ),
    # Whole rows, and all positions of a tile, may be masked.
    "masked": (
        "torch.softmax(torch.where(x + y > 0.2, float('-inf'), x), 1)",
        "(7, 129)",
        "torch.tensor([9.0] + [0.0] * 6).view(7, 1)",
    ),
    "masked losses": (
        "F.log_softmax(torch.where(x > 0.2, float('-inf'), x), 1).gather(1, y)",
        "(7, 129)",
        "torch.arange(7).view(7, 1)",
    ),
    "long losses": (
        "F.cross_entropy(x * 40 + 1000, (y.abs() * 9).long(), label_smoothing=0.1)",
        "(20, 150)",
        "torch.randn(20)",
    ),
    "windows": (
        "F.avg_pool3d(x, 4, 1, 2), F.max_pool3d(x * 2, (5, 3, 3), (2, 1, 1), (2, 1, 0)), "
        "F.max_pool2d(x[0] + y, (5, 7), 1, (2, 3), 2), F.avg_pool2d(x[1], 6, (1, 2), 0)",
        "(2, 3, 9, 14, 15)",
        "torch.randn(15)",
    ),
    "losses": (
        "F.cross_entropy(x, (y.abs() * 9).long() % 50, label_smoothing=0.1)",
        "(66, 50)",
        "torch.randn(66)",
    ),
    "scans of few rows": ("(x.cumsum(1) + y, x.sum(1).cumsum(0))", "(6, 50)", "torch.randn(50)"),
    "sorted": ("torch.sort(x * 2, -1).values.cumsum(1) + y", "(6, 11)", "torch.randn(11)"),
}
# Too many programs for the interpreter: only the number of kernels is tested.
NOT_RUN = ("parts", "odd sides")  # the second in a separate test
IN_CHUNKS = (
    *("long rows", "columns", "softmax", "softmax of channels", "softmax of few", "groups"),
    *("scans", "far from zero", "planes", "norm", "long losses"),
    *("masked", "masked losses"),
)
RUN = [(name, "whole") for name in MODELS if name not in NOT_RUN]
RUN += [(name, "chunks") for name in IN_CHUNKS]
INIT = {
    "library": "self.l = nn.Linear(24, 10)",
    "projections": "self.q, self.k, self.v = (nn.Linear(24, 10, bias=False) for _ in range(3))",
    "odd sides": "self.a = nn.Linear(17, 21).half(); self.b = nn.Linear(21, 17, bias=False).half()",
}
SMALL: Mapping[str, Value] = {
    **triton.DEFAULTS,
    "block": 64,
    "row_block": 64,
    "resident": 64,
    "chunk": 16,
}
RUNNER = """
import importlib.util, pathlib, torch
for path in sorted(pathlib.Path(".").glob("*.py")):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = module.run(*torch.load(path.with_suffix(".given")))
    torch.save(result if isinstance(result, tuple) else (result,), path.with_suffix(".result"))
"""


def model_of(name: str) -> tuple[CaseView, list[torch.Tensor], list[torch.Tensor]]:
    """The case, the arguments of the kernels, and the outputs in float64."""
    forward, shape, second = MODELS[name]
    init = INIT.get(name, "pass")
    source = FILE.format(init=init, forward=forward, shape=shape, second=second)
    module: dict[str, object] = {}
    exec(compile(source, "problem", "exec"), module)
    torch.manual_seed(1)
    inputs = module["get_inputs"]()  # type: ignore[operator]
    model = module["Model"]().eval().requires_grad_(False)  # type: ignore[operator]
    given = [*inputs, *(t.clone() for t in model.state_dict().values())]
    plain = model(*inputs)
    plain = list(plain) if isinstance(plain, tuple) else [plain]
    doubles = [x.double() if x.is_floating_point() else x for x in inputs]
    outputs = model.double()(*doubles)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    roles = ["input"] * len(inputs) + ["parameter"] * (len(given) - len(inputs))
    roles += ["output"] * len(plain)
    specs = [
        TensorSpec(f"t{n}", role, str(t.dtype).removeprefix("torch."), tuple(t.shape))  # type: ignore[arg-type]
        for n, (role, t) in enumerate(zip(roles, [*given, *plain], strict=True))
    ]
    return CaseView("main", Signature(tuple(specs)), {}, True, None, {}, source), given, outputs


def text_of(name: str, values: Mapping[str, Value]) -> triton.CandidateText:
    case, _, _ = model_of(name)
    program = lowered(case, LIBRARY)
    assert isinstance(program, Program), program
    return triton.write_candidate([(case.signature, program)], case.source, values)


def interpreted(folder: Path, program: str = RUNNER) -> None:
    """Run every kernel file of a folder on its tensors, or another program there."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of the interpreter: one process for all models, each with rows in
    registers and rows in chunks.
    """
    folder = tmp_path_factory.mktemp("interpreted")
    for name, form in RUN:
        _, given, _ = model_of(name)
        path = folder / f"{name.replace(' ', '_')}-{form}.py"
        values = triton.DEFAULTS if form == "whole" else SMALL
        path.write_text(text_of(name, values).text, encoding="utf-8")
        torch.save(given, path.with_suffix(".given"))
    interpreted(folder)
    return folder


@pytest.mark.parametrize(("name", "form"), RUN)
def test_kernels_equal_model(name: str, form: str, results: Path) -> None:
    _, _, expected = model_of(name)
    outputs = torch.load(results / f"{name.replace(' ', '_')}-{form}.result")
    for output, golden in zip(outputs, expected, strict=True):
        rtol, atol = (1e-13, 1e-14) if name == "double" else (3e-5, 2e-5)
        torch.testing.assert_close(
            output.double(), golden.double(), rtol=rtol, atol=atol, equal_nan=True
        )


@pytest.mark.parametrize(
    ("name", "kernels", "left"),
    [
        ("chain", 1, ()),
        ("softmax", 1, ()),
        ("softmax of channels", 1, ()),
        ("norm", 1, ()),
        ("groups", 1, ()),
        ("means", 1, ()),
        ("two results", 1, ()),
        ("parts", 2, ()),
        ("library", 2, ("aten.addmm",)),
        ("projections", 2, ("aten.mm",)),
        ("batches", 1, ("aten.bmm",)),
        ("attention", 2, ("scaled_dot_product_attention",)),
        ("heads", 1, ("scaled_dot_product_attention",)),
        ("sorted", 2, ("aten.sort", "aten.cumsum")),
        ("scans", 5, ()),
        ("scans of powers", 2, ()),
        ("losses", 2, ()),
        ("windows", 10, ()),
        ("scans of few rows", 1, ("aten.cumsum",)),
        ("made of others", 1, ()),
        ("quotients of integers", 1, ()),
        ("double", 1, ()),
    ],
)
def test_local_computation_is_one_kernel(name: str, kernels: int, left: tuple[str, ...]) -> None:
    source = text_of(name, triton.DEFAULTS)
    assert (source.kernels, source.left) == (kernels, left)


# LLVM takes five times as long for the last, because of its many functions.
@pytest.mark.parametrize(
    ("name", "values"),
    [("norm", triton.DEFAULTS), ("pooling", triton.DEFAULTS), ("made of others", SMALL)],
)
def test_kernels_compile_for_absent_chips(
    name: str, values: Mapping[str, Value], tmp_path: Path
) -> None:
    case, _, _ = model_of(name)
    bundle = Bundle({"k.py": text_of(name, values).text}, "k.py", "triton", "ModelNew")
    hopper = EvaluationTarget("h100", ("h100", "hopper", "nvidia"), "90")
    cdna = EvaluationTarget("mi300x", ("mi300x", "cdna3", "amd"), "gfx942")
    for toolchain, target in ((TritonNvidia(), hopper), (TritonAmd(), cdna)):
        folder = tmp_path / target.hardware
        folder.mkdir()
        compiled = toolchain.compile(bundle, target, folder, (CompileCase(case.signature),))
        assert compiled.ok, compiled.log
        assert list(compiled.kernels) == ["traced_0_0"]


def proposed(forward: str, device: str | None, library: str = "allowed") -> tuple[list[str], str]:
    """The log of the proposer for a GPU, and the plan of its first proposal, empty for none."""
    source = FILE.format(init="pass", forward=forward, shape="(8, 5)", second="torch.randn(5, 6)")
    specs = [
        TensorSpec("x", "input", "float32", (8, 5)),
        TensorSpec("y", "input", "float32", (5, 6)),
        TensorSpec("out", "output", "float32", (8, 6)),
    ]
    case = CaseView("main", Signature(tuple(specs)), {}, True, None, {}, source)
    problem = ProblemView("p", "matmul", "", source, (case,), {"library": library})
    hardware = HardwareView("h100", ("h100", "any"), device, ("triton", "torch"), {})
    lines: list[str] = []
    proposal = TracedSynthesizer(lines.append).propose(replace(context(problem), hardware=hardware))
    if proposal is not None:
        assert (proposal.bundle.language, proposal.cases) == ("triton", ("main",))
        compile(proposal.bundle.source, "kernel.py", "exec")
    return lines, proposal.plan if proposal is not None else ""


@pytest.mark.parametrize("device", ["cuda", None])
def test_gpu_proposal_names_operators_left_to_torch(device: str | None) -> None:
    lines, plan = proposed("F.gelu(x @ y)", device)
    assert (lines, plan) == ([], "Write the traced graph as Triton: 1 kernel; torch keeps aten.mm.")


@pytest.mark.parametrize(
    ("forward", "library", "reason"),
    [
        ("x @ y", "allowed", "all operators stay with torch: aten.mm"),
        ("torch.fft.irfft(torch.fft.rfft(x) * 2)", "allowed", "not lowered: complex numbers"),
        ("x.T[1:].reshape(2, 2, 8)", "allowed", "its results are views of its inputs"),
        ("F.gelu(x @ y)", "forbidden", "it is not lowered: aten.mm"),
        ("(x @ y).sort(0).values", "forbidden", "it is not lowered: aten.mm"),
    ],
)
def test_missing_proposal_has_reason(forward: str, library: str, reason: str) -> None:
    lines, plan = proposed(forward, "cuda", library)
    assert plan == "" and reason in "".join(lines)


def test_future_import_comes_first() -> None:
    case, _, _ = model_of("softmax")
    program = lowered(case)
    assert isinstance(program, Program)
    reference = f"from __future__ import annotations\n{case.source}"
    source = triton.write_candidate([(case.signature, program)], reference, triton.DEFAULTS)
    compile(source.text, "kernel.py", "exec")
    assert source.text.count("from __future__") == 1


HALF = model_text(
    "kept = self.norm(x)\nreturn self.first(kept), self.second(kept)",
    "torch.randn(8, 16, dtype=torch.bfloat16)",
    init="self.norm = nn.LayerNorm(16, dtype=torch.bfloat16)\n"
    "self.first = nn.Linear(16, 4, dtype=torch.bfloat16)\n"
    "self.second = nn.Linear(16, 2, dtype=torch.bfloat16)",
)


def half_case(reference: str, width: int) -> CaseView:
    """The case of `HALF` with rows of this many elements."""
    given = [(8, width), (width,), (width,), (4, width), (4,), (2, width), (2,)]
    roles = ["input", *["parameter"] * 6, *["output"] * 2]
    specs = [
        TensorSpec(f"t{n}", role, "bfloat16", shape)  # type: ignore[arg-type]
        for n, (role, shape) in enumerate(zip(roles, [*given, (8, 4), (8, 2)], strict=True))
    ]
    return CaseView("main", Signature(tuple(specs)), {}, True, None, {}, reference)


def test_torch_gets_values_in_their_own_precision() -> None:
    case = half_case(HALF, 16)
    program = lowered(case, LIBRARY)
    assert isinstance(program, Program), program
    text = triton.write_candidate([(case.signature, program)], HALF, triton.DEFAULTS).text
    made = [line for line in text.splitlines() if "torch.empty(" in line]
    assert made and all("dtype=torch.bfloat16" in line for line in made)
    assert text.count("torch.ops.aten.addmm.default(") == 2


def test_large_products_with_odd_sides_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS is slow on 16-bit rows that do not start at a multiple of 16 bytes."""
    odd = HALF.replace("(16", "(17").replace(" 16,", " 17,")
    case = half_case(odd, 17)
    program = lowered(case, LIBRARY)
    assert isinstance(program, Program), program

    def text(**values: Value) -> str:
        return triton.write_candidate(
            [(case.signature, program)], odd, {**triton.DEFAULTS, **values}
        ).text

    assert "filled(" not in text()  # too small to be worth it
    monkeypatch.setattr(filling, "MIN_PADDED_WORK", 0)
    assert text().count(" = filled(8, ") == 2 and "torch.ops.aten.addmm" not in text()
    assert "filled(" not in text(product_multiple=1)


def test_data_between_padded_products_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generated kernels write and read rows of the padded length."""
    monkeypatch.setattr(filling, "MIN_PADDED_WORK", 0)
    source = text_of("odd sides", SMALL)
    host = source.text.split("def traced_case0")[1].split("def run")[0]
    assert source.kernels == 3 and host.count(" = filled(8, ") == 2
    assert ".contiguous()" not in host and host.count("[..., 17:] = 0") == 1
    assert host.count("[..., 21:] = 0") == 1
    _, given, (expected,) = model_of("odd sides")
    (tmp_path / "odd.py").write_text(source.text, encoding="utf-8")
    torch.save(given, tmp_path / "odd.given")
    interpreted(tmp_path)
    (output,) = torch.load(tmp_path / "odd.result")
    torch.testing.assert_close(output.double(), expected.double(), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("shape", [(3, 17, 5), (16, 8, 24), (1, 7, 8)])
def test_padded_product_equals_product(shape: tuple[int, int, int], transposed: bool) -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(filling.PADDING_FUNCTION, names)
    rows, inner, columns = shape
    torch.manual_seed(0)
    left = torch.randn(rows, inner)
    right = torch.randn(columns, inner).T if transposed else torch.randn(inner, columns)
    added = torch.randn(columns)
    torch.testing.assert_close(names["filled"](8, left, right), left @ right)
    before = torch.nn.functional.pad(left, (0, -inner % 8))
    torch.testing.assert_close(names["filled"](8, before, right), left @ right)
    result = names["filled"](8, left, right, added)
    torch.testing.assert_close(result, torch.addmm(added, left, right))
    batch = names["filled"](8, left.expand(2, -1, -1), right.expand(2, -1, -1))
    torch.testing.assert_close(batch, (left @ right).expand(2, -1, -1))
