"""Parsers of compilers' reports on a kernel: gcc's vectoriser, the instructions that objdump
prints, ptxas, PTX, and the assembly of AMD's compiler.

Counts instructions in the code, not their executions. GPU metrics have the raw names of the
collector `static`; those in `COMBINE` may describe a whole candidate, the rest are details of a
kernel. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from optimizer.evaluation.toolchains.base import Metric

_REMARK = re.compile(r"^(?P<where>.+?:\d+):\d+: (?P<kind>optimized|missed): (?P<text>.*)$")
_VECTORISED = re.compile(r"loop vectorized using (\d+) byte vectors")
_NOT = re.compile(r"couldn't vectorize loop")

_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>[^>]+)>:$")
_INSTRUCTION = re.compile(r"^\s+[0-9a-f]+:\s+(?P<op>[a-z][\w.]*)\s*(?P<args>[^#<]*)")
# Functions that the linker adds to every library.
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
    """Source lines of loops that were vectorised in some copy, and of those that were in none.
    `widest_bytes` is the widest vector."""

    vectorised: frozenset[str]
    missed: frozenset[str]
    widest_bytes: int

    @property
    def summary(self) -> str:
        """Both counts in one line."""
        widest = f", widest {self.widest_bytes * 8} bits" if self.widest_bytes else ""
        return f"loops vectorised: {len(self.vectorised)}{widest}; missed: {len(self.missed)}"


def parse_loops(report: str, sources: Path) -> Loops:
    """Read `-fopt-info-vec-optimized-missed`. Loops of headers outside `sources` do not count.

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
    """For each function of `objdump -d`: instructions, packed instructions, their widest register,
    and vector stores to the stack, which are mostly spills."""
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
        instruction = _INSTRUCTION.match(line)
        if instruction is not None and name and not _STARTUP.match(name):
            yield name, instruction["op"], instruction["args"].strip()


def packed_bits(op: str, args: str) -> int:
    """The width of a packed instruction in bits, 0 for any other.

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


_HOW: Mapping[str, Callable[[Sequence[float]], float]] = {"max": max, "min": min, "sum": sum}
# How kernels combine into a candidate: the worst of resources, all of the instructions.
COMBINE: Mapping[str, str] = {
    "n_regs": "max",
    "n_spills": "max",
    "spill_stores": "max",
    "spill_loads": "max",
    "stack_frame": "max",
    "shared": "max",
    "vgpr_count": "max",
    "vgpr_spill_count": "max",
    "sgpr_spill_count": "max",
    "private_segment_fixed_size": "max",
    "occupancy": "min",
    "mma_instructions": "sum",
    "mfma_instructions": "sum",
    "ld_global_vector": "sum",
    "ld_global_scalar": "sum",
}

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_PROPERTIES = re.compile(r"Function properties for (?P<name>\S+)")
_SPILLS = re.compile(
    r"(?P<stack_frame>\d+) bytes stack frame, (?P<spill_stores>\d+) bytes spill stores, "
    r"(?P<spill_loads>\d+) bytes spill loads"
)
_USED = re.compile(r"Used (?P<n_regs>\d+) registers")
_SMEM = re.compile(r"(?P<shared>\d+) bytes smem")

_PTX_LOAD = re.compile(r"\bld\.(?:\w+\.)*?global(?P<rest>(?:\.[\w:]+)*)(?=\s)")
_PTX_ASYNC = re.compile(r"\bcp\.async\.c[ag]\.shared\.global\S*\s+[^;]*?,\s*(0x[0-9a-f]+|\d+)\b")
_PTX_BULK = re.compile(r"\bcp\.async\.bulk\.\S*?shared::\w+\.global\b")
_PTX_MATRIX = re.compile(r"\b(wgmma\.mma_async|tcgen05\.mma|mma\.sync|wmma\.mma)\b")
_PTX_VECTOR = re.compile(r"\.v(\d)\b")
_PTX_WIDTH = re.compile(r"\.[busf](\d+)\b")

_AMD_METADATA = re.compile(
    r"^\s*(?:-\s*)?\.(vgpr_count|agpr_count|sgpr_count|vgpr_spill_count|sgpr_spill_count"
    r"|private_segment_fixed_size|group_segment_fixed_size|max_flat_workgroup_size):\s*(\d+)",
    re.MULTILINE,
)
_AMD_OCCUPANCY = re.compile(r"^; Occupancy: (\d+)", re.MULTILINE)
_AMD_MATRIX = re.compile(r"^\s*v_(?:mfma|smfmac|wmma)_", re.MULTILINE)
_AMD_LOAD = re.compile(
    r"^\s*(?:global|buffer|flat)_load_(?:lds_)?(?P<width>dwordx[234]|dword|[us]short|short|[us]byte"
    r"|b\d+|[ui]\d+)\w*",
    re.MULTILINE,
)
_AMD_BYTES = {"dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "b64": 8, "b96": 12, "b128": 16}
AMD_WAVES = 8  # of a SIMD at most, for gfx90a to gfx950


def parse_ptxas(log: str) -> dict[str, dict[str, Metric]]:
    """Resources of each entry function in the output of `ptxas -v`, also from nvcc and Triton."""
    kernels: dict[str, dict[str, Metric]] = {}
    entry = ""
    inside = ""
    for line in log.splitlines():
        if (match := _ENTRY.search(line)) is not None:
            entry = inside = match["name"]
            kernels.setdefault(entry, {})
        elif (match := _PROPERTIES.search(line)) is not None:
            inside = match["name"]
        elif entry and (match := _SPILLS.search(line)) is not None and inside == entry:
            kernels[entry] |= {name: int(value) for name, value in match.groupdict().items()}
        elif entry and (match := _USED.search(line)) is not None:
            kernels[entry]["n_regs"] = int(match["n_regs"])
            smem = _SMEM.search(line)
            kernels[entry]["shared"] = int(smem["shared"]) if smem else 0
            inside = entry
    for row in kernels.values():
        if "spill_stores" in row:
            row["n_spills"] = _spilled_registers(row)
    return kernels


def _spilled_registers(row: Mapping[str, Metric]) -> int:
    """As Triton's driver counts: the stack frame, if there are any spills."""
    spilled = int(row["spill_stores"]) + int(row["spill_loads"])
    return max(1, int(row["stack_frame"]) // 4) if spilled else 0


def parse_ptx(ptx: str) -> dict[str, Metric]:
    """Matrix instructions by kind, and global loads by width in bytes for one thread."""
    kinds: dict[str, int] = {}
    for match in _PTX_MATRIX.finditer(ptx):
        kinds[match[1]] = kinds.get(match[1], 0) + 1
    widths = [_ptx_bytes(match["rest"]) for match in _PTX_LOAD.finditer(ptx)]
    widths += [int(match[1], 0) for match in _PTX_ASYNC.finditer(ptx)]
    bulk = len(_PTX_BULK.findall(ptx))
    metrics: dict[str, Metric] = {"mma_instructions": sum(kinds.values()), **_loads(widths, bulk)}
    if kinds:
        metrics["matrix_kind"] = max(kinds, key=lambda kind: kinds[kind])
    return metrics


def _ptx_bytes(rest: str) -> int:
    count = _PTX_VECTOR.search(rest)
    width = _PTX_WIDTH.findall(rest)
    return (int(count[1]) if count else 1) * (int(width[-1]) if width else 32) // 8


def _loads(widths: Iterable[int], bulk: int = 0) -> dict[str, Metric]:
    """`bulk` counts copies of whole tiles, which are as wide as possible."""
    known = list(widths)
    vector = sum(width >= 8 for width in known) + bulk
    return {
        "ld_global_vector": vector,
        "ld_global_scalar": len(known) + bulk - vector,
        "widest_load_bytes": max(known, default=0),
        "bulk_copies": bulk,
    }


def parse_amdgcn(assembly: str) -> dict[str, Metric]:
    """Registers, spills, LDS and scratch from the code-object metadata; widths of loads from the
    code."""
    metrics: dict[str, Metric] = {
        match[1]: int(match[2]) for match in _AMD_METADATA.finditer(assembly)
    }
    waves = [int(count) for count in _AMD_OCCUPANCY.findall(assembly)]
    if waves:
        metrics["waves_per_simd"] = min(waves)
        metrics["occupancy"] = min(1.0, min(waves) / AMD_WAVES)
    widths = [_AMD_BYTES.get(match["width"], 4) for match in _AMD_LOAD.finditer(assembly)]
    return {**metrics, "mfma_instructions": len(_AMD_MATRIX.findall(assembly)), **_loads(widths)}


def whole(kernels: Mapping[str, Mapping[str, Metric]]) -> dict[str, Metric]:
    """The metrics of all kernels as those of the candidate."""
    combined: dict[str, Metric] = {}
    for name, how in COMBINE.items():
        values = [float(row[name]) for row in kernels.values() if name in row]
        if values:
            value = _HOW[how](values)
            combined[name] = int(value) if value.is_integer() else value
    return combined
