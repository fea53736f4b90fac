"""The processor of this machine in words: what it is, how many threads a kernel has, and what of
its family it has and lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kb.hardware.extensions import in_words, macros
from kb.hardware.facts import readable
from optimizer.search.synthesizers.base import HardwareView, MachineView, RatesView

WIDTH = "prefer_vector_width"  # the parameter whose values are bits of a vector
SAME = "the reference has as many"


def lines(view: MachineView) -> list[str]:
    """The processor, its caches, its threads, and its vector extensions."""
    named = f"{view.name} ({view.identification})" if view.identification else view.name
    rows = [f"processor of this machine: {named}"]
    if view.caches:
        sizes = ", ".join(f"{level} {readable(b, 'B')}" for level, b in sorted(view.caches.items()))
        rows.append(f"caches, as one core sees them: {sizes}")
    if view.megahertz:
        rows.append(f"clock, as the operating system gives it: {view.megahertz / 1e3:.2f} GHz")
    rows.append(
        f"processors that may be used: {view.processors}; a kernel runs with {_count(view.threads)}"
    )
    if view.extensions:
        rows.append(f"it has: {', '.join(view.extensions)}")
    if view.lacks:
        rows.append(f"it lacks, whatever else is said of its family: {_listed(view.lacks)}")
    return rows


def rates(view: RatesView) -> str:
    """What the device was measured to reach."""
    moved = [
        f"{how} {readable(size, 'B')} at {rate / 1e9:.3g} GB/s" for how, size, rate in view.moving
    ]
    done = [f"{dtype} {rate / 1e9:.4g} GFLOP/s" for dtype, rate in sorted(view.flops.items())]
    products = [f"products or multiply-adds: {', '.join(done)}"] if done else []
    reached = "; ".join([*moved, *products])
    return f"measured on this device, with all of a kernel's threads: {reached}"


def _count(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def threads(view: MachineView | None) -> str:
    """How many threads a kernel may use, as a part of a sentence."""
    if view is None:
        return "`omp_get_max_threads()` is the number that the reference has too"
    return f"`omp_get_max_threads()` is {view.threads} on this machine, and {SAME}"


def macros_of(hardware: HardwareView) -> str:
    """The macros of the extensions that there may be, as code."""
    known = macros(hardware.lineage, hardware.lacks) or ["__AVX2__", "__ARM_FEATURE_SVE"]
    return ", ".join(f"`{name}`" for name in known)


def usable(parameter: str, values: Iterable[str], facts: Mapping[str, float | str]) -> list[str]:
    """The values of a parameter without vectors wider than the machine's."""
    bits = facts.get("vector_bits")
    if parameter != WIDTH or not isinstance(bits, int | float):
        return list(values)
    return [value for value in values if int(value) <= bits]


def reminder(lacks: Sequence[str]) -> str:
    """What quotations about the family must be read with; empty where nothing is lacking."""
    if not lacks:
        return ""
    return f"\nThis machine's processor lacks {_listed(lacks)}: what needs them does not apply."


def _listed(lacks: Sequence[str]) -> str:
    return ", ".join(in_words(lacks))
