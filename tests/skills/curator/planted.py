"""Trajectories with a planted lesson, and a catalog to distil them into."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kb.blobs import Blobs
from kb.catalog import Catalog, open_catalog
from kb.catalog.hardware import HardwareRegistry
from kb.hardware.schema import parse_hardware
from kb.plain import from_json
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import Interval
from optimizer.search.records import Proposal, Value
from skills.curator.distil import distil as product_distil
from skills.curator.records import Distillation, Roles
from skills.trajectories.records import (
    EvaluationSummary,
    MeasuredKernel,
    Trajectory,
    TrajectoryProblem,
    TrajectoryStep,
)
from tests.catalogs import filled_data_dir

SEEDS = range(10)
HARDWARE = (
    ("nvidia", None),
    ("hopper", "nvidia"),
    ("ampere", "nvidia"),
    ("h100", "hopper"),
    ("h200", "hopper"),
    ("a100", "ampere"),
    ("x86-64", None),
)
LINEAGES = {
    "h100": ("h100", "hopper", "nvidia", "any"),
    "h200": ("h200", "hopper", "nvidia", "any"),
    "a100": ("a100", "ampere", "nvidia", "any"),
    "x86-64": ("x86-64", "any"),
}
RECIPE = "cpp-row-resident-layernorm"
ROLES = {RECIPE: {"lanes": "vector", "unroll": "unroll", "chunk": "block", "ahead": "prefetch"}}
VALUES: dict[str, Value] = {"lanes": 8, "unroll": 1, "chunk": 16, "ahead": 0}


def catalog_in(folder: Path) -> Catalog:
    catalog = open_catalog(filled_data_dir(folder, _register))
    if not HardwareRegistry(catalog).all():
        _register(catalog)
    return catalog


def _register(catalog: Catalog) -> None:
    registry = HardwareRegistry(catalog)
    for name, parent in HARDWARE:
        spec = {"id": name, "name": name.upper(), "vendor": "test", "summary": "A test chip."}
        registry.put(parse_hardware({**spec, "parent": parent} if parent else spec, name), "user")


def ratio(value: float, spread: float = 0.03, n: int = 12) -> Interval:
    return Interval(value, value * (1 - spread), value * (1 + spread), n)


def measured(key: str, speedup: float | Interval | None, **other: Any) -> EvaluationSummary:
    """An evaluation as a trajectory stores it."""
    figure = ratio(speedup) if isinstance(speedup, int | float) else speedup
    bounds = None if figure is None else vars(figure)
    row: dict[str, Any] = {
        "key": key,
        "validity": "correct",
        "timing": "measured" if speedup is not None else "none",
        "harness": "3",
        "toolchain": "gcc 13.2.0",
        "device": "cpu0",
        "checks": (6, 6),
        "signals": ("memory_bound", "not_vectorized"),
        "metrics": {},
        "speedup": bounds,
        "cases": (),
        "flags": (),
        "rejected": False,
        "message": "",
    }
    if figure is not None:
        case = {"case": "main", "baseline_us": 100.0, "candidate_us": 100.0 / figure.value}
        row["cases"] = ({**case, "speedup": bounds, "state": "measured"},)
    return from_json(EvaluationSummary, {**row, **other})


def instance(values: Mapping[str, Value], recipe: str | None = RECIPE, note: str = "") -> Proposal:
    text = note + "".join(f"constexpr int {name} = {v};\n" for name, v in sorted(values.items()))
    text += "void run(const float *x, float *y) { y[0] = x[0] * lanes; }\n"
    return replace(free(text), recipe=recipe, values=dict(values))


def free(text: str, language: str = "cpp") -> Proposal:
    name = "kernel.cpp" if language == "cpp" else "kernel.py"
    return Proposal(Bundle({name: text}, name, language, "kernlore_run"), "recipe")


def step(
    parent: MeasuredKernel,
    child: MeasuredKernel,
    shown: Mapping[str, tuple[str, ...]] | None = None,
    texts: tuple[str, ...] = (),
    **proposal: Any,
) -> TrajectoryStep:
    """A change by the recipe synthesizer; `rest` are fields of its proposal (plan, attributed,
    ...).
    """
    assert child.proposal is not None
    bundle = replace(child.proposal.bundle, origin="recipe")
    proposed = replace(child.proposal, bundle=bundle, **proposal)
    return TrajectoryStep(parent, replace(child, proposal=proposed), shown or {}, texts)


def distil(
    made: Trajectory, catalog: Catalog, *, roles: Roles | None = None, **other: Any
) -> Distillation:
    """Distil one trajectory as the product does; the record is in memory only."""
    blobs = Blobs("memory://planted")
    return product_distil(catalog, blobs, [made], roles=roles or {}, **other).distillations[0]


def tuned(
    before: Mapping[str, Value] = VALUES,
    after: Mapping[str, Value] | None = None,
    speedups: tuple[float, float | None] = (1.0, 1.5),
    nodes: tuple[int, int] = (1, 2),
    child: Mapping[str, Any] | None = None,
    **other: Any,
) -> TrajectoryStep:
    """The values of a recipe before and after; unroll from 1 to 4 by default."""
    changed = after if after is not None else {**before, "unroll": 4}
    parent = MeasuredKernel(nodes[0], instance(before), measured(f"ev-{nodes[0]}", speedups[0]))
    evaluation = measured(f"ev-{nodes[1]}", **{"speedup": speedups[1], **(child or {})})
    return step(parent, MeasuredKernel(nodes[1], instance(changed), evaluation), **other)


def subject(**other: Any) -> TrajectoryProblem:
    fields: dict[str, Any] = {
        "name": "layernorm_4096",
        "sha256": "ab" * 32,
        "op": "layernorm",
        "family": "norm",
        "dtype": "float32",
        "cases": {"searched": ("main",), "held_out": ("odd",)},
        "sizes": {"main": {"compulsory_bytes": 33554432.0, "rows": 4096.0}},
    }
    return TrajectoryProblem(**{**fields, **other})


def trajectory(
    *steps: TrajectoryStep, hardware: str = "x86-64", run: str = "run_1", **other: Any
) -> Trajectory:
    about = subject(**other)
    return Trajectory(run, about, hardware, LINEAGES[hardware], steps, True)


def at_random(seed: int) -> Trajectory:
    """Several changes of one and two values: gains, losses and noise."""
    chance = random.Random(seed)
    values, steps, speedup = dict(VALUES), [], 1.0
    for node in range(2, 9):
        names = chance.sample(sorted(values), chance.choice((1, 1, 2, 3)))
        after = {**values, **{n: int(values[n]) * 2 + 1 for n in names}}
        gained = speedup * chance.choice((0.6, 0.99, 1.01, 1.3, 1.8))
        steps.append(tuned(values, after, (speedup, gained), (node - 1, node)))
        if gained > speedup:
            values, speedup = after, gained
    drawn: Trajectory = trajectory(*steps, run=f"run_{seed}")
    return drawn


def relabelled(made: Trajectory, run: str) -> Trajectory:
    """The same changes as another run reports them, with other evaluations."""

    def side(old: MeasuredKernel) -> MeasuredKernel:
        if old.evaluation is None:
            return old
        return replace(old, evaluation=replace(old.evaluation, key=f"{run}-{old.evaluation.key}"))

    steps = tuple(replace(s, parent=side(s.parent), child=side(s.child)) for s in made.steps)
    return replace(made, id=run, steps=steps)
