"""What a run, or a trajectory that others told, teaches the library.

The record of a distillation is a blob: judged again, with the answers of its drafter and its lifter
replayed, it must come out the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kb.catalog.knowledge import passages
from kb.errors import InvalidKnowledge, KernloreError, NotFound
from kb.scope import ALL_ACCESS
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.bench.simulated import SimulatedBench
from optimizer.search.runs.knowledge import library_sources
from optimizer.search.runs.optimize import bench_for, places_for
from optimizer.search.runs.run_store import run_store
from retrieval.knowledge_base import KnowledgeBase
from skills.curator.distillation import Distillation, Library, Lifted, Lifter, Means
from skills.curator.drafting.delta import Drafter
from skills.curator.lifting import KernelLifter
from skills.curator.model_drafter import model_drafter
from skills.curator.pipeline import judge, replay
from skills.curator.records import Change, Kernel, Trajectory
from skills.curator.storing import means_of, snapshot, store_deltas
from skills.curator.tuned import Lifting, tuned_instance
from skills.skill_library import SkillLibrary
from skills.trajectories.accept import trajectory_store
from skills.trajectories.external_trajectory import problem_of, told_from_json
from skills.trajectories.reading import parameter_roles, searched_problem, trajectory
from skills.trials.trial_context import ConfirmingBench

FORMAT = 1


@dataclass(frozen=True)
class Pass:
    """One pass of the curator, and what its lifter answered, by node."""

    distillation: Distillation
    lifted: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"distillation": self.distillation.as_json(), "lifted": dict(self.lifted)}


@dataclass(frozen=True)
class Distilled:
    """source: id of the run or the trajectory. tuned: the recipe that it tuned, or why there is
    none. record: key of the blob."""

    source: str
    passes: tuple[Pass, ...]
    tuned: str
    record: str

    def as_json(self) -> dict[str, Any]:
        """Decisions and what was stored, without the trajectory; the record has all of it."""
        made = [one.distillation for one in self.passes]
        return {
            "source": self.source,
            "decisions": [
                {**asdict(decision), "composed": one is not made[0]}
                for one in made
                for decision in one.decisions
            ],
            "stored": [asdict(stored) for one in made for stored in one.stored],
            "tuned": self.tuned,
            "record": self.record,
        }


def distil_source(base: KnowledgeBase, identity: str, model: str = "") -> Distilled:
    """Judge it, keep the record, store candidates and evidence, all or nothing. model: to draft
    sentences, as litellm names it. Raises NotFound, Conflict, and Unavailable for a model that
    cannot be asked.
    """
    SkillLibrary(base.catalog).sync_builtin(base.settings.skills_dir)
    told = trajectory(base, identity)
    tuned = tuned_instance(told, library_sources(base))
    found = {} if isinstance(tuned, str) else {tuned.lifted.name: tuned.lifted}
    lifting = replace(_lifting(base, identity, told), tuned=found)
    drafter = model_drafter(model) if model else None
    asked = [told] if isinstance(tuned, str) else [told, tuned.trajectory]
    passes: list[Pass] = []
    for one in asked:  # the second meets what the first will have stored
        before = passes[-1].distillation.after if passes else None
        passes.append(_pass(base, one, lifting, drafter, before))
    told_record = {
        "format": FORMAT,
        "source": identity,
        "passes": [one.as_json() for one in passes],
    }
    # The record first: no event names one that is not there. Keys in their own order: the hash of a
    # skill's content is of its recipe as it is written.
    record = base.blobs.put(json.dumps(told_record).encode())
    stored = store_deltas(base.catalog, [one.distillation for one in passes], record=record)
    return Distilled(
        identity,
        tuple(Pass(made, one.lifted) for made, one in zip(stored, passes, strict=True)),
        tuned if isinstance(tuned, str) else tuned.lifted.name,
        record,
    )


def replayed(base: KnowledgeBase, record: str) -> list[str]:
    """Judge a record again; what came out differently, nothing where it is the same."""
    told = json.loads(base.blobs.get(record))
    if not isinstance(told, dict) or told.get("format") != FORMAT or "passes" not in told:
        raise InvalidKnowledge(
            f"{record[:12]} is no distillation of format {FORMAT}",
            hint="`kernlore skills distill` prints the key of its record.",
        )
    differences = []
    for number, row in enumerate(told["passes"], 1):
        stored = row["distillation"]
        embedder = base.embedder if stored["means"]["embedder"] else None
        again = replay(stored, Means(embedder=embedder), _Again(row["lifted"]))
        now = json.loads(json.dumps(again.as_json()))
        names = [name for name in now if name != "stored" and now[name] != stored[name]]
        differences += [f"pass {number}: {name}" for name in names]
    return differences


def problem_behind(base: KnowledgeBase, identity: str) -> Problem:
    """The problem of a run or of a told trajectory."""
    if identity.startswith("run_"):
        return searched_problem(run_store(base).run(identity))
    told = trajectory_store(base)
    return problem_of(told_from_json(told.report(told.find(identity))).problem)


# -- one pass


def _pass(
    base: KnowledgeBase,
    told: Trajectory,
    lifting: Lifter,
    drafter: Drafter | None,
    before: Library | None,
) -> Pass:
    kept = _Kept(lifting)
    library = snapshot(base.catalog, told, before=before)
    means = means_of(
        base.catalog,
        library,
        roles=parameter_roles(base),
        shown=_shown(base, told),
        embedder=base.embedder,
    )
    made = judge(told, library, means, drafter=drafter, lifter=kept)
    return Pass(made, kept.answers)


def _shown(base: KnowledgeBase, told: Trajectory) -> dict[str, str]:
    """Texts of the excerpts that steps were shown, as they are now."""
    ids = sorted({id_ for step in told.steps for id_ in step.shown.get("excerpts", ())})
    found = {}
    with base.catalog.read() as connection:
        for identity in ids:
            try:
                found[identity] = passages.get(connection, identity, ALL_ACCESS).text
            except NotFound:  # of a version that was deleted since
                continue
    return found


# -- lifting


@dataclass
class _Kept:
    """A lifter whose answers are kept. answers: by node, a recipe or why there is none."""

    inner: Lifter
    answers: dict[str, Any] = field(default_factory=dict)

    def lift(self, trajectory: Trajectory, change: Change) -> Lifted | str:
        found = self.inner.lift(trajectory, change)
        told = found if isinstance(found, str) else json.loads(json.dumps(_plain(found)))
        self.answers[str(change.step.child.number)] = told
        return found


@dataclass(frozen=True)
class _Again:
    """The answers of a record."""

    answers: Mapping[str, Any]

    def lift(self, trajectory: Trajectory, change: Change) -> Lifted | str:
        told = self.answers.get(str(change.step.child.number), "the record has no answer")
        if isinstance(told, str):
            return told
        return Lifted(**{**told, "signals": tuple(told.get("signals", ()))})


def _plain(found: Lifted) -> dict[str, Any]:
    return {
        "name": found.name,
        "recipe": dict(found.recipe),
        "files": dict(found.files),
        "signals": list(found.signals),
    }


def _lifting(base: KnowledgeBase, identity: str, told: Trajectory) -> Lifting:
    """Whole kernels are tried on the device that the trajectory is about."""
    if not any(_whole(step.child.kernel) for step in told.steps):
        return Lifting({})
    problem = problem_behind(base, identity)
    try:
        place = next(iter(places_for(base, told.hardware, None).values()))
    except KernloreError as error:
        return Lifting({}, absent=error.message)
    device = place.target.device
    if device is None:
        return Lifting({}, absent=f"no {told.hardware} in this machine")

    @contextmanager
    def bench(asked: Problem) -> Iterator[ConfirmingBench]:
        with bench_for(base, asked, places_for(base, told.hardware, None)) as opened:
            if isinstance(opened, SimulatedBench):
                raise InvalidKnowledge(
                    "a simulator has no reference to be right against",
                    hint="Distil where the chip itself is.",
                )
            yield opened

    return Lifting({}, KernelLifter(problem, device, bench))


def _whole(kernel: Kernel | None) -> bool:
    return kernel is not None and kernel.recipe is None
