"""The processor of this machine as proposers see it."""

from __future__ import annotations

from collections.abc import Sequence

from kb.hardware.extensions import extensions_of, lacking
from optimizer.evaluation.collectors.probe import DeviceIdentity, identify
from optimizer.evaluation.isolation.processors import processor, usable_processors
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.search.synthesizers.base import MachineView


def machine_here(lineage: Sequence[str]) -> MachineView:
    """This machine's processor, whose family is in the lineage, with the threads that candidates
    are measured with."""
    return machine_of(
        identify("cpu"),
        lineage,
        processor(),
        processors=usable_processors(),
        threads=EvaluationSettings().threads,
    )


def machine_of(
    identity: DeviceIdentity,
    lineage: Sequence[str],
    identification: str,
    *,
    processors: int,
    threads: int,
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
    )
