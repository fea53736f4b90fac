"""What a CPU compiler knew: gcc's vectoriser report, and the instructions of a library as objdump
prints them.

Counts what is in the code, not how often it runs. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from optimizer.evaluation.toolchains.base import Metric

_REMARK = re.compile(r"^(?P<where>.+?:\d+):\d+: (?P<kind>optimized|missed): (?P<text>.*)$")
_VECTORISED = re.compile(r"loop vectorized using (\d+) byte vectors")
_NOT = re.compile(r"couldn't vectorize loop")

_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>[^>]+)>:$")
_INSTRUCTION = re.compile(r"^\s+[0-9a-f]+:\s+(?P<op>[a-z][\w.]*)\s*(?P<args>[^#<]*)")
# Code that the linker puts into every library.
_STARTUP = re.compile(
    r"^(?:_init|_fini|_start|(?:de)?register_tm_clones|__do_global_\w+|frame_dummy|\.\w+)$"
)

_X86_WIDE = re.compile(r"%([yz])mm\d")
_X86_PACKED = re.compile(
    r"^v?(?:"
    r"(?:add|sub|mul|div|max|min|sqrt|rcp|rsqrt|hadd|addsub|cmp\w*|fn?m(?:add|sub)\w*|round)p[sd]"
    r"|p(?:add|sub|mull?|mulh|madd|max|min|avg|sad|abs|sll|srl|sra|cmp)\w*"
    r"|dpb\w+|cvt\w*p[sd]2?\w*|cvt\w*2p[sd]"
    r")$"
)
_X86_ZEROING = re.compile(r"^v?(?:xorp[sd]|pxor[dq]?)$")
_ARM_PACKED = re.compile(r"\b[vz]\d+\.(?:2d|4s|8h|16b|2s|4h|8b|[dshb])\b")
_X86_STACK_VECTOR = re.compile(r"%[xyz]mm\d+,\s*-?(?:0x[0-9a-f]+)?\((?:%rsp|%rbp)[,)]")


@dataclass(frozen=True)
class Loops:
    """Source lines of loops that were vectorised in some form, and of those never."""

    vectorised: frozenset[str]
    missed: frozenset[str]
    widest_bytes: int

    @property
    def summary(self) -> str:
        widest = f", widest {self.widest_bytes * 8} bits" if self.widest_bytes else ""
        return f"loops vectorised: {len(self.vectorised)}{widest}; missed: {len(self.missed)}"


def parse_loops(report: str, sources: Path) -> Loops:
    """From `-fopt-info-vec-optimized-missed`; loops of headers outside `sources` do not count.

    A loop is reported once for each inlined or versioned copy; one vectorised copy is enough.
    """
    vectorised: set[str] = set()
    missed: set[str] = set()
    widest = 0
    for line in report.splitlines():
        remark = _REMARK.match(line)
        if remark is None or not Path(remark["where"]).is_relative_to(sources):
            continue
        done = _VECTORISED.search(remark["text"])
        if done is not None:
            vectorised.add(remark["where"])
            widest = max(widest, int(done[1]))
        elif _NOT.search(remark["text"]):
            missed.add(remark["where"])
    return Loops(frozenset(vectorised), frozenset(missed - vectorised), widest)


def count_instructions(listing: str) -> dict[str, dict[str, Metric]]:
    """Per function of `objdump -d`: instructions, packed ones, the widest register that they use,
    and vector stores to the stack, which are mostly spills.
    """
    counts: dict[str, dict[str, Metric]] = {}
    for name, op, args in _instructions(listing):
        row = counts.setdefault(
            name, {"instructions": 0, "packed_instructions": 0, "vector_bits": 0, "stack_vector": 0}
        )
        row["instructions"] = int(row["instructions"]) + 1
        if (bits := packed_bits(op, args)) > 0:
            row["packed_instructions"] = int(row["packed_instructions"]) + 1
            row["vector_bits"] = max(int(row["vector_bits"]), bits)
        if _X86_STACK_VECTOR.search(args):
            row["stack_vector"] = int(row["stack_vector"]) + 1
    return counts


def _instructions(listing: str) -> Iterator[tuple[str, str, str]]:
    name = ""
    for line in listing.splitlines():
        function = _FUNCTION.match(line)
        if function is not None:
            name = function["name"]
            continue
        found = _INSTRUCTION.match(line)
        if found is not None and name and not _STARTUP.match(name):
            yield name, found["op"], found["args"].strip()


def packed_bits(op: str, args: str) -> int:
    """Width of a packed instruction, 0 for any other.

    Plain 128-bit moves do not count: compilers copy structures with them.
    """
    if "%" not in args:
        return 128 if _ARM_PACKED.search(args) else 0
    if _X86_ZEROING.match(op) and len(set(args.replace(" ", "").split(","))) == 1:
        return 0
    wide = {match[1] for match in _X86_WIDE.finditer(args)}
    if wide:
        return 512 if "z" in wide else 256
    return 128 if "%xmm" in args and _X86_PACKED.match(op) else 0
