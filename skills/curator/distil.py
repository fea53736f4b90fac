"""Distillation of a run or an external trajectory: the library is read, the curator judges, and
record and deltas are stored.

The record is a blob; judged again with the recorded answers of the model and of lifting, it must
come out the same. All deltas are stored in one transaction, each with its event. Evidence that is
stored already is not proposed again, so distilling a search twice changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection

from kb.blobs import Blobs
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.knowledge import embeddings, passages
from kb.catalog.skills.evidence import evidence_for
from kb.catalog.skills.reading import (
    find_skill,
    skill_names,
    skills_about,
)
from kb.catalog.skills.writing import add_evidence, link_skills, store_skill
from kb.embedding import Embedder, Vectors
from kb.errors import Conflict, InvalidKnowledge, KernloreError, NotFound
from kb.hardware.lineage import lineage
from kb.ids import sha256
from kb.scope import ALL_ACCESS
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.bench.local import LocalBench
from optimizer.search.bench.simulated import SimulatedBench
from optimizer.search.runs.knowledge import library_recipes, library_sources, skill_of
from optimizer.search.runs.places import bench_for, places_for
from retrieval.knowledge_base import KnowledgeBase
from skills.curator.contrast import roles_of
from skills.curator.drafter import Drafter, model_drafter
from skills.curator.lifting import KernelLifter, recipe_lift, tuned_instance
from skills.curator.pipeline import propose_deltas, replay
from skills.curator.records import (
    CuratorContext,
    Delta,
    Distillation,
    LibrarySkill,
    LibrarySnapshot,
    Lift,
    Roles,
    StoredDelta,
)
from skills.importing import sync_shipped
from skills.lifecycle import store_narrowed
from skills.trajectories.reading import StoredSearch, stored_search, trajectory_of
from skills.trajectories.records import Trajectory

ACTOR = "curator"
RECORD_FORMAT = 1


@dataclass(frozen=True)
class Distilled:
    """The result of distilling a run or an external trajectory, whose id is `source`.

    The first distillation is that of the trajectory itself, the second that of the composed step of
    a tuned recipe. `record` is the key of the blob. `tuned` is the recipe that the search tuned, or
    the reason for its absence.
    """

    source: str
    distillations: tuple[Distillation, ...]
    record: str
    tuned: str = ""

    def as_json(self) -> dict[str, Any]:
        """Decisions and stored deltas; the trajectory is in the record."""
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
    """Distil the run or external trajectory of an id: judge it, store the record, and store
    candidates and evidence, all or nothing.

    `model` is a litellm model name; it drafts the sentences. Raises NotFound, Conflict if the
    library changed meanwhile or nothing was measured, and Unavailable for a model that cannot be
    called.
    """
    sync_shipped(base.catalog, base.registry, base.settings.skills_dir)
    search = stored_search(base, identity)
    whole = trajectory_of(base, search)
    tuned = tuned_instance(whole, library_sources(base))
    trajectories, recipes = [whole], {}
    if not isinstance(tuned, str):
        trajectories.append(tuned.trajectory)
        recipes[tuned.lifted.name] = tuned.lifted
    distilled = distil(
        base.catalog,
        base.blobs,
        trajectories,
        source=identity,
        roles=parameter_roles(base),
        shown=_shown_excerpts(base, whole),
        embedder=base.embedder,
        drafter=model_drafter(model) if model else None,
        lift=recipe_lift(recipes, _whole_kernels(base, search, whole)),
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
    """Judge trajectories of one source, store the record, and store the deltas, all or nothing.

    Each trajectory is judged against the library as the one before it leaves it. `shown` holds the
    texts of excerpts that steps were shown, by id. Without an embedder, paraphrases of skills are
    not recognised. Raises Conflict if the library changed meanwhile; then nothing is stored.
    """
    proposed: list[Distillation] = []
    for judged in trajectories:
        before = proposed[-1].after if proposed else None
        library = snapshot(catalog, judged, before=before)
        ids = {id_ for step in judged.steps for id_ in step.shown.get("excerpts", ())}
        texts = {id_: text for id_, text in (shown or {}).items() if id_ in ids}
        context = context_of(catalog, roles=roles, shown=texts, embedder=embedder)
        proposed.append(propose_deltas(judged, library, context, drafter=drafter, lift=lift))
    record = {
        "format": RECORD_FORMAT,
        "source": source,
        "passes": [
            {"distillation": distillation.as_json(), "lifted": dict(distillation.lifted)}
            for distillation in proposed
        ],
    }
    # The record first, so that no event names a missing one. Keys are not sorted: the hash of a
    # skill's content depends on the order in its recipe.
    key = blobs.put(json.dumps(record).encode())
    return Distilled(source, store_deltas(catalog, proposed, record=key), key)


def replayed(base: KnowledgeBase, record: str) -> list[str]:
    """Judge a record again; returns the names of the fields that came out differently.

    `record` is the key of the blob. Raises InvalidKnowledge for a blob that is no record of this
    format, or that was made with another embedding model.
    """
    stored = json.loads(base.blobs.get(record))
    if not isinstance(stored, dict) or stored.get("format") != RECORD_FORMAT:
        stored = {}
    if "passes" not in stored:
        raise InvalidKnowledge(
            f"{record[:12]} is no distillation of format {RECORD_FORMAT}",
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


def parameter_roles(base: KnowledgeBase) -> dict[str, dict[str, str]]:
    """Recipe -> parameter -> its role, of the active recipes."""
    return roles_of(library_recipes(base))


def _shown_excerpts(base: KnowledgeBase, whole: Trajectory) -> dict[str, str]:
    """The present texts of the excerpts that steps were shown, by id."""
    ids = sorted({id_ for step in whole.steps for id_ in step.shown.get("excerpts", ())})
    texts = {}
    with base.catalog.read() as connection:
        for identity in ids:
            try:
                texts[identity] = passages.get(connection, identity, ALL_ACCESS).text
            except NotFound:  # its document version was deleted
                continue
    return texts


def _whole_kernels(base: KnowledgeBase, search: StoredSearch, whole: Trajectory) -> Lift | str:
    """Lifting of whole kernels on the device of the search, or the reason why it is not
    possible."""
    if all(step.proposal.recipe is not None for step in whole.steps):
        return "every candidate is an instance of a recipe"
    problem = search.problem()
    try:
        place = next(iter(places_for(base, whole.hardware, None).values()))
    except KernloreError as error:
        return error.message
    device = place.target.device
    if device is None:
        return f"no {whole.hardware} in this machine"

    @contextmanager
    def bench(tried: Problem) -> Iterator[LocalBench]:
        with bench_for(base, tried, places_for(base, whole.hardware, None)) as opened:
            if isinstance(opened, SimulatedBench):
                raise InvalidKnowledge(
                    "a simulator has no reference to compare results with",
                    hint="Distil on a machine that has the chip itself.",
                )
            yield opened

    return KernelLifter(problem, device, bench).lift


# -- the library before


def snapshot(
    catalog: Catalog, trajectory: Trajectory, *, before: LibrarySnapshot | None = None
) -> LibrarySnapshot:
    """The skills that a trajectory can concern: those about its op family or any, and those that a
    step names. `before` is the library after another trajectory, whose deltas are not stored
    yet."""
    named = {skill_of(id_) for step in trajectory.steps for id_ in step.proposal.attributed}
    named |= {id_ for step in trajectory.steps for id_ in step.shown.get("skills", ())}
    with catalog.read() as connection:
        rows = skills_about(connection, trajectory.subject.family, named)
        evidence = evidence_for(connection, [row.id for row in rows])
        taken = set(skill_names(connection))
    known = {row.name: LibrarySkill(row, tuple(evidence.get(row.id, ()))) for row in rows}
    if before is not None:
        known |= {skill.row.name: skill for skill in before.known}
        taken |= before.taken
    return LibrarySnapshot(tuple(known[name] for name in sorted(known)), frozenset(taken))


def context_of(
    catalog: Catalog,
    *,
    roles: Roles,
    shown: Mapping[str, str] | None = None,
    embedder: Embedder | None = None,
) -> CuratorContext:
    """The inputs of decisions, with the hardware that is registered here. Vectors of the embedder
    are stored in the catalog."""
    specs = HardwareRegistry(catalog).all()
    return CuratorContext(
        roles=roles,
        names={id_: (spec.id, spec.name, *spec.aliases) for id_, spec in specs.items()},
        lineages={id_: lineage(id_, specs) for id_ in specs},
        shown=dict(shown or {}),
        embedder=StoredVectors(catalog, embedder) if embedder is not None else None,
    )


class StoredVectors:
    """An embedder that stores the vectors of single texts (`encode_query`) in the catalog, so that
    a skill's text is embedded once. They are stored by the model's fingerprint."""

    def __init__(self, catalog: Catalog, embedder: Embedder) -> None:
        self._catalog = catalog
        self._embedder = embedder
        self.fingerprint = embedder.fingerprint
        self.dimension = embedder.dimension
        self.window = embedder.window
        self.count_tokens = embedder.count_tokens
        self.encode = embedder.encode

    def encode_query(self, text: str) -> Vectors:
        """The vector of a text, cut to the model's window."""
        key, model = sha256(text), self.fingerprint
        with self._catalog.read() as connection:
            known = embeddings.of_text(connection, model, key)
        if known is not None:
            return known
        vector = self._embedder.encode_query(text)
        with self._catalog.write() as connection:
            embeddings.put(connection, model, {key: vector})
        return vector


# -- the deltas after


def store_deltas(
    catalog: Catalog, distillations: Sequence[Distillation], *, record: str = ""
) -> tuple[Distillation, ...]:
    """Store the deltas of all distillations in order, or none; returns them with the results.
    `record` is the key of the blob, for the events. Raises Conflict if the library is no longer the
    one that was judged."""
    with catalog.write() as connection:
        return tuple(
            replace(
                distillation,
                stored=tuple(
                    store_delta(connection, delta, distillation.trajectory.id, record)
                    for delta in distillation.deltas
                ),
            )
            for distillation in distillations
        )


def store_delta(
    connection: Connection, delta: Delta, trajectory: str, record: str = ""
) -> StoredDelta:
    """Store one delta of the trajectory with this id, with its event. Raises Conflict if the skill
    is no longer the one that was judged."""
    known = find_skill(connection, delta.skill)
    version = known.version if known is not None else 0
    if version != delta.version:
        raise Conflict(
            f"{delta.skill} has version {version}, and version {delta.version} was judged",
            hint="The library changed meanwhile: distil the run again.",
        )
    details = {"run": trajectory, "node": delta.node, "operation": delta.operation}
    details |= {"record": record} if record else {}
    signed: dict[str, Any] = {"actor": ACTOR, "reason": delta.reason}
    outcome = "unchanged"
    if delta.draft is not None:
        put = store_skill(connection, delta.draft, state="candidate", details=details, **signed)
        outcome, version = put.outcome, put.version
    if delta.narrowing is not None and known is not None:
        narrowed = replace(known, predicate=delta.narrowing.predicate)
        noted = {**details, "conflicts_with": delta.conflicts_with}
        parts = delta.narrowing.parts
        version = store_narrowed(connection, narrowed, parts, details=noted, **signed).version
        outcome = "updated"
    for row in delta.evidence:
        add_evidence(connection, delta.skill, row, **signed)
    if delta.evidence and outcome == "unchanged":
        outcome = "updated"
    if delta.conflicts_with:
        link_skills(connection, delta.skill, "conflicts_with", delta.conflicts_with, **signed)
    return StoredDelta(delta.skill, delta.operation, outcome, version, len(delta.evidence))
