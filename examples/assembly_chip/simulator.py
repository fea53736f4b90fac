"""The simulator of the family: runs an object file on .npy arrays and counts cycles.

    python simulator.py OBJECT --chip chip.json --manifest manifest.json [--report report.json]

Standard library and numpy. A trap reads `file:line: CODE text`; exit status 3. One instruction is
issued a cycle, in order, once its operands are ready; transfers run concurrently.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:  # a program finds its neighbours by their bare names
    from examples.assembly_chip.arrays import Array, Tensors, Trap, report, store_outputs
    from examples.assembly_chip.transfers import Channels
else:
    from arrays import Array, Tensors, Trap, report, store_outputs
    from transfers import Channels

FORMAT = "assembly-chip-object-1"
SPECIAL = {"exp", "recip", "rsqrt"}
UNSET = 1 << 60  # when a register that nothing writes is ready


def wrapped(value: int) -> int:
    """As a signed integer of 32 bits."""
    return (value + (1 << 31) & 0xFFFFFFFF) - (1 << 31)


def rounded(values: Array, bits: int) -> Array:
    """With a relative error below 2 ** -bits; infinities and NaN stay."""
    low = (1 << 23 - bits) - 1
    cut = (values.view(np.uint32) & np.uint32(0xFFFFFFFF ^ low)).view(np.float32)
    return np.where(np.isfinite(values), cut, values).astype(np.float32)


class Step(NamedTuple):
    """One instruction as it is run. run: of the values of `reads`, to the value of `write`, or,
    where `write` is below 0, to the next instruction, or to None for the one that follows."""

    run: Callable[..., Any]
    reads: tuple[int, ...]
    write: int
    latency: int
    special: bool
    line: int


class Machine:
    """Executes one object file on its arguments. Registers and constants are numbered slots."""

    def __init__(
        self, program: Mapping[str, Any], chip: Mapping[str, Any], tensors: Tensors
    ) -> None:
        self.program, self.chip, self.tensors = program, chip, tensors
        self.unit, self.lanes = int(chip["unit_bytes"]), int(chip["lanes"])
        self.vector_align = int(chip["vector_align"])
        self.scratch = np.full(chip["scratch_bytes"] // 4, np.nan, np.float32)
        self.channels = Channels(chip, tensors, self.scratch)
        self.active = self.lanes
        self.line = 1
        self.now = 0
        self.executed = 0
        self.stalls = dict.fromkeys(("operand", "special", "branch", "transfer", "issue"), 0)
        self.counts = {"lanes": 0}
        banks = (("s", "scalars"), ("v", "vectors"), ("a", "accs"))
        self.first: dict[str, int] = {}
        self.values: list[Any] = []
        for bank, size in banks:
            self.first[bank] = len(self.values)
            self.values += [None] * chip[size]
        self.steps = [self._step(*instruction) for instruction in program["code"]]
        self.ready = [UNSET if value is None else 0 for value in self.values]

    # -- decoding

    def _slot(self, kind: str, operand: Any) -> int:
        """The slot of an operand's value; each value outside of registers gets its own slot."""
        if kind in "sva":
            return self.first[kind] + int(operand)
        if kind == "m":
            return self.first["s"] + int(operand["base"])
        if kind == "p":
            operand = operand["offset"]
        if isinstance(operand, dict) and "register" in operand:
            return self.first["s"] + int(operand["register"])
        self.values.append(operand)
        return len(self.values) - 1

    def _step(self, operation: str, operands: list[Any], line: int) -> Step:
        row = self.chip["operations"][operation]
        kinds = [text.split(".")[0] for place in ("to", "from", "last") for text in row[place]]
        written = row["to"][:1] if row["to"] and row["to"][0][0] in "sva" else []
        latency = int(self.chip[row["cycles"]])
        paired = list(zip(kinds, operands, strict=True))[len(written) :]
        slots = [self._slot(kind, operand) for kind, operand in paired if kind != "l"]
        write = self._slot(kinds[0], operands[0]) if written else -1
        if operation in ("amac", "amacl"):
            slots.append(write)  # an accumulator is read as well
        run = self._runner(operation, [operand for _, operand in paired], write)
        return Step(run, tuple(slots), write, latency, operation in SPECIAL, line)

    def _runner(self, operation: str, operands: list[Any], write: int) -> Callable[..., Any]:
        pure = self._arithmetic().get(operation)
        if pure is not None:
            return pure
        ahead: list[Any] = []
        ahead += [o["displacement"] * self.unit for o in operands if _has(o, "displacement")]
        ahead += [o["argument"] for o in operands if _has(o, "argument")]
        if operation in ("jump", "blt", "bne", "loop"):
            ahead = [operands[-1]]
        if operation == "loop":
            ahead.append(self.first["s"] + operands[0])
        if operation == "aread":
            ahead.append(self.first["a"] + operands[0])
        return partial(getattr(self, f"_{operation}"), *ahead)

    def _arithmetic(self) -> Mapping[str, Callable[..., Any]]:
        """What depends on its operands alone."""
        lanes, bits = self.lanes, self.chip["approx_bits"]
        base: Any = np.exp2 if self.chip["exp_base"] == "2" else np.exp
        one = np.float32(1)
        return {
            "set": lambda a: a,
            "add": lambda a, b: wrapped(a + b),
            "sub": lambda a, b: wrapped(a - b),
            "mul": lambda a, b: wrapped(a * b),
            "min": lambda a, b: min(a, b),
            "vset": lambda a: np.full(lanes, a, np.float32),
            "vlane": lambda a, n: np.full(lanes, a[n], np.float32),
            "vadd": np.add,
            "vsub": np.subtract,
            "vmul": np.multiply,
            "vmax": np.maximum,
            "exp": lambda a: base(a.astype(np.float64)).astype(np.float32),
            "recip": lambda a: rounded(one / a, bits),
            "rsqrt": lambda a: rounded((1 / np.sqrt(a.astype(np.float64))).astype("f4"), bits),
            "azero": lambda: np.zeros(lanes, np.float32),
            "amac": lambda a, b, total: total + a * b,
            "amacl": lambda a, b, n, total: total + a * b[n],
        }

    # -- running

    def run(self) -> int:
        with np.errstate(all="ignore"):
            self._run()
        return max(self.now, self.channels.last_end)

    def _run(self) -> None:
        steps, values, ready = self.steps, self.values, self.ready
        place, special_free, limit = 0, 0, int(self.chip["watchdog"])
        while place >= 0:
            run, reads, write, latency, special, self.line = steps[place]
            self.executed += 1
            if self.executed > limit:
                raise Trap("watchdog", f"{limit} instructions were executed")
            start = self.now
            for slot in reads:
                if ready[slot] > start:
                    start = ready[slot]
            if start > self.now:
                if start == UNSET:
                    raise Trap("unset", f"{self._unset_register(reads)} is read")
                self.stalls["operand"] += start - self.now
            if special:
                self.stalls["special"] += max(0, special_free - start)
                start = max(start, special_free)
                special_free = start + self.chip["special_cycles"]
            self.now = start + 1
            result = run(*[values[slot] for slot in reads])
            place += 1
            if write >= 0:
                values[write] = result
                ready[write] = start + latency
            elif result is not None:
                place = result

    def _unset_register(self, slots: tuple[int, ...]) -> str:
        slot = next(slot for slot in slots if self.ready[slot] == UNSET)
        bank = max((b for b in self.first if self.first[b] <= slot), key=lambda b: self.first[b])
        syntax = self.chip["syntax"]
        return f"{syntax['sigil']}{syntax[bank]}{slot - self.first[bank]}"

    # -- control

    def _param(self, asked: Mapping[str, str]) -> int:
        rows, columns = self.tensors.shape(asked["argument"])
        return {"rows": rows, "cols": columns, "count": rows * columns}[asked["field"]]

    def _take(self, label: int, cycles: str) -> int:
        penalty = int(self.chip[cycles]) - 1
        self.stalls["branch"] += penalty
        self.now += penalty
        return label

    def _jump(self, label: int) -> int:
        return self._take(label, "branch_cycles")

    def _blt(self, label: int, left: int, right: int) -> int | None:
        return self._take(label, "branch_cycles") if left < right else None

    def _bne(self, label: int, left: int, right: int) -> int | None:
        return self._take(label, "branch_cycles") if left != right else None

    def _loop(self, label: int, slot: int, count: int) -> int | None:
        self.values[slot] = wrapped(count - 1)
        self.ready[slot] = self.now
        return self._take(label, "loop_cycles") if count != 1 else None

    def _halt(self) -> int:
        if self.channels.unfinished:
            word = self.chip["syntax"]["t"]
            tags = sorted({transfer.tag for transfer in self.channels.unfinished})
            raise Trap("unfinished", ", ".join(f"{word}{tag}" for tag in tags))
        return -1

    def _setlen(self, count: int) -> None:
        if not 1 <= count <= self.lanes:
            raise Trap("length", f"{count} is not between 1 and {self.lanes}")
        self.active = count

    # -- scratchpad

    def _words(self, base: int, shift: int, count: int, align: int, *, write: bool) -> int:
        """The first word of an access that is allowed."""
        address = base * self.unit + shift
        if address % align:
            place = f"{address // self.unit} is no multiple of {align // self.unit or 1}"
            raise Trap("vector_align", place)
        first, end = address // 4, address // 4 + count
        if first < 0 or end > len(self.scratch):
            last = (address + 4 * count - 1) // self.unit
            size = self.chip["scratch_bytes"] // self.unit
            raise Trap("bounds", f"{address // self.unit} to {last} of {size}")
        if self.channels.unfinished:
            self.channels.check(first, end, write=write)
        return first

    def _vload(self, shift: int, base: int) -> Array:
        first = self._words(base, shift, self.active, self.vector_align, write=False)
        self.counts["lanes"] += self.active
        loaded = self.scratch[first : first + self.active]
        if self.active == self.lanes:
            return loaded.copy()
        return np.concatenate([loaded, np.zeros(self.lanes - self.active, np.float32)])

    def _vword(self, shift: int, base: int) -> Array:
        first = self._words(base, shift, 1, 4, write=False)
        return np.full(self.lanes, self.scratch[first], np.float32)

    def _vstore(self, shift: int, base: int, vector: Array) -> None:
        first = self._words(base, shift, self.active, self.vector_align, write=True)
        self.counts["lanes"] += self.active
        self.scratch[first : first + self.active] = vector[: self.active]

    # -- reductions and accumulators

    def _spread(self, value: Any) -> Array:
        result = np.zeros(self.lanes, np.float32)
        result[: self.lanes if self.chip["reduce_to"] == "all" else 1] = value
        return result

    def _rsum(self, vector: Array) -> Array:
        part = np.zeros(self.lanes, np.float32)
        part[: self.active] = vector[: self.active]
        while len(part) > 1:
            part = part[::2] + part[1::2]
        return self._spread(part[0])

    def _rmax(self, vector: Array) -> Array:
        return self._spread(vector[: self.active].max())

    def _aread(self, slot: int, total: Array) -> Array:
        if self.chip["aread_clears"]:
            self.values[slot] = np.zeros(self.lanes, np.float32)
        return total

    # -- transfers

    def _start(self, base: int, shift: int, place: tuple[str, int], length: int, tag: int) -> None:
        issue = int(self.chip["dma_issue"]) - 1
        self.now += issue
        self.stalls["issue"] += issue
        address = base * self.unit + shift
        name, offset = place
        self.channels.start(self.now, address, (name, offset * self.unit), length * self.unit, tag)

    def _dmain(self, shift: int, name: str, base: int, offset: int, length: int, tag: int) -> None:
        self._start(base, shift, (name, offset), length, tag)

    def _dmaout(self, shift: int, name: str, offset: int, base: int, length: int, tag: int) -> None:
        self._start(base, shift, (name, offset), length, tag)

    def _shape(self, rows: int, pitch: int) -> None:
        self.channels.rows, self.channels.pitch = rows, pitch * self.unit

    def _wait(self, tag: int) -> None:
        end = self.channels.wait(tag)
        self.stalls["transfer"] += max(0, end - self.now)
        self.now = max(self.now, end)


def _has(operand: Any, key: str) -> bool:
    return isinstance(operand, dict) and key in operand and "field" not in operand


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
        print(f"{asked.object} was not assembled for {chip['id']}", file=sys.stderr)
        return 2
    folder, machine = asked.manifest.parent, None
    try:
        tensors = Tensors(program, manifest, folder)
        machine = Machine(program, chip, tensors)
        cycles = machine.run()
    except Trap as trap:
        error, line = chip["errors"][trap.kind], machine.line if machine else 1
        message = f"{program['source']}:{line}: {error['code']} {error['text']}: {trap.text}"
        print(message, file=sys.stderr)
        return 3
    store_outputs(tensors, manifest, folder)
    described = report(machine, cycles, manifest)
    named = folder / manifest["report"] if manifest.get("report") else None
    if path := asked.report or named:
        path.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    print(f"{program['kernel']}: {cycles} cycles, {described['time_us']:.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
