"""The families of foreign problems. Each draws one problem: its inputs, what it computes, and a
chain before or behind it where its kind has one.

Standard library only, so that a machine without our dependencies can draw them too.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent

HALVES = ("float32", "float16", "bfloat16")


def elementwise(draw: Draw) -> str:
    shape = draw.shape(draw.random.randint(1, 4))
    draw.give("x", shape)
    if draw.random.random() < 0.5:
        other = shape if draw.random.random() < 0.5 else shape[-1:]
        draw.forward.append(f"x = x {draw.pick('+-*')} {draw.give('y', other)}")
    draw.chain("x", 2, 5)
    return "x"


def reduction(draw: Draw) -> str:
    axes = draw.random.randint(2, 4)
    draw.give("x", draw.shape(axes))
    draw.chain("x", 0, 2)
    axis = draw.random.randrange(axes)
    keep = draw.pick(("", ", keepdim=True"))
    kind = draw.pick(("sum", "mean", "amax", "var", "logsumexp", "norm", "argmax"))
    if kind == "norm":
        return f"torch.linalg.vector_norm(x, dim={axis}{keep})"
    return f"x.{kind}(dim={axis}{keep})"


def norm(draw: Draw) -> str:
    draw.dtype = draw.pick(HALVES)
    kind = draw.pick(("layer", "rms", "group", "instance"))
    if kind in ("layer", "rms"):
        rows, columns = draw.shape(2)
        draw.give("x", (rows, columns))
        if draw.random.random() < 0.5:
            draw.forward.append(f"x = x + {draw.give('residual', (rows, columns))}")
        weight = draw.weight("weight", (columns,))
        name = "layer_norm" if kind == "layer" else "rms_norm"
        draw.forward.append(f"x = F.{name}(x, ({columns},), {weight})")
    else:
        batch, height, width = draw.shape(3, draw.elements() // 64)
        draw.give("x", (batch, 64, height, width))
        layer = "GroupNorm(8, 64)" if kind == "group" else "InstanceNorm2d(64, affine=True)"
        draw.forward.append(f"x = {draw.module('norm', layer)}(x)")
    draw.chain("x", 0, 2)
    return "x"


def softmax(draw: Draw) -> str:
    draw.dtype = draw.pick(HALVES)
    axes = draw.random.randint(2, 4)
    shape = draw.shape(axes)
    draw.give("x", shape)
    if draw.random.random() < 0.5:
        draw.forward.append(f"x = x * 0.3 + {draw.give('mask', shape[-1:])}")
    axis = draw.random.choice((-1, -1, draw.random.randrange(axes)))
    draw.forward.append(f"x = F.{draw.pick(('softmax', 'log_softmax', 'softmin'))}(x, dim={axis})")
    draw.chain("x", 0, 1)
    return "x"


def product(draw: Draw) -> str:
    draw.dtype = draw.pick(HALVES)
    near = 512 if draw.size == "cpu" else 4096
    m, n, k = (draw.extent(draw.random.randint(near // 4, near)) for _ in range(3))
    batched = draw.random.random() < 0.4
    draw.give("x", (8, m // 8 + 1, k) if batched else (m, k))
    weight = draw.weight("weight", (n, k), k**-0.5)
    bias = draw.weight("bias", (n,)) if draw.random.random() < 0.6 else "None"
    draw.chain("x", 0, 1)
    draw.forward.append(f"x = F.linear(x, {weight}, {bias})")
    draw.chain("x", 1, 3)
    return draw.pick(("x", "x", "x.sum(dim=-1)", "x.amax(dim=-1)"))


def convolution(draw: Draw) -> str:
    axes = draw.random.randint(1, 3)
    channels, more = draw.extent(draw.random.randint(16, 64)), draw.extent(64)
    kernel, stride = draw.random.choice((1, 3, 3, 5)), draw.random.choice((1, 1, 2))
    places = draw.elements() // 4 // channels
    shape = draw.shape(axes + 1, places)
    draw.give("x", (min(shape[0], 64), channels, *(max(side, 8) for side in shape[1:])))
    transposed = draw.random.random() < 0.25
    grouped = not transposed and draw.random.random() < 0.25
    outputs, groups = (channels, f", groups={channels}") if grouped else (more, "")
    layer = f"Conv{'Transpose' if transposed else ''}{axes}d"
    made = f"{layer}({channels}, {outputs}, {kernel}, {stride}, {kernel // 2}{groups})"
    draw.forward.append(f"x = {draw.module('conv', made)}(x)")
    draw.chain("x", 1, 3)
    return draw.pick(("x", "x", f"F.max_pool{axes}d(x, 2)", f"x.mean(dim={[*range(2, axes + 2)]})"))


def pooling(draw: Draw) -> str:
    axes = draw.random.randint(1, 3)
    shape = draw.shape(axes + 1)
    draw.give("x", (shape[0] // 16 + 1, 16, *(max(side, 12) for side in shape[1:])))
    kernel = draw.random.randint(2, 5)
    stride, padding = draw.random.randint(1, kernel), draw.random.randint(0, kernel // 2)
    kind = draw.pick(("max", "avg", "adaptive_avg", "lp"))
    if kind == "adaptive_avg":
        call = f"F.adaptive_avg_pool{axes}d(x, {draw.random.randint(1, 7)})"
    elif kind == "lp":
        call = f"F.avg_pool{axes}d(x * x, {kernel}, {stride}).sqrt()"
    else:
        call = f"F.{kind}_pool{axes}d(x, {kernel}, {stride}, {padding})"
    draw.forward.append(f"x = {call}")
    draw.chain("x", 0, 2)
    return "x"


def scan(draw: Draw) -> str:
    axes = draw.random.randint(2, 3)
    draw.give("x", draw.shape(axes))
    draw.forward.append("x = torch.tanh(x) * 0.5")
    axis = draw.random.randrange(axes)
    kind = draw.pick(("cumsum", "cumsum", "logcumsumexp", "cumprod", "reversed", "exclusive"))
    if kind == "reversed":
        draw.forward.append(f"x = x.flip({axis}).cumsum({axis}).flip({axis})")
    elif kind == "exclusive":
        draw.forward.append(f"x = x.cumsum({axis}) - x")
    elif kind == "cumprod":
        draw.forward.append(f"x = (1 + x * 0.001).cumprod({axis})")
    else:
        draw.forward.append(f"x = x.{kind}({axis})")
    draw.chain("x", 0, 2)
    return "x"


def loss(draw: Draw) -> str:
    rows, columns = draw.shape(2)
    x = draw.give("x", (rows, columns))
    if draw.random.random() < 0.35:
        target = draw.give_indices("target", columns, (rows,))
        smoothing = draw.pick(("", ", label_smoothing=0.1"))
        return f"F.cross_entropy({x}, {target}{smoothing})"
    target = draw.give("target", (rows, columns), "rand")
    losses = (
        "F.mse_loss(x, target)",
        "F.smooth_l1_loss(x, target)",
        "F.huber_loss(x, target, delta=0.5)",
        "F.binary_cross_entropy_with_logits(x, target)",
        "F.kl_div(F.log_softmax(x, -1), F.softmax(target, -1), reduction='batchmean')",
        "(1 - F.cosine_similarity(x, target, dim=-1)).mean()",
        "F.relu(1 - x * (2 * target - 1)).mean()",
    )
    return draw.pick(losses)


def attention(draw: Draw) -> str:
    draw.dtype = draw.pick(HALVES)
    near = 256 if draw.size == "cpu" else 2048
    length, width = draw.extent(draw.random.randint(near // 4, near)), draw.random.choice((32, 64))
    heads = (2 if draw.size == "cpu" else 16) * draw.random.choice((1, 2, 3))
    for name in "qkv":
        draw.give(name, (2, heads, length, width))
    if draw.random.random() < 0.5:
        return f"F.scaled_dot_product_attention(q, k, v{draw.pick(('', ', is_causal=True'))})"
    draw.forward.append(f"scores = q @ k.transpose(-1, -2) * {width**-0.5:.6f}")
    if draw.random.random() < 0.5:
        draw.forward.append(f"scores = scores + {draw.give('bias', (heads, length, length))}")
    if draw.random.random() < 0.3:
        draw.forward.append("scores = 20 * torch.tanh(scores / 20)")
    return "scores.softmax(dim=-1) @ v"


def gather(draw: Draw) -> str:
    rows, columns = draw.shape(2)
    count = draw.extent(rows // 2 + 1)
    x = draw.give("x", (rows, columns))
    kind = draw.random.randrange(4)
    if kind == 0:
        index = draw.give_indices("index", rows, (count,))
        draw.forward.append(f"x = {x}[{index}]")
    elif kind == 1:
        index = draw.give_indices("index", columns, (rows, columns // 2))
        draw.forward.append(f"x = {x}.gather(1, {index})")
    elif kind == 2:
        index = draw.give_indices("index", count, (rows,))
        draw.forward.append(f"x = x.new_zeros({count}, {columns}).index_add(0, {index}, {x})")
    else:
        index = draw.give_indices("index", rows, (count, 8))
        draw.forward.append(f"x = F.embedding_bag({index}, {x}, mode='mean')")
    draw.chain("x", 0, 2)
    return "x"


def layout(draw: Draw) -> str:
    side = draw.extent(round((draw.elements() // 64) ** 0.5))
    draw.give("x", (4, 16, side // 2 * 2, side // 2 * 2))
    calls = (
        "x.permute(0, 2, 3, 1).contiguous()",
        "F.pixel_shuffle(x, 2)",
        "F.pixel_unshuffle(x, 2)",
        "torch.roll(x, (3, -2), (2, 3))",
        "F.interpolate(x, scale_factor=2.0, mode='bilinear')",
        "F.pad(x, (2, 1, 1, 2), mode='reflect')",
        "x.unfold(2, 4, 2).sum(-1)",
        "torch.cat([x, x.flip(3)], dim=1)",
    )
    draw.forward.append(f"x = {draw.pick(calls)}")
    draw.chain("x", 1, 2)
    return "x"


def order(draw: Draw) -> str:
    rows, columns = draw.shape(2, draw.elements() // 4)
    draw.give("x", (rows, columns))
    draw.chain("x", 0, 1)
    calls = (
        "x.topk(8, dim=-1).values",
        "x.sort(dim=-1).values",
        "x.median(dim=-1).values",
        "x.cummax(dim=-1).values",
        "torch.aminmax(x, dim=-1)",
        "(x > x.mean(dim=-1, keepdim=True)).sum(dim=-1)",
    )
    return draw.pick(calls)


def block(draw: Draw) -> str:
    draw.dtype = draw.pick(HALVES)
    width = draw.extent(256 if draw.size == "cpu" else 2048)
    rows = draw.extent(512 if draw.size == "cpu" else 4096)
    draw.give("x", (rows, width))
    scale = width**-0.5
    up, down = (
        draw.weight("up", (2 * width, width), scale),
        draw.weight("down", (width, width), scale),
    )
    norm_weight = draw.weight("norm", (width,))
    draw.forward.append(f"y = F.rms_norm(x, ({width},), {norm_weight})")
    draw.forward.append(f"gate, y = F.linear(y, {up}).chunk(2, dim=-1)")
    draw.forward.append(f"y = {draw.pick(('F.silu(gate)', 'F.gelu(gate)', 'gate.sigmoid()'))} * y")
    return f"x + F.linear(y, {down})"


def outputs(draw: Draw) -> str:
    rows, columns = draw.shape(2)
    draw.give("x", (rows, columns))
    draw.chain("x", 0, 2)
    draw.forward.append("mean = x.mean(dim=-1, keepdim=True)")
    draw.forward.append("spread = (x - mean).square().mean(dim=-1, keepdim=True)")
    return draw.pick(
        (
            "((x - mean) * torch.rsqrt(spread + 1e-5), mean, spread)",
            "(mean, spread, x.amax(dim=-1))",
        )
    )


FAMILIES: dict[str, Callable[[Draw], str]] = {
    family.__name__: family
    for family in (
        elementwise,
        reduction,
        norm,
        softmax,
        product,
        convolution,
        pooling,
        scan,
        loss,
        attention,
        gather,
        layout,
        order,
        block,
        outputs,
    )
}


def problem_text(family: str, seed: int, size: str) -> str:
    """The problem file of this family and seed. `size` is "cpu" or "gpu". Raises KeyError for a
    family that is not in `FAMILIES`."""
    draw = Draw(size, random.Random(f"{family}/{seed}/{size}"))
    result = FAMILIES[family](draw)
    return draw.text(f"A foreign problem of the family {family}, seed {seed}.", result)


# -- choices that the families share: sizes, types, chains of pointwise functions

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


# -- blocks of published models

# A batch that keeps two cores busy for milliseconds keeps a GPU busy for as long when it is this
# many times as large.
GPU_BATCHES = 32
BLOCK = '''\
"""A block of {package}, with weights drawn at random: {title}."""

import torch
{imports}

BATCH = {batch}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
{init}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
{forward}


def get_inputs():
    return [torch.randn(BATCH, {shape})]


def get_init_inputs():
    return []
'''


def write_modules(size: str, out: Path) -> list[str]:
    """Writes the blocks of blocks.toml as problem files into a folder that exists; `size` is "cpu"
    or "gpu". Returns their names. Raises OSError where the folder cannot be written."""
    blocks = tomllib.loads(Path(__file__).with_name("blocks.toml").read_text(encoding="utf-8"))
    for name, block in blocks.items():
        text = BLOCK.format(
            package=block["imports"].split()[1].partition(".")[0],
            title=name.replace("_", " "),
            imports=block["imports"],
            batch=block["batch"] * (GPU_BATCHES if size == "gpu" else 1),
            init=indent(block["init"], " " * 8),
            forward=indent(block.get("forward", "return self.block(x)"), " " * 8),
            shape=block["shape"],
        )
        (out / f"{name}.py").write_text(text, encoding="utf-8")
    return list(blocks)
