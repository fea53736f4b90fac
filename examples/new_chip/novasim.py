"""The Nova simulator: runs an object file on .npy arrays and counts cycles.

    python novasim.py OBJECT --chip chip.json --manifest manifest.json [--report report.json]

Standard library and numpy. A trap reads `novasim: FILE:LINE: trap CODE: text`; exit status 3.
Transfers between memory and scratchpad run concurrently with the vector unit; an instruction waits
for its tiles. Everything else is in order, one instruction at a time.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT = "nova-object-1"
# Cycles: to issue anything, of one loop turn, of one vector operation in addition to its work.
ISSUE, LOOP, PIPELINE = 1, 2, 4
Array = npt.NDArray[Any]

COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
}
ELEMENTWISE: Mapping[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rcp": np.reciprocal,
    "tanh": np.tanh,
}
SPECIAL = {"div", "exp", "log", "sqrt", "rcp", "tanh"}


class Trap(Exception):
    """A violation by the kernel. kind: one of chip.json's traps."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class Clock:
    """Where the cycles go: one front end, one vector unit, one transfer channel with a queue."""

    def __init__(self, chip: Mapping[str, Any]) -> None:
        self.chip = chip
        self.now = 0
        self.channel_free = 0
        self.queue: deque[int] = deque()
        self.loaded: dict[str, int] = {}  # tile -> when its contents have arrived
        self.stored: dict[str, int] = {}  # tile -> when its contents have left
        self.stalls: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def wait(self, until: int, cause: str) -> None:
        if until > self.now:
            self.stalls[cause] += until - self.now
            self.now = until

    def work(self, cycles: int, reads: list[str], writes: str) -> None:
        """One vector operation on tiles."""
        for tile in (*reads, writes):
            self.wait(self.loaded.get(tile, 0), "dram")
        self.wait(self.stored.get(writes, 0), "store")
        self.now += ISSUE + PIPELINE + cycles
        self.counts["busy"] += cycles

    def transfer(self, tile: str, runs: int, run_bytes: int, *, load: bool) -> None:
        burst = self.chip["burst_bytes"]
        moved = runs * -(-run_bytes // burst) * burst
        side = "read" if load else "write"
        self.counts[f"{side}_bytes"] += moved
        self.counts[f"{side}_useful"] += runs * run_bytes
        self.now += ISSUE
        while self.queue and self.queue[0] <= self.now:
            self.queue.popleft()
        if len(self.queue) >= self.chip["dma_queue"]:
            self.wait(self.queue.popleft(), "dma_queue")
        ready = max(self.loaded.get(tile, 0), self.stored.get(tile, 0), self.now)
        occupied = -(-moved // self.chip["dram_bytes_per_cycle"])
        ends = max(ready + self.chip["dram_latency"], self.channel_free) + occupied
        self.channel_free = ends
        self.queue.append(ends)
        (self.loaded if load else self.stored)[tile] = ends

    def finish(self) -> int:
        self.wait(self.channel_free, "drain")
        return self.now


class Machine:
    """Executes one object file on its arguments."""

    def __init__(
        self, program: Mapping[str, Any], chip: Mapping[str, Any], memory: dict[str, Array]
    ) -> None:
        self.program, self.chip, self.memory = program, chip, memory
        self.clock = Clock(chip)
        self.numbers: dict[str, int] = {}
        self.line = 0
        # Contents are undefined until written; NaN shows who reads them too early.
        self.tiles = {
            name: np.full(shape, np.nan, np.float32)
            for name, shape in (
                *((name, description["shape"]) for name, description in program["tiles"].items()),
                *program["accumulators"].items(),
            )
        }

    def run(self) -> int:
        with np.errstate(all="ignore"):
            self._block(self.program["body"])
        return self.clock.finish()

    def _block(self, body: list[Any]) -> None:
        for statement in body:
            getattr(self, f"_{statement[0]}")(*statement[1:])

    def _set(self, name: str, value: Any) -> None:
        self.numbers[name] = self._value(value)
        self.clock.now += ISSUE

    def _for(self, name: str, start: Any, end: Any, step: int, body: list[Any]) -> None:
        for value in range(self._value(start), self._value(end), step):
            self.numbers[name] = value
            self.clock.now += LOOP
            self._block(body)

    def _while(self, mark: str, left: Any, right: Any, body: list[Any]) -> None:
        while COMPARE[mark](self._value(left), self._value(right)):
            self.clock.now += LOOP
            self._block(body)

    def _value(self, code: Any) -> int:
        if isinstance(code, int):
            return code
        if isinstance(code, str):
            return self.numbers[code]
        mark, left, right = code
        divisor = self._value(right)
        if mark in "/%" and not divisor:
            return 0  # as the chip does
        return int(ARITHMETIC[mark](self._value(left), divisor))

    # -- instructions

    def _op(self, operation: str, operands: list[Any], line: int) -> None:
        self.line = line
        self.clock.counts["instructions"] += 1
        if operation in ("load", "store"):
            self._transfer(operation, operands)
        elif operation == "mac":
            self._mac(*operands)
        elif operation in ("rowsum", "rowmax"):
            self._reduce(operation, *operands)
        else:
            self._elementwise(operation, operands)

    def _transfer(self, operation: str, operands: list[Any]) -> None:
        load = operation == "load"
        tile, (what, *indices) = operands if load else reversed(operands)
        array, contents = self.memory[what], self.tiles[tile]
        row, column = (self._value(index) for index in indices)
        (rows, columns), (height, width) = contents.shape, array.shape
        for axis, first, size, extent in (
            ("rows", row, rows, height),
            ("columns", column, columns, width),
        ):
            if first < 0 or first + size > extent:
                description = f"{axis} {first}..{first + size} of {extent}"
                raise Trap("bounds", f"access outside argument {what}: {description}")
        whole = columns == width
        burst = self.chip["burst_bytes"]
        if (row * width + column) * 4 % burst or (rows > 1 and not whole and width * 4 % burst):
            raise Trap("misaligned", f"misaligned transfer of {what} at [{row}][{column}]")
        window = (slice(row, row + rows), slice(column, column + columns))
        if load:
            contents[:] = array[window]
        else:
            array[window] = contents
        runs, run_bytes = (1, rows * columns * 4) if whole else (rows, columns * 4)
        self.clock.transfer(tile, runs, run_bytes, load=load)

    def _elementwise(self, operation: str, operands: list[Any]) -> None:
        target, *sources = operands
        values = [
            self.tiles[source] if isinstance(source, str) else np.float32(source)
            for source in sources
        ]
        result = self.tiles[target]
        if operation in ("fill", "copy"):
            result[:] = values[0]
        else:
            ELEMENTWISE[operation](*values, out=result)
        strips = self._strips(result)
        each = self.chip["special_cycles"] if operation in SPECIAL else 1
        names = [source for source in sources if isinstance(source, str)]
        self._count(strips * (len(names) + 1), 0, result.size)
        self.clock.work(strips * each, names, target)

    def _reduce(self, operation: str, target: str, source: str) -> None:
        """The vector unit takes as many rows as it has lanes and walks along their columns."""
        matrix = self.tiles[source]
        reduced = matrix.sum(1) if operation == "rowsum" else matrix.max(1)
        self.tiles[target][:, 0] = reduced
        groups = -(-matrix.shape[0] // self.chip["lanes"])
        steps = matrix.shape[1] * groups
        extra = self._column_cost(source, matrix.shape[0], matrix.shape[1])
        self._count(steps + groups, extra, matrix.size)
        self.clock.stalls["bank"] += extra
        self.clock.work(steps, [source], target)
        self.clock.now += extra

    def _mac(self, target: str, left: str, right: str) -> None:
        """One column of `left` after the other, each times a row of `right`, into registers."""
        first, second, total = self.tiles[left], self.tiles[right], self.tiles[target]
        total += first @ second
        rows, depth = first.shape
        slots = rows * -(-second.shape[1] // self.chip["lanes"])
        extra = self._column_cost(left, rows, depth)
        idle = depth * max(0, self.chip["mac_latency"] - slots)
        groups = -(-rows // self.chip["lanes"])
        self._count(depth * (groups + slots // rows), extra, rows * depth * second.shape[1])
        self.clock.stalls["bank"] += extra
        self.clock.stalls["dependency"] += idle
        self.clock.work(depth * slots, [left, right], target)
        self.clock.now += extra + idle

    def _strips(self, tile: Array) -> int:
        rows, columns = tile.shape
        lanes = int(self.chip["lanes"])
        return -(-int(rows) // lanes) if columns == 1 else int(rows) * -(-int(columns) // lanes)

    def _column_cost(self, tile: str, rows: int, columns: int) -> int:
        """Cycles beyond one a vector for reading columns: rows whose elements share a bank wait."""
        if columns == 1:
            return 0
        banks, lanes = int(self.chip["banks"]), int(self.chip["lanes"])
        step = int(self.program["tiles"][tile]["pitch"]) // int(self.chip["bank_width"])
        distinct = banks // math.gcd(step, banks)
        full, rest = divmod(rows, lanes)
        groups = [lanes] * full + ([rest] if rest else [])
        return columns * sum(-(-group // distinct) - 1 for group in groups)

    def _count(self, accesses: int, conflicts: int, lanes_used: int) -> None:
        self.clock.counts["accesses"] += accesses + conflicts
        self.clock.counts["conflicts"] += conflicts
        self.clock.counts["lanes_used"] += lanes_used


# ---------------------------------------------------------------- arrays and report


def decoded(array: Array, dtype: str) -> Array:
    """As 32-bit floats; bfloat16 is stored in 16-bit words."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def encoded(array: Array, dtype: str) -> Array:
    if dtype != "bfloat16":
        return array.astype(dtype)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)


def arguments(
    program: Mapping[str, Any], manifest: Mapping[str, Any], folder: Path
) -> dict[str, Array]:
    """Memory by argument name: `in` takes the arrays in order, `out` the outputs."""
    memory = {}
    for role in ("in", "out"):
        given = [t for t in manifest["tensors"] if (t["role"] == "output") == (role == "out")]
        wanted = [
            description for description in program["arguments"] if description["role"] == role
        ]
        if len(given) != len(wanted):
            description = f"the kernel declares {len(wanted)} `{role}`, {len(given)} are given"
            raise Trap("argument", f"argument mismatch: {description}")
        for tensor, description in zip(given, wanted, strict=True):
            shape = tuple(description["shape"])
            if math.prod(shape) != math.prod(tensor["shape"]):
                sizes = f"{list(shape)} declared, {tensor['shape']} given"
                raise Trap("argument", f"argument mismatch: {description['name']}: {sizes}")
            if role == "out":
                memory[description["name"]] = np.full(shape, np.nan, np.float32)
                continue
            array = np.load(folder / tensor["file"], allow_pickle=False)
            memory[description["name"]] = decoded(array, tensor["dtype"]).reshape(shape)
    return memory


def store_outputs(
    program: Mapping[str, Any],
    manifest: Mapping[str, Any],
    folder: Path,
    memory: Mapping[str, Array],
) -> None:
    names = [
        description["name"] for description in program["arguments"] if description["role"] == "out"
    ]
    given = [tensor for tensor in manifest["tensors"] if tensor["role"] == "output"]
    for name, tensor in zip(names, given, strict=True):
        array = encoded(memory[name], tensor["dtype"]).reshape(tensor["shape"])
        np.save(folder / tensor["file"], array)


def report(machine: Machine, cycles: int, manifest: Mapping[str, Any]) -> dict[str, Any]:
    chip, clock, counts = machine.chip, machine.clock, machine.clock.counts
    time_us = cycles / chip["clock_hz"] * 1e6
    moved = counts["read_bytes"] + counts["write_bytes"]
    item = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2}
    compulsory = sum(math.prod(t["shape"]) * item.get(t["dtype"], 4) for t in manifest["tensors"])
    metrics = {
        "duration_us": time_us,
        "cycles": cycles,
        "launches": 1,
        "dram_read_bytes": counts["read_bytes"],
        "dram_write_bytes": counts["write_bytes"],
        "dram_bytes": moved,
        "dram_throughput_pct": _share(moved, cycles * chip["dram_bytes_per_cycle"]),
        "bytes_ratio": moved / compulsory if compulsory else None,
        "load_efficiency_pct": _share(counts["read_useful"], counts["read_bytes"]),
        "store_efficiency_pct": _share(counts["write_useful"], counts["write_bytes"]),
        "compute_throughput_pct": _share(counts["busy"], cycles),
        "shared_bank_conflicts": counts["conflicts"],
        "shared_wavefronts": counts["accesses"],
        "shared_memory_per_block_bytes": machine.program["scratchpad_bytes"],
        "nova_instructions": counts["instructions"],
        "nova_vector_registers": machine.program["vector_registers"],
        "nova_scratchpad_pct": _share(
            machine.program["scratchpad_bytes"], chip["scratchpad_bytes"]
        ),
        "nova_lane_utilisation_pct": _share(counts["lanes_used"], cycles * chip["lanes"]),
        **{
            f"nova_stall_{cause}_cycles": clock.stalls[cause]
            for cause in ("dram", "store", "dma_queue", "bank", "dependency", "drain")
        },
    }
    if counts["accesses"]:
        metrics["bank_conflict_ratio"] = counts["conflicts"] / counts["accesses"]
    known = {name: value for name, value in metrics.items() if value is not None}
    return {"cycles": cycles, "time_us": time_us, "metrics": known}


def _share(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("object", type=Path)
    parser.add_argument("--chip", type=Path, required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--report", type=Path)
    asked = parser.parse_args()
    chip, program, manifest = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (asked.chip, asked.object, asked.manifest)
    )
    if program.get("format") != FORMAT or program["chip"] != chip["id"]:
        print(f"novasim: {asked.object} was not compiled for {chip['id']}", file=sys.stderr)
        return 2
    folder, machine = asked.manifest.parent, None
    try:
        machine = Machine(program, chip, arguments(program, manifest, folder))
        cycles = machine.run()
    except Trap as trap:
        line = machine.line if machine is not None else 1
        place = f"{program['source']}:{line}"
        print(f"novasim: {place}: trap {chip['traps'][trap.kind]}: {trap.text}", file=sys.stderr)
        return 3
    store_outputs(program, manifest, folder, machine.memory)
    description = report(machine, cycles, manifest)
    named = folder / manifest["report"] if manifest.get("report") else None
    if path := asked.report or named:
        path.write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    print(f"{program['kernel']}: {cycles} cycles, {description['time_us']:.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
