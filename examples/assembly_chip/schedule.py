"""Canonical instructions of a basic block, put into an order that hides latencies.

Stores go to other blocks of the scratchpad than loads come from: only registers order instructions.
Standard library only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SPECIAL = ("exp", "recip", "rsqrt")


class Instruction(NamedTuple):
    """An operation by its canonical name, its operands in canonical order."""

    operation: str
    operands: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.operation} {', '.join(self.operands)}"


def _base(operand: str) -> str:
    """The register that an operand names: that of an address too."""
    return operand[1:].partition("+")[0].rstrip("]") if operand.startswith("[") else operand


class Scheduler:
    """Greedy: of the instructions that could be issued, the one with the longest path behind it."""

    def __init__(self, chip: Mapping[str, Any]) -> None:
        self.chip = chip

    def _latency(self, instruction: Instruction) -> int:
        return int(self.chip[self.chip["operations"][instruction.operation]["cycles"]])

    def _uses(self, instruction: Instruction) -> tuple[set[str], set[str]]:
        """Registers read, registers written."""
        row = self.chip["operations"][instruction.operation]
        registers = [_base(operand) for operand in instruction.operands]
        written = {registers[0]} if row["to"] and row["to"][0][0] in "sva" else set()
        read = set(registers[len(written) :])
        if instruction.operation in ("amac", "amacl"):
            read |= written
        return {name for name in read if name[0] in "sva"}, written

    def _edges(self, block: Sequence[Instruction]) -> list[dict[int, int]]:
        """For each instruction the ones that come after it, and the cycles between the issues."""
        edges: list[dict[int, int]] = [{} for _ in block]
        writer: dict[str, int] = {}
        readers: dict[str, list[int]] = defaultdict(list)
        for place, instruction in enumerate(block):
            read, written = self._uses(instruction)
            for name in read & writer.keys():
                edges[writer[name]][place] = self._latency(block[writer[name]])
            for name in written:
                for reader in (*readers[name], *([writer[name]] if name in writer else ())):
                    if reader != place:
                        edges[reader].setdefault(place, 1)
                writer[name], readers[name] = place, []
            for name in read - written:
                readers[name].append(place)
        return edges

    def ordered(self, block: Sequence[Instruction]) -> list[Instruction]:
        edges = self._edges(block)
        behind = [0] * len(block)
        for place in reversed(range(len(block))):
            behind[place] = max((n + behind[to] for to, n in edges[place].items()), default=0)
        waiting = [0] * len(block)
        for following in edges:
            for to in following:
                waiting[to] += 1
        earliest = [0] * len(block)
        ready = {place for place, count in enumerate(waiting) if not count}
        order: list[Instruction] = []
        now = special_free = 0
        while ready:
            starts = {
                place: max(earliest[place], special_free * (block[place].operation in SPECIAL))
                for place in ready
            }
            now = max(now, min(starts.values()))
            place = max((p for p in ready if starts[p] <= now), key=lambda p: (behind[p], -p))
            ready.remove(place)
            order.append(block[place])
            if block[place].operation in SPECIAL:
                special_free = now + self.chip["special_cycles"]
            for to, cycles in edges[place].items():
                earliest[to] = max(earliest[to], now + cycles)
                waiting[to] -= 1
                if not waiting[to]:
                    ready.add(to)
            now += 1
        return order
