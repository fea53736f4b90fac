"""Profiles by line: samples of source lines and of single instructions.

`LineRow` is the record that the readers of all tools yield; `access_of` classifies the memory
access of an instruction, for SASS, AMD's GPUs, x86-64 and AArch64.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePath
from typing import NamedTuple


@dataclass(frozen=True)
class LineRow:
    """One instruction of a kernel, or one source line if the profile has no instructions.

    `line` counts from 1 and is 0 if unknown. `samples` are in the unit of the profile: samples,
    cycles or per cent. `stalls` are the samples by reason (the names of STALLS), `not_issued` those
    without an issued instruction. `sectors` and `wavefronts` count the traffic of global and of
    shared memory, `excess_*` the part that a better pattern saves. `lanes` are threads that execute
    it on average, None if unknown.
    """

    samples: float
    file: str = ""
    line: int = 0
    address: str = ""
    instruction: str = ""
    source: str = ""
    stalls: Mapping[str, float] = field(default_factory=dict)
    not_issued: float = 0.0
    executed: float = 0.0
    sectors: float = 0.0
    excess_sectors: float = 0.0
    wavefronts: float = 0.0
    excess_wavefronts: float = 0.0
    lanes: float | None = None
    via: str = ""


TIME_UNIT = "the time"  # unit of samples of a processor, which have no stall reasons

# Names of stall reasons in ncu's source view and its metrics, CUPTI, Proton and rocprofv3. A name
# is matched without its prefix and case.
STALLS = {
    **{name: name for name in ("barrier", "branch_resolving", "drain", "membar", "misc", "wait")},
    **{name: name for name in ("gmma", "not_selected", "selected", "sleeping", "waitcnt")},
    "dispatch": "dispatch",
    "dispatch_stall": "dispatch",
    "sleep": "sleeping",
    "imc": "imc_miss",
    "imc_miss": "imc_miss",
    "lg": "lg_throttle",
    "lg_throttle": "lg_throttle",
    "long_sb": "long_scoreboard",
    "long_scoreboard": "long_scoreboard",
    "short_sb": "short_scoreboard",
    "short_scoreboard": "short_scoreboard",
    "math": "math_pipe_throttle",
    "math_pipe_throttle": "math_pipe_throttle",
    "mio": "mio_throttle",
    "mio_throttle": "mio_throttle",
    "tex": "tex_throttle",
    "tex_throttle": "tex_throttle",
    "no_inst": "no_instruction",
    "no_instruction": "no_instruction",
    "no_instructions": "no_instruction",
    "no_instruction_available": "no_instruction",
    "alu_dependency": "wait",
    "barrier_wait": "barrier",
    "sleep_wait": "sleeping",
    "arbiter_not_win": "not_selected",
    "arbiter_win_ex_stall": "math_pipe_throttle",
    "internal_instruction": "misc",
    "other_wait": "misc",
}
# Reasons of warps that could issue; they are no stalls.
READY = ("selected", "not_selected")
_STALL = re.compile(
    r"(?:smsp__pcsamp_warps_issue_stalled_|group:smsp__pcsamp_\w{0,20}:|stall(?:ed)?_(?:amd_)?"
    r"|rocprofiler_pc_sampling_instruction_not_issued_reason_|stall )?(?P<name>[a-z_ ]{2,40})"
)


def stall_name(column: str) -> str | None:
    """The reason that a column counts, such as "stall_long_sb"; None for another column."""
    folded = column.strip().strip('"').lower()
    match = _STALL.fullmatch(folded)
    return STALLS.get(match["name"].strip().replace(" ", "_")) if match else None


# -- memory access of an instruction


class Access(NamedTuple):
    """The kind of an instruction, the bits that one lane moves (0 if it moves none), and whether
    it is a scalar instruction of a processor with vector registers."""

    kind: str
    bits: int = 0
    scalar: bool = False


OTHER = Access("other")
LOADS = ("global_load", "local_load", "shared_load", "async_copy", "constant_load", "load")
# (pattern at the start of the instruction, kind), the first that matches.
_SASS = (
    (r"LDGSTS|UBLKCP|UTMALDG|UTMASTG", "async_copy"),
    (r"LDL\b|LDL\.", "local_load"),
    (r"STL\b|STL\.", "local_store"),
    (r"LDG\b|LDG\.|LD\b|LD\.|TEX|TLD|SULD", "global_load"),
    (r"STG\b|STG\.|ST\b|ST\.|SUST", "global_store"),
    (r"LDS\b|LDS\.|LDSM|LDTM", "shared_load"),
    (r"STS\b|STS\.|STSM", "shared_store"),
    (r"ATOM|RED\b|RED\.|REDG|REDS|SUATOM", "atomic"),
    (r"BAR\b|BAR\.|SYNCS|WARPSYNC|LDGDEPBAR|DEPBAR|UCGABAR|NANOSLEEP|UTCBAR", "barrier"),
    (r"MEMBAR|ERRBAR|CCTL|FENCE", "fence"),
    (r"MUFU", "special"),
    (r"HMMA|IMMA|BMMA|QMMA|OMMA|HGMMA|QGMMA|IGMMA|BGMMA|WARPGROUP|UTC\w*MMA|DMMA", "matrix"),
    (r"DADD|DMUL|DFMA|DSETP", "fp64"),
    (r"I2F|F2I|F2F|I2I|F2FP|I2FP|PRMT", "convert"),
    (r"BRA|BRX|JMP|BSYNC|BSSY|CALL|RET\b|RET\.|BREAK|EXIT", "branch"),
    (r"LDC|ULDC|LDCU", "constant_load"),
    (r"SHFL|VOTE|REDUX|MATCH", "shuffle"),
    (r"[A-Z][A-Z0-9_]{1,12}(?:\.|\s|$)", "arithmetic"),
)
_AMD = (
    (r"scratch_load", "local_load"),
    (r"scratch_store", "local_store"),
    (r"(?:global|buffer|flat|ds|s)_\w*(?:atomic|cmpst|add_u32|add_f32|add_rtn)", "atomic"),
    (r"buffer_load_\w+ .*\blds\b|global_load_lds|tensor_load", "async_copy"),
    (r"(?:global|buffer|flat)_load", "global_load"),
    (r"(?:global|buffer|flat)_store", "global_store"),
    (r"ds_(?:read|load)", "shared_load"),
    (r"ds_(?:write|store)", "shared_store"),
    (r"ds_(?:bpermute|permute|swizzle)", "shuffle"),
    (r"s_waitcnt|s_wait_", "wait"),
    (r"s_barrier|s_sleep", "barrier"),
    (r"v_(?:mfma|wmma|smfmac|swmmac)", "matrix"),
    (r"v_(?:exp|log|rcp|rsq|sqrt|sin|cos)_", "special"),
    (r"v_\w*f64", "fp64"),
    (r"v_cvt|v_perm", "convert"),
    (r"s_(?:load|buffer_load)", "constant_load"),
    (r"s_(?:cbranch|branch|setpc|swappc)", "branch"),
    (r"[vs]_[a-z]", "arithmetic"),
)
_X86 = (
    (r"lock |xadd|cmpxchg|xchg ", "atomic"),
    (r"v?p?gather", "gather"),
    (r"v?p?scatter", "scatter"),
    (r"mfence|sfence|lfence|pause", "barrier"),
    (r"v?(?:div|sqrt)[sp][sdh]|i?div[bwlq]?\s", "divide"),
    (r"call", "call"),
    (r"tdp|vdpbf16|vpdpbusd", "matrix"),
    (r"v?cvt", "convert"),
    (r"v?p?(?:perm|shuf|unpck|insert|extract|broadcast)", "shuffle"),
    (r"j[a-z]{1,3}\s", "branch"),
    (r"[a-z][a-z0-9]{1,15}", "arithmetic"),
)
_ARM = (
    (r"ld(?:ax|x|ad)|st[l]?xr|swp|cas|ldadd|ldset|ldclr", "atomic"),
    (r"ld1\w?\s.*\[\w+, ?z|ld1\w?\s.*\[z", "gather"),
    (r"f?div|fsqrt|[su]div", "divide"),
    (r"dmb|dsb|isb|yield|wfe", "barrier"),
    (r"[suf]?mmla|[bs]?fmopa|fmopa|[su]mopa", "matrix"),
    (r"ldn?p|ldu?r|ld[1-4nf]", "load"),
    (r"stn?p|stu?r|st[1-4n]", "store"),
    (r"bl[r]?\s", "call"),
    (r"b(?:\.\w+)?\s|cbn?z|tbn?z", "branch"),
    (r"[a-z][a-z0-9]{1,15}", "arithmetic"),
)
_PREDICATE = re.compile(r"^(?:/\*[0-9a-f]+\*/\s*)?(?:\{\s*)?(?:@!?U?P\w+\s+)?")
_IS_SASS = re.compile(r"[A-Z][A-Z0-9_]{1,12}(?:[.\s;]|$)")
_IS_AMD = re.compile(r"(?:s|v|ds|global|buffer|flat|scratch|tensor|image)_[a-z]")
_MEMORY = re.compile(r"-?(?:0x[0-9a-f]+)?\((?:%\w+)?(?:,%\w+)?(?:,\d)?\)|\b(?:PTR )?\[[^\]]+\]")


# Each row looks back over the ones before it, so an instruction is asked for some hundred times.
@lru_cache(maxsize=16_384)
def access_of(instruction: str) -> Access:
    """What an instruction does; `other` for an empty text and for one of an unknown processor."""
    text = _PREDICATE.sub("", instruction.strip(), count=1)
    if not text:
        return OTHER
    if _IS_SASS.match(text):
        kind = _first(_SASS, text)
        return Access(kind, _sass_bits(text) if _moves(kind) else 0)
    if _IS_AMD.match(text):
        kind = _first(_AMD, text)
        return Access(kind, _amd_bits(text) if _moves(kind) else 0)
    if re.search(r"\s[xwqvzp]\d{1,2}\b|\{[vz]\d", text) and "%" not in text:
        return Access(_first(_ARM, text), _arm_bits(text), _is_arm_scalar(text))
    kind = _first(_X86, text)
    memory = _MEMORY.search(text)
    if (
        memory
        and kind in ("arithmetic", "convert", "shuffle")
        and not text.startswith(("lea", "nop"))
    ):
        stores = "," not in text[memory.end() :] and "," in text[: memory.start()]
        moves = re.match(r"v?mov|push|pop", text) is not None
        kind = "store" if stores and moves else "load"
    return Access(kind, _x86_bits(text), _is_x86_scalar(text))


def _moves(kind: str) -> bool:
    return kind.endswith(("load", "store")) or kind in ("async_copy", "atomic")


def _first(table: Iterable[tuple[str, str]], text: str) -> str:
    return next((kind for pattern, kind in table if re.match(pattern, text)), "other")


def _sass_bits(text: str) -> int:
    match = re.match(r"\S*?\.(?:U|S|B)?(?P<bits>128|256|64|32|16|8)\b", text.split(maxsplit=1)[0])
    return int(match["bits"]) if match else 32


def _amd_bits(text: str) -> int:
    name = text.split(maxsplit=1)[0]
    match = re.search(
        r"_(?:b|u|i|f)(?P<bits>8|16|32|64|96|128)\b|dwordx(?P<words>[2-4])|_(?:[su]byte|"
        r"[us]short)",
        name,
    )
    if match is None:
        return 32
    if match["bits"]:
        return int(match["bits"])
    return 32 * int(match["words"]) if match["words"] else (8 if "byte" in name else 16)


def _x86_bits(text: str) -> int:
    for register, bits in (("zmm", 512), ("ymm", 256), ("xmm", 128)):
        if register in text:
            return bits if not _is_x86_scalar(text) else 64 if re.match(r"\S*sd\b", text) else 32
    return 0


def _is_x86_scalar(text: str) -> bool:
    name = text.split(maxsplit=1)[0]
    return re.fullmatch(r"v?\w*[a-z]s[sd]|v?f(?:n?m(?:add|sub))\w*s[sd]", name) is not None


def _arm_bits(text: str) -> int:
    for pattern, bits in (
        (r"\bq\d|\bz\d|\.[248]?1?6?[bhsd]\b", 128),
        (r"\b[dx]\d", 64),
        (r"\b[sw]\d", 32),
    ):
        if re.search(pattern, text.partition("[")[0]):
            return bits
    return 0


def _is_arm_scalar(text: str) -> bool:
    return re.match(r"(?:f\w+|ldu?r)\s+[sd]\d", text) is not None


# -- which load a stalled instruction waits for

_REGISTER = re.compile(r"\b(U?R\d{1,3})\b")
LOOK_BACK = 400  # instructions
_VMCNT = re.compile(r"vmcnt\((\d+)\)|s_wait_loadcnt\s+(0x[0-9a-f]+|\d+)")
_LGKMCNT = re.compile(r"lgkmcnt\((\d+)\)|s_wait_(?:ds|km)cnt\s+(0x[0-9a-f]+|\d+)")


def awaited_by(rows: Sequence[LineRow], place: int, stall: str = "") -> int | None:
    """The index of the instruction that the one at `place` waits for, with `stall` as its reason;
    None if unknown. `rows` are in the order of addresses. Samples of a wait count at the
    instruction that needs the result, or at the first one behind a barrier."""
    text = _PREDICATE.sub("", rows[place].instruction.strip(), count=1)
    if not text:
        return None
    if stall == "barrier":
        own = access_of(text).kind == "barrier"
        return None if own else _nearest(rows, place, ("barrier",), NEAR)
    if stall == "drain":
        return _nearest(rows, place, ("atomic", "global_store"), LOOK_BACK)
    if _IS_AMD.match(text):
        return _awaited_on_amd(rows, place)
    if _IS_SASS.match(text):
        found = _awaited_in_sass(rows, place)
        if found is None and stall == "long_scoreboard":
            # cp.async is waited for by a barrier behind LDGDEPBAR, which names no register.
            found = _nearest(rows, place, ("async_copy",), LOOK_BACK)
        if found is None and stall == "long_scoreboard" and _tries_barrier(rows, place):
            # Other warps may issue the bulk copy, in code that follows.
            kinds = (access_of(row.instruction).kind for row in rows)
            return next((at for at, kind in enumerate(kinds) if kind == "async_copy"), None)
        return found
    return None


def _tries_barrier(rows: Sequence[LineRow], place: int) -> bool:
    """Whether the instruction waits for the phase of an mbarrier."""
    return any("TRYWAIT" in row.instruction for row in rows[max(0, place - 1) : place + 1])


def congesting(rows: Sequence[LineRow], total: float) -> int | None:
    """The index of the atomic whose additions to few addresses fill the queue that the loads of the
    kernel pass too; None without one."""
    for index, row in enumerate(rows):
        if row.samples < CONGESTED * total or access_of(row.instruction).kind != "atomic":
            continue
        queued = sum(row.stalls.get(reason, 0.0) for reason in ("lg_throttle", "mio_throttle"))
        # A sector holds eight words: fewer words than lanes, or one lane that speaks for its warp.
        words, lanes = 8 * row.sectors, (row.lanes or 32.0) * row.executed
        apart = row.lanes != 1 and words >= lanes * 0.9 > 0
        if 2 * queued >= row.samples and not (row.sectors and apart):
            return index
    return None


CONGESTED = 0.05  # share of the samples at an atomic from which on it delays loads


def registers_named(rows: Iterable[LineRow]) -> int:
    """The registers of a thread by the highest one that SASS names, in steps of their allocation;
    0 for another instruction set."""
    numbers = [
        int(number) + access_of(row.instruction).bits // 33
        for row in rows
        if _IS_SASS.match(_PREDICATE.sub("", row.instruction.strip(), count=1))
        for number in re.findall(r"\bR(\d{1,3})\b", row.instruction)
    ]
    return 8 * (max(numbers) // 8 + 1) if numbers else 0


NEAR = 16  # instructions


def _nearest(rows: Sequence[LineRow], place: int, kinds: Sequence[str], most: int) -> int | None:
    """The nearest earlier instruction of one of these kinds, at most so many instructions away."""
    for index in range(place - 1, max(-1, place - most), -1):
        if access_of(rows[index].instruction).kind in kinds:
            return index
    return None


def _awaited_in_sass(rows: Sequence[LineRow], place: int) -> int | None:
    """The nearest earlier load that writes a register which the instruction reads."""
    name, _, operands = _PREDICATE.sub("", rows[place].instruction.strip()).partition(" ")
    read = _REGISTER.findall(
        operands if name.startswith(("ST", "RED")) else operands.partition(",")[2]
    )
    wanted = set(read) or set(_REGISTER.findall(operands))
    for index in range(place - 1, max(-1, place - LOOK_BACK), -1):
        kind, bits, _ = access_of(rows[index].instruction)
        if kind not in LOADS and kind not in ("atomic", "special", "convert", "shuffle"):
            continue
        target = _REGISTER.search(rows[index].instruction)
        if target is not None and wanted & _written(target[1], bits):
            return index
    return None


def _written(register: str, bits: int) -> set[str]:
    name, number = re.fullmatch(r"(U?R)(\d+)", register).groups()  # type: ignore[union-attr]
    return {f"{name}{int(number) + part}" for part in range(max(1, bits // 32))}


def _awaited_on_amd(rows: Sequence[LineRow], place: int) -> int | None:
    """The oldest operation that a counter of s_waitcnt does not leave in flight."""
    text = rows[place].instruction
    for pattern, kinds in (
        (_VMCNT, ("global_load", "async_copy", "local_load")),
        (_LGKMCNT, ("shared_load", "constant_load", "shuffle")),
    ):
        match = pattern.search(text)
        if match is None:
            continue
        left = int(match[1] or match[2], 0)
        earlier = [
            index
            for index in range(place - 1, max(-1, place - LOOK_BACK), -1)
            if access_of(rows[index].instruction).kind in kinds
        ]
        if len(earlier) > left:
            return earlier[left]
    return None


def without_skid(rows: Sequence[LineRow]) -> list[LineRow]:
    """The rows of a processor, with samples at the instruction that took the time: an interrupt
    arrives after it, so that samples of one without a memory access belong to a slow one before it.
    """
    slow = ("load", "gather", "divide", "atomic", "call")
    moved = list(rows)
    for place in range(1, len(moved)):
        late, early = moved[place], moved[place - 1]
        own = access_of(late.instruction).kind
        if own in (*slow, "store", "scatter") or access_of(early.instruction).kind not in slow:
            continue
        moved[place - 1] = replace(early, samples=early.samples + late.samples)
        moved[place] = replace(late, samples=0.0)
    return moved


# -- rows of one kernel


def of_leading(tables: Mapping[str, Sequence[LineRow]]) -> tuple[str, tuple[LineRow, ...]]:
    """The kernel with the most samples, and its rows: each instruction once, and source lines only
    where their instructions are not listed."""
    if not tables:
        return "", ()
    kernel = max(tables, key=lambda name: sum(row.samples for row in _distinct(tables[name])))
    return kernel, tuple(_distinct(tables[kernel]))


def _distinct(rows: Sequence[LineRow]) -> list[LineRow]:
    instructions = [row for row in rows if row.address]
    if not instructions:
        return [row for row in rows if row.samples or row.sectors or row.instruction]
    # Code that is inlined is listed under the line of the function and, mostly, of the call.
    weight: dict[str, float] = {}
    for row in instructions:
        weight[row.file] = weight.get(row.file, 0.0) + row.samples
    entry = min(instructions, key=lambda row: _order(row.address)).file
    own = max(weight, key=lambda file: (not _LIBRARY.search(file), file == entry, weight[file]))
    called: dict[str, LineRow] = {}
    inner: dict[str, LineRow] = {}
    for row in instructions:
        if row.file == own:
            called.setdefault(row.address, row)
        elif row.address not in inner or weight[row.file] > weight[inner[row.address].file]:
            inner[row.address] = row
    addresses = sorted({**inner, **called}, key=_order)
    return list(_at_calls(addresses, called, inner))


# Files of toolchains and libraries, whose code is inlined into kernels.
_LIBRARY = re.compile(r"/include/|(?:site|dist)-packages/|\.(?:h|hh|hpp|hxx|cuh|inl|inc)$")
_ENDS = re.compile(r"(?:EXIT|RET\S*|BRA\S*)\b")
_TARGET = re.compile(r"\bBRA\S*\s.*?(0x[0-9a-f]+)$")


def _at_calls(
    addresses: Sequence[str], called: Mapping[str, LineRow], inner: Mapping[str, LineRow]
) -> Iterator[LineRow]:
    """The instructions at the lines of the kernel's file. One that is listed in headers only is at
    the line before it, or at that of the branch that leads to it."""
    line: LineRow | None = None
    branches: dict[int, LineRow] = {}
    for address in addresses:
        line = called.get(address) or line or branches.get(_order(address))
        row, header = called.get(address), inner.get(address)
        row = row or header
        assert row is not None
        if header is not None and line is not None and line.line:
            via = f"{PurePath(header.file).name} line {header.line}"
            row = replace(row, file=line.file, line=line.line, source=line.source, via=via)
        yield row
        target = _TARGET.search(row.instruction.strip())
        if target is not None and line is not None:
            branches.setdefault(_order(target[1]), line)
        if _ENDS.match(row.instruction.strip()):  # not predicated: what follows is led to
            line = None


def _order(address: str) -> int:
    try:
        return int(address, 16)
    except ValueError:
        return 0
