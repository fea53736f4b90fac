"""The processor of this machine as proposers see it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kb.data_dir import private_file, private_folder
from kb.hardware.extensions import extensions_of, lacking
from optimizer.evaluation.collectors.ceilings import Ceilings, from_file
from optimizer.evaluation.collectors.probe import DeviceIdentity, identify
from optimizer.evaluation.isolation.machine import processor, usable_processors
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.search.portable.launch import CEILINGS
from optimizer.search.synthesizers.base import MachineView, RatesView
from retrieval.knowledge_base import KnowledgeBase

HIGHEST = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")  # in kHz
CPUINFO = Path("/proc/cpuinfo")


def machine_here(lineage: Sequence[str]) -> MachineView:
    """This machine's processor, whose family is in the lineage, with the threads that candidates
    are measured with."""
    return machine_of(
        identify("cpu"),
        lineage,
        processor(),
        processors=usable_processors(),
        threads=EvaluationSettings().threads,
        megahertz=clock(),
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
    """A CPU as its probe and the operating system describe it."""
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
    """Rates of memory and of the caches, and of arithmetic, as a quiet machine measured them; None
    where there are none."""
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


def clock() -> float | None:
    """The processor's highest clock in MHz where Linux gives it, else the one that it has now; None
    where it gives neither."""
    with suppress(OSError, ValueError):
        return int(HIGHEST.read_text(encoding="ascii")) / 1e3
    with suppress(OSError, ValueError):
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
        now = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
        return max(now, default=None)
    return None


# -- rates: The rates of a device that is elsewhere: they come back with the results of a session,


def keep_rates(base: KnowledgeBase, run_id: str, results: Path) -> None:
    """Keep those of a results folder with the run; those of an earlier session give way."""
    ceilings = from_file(results / CEILINGS)
    if ceilings is None:
        return
    kept = _file(base, run_id)
    private_folder(kept.parent)
    private_file(kept)
    kept.write_text(json.dumps(ceilings.as_json()), encoding="utf-8")


def kept_rates(base: KnowledgeBase, run_id: str) -> RatesView | None:
    """Those that came with the run's last results; None before, and where none were measured."""
    return rates_of(from_file(_file(base, run_id)))


def _file(base: KnowledgeBase, run_id: str) -> Path:
    return base.settings.data_dir.absolute() / "runs" / run_id / CEILINGS
