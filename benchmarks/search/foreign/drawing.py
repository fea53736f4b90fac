"""Choices that every family of the grammar shares: sizes, data types, chains of pointwise steps,
and the text of a problem file.

Standard library only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

UNARY = (
    "torch.sigmoid({x})",
    "torch.tanh({x})",
    "F.relu({x})",
    "F.gelu({x})",
    "F.silu({x})",
    "F.softplus({x})",
    "F.hardswish({x})",
    "F.mish({x})",
    "F.elu({x})",
    "F.leaky_relu({x}, 0.05)",
    "torch.exp(-{x}.abs())",
    "torch.sqrt({x}.abs() + 0.1)",
    "torch.clamp({x}, -1.5, 2.0)",
    "torch.sin({x})",
    "{x} * {x} * 0.25",
    "{x} * 0.7 + 0.1",
)
LARGEST = {"cpu": 1 << 24, "gpu": 1 << 30}  # elements of the largest input
USUAL = {"cpu": 1 << 22, "gpu": 1 << 27}


@dataclass
class Draw:
    """One problem being drawn. `size` is "cpu" or "gpu"; `random` is seeded by family and seed, so
    that a draw is the same everywhere."""

    size: str
    random: random.Random
    dtype: str = "float32"
    init: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def pick(self, options: Sequence[str]) -> str:
        return self.random.choice(options)

    def elements(self) -> int:
        """How many elements the main input has, about: one in six is the largest."""
        most = LARGEST if self.random.random() < 1 / 6 else USUAL
        return most[self.size]

    def extent(self, near: int) -> int:
        """A length near this one: a power of two, a multiple of eight, or odd."""
        near = max(2, near)
        power = 1 << (near.bit_length() - 1)
        return self.random.choice((power, max(8, near // 8 * 8), near | 1))

    def shape(self, axes: int, elements: int | None = None) -> list[int]:
        """Extents whose product is about `elements`."""
        left = elements or self.elements()
        shares = [self.random.uniform(0.6, 1.4) for _ in range(axes)]
        bits = left.bit_length() - 1
        return [self.extent(round(2 ** (bits * share / sum(shares)))) for share in shares]

    def give(self, name: str, shape: Sequence[int], values: str = "randn") -> str:
        """Another input of this name; returns the name."""
        sizes = ", ".join(map(str, shape))
        suffix = "" if self.dtype == "float32" else f", dtype=torch.{self.dtype}"
        self.arguments.append(name)
        self.inputs.append(f"torch.{values}({sizes}{suffix})")
        return name

    def give_indices(self, name: str, bound: int, shape: Sequence[int]) -> str:
        """Another input of whole numbers from 0 up to `bound`; returns the name."""
        sizes = ", ".join(map(str, shape))
        self.arguments.append(name)
        self.inputs.append(f"torch.randint(0, {bound}, ({sizes},))")
        return name

    def weight(self, name: str, shape: Sequence[int], scale: float = 1.0) -> str:
        """Another parameter of the model; returns the expression that reads it."""
        sizes = ", ".join(map(str, shape))
        factor = "" if scale == 1.0 else f" * {scale:.4g}"
        suffix = "" if self.dtype == "float32" else f", dtype=torch.{self.dtype}"
        self.init.append(f"self.{name} = torch.nn.Parameter(torch.randn({sizes}{suffix}){factor})")
        return f"self.{name}"

    def module(self, name: str, made: str) -> str:
        """Another layer of the model; returns the expression that calls it."""
        cast = "" if self.dtype == "float32" else f".to(torch.{self.dtype})"
        self.init.append(f"self.{name} = torch.nn.{made}{cast}")
        return f"self.{name}"

    def chain(self, name: str, least: int = 1, most: int = 3) -> None:
        """Pointwise steps on a value."""
        for _ in range(self.random.randint(least, most)):
            self.forward.append(f"{name} = {self.pick(UNARY).format(x=name)}")

    def text(self, title: str, result: str) -> str:
        """The problem file, in the convention `Model`, `get_inputs`, `get_init_inputs`."""
        arguments = ", ".join(f"{name}: torch.Tensor" for name in self.arguments)
        init = ["    def __init__(self) -> None:", "        super().__init__()"]
        init += [f"        {line}" for line in self.init]
        lines = [
            f'"""{title}"""',
            "",
            "import torch",
            "import torch.nn.functional as F",
            "",
            "",
            "class Model(torch.nn.Module):",
            *([*init, ""] if self.init else []),
            f"    def forward(self, {arguments}):",
            *(f"        {line}" for line in self.forward),
            f"        return {result}",
            "",
            "",
            "def get_inputs():",
            "    return [",
            *(f"        {value}," for value in self.inputs),
            "    ]",
            "",
            "",
            "def get_init_inputs():",
            "    return []",
            "",
        ]
        return "\n".join(lines)
