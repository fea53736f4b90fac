"""Between the curator and the catalog: the snapshot that it judges over, and its deltas in one
transaction, each with its event.

Evidence that is there is not added again, so distilling a run twice changes nothing the second
time. A library that changed between snapshot and storing is a Conflict: distil again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills import EvidenceKind, EvidenceRow, SkillRow
from kb.embedding import Embedder
from kb.errors import Conflict
from kb.hardware.checks import Problems
from kb.hardware.lineage import lineage
from kb.scope import ALL_ACCESS
from optimizer.search.synthesizers.recipe.recipe import Recipe, parse_recipe
from skills.curator.distillation import Delta, Distillation, Library, Means, StoredDelta
from skills.curator.matching.match import Known
from skills.curator.matching.vectors import KeptVectors
from skills.curator.reading.contrast import Roles
from skills.curator.records import Trajectory
from skills.observation import outside, record_of, trials_of
from skills.schema import advice
from skills.skillfile import content_sha256

ACTOR = "curator"


def snapshot(
    catalog: Catalog,
    trajectory: Trajectory,
    access_scope: str = ALL_ACCESS,
    *,
    before: Library | None = None,
) -> Library:
    """What of the library the trajectory can meet: skills about its op family or any, and those
    that a step names. before: what a trajectory judged earlier leaves and is not stored yet."""
    named = {skill_of(id_) for step in trajectory.steps for id_ in step.attributed}
    named |= {id_ for step in trajectory.steps for id_ in step.shown.get("skills", ())}
    with catalog.read() as connection:
        rows = store.about(connection, trajectory.subject.family, named, access_scope)
        evidence = store.evidence_for(connection, [row.id for row in rows], access_scope)
        taken = set(store.names(connection, access_scope))
    known = {row.name: Known(row, tuple(evidence.get(row.id, ()))) for row in rows}
    if before is not None:
        known |= {one.row.name: one for one in before.known}
        taken |= before.taken
    return Library(tuple(known[name] for name in sorted(known)), frozenset(taken))


def skill_of(attributed: str) -> str:
    """Name or id of the skill that a change is attributed to: a skill's move is `name#number`."""
    return attributed.partition("#")[0]


def means_of(
    catalog: Catalog,
    library: Library,
    *,
    roles: Roles | None = None,
    shown: Mapping[str, str] | None = None,
    embedder: Embedder | None = None,
) -> Means:
    """What is registered here. roles: of recipes, else those of the library's own. Texts that the
    embedder reads are embedded once and kept in the catalog."""
    specs = HardwareRegistry(catalog).all()
    return Means(
        roles=roles_of(_recipes(library.known)) if roles is None else roles,
        names={id_: (spec.id, spec.name, *spec.aliases) for id_, spec in specs.items()},
        lineages={id_: lineage(id_, specs) for id_ in specs},
        shown=dict(shown or {}),
        embedder=KeptVectors(catalog, embedder) if embedder is not None else None,
    )


def roles_of(recipes: Iterable[Recipe]) -> dict[str, dict[str, str]]:
    """Recipe -> parameter -> its role as moves call it: what `reading.contrast` asks for."""
    return {recipe.name: {p.name: p.role for p in recipe.parameters} for recipe in recipes}


def _recipes(known: Iterable[Known]) -> Iterator[Recipe]:
    """Raises InvalidKnowledge for one that cannot be read."""
    for row in (one.row for one in known):
        if row.recipe is not None:
            problems = Problems(f"skill {row.name}")
            files = row.metadata.get("files", {})
            recipe = parse_recipe(row.name, row.recipe, files, problems)
            problems.raise_if_any()
            assert recipe is not None
            yield recipe


def store_deltas(
    catalog: Catalog,
    made: Sequence[Distillation],
    access_scope: str = ALL_ACCESS,
    *,
    record: str = "",
) -> tuple[Distillation, ...]:
    """All deltas of all of them, in order, or none. record: key of the blob that they can be judged
    again from, for the events. Raises Conflict where the library is no longer what was judged."""
    with catalog.write() as connection:
        return tuple(
            replace(
                one,
                stored=tuple(
                    _store(connection, delta, one, access_scope, record) for delta in one.deltas
                ),
            )
            for one in made
        )


def _store(
    connection: Connection, delta: Delta, made: Distillation, access_scope: str, record: str
) -> StoredDelta:
    known = store.find(connection, delta.skill, access_scope)
    _unchanged(delta, known)
    details = {"run": made.trajectory.id, "node": delta.node, "operation": delta.operation}
    details |= {"record": record} if record else {}
    signed: dict[str, Any] = {"actor": ACTOR, "reason": delta.reason, "access_scope": access_scope}
    outcome, version = "unchanged", delta.version
    if delta.draft is not None:
        put = store.put(connection, delta.draft, state="candidate", details=details, **signed)
        outcome, version = put.outcome, put.version
    if delta.narrowing is not None and known is not None:
        version = _narrow(connection, known, delta, details, signed)
        outcome = "updated"
    for row in delta.evidence:
        _add(connection, delta.skill, row, signed)
    if delta.evidence and outcome == "unchanged":
        outcome = "updated"
    if delta.conflicts_with:
        store.link(connection, delta.skill, "conflicts_with", delta.conflicts_with, **signed)
    return StoredDelta(delta.skill, delta.operation, outcome, version, len(delta.evidence))


def _unchanged(delta: Delta, known: SkillRow | None) -> None:
    found = known.version if known is not None else 0
    if found != delta.version:
        raise Conflict(
            f"{delta.skill} has version {found}, and version {delta.version} was judged",
            hint="The library changed meanwhile: distil the run again.",
        )


def _add(connection: Connection, skill: str, row: EvidenceRow, signed: dict[str, Any]) -> None:
    store.add_evidence(
        connection,
        skill,
        kind=cast(EvidenceKind, row.kind),
        hardware=row.hardware_id,
        n=row.n,
        device=row.device_id,
        toolchain=row.toolchain_id,
        problem=row.problem_id,
        case=row.case_id,
        evaluation=row.evaluation_id,
        baseline_us=row.baseline_us,
        measured_us=row.measured_us,
        speedup=row.speedup,
        low=row.speedup_low,
        high=row.speedup_high,
        details=row.details,
        **signed,
    )


def _narrow(
    connection: Connection,
    known: SkillRow,
    delta: Delta,
    details: dict[str, Any],
    signed: dict[str, Any],
) -> int:
    """Less is claimed; texts, state and evidence stay, and the uses that lie in what is kept."""
    assert delta.narrowing is not None
    predicate, parts = delta.narrowing.predicate, delta.narrowing.parts
    kept = trials_of(connection, known, signed["access_scope"])
    for part in parts:
        kept = outside(kept, part)
    record = record_of(kept)
    noted = {**details, "parts": [asdict(p) for p in parts], "conflicts_with": delta.conflicts_with}
    narrowed = store.narrow(
        connection,
        known.name,
        scopes=known.scopes,
        predicate=predicate,
        content_sha256=content_sha256(advice(replace(known, predicate=predicate))),
        counted=(record.trials, record.wins),
        details=noted,
        **signed,
    )
    return narrowed.version
