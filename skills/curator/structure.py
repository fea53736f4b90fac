"""The structure of CUDA and HIP kernels that a change may give a name: which threads read what,
staged and held values, how sums are made; and requirements that the new code adds.

Read from the code of both kernels by patterns. A rule holds only if the code before lacks the
structure and the code after has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from optimizer.evaluation.bundle import Bundle
from skills.curator.excerpt import KernelCode, kernel_code

_VECTOR = re.compile(
    r"\b(?:float[24]|u?int[24]|half2|__half2|__nv_bfloat162|double2|VECTOR_TYPE)\s*(?:const\s*)?\*"
    r"|\b(?:ld|st)_vec\b|\b(?:load|store)128\w*\s*\("
)
_SHUFFLE = re.compile(r"__shfl_|\bcg::reduce\b|\bwarp_?[rR]educe\w*\s*\(")
_TREE = re.compile(r"for\s*\([^;]*;[^;]*;[^)]*(?:/=\s*2|>>=\s*1)\s*\)")
_WARP_TILE = re.compile(r"(?i)\bwarp\w*\s*(?:=|\{)[^;]*/\s*(?:32U?|WARP_?SIZE)\b")
_WARP_SIZES = re.compile(r"\bW[MN]\b|\bWARP_TILE\w*")
_TWO_BUFFERS = re.compile(
    r"__shared__[^;]*\[\s*2\s*(?:\*[^\]]*)?\]|cp\.async|__pipeline_memcpy_async|memcpy_async"
)
_BOUNDS = re.compile(r"__launch_bounds__\s*\(([^)]*)\)|maxrregcount\D*(\d+)")
_LOCAL = re.compile(
    r"^\s*(?:const\s+)?(?:float|double|half|__half|T|floatX)\s+(\w+)((?:\s*\[[^\]]+\])+)\s*[=;{]",
    re.MULTILINE,
)
_SHARED = re.compile(r"__shared__\s+(?:__align__\([^)]*\)\s*)?(?:\w+\s+)+(\w+)\s*\[")
_POINTER = re.compile(r"\*\s*(?:const\s+|__restrict__\s+|restrict\s+)*(\w+)\s*(?=[,)=])")
_SIZE = re.compile(r"\b(?:int|size_t|long|unsigned|uint|u?int(?:32|64)_t)\s+(\w+)\s*(?=[,)])")
_FAST = re.compile(r"\b(\w+)\s*(?:=|\{)([^;{}]*\bthreadIdx\.x\b(?!\s*/)[^;{}]*)[;}]")
_LANE = re.compile(r"threadIdx|\btid\b|lane|thread_rank|\bsidx\b")
_ATOMIC = re.compile(r"\batomic[A-Z]\w*\s*\(|\btl\.atomic_")
_SQUARE = re.compile(r"-\s*\(?(\w+)\s*\*\s*\1\b")
_ASSERTED = re.compile(
    r"\bassert\s*\(([^;]*)\)\s*;|static_assert\s*\(([^;]*?)(?:,\s*\"[^;]*)?\)\s*;"
)
_NUMBER = re.compile(r"(?<![\w.])\d")
MOST_ASSERTED = 3
MOST_NAMES = 8
VECTORS = "Vector accesses"
KERNELS = "Kernels"
NAMES = "Names that only the code"


@dataclass(frozen=True)
class Structure:
    """The structure of one kernel's device code. `rows` says what works on one row (thread, warp,
    block), `apart` whether neighbouring lanes access elements a row apart, `tile` has the
    dimensions of the accumulators in registers, and `guards` the conditions that compare with a
    size."""

    kernels: tuple[str, ...]
    text: str
    strided: bool
    rows: frozenset[str]
    passes: int
    tile: int
    accumulators: frozenset[str]
    shared: frozenset[str]
    staged: bool
    guards: tuple[str, ...]
    nesting: int = 0
    apart: bool = False

    @property
    def vectors(self) -> int:
        return len(_VECTOR.findall(self.text))

    @property
    def bounds(self) -> str:
        return " ".join("".join(match) for match in _BOUNDS.findall(self.text))

    def has(self, pattern: re.Pattern[str]) -> bool:
        return pattern.search(self.text) is not None

    @property
    def across_warps(self) -> bool:
        return (
            self.has(_SHUFFLE) and re.search(r"\[\s*warp_?[iI]d\w*\s*\]\s*=", self.text) is not None
        )


def structure_of(kernel: Bundle | None) -> Structure:
    """The structure of a kernel; an empty one for None."""
    return _structure(kernel_code(kernel) if kernel is not None else KernelCode({}, (), False))


def _structure(program: KernelCode) -> Structure:
    text = program.text
    kernels = [item.text for item in program.kernels.values()]
    sizes = {
        name
        for item in program.kernels.values()
        for name in _SIZE.findall(item.head.rpartition(item.name)[2] + ")")
    }
    loops = [loop for kernel in kernels for loop in _loops(kernel)]
    shared = set(_SHARED.findall(text))
    lanes = {start.split("=")[0].split()[-1] for start, _, _ in loops if _LANE.search(start)}
    accumulators = {
        name: 2 if dims.count("[") > 1 or "*" in dims else 1
        for name, dims in _LOCAL.findall(text)
        if re.search(rf"\b{name}\s*\[[^;=]*\+=", text)
    }
    fast = [{name for name, _ in _FAST.findall(kernel)} for kernel in kernels]
    return Structure(
        kernels=tuple(program.kernels),
        text=text,
        strided=any(_strided(k, names, sizes) for k, names in zip(kernels, fast, strict=True)),
        rows=frozenset(_workers(kernels, fast, loops, sizes)),
        passes=len(re.findall(r"(?m)^\s*for\b", text))
        if program.python
        else sum(any(re.search(rf"\b{s}\b", cond) for s in sizes) for _, cond, _ in loops),
        tile=max(accumulators.values(), default=0),
        accumulators=frozenset(accumulators),
        shared=frozenset(shared),
        staged=_staged(text, shared),
        guards=tuple(_guards(text, sizes)),
        apart=any(_strided(kernel, lanes, sizes) for kernel in kernels),
        nesting=_nesting(text) if program.python else 0,
    )


def _nesting(text: str) -> int:
    """How deep loops of Python are nested."""
    deepest, open_ = 0, list[int]()
    for line in filter(str.strip, text.splitlines()):
        depth = len(line) - len(line.lstrip())
        open_ = [d for d in open_ if d < depth]
        if re.match(r"\s*(?:for|while)\b", line):
            open_.append(depth)
        deepest = max(deepest, len(open_))
    return deepest


def _parenthesised(text: str, word: str) -> Iterator[str]:
    for match in re.finditer(rf"\b{word}\s*\(", text):
        depth, start = 1, match.end()
        for place in range(start, len(text)):
            depth += (text[place] == "(") - (text[place] == ")")
            if depth == 0:
                yield " ".join(text[start:place].split())
                break


def _loops(text: str) -> list[tuple[str, str, str]]:
    parts = (inside.split(";") for inside in _parenthesised(text, "for"))
    return [(part[0], part[1], part[2]) for part in parts if len(part) == 3]


def _strided(kernel: str, fast: set[str], sizes: set[str]) -> bool:
    """Whether neighbouring threads access elements a row apart."""
    indices = re.findall(r"\[([^\[\]]*)\]", kernel)
    row = re.compile(_product(fast, sizes))
    return bool(fast and sizes) and any(row.search(index) for index in indices)


def _product(names: set[str], sizes: set[str]) -> str:
    one, other = ("|".join(map(re.escape, sorted(group))) for group in (names, sizes))
    return rf"\b(?:(?:{one})\s*\*\s*(?:{other})|(?:{other})\s*\*\s*(?:{one}))\b"


def _workers(
    kernels: list[str], fast: list[set[str]], loops: list[tuple[str, str, str]], sizes: set[str]
) -> Iterator[str]:
    for start, _, step in loops:
        if _LANE.search(start) and "+=" in step:
            of_block = re.search(r"(?i)block|num_threads", step)
            yield "warp" if not of_block and re.search(r"(?i)warp|\b32\b", step) else "block"
    serial = any(
        re.search(r"=\s*0U?$", start.strip()) and any(re.search(rf"\b{s}\b", cond) for s in sizes)
        for start, cond, _ in loops
    )
    rows = any(
        names and sizes and re.search(rf"[+=]\s*{_product(names, sizes)}", kernel)
        for kernel, names in zip(kernels, fast, strict=True)
    )
    if serial and rows:
        yield "thread"


def _staged(text: str, shared: set[str]) -> bool:
    """Whether values read from a global array are stored in shared memory as they are."""
    names = set(shared)
    for name, source in re.findall(r"\*\s*(\w+)\s*=\s*([^;]*);", text):
        if any(re.search(rf"\b{s}\b", source) for s in names):
            names.add(name)
    pointers = set(_POINTER.findall(text)) - names
    if not names or not pointers:
        return False
    some = "|".join(map(re.escape, sorted(pointers)))
    read = re.compile(rf"\b(?:{some})\s*\[|\(\s*&?(?:{some})\b[^;]*\)")
    loaded = {
        name
        for name, value in re.findall(r"\b(\w+)\s*(?:=(?!=)|\{)\s*([^;{}]*)", text)
        if read.search(value) and not re.search(rf"\b{name}\b", value) and "+=" not in value
    } - pointers
    held = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")
    from_load = (
        re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(loaded)))})\b") if loaded else None
    )
    for statement in re.split(r"[;{}]", text):
        target, equals, value = statement.partition("=")
        stores = re.search(r"\b(?:st_vec|store\w*)\s*\(", statement) and read.search(statement)
        if (
            "__shared__" in statement
            or not held.search(target)
            or target.rstrip()[-1:] in "+-*/<>!"
        ):
            continue
        plain = equals and "[" in target
        if stores or (plain and (read.search(value) or (from_load and from_load.search(value)))):
            return True
    return False


def _guards(text: str, sizes: set[str]) -> Iterator[str]:
    for condition in _parenthesised(text, "if"):
        compared = re.search(r"[<>]", condition)
        if compared and any(re.search(rf"\b{s}\b", condition) for s in sizes):
            yield condition
    yield from re.findall(r"\bmin\s*\(\s*\w+\s*-\s*1\b", text)


# -- rules

Rule = Callable[[Structure, Structure], bool]


def _coalesced(before: Structure, after: Structure) -> bool:
    alike = not (before.shared or after.shared) and not after.rows - before.rows
    return alike and before.strided and not after.strided


STRUCTURES: Mapping[str, Rule] = {
    "coalesce-thread-mapping": _coalesced,
    "warp-per-row": lambda b, a: bool(b.rows) and not a.tile and "warp" in a.rows - b.rows,
    "block-per-row": lambda b, a: bool(b.rows) and not a.tile and a.rows == {"block"} != b.rows
    and "block" not in b.rows,
    "stage-in-shared-memory": lambda b, a: a.staged and not b.staged,
    "register-tile-in-one-dimension": lambda b, a: a.tile == 1 and b.tile == 0,
    "register-tile-in-two-dimensions": lambda b, a: a.tile == 2 and b.tile < 2,
    "warp-tile": lambda b, a: a.has(_WARP_TILE) and a.has(_WARP_SIZES) and not b.has(_WARP_TILE),
    "double-buffer-tiles": lambda b, a: a.has(_TWO_BUFFERS) and not b.has(_TWO_BUFFERS),
    "vectorize-global-access": lambda b, a: a.vectors > b.vectors,
    "fuse-kernels": lambda b, a: len(b.kernels) > len(a.kernels) == 1,
    "fewer-passes-over-row": lambda b, a: len(b.kernels) == 1 and b.passes > a.passes > 0
    and bool(b.rows) and b.rows == a.rows,
    "reduce-across-warps": lambda b, a: b.has(_SHUFFLE) and a.across_warps and not b.across_warps
    and "warp" not in b.rows,
    "reduce-in-warp": lambda b, a: a.has(_SHUFFLE) and not b.has(_SHUFFLE) and b.has(_TREE),
    "merge-nested-loops": lambda b, a: b.nesting > a.nesting > 0,
    "replace-atomics": lambda b, a: b.has(_ATOMIC) and not a.has(_ATOMIC),
    "bound-registers": lambda b, a: a.bounds not in ("", b.bounds) and a.tile == b.tile
    and a.accumulators == b.accumulators and a.vectors == b.vectors,
}  # fmt: skip


# -- what the new code needs


def needs(before: Structure, after: Structure) -> list[str]:
    """Conditions of the code after that the code before does not have, as sentences."""
    found = []
    tiled = after.staged or after.tile or after.vectors
    if not after.guards and before.guards:
        shown = before.guards[0]
        quoted = f" (`if ({shown})`)" if not _NUMBER.search(shown) else ""
        found.append(
            "Sizes that the grid, the blocks and the tiles do not cover exactly: the code before"
            f" compares with the sizes{quoted}, the code after does not. Add a path for the rest,"
            " or pad."
        )
    elif not after.guards and tiled:
        found.append("Sizes that are no multiples of the tiles: the code has no bounds check.")
    if after.vectors > before.vectors:
        found.append(
            "Data that is not aligned to the vector type, or rows whose length is no multiple of"
            " its elements: handle the rest with scalar code."
        )
    if after.has(_TREE) and not before.has(_TREE):
        found.append("A block size that is no power of two: the tree reduction loses elements.")
    if after.has(_SHUFFLE) and not before.has(_SHUFFLE):
        found.append(
            "A block size that is no multiple of the warp: the reduction is within a warp."
        )
    if "extern __shared__" in after.text and "extern __shared__" not in before.text:
        found.append("A launch without the bytes of dynamic shared memory that the kernel uses.")
    if re.search(r"\bdouble\b", before.text) and not re.search(r"\bdouble\b", after.text):
        found.append("Sums that need double precision: the code after sums in a narrower type.")
    if after.has(_SQUARE) and not before.has(_SQUARE):
        found.append(
            "Values whose mean is large against their spread: the variance is a difference of two"
            " means and loses digits."
        )
    if after.has(_ATOMIC) and not before.has(_ATOMIC):
        found.append(
            "Results that must be equal bit by bit in each run: the order of atomics varies."
        )
    return found + _asserted(before.text, after.text)


def _asserted(before: str, after: str) -> list[str]:
    """What the new code asserts, of what the old code does not."""
    old = {"".join(m) for m in _ASSERTED.findall(before)}
    found = []
    for match in _ASSERTED.findall(after):
        condition = " ".join("".join(match).split())
        divides = re.fullmatch(r"\(?([\w *]+)\)? % \(?([\w *]+)\)? == 0U?", condition)
        if "".join(match) in old or divides is None or _NUMBER.search(divides[1] + divides[2]):
            continue
        found.append(f"`{divides[1]}` that is no multiple of `{divides[2]}`: the code asserts it.")
    return list(dict.fromkeys(found))[:MOST_ASSERTED]


# -- what differs, where no rule has a name


def differences(before: Structure, after: Structure) -> list[str]:
    """What differs in the structure, as sentences without a judgement."""
    rows = (
        (KERNELS, before.kernels, after.kernels),
        ("Arrays in shared memory", sorted(before.shared), sorted(after.shared)),
        ("Accumulators in registers", sorted(before.accumulators), sorted(after.accumulators)),
    )
    found = [
        f"{what}: {_named(old)} before, {_named(new)} after."
        for what, old, new in rows
        if list(old) != list(new) and (what != KERNELS or len(old) != len(new))
    ]
    if after.apart:
        found.append(
            "Neighbouring lanes of the code after still read elements that are a row apart."
        )
    if before.rows != after.rows and before.rows and after.rows:
        old, new = (" and ".join(sorted(s.rows)) for s in (before, after))
        found.append(f"A row is the work of a {old} before, of a {new} after.")
    for when, these, others in (("before", before, after), ("after", after, before)):
        names = [n for n in _declared(these.text) if not re.search(rf"\b{n}\b", others.text)]
        if names:
            found.append(f"{NAMES} {when} defines: {_named(names[:MOST_NAMES])}.")
    counts: tuple[tuple[str, int, int], ...] = (
        (VECTORS, before.vectors, after.vectors),
        ("Loops over a row", before.passes, after.passes),
        *(
            (what, before.text.count(word), after.text.count(word))
            for what, word in (("Barriers", "__syncthreads"), ("Unrolled loops", "#pragma unroll"))
        ),
    )
    more = [f"{what}: {'more' if b > a else 'fewer'} after." for what, a, b in counts if a != b]
    return found + more


def _declared(text: str) -> list[str]:
    found = re.findall(r"(?m)^\s*(?:[\w:<>]+[ *&]+)*(\w+)\s*(?:\[[^\]]*\])*\s*[={](?!=)", text)
    return [name for name in dict.fromkeys(found) if len(name) > 1 and not name.isupper()] + [
        name for name in dict.fromkeys(found) if len(name) > 1 and name.isupper()
    ]


def _named(names: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
