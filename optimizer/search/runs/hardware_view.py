"""The target of a run as proposers see it: hardware, toolchains, this machine's processor, and the
measured rates of the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kb.catalog.knowledge import symbols
from kb.hardware.schema import extensions_of, lacking
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.collectors.probe import DeviceIdentity, identify
from optimizer.evaluation.isolation.machine import processor, usable_processors
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.command import CommandToolchain, argument_names, scalar_values
from optimizer.search.bench.local import TargetToolchain
from optimizer.search.synthesizers.base import HardwareView, MachineView, ProblemView, RatesView
from retrieval.knowledge_base import KnowledgeBase

HIGHEST = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")  # in kHz
CPUINFO = Path("/proc/cpuinfo")
MAX_REFUSED = 40  # names in a prompt


def hardware_view_of(
    target: EvaluationTarget,
    places: Mapping[str, TargetToolchain],
    language: str | None = None,
    here: bool = True,
    ceilings: Ceilings | None = None,
) -> HardwareView:
    """The target as proposers see it. `language` restricts the candidates; torch is then among the
    places for the reference only. `here`: this machine measures, with these `ceilings`."""
    ordered = tuple(sorted(places, key=lambda name: name == "torch"))
    offered = (language,) if language is not None and language in places else ordered
    toolchains = {
        name: place.toolchain.template
        for name, place in places.items()
        if isinstance(place.toolchain, CommandToolchain)
    }
    return HardwareView(
        target.hardware,
        target.lineage,
        target.device,
        offered,
        dict(target.facts),
        toolchains,
        machine_here(target.lineage) if here and target.device == "cpu" else None,
        rates_of(ceilings) if here else None,
        versions=_versions(places) if here else {},
    )


def _versions(places: Mapping[str, TargetToolchain]) -> dict[str, str]:
    chains = {
        n: p.toolchain for n, p in places.items() if isinstance(p.toolchain, CommandToolchain)
    }
    stated = {name: chain.banner() for name, chain in chains.items()}
    return {name: text for name, text in stated.items() if text}


def refused_names(
    base: KnowledgeBase, hardware: str, places: Mapping[str, TargetToolchain]
) -> tuple[str, ...]:
    """Names of the chip's manuals that these toolchains did not know, in the last acceptance test
    or in kernels of earlier runs; the latter first."""
    versions = {name: place.toolchain.version() for name, place in places.items()}
    with base.catalog.read() as connection:
        known = symbols.refused_names(connection, hardware)
    names = [row.name for row in known if row.tool == versions.get(row.language)]
    return tuple(dict.fromkeys(reversed(names)))[:MAX_REFUSED]


def check_launch(problem: ProblemView, hardware: HardwareView) -> None:
    """Raises InvalidRequest if a toolchain of the hardware has no argument name or scalar for a
    case of this problem, since all its candidates would fail."""
    for language in hardware.languages:
        if (toolchain := hardware.toolchains.get(language)) is None:
            continue
        for case in problem.cases:
            argument_names(case.signature, toolchain)
            scalar_values(case.signature, toolchain, {**case.traits, **case.constants})


def machine_here(lineage: Sequence[str]) -> MachineView:
    """This machine's processor, whose family is in the lineage, and the threads of a candidate."""
    return machine_of(
        identify("cpu"),
        lineage,
        processor(),
        processors=usable_processors(),
        threads=EvaluationSettings().threads,
        megahertz=clock_megahertz(),
    )


def machine_of(
    identity: DeviceIdentity,
    lineage: Sequence[str],
    identification: str,
    *,
    processors: int,
    threads: int,
    megahertz: float | None = None,
) -> MachineView:
    """A processor from its probe and the operating system."""
    return MachineView(
        name=identity.name,
        identification=identification,
        processors=processors,
        threads=threads,
        caches=dict(identity.caches),
        extensions=extensions_of(lineage, identity.flags),
        lacks=lacking(lineage, identity.flags),
        megahertz=megahertz,
    )


def rates_of(ceilings: Ceilings | None) -> RatesView | None:
    """Rates of memory, caches and arithmetic; None unless a quiet machine measured them."""
    if ceilings is None or not ceilings.trusted or not ceilings.copy:
        return None
    fastest = max(ceilings.copy, key=lambda point: point.value)
    moving = [("copying", ceilings.copy[-1])]
    if fastest is not ceilings.copy[-1]:
        moving.append(("copying", fastest))
    if ceilings.read:
        moving.append(("reading", ceilings.read[-1]))
    return RatesView(
        moving=tuple((how, point.bytes, point.value) for how, point in moving),
        flops={dtype: figure.value for dtype, figure in ceilings.matmul.items()},
    )


def clock_megahertz() -> float | None:
    """The highest clock in MHz that Linux reports, else the current one, if any."""
    with suppress(OSError, ValueError):
        return int(HIGHEST.read_text(encoding="ascii")) / 1e3
    with suppress(OSError, ValueError):
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
        now = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
        return max(now, default=None)
    return None
