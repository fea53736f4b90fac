"""What a run, or an external trajectory, teaches the library.

The record of a distillation is a blob: judged again, with the recorded answers of the model and of
lifting, it must come out the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from kb.blobs import Blobs
from kb.catalog.engine import Catalog
from kb.catalog.knowledge import passages
from kb.embedding import Embedder
from kb.errors import InvalidKnowledge, KernloreError, NotFound
from kb.scope import ALL_ACCESS
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.bench.local import LocalBench
from optimizer.search.bench.simulated import SimulatedBench
from optimizer.search.runs.knowledge import library_recipes, library_sources
from optimizer.search.runs.places import bench_for, places_for
from optimizer.search.runs.run_store import run_store
from retrieval.knowledge_base import KnowledgeBase
from skills.curator.contrast import Roles, roles_of
from skills.curator.distillation import Distillation
from skills.curator.drafter import Drafter, model_drafter
from skills.curator.lifting import KernelLifter, Lifting, tuned_instance
from skills.curator.pipeline import propose_deltas, replay
from skills.curator.records import Lift
from skills.curator.storing import context_of, snapshot, store_deltas
from skills.skill_library import SkillLibrary
from skills.trajectories.accept import trajectory_store
from skills.trajectories.external_trajectory import external_trajectory_from_json, problem_of
from skills.trajectories.reading import searched_problem, trajectory
from skills.trajectories.records import Trajectory

FORMAT = 1


@dataclass(frozen=True)
class Distilled:
    """What came of a run or an external trajectory.

    `source` is its id. The first distillation is that of the trajectory itself, the second that of
    the composed step where the search tuned a recipe. `record` is the key of the blob. `tuned` is
    the recipe that it tuned, or says why there is none.
    """

    source: str
    distillations: tuple[Distillation, ...]
    record: str
    tuned: str = ""

    def as_json(self) -> dict[str, Any]:
        """Decisions and what was stored, without the trajectory; the record has all of it."""
        return {
            "source": self.source,
            "decisions": [
                {**asdict(decision), "composed": place > 0}
                for place, distillation in enumerate(self.distillations)
                for decision in distillation.decisions
            ],
            "stored": [
                asdict(stored)
                for distillation in self.distillations
                for stored in distillation.stored
            ],
            "tuned": self.tuned,
            "record": self.record,
        }


def distil_source(base: KnowledgeBase, identity: str, model: str = "") -> Distilled:
    """Distil a run or an external trajectory: judge it, keep the record, and store candidates and
    evidence, all or nothing.

    `identity` is the id of either. `model` is a litellm model name; it drafts the sentences. Raises
    NotFound, Conflict where the library changed meanwhile or nothing was measured, and Unavailable
    for a model that cannot be called.
    """
    SkillLibrary(base.catalog).sync_builtin(base.settings.skills_dir)
    whole = trajectory(base, identity)
    tuned = tuned_instance(whole, library_sources(base))
    trajectories, lifting = [whole], _lifting(base, identity, whole)
    if not isinstance(tuned, str):
        trajectories.append(tuned.trajectory)
        lifting = replace(lifting, tuned={tuned.lifted.name: tuned.lifted})
    distilled = distil(
        base.catalog,
        base.blobs,
        trajectories,
        source=identity,
        roles=parameter_roles(base),
        shown=_shown(base, whole),
        embedder=base.embedder,
        drafter=model_drafter(model) if model else None,
        lift=lifting.lift,
    )
    return replace(distilled, tuned=tuned if isinstance(tuned, str) else tuned.lifted.name)


def distil(
    catalog: Catalog,
    blobs: Blobs,
    trajectories: Sequence[Trajectory],
    *,
    roles: Roles,
    source: str = "",
    shown: Mapping[str, str] | None = None,
    embedder: Embedder | None = None,
    drafter: Drafter | None = None,
    lift: Lift | None = None,
) -> Distilled:
    """Judge trajectories of one source, keep the record, and store what they teach, all or nothing.

    Each trajectory meets what the one before it will have stored. `roles` are those of recipes'
    parameters. `shown` holds the texts of excerpts that steps were shown, by id. Without an
    embedder, skills in other words are not recognised. Raises Conflict where the library changed
    meanwhile; then nothing is stored.
    """
    proposed: list[Distillation] = []
    for judged in trajectories:
        before = proposed[-1].after if proposed else None
        library = snapshot(catalog, judged, before=before)
        texts = _shown_in(judged, shown or {})
        context = context_of(catalog, roles=roles, shown=texts, embedder=embedder)
        proposed.append(propose_deltas(judged, library, context, drafter=drafter, lift=lift))
    record = {
        "format": FORMAT,
        "source": source,
        "passes": [
            {"distillation": distillation.as_json(), "lifted": dict(distillation.lifted)}
            for distillation in proposed
        ],
    }
    # The record first: no event names one that is not there. Keys in their own order: the hash of a
    # skill's content is of its recipe as it is written.
    key = blobs.put(json.dumps(record).encode())
    return Distilled(source, store_deltas(catalog, proposed, record=key), key)


def replayed(base: KnowledgeBase, record: str) -> list[str]:
    """Judge a record again; names of what came out differently, empty where all is the same.

    `record` is the key of the blob. Raises InvalidKnowledge for a blob that is no record of this
    format, or that was made with another embedding model.
    """
    stored = json.loads(base.blobs.get(record))
    if not isinstance(stored, dict) or stored.get("format") != FORMAT or "passes" not in stored:
        raise InvalidKnowledge(
            f"{record[:12]} is no distillation of format {FORMAT}",
            hint="`kernlore skills distill` prints the key of its record.",
        )
    differences = []
    for number, row in enumerate(stored["passes"], 1):
        before = row["distillation"]
        embedder = base.embedder if before["means"]["embedder"] else None
        again = replay(before, embedder, row["lifted"])
        now = json.loads(json.dumps(again.as_json()))
        names = [name for name in now if name != "stored" and now[name] != before[name]]
        differences += [f"pass {number}: {name}" for name in names]
    return differences


def problem_behind(base: KnowledgeBase, identity: str) -> Problem:
    """The problem of a run or of an external trajectory."""
    if identity.startswith("run_"):
        return searched_problem(run_store(base).run(identity))
    store = trajectory_store(base)
    return problem_of(external_trajectory_from_json(store.report(store.find(identity))).problem)


def parameter_roles(base: KnowledgeBase) -> dict[str, dict[str, str]]:
    """Recipe -> parameter -> its role, of the active recipes."""
    return roles_of(library_recipes(base))


def _shown(base: KnowledgeBase, whole: Trajectory) -> dict[str, str]:
    """Texts of the excerpts that steps were shown, as they are now."""
    ids = sorted({id_ for step in whole.steps for id_ in step.shown.get("excerpts", ())})
    texts = {}
    with base.catalog.read() as connection:
        for identity in ids:
            try:
                texts[identity] = passages.get(connection, identity, ALL_ACCESS).text
            except NotFound:  # of a version that was deleted since
                continue
    return texts


def _shown_in(judged: Trajectory, texts: Mapping[str, str]) -> dict[str, str]:
    ids = {id_ for step in judged.steps for id_ in step.shown.get("excerpts", ())}
    return {id_: text for id_, text in texts.items() if id_ in ids}


def _lifting(base: KnowledgeBase, identity: str, whole: Trajectory) -> Lifting:
    """Whole kernels are tried on the device that the trajectory is about."""
    if all(step.proposal.recipe is not None for step in whole.steps):
        return Lifting({})
    problem = problem_behind(base, identity)
    try:
        place = next(iter(places_for(base, whole.hardware, None).values()))
    except KernloreError as error:
        return Lifting({}, absent=error.message)
    device = place.target.device
    if device is None:
        return Lifting({}, absent=f"no {whole.hardware} in this machine")

    @contextmanager
    def bench(tried: Problem) -> Iterator[LocalBench]:
        with bench_for(base, tried, places_for(base, whole.hardware, None)) as opened:
            if isinstance(opened, SimulatedBench):
                raise InvalidKnowledge(
                    "a simulator has no reference to be right against",
                    hint="Distil where the chip itself is.",
                )
            yield opened

    return Lifting({}, KernelLifter(problem, device, bench).lift)
