"""Correct kernels that do less work than the formulas of the reference's operators are not flagged,
at 95 % of the ceilings; times that their own algorithms cannot reach are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.collectors.ceilings import BandwidthPoint, Ceilings, MeasuredRate
from optimizer.evaluation.correctness.prepared import PreparedProblem
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.runner_process import RunnerPool
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import CaseTiming, Flag, Interval
from optimizer.evaluation.roofline import doubtful_us, limits_of
from optimizer.evaluation.settings import EvaluationSettings, TimingPolicy
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.cpp import CppToolchain
from optimizer.evaluation.toolchains.python import TorchPython

pytestmark = pytest.mark.slow(seconds=30)

PEAK, NARROW, BANDWIDTH = 100e9, 200e9, 100e9  # float32 and 16-bit flop/s, bytes/s
DEVICE = Ceilings(
    device="d",
    kind="cpu",
    threads=1,
    cache_bytes=1,
    copy=(BandwidthPoint(1, BANDWIDTH, 0, 9),),
    matmul={"float32": MeasuredRate(PEAK, 0, 9), "bfloat16": MeasuredRate(NARROW, 0, 9)},
)
QUICK = EvaluationSettings(
    call_seconds=5.0,
    threads=1,
    timing=TimingPolicy(block_ms=1.0, min_pairs=4, max_pairs=4, quiet=1e6, seconds=5.0),
)
CPU = EvaluationTarget("x86-64", ("x86-64",), "native", "cpu")
START = "import math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


@dataclass(frozen=True)
class CorrectKernel:
    """A problem and a correct kernel. `inputs` are expressions by name; `reference` and `candidate`
    are bodies of `forward`, or the candidate is a C++ file. `operations` are those that the
    candidate needs, at `rate`; `moved` are the bytes of inputs that it reads.
    """

    inputs: dict[str, str]
    reference: str
    candidate: str
    operations: float
    moved: float
    rate: float = PEAK
    init: str = "pass"
    policy: str = ""
    extra: str = ""  # methods of the candidate
    fits: bool = True  # whether even the formulas allow its time
    certain: float = 0.0  # operations of which no right kernel saves half


def file_of(name: str, given: CorrectKernel, body: str, extra: str = "") -> str:
    lines = (line for line in body.strip().splitlines())
    text = "\n        ".join(lines)
    return (
        f"{START}\nclass {name}(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {given.init}\n{extra}\n"
        f"    def forward(self, {', '.join(given.inputs)}):\n        {text}\n"
    )


def problem_in(folder: Path, given: CorrectKernel) -> Path:
    path = folder / "problem.py"
    inputs = ", ".join(given.inputs.values())
    path.write_text(
        file_of("Model", given, given.reference)
        + f"\ndef get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return []\n"
    )
    if given.policy:
        (folder / "problem.toml").write_text(f"[policy]\n{given.policy}\n")
    return path


T, D, HEADS = 256, 32, 2
SIZE = 4 * HEADS * T * D
QKV = {name: f"torch.randn({HEADS}, {T}, {D})" for name in "qkv"}
WINDOW = 16
BLOCK = 16
N = 192


def attention(pairs: int) -> float:
    return 2.0 * HEADS * pairs * 2 * D


MASK_BY_BLOCKS = """
b = torch.arange({T}) // {BLOCK}
seen = ((b[:, None] - b) % 8 == 0)
""".replace("{T}", str(T)).replace("{BLOCK}", str(BLOCK))
CAUSAL_TILES = f"""
out = torch.empty_like(q)
for at in range(0, {T}, {BLOCK}):
    end = at + {BLOCK}
    s = q[:, at:end] @ k[:, :end].mT * {D**-0.5}
    s[:, :, at:] += torch.full(({BLOCK}, {BLOCK}), -math.inf).triu(1)
    out[:, at:end] = s.softmax(-1) @ v[:, :end]
return out
"""
WINDOW_TILES = f"""
out = torch.empty_like(q)
i = torch.arange({T})
for at in range(0, {T}, {BLOCK}):
    low, end = max(0, at - {WINDOW}), at + {BLOCK}
    near = (i[at:end, None] - i[low:end])
    s = q[:, at:end] @ k[:, low:end].mT * {D**-0.5}
    s = s.masked_fill((near < 0) | (near >= {WINDOW}), -math.inf)
    out[:, at:end] = s.softmax(-1) @ v[:, low:end]
return out
"""
BLOCK_TILES = f"""
out = torch.empty_like(q)
for at in range({T // BLOCK}):
    own = slice(at * {BLOCK}, at * {BLOCK} + {BLOCK})
    use = [slice(b * {BLOCK}, b * {BLOCK} + {BLOCK}) for b in range(at % 8, {T // BLOCK}, 8)]
    keys = torch.cat([k[:, one] for one in use], 1)
    values = torch.cat([v[:, one] for one in use], 1)
    out[:, own] = (q[:, own] @ keys.mT * {D**-0.5}).softmax(-1) @ values
return out
"""
TRIANGLE = """
#include "kernlore_abi.h"
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {
  const float *a = (const float *)t[0].data, *b = (const float *)t[1].data;
  float *y = (float *)t[2].data;
  const int64_t n = t[0].shape[0], m = t[1].shape[1];
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < m; j++) y[i * m + j] = 0;
    for (int64_t k = 0; k <= i; k++)
      for (int64_t j = 0; j < m; j++) y[i * m + j] += a[i * n + k] * b[k * m + j];
  }
  return 0;
}
"""
SYMMETRIC = """
#include "kernlore_abi.h"
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {
  const float *a = (const float *)t[0].data;
  float *y = (float *)t[1].data;
  const int64_t n = t[0].shape[0], m = t[0].shape[1];
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j <= i; j++) {
      float s = 0;
      for (int64_t k = 0; k < m; k++) s += a[i * m + k] * a[j * m + k];
      y[i * n + j] = y[j * n + i] = s;
    }
  return 0;
}
"""
STRASSEN = """
    def product(self, a, b, levels):
        if not levels:
            return a @ b
        h = a.shape[0] // 2
        p, q, r, s = a[:h, :h], a[:h, h:], a[h:, :h], a[h:, h:]
        e, f, g, i = b[:h, :h], b[:h, h:], b[h:, :h], b[h:, h:]
        one = self.product(p + s, e + i, levels - 1)
        two = self.product(r + s, e, levels - 1)
        three = self.product(p, f - i, levels - 1)
        four = self.product(s, g - e, levels - 1)
        five = self.product(p + q, i, levels - 1)
        six = self.product(r - p, e + f, levels - 1)
        seven = self.product(q - s, g + i, levels - 1)
        top = torch.cat([one + four - five + seven, three + five], 1)
        return torch.cat([top, torch.cat([two + four, one - two + three + six], 1)])
"""
FOLDED = """
    def folded(self):
        if not hasattr(self, 'known'):
            with torch.no_grad():
                self.known = self.v.weight @ self.u.weight
        return self.known
"""
SQUARE = {name: f"torch.randn({N}, {N})" for name in "ab"}
MATRIX = 4 * N * N
LONG = 512
ROWS, LENGTH, WIDTH = 16, 64, 48
VALID = 16  # at most this many positions of each row
BY_FFT = 2.5 * 3 * 2 * LONG * math.log2(2 * LONG)

RIGHT = {
    "causal attention": CorrectKernel(
        QKV,
        "return F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        CAUSAL_TILES,
        attention(T * (T + 1) // 2),
        3 * SIZE,
        fits=True,
    ),
    "causal attention by hand": CorrectKernel(
        QKV,
        f"s = q @ k.mT * {D**-0.5}\n"
        f"m = torch.ones({T}, {T}, dtype=torch.bool).triu(1)\n"
        "return s.masked_fill(m, -math.inf).softmax(-1) @ v",
        CAUSAL_TILES,
        attention(T * (T + 1) // 2),
        3 * SIZE,
    ),
    "windowed attention": CorrectKernel(
        QKV,
        f"i = torch.arange({T})\nd = i[:, None] - i\n"
        f"seen = (d >= 0) & (d < {WINDOW})\n"
        "return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)",
        WINDOW_TILES,
        attention(T * WINDOW - WINDOW * (WINDOW - 1) // 2),
        3 * SIZE,
        fits=False,
    ),
    "block-sparse attention": CorrectKernel(
        QKV,
        f"{MASK_BY_BLOCKS.strip()}\n"
        f"s = q @ k.mT * {D**-0.5} + torch.where(seen, 0.0, -1e9)\n"
        "return s.softmax(-1) @ v",
        BLOCK_TILES,
        attention(T * T // 8),
        3 * SIZE,
        fits=False,
    ),
    "linear attention by states": CorrectKernel(
        QKV,
        "return (q @ k.mT).tril() @ v",
        "states = (k[..., None] * v[:, :, None]).cumsum(1)\n"
        "return (q[:, :, None] @ states).squeeze(2)",
        2 * 2 * HEADS * T * D * D,
        3 * SIZE,
        fits=False,
    ),
    "a triangular matrix": CorrectKernel(
        SQUARE, "return a.tril() @ b", TRIANGLE, N * N * (N + 1), 1.5 * MATRIX, fits=True
    ),
    "a triangular output": CorrectKernel(
        SQUARE,
        "return (a @ b).tril()",
        f"out = torch.zeros({N}, {N})\n"
        f"for at in range(0, {N}, 32):\n"
        "    out[at:at + 32, :at + 32] = a[at:at + 32] @ b[:, :at + 32]\n"
        "return out.tril()",
        N * N * (N + 1),
        2 * MATRIX,
        certain=N * N * (N + 1),
    ),
    "a symmetric output": CorrectKernel(
        {"a": SQUARE["a"]}, "return a @ a.mT", SYMMETRIC, N * N * (N + 1), MATRIX
    ),
    "ragged rows": CorrectKernel(
        {
            "x": f"torch.randn({ROWS}, {LENGTH}, {WIDTH})",
            "w": f"torch.randn({WIDTH}, {WIDTH})",
            "n": f"torch.randint(0, {VALID}, ({ROWS},))",
        },
        f"inside = torch.arange({LENGTH}) < n[:, None]\n"
        "return torch.where(inside[..., None], torch.relu(x @ w), 0.0)",
        "out = torch.zeros_like(x)\n"
        "for row, length in enumerate(n.tolist()):\n"
        "    out[row, :length] = torch.relu(x[row, :length] @ w)\n"
        "return out",
        2 * ROWS * (VALID - 1) / 4 * WIDTH * WIDTH,
        4 * ROWS * (VALID - 1) / 4 * WIDTH + 4 * WIDTH * WIDTH,
        fits=False,
    ),
    "the first of sorted rows": CorrectKernel(
        {"x": "torch.randn(256, 64)", "w": "torch.randn(64, 64)"},
        "return (x @ w)[x[:, 0].topk(8).indices]",
        "return x[x[:, 0].topk(8).indices] @ w",
        2 * 8 * 64 * 64,
        4 * (64 * 64 + 8 * 64 + 256 * 16),
        fits=False,
    ),
    "steps until nothing changes": CorrectKernel(
        {"x": "torch.randn(64, 64)", "w": "torch.randn(64, 64) / 40"},
        "y = x\nfor _ in range(100):\n    y = torch.tanh(y @ w) + x\nreturn y",
        "y = x\nfor _ in range(40):\n    y = torch.tanh(y @ w) + x\nreturn y",
        40 * 2 * 64**3,
        2 * 4 * 64 * 64,
    ),
    "folded frozen weights": CorrectKernel(
        {"x": "torch.randn(128, 64)"},
        "return self.v(self.u(x))",
        "return x @ self.folded().mT",
        2 * 128 * 64 * 64,
        4 * 128 * 64,
        init="self.u, self.v = nn.Linear(64, 512, False), nn.Linear(512, 64, False)",
        policy='weights = "frozen"',
        extra=FOLDED,
        fits=False,
    ),
    "a memoised product of frozen weights": CorrectKernel(
        {"x": "torch.randn(128, 64)"},
        "return torch.relu(x @ (self.v.weight @ self.u.weight).mT)",
        "return torch.relu(x @ self.folded().mT)",
        2 * 128 * 64 * 64 / 2,
        4 * 128 * 64,
        init="self.u, self.v = nn.Linear(64, 512, False), nn.Linear(512, 64, False)",
        policy='weights = "frozen"',
        extra=FOLDED,
        fits=False,
    ),
    "the sum of a product": CorrectKernel(
        {"x": "torch.randn(256, 256)", "w": "torch.randn(256, 256)"},
        "return (x @ w).sum(1)",
        "return x @ w.sum(1)",
        3 * 256 * 256,
        2 * 4 * 256 * 256,
    ),
    "Strassen's product": CorrectKernel(
        SQUARE,
        "return a @ b",
        "return self.product(a, b, 2)",
        (7 / 8) ** 2 * 2 * N**3,
        2 * MATRIX,
        extra=STRASSEN,
        certain=2 * N**3,
    ),
    "a long convolution by FFT": CorrectKernel(
        {"x": f"torch.randn(1, 1, {LONG})", "w": f"torch.randn(1, 1, {LONG})"},
        f"return F.conv1d(x, w.flip(-1), padding={LONG - 1})[..., :{LONG}]",
        f"f = torch.fft.rfft(x, {2 * LONG}) * torch.fft.rfft(w, {2 * LONG})\n"
        f"return torch.fft.irfft(f, {2 * LONG})[..., :{LONG}].contiguous()",
        BY_FFT,
        2 * 4 * LONG,
        fits=False,
    ),
    "a circulant product by FFT": CorrectKernel(
        {"v": "torch.randn(128)", "x": "torch.randn(128, 16)"},
        "i = torch.arange(128)\nreturn v[(i[:, None] - i) % 128] @ x",
        "f = torch.fft.rfft(v)[:, None] * torch.fft.rfft(x, dim=0)\n"
        "return torch.fft.irfft(f, 128, dim=0).contiguous()",
        2.5 * 2 * 16 * 128 * 7,
        4 * 128 * 17,
        fits=False,
    ),
    "three products in bfloat16": CorrectKernel(
        SQUARE,
        "return a @ b",
        "def parts(x):\n"
        "    high = x.bfloat16().float()\n"
        "    return high, (x - high)\n"
        "(p, q), (r, s) = parts(a), parts(b)\n"
        "return p @ r + p @ s + q @ r + q @ s",
        3 * 2 * N**3,
        2 * MATRIX,
        rate=NARROW,
        fits=True,
    ),
    "sums in bfloat16's own products": CorrectKernel(
        {name: f"torch.randn({N}, {N}).bfloat16()" for name in "ab"},
        "return (a.float() @ b.float()).bfloat16()",
        "return a @ b",
        2 * N**3,
        MATRIX,
        rate=NARROW,
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("right")


@pytest.fixture(params=RIGHT)
def given(request: pytest.FixtureRequest) -> CorrectKernel:
    return RIGHT[request.param]


@pytest.fixture
def path(tmp_path: Path, given: CorrectKernel) -> Path:
    return problem_in(tmp_path, given)


@pytest.fixture
def evaluator(path: Path, pool: RunnerPool) -> Iterator[Evaluator]:
    with Evaluator(load_problem(path), CPU, QUICK, pool=pool) as evaluator:
        yield evaluator


class Timed:
    """A problem with one case, and judgements of times of a call."""

    def __init__(self, path: Path) -> None:
        problem = load_problem(path)
        (self._case,) = problem.cases
        self._prepared = PreparedProblem(problem, "cpu", EvaluationSettings())

    def flags(self, microseconds: float) -> tuple[list[Flag], bool]:
        """Flags of a time, and whether the formulas alone would have flagged it."""
        timing = CaseTiming("main", "measured", 8 * microseconds, microseconds)
        flags = self._prepared.impossible_times(self._case, timing, DEVICE)
        return flags, microseconds < doubtful_us(self._prepared.work(self._case), timing, DEVICE)

    def best_us(self, given: CorrectKernel) -> float:
        written = self._prepared.work(self._case).written_bytes
        return 1e6 * max(given.operations / given.rate, (given.moved + written) / BANDWIDTH)


def test_kernel_is_correct_without_flag(given: CorrectKernel, evaluator: Evaluator) -> None:
    cpp = "kernlore_abi.h" in given.candidate
    if cpp:
        bundle = Bundle({"kernel.cpp": given.candidate}, "kernel.cpp", "cpp", "kernlore_run")
    else:
        source = file_of("ModelNew", given, given.candidate, given.extra)
        bundle = Bundle({"model.py": source}, "model.py", "torch", "ModelNew")
    found = evaluator.evaluate(bundle, CppToolchain() if cpp else TorchPython())
    assert found.validity == "correct", (found.message, found.log[-500:])
    assert not found.flags


def test_best_time_of_algorithm_has_no_flag_and_time_of_cached_results_has_one(
    given: CorrectKernel, path: Path
) -> None:
    timed = Timed(path)
    flags, doubted = timed.flags(timed.best_us(given) / 0.95)
    assert not flags, flags
    assert doubted or given.fits
    flags, _ = timed.flags(0.01)
    assert [flag.defence for flag in flags] == [29]
    if given.certain:
        (flag,), _ = timed.flags(1e6 * given.certain / NARROW * 0.45)
        assert flag.severity == "reject"


def test_view_of_an_input_needs_review(tmp_path: Path) -> None:
    given = CorrectKernel(
        {"x": "torch.randn(512, 512)"}, "return x.t().contiguous()", "return x.t()", 0, 0
    )
    (flag,), _ = Timed(problem_in(tmp_path, given)).flags(0.01)
    assert flag.severity == "review"


def test_limits_without_ceilings_are_zero(tmp_path: Path) -> None:
    problem = load_problem(problem_in(tmp_path, RIGHT["windowed attention"]))
    prepared = PreparedProblem(problem, "cpu", EvaluationSettings())
    work = prepared.counted_work(problem.cases[0])
    assert work.counted_from == "dependence" and work.needed_flops < work.flops / 7
    assert limits_of(work, CaseTiming("main", "measured", 2, 1), None).least_us == 0


UNFUSED = """
class Model(nn.Module):
    def forward(self, x):
        for _ in range({loop}):
            x = torch.tanh(x) + x
        return x
def get_inputs():
    return [torch.randn({rows}, {columns})]
"""
ROWS_OF_CHAIN, COLUMNS_OF_CHAIN = 16, 64


@pytest.mark.parametrize(
    ("loop", "shown"), [(20, {15.0: False, 500.0: True}), (1, {25.0: True, 9.0: False})]
)
def test_large_gain_needs_review_unless_reference_is_wasteful(
    tmp_path: Path, loop: int, shown: dict[float, bool]
) -> None:
    """Twenty fused pairs of operators move a fortieth of the bytes, and one pair half."""
    size = {"rows": ROWS_OF_CHAIN, "columns": COLUMNS_OF_CHAIN}
    (tmp_path / "chain.py").write_text(START + UNFUSED.format(loop=loop, **size), encoding="utf-8")
    problem = load_problem(tmp_path / "chain.py")
    prepared = PreparedProblem(problem, "cpu", EvaluationSettings())
    (case,) = problem.cases
    took = 1e6 * 2 * ROWS_OF_CHAIN * COLUMNS_OF_CHAIN * 4 / BANDWIDTH
    for speedup, review in shown.items():
        gain = Interval(speedup, speedup, speedup, 9)
        timing = CaseTiming("main", "measured", speedup * took, took, speedup=gain)
        flags = prepared.impossible_times(case, timing, DEVICE)
        assert [flag.severity for flag in flags] == (["review"] if review else []), speedup
