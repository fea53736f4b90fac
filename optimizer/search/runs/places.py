"""Where the candidates of a run are built and measured on this machine: target and toolchain by
language, and the bench over them.
"""

from __future__ import annotations

from collections.abc import Mapping

from kb.catalog.evaluations import Evaluations
from kb.errors import InvalidRequest, KernloreError, Unavailable
from kb.hardware.detection import probe
from optimizer.evaluation.catalog_journal import CatalogJournal
from optimizer.evaluation.evaluate import (
    choose_target,
    known_ceilings,
    known_rules,
    known_signatures,
    resolver,
)
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.targets import AUTO
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.registry import usable_toolchain
from optimizer.search.bench.local import LocalBench, Place
from optimizer.search.bench.simulated import SimulatedBench, by_commands, clock_of
from retrieval.knowledge_base import KnowledgeBase

LANGUAGES = ("torch", "triton", "cpp", "cuda")


def bench_for(
    base: KnowledgeBase, problem: Problem, places: dict[str, Place]
) -> LocalBench | SimulatedBench:
    """What evaluates candidates in these places: this machine's devices, or a chip's own
    commands."""
    target = target_of(places)
    settings = EvaluationSettings()
    journal = CatalogJournal(Evaluations(base.catalog), base.blobs)
    signatures = known_signatures(base, target.lineage)
    rules = known_rules(base, target.lineage)
    if all(by_commands(place.toolchain) for place in places.values()):
        return SimulatedBench(problem, places, settings, journal, signatures, rules)
    ceilings = known_ceilings(base, target, settings.threads)
    return LocalBench(problem, places, settings, journal, ceilings, signatures, rules)


def places_for(base: KnowledgeBase, hardware: str, language: str | None) -> dict[str, Place]:
    """Where candidates of each language are built and run: target and toolchain by language.

    With `language`, that one and torch, in which the reference is written; else every language that
    works here. Languages whose times come from a chip's own program or simulator are never mixed
    with others: their times do not compare. Raises Unavailable with what is missing.
    """
    places: dict[str, Place] = {}
    problems: dict[str, KernloreError] = {}
    own = own_languages(base, hardware)
    known = (*LANGUAGES, *own)
    for name in dict.fromkeys(known if language is None else (language, "torch")):
        try:
            chosen = choose_target(base, hardware, name)
            toolchain = usable_toolchain(name, chosen.target, chosen.builtin)
        except (InvalidRequest, Unavailable) as problem:
            if name == language:
                raise
            problems[name] = problem
            continue
        if chosen.target.device is not None or by_commands(toolchain):
            places[name] = Place(chosen.target, toolchain)
    places = of_one_clock(places, language)
    if not places:
        raise _nothing_runs(hardware, {n: p for n, p in problems.items() if n in own} or problems)
    return places


def _nothing_runs(hardware: str, problems: Mapping[str, KernloreError]) -> KernloreError:
    """The error of a chip on which nothing can be run here; of one with a language of its own, what
    that language lacks."""
    if len(problems) == 1:
        return next(iter(problems.values()))
    reasons = "; ".join(f"{name}: {problem.message}" for name, problem in problems.items())
    return Unavailable(
        f"nothing can be run on {hardware} here ({reasons})",
        hint="Search on a machine that has it, or pack a portable session.",
    )


def refuse_absent(base: KnowledgeBase, hardware: str, language: str | None) -> None:
    """Raise what `places_for` would, of a chip that is not in this machine, before a run of it is
    started. One that is here is left to the run: asking its driver here would hold the device.
    """
    if hardware == AUTO:
        return
    identity = base.registry.resolve(hardware)
    devices = probe(resolver(base)).devices
    if all(device.hardware_id_hint != identity for device in devices):
        places_for(base, hardware, language)


def target_of(places: Mapping[str, Place]) -> EvaluationTarget:
    """The hardware of these places, which they have in common."""
    return next(iter(places.values())).target


def of_one_clock(places: Mapping[str, Place], language: str | None) -> dict[str, Place]:
    """The languages whose times compare: of what this harness times itself, unless a language of
    another clock is asked for."""
    clocks = {name: clock_of(place.toolchain) for name, place in places.items()}
    preferred = sorted({*clocks.values()}, key=("wall", "program", "simulator").index)
    kept = clocks.get(language or "") or next(iter(preferred), "")
    return {name: place for name, place in places.items() if clocks[name] == kept}


def own_languages(base: KnowledgeBase, hardware: str) -> list[str]:
    """Languages that the description of a named chip says how to compile."""
    if hardware == AUTO:
        return []
    registry = base.registry
    specs = registry.all()
    lineage = registry.lineage(registry.resolve(hardware))
    return [name for place in lineage if place in specs for name in specs[place].toolchains]
