"""Fills a table with the product's own evaluator, in portions: each point once in each round, and
again where the machine was too busy to tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.search.replay.spaces import Ground, Space, proposal_of
from benchmarks.search.replay.table import REFERENCE, Row, Table, append
from kb.errors import KernloreError, Unavailable
from optimizer.evaluation.evaluate import AUTO, known_ceilings, known_signatures
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.search.bench.local import LocalBench, Place
from optimizer.search.records import Proposal
from optimizer.search.runs.places import places_for

ATTEMPTS = 3  # measurements of one point
PLAN = "A point of the table."

# What is left to measure: the proposal, or None for the reference.
Wanted = tuple[str, dict[str, Any], str, Proposal | None]


def places_on(services: Any, ground: Ground) -> dict[str, Place]:
    """Where this machine evaluates. Raises Unavailable where its first device is another one.

    services: api.services.Services.
    """
    places = places_for(services, AUTO, ground.language)
    target = next(iter(places.values())).target
    if target.device != ground.device:
        raise Unavailable(
            f"{ground.language} is to be measured on {ground.device}, and this machine's"
            f" {target.hardware} is {target.device or 'not usable'}",
            hint="Run it on a machine with that device.",
        )
    return places


def missing(space: Space, table: Table, round_: int = 1) -> list[Wanted]:
    """What a round lacks of a space, in order: new points, then those to be measured again."""
    wanted: list[Wanted] = [(REFERENCE, {}, "", None)]
    for fitting, values in space.points():
        proposal = proposal_of(space, fitting, values, PLAN)
        wanted.append((fitting.recipe.name, values, proposal.bundle.sha256, proposal))
    fresh, again = [], []
    for needed in wanted:
        row = table.rounds(space.problem.name, needed[0], needed[1]).get(round_)
        if row is None or row.bundle != needed[2]:
            fresh.append(needed)
        elif row.unsettled and row.attempts < ATTEMPTS:
            again.append(needed)
    return fresh + again


def measure(
    services: Any,
    spaces: Sequence[Space],
    table: Table,
    path: Path,
    seconds: float,
    log: Callable[[str], None],
    rounds: int = 1,
) -> bool:
    """Measure until everything is there (True) or the time is over. path: rows are appended to it.

    services: api.services.Services. A round begins when the one before it is done.
    """
    ends = time.monotonic() + seconds
    for round_ in range(1, rounds + 1):
        for space in spaces:
            left = missing(space, table, round_)
            if not left:
                continue
            if time.monotonic() >= ends:
                return False
            done = 0
            for row in _measured(services, space, left, table, round_):
                append(path, row)
                table.put(row)
                done += 1
                if time.monotonic() >= ends:
                    break
            log(f"round {round_}, {space.problem.name}: {done} of {len(left)} measured")
    return not any(missing(s, table, r) for s in spaces for r in range(1, rounds + 1))


def _measured(
    services: Any, space: Space, left: Sequence[Wanted], table: Table, round_: int
) -> Iterator[Row]:
    """One row after another, from one bench."""
    places = places_on(services, space.ground)
    target = next(iter(places.values())).target
    settings = EvaluationSettings()
    name = space.problem.name
    with LocalBench(
        space.problem,
        places,
        settings,
        ceilings=known_ceilings(services, target, settings.threads),
        signatures=known_signatures(services, target.lineage),
    ) as bench:
        for recipe, values, bundle, proposal in left:
            evaluation = _evaluated(bench, proposal)
            earlier = table.rounds(name, recipe, values).get(round_)
            again = earlier is not None and earlier.bundle == bundle
            attempts = earlier.attempts + 1 if earlier is not None and again else 1
            yield Row(name, recipe, values, bundle, evaluation, attempts, round_)


def _evaluated(bench: LocalBench, proposal: Proposal | None) -> Evaluation:
    """Once more where the infrastructure failed; its second failure ends the measurement."""
    try:
        return bench.reference() if proposal is None else bench.evaluate(proposal)
    except (KernloreError, OSError):
        return bench.reference() if proposal is None else bench.evaluate(proposal)
