"""Write the sample kernels for one chip: its words, and blocks as large as it allows.

    python kernels.py CHIP_FOLDER [FOLDER]

Standard library only. Each file is a candidate with the entry `kernlore_run` for the problem that
its name starts with (`problems/`); the failing ones are made from the good elementwise kernel.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # a program finds its neighbours by their bare names
    from examples.assembly_chip.dialect import Dialect
    from examples.assembly_chip.schedule import Instruction, Scheduler
else:
    from dialect import Dialect
    from schedule import Instruction, Scheduler

COUNT = 120 * 160  # elements of problems/elementwise.py
ROWS, COLUMNS = 96, 320  # of problems/rmsnorm.py
M, K, N = 64, 96, 64  # of problems/matmul.py
Emit = Callable[..., None]


class Source:
    """Canonical text of one kernel. Sizes are in bytes; the dialect turns them into units."""

    def __init__(self, chip: Mapping[str, Any], inputs: Sequence[str], output: str) -> None:
        self.scheduler = Scheduler(chip)
        self.lines = [f".part {chip['id']}", ".kernel kernlore_run"]
        self.lines += [*(f".input {name}" for name in inputs), f".output {output}"]

    def add(self, *lines: str) -> None:
        self.lines += lines

    def block(self, instructions: Sequence[Instruction]) -> None:
        """A basic block in a better order than it was written in."""
        self.lines += [f"  {line}" for line in self.scheduler.ordered(instructions)]

    def drawn(self, dialect: Dialect) -> str:
        return dialect.text("\n".join([*self.lines, ".end"])) + "\n"


def collected() -> tuple[list[Instruction], Emit]:
    """A block to be ordered, and what adds an instruction to it."""
    block: list[Instruction] = []

    def emit(operation: str, *operands: str) -> None:
        block.append(Instruction(operation, operands))

    return block, emit


# ---------------------------------------------------------------- elementwise


class Stream(NamedTuple):
    """ways: vectors of one turn of the inner loop. vectors: in one block."""

    ways: int
    vectors: int
    block_bytes: int


def stream_of(chip: Mapping[str, Any]) -> Stream:
    """The most ways that the registers allow, and the largest block that fits eight times."""
    vector = 4 * chip["lanes"]
    total = COUNT // chip["lanes"]
    align = max(chip["dma_align"], chip["vector_align"])
    limit = min(chip["max_transfer"], chip["scratch_bytes"] // 8)
    return max(
        Stream(ways, vectors, vectors * vector)
        for ways in (4, 5, 6, 8, 10)
        if 2 * ways + 4 <= chip["vectors"]
        for vectors in range(ways, limit // vector + 1, ways)
        if not total % (2 * vectors) and not vectors * vector % align
    )


def _gate_chain(emit: Emit, ways: int) -> None:
    """x * sigmoid(g) + z of `ways` vectors: two registers each, constants behind them."""
    one, two, scale, least = (f"v{2 * ways + place}" for place in range(4))
    for way in range(ways):
        g, r, at = f"v{2 * way}", f"v{2 * way + 1}", f"+{way}VB]"
        emit("vload", g, f"[s2{at}")
        emit("vmax", g, g, least)
        emit("vmul", g, g, scale)
        emit("exp", g, g)
        emit("vadd", g, g, one)
        emit("recip", r, g)
        emit("vmul", g, g, r)
        emit("vsub", g, two, g)
        emit("vmul", r, r, g)
        emit("vload", g, f"[s1{at}")
        emit("vmul", r, r, g)
        emit("vload", g, f"[s3{at}")
        emit("vadd", r, r, g)
        emit("vstore", f"[s4{at}", r)
    for base in range(1, 5):
        emit("add", f"s{base}", f"s{base}", f"#{ways}VB")


def _gate_loads(source: Source, half: int, size: int) -> None:
    for name in "xgz":
        source.add(f"  set s9, #{name}_{half}", f"  dmain [s9], {name}@s5, s8, t{half}")
    source.add(f"  add s5, s5, #{size}B")


def elementwise(chip: Mapping[str, Any]) -> Source:
    """Two halves that take turns: one is computed while the other one is filled and stored."""
    stream = stream_of(chip)
    size, ways = stream.block_bytes, stream.ways
    source = Source(chip, ["x", "g", "z"], "y")
    source.add(*(f".scratch {name}_{half}, {size}B" for half in (0, 1) for name in "xgzy"))
    exponent = "-1.4426950408889634" if chip["exp_base"] == "2" else "-1.0"
    for place, value in enumerate(("1.0", "2.0", exponent, "-80.0")):
        source.add(f"  vset v{2 * ways + place}, #{value}")
    source.add(f"  set s8, #{size}B", "  set s5, #0", "  set s6, #0", f"  set s7, #{COUNT * 4}B")
    source.add("  sub s7, s7, #1")
    for half in (0, 1):
        _gate_loads(source, half, size)
    source.add(f"  set s10, #{COUNT // chip['lanes'] // stream.vectors // 2}", "next:")
    for half in (0, 1):
        source.add(f"  wait t{half}", f"  wait t{half + 2}")
        for base, name in enumerate("xgzy", 1):
            source.add(f"  set s{base}, #{name}_{half}")
        source.add(f"  set s11, #{stream.vectors // ways}", f"turn{half}:")
        block, emit = collected()
        _gate_chain(emit, ways)
        source.block(block)
        source.add(f"  loop s11, turn{half}", f"  set s9, #y_{half}")
        source.add(f"  dmaout y@s6, [s9], s8, t{half + 2}", f"  add s6, s6, #{size}B")
        source.add(f"  blt s7, s5, last{half}")
        _gate_loads(source, half, size)
        source.add(f"last{half}:")
    source.add("  loop s10, next", "  wait t2", "  wait t3", "  halt")
    return source


# ---------------------------------------------------------------- rmsnorm


def rows_of(chip: Mapping[str, Any]) -> int:
    """Rows of one block: two accumulators each, and four blocks and the gain fit."""
    row = 4 * COLUMNS
    return max(
        rows
        for rows in (2, 3, 4)
        if rows * row <= chip["max_transfer"]
        and 2 * rows <= chip["accs"]
        and (4 * rows + 1) * row <= chip["scratch_bytes"]
    )


def _squares(emit: Emit, rows: int, vectors: int) -> None:
    for vector in range(vectors):
        for row in range(rows):
            value = f"v{4 + (vector * rows + row) % 12}"
            emit("vload", value, f"[s{1 + row}+{vector}VB]")
            emit("amac", f"a{2 * row + vector % 2}", value, value)
    for row in range(rows):
        emit("add", f"s{1 + row}", f"s{1 + row}", f"#{vectors}VB")


def _inverse_roots(emit: Emit, chip: Mapping[str, Any], rows: int) -> None:
    """v4, v5, ... become the factors of the rows; v0 to v3 are 1/n, eps, 1/2 and 3/2."""
    for row in range(rows):
        q, t, h = (f"v{4 + row + rows * place}" for place in range(3))
        emit("aread", t, f"a{2 * row}")
        emit("aread", h, f"a{2 * row + 1}")
        emit("vadd", t, t, h)
        emit("rsum", t, t)
        if chip["reduce_to"] == "first":
            emit("vlane", t, t, "#0")
        emit("vmul", t, t, "v0")
        emit("vadd", t, t, "v1")
        emit("rsqrt", q, t)
        emit("vmul", h, t, q)
        emit("vmul", h, h, q)
        emit("vmul", h, h, "v2")
        emit("vsub", h, "v3", h)
        emit("vmul", q, q, h)


def _scale(emit: Emit, rows: int, vectors: int) -> None:
    """Reads rows at s1.., the gain at s9, and writes at s5.. ."""
    free = [v for v in (0, 1, 2, 3, *range(4 + rows, 16))][4:]
    gains, values = free[:2], free[2:]
    for vector in range(vectors):
        gain = f"v{gains[vector % 2]}"
        emit("vload", gain, f"[s9+{vector}VB]")
        for row in range(rows):
            value = f"v{values[(vector * rows + row) % len(values)]}"
            emit("vload", value, f"[s{1 + row}+{vector}VB]")
            emit("vmul", value, value, f"v{4 + row}")
            emit("vmul", value, value, gain)
            emit("vstore", f"[s{5 + row}+{vector}VB]", value)
    for base in (*range(1, 1 + rows), *range(5, 5 + rows), 9):
        emit("add", f"s{base}", f"s{base}", f"#{vectors}VB")


def _norm_block(source: Source, chip: Mapping[str, Any], rows: int, half: int) -> None:
    """One block of rows, from x0 or x1 into y0 or y1."""
    row, vectors = 4 * COLUMNS, COLUMNS // chip["lanes"]
    turn = 5 if vectors % 10 else 10
    inputs = [f"  set s{1 + r}, #x_{half}+{r * row}B" for r in range(rows)]
    source.add(*inputs, *(f"  azero a{place}" for place in range(2 * rows)))
    source.add(f"  set s10, #{vectors // turn}", f"square{half}:")
    for phase in ("square", "scale"):
        block, emit = collected()
        if phase == "square":
            _squares(emit, rows, turn)
        else:
            _scale(emit, rows, turn)
        source.block(block)
        source.add(f"  loop s10, {phase}{half}")
        if phase == "square":
            block, emit = collected()
            _inverse_roots(emit, chip, rows)
            source.block(block)
            outputs = [f"  set s{5 + r}, #y_{half}+{r * row}B" for r in range(rows)]
            source.add(f"  wait t{half + 2}", *inputs, *outputs, "  set s9, #w")
            source.add(f"  set s10, #{vectors // turn}", f"scale{half}:")


def rmsnorm(chip: Mapping[str, Any]) -> Source:
    rows, row = rows_of(chip), 4 * COLUMNS
    size = rows * row
    source = Source(chip, ["x", "gain"], "y")
    source.add(*(f".scratch {name}, {size}B" for name in ("x_0", "x_1", "y_0", "y_1")))
    source.add(f".scratch w, {row}B", "  set s9, #w", f"  set s11, #{row}B")
    source.add("  dmain [s9], gain@#0, s11, t0", "  set s12, #0", "  set s13, #0")
    source.add(f"  set s11, #{size}B", f"  set s14, #{ROWS * row}B", "  sub s14, s14, #1")
    for half in (0, 1):
        source.add(f"  set s9, #x_{half}", f"  dmain [s9], x@s12, s11, t{half}")
        source.add("  add s12, s12, s11")
    source.add(f"  set s15, #{ROWS // rows // 2}", "next:")
    constants = (repr(1 / COLUMNS), "1.0e-5", "0.5", "1.5")
    for place, value in enumerate(constants):
        source.add(f"  vset v{place}, #{value}")
    for half in (0, 1):
        source.add(f"  wait t{half}")
        _norm_block(source, chip, rows, half)
        source.add(f"  set s9, #y_{half}", f"  dmaout y@s13, [s9], s11, t{half + 2}")
        source.add("  add s13, s13, s11", f"  blt s14, s12, last{half}", f"  set s9, #x_{half}")
        source.add(f"  dmain [s9], x@s12, s11, t{half}", "  add s12, s12, s11", f"last{half}:")
    source.add("  loop s15, next", "  wait t2", "  wait t3", "  halt")
    return source


# ---------------------------------------------------------------- matmul


class Tiling(NamedTuple):
    """rows of A and vectors of B in registers; part_rows: rows of B that one transfer moves."""

    rows: int
    wide: int
    part_rows: int
    panels: int


def tiling_of(chip: Mapping[str, Any]) -> Tiling:
    """The most multiply-accumulates for each load that registers, scratchpad and code allow."""
    vector = 4 * chip["lanes"]
    fitting = []
    for rows in (1, 2, 4, 8):
        for wide in (1, 2, 4):
            panels, rest = divmod(4 * N, wide * vector)
            body = chip["lanes"] * wide * (rows + 1) + rows
            needed = min(panels, 2) * K * wide * vector + 2 * rows * K * 4 + rows * wide * vector
            if (
                not rest
                and panels
                and rows * wide <= chip["accs"]
                and rows + 2 * wide <= chip["vectors"]
                and body + 150 <= chip["code_limit"]
                and needed + 6 * 64 <= chip["scratch_bytes"]
                and not wide * vector % chip["dma_align"]
            ):
                fitting.append((rows * wide / (rows * wide + wide), rows, wide, panels))
    _, rows, wide, panels = max(fitting)
    part = max(
        part
        for part in (96, 48, 32, 24, 16)
        if part <= chip["max_rows"] and part * wide * vector <= chip["max_transfer"]
    )
    return Tiling(rows, wide, part, panels)


def _chunk(emit: Emit, chip: Mapping[str, Any], tiling: Tiling, bases: list[int]) -> None:
    """As many steps of k as there are lanes: A at s1, B at the registers of `bases`."""
    lanes, rows, wide = chip["lanes"], tiling.rows, tiling.wide
    registers = list(range(rows, chip["vectors"]))
    for row in range(rows):
        emit("vload", f"v{row}", f"[s1+{row * K * 4}B]")
    steps = -(-lanes // len(bases))
    for k in range(lanes):
        base = f"s{bases[k // steps]}"
        for column in range(wide):
            vector = f"v{registers[(k * wide + column) % len(registers)]}"
            emit("vload", vector, f"[{base}+{(k % steps) * wide + column}VB]")
            for row in range(rows):
                emit("amacl", f"a{row * wide + column}", vector, f"v{row}", f"#{k}")
    emit("add", "s1", "s1", "#1VB")


def _panel_loads(source: Source, chip: Mapping[str, Any], tiling: Tiling) -> None:
    """The panel of B at column offset s12 into the block at s6."""
    width = tiling.wide * 4 * chip["lanes"]
    source.add("  set s9, s6", "  set s10, s12", f"  set s13, #{tiling.part_rows * width}B")
    source.add(f"  set s14, #{tiling.part_rows * N * 4}B")
    for _ in range(K // tiling.part_rows):
        source.add(f"  shape #{tiling.part_rows}, #{N * 4}B")
        source.add(f"  dmain [s9], b@s10, #{width}B, t2", "  add s9, s9, s13")
        source.add("  add s10, s10, s14")
    source.add(f"  add s12, s12, #{width}B")


def _tile_load(source: Source, tiling: Tiling) -> None:
    """The rows of A at offset s11 into the block at s4; s11 moves on."""
    size = tiling.rows * K * 4
    source.add("  shape #1, #0", f"  set s9, #{size}B", "  dmain [s4], a@s11, s9, t0")
    source.add("  add s11, s11, s9")


def matmul(chip: Mapping[str, Any]) -> Source:
    """A tile of C in accumulators; the next rows of A and the next panel of B arrive meanwhile."""
    tiling = tiling_of(chip)
    rows, width = tiling.rows, tiling.wide * 4 * chip["lanes"]
    source = Source(chip, ["a", "b"], "c")
    for name, size in (("a0_", rows * K * 4), ("a1_", rows * K * 4), ("c0_", rows * width)):
        source.add(f".scratch {name}, {size}B")
    source.add(f".scratch b0_, {K * width}B")
    if tiling.panels > 1:
        source.add(f".scratch b1_, {K * width}B")
    source.add("  set s3, #a1_", "  set s4, #a0_", "  set s6, #b0_", "  set s11, #0")
    source.add(f"  set s5, #{'b1_' if tiling.panels > 1 else 'b0_'}", "  set s12, #0")
    _tile_load(source, tiling)
    _panel_loads(source, chip, tiling)
    source.add("  set s7, #0", f"  set s8, #{tiling.panels}", "panel:", "  wait t2")
    source.add("  set s9, s5", "  set s5, s6", "  set s6, s9")  # s5 has arrived, s6 is free
    if tiling.panels > 1:
        source.add("  bne s8, #1, more", "  jump full", "more:")
        _panel_loads(source, chip, tiling)
        source.add("full:")
    source.add("  set s15, s7", f"  set s2, #{M // rows}", "tile:", "  wait t0")
    source.add("  set s9, s3", "  set s3, s4", "  set s4, s9")
    source.add(f"  set s10, #{M * K * 4}B", "  bne s11, s10, inside", "  set s11, #0", "inside:")
    _tile_load(source, tiling)
    _product(source, chip, tiling)
    source.add(f"  set s10, #{rows * N * 4}B", "  add s15, s15, s10", "  loop s2, tile")
    source.add(f"  add s7, s7, #{width}B", "  loop s8, panel")
    source.add("  wait t0", "  wait t1", "  halt")
    return source


def _product(source: Source, chip: Mapping[str, Any], tiling: Tiling) -> None:
    """One tile of C: the rows at s3 times the panel at s5, to the offset s15."""
    lanes, rows, wide = chip["lanes"], tiling.rows, tiling.wide
    width = wide * 4 * lanes
    reach = (chip["disp_max"] + 1) * chip["unit_bytes"]
    count = next(n for n in (1, 2, 4) if lanes // n * width <= reach)
    bases = [10, 13, 14, 9][:count]
    source.add("  set s1, s3", "  set s10, s5")
    for place, base in enumerate(bases[1:], 1):
        source.add(f"  set s0, #{place * (lanes // count) * width}B", f"  add s{base}, s10, s0")
    source.add(*(f"  azero a{place}" for place in range(rows * wide)))
    source.add(f"  set s0, #{K // lanes}", "chunk:")
    block, emit = collected()
    _chunk(emit, chip, tiling, bases)
    source.block(block)
    step = lanes * width
    for base in bases:
        small = step // chip["unit_bytes"] < 1 << chip["imm_bits"] - 1
        parts = 1 if small else 2
        source.add(*[f"  add s{base}, s{base}, #{step // parts}B"] * parts)
    source.add("  loop s0, chunk", "  wait t1", "  set s1, #c0_")
    block, emit = collected()
    for place in range(rows * wide):
        value = f"v{place % chip['vectors']}"
        emit("aread", value, f"a{place}")
        emit("vstore", f"[s1+{place}VB]", value)
    source.block(block)
    source.add(f"  shape #{rows}, #{N * 4}B", f"  dmaout c@s15, [s1], #{width}B, t1")


# ---------------------------------------------------------------- files


def failing(good: str, dialect: Dialect) -> dict[str, str]:
    """The good elementwise kernel with one mistake each, by the name of the file."""
    waits = [dialect.line(f"  wait t{tag}") for tag in (0, 1)]
    size = stream_of(dialect.chip).block_bytes
    length = dialect.line(f"  set s8, #{size}B")
    end = dialect.line("  halt")
    sign = dialect.syntax["immediate"]
    return {
        "elementwise_not_assembling": good.replace(
            waits[0], f"  nosuch {dialect.register('v', 1)}\n{dialect.line('  vadd v1, v2, a0')}"
        ),
        "elementwise_wrong": good.replace(f"{sign}2.0", f"{sign}1.5"),
        "elementwise_racing": good.replace(waits[1], dialect.comment("no wait")),
        "elementwise_leaving": good.replace(
            length, f"{length}\n{dialect.line(f'  set s5, #{COUNT * 4 - size + 64}B')}", 1
        ).replace(dialect.line("  set s5, #0"), dialect.comment("no start"), 1),
        "elementwise_hanging": good.replace(
            end, f"{dialect.line('spin:')}\n{dialect.line('  jump spin')}\n{end}"
        ),
    }


def write(chip: Mapping[str, Any], folder: Path) -> list[Path]:
    """Every sample kernel in this chip's words."""
    folder.mkdir(parents=True, exist_ok=True)
    dialect = Dialect(chip)
    good = {
        f"{make.__name__}_good": make(chip).drawn(dialect)
        for make in (elementwise, rmsnorm, matmul)
    }
    texts = {**good, **failing(good["elementwise_good"], dialect)}
    written = []
    for name, text in texts.items():
        written.append(folder / f"{name}{chip['suffix']}")
        written[-1].write_text(text, encoding="utf-8")
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("chip", type=Path, help="the folder that chip.py wrote")
    parser.add_argument("folder", type=Path, nargs="?", help="default: CHIP/kernels")
    asked = parser.parse_args()
    chip = json.loads((asked.chip / "chip.json").read_text(encoding="utf-8"))
    for path in write(chip, asked.folder or asked.chip / "kernels"):
        print(path)


if __name__ == "__main__":
    main()
