"""Registers, spills, on-chip memory and occupancy of kernels, as compilers print them.

Reads remarks of clang (`-Rpass-analysis=kernel-resource-usage`), `ptxas -v`, comments and metadata
of AMD assembly, statistics of IGC and Triton, and any table whose columns name registers and
spills. Other messages of a compiler make a text a log, which is not read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from retrieval.profiles.profile import Metric, Profile, number

KIND = "resources"
LEAST_PART = 0.5  # of the lines that state resources or quote source
_WEIGHED = ("spilled_registers", "registers_per_thread")
FEW_SPILLED = 15.0  # per cent of the registers of a thread
_LARGE = (
    "on Intel's GPUs the large register file (256 registers a thread: -ze-opt-large-register-file,"
    " grf_mode in Triton) holds more at half the threads"
)
_WIDE = (
    f"SIMD{{}} holds that many work-items in one thread: a sub-group of 16 halves them; {_LARGE}"
)
MAX_TOLD = 3  # kernels in the notes
MAX_HEAD = 80  # characters of the head of a column
MOST_WAVES = 8  # of a SIMD on AMD's data-centre GPUs; others have more, so the share is a bound

_KERNEL = re.compile(
    r"Function Name: (\S+)|Compiling entry function '([^']+)'|Function properties for (\S+)"
    r"|^[\s-]*\.name:\s+(\S+)|^\s*\.globl\s+(\S+)"
    r"|\bkernel[: ]+(?!info|function|uses?|name|time|with)([A-Za-z_]\w*)",
    re.IGNORECASE,
)
_ENTRY = re.compile(r"^\s*- \.")  # of a list of kernels; the name may follow its numbers
# Patterns of a line, with the canonical metric of their number.
_STATED = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (
            r"(?<!Spilled )\bV?GPRs: +(\d+)|\bNumVgprs: +(\d+)|\bvgpr_count: *(\d+)"
            r"|\bUsed (\d+) registers|\b(\d+) registers used|\bn_regs\W{1,3}(\d+)"
            r"|\bgrf_count: (\d+)"
            r"|workitem_vgpr_count = (\d+)|allocated (\d+) regs"
            r"|(?<!Spilled )\b(?:[VA]GPRs?|regs|registers|num_regs|nregs)(?:=|: ?)(\d+)",
            "registers_per_thread",
        ),
        (
            r"VGPRs Spill: (\d+)|\bvgpr_spill_count: *(\d+)|\bn_spills\W{1,3}(\d+)|\b(\d+) spills\b"
            r"|spilled around (\d+)"
            r"|\b(?:vgpr_|num_|reg_)?spill(?:s|ed)?(?:=|: ?)(\d+)\b(?! ?bytes)",
            "spilled_registers",
        ),
        (r"SGPRs Spill: (\d+)|\bsgpr_spill_count: *(\d+)", "sgpr_spills"),
        (r"\b(\d+) bytes spill stores", "spill_store_bytes"),
        (r"spill_mem_used: (\d+)", "spill_bytes"),
        (r"\b(\d+) bytes spill loads", "spill_load_bytes"),
        (
            r"ScratchSize(?: \[bytes/lane\])?: +(\d+)|\.private_segment_fixed_size: +(\d+)"
            r"|workitem_private_segment_byte_size = (\d+)|private_mem_used: (\d+)|\bscratch:(\d+)B",
            "scratch_bytes",
        ),
        (
            r"LDS Size \[bytes/block\]: (\d+)|LDSByteSize: (\d+)|\.group_segment_fixed_size: +(\d+)"
            r"|\b(\d+) bytes smem|slm_used: (\d+)",
            "shared_memory_per_block_bytes",
        ),
        (r"Occupancy(?: \[waves/SIMD\])?: +(\d+)\b(?!%)", "waves"),
    )
)
# A name and its number in any other statistics of a compiler; the heads of columns tell which.
_PAIR = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z_ -]{2,60}?)(?: ?[:=] {0,12}| \()(?P<number>\d+)(?![\w.]*[:.]\d)"
    r"(?: ?(?:/|out of) ?(?P<whole>\d+))?(?P<bytes> bytes)?"
)
_INTEL = re.compile(r"\b(?P<stores>\d+):(?P<loads>\d+) spills:fills")  # of Mesa, in registers
_ARM = re.compile(r"Work registers: (?P<registers>\d+) \(\d+% used at (?P<pct>\d+)% occupancy\)")
_BESIDE = re.compile(
    r"^\s*(?:\d*\s*\||\^|;|\.|-|#|//|ptxas info|\d+ bytes (?:gmem|stack))|kernel-resource-usage\]"
    r"|^\s*(?:build succeeded|warning:)|\bS(?:GPRs|gprs)\b",
    re.IGNORECASE,
)
# What a listing with a line for each case states of it.
_CASE = re.compile(r"\b(?:[VAS]GPRs?|n?_?regs?\w*|registers|num_\w+|spill\w*)\s?[=:].*", re.I)
_FAILED = re.compile(r"\berror\b|\bfatal\b", re.IGNORECASE)
# Heads of columns, with the metric of their cells.
_HEADS = (
    (re.compile(r"spill.*(?:byte|store)|(?:byte|store).*spill", re.I), "spill_store_bytes"),
    (re.compile(r"sgpr.*spill|spill.*sgpr", re.I), "sgpr_spills"),
    (re.compile(r"spill", re.I), "spilled_registers"),
    (re.compile(r"scratch|private|stack|local mem", re.I), "scratch_bytes"),
    (re.compile(r"^(?:v|arch)?_?(?:gprs?|vgprs?)\b|^(?:num_)?reg(?:ister)?s?\b|^vgpr", re.I), ""),
    (re.compile(r"^(?:vector|work|total) reg(?:ister)?s?\b|^(?:full|temp) regs?\b", re.I), ""),
    (re.compile(r"\blds\b|\bs(?:hared|hmem|mem)\b|\bslm\b", re.I), "shared_memory_per_block_bytes"),
    (re.compile(r"waves|\bocc$|wavefront occ", re.I), "waves"),
    (re.compile(r"occ", re.I), "occupancy"),
)
# A word of every line that states a resource, and of every head of a table.
_WORDS = re.compile(
    r"gpr|reg|spill|scratch|private|stack|local mem|smem|slm_|LDS|group_segment|grf|occupancy"
    r"|max.waves|\bocc\b",
    re.I,
)


@dataclass
class _Usage:
    kernel: str
    stated: dict[str, float] = field(default_factory=dict)

    @property
    def spilled(self) -> float:
        """The largest amount of spills, in any unit."""
        names = ("spilled_registers", "spill_store_bytes", "spill_bytes", "scratch_bytes")
        return max(self.stated.get(name, 0.0) for name in names)

    @property
    def share(self) -> float | None:
        """The share of the wave slots that the resources allow, at most, in per cent."""
        stated = self.stated.get("occupancy")
        if stated is not None and stated != int(stated):
            return 100 * stated if stated < 1 else stated
        if stated is not None and stated > MOST_WAVES:
            return min(stated, 100.0)
        waves = self.stated.get("waves", stated)
        return None if not waves else min(100.0, 100 * waves / MOST_WAVES)

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics of rules; bytes of spills are those of stores and loads."""
        kept: dict[str, Metric] = {}
        kept |= {k: v for k, v in self.stated.items() if k not in ("waves", "occupancy")}
        kept.pop("sgpr_spills", None)
        moved = self.stated.get("spill_store_bytes"), self.stated.get("spill_load_bytes")
        if any(moved):
            kept["spill_bytes"] = sum(filter(None, moved))
        return kept if self.share is None else {**kept, "theoretical_occupancy_pct": self.share}

    @property
    def sentence(self) -> str:
        """The resources in words."""
        words = (
            ("registers_per_thread", "{} registers of a thread"),
            ("spilled_registers", "{} registers spilled"),
            ("spill_store_bytes", "{} bytes of spill stores"),
            ("spill_bytes", "{} bytes spilled"),
            ("scratch_bytes", "{} bytes of scratch"),
            ("sgpr_spills", "{} scalar registers spilled"),
            ("shared_memory_per_block_bytes", "{} bytes of on-chip memory of a block"),
            ("waves", "{} waves of a SIMD"),
            ("occupancy", "an occupancy of {}"),
        )
        parts = [
            text.format(f"{self.stated[name]:,.10g}")
            for name, text in words
            if self.stated.get(name) or (name == "spilled_registers" and name in self.stated)
        ]
        return f"{self.kernel or 'the kernel'}: {', '.join(parts)}{self._weight}"

    @property
    def _weight(self) -> str:
        """How large the spill is, where the registers are known."""
        spilled, registers = (self.stated.get(n, 0.0) for n in _WEIGHED)
        if not spilled or not registers:
            return ""
        share = 100 * spilled / registers
        few = "a few, which cost little unless they are in the inner loop"
        size = few if share < FEW_SPILLED else "many: the tile of a thread is too large"
        return f"; {share:.2g} % of them, {size}"

    @property
    def order(self) -> tuple[float, float, float]:
        """Most spills first, then the lowest occupancy, then most registers."""
        registers = self.stated.get("registers_per_thread", 0.0)
        return -self.spilled, self.share if self.share is not None else 101.0, -registers


def read(text: str) -> Profile | None:
    """The kernel with most spills, else with the lowest occupancy; None if the text is about other
    things too."""
    if not _WORDS.search(text):
        return None
    usages = _of_table(text) or ([] if _FAILED.search(text) else _of_lines(text))
    usages = [usage for usage in usages if usage.stated]
    if not usages:
        return None
    leading, *others = sorted(usages, key=lambda usage: usage.order)
    told = (leading, *others)[:MAX_TOLD]
    more = (f"{len(usages) - MAX_TOLD} further kernels",) if len(usages) > MAX_TOLD else ()
    simd = re.search(r"compiled SIMD(\d+)", text)
    if simd and int(simd[1]) > 16 and any(usage.spilled for usage in usages):
        more = (*more, _WIDE.format(simd[1]))
    elif simd and any(usage.spilled for usage in usages):
        more = (*more, _LARGE)
    return Profile(
        KIND, leading.kernel, leading.metrics, notes=(*(u.sentence for u in told), *more)
    )


def _of_lines(text: str) -> list[_Usage]:
    lines = [line for line in text.splitlines() if line.strip()]
    usages = [_Usage("")]
    stating = 0
    listing = sum({*dict(_numbers(line))} >= {*_WEIGHED} for line in lines if _WORDS.search(line))
    for line in lines:
        if _ENTRY.match(line):
            usages.append(_Usage(""))
        if (found := _KERNEL.search(line)) is not None:
            name = next(group for group in found.groups() if group)
            if ".name:" in line and not usages[-1].kernel:
                usages[-1].kernel = name
            elif name != usages[-1].kernel:
                usages.append(_Usage(name))
        stated = dict(_numbers(line)) if _WORDS.search(line) else {}
        case = _CASE.sub("", line).strip(" \t:-|,")
        if found is None and (case or listing > 1) and {*stated} >= {*_WEIGHED}:
            usages.append(_Usage(case))  # a listing with a line for each case
        stating += bool(stated or found or _BESIDE.search(line))
        for metric, value in stated.items():
            usages[-1].stated.setdefault(metric, value)
    numbers = sum(len(usage.stated) for usage in usages)
    if any(_ARM.search(line) or _INTEL.search(line) for line in lines):
        return usages  # of a compiler that prints other statistics beside
    return usages if numbers >= 2 and stating >= LEAST_PART * len(lines) else []


_OF_OTHERS = re.compile(
    r"occ_|uniform|scalar|count|limit|sgpr|max(?!.?waves)|alloc|dword|achieved", re.I
)


def _numbers(line: str) -> Iterator[tuple[str, float]]:
    arm, intel = _ARM.search(line), _INTEL.search(line)
    pairs = [] if arm else [p for p in _PAIR.finditer(line) if not _OF_OTHERS.search(p["name"])]
    named: dict[str, float] = {}
    for pair in pairs:  # "4 out of 16", "2 / 16"
        if pair["whole"] and _head_of(pair["name"]) in ("waves", "occupancy"):
            named["occupancy"] = 100 * float(pair["number"]) / max(float(pair["whole"]), 1.0)
    for pattern, metric in _STATED:
        if (found := pattern.search(line)) is not None and not (metric == "waves" and named):
            named[metric] = float(next(group for group in found.groups() if group))
    if arm is not None:
        named |= {"registers_per_thread": float(arm["registers"]), "occupancy": float(arm["pct"])}
    elif intel is not None:
        named["spilled_registers"] = float(intel["stores"])
    for pair in pairs:
        metric = _head_of(pair["name"])
        metric = "spill_bytes" if metric == "spilled_registers" and pair["bytes"] else metric
        if metric in ("waves", "occupancy") and {"waves", "occupancy"} & named.keys():
            continue
        if metric:
            named.setdefault(metric, float(pair["number"]))
    yield from named.items()


def _head_of(name: str) -> str:
    """The metric of a column or of a number by its name; empty for others."""
    heads = (metric or "registers_per_thread" for words, metric in _HEADS if words.search(name))
    return next(heads, "")


def _of_table(text: str) -> list[_Usage]:
    """The rows below a header that names registers and spills."""
    heads: dict[int, str] = {}
    usages: list[_Usage] = []
    for line in text.splitlines():
        if not heads and not _WORDS.search(line):
            continue
        cells = _cells(line)
        named = _named(cells)
        if len({*named.values()} & _TELLING) >= 2:
            heads = named
        elif heads and len(cells) > max(heads):
            values = {m: number(cells[i].rstrip("%")) for i, m in heads.items()}
            stated = {m: v for m, v in values.items() if v is not None}
            if len(stated) >= max(2, len(heads) - 1):
                usages.append(_Usage(cells[0], stated))
    return usages


_TELLING = frozenset(
    ("registers_per_thread", "spilled_registers", "spill_store_bytes", "scratch_bytes")
)


def _named(cells: Sequence[str]) -> dict[int, str]:
    named: dict[int, str] = {}
    for place, cell in enumerate(cells[1:], 1):
        if len(cell) > MAX_HEAD:
            continue
        metric = _head_of(cell)
        if metric and metric not in named.values() and not re.search(r"\d{2}", cell):
            named[place] = metric
    return named


def _cells(line: str) -> list[str]:
    bars = line.strip().strip("|").split("|") if "|" in line else []
    cells = bars or line.split(",") if "," in line or bars else re.split(r"\s{2,}|\t", line.strip())
    return [cell.strip(" *`") for cell in cells]
