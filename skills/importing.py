"""A skill's files as the skill that is to be stored: its ids, predicate, moves and recipe checked
against what is registered here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection

from ingestion.findings.moves import moves_of
from kb.catalog import skills as store
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills import SkillDraft, SkillRow, Stored, Tier
from kb.errors import InvalidKnowledge, InvalidPredicate, KernloreError, UnknownHardware
from kb.predicates import compile_predicate
from kb.scope import ALL_ACCESS
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import load_signals
from skills.format.schema import (
    MOVES_JSON,
    RECIPE_JSON,
    STRUCTURED,
    SkillFile,
    advice,
    sources_of,
    unmarked,
)
from skills.format.skillfile import content_sha256, parse_skill, read_skill, skill_folders


def draft_of(
    skill: SkillFile,
    tier: Tier,
    origin: Literal["shipped", "import", "person"],
    registry: HardwareRegistry,
) -> SkillDraft:
    """The skill as it is to be stored, its ids checked against what is registered here. Raises
    UnknownHardware, UnknownSignal and InvalidKnowledge."""
    skill = unmarked(skill)
    signals = load_signals()
    scopes = skill.scopes
    hardware = {registry.resolve(name) for name in scopes.hardware}
    for signal in scopes.signals:
        signals.get(signal)
    _check_predicate(skill)
    draft = SkillDraft(
        name=skill.name,
        tier=tier,
        transformation=skill.transformation,
        description=skill.description,
        body=skill.body,
        scopes=replace(scopes, hardware=tuple(sorted(hardware))),
        content_sha256="",
        origin=origin,
        polarity=skill.metadata.get("kb.polarity", "use"),
        predicate=skill.predicate,
        moves=_moves(skill),
        recipe=_recipe(skill),
        sources=sources_of(skill.body),
        metadata={
            "allowed_tools": skill.allowed_tools,
            "other": {k: v for k, v in skill.metadata.items() if not k.startswith("kb.")},
            "files": _texts(skill),
            **skill.about_error,
        },
        license=skill.license,
        compatibility=skill.compatibility,
        version=int(skill.metadata.get("kb.version", "1")),
    )
    return replace(draft, content_sha256=content_sha256(advice(draft)))


def read_checked(folder: Path, registry: HardwareRegistry) -> SkillFile:
    """The skill of a folder, all of whose problems are named in one error: those of the format and
    the ids that nobody knows. A single unknown id keeps its own error."""
    skill, problems = parse_skill(folder)
    errors = list(_errors(skill, registry))
    if problems.entries or len(errors) > 1:
        for path, error in errors:
            near = error.details.get("nearest")
            problems.add(path, error.message, f"did you mean {near[0]}?" if near else error.hint)
    problems.raise_if_any()
    return skill


def _errors(skill: SkillFile, registry: HardwareRegistry) -> Iterator[tuple[str, KernloreError]]:
    """What `draft_of` refuses, with its place."""
    signals = load_signals()
    checks: list[tuple[str, Callable[[], object]]] = [
        *(("metadata.kb.hardware", partial(registry.resolve, n)) for n in skill.scopes.hardware),
        *(("metadata.kb.signals", partial(signals.get, name)) for name in skill.scopes.signals),
        *(("metadata.kb.predicate", check) for check in _predicate_checks(skill)),
        (MOVES_JSON, partial(_moves, skill)),
        (RECIPE_JSON, partial(_recipe, skill)),
    ]
    for path, check in checks:
        try:
            check()
        except InvalidPredicate:  # the format's own check says it
            continue
        except KernloreError as error:
            yield path, error


def _predicate_checks(skill: SkillFile) -> Iterator[Callable[[], object]]:
    """A check of each signal, so that a second one is named too, and one of all metrics."""
    with suppress(InvalidPredicate):
        names = compile_predicate(skill.predicate).names() if skill.predicate else None
        if names is not None:
            yield from (partial(load_signals().get, name) for name in names.signals)
            yield partial(_check_metrics, skill.name, names.metrics)


def _check_predicate(skill: SkillFile) -> None:
    for check in _predicate_checks(skill):
        check()


def _check_metrics(name: str, read: Iterable[str]) -> None:
    known = load_metrics()
    unknown = [metric for metric in read if metric not in known]
    if unknown:
        raise InvalidKnowledge(
            f"the predicate of {name} reads unknown metrics: {', '.join(unknown)}",
            hint="Use the names of the metric registry.",
        )


def _moves(skill: SkillFile) -> list[Mapping[str, Any]]:
    moves = _structured(skill, MOVES_JSON, list) or []
    moves_of({"moves": moves})
    return moves


def _recipe(skill: SkillFile) -> Mapping[str, Any] | None:
    recipe: Mapping[str, Any] | None = _structured(skill, RECIPE_JSON, dict)
    return recipe


def _structured(skill: SkillFile, name: str, kind: type) -> Any:
    if name not in skill.files:
        return None
    try:
        value = json.loads(skill.files[name])
    except ValueError as error:
        raise InvalidKnowledge(
            f"{name} of {skill.name} is not JSON: {error}", hint="Correct it at that place."
        ) from error
    if not isinstance(value, kind):
        raise InvalidKnowledge(
            f"{name} of {skill.name} is no JSON {kind.__name__}", hint="Export a skill to see one."
        )
    return value


def _texts(skill: SkillFile) -> dict[str, str]:
    """The reference texts that are kept; scripts and binaries are not."""
    kept = {}
    for name, data in sorted(skill.files.items()):
        if name.startswith("references/") and name not in STRUCTURED:
            try:
                kept[name] = data.decode("utf-8")
            except UnicodeDecodeError:
                continue  # reported among what was dropped
    return kept


# -- shipped: The skills that ship, as folders, kept in step with the catalog.

BUILTIN_ACTOR = "builtin"


@dataclass(frozen=True)
class ShippedSync:
    """How many skills ship, and how many of them changed or were retired."""

    skills: int
    changed: int
    retired: int


def shipped_folders(folder: Path) -> list[Path]:
    """The folders of the skills that ship. Raises InvalidKnowledge where there is none: the name is
    mistyped or its volume not mounted, and no skill is to be retired because of it.
    """
    paths = skill_folders(folder)
    if not paths:
        raise InvalidKnowledge(
            f"the folder of the shipped skills, {folder.absolute()}, holds none",
            hint="Correct KERNLORE_SKILLS_DIR, or mount what it names; without it, what ships is"
            " loaded. What was loaded before is as it was.",
        )
    return paths


def sync_shipped(catalog: Catalog, registry: HardwareRegistry, folder: Path) -> ShippedSync:
    """Bring the shipped skills up to the folders below `folder`; those gone are retired, those
    about a chip that is not registered here left out. Raises InvalidKnowledge."""
    drafts = []
    for path in shipped_folders(folder):
        with suppress(UnknownHardware):  # a knowledge folder of a team's own has its own chips
            drafts.append(draft_of(read_skill(path), "curated", "shipped", registry))
    changed = 0
    with catalog.write() as connection:
        shipped = {row.name: row for row in store.listed(connection, origin="shipped")}
        stored = set(store.names(connection))
        for draft in drafts:
            if _as_shipped(shipped.get(draft.name), draft):
                continue
            if not draft.sources:
                raise InvalidKnowledge(
                    f"the shipped skill {draft.name} names no source",
                    hint="List where it comes from under `## Sources`.",
                )
            if draft.name in stored:
                changed += _sync_one(connection, draft)
            else:  # nobody has decided anything about it: at a first start, over a hundred
                _put(connection, draft)
                changed += 1
        kept = {draft.name for draft in drafts}
        gone = [row for name, row in shipped.items() if name not in kept]
        retired = _retire(connection, gone)
    return ShippedSync(len(drafts), changed, retired)


def _put(connection: Connection, draft: SkillDraft) -> Stored:
    return store.put(
        connection, draft, state="active", actor=BUILTIN_ACTOR, reason="ships with the product"
    )


def _sync_one(connection: Connection, draft: SkillDraft) -> bool:
    """Bring a skill of a name that is stored up to what ships; whether it changed."""
    before = store.find(connection, draft.name)
    stored = _put(connection, draft)
    row = store.get(connection, draft.name, ALL_ACCESS)
    if before is not None and before.origin != "shipped" and row.state != "active":
        # What was imported under this name before does not hold back the shipped skill.
        store.set_state(
            connection,
            draft.name,
            "active",
            actor=BUILTIN_ACTOR,
            reason="ships with the product, in place of what was imported",
        )
        return True
    last = store.events(connection, row.id, ALL_ACCESS)[-1]
    if row.state == "retired" and last.event == "state" and last.actor == BUILTIN_ACTOR:
        store.set_state(connection, draft.name, "active", actor=BUILTIN_ACTOR, reason="ships again")
    return stored.outcome != "unchanged"


def _retire(connection: Connection, gone: Sequence[SkillRow]) -> int:
    """Retire skills that no longer ship; how many were not before."""
    in_use = [row for row in gone if row.state != "retired"]
    for row in in_use:
        store.set_state(
            connection, row.name, "retired", actor=BUILTIN_ACTOR, reason="no longer ships"
        )
    return len(in_use)


def _as_shipped(row: SkillRow | None, draft: SkillDraft) -> bool:
    """Whether there is nothing to do about a shipped skill, which is so at almost every start."""
    return (
        row is not None
        and row.state != "retired"
        and (row.tier, row.content_sha256) == (draft.tier, draft.content_sha256)
    )
