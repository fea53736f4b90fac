"""The lines of two kernels that show a change: the code that runs on the device first, loops before
the rest, then what launches it and the helpers that it needs.

Functions that neither kernel reaches, equal functions, includes, overloads and instantiations are
not shown. A function that is new is compared with the one that ran in its place before. Blocks
stay balanced: a line is shown with the lines that open and close the blocks around it, and a gap
says how many lines it has.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from optimizer.evaluation.bundle import Bundle
from skills.curator.code_items import LITERAL, Item, items_of
from skills.curator.comparison import code, is_python, shown_lines, without_comments

MOST_HELPER = 16  # lines of a structure that is shown
MOST_GAP = 60  # characters of a line that is shown in place of a gap
WIDTH = 110
_WORD = re.compile(r"[A-Za-z_]\w*")
_KERNEL = re.compile(r"\b__global__\b|@(?:triton\.)?jit\b|@triton\.autotune\b")
_DEVICE = re.compile(r"\b__device__\b")
_LAUNCH = re.compile(r"<<<|\w\[[^\[\]]*\]\(")
_LOOP = re.compile(r"^\s*(?:for|while)\b")
_NAMED = re.compile(r"^(?:def|class)\s+(\w+)", re.MULTILINE)
_STEP = re.compile(r"__syncthreads|__syncwarp|\bbarrier\b")
_ASIDE = re.compile(r"^\s*(?:static_assert|assert|printf|#pragma unroll|cudaCheck|CHECK_)")
# Helpers that CUDA engineers know by name, and overloads of the compiler's own functions.
KNOWN = re.compile(
    r"(?i)^(?:__\w+|warp_?reduce\w*|ceil_?div|div_?up|(?:load|store|ld|st)_?\w*128\w*|(?:ld|st)_vec)$"
)
_CONSTANT = re.compile(
    r"^(?:#\s*define\s+\w+\s+\S|(?:static\s+)?(?:constexpr|const)\b[^{(]*=|[A-Z_]+\s*=)"
)


@dataclass(frozen=True)
class KernelCode:
    """The functions that a kernel's entry reaches, by name and in the order of the source, and its
    other definitions. `lines` are those of the functions that run on the device."""

    functions: Mapping[str, Item]
    others: tuple[Item, ...]
    python: bool

    @property
    def kernels(self) -> dict[str, Item]:
        """The functions that are launched; without a launch, those with a loop."""
        found = {n: f for n, f in self.functions.items() if _KERNEL.search(f.head)}
        return found or {n: f for n, f in self.functions.items() if self.loops(f)}

    @property
    def device(self) -> dict[str, Item]:
        """The kernels and the functions that they call."""
        kernels = self.kernels
        called = {n: f for n, f in self.functions.items() if _DEVICE.search(f.head)}
        return {n: f for n, f in self.functions.items() if n in kernels or n in called}

    @property
    def helpers(self) -> dict[str, Item]:
        return {n: f for n, f in self.device.items() if n not in self.kernels}

    @property
    def text(self) -> str:
        """The code that runs on the device, without helpers that are known by name."""
        return "\n".join(f.text for name, f in self.device.items() if not KNOWN.match(name))

    @property
    def source(self) -> str:
        """All code that the entry reaches."""
        return "\n".join(item.text for item in self.functions.values())

    def loops(self, item: Item) -> bool:
        return any(_LOOP.match(line) for line in item.text.splitlines())


def kernel_code(bundle: Bundle) -> KernelCode:
    """The program of a kernel: what its entry reaches, or all of it if the entry is no function."""
    python = is_python(bundle.language, bundle.main)
    names = [bundle.main] if python else sorted(bundle.files, key=lambda n: n == bundle.main)
    items: list[Item] = []
    for name in names:
        text = without_comments(bundle.files[name], python=python).expandtabs(4)
        items += _python_items(text) if python else items_of(text)
    functions: dict[str, Item] = {}
    for item in items:
        if item.kind == "function":
            functions.setdefault(item.name, item)
    reached = [bundle.entry] if bundle.entry in functions else list(functions)
    for name in reached:
        words = set(_WORD.findall(functions[name].text))
        reached += [other for other in functions if other in words and other not in reached]
    return KernelCode(
        {name: item for name, item in functions.items() if name in reached},
        tuple(item for item in items if item.kind in ("other", "directive")),
        python,
    )


def _python_items(text: str) -> Iterator[Item]:
    held: list[str] = []
    for line in [*text.splitlines(), "end"]:
        starts = line.strip() and not line[0].isspace() and line[0] not in ")]}"
        decorated = bool(held) and held[0][0] == "@" and not any(map(_NAMED.match, held))
        if starts and held and not decorated:
            whole = "\n".join(held).rstrip()
            named = _NAMED.search(whole)
            head = whole.partition("):")[0]
            yield Item(whole, "function" if named else "other", named[1] if named else "", head)
            held = []
        if held or starts:
            held.append(line)


# -- which functions are shown


@dataclass(frozen=True)
class ShownPart:
    """A function or a constant. `changed` are the numbers of the statements that its counterpart
    lacks. `role` is kernel, helper, host or constant."""

    role: str
    item: Item
    changed: frozenset[int]


def excerpt(
    parent: Bundle, child: Bundle, most: int
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Lines of the parent and of the child, with about `most` characters in all; None if no
    function differs."""
    old, new = kernel_code(parent), kernel_code(child)
    pairs = partners(old, new)
    after = _parts(new, old, pairs)
    before = _parts(old, new, {theirs: ours for ours, theirs in pairs.items() if theirs})
    before = [part for part in before if part.role != "helper" or part.changed]
    if not any(part.role in ("kernel", "helper", "host") for part in after):
        return None
    sizes = [sum(len(part.item.text) for part in parts) for parts in (before, after)]
    room = max(most - sizes[0], most * 2 // 3)
    shown = _rendered(after, room, new.python)
    used = sum(len(line) + 1 for line in shown)
    return _rendered(before, most - used, old.python), shown


def partners(old: KernelCode, new: KernelCode) -> dict[str, str]:
    """The function of the old program that each of the new one is compared with, "" for none: that
    of the same name, and for a kernel the likest of those that no longer run, or of all."""
    pairs = {name: name if name in old.functions else "" for name in new.functions}
    for theirs, ours in ((old.kernels, new.kernels), (old.helpers, new.helpers)):
        gone = [name for name in theirs if name not in ours]
        for name in (n for n in ours if not pairs[n] and not KNOWN.match(n)):
            among = gone or (theirs if ours.keys() & new.kernels.keys() else ())
            ranked = sorted(among, key=lambda n: _likeness(old, n, new, name))
            if ranked:
                pairs[name] = ranked[-1]
                gone = [n for n in gone if n != ranked[-1]]
    return pairs


def _likeness(old: KernelCode, one: str, new: KernelCode, other: str) -> float:
    words = (old.functions[one].text.split(), new.functions[other].text.split())
    ratio: float = difflib.SequenceMatcher(None, words[0], words[1], autojunk=False).ratio()
    return ratio


def _parts(program: KernelCode, other: KernelCode, pairs: Mapping[str, str]) -> list[ShownPart]:
    """The functions that differ from their counterparts, with constants that only they use."""
    parts: list[ShownPart] = []
    kernels, device = program.kernels, program.device
    for name, item in program.functions.items():
        theirs = other.functions.get(pairs.get(name, ""))
        groups = _groups(item, program.python)
        before = _groups(theirs, program.python) if theirs is not None else []
        changed = _changed(groups, before, pairs)
        if theirs is not None and not changed and len(groups) == len(before):
            continue
        role = "kernel" if name in kernels else "helper" if name in device else "host"
        launches = _LAUNCH.search(item.text) is not None
        if (role == "helper" and KNOWN.match(name)) or (role == "host" and not launches):
            continue
        parts.append(ShownPart(role, item, changed))
    words = {word for part in parts for word in _WORD.findall(part.item.text)}
    theirs_too = {_code(item, other) for item in other.others}
    constants: dict[str, ShownPart] = {}
    for item in program.others:
        lines = item.text.strip().splitlines()
        named = _CONSTANT.match(item.text.strip()) and len(lines) == 1
        struct = re.match(r"\s*(?:template[^{]*)?struct\b", item.text) and len(lines) <= MOST_HELPER
        own = set(_WORD.findall(item.text.partition("=")[0].partition("{")[0]))
        if not (named or struct) or not own & words or _code(item, program) in theirs_too:
            continue
        constants.setdefault(item.text, ShownPart("constant", item, frozenset()))
    return [*constants.values(), *parts]


def _code(item: Item, program: KernelCode) -> str:
    return code(item.text, python=program.python)


def _changed(
    ours: Sequence[list[str]], theirs: Sequence[list[str]], names: Mapping[str, str]
) -> frozenset[int]:
    """The statements that the counterpart does not have at that place; spacing does not count, nor
    the names of functions that stand for each other."""

    def keys(groups: Sequence[list[str]], named: Mapping[str, str]) -> list[str]:
        texts = ("\n".join(group) for group in groups)
        found = (_WORD.sub(lambda m: named.get(m.group(), m.group()), text) for text in texts)
        return [re.sub(r"\s+", "", text) for text in found]

    matcher = difflib.SequenceMatcher(None, keys(theirs, {}), keys(ours, names), autojunk=False)
    changes = (op for op in matcher.get_opcodes() if op[0] != "equal")
    return frozenset(n for _, _, _, k, m in changes for n in range(k, m))


# -- which of their lines are shown


@dataclass
class _Unit:
    """A statement, or the opening or closing of a block, as lines of one part. `around` are the
    units that must be shown with it, `rank` says how early it is shown."""

    lines: list[str]
    rank: int
    around: set[int]


def _rendered(parts: Sequence[ShownPart], most: int, python: bool) -> tuple[str, ...]:
    """The parts in order, with the units of lowest rank that have room."""
    units = [_units(part, python) for part in parts]
    order = sorted(
        ((unit.rank, place, number) for place, part in enumerate(units)
         for number, unit in enumerate(part))
    )  # fmt: skip
    kept: list[set[int]] = [set() for _ in parts]
    for _, place, number in order:
        wanted = _closure(units[place], number) - kept[place]
        cost = sum(len(line) + 1 for n in wanted for line in units[place][n].lines)
        if cost <= most:
            most -= cost
            kept[place] |= wanted
    return tuple(
        line
        for part, numbers in zip(units, kept, strict=True)
        if numbers
        for line in _with_gaps(part, numbers)
    )


def _with_gaps(units: Sequence[_Unit], kept: set[int]) -> Iterator[str]:
    """The kept units, with the number of lines in place of the others. A short line is shown where
    it is the whole gap."""
    gap: list[str] = []
    for number, unit in enumerate(units):
        if number not in kept:
            gap += unit.lines
            continue
        yield from _gap(gap)
        gap = []
        yield from unit.lines
    yield from _gap(gap)


def _gap(lines: Sequence[str]) -> list[str]:
    if not lines or (len(lines) == 1 and len(lines[0]) < MOST_GAP):
        return list(lines)
    depth = min((len(t) - len(t.lstrip()) for t in lines if t[0] != "#"), default=0)
    return [f"{' ' * depth}... ({len(lines)} line{'s' * (len(lines) > 1)})"]


def _closure(units: Sequence[_Unit], number: int) -> set[int]:
    found, new = set[int](), {number}
    while new:
        found |= new
        new = {other for n in new for other in units[n].around} - found
    return found


def _units(part: ShownPart, python: bool) -> list[_Unit]:
    groups = _groups(part.item, python)
    around = _blocks_by_indent(groups) if python else _blocks_by_brace(groups)
    units = []
    for number, group in enumerate(groups):
        loop = any(_LOOP.match(groups[n][0]) for n in around[number] | {number})
        new = part.role == "constant" or number in part.changed
        text = "\n".join(group)
        rank = 1 if new and loop else 2 if new or _STEP.search(text) else 5 if loop else 6
        if part.role == "host":
            rank = 1 if _LAUNCH.search(text) else 2 if new else 7
        elif part.role == "helper":
            rank += 1
        elif part.role == "constant":
            rank = 1
        if _ASIDE.match(text):
            rank = 8
        if number == 0 and part.role == "kernel":
            rank = 0
        units.append(_Unit(group if python else _joined(group), rank, around[number]))
    return units


def _groups(item: Item, python: bool) -> list[list[str]]:
    lines = shown_lines(item.text, python=python)
    depth = min((len(line) - len(line.lstrip()) for line in lines if line[0] != "#"), default=0)
    return list(_statements([line[depth:] if line[0] != "#" else line for line in lines], python))


def _joined(lines: list[str]) -> list[str]:
    """A statement of C on as few lines as it needs; directives stay as they are."""
    if len(lines) == 1 or any(line.lstrip().startswith("#") for line in lines):
        return lines
    depth = len(lines[0]) - len(lines[0].lstrip())
    text = re.sub(r"(?<=[\[({]) | (?=[\[\])])", "", " ".join(line.strip() for line in lines))
    return textwrap.wrap(
        text, WIDTH, initial_indent=" " * depth, subsequent_indent=" " * (depth + 4),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _statements(lines: Sequence[str], python: bool) -> Iterator[list[str]]:
    """Lines that belong together: a statement, a head with its brace, or a brace."""
    held: list[str] = []
    depth = 0
    for line in lines:
        masked = LITERAL.sub("s", line)
        held.append(line)
        depth += sum(masked.count(c) for c in "([") - sum(masked.count(c) for c in ")]")
        ended = python or masked.rstrip()[-1:] in tuple(";{}:") or masked.lstrip()[:1] == "#"
        decorator = python and line.lstrip().startswith("@")
        if depth <= 0 and ended and not decorator:
            yield held
            held, depth = [], 0
    if held:
        yield held


def _blocks_by_brace(groups: Sequence[Sequence[str]]) -> list[set[int]]:
    """For each group the groups that open and close the blocks around it."""
    around: list[set[int]] = [set() for _ in groups]
    opened: list[int] = []
    for number, group in enumerate(groups):
        around[number] |= set(opened)
        for char in LITERAL.sub("s", "\n".join(group)):
            if char == "{":
                opened.append(number)
            elif char == "}" and opened:
                opening = opened.pop()
                around[opening].add(number)
                around[number].add(opening)
        around[number].discard(number)
    return around


def _blocks_by_indent(groups: Sequence[Sequence[str]]) -> list[set[int]]:
    around: list[set[int]] = []
    opened: list[tuple[int, int]] = []  # depth, number
    for number, group in enumerate(groups):
        depth = len(group[0]) - len(group[0].lstrip())
        opened = [entry for entry in opened if entry[0] < depth]
        around.append({n for _, n in opened})
        opened.append((depth, number))
    return around
