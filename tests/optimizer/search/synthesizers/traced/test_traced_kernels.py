"""C++ kernels generated from a graph give the results of the graph: compiled and called."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from kb.candidate_abi import HEADER, HEADER_NAME
from optimizer.evaluation.abi import DTYPE_CODES, Signature, TensorSpec
from optimizer.search.synthesizers.base import CaseView
from optimizer.search.synthesizers.traced.cpp import write_candidate
from optimizer.search.synthesizers.traced.expression import Program
from optimizer.search.synthesizers.traced.synthesizer import lowered

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]

FILE = """
import torch
from torch import nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        {init}

    def forward(self, x, y):
        {forward}


def get_inputs():
    return [torch.randn({shape}, dtype={dtype}), {second}]
"""
STANDARD = ("algorithm", "cmath", "cstdint", "cstdlib", "cstring", "vector")
# name -> init, forward, shape of x, second input
MODELS = {
    "chain": ("pass", "return F.gelu(x * 2 + y).sin() - torch.tanh(x)", "(7, 33)", "(33,)"),
    "logarithms": (
        "pass",
        "return torch.log(x.abs() + 0.1).exp() + torch.log1p(y * y)",
        "(65,)",
        "(65,)",
    ),
    "softmax": ("pass", "return torch.softmax(x / 3 + y, -1)", "(40, 129)", "(129,)"),
    "softmax of columns": ("pass", "return torch.log_softmax(x, 0) * y", "(50, 40)", "(40,)"),
    "softmax of channels": ("pass", "return torch.softmax(x, 1) + y", "(3, 5, 6, 17)", "(17,)"),
    "norm": ("self.n = nn.LayerNorm(70)", "return F.silu(self.n(x)) + y", "(30, 70)", "(70,)"),
    "groups": ("self.n = nn.GroupNorm(2, 6)", "return self.n(x) * y", "(3, 6, 5, 9)", "(9,)"),
    "batch norm": (
        "self.n = nn.BatchNorm1d(20)",
        "return F.relu(self.n(x)) + y",
        "(30, 20)",
        "(20,)",
    ),
    "two results": ("pass", "return x.amax(1) + y, x.argmax(1)", "(20, 300)", "(20,)"),
    "deviation": ("pass", "return x.std(0), (x * y).mean(), x.var()", "(90, 12)", "(12,)"),
    "scans": (
        "pass",
        "rows = (x * y).cumsum(-1) * 0.5\n"
        "        back = x.sigmoid().flip(2).cumprod(2).flip(2)\n"
        "        planes = torch.tanh(x).cumsum(0) + rows.cumsum(1)\n"
        "        return rows, back, planes, (x > 0).cumsum(1), x[:1].cumsum(0), x.sum().cumsum(0)",
        "(5, 6, 70)",
        "(70,)",
    ),
    "scans that share a loop": (
        "pass",
        "total = torch.softmax(x, -1).cumsum(1)\n"
        "        return total / total[:, -1:] + y, x.view(30, 700, 1).cumsum(0).sum()",
        "(300, 70)",
        "(70,)",
    ),
    "long sum": ("pass", "return (x * y).sum(-1)", "(4, 20000)", "(20000,)"),
    "views": (
        "pass",
        "return (x.view(4, 3, 10).transpose(1, 2).reshape(40, 3)[::2] + y).flip(0)",
        "(4, 30)",
        "(3,)",
    ),
    "joined": ("pass", "return torch.cat([x, y.expand(6, 4), x * 2], 1)[:, 1:]", "(6, 5)", "(4,)"),
    "padded": ("pass", "return F.pad(x, (1, 2, 0, 3), value=2.0) + y", "(5, 6)", "(9,)"),
    "products": (
        "self.l = nn.Linear(24, 10)",
        "return F.gelu(self.l(x)) @ y",
        "(9, 24)",
        "(10, 5)",
    ),
    "pooling": ("pass", "return F.max_pool2d(x, 3, 2, 1) * y", "(2, 3, 11, 14)", "(7,)"),
    "windows": (
        "pass",
        "return F.max_pool2d(x + y, (5, 7), 1, (2, 3), 2), F.avg_pool2d(x, 6, (1, 2), 0), "
        "F.avg_pool3d(x, 4, 1, 2), F.max_pool3d(x * 2, (5, 3, 3), (2, 1, 1), (2, 1, 0))",
        "(3, 9, 14, 15)",
        "(15,)",
    ),
    "means": ("pass", "return F.avg_pool2d(x, 2) + y", "(2, 3, 8, 10)", "(5,)"),
    "adaptive pooling": (
        "pass",
        "even = F.adaptive_avg_pool2d(x, (4, 5)) + y\n"
        "        uneven = F.adaptive_avg_pool2d(x, (3, 7)), F.adaptive_max_pool2d(x, (5, 3))\n"
        "        line = F.adaptive_avg_pool1d(x.flatten(2), 7)\n"
        "        return even, *uneven, line, F.adaptive_avg_pool3d(x[None], (2, 3, 4))",
        "(2, 3, 8, 10)",
        "(5,)",
    ),
    "means at the border": (
        "pass",
        "wide = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True) + y\n"
        "        inside = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)\n"
        "        of_two = F.avg_pool2d(x, 3, 2, ceil_mode=True, divisor_override=2)\n"
        "        return wide, inside, of_two, F.avg_pool2d(x, (2, 3), 3, 1, True, False)",
        "(2, 3, 8, 10)",
        "(6,)",
    ),
    "convolution": (
        "self.c = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)",
        "return F.relu(self.c(x)) + y",
        "(2, 4, 9, 10)",
        "(5,)",
    ),
    "gradient": (
        "pass",
        "x = x.detach().requires_grad_()\n"
        "        with torch.enable_grad():\n"
        "            loss = (torch.softmax(x, -1) * y).sum()\n"
        "        return torch.autograd.grad(loss, x)[0]",
        "(11, 20)",
        "(20,)",
    ),
    "smoothed": (
        "pass",
        "target = (y.abs() * 7).long() % 20\n"
        "        return F.cross_entropy(x, target, label_smoothing=0.1)",
        "(11, 20)",
        "(11,)",
    ),
    "in place": ("pass", "z = x * y; z += 1; return z.relu_() - x", "(8, 40)", "(40,)"),
    "functions": (
        "pass",
        "a = x.abs()\n"
        "        every = [x.tan(), x.sinh(), x.cosh(), x.asinh(), (a + 1).acosh()]\n"
        "        every += [x.tanh() * 0.9]\n"
        "        every += [every[-1].atanh(), every[-1].erfinv(), every[-1].asin(), a.log10()]\n"
        "        every += [x.lgamma(), x.digamma(), torch.atan2(x, y), torch.hypot(x, y)]\n"
        "        every += [torch.copysign(x, y), torch.fmin(x, y), torch.fmax(x, a.log())]\n"
        "        every += [x.round(decimals=2), torch.where(x.signbit(), y, 0.0)]\n"
        "        return torch.stack(every)",
        "(9, 40)",
        "(40,)",
    ),
    "quotients": (
        "pass",
        "k, m = (x * 20).long(), (y * 5).long()\n"
        "        m = torch.where(m == 0, 3, m)\n"
        "        parts = [k // m, k.div(m, rounding_mode='trunc'), k % m, torch.fmod(k, m)]\n"
        "        parts += [k & m, k | m, k ^ m, ~k, k << 2, k >> 1, (x > y).long() ^ 1]\n"
        "        rest = [torch.div(x, y, rounding_mode='floor'), x.div(y, rounding_mode='trunc')]\n"
        "        rest += [x % y, torch.fmod(x, y), torch.remainder(x, -0.7)]\n"
        "        both = (x > 0) * (y > 0) + torch.logical_xor(x > 1, y > 1)\n"
        "        return torch.stack(parts), torch.stack(rest), both.long()",
        "(12, 30)",
        "(30,)",
    ),
    "places": (
        "pass",
        "z = x.slice_scatter(y * 2, 0, 1, 3) + x.as_strided((6, 6), (1, 6), 0)\n"
        "        best, at = z.min(1)\n"
        "        three = torch.where(z > 0, z, torch.tensor(3.0))\n"
        "        copied = torch.empty_like(x).copy_(y[0])\n"
        "        whole = (x.diagonal(1), z.unfold(1, 3, 2), best, at, z.max(), z.argmax(), three)\n"
        "        return (*whole, copied)",
        "(6, 6)",
        "(2, 6)",
    ),
    "sums of products": (
        "self.b = nn.Bilinear(5, 5, 3)",
        "z = torch.addbmm(y, x, x.transpose(1, 2), beta=0.5, alpha=2.0)\n"
        "        return z, self.b(x, x + 1), torch.addmm(y, x[0], x[1].T, beta=2, alpha=0.3)",
        "(3, 4, 5)",
        "(4, 4)",
    ),
    "transposed convolution": (
        "self.c = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2, dilation=2)",
        "return self.c(x) + y",
        "(2, 4, 5, 6)",
        "(13,)",
    ),
    "interpolation": (
        "pass",
        "z = F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=False)\n"
        "        return F.interpolate(z, (5, 9), mode='bicubic'), F.adaptive_avg_pool2d(z, 3) + y",
        "(2, 3, 5, 6)",
        "(3,)",
    ),
    "masked": (
        "pass",
        "return torch.where(x > y, x, -x).clamp(-1, 1).amin(-1)",
        "(8, 40)",
        "(40,)",
    ),
}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int64),
        ("ndim", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("stride", ctypes.POINTER(ctypes.c_int64)),
    ]


def source_of(name: str, dtype: str = "torch.float32") -> str:
    init, forward, shape, second = MODELS[name]
    made = f"torch.randn({second}, dtype={dtype})"
    return FILE.format(init=init, forward=forward, shape=shape, second=made, dtype=dtype)


def opened(source: str) -> tuple[CaseView, list[torch.Tensor], list[torch.Tensor]]:
    """The case, the arguments of a kernel before the outputs, and the outputs in float64."""
    module: dict[str, object] = {}
    exec(compile(source, "problem", "exec"), module)
    torch.manual_seed(1)
    inputs = module["get_inputs"]()  # type: ignore[operator]
    model = module["Model"]().eval().requires_grad_(False)  # type: ignore[operator]
    given = [*inputs, *model.state_dict().values()]
    outputs = model.double()(*(x.double() for x in inputs))
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    kind = str(inputs[0].dtype).removeprefix("torch.")
    roles = ["input"] * len(inputs) + ["parameter"] * (len(given) - len(inputs))
    specs = [
        TensorSpec(f"t{n}", role, str(t.dtype).removeprefix("torch."), tuple(t.shape))  # type: ignore[arg-type]
        for n, (role, t) in enumerate(zip(roles, given, strict=True))
    ]
    for number, output in enumerate(outputs):
        dtype = kind if output.is_floating_point() else "int64"
        specs.append(TensorSpec(f"out{number}", "output", dtype, tuple(output.shape)))
    case = CaseView("main", Signature(tuple(specs)), {}, True, None, {}, source)
    return case, given, outputs


@cache
def parsed_headers() -> tempfile.TemporaryDirectory[str]:
    """A folder with the standard headers of kernels as `std.h`, precompiled: they take longer to
    parse than a kernel takes to compile.
    """
    folder = tempfile.TemporaryDirectory(prefix="kernlore-headers-")
    header = Path(folder.name, "std.h")
    header.write_text("".join(f"#include <{name}>\n" for name in STANDARD))
    compiled(str(header), "-x", "c++-header", "-o", f"{header}.gch")
    return folder


def compiled(*arguments: str) -> None:
    command = ["g++", "-O2", "-march=native", "-shared", "-fPIC", "-fopenmp", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def called(
    case: CaseView, program: Program, given: list[torch.Tensor], folder: Path
) -> list[torch.Tensor]:
    """The outputs of the compiled kernel."""
    (folder / HEADER_NAME).write_text(HEADER)
    (folder / "kernel.cpp").write_text(write_candidate([(case.signature, program)]))
    headers = ("-include", f"{parsed_headers().name}/std.h", f"-I{folder}")
    compiled(*headers, str(folder / "kernel.cpp"), "-o", str(folder / "kernel.so"))
    outputs = [
        torch.full(spec.shape, 77, dtype=getattr(torch, spec.dtype))
        for spec in case.signature.of("output")
    ]
    tensors = [t.contiguous() for t in given] + outputs
    sizes = [(ctypes.c_int64 * max(1, t.dim()))(*t.shape) for t in tensors]
    array = (Tensor * len(tensors))(
        *(
            Tensor(t.data_ptr(), DTYPE_CODES[str(t.dtype).removeprefix("torch.")], t.dim(), s, s)
            for t, s in zip(tensors, sizes, strict=True)
        )
    )
    library = ctypes.CDLL(str(folder / "kernel.so"))
    assert library.kernlore_run(array, None) == 0
    sizes[0][0] += 1
    assert library.kernlore_run(array, None) == 1  # a shape that it was not generated for
    return outputs


@pytest.mark.parametrize("name", MODELS)
def test_kernel_equals_model(name: str, tmp_path: Path) -> None:
    case, given, expected = opened(source_of(name))
    program = lowered(case)
    assert isinstance(program, Program), program
    for output, golden in zip(called(case, program, given, tmp_path), expected, strict=True):
        torch.testing.assert_close(output.double(), golden.double(), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["torch.float64", "torch.float16", "torch.bfloat16"])
def test_other_dtypes(dtype: str, tmp_path: Path) -> None:
    case, given, expected = opened(source_of("softmax", dtype))
    program = lowered(case)
    assert isinstance(program, Program), program
    exact = {"torch.float64": 1e-12, "torch.float16": 1e-3, "torch.bfloat16": 8e-3}[dtype]
    (output,) = called(case, program, given, tmp_path)
    torch.testing.assert_close(output.double(), expected[0], rtol=exact, atol=exact / 10)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("return torch.linalg.qr(x)[0] + y", "aten.linalg_qr"),
        ("return x + torch.rand(3)", "it is not lowered"),
        ("return (x > 0).nonzero()", "it was not traced"),
    ],
)
def test_unsupported_operator_is_named(forward: str, reason: str) -> None:
    source = FILE.format(
        init="pass", forward=forward, shape="(4, 3)", second="torch.randn(3)", dtype="torch.float32"
    )
    second = TensorSpec("y", "input", "float32", (3,))
    signature = Signature((TensorSpec("x", "input", "float32", (4, 3)), second))
    problem = lowered(CaseView("main", signature, {}, True, None, {}, source))
    assert isinstance(problem, str) and reason in problem
