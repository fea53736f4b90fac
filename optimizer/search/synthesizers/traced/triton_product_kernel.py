"""The Triton kernel of a product: tiles of it, and on each of their elements what comes after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from optimizer.search.records import Value
from optimizer.search.synthesizers.traced import triton_operators as operators
from optimizer.search.synthesizers.traced.expression import literal
from optimizer.search.synthesizers.traced.index import axis
from optimizer.search.synthesizers.traced.launches import Axes, Launch, Placed
from optimizer.search.synthesizers.traced.program import Buffer, View
from optimizer.search.synthesizers.traced.triton_kernel import (
    WIDE,
    Kernel,
    Tile,
    Written,
    power_of_two,
)
from optimizer.search.synthesizers.traced.triton_products import Product, Window

AUTO = "auto"  # the tile that was the fastest of most products of its kind
STAGES = 3  # of the loop over the terms
GROUP = 8  # rows of tiles that are walked through together, so that factors stay in the cache


def write_product(
    name: str, product: Product, buffers: Mapping[str, Buffer], values: Mapping[str, Value]
) -> Written:
    """The kernel of a product whose factors are laid out. Raises NotWritten."""
    sizes = (product.rows, product.columns)
    sides = map(int, _tile(product, str(values["product_tile"])).split("x"))
    rows, columns = (min(s, power_of_two(n)) for s, n in zip(sides, sizes, strict=True))
    programs = product.batch * -(-product.rows // rows) * -(-product.columns // columns)
    warps = 8 if rows * columns >= 128 * 128 else 4
    tile = Tile(rows, columns, False, "p", programs, warps)
    launch = Launch(Axes(product.out.elements), product.after, product.kept)
    every = {**buffers, **{buffer.name: buffer for buffer in product.laid}}
    return _ProductKernel(name, launch, every, tile, product=product).written()


def _tile(product: Product, wanted: str) -> str:
    """Rows and columns of a tile."""
    if wanted != AUTO:
        return wanted
    few = product.window and prod(product.window.sizes) > 1 and product.rows <= 64
    return "64x128" if few else "128x64"


@dataclass
class _ProductKernel(Kernel):
    """Tiles of a product, and on each element of a tile what comes after it."""

    product: Product = field(kw_only=True)

    def written(self) -> Written:
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
        self.made[out.name] = Placed("point", out, literal(0, "float32"), place)
        self.results[out.name] = self._scaled()
        if product.stored:
            self.used[out.name] = None
            self._line(f"tl.store({out.name} + p, {self.results[out.name]}{self._mask_of(['p'])})")
        for part in self.launch.placed:
            self._stage(part)
        return self._finished(STAGES)

    def _tile_of_program(self) -> None:
        """Which tile a program works on, and its rows `m` and columns `n`."""
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
        """Where the elements of a tile lie in the result."""
        product = self.product
        if product.window is None:
            batch = self._batch(product.rows * product.columns)
            return f"{batch}m * {product.columns} + n"
        places = prod(product.window.places)
        return f"(n // {places} * {product.rows} + m) * {places} + n % {places}"

    def _batch(self, step: int) -> str:
        return f"batch * {step} + " if self.product.batch > 1 else ""

    def _multiplied(self) -> None:
        """`total`, the tile of the product."""
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
        """Where the first terms of a side lie; what lies behind the end is read from the first."""
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
        """The next terms of a side, and one step on."""
        terms, step = self.product.terms, self.product.step
        mask = f", mask={k} < {terms} - done, other=0.0" if terms % step else ""
        self._line(f"{side}_part = tl.load({side}{mask})")
        self._line(f"{side} += {step * stride}")

    def _windows(self, window: Window) -> None:
        """Where the windows of a tile's columns begin."""
        view = self.product.right
        self.used[view.buffer] = None
        places = prod(window.places)
        self._line(f"place = n % {places}")
        self._line(f"image = {view.buffer} + {view.offset} + n // {places} * {view.strides[0]}")
        for d, size in enumerate(window.places):
            spot = f"place // {prod(window.places[d + 1 :])} % {size}"
            self._line(f"from_{d} = {spot} * {window.steps[d]} - {window.padding[d]}")

    def _gathered(self, window: Window) -> None:
        """The channels of the next places in the windows of a tile's columns."""
        view = self.product.right
        several = prod(window.sizes) > 1
        if several:
            self._line(f"spot = done // {window.filled}")
        self._line("channel = done" + f" % {window.filled}" * several + " + k[:, None]")
        tests = ["n_in"] * ("n" in self.masks)
        tests += [f"(channel < {window.channels})"] * (window.filled != window.channels)
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
        """The name of the product with its factor, and with what is added to it."""
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
