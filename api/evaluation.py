"""Evaluations wired together: registry, devices, toolchains and the catalog for the evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from api.services import Services
from kb.catalog.evaluations import Evaluations
from kb.errors import InvalidRequest, UnknownHardware, nearest
from kb.hardware.detect import probe
from kb.hardware.device import DetectedDevice, Resolver
from kb.hardware.spec import SignatureSpec
from optimizer.bundle import read_bundle
from optimizer.collectors.ceilings import Ceilings, DeviceStore
from optimizer.collectors.device_rows import store_device
from optimizer.collectors.probe import identify
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.journal.catalog import CatalogJournal
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.targets import AUTO, Chosen, here, target_for
from optimizer.isolation.levels import WANTED
from optimizer.problem.load import load_problem
from optimizer.problem.spec import Case, Problem
from optimizer.toolchains.base import Target
from optimizer.toolchains.registry import usable_toolchain


def evaluate_files(
    services: Services,
    problem_path: Path,
    candidate: Path,
    *,
    hardware: str = AUTO,
    language: str | None = None,
    entry: str | None = None,
    cases: tuple[str, ...] = (),
    isolation: str = "auto",
) -> Evaluation:
    """One candidate, from files, on the hardware named."""
    level = next((wanted for wanted in WANTED if wanted == isolation), None)
    if level is None:
        raise InvalidRequest(
            f"unknown isolation {isolation!r}", hint=f"Use one of {', '.join(WANTED)}."
        )
    problem = load_problem(problem_path)
    language = language or _language_of_suffix(services, hardware, candidate)
    bundle = read_bundle(candidate, language, entry)
    chosen = choose_target(services, hardware, bundle.language)
    toolchain = usable_toolchain(bundle.language, chosen.target, chosen.builtin)
    journal = CatalogJournal(Evaluations(services.catalog), services.blobs)
    settings = EvaluationSettings(isolation=level)
    with Evaluator(
        problem,
        chosen.target,
        settings,
        journal,
        ceilings=_ceilings(services, chosen.target, settings.threads),
        signatures=_signatures(services, chosen.target.lineage),
    ) as evaluator:
        return evaluator.evaluate(bundle, toolchain, _cases(problem, cases))


def _ceilings(services: Services, target: Target, threads: int) -> Ceilings | None:
    """What this device reaches, measured once and stored; nothing where the target is not here."""
    if target.device is None:
        return None
    found = DeviceStore(services.settings.data_dir).ensure(target.device, threads)
    store_device(services.catalog, target.hardware, identify(target.device), found)
    return found


def _signatures(services: Services, lineage: Sequence[str]) -> list[SignatureSpec]:
    """Error texts of the chip's own tools and of those above it."""
    known = services.registry.all()
    return [s for place in lineage if place in known for s in known[place].signatures]


def choose_target(services: Services, hardware: str, language: str) -> Chosen:
    """The target that `hardware` names; `auto` is the first device here that is registered."""
    registry = services.registry
    known = registry.all()
    devices: tuple[DetectedDevice, ...] = probe(_resolver(services)).devices
    identity = here(devices) if hardware == AUTO else registry.resolve(hardware)
    return target_for(
        identity,
        registry.lineage(identity),
        known,
        registry.values(identity),
        language,
        devices,
        _cuda,
    )


def _language_of_suffix(services: Services, hardware: str, candidate: Path) -> str | None:
    """The language that a named chip's own toolchain gives files of this suffix."""
    if hardware == AUTO or not candidate.suffix:
        return None
    registry = services.registry
    specs = registry.all()
    for place in registry.lineage(registry.resolve(hardware)):
        for language, toolchain in (specs[place].toolchains if place in specs else {}).items():
            if toolchain.suffix == candidate.suffix:
                return str(language)
    return None


def _resolver(services: Services) -> Resolver:
    def resolve(name: str) -> str | None:
        try:
            return services.registry.resolve(name)
        except UnknownHardware:
            return None

    return resolve


def _cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _cases(problem: Problem, names: tuple[str, ...]) -> tuple[Case, ...] | None:
    if not names:
        return None
    known = {case.name: case for case in problem.cases}
    for name in names:
        if name not in known:
            near = nearest(name, known)
            raise InvalidRequest(
                f"problem {problem.name} has no case {name!r}",
                hint=f"It has {', '.join(known)}." + (f" Did you mean {near[0]}?" if near else ""),
            )
    return tuple(known[name] for name in names)
