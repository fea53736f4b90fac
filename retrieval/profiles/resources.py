"""Registers, spills, on-chip memory and occupancy of kernels, as compilers print them.

Reads remarks of clang (`-Rpass-analysis=kernel-resource-usage`), `ptxas -v`, comments and metadata
of AMD assembly, statistics of IGC and Triton, and any table whose columns name registers and
spills. Other messages of a compiler make a text a log, which is not read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retrieval.profiles.lexicon import label_of, pattern_of
from retrieval.profiles.profile import Metric, Profile
from retrieval.profiles.quantities import Quantity, quantities

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
MOST_WAVES = 8  # of a SIMD on AMD's data-centre GPUs; others have more, so the share is a bound

_KERNEL = pattern_of("kernel_lines")
_ENTRY = re.compile(r"^\s*- \.")  # of a list of kernels; the name may follow its numbers
_BESIDE = pattern_of("beside_resources")
_FAILED = re.compile(r"\berror\b|\bfatal\b", re.IGNORECASE)
_WORDS = pattern_of("resource_words")


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
        kept |= {k: v for k, v in self.stated.items() if k not in ("waves", "occupancy", "time")}
        kept.pop("sgpr_spills", None)
        moved = self.stated.get("spill_store_bytes"), self.stated.get("spill_load_bytes")
        if any(moved):
            kept["spill_bytes"] = sum(filter(None, moved))
        return kept if self.share is None else {**kept, "theoretical_occupancy_pct": self.share}

    @property
    def sentence(self) -> str:
        """The resources in words."""
        words = (
            ("time", "{} % of the time"),
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
    def order(self) -> tuple[float, float, float, float]:
        """Most spills first, then most time, the lowest occupancy, most registers."""
        registers, time = (self.stated.get(n, 0.0) for n in ("registers_per_thread", "time"))
        return -self.spilled, -time, self.share if self.share is not None else 101.0, -registers


def read(text: str) -> Profile | None:
    """The kernel with most spills, else with the lowest occupancy; None if the text is about other
    things too."""
    if not _WORDS.search(text):
        return None
    usages = [usage for usage in _usages(text) if usage.stated]
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


@dataclass
class _StatedLine:
    """What a line states: resources, the row of its table, the case that is named before them."""

    stated: dict[str, float] = field(default_factory=dict)
    row: str = ""
    case: str = ""


def _usages(text: str) -> list[_Usage]:
    """The resources of each kernel: of the rows of a table, of a listing with a line for each case,
    or of the lines below a kernel's name."""
    lines = text.splitlines()
    numbers: dict[int, _StatedLine] = {}
    found = quantities(text)
    shares = (label_of(name, "%") for q in found if q.unit == "%" for name in q.names)
    if any(label and label.metric not in _RESOURCES for label in shares):
        return []  # counters of a run
    for quantity in found:
        metric, value, name = _resource(quantity)
        if quantity.row and quantity.unit == "%" and _OF_TIME.fullmatch(quantity.head):
            metric, value = "time", quantity.number
        if metric:
            case = lines[quantity.line].partition(name or "\n")[0].strip(" \t:-|,=")
            line = numbers.setdefault(quantity.line, _StatedLine({}, quantity.row, case))
            line.stated.setdefault(metric, value)
    rows = [line for line in numbers.values() if line.row and len(_TELLING & {*line.stated}) > 1]
    if rows:
        return [_Usage(line.row, line.stated) for line in rows]
    return [] if _FAILED.search(text) else _of_lines(text, lines, numbers)


def _of_lines(text: str, lines: Sequence[str], numbers: Mapping[int, _StatedLine]) -> list[_Usage]:
    usages, stating = [_Usage("")], 0
    listing = sum({*line.stated} >= {*_WEIGHED} for line in numbers.values())
    for place, line in enumerate(lines):
        if _ENTRY.match(line):
            usages.append(_Usage(""))
        if (found := _KERNEL.search(line)) is not None:
            name = next(group for group in found.groups() if group)
            if ".name:" in line and not usages[-1].kernel:
                usages[-1].kernel = name
            elif name != usages[-1].kernel:
                usages.append(_Usage(name))
        known = numbers.get(place, _StatedLine())
        if found is None and {*known.stated} >= {*_WEIGHED} and (known.case or listing > 1):
            usages.append(_Usage(known.case))
        stating += bool(known.stated or found or (line.strip() and _BESIDE.search(line)))
        usages[-1].stated = {**known.stated, **usages[-1].stated}
    if re.search(r"^Work registers:|spills:fills", text, re.MULTILINE):
        return usages  # of a compiler that prints other statistics beside
    written = sum(1 for line in lines if line.strip())
    several = sum(len(usage.stated) for usage in usages) >= 2
    return usages if several and stating >= LEAST_PART * written else []


def _resource(quantity: Quantity) -> tuple[str, float, str]:
    """The resource that a number is of, with its amount and its name; empty for another number."""
    for name in quantity.names:
        label = label_of(name, quantity.kind(name))
        if label is None or label.metric not in _RESOURCES or name.lower().startswith("achieved"):
            continue
        metric = "occupancy" if "occupancy" in label.metric else label.metric
        if metric == "waves" and quantity.whole:
            return "occupancy", 100 * quantity.number / quantity.whole, name
        if metric == "waves" and not 1 <= quantity.number <= MOST_PRINTED:
            metric = "occupancy"
        return metric, quantity.number, name
    return "", 0.0, ""


_OF_TIME = re.compile(r"(?:gpu |total )?(?:cost|time|share|duration)\W*", re.IGNORECASE)
MOST_PRINTED = 20  # waves of a SIMD; a larger number is a share
_TELLING = frozenset(
    ("registers_per_thread", "spilled_registers", "spill_store_bytes", "scratch_bytes")
)
_RESOURCES = _TELLING | {
    *("sgpr_spills", "spill_bytes", "spill_load_bytes", "shared_memory_per_block_bytes"),
    *("waves", "theoretical_occupancy_pct", "occupancy_pct"),
}
