"""Writes products of float32 matrices, and convolutions, as Triton kernels, together with the
elementwise stages that follow them, and decides which ones.

A float32 is nearly the sum of two TF32 numbers. Three products on tensor cores therefore have the
precision of one float32 product, and take less time (benchmarks/results/foreign_problems.md).
`tl.dot` calls this tf32x3; torch's libraries do not offer it. Products of 16-bit numbers stay with
torch and are padded to sizes that its tensor-core kernels accept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from optimizer.search.records import Value
from optimizer.search.synthesizers.traced import triton_operators as operators
from optimizer.search.synthesizers.traced.expression import Buffer, Call, View, literal
from optimizer.search.synthesizers.traced.index import axis
from optimizer.search.synthesizers.traced.launches import (
    Axes,
    KernelLaunch,
    PlacedStage,
    buffers_read,
    every_load,
    place_of,
)
from optimizer.search.synthesizers.traced.triton_kernel import (
    WIDE,
    KernelText,
    Tile,
    TritonKernel,
    power_of_two,
)

TENSOR_CORES, LIBRARY, WINDOWS_TOO = "tensor cores", "library", "tensor cores, all convolutions"
# positions of the factors among the arguments; the argument before them is added to the product
FACTORS = {
    "aten.mm.default": 0,
    "aten.bmm.default": 0,
    "aten.addmm.default": 1,
    "aten.baddbmm.default": 1,
}
TERMS = 32  # terms of a product per iteration
LEAST_SIDE = 32
LEAST_TERMS = 16
# least tiles of 64 by 64; with fewer the device is not full, and the library splits the terms
MIN_TILES = 96
ALIGNED = 4  # elements; rows with another alignment are not copied 16 bytes at a time
# rows and columns from which on copying the factors takes a small part of the time
MIN_COPIED = 1024


@dataclass(frozen=True)
class Window:
    """The windows of a convolution written as a matrix product. The right matrix has one column for
    each output position of all images; its rows are the channels at one position of the window,
    followed by those at the next. Tuples have one number per dimension. `transposed` marks a
    transposed convolution, which reads a window from its end."""

    images: int
    channels: int
    places: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    padding: tuple[int, ...]
    spread: tuple[int, ...]
    transposed: bool

    @property
    def step(self) -> int:
        """Terms per iteration, which belong to one position of the window."""
        half = TERMS // 2
        return half if -self.channels % half < -self.channels % TERMS else TERMS

    @property
    def padded_channels(self) -> int:
        return self.channels + -self.channels % self.step


@dataclass(frozen=True)
class ProductLaunch:
    """`alpha` times a product of matrices plus `beta` times `added`. `after` are the elementwise
    stages that the kernel computes on its result; `elementwise_stored` names those that are written
    to memory, and `stored` is whether the product itself is. `prepared` are lines of the host
    function that copy factors into the buffers `copies`, in the layout that the kernel reads."""

    out: Buffer
    left: View
    right: View
    added: View | None
    alpha: float = 1.0
    beta: float = 1.0
    window: Window | None = None
    after: tuple[PlacedStage, ...] = ()
    elementwise_stored: frozenset[str] = frozenset()
    stored: bool = True
    prepared: tuple[str, ...] = ()
    copies: tuple[Buffer, ...] = ()

    @property
    def batch(self) -> int:
        """Number of pairs of matrices; strides of 0 share a matrix between pairs."""
        return 1 if self.window else prod(self.left.shape[:-2])

    @property
    def rows(self) -> int:
        """Rows of the left matrix and of the result."""
        return self.out.shape[1 if self.window else -2]

    @property
    def columns(self) -> int:
        """Columns of the right matrix and of the result."""
        if self.window:
            return self.window.images * prod(self.window.places)
        return self.out.shape[-1]

    @property
    def terms(self) -> int:
        """Number of terms of an element of the product."""
        if self.window:
            return prod(self.window.sizes) * self.window.padded_channels
        return self.left.shape[-1]

    @property
    def step(self) -> int:
        """Terms per iteration."""
        return self.window.step if self.window else TERMS


Step = KernelLaunch | Call | ProductLaunch


# -- selection of products


def with_products(
    steps: Sequence[KernelLaunch | Call], buffers: Mapping[str, Buffer], values: Mapping[str, Value]
) -> list[Step]:
    """The steps, with calls of products replaced by own kernels where these are possible and
    faster."""
    who = str(values.get("products", LIBRARY))
    if who == LIBRARY:
        return list(steps)
    made: list[Step] = []
    joined: KernelLaunch | Call | None = None  # the step that the last product also computes
    for place, step in enumerate(steps):
        if step is joined:
            continue
        product = _product(step, buffers) if isinstance(step, Call) else None
        if product is None or (who != WINDOWS_TOO and _is_fast_there(product.window)):
            made.append(step)
            continue
        following = steps[place + 1] if place + 1 < len(steps) else None
        if isinstance(following, KernelLaunch) and _fits(following, product):
            joined = following
            product = replace(product, after=following.placed, elementwise_stored=following.stored)
        others = (s for s in steps if s is not step and s is not joined)
        stored = any(product.out.name in _read(other) for other in others)
        made.append(replace(product, stored=stored or not product.after))
    return made


def _is_fast_there(window: Window | None) -> bool:
    """Whether torch's convolution is faster: in one or two dimensions, if windows have more than
    one position."""
    return window is not None and len(window.sizes) < 3 and prod(window.sizes) > 1


def _product(call: Call, buffers: Mapping[str, Buffer]) -> ProductLaunch | None:
    """The call as an own product; None for other operators, dtypes or sizes."""
    views = [part for part in call.args if isinstance(part, View)]
    if any(buffers[view.buffer].dtype != "float32" for view in views):
        return None
    if call.operator == "aten.convolution.default":
        product = _convolution(call)
    else:
        product = _of_matrices(call)
    if product is None:
        return None
    tiles = product.batch * -(-product.rows // 64) * -(-product.columns // 64)
    if min(product.rows, product.columns) < LEAST_SIDE or tiles < MIN_TILES:
        return None
    return product if product.terms >= LEAST_TERMS else None


def _convolution(call: Call) -> ProductLaunch | None:
    """The convolution as a product; None for grouped ones and for transposed ones with a stride."""
    value, weight, bias, *numbers, transposed, _, groups = call.args
    (out,) = call.outs
    sizes = weight.shape[2:]
    steps, padding, spread = (tuple(x) * (len(sizes) // len(x)) for x in numbers)
    if out is None or groups != 1 or (transposed and set(steps) != {1}):
        return None
    if transposed:
        padding = tuple(s * (n - 1) - p for s, n, p in zip(spread, sizes, padding, strict=True))
    of_images, channels = value.shape[:2]
    window = Window(
        of_images, channels, out.shape[2:], sizes, steps, padding, spread, bool(transposed)
    )
    added = bias and View(bias.buffer, (*bias.shape, 1), (*bias.strides, 0), bias.offset)
    return ProductLaunch(out, weight, value, added, window=window)


def _of_matrices(call: Call) -> ProductLaunch | None:
    first = FACTORS.get(call.operator)
    (out, *more) = call.outs
    named = dict(call.kwargs)
    alpha, beta = named.pop("alpha", 1), named.pop("beta", 1)
    numbers = isinstance(alpha, int | float) and isinstance(beta, int | float)
    if first is None or out is None or more or named or not numbers:
        return None
    views = call.args[: first + 2]
    if not all(isinstance(view, View) for view in views):
        return None
    added = views[0] if first else None
    left, right = views[first:]
    product = ProductLaunch(out, left, right, added, float(alpha), float(beta))
    sides = (product.left, product.right)
    small = min(product.rows, product.columns) < MIN_COPIED
    return None if small and not all(map(_is_aligned, sides)) else product


def _is_aligned(view: View) -> bool:
    """Whether rows or columns are aligned so that 16 bytes are read at a time."""
    *others, down, across = view.strides
    lying = down if across == 1 else across if down == 1 else 1
    return all(step % ALIGNED == 0 for step in (*others, lying, view.offset))


def _fits(launch: KernelLaunch, product: ProductLaunch) -> bool:
    """Whether a kernel works on each element of the product separately."""
    axes = launch.axes
    if axes.length != 1 or axes.outer != product.out.elements:
        return False
    if any(part.role != "point" for part in launch.placed):
        return False
    loads = [(part, e) for part in launch.placed for e in every_load(part.body)]
    own = [(part, e) for part, e in loads if str(e.value) == product.out.name]
    return bool(own) and all(
        place_of(e, product.out) == axis(axes.p) == part.place for part, e in own
    )


def _read(step: KernelLaunch | Call) -> set[str]:
    if isinstance(step, Call):
        return buffers_read(step)
    return {str(e.value) for part in step.placed for e in every_load(part.body)}


# -- memory layout of factors


def is_whole(view: View, buffer: Buffer) -> bool:
    """Whether a view covers its buffer element by element."""
    strides, size = [], 1
    for extent in reversed(view.shape):
        strides.append(size)
        size *= extent
    dense = all(
        a == b or n == 1 for a, b, n in zip(view.strides, strides[::-1], view.shape, strict=True)
    )
    return dense and not view.offset and size == buffer.elements


def view_text(view: View, buffer: Buffer) -> str:
    """A view as source of the host function."""
    if is_whole(view, buffer):
        same = view.shape == buffer.shape
        return buffer.name if same else f"{buffer.name}.view({list(view.shape)})"
    start = f", {buffer.name}.storage_offset() + {view.offset}" if view.offset else ""
    return f"{buffer.name}.as_strided({list(view.shape)}, {list(view.strides)}{start})"


def laid_out(product: ProductLaunch, name: str, buffers: Mapping[str, Buffer]) -> ProductLaunch:
    """The product with factors in a layout that its kernel can read, copied if necessary; the names
    of the copies begin with `name`."""
    if product.window:
        return _weight_laid_out(product, product.window, f"{name}_left", buffers)
    sides = {"left": product.left, "right": product.right}
    apart = {side for side, view in sides.items() if not _is_aligned(view)}
    more = -product.terms % TERMS if apart else 0
    for side in sorted(sides if more else apart):
        view = sides[side]
        lies_along_terms = view.strides[-1 if side == "left" else -2] == 1
        transposed = lies_along_terms == (side == "right")
        text = view_text(view, buffers[view.buffer]) + ".mT" * transposed
        shape = list(view.shape[:-2]) + list(view.shape[-2:])[:: -1 if transposed else 1]
        along, across = (more, 0) if lies_along_terms else (-shape[-1] % ALIGNED, more)
        shape[-2:] = [shape[-2] + across, shape[-1] + along]
        copy = Buffer(f"{name}_{side}", tuple(shape), "float32")
        strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
        strides[-2:] = strides[-2:][:: -1 if transposed else 1]
        size = [*view.shape]
        size[-1 if side == "left" else -2] += more
        own = View(copy.name, tuple(size), tuple(strides), 0)
        line = f"{copy.name} = torch.nn.functional.pad({text}, (0, {along}, 0, {across}))"
        product = replace(
            product,
            left=own if side == "left" else product.left,
            right=own if side == "right" else product.right,
            prepared=(*product.prepared, f"{line}.contiguous()"),
            copies=(*product.copies, copy),
        )
    return product


def _weight_laid_out(
    product: ProductLaunch, window: Window, name: str, buffers: Mapping[str, Buffer]
) -> ProductLaunch:
    weight, rows = product.left, product.rows
    more = window.padded_channels - window.channels
    places = prod(window.sizes)
    if places == 1 and not more and not window.transposed:
        flat = replace(weight, shape=(rows, product.terms), strides=weight.strides[:2])
        return replace(product, left=flat)
    text = view_text(weight, buffers[weight.buffer])
    if window.transposed:
        text += f".transpose(0, 1).flip({list(range(2, len(weight.shape)))})"
    text += ".movedim(1, -1)"
    if more:
        text = f"torch.nn.functional.pad({text}, (0, {more}))"
    copy = Buffer(name, (rows, product.terms), "float32")
    line = f"{name} = {text}.reshape({rows}, {product.terms}).contiguous()"
    left = View(name, copy.shape, (product.terms, 1), 0)
    return replace(product, left=left, prepared=(line,), copies=(copy,))


# -- the kernel of a product

AUTO = "auto"  # the fastest tile for most products of its kind
STAGES = 3  # of the loop over the terms
GROUP = 8  # rows of tiles that are processed together, so that factors stay in the cache


def write_product(
    name: str, product: ProductLaunch, buffers: Mapping[str, Buffer], values: Mapping[str, Value]
) -> KernelText:
    """The kernel of a product whose factors were laid out. Raises NotWritten."""
    sizes = (product.rows, product.columns)
    sides = map(int, _tile(product, str(values["product_tile"])).split("x"))
    rows, columns = (min(s, power_of_two(n)) for s, n in zip(sides, sizes, strict=True))
    programs = product.batch * -(-product.rows // rows) * -(-product.columns // columns)
    warps = 8 if rows * columns >= 128 * 128 else 4
    tile = Tile(rows, columns, False, "p", programs, warps)
    launch = KernelLaunch(Axes(product.out.elements), product.after, product.elementwise_stored)
    every = {**buffers, **{buffer.name: buffer for buffer in product.copies}}
    return _ProductKernel(name, launch, every, tile, product=product).written()


def _tile(product: ProductLaunch, wanted: str) -> str:
    """Rows and columns of a tile."""
    if wanted != AUTO:
        return wanted
    few = product.window and prod(product.window.sizes) > 1 and product.rows <= 64
    return "64x128" if few else "128x64"


@dataclass
class _ProductKernel(TritonKernel):
    """Writes a kernel for tiles of a product and for the stages on their elements."""

    product: ProductLaunch = field(kw_only=True)

    def written(self) -> KernelText:
        product = self.product
        self._tile_of_program()
        self._multiplied()
        self._line(f"p = {self._place()}")
        tests = [self.masks[side] for side in ("m", "n") if side in self.masks]
        if tests:
            self._line(f"p_in = {' & '.join(tests)}")
            self.masks = {"p": "p_in"}
        out = product.out
        place = axis(self.launch.axes.p)
        self.made[out.name] = PlacedStage("point", out, literal(0, "float32"), place)
        self.results[out.name] = self._scaled()
        if product.stored:
            self.used[out.name] = None
            self._line(f"tl.store({out.name} + p, {self.results[out.name]}{self._mask_of(['p'])})")
        for part in self.launch.placed:
            self._stage(part)
        return self._finished(STAGES)

    def _tile_of_program(self) -> None:
        """Write the tile of a program, and its rows `m` and columns `n`."""
        product, tile = self.product, self.tile
        across, down = -(-product.columns // tile.columns), -(-product.rows // tile.rows)
        sizes = [self.buffers[v.buffer].elements for v in (product.left, product.right)]
        wide = max(*sizes, product.out.elements) > WIDE
        self._line("program = tl.program_id(0)" + (".to(tl.int64)" if wide else ""))
        if product.batch > 1:
            self._line(f"batch = program // {across * down}")
            self._line(f"program = program % {across * down}")
        group = min(GROUP, down)
        self._line(f"first = program // {group * across} * {group}")
        self._line(f"high = tl.minimum({down} - first, {group})")
        self._line(f"down = first + program % {group * across} % high")
        self._line(f"across = program % {group * across} // high")
        self._line(f"m = (down * {tile.rows} + tl.arange(0, {tile.rows}))[:, None]")
        self._line(f"n = (across * {tile.columns} + tl.arange(0, {tile.columns}))[None, :]")
        sides = (("m", product.rows, tile.rows), ("n", product.columns, tile.columns))
        for side, size, step in sides:
            if size % step:
                self._line(f"{side}_in = {side} < {size}")
                self.masks[side] = f"{side}_in"

    def _place(self) -> str:
        """The offsets of a tile's elements in the result."""
        product = self.product
        if product.window is None:
            batch = self._batch(product.rows * product.columns)
            return f"{batch}m * {product.columns} + n"
        places = prod(product.window.places)
        return f"(n // {places} * {product.rows} + m) * {places} + n % {places}"

    def _batch(self, step: int) -> str:
        return f"batch * {step} + " if self.product.batch > 1 else ""

    def _multiplied(self) -> None:
        """Write the loop that computes `total`, the tile of the product."""
        product = self.product
        self._line(f"k = tl.arange(0, {product.step})")
        self._start("left", product.left, "m", "k[None, :]")
        if product.window is None:
            self._start("right", product.right, "k[:, None]", "n")
        else:
            self._windows(product.window)
        self._line(f"total = tl.zeros([{self.tile.rows}, {self.tile.columns}], tl.float32)")
        with self._block(f"for done in range(0, {product.terms}, {product.step}):"):
            self._part("left", "k[None, :]", product.left.strides[-1])
            if product.window is None:
                self._part("right", "k[:, None]", product.right.strides[-2])
            else:
                self._gathered(product.window)
            text = 'tl.dot(left_part, right_part, total, input_precision="tf32x3")'
            self._line(f"total = {text}")

    def _start(self, side: str, view: View, row: str, column: str) -> None:
        """Write the addresses of the first terms of a factor; rows beyond the end read the first
        row."""
        self.used[view.buffer] = None
        row, column = (
            f"tl.where({part}_in, {part}, 0)" if part in self.masks else part
            for part in (row, column)
        )
        down, across = view.strides[-2:]
        batch = self._batch(view.strides[0]) if len(view.shape) > 2 else ""
        start = f"{view.buffer} + {batch}{view.offset}"
        self._line(f"{side} = {start} + {row} * {down} + {column} * {across}")

    def _part(self, side: str, k: str, stride: int) -> None:
        """Write the load of the next terms of a factor, and advance its addresses."""
        terms, step = self.product.terms, self.product.step
        mask = f", mask={k} < {terms} - done, other=0.0" if terms % step else ""
        self._line(f"{side}_part = tl.load({side}{mask})")
        self._line(f"{side} += {step * stride}")

    def _windows(self, window: Window) -> None:
        """Write the start of the windows of a tile's columns."""
        view = self.product.right
        self.used[view.buffer] = None
        places = prod(window.places)
        self._line(f"place = n % {places}")
        self._line(f"image = {view.buffer} + {view.offset} + n // {places} * {view.strides[0]}")
        for d, size in enumerate(window.places):
            spot = f"place // {prod(window.places[d + 1 :])} % {size}"
            self._line(f"from_{d} = {spot} * {window.steps[d]} - {window.padding[d]}")

    def _gathered(self, window: Window) -> None:
        """Write the load of the next channels of the windows of a tile's columns."""
        view = self.product.right
        several = prod(window.sizes) > 1
        if several:
            self._line(f"spot = done // {window.padded_channels}")
        self._line("channel = done" + f" % {window.padded_channels}" * several + " + k[:, None]")
        tests = ["n_in"] * ("n" in self.masks)
        tests += [f"(channel < {window.channels})"] * (window.padded_channels != window.channels)
        parts = [f"channel * {view.strides[1]}"]
        for d, size in enumerate(window.sizes):
            step = f"spot // {prod(window.sizes[d + 1 :])} % {size} * {window.spread[d]}"
            self._line(f"at_{d} = from_{d}" + f" + {step}" * (size > 1))
            if any(window.padding):
                tests.append(f"(at_{d} >= 0) & (at_{d} < {view.shape[d + 2]})")
            parts.append(f"at_{d} * {view.strides[d + 2]}")
        mask = f", mask={' & '.join(tests)}, other=0.0" if tests else ""
        self._line(f"right_part = tl.load(image + ({' + '.join(parts)}){mask})")

    def _scaled(self) -> str:
        """The name of the product times `alpha` plus `beta` times `added`."""
        product, name = self.product, "total"
        if product.alpha != 1:
            name = self._assign(f"{name} * {operators.number(product.alpha, 'float32')}")
        if product.added is not None and product.beta:
            name = self._assign(f"{name} + {self._added(product.added)}")
        return name

    def _added(self, view: View) -> str:
        self.used[view.buffer] = None
        strides = (0, 0, 0, *view.strides)[-3:]
        sizes = (1, 1, 1, *view.shape)[-3:]
        of_batch, down, across = (
            step if size > 1 else 0 for step, size in zip(strides, sizes, strict=True)
        )
        batch = self._batch(of_batch) if of_batch else ""
        place = f"{batch}{view.offset} + m * {down} + n * {across}"
        mask = self._mask_of(["p"])
        other = ", other=0.0" if mask else ""
        text = f"tl.load({view.buffer} + {place}{mask}{other})"
        beta = self.product.beta
        return text if beta == 1 else f"{text} * {operators.number(beta, 'float32')}"


# -- padded products of 16-bit numbers, which tensor cores need

# Position of the left matrix among the arguments.
PADDED_LEFT = {"aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1}
PADDED_DTYPES = ("float16", "bfloat16")
MIN_PADDED_WORK = 1 << 30  # multiplications; padding a small product costs more than it saves
PADDING_FUNCTION = '''\
def filled(multiple, left, right, added=None):
    """The product with sides filled up with zeros to a multiple, in which `added` is added; `left`
    may be filled already."""
    columns = right.shape[-1]
    pad = torch.nn.functional.pad
    missing, outer = -left.shape[-1] % multiple, -columns % multiple
    left = pad(left, (0, missing)) if missing else left
    inner = left.shape[-1] - right.shape[-2]
    if right.stride(-2) == 1:  # a transposed weight keeps its order
        right = pad(right.mT, (0, inner, 0, outer)).mT if inner or outer else right
    else:
        right = pad(right, (0, outer, 0, inner)) if inner or outer else right
    if added is None:
        result = torch.matmul(left, right)
    else:
        result = torch.addmm(pad(added, (0, outer)) if outer else added, left, right)
    return result[..., :columns]
'''


def is_padded(step: Call, buffers: Mapping[str, Buffer], multiple: int) -> bool:
    """Whether padding a product is worth it: a large one of 16-bit numbers whose rows in memory are
    not a multiple."""
    first = PADDED_LEFT.get(step.operator)
    if first is None or step.kwargs or step.outs[0] is None:
        return False
    left, right = step.args[first : first + 2]
    kinds = {buffers[of.buffer].dtype for of in (left, right)}
    if not kinds <= set(PADDED_DTYPES) or (first and step.args[0].shape[-1] != right.shape[-1]):
        return False
    odd = left.shape[-1] % multiple or right.shape[-1] % multiple
    return bool(odd) and prod(left.shape) * right.shape[-1] >= MIN_PADDED_WORK


def padded_call(
    step: Call, buffers: Mapping[str, Buffer], multiple: int, text: Callable[[Any], str]
) -> str:
    """The host function's line for a padded product; `text` writes its other arguments."""
    first = PADDED_LEFT[step.operator]
    left, right = step.args[first : first + 2]
    buffer = buffers[left.buffer]
    own = text(left)
    if buffer.pitch:
        own = f"{buffer.name}.view({[*left.shape[:-1], buffer.pitch]})"
    sides = ", ".join([own, text(right), *map(text, step.args[:first])])
    (out,) = step.outs
    assert out is not None
    dense = "" if buffers[out.name].pitch else ".contiguous()"
    return f"{out.name} = filled({multiple}, {sides}){dense}"


def with_pitch(
    steps: Sequence[Step], buffers: Mapping[str, Buffer], multiple: int
) -> dict[str, Buffer]:
    """The buffers; those that only padded products and own kernels use get padded rows."""
    products = [s for s in steps if isinstance(s, Call) and is_padded(s, buffers, multiple)]
    written = {name for step in steps if isinstance(step, KernelLaunch) for name in step.stored}
    lefts = {_left_factor(step).buffer for step in products} & written
    results = {step.outs[0].name for step in products if step.outs[0] and _is_matrix(step, buffers)}
    others = {name for step in steps for name in _contiguous_buffers(step, buffers, products)}
    return {
        name: _pitched(buffer, multiple)
        if name in (lefts | results) - others and buffer.number is None and not buffer.hidden
        else buffer
        for name, buffer in buffers.items()
    }


def _left_factor(step: Call) -> View:
    view = step.args[PADDED_LEFT[step.operator]]
    assert isinstance(view, View)
    return view


def _is_matrix(step: Call, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the last dimension of the result's buffer is that of its columns."""
    (out,) = step.outs
    assert out is not None
    right = step.args[PADDED_LEFT[step.operator] + 1]
    assert isinstance(right, View)
    return buffers[out.name].shape[-1:] == right.shape[-1:] != (1,)


def _pitched(buffer: Buffer, multiple: int) -> Buffer:
    length = buffer.shape[-1]
    return replace(buffer, pitch=length + -length % multiple) if length % multiple else buffer


def _contiguous_buffers(
    step: Step, buffers: Mapping[str, Buffer], products: Sequence[Call]
) -> Iterator[str]:
    """The buffers of a step that must be contiguous."""
    if isinstance(step, KernelLaunch):
        (part, *more) = step.placed
        # may become an alias of the buffer that it copies
        if not more and part.body.name == "load":
            yield str(part.body.value)
    elif isinstance(step, ProductLaunch):
        yield from (view.buffer for view in (step.left, step.right, step.added) if view)
        yield step.out.name
        for part in step.after:
            yield part.out.name
            yield from (str(element.value) for element in every_load(part.body))
    elif any(step is product for product in products):
        first = PADDED_LEFT[step.operator]
        left = _left_factor(step)
        yield from buffers_read(replace(step, args=(*step.args[:first], *step.args[first + 1 :])))
        buffer = buffers[left.buffer]
        if not is_whole(left, buffer) or left.shape[-1] != buffer.shape[-1]:
            yield left.buffer
    else:
        yield from buffers_read(step)
