"""Between the curator and the catalog: the snapshot that it decides over, and its deltas in one
transaction, each with its event.

Evidence that is there is not added again, so distilling a run twice changes nothing the second
time. A library that changed between snapshot and storing is a Conflict: distil again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills import EvidenceKind, EvidenceRow, SkillRow
from kb.embedding import Embedder
from kb.errors import Conflict
from kb.hardware.lineage import lineage
from kb.scope import ALL_ACCESS, AccessScope
from optimizer.search.runs.skill_moves import skill_of
from skills.curator.contrast import Roles
from skills.curator.distillation import CuratorContext, Distillation, Library
from skills.curator.match import KeptVectors, KnownSkill
from skills.curator.records import Delta, StoredDelta
from skills.format.schema import advice
from skills.format.skillfile import content_sha256
from skills.observation import known_uses
from skills.trajectories.records import Trajectory
from skills.uses import outside, record_of

ACTOR = "curator"


def snapshot(
    catalog: Catalog,
    trajectory: Trajectory,
    access_scope: AccessScope = ALL_ACCESS,
    *,
    before: Library | None = None,
) -> Library:
    """The part of the library that the trajectory can meet: skills about its op family or any, and
    those that a step names. `before` is what a trajectory judged earlier leaves and is not stored
    yet."""
    named = {skill_of(id_) for step in trajectory.steps for id_ in step.proposal.attributed}
    named |= {id_ for step in trajectory.steps for id_ in step.shown.get("skills", ())}
    with catalog.read() as connection:
        rows = store.about(connection, trajectory.subject.family, named, access_scope)
        evidence = store.evidence_for(connection, [row.id for row in rows], access_scope)
        taken = set(store.names(connection, access_scope))
    known = {row.name: KnownSkill(row, tuple(evidence.get(row.id, ()))) for row in rows}
    if before is not None:
        known |= {skill.row.name: skill for skill in before.known}
        taken |= before.taken
    return Library(tuple(known[name] for name in sorted(known)), frozenset(taken))


def context_of(
    catalog: Catalog,
    *,
    roles: Roles,
    shown: Mapping[str, str] | None = None,
    embedder: Embedder | None = None,
) -> CuratorContext:
    """What decisions are made with, from the hardware that is registered here.

    `roles` are those of recipes' parameters; `shown` holds texts that steps were shown, by id.
    Texts that the embedder reads are embedded once and kept in the catalog.
    """
    specs = HardwareRegistry(catalog).all()
    return CuratorContext(
        roles=roles,
        names={id_: (spec.id, spec.name, *spec.aliases) for id_, spec in specs.items()},
        lineages={id_: lineage(id_, specs) for id_ in specs},
        shown=dict(shown or {}),
        embedder=KeptVectors(catalog, embedder) if embedder is not None else None,
    )


def store_deltas(
    catalog: Catalog,
    distillations: Sequence[Distillation],
    access_scope: AccessScope = ALL_ACCESS,
    *,
    record: str = "",
) -> tuple[Distillation, ...]:
    """Store all deltas of all distillations, in order, or none; returns them with what was stored.

    `record` is the key of the blob that they can be judged again from, for the events. Raises
    Conflict where the library is no longer what was judged.
    """
    with catalog.write() as connection:
        return tuple(
            replace(
                distillation,
                stored=tuple(
                    store_delta(connection, delta, distillation.trajectory.id, access_scope, record)
                    for delta in distillation.deltas
                ),
            )
            for distillation in distillations
        )


def store_delta(
    connection: Connection,
    delta: Delta,
    trajectory: str,
    access_scope: AccessScope = ALL_ACCESS,
    record: str = "",
) -> StoredDelta:
    """Store one delta of the trajectory with this id, with its event. Raises Conflict where the
    skill is no longer what was judged."""
    known = store.find(connection, delta.skill, access_scope)
    _unchanged(delta, known)
    details = {"run": trajectory, "node": delta.node, "operation": delta.operation}
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
    version = known.version if known is not None else 0
    if version != delta.version:
        raise Conflict(
            f"{delta.skill} has version {version}, and version {delta.version} was judged",
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
    kept = known_uses(connection, known, signed["access_scope"])
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
        counted=(record.uses, record.wins),
        details=noted,
        **signed,
    )
    return narrowed.version
