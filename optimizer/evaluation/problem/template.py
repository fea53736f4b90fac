"""Templates of new problems: a file and a toml that pass the check, for a few kinds of operator.
The author fills in the computation.
"""

from __future__ import annotations

import re
from pathlib import Path

from kb.errors import Conflict, InvalidRequest
from kb.problem_terms import canonical_op, op_family, problem_terms
from optimizer.evaluation.problem.load import SOURCE_NAME, TOML_NAME

_ROWS = '''"""{title}: what is computed, in one sentence."""

import torch
import torch.nn as nn

# Sizes. A case of problem.toml may set each of them; values derived from them follow.
rows = 1024
width = 1024


class Model(nn.Module):
    """The reference. Parameters and buffers are handed to a kernel after the inputs, in the order
    of state_dict()."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        {formula}


def get_inputs() -> list[torch.Tensor]:
    """On the CPU, from torch's generator: the harness seeds it and moves the tensors."""
    return [torch.randn(rows, width)]


def get_init_inputs() -> list[int]:
    return [width]
'''
_MATMUL = '''"""{title}: what is computed, in one sentence."""

import torch
import torch.nn as nn

# Sizes. A case of problem.toml may set each of them; values derived from them follow.
rows = 512
width = 512
cols = 512


class Model(nn.Module):
    """The reference. Parameters and buffers are handed to a kernel after the inputs, in the order
    of state_dict()."""

    def __init__(self, width: int, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, cols) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def get_inputs() -> list[torch.Tensor]:
    """On the CPU, from torch's generator: the harness seeds it and moves the tensors."""
    return [torch.randn(rows, width)]


def get_init_inputs() -> list[int]:
    return [width, cols]
'''
_ELEMENTWISE = "return torch.nn.functional.silu(x * self.scale)"
_NORM = "return x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + 1e-6) * self.scale"

_TOML = """# Claims about this problem, and how it is judged.
name = "{name}"
op = "{op}"
summary = "What is computed, in one sentence."

[policy]
# Terms in one output element; a number or a formula of the file's constants.
reduction_length = {length}
# strict: at least as precise as the inputs; relaxed: tf32 or 16 bits inside are fine.
precision = "strict"
# forbidden: torch's ready-made operators may not do the work.
library = "allowed"
# frozen: weights stay the same between calls and may be packed once.
weights = "varying"
# Others: outputs = ["float", "exact", "index"], index_into = {{x = 1}},
# perturb = ["integer_input"], fixed = ["input_with_structure"].

# The size to be fast at.
[[cases]]
name = "main"
constants = {{{main}}}
dtype = "float32"

# Sizes that no tile divides.
[[cases]]
name = "odd"
constants = {{{odd}}}
dtype = "float32"
timed = false

# Other distributions: mean_zero, offset (a large mean, so sums cancel), wide (many magnitudes).
[[cases]]
name = "wide"
constants = {{{odd}}}
dtype = "float32"
distribution = "wide"
timed = false

# A size for GPUs only.
[[cases]]
name = "gpu"
constants = {{{gpu}}}
dtype = "float32"
devices = ["cuda"]

# Never seen by a search; a winner is measured again on it.
[[cases]]
name = "held_out"
constants = {{{held_out}}}
dtype = "float32"
held_out = true
"""
_SIZES = {
    "main": "rows = 1024, width = 1024",
    "odd": "rows = 37, width = 131",
    "gpu": "rows = 16384, width = 4096",
    "held_out": "rows = 700, width = 1536",
}
_MATMUL_SIZES = {
    "main": "rows = 512, width = 512, cols = 512",
    "odd": "rows = 37, width = 131, cols = 53",
    "gpu": "rows = 8192, width = 4096, cols = 4096",
    "held_out": "rows = 300, width = 768, cols = 640",
}
_ALONG_ROWS = ("norm", "softmax", "reduction", "scan", "loss")


def write_problem(name: str, folder: Path, op: str = "elementwise") -> Path:
    """Write `folder/name/` with problem.py and problem.toml, and return it. Raises Conflict if it
    exists, InvalidRequest for a name that is not a lower-case identifier."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InvalidRequest(
            f"{name!r} is not a name for a problem", hint="Use lower case, digits and underscores."
        )
    where = folder / name
    if where.exists():
        raise Conflict(f"{where} exists", hint="Choose another name, or another --dir.")
    canonical = canonical_op(op)
    source, toml = _texts(name, canonical)
    where.mkdir(parents=True)
    (where / SOURCE_NAME).write_text(source, encoding="utf-8")
    (where / TOML_NAME).write_text(toml, encoding="utf-8")
    return where


def _texts(name: str, op: str) -> tuple[str, str]:
    family = op_family(op)
    title = name.replace("_", " ").capitalize()
    matmul = family == "matmul"
    along = family in _ALONG_ROWS
    sizes = _MATMUL_SIZES if matmul else _SIZES
    length = '"width"' if matmul or along else "1"
    source = _MATMUL.format(title=title) if matmul else _rows(title, along)
    return source, _TOML.format(name=name, op=op, length=length, **sizes)


def _rows(title: str, along: bool) -> str:
    return _ROWS.format(title=title, formula=_NORM if along else _ELEMENTWISE)


def known_ops() -> list[str]:
    """Operators that recipes and warm starts know."""
    return sorted(problem_terms().ops)
