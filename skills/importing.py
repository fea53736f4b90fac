"""Skill files on their way into the catalog: their ids, predicate, moves and recipe are checked
against the registries, and the shipped skills are brought up to their folders.

Shipped skills are curated and active. A state that another actor set stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection

from ingestion.findings.front_matter import moves_of
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills.reading import (
    SkillDraft,
    SkillRow,
    SkillTier,
    events_of,
    find_skill,
    get_skill,
    list_skills,
    skill_names,
)
from kb.catalog.skills.shipped import EVIDENCE_FILE, SHIPPED, read_trials
from kb.catalog.skills.writing import set_shipped_evidence, set_state, store_skill
from kb.errors import InvalidKnowledge, InvalidPredicate, KernloreError, UnknownHardware
from kb.hardware.table_reader import Problems
from kb.predicates import compile_predicate
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import load_signals
from skills.format.schema import (
    MOVES_JSON,
    RECIPE_JSON,
    STRUCTURED,
    SkillFile,
    sources_of,
    unmarked,
)
from skills.format.skillfile import parse_skill, read_skill, skill_folders, with_content_hash


def draft_of(
    skill: SkillFile,
    tier: SkillTier,
    origin: Literal["shipped", "import", "person"],
    registry: HardwareRegistry,
) -> SkillDraft:
    """The skill as it will be stored. Raises UnknownHardware, UnknownSignal and InvalidKnowledge
    for ids that are not registered here."""
    skill = unmarked(skill)
    for _, check in _checks(skill, registry):
        check()
    hardware = {registry.resolve(name) for name in skill.scopes.hardware}
    draft = SkillDraft(
        name=skill.name,
        tier=tier,
        transformation=skill.transformation,
        description=skill.description,
        body=skill.body,
        scopes=replace(skill.scopes, hardware=tuple(sorted(hardware))),
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
            **(_shipped_evidence(skill) if origin == "shipped" else {}),
        },
        license=skill.license,
        compatibility=skill.compatibility,
        version=int(skill.metadata.get("kb.version", "1")),
    )
    return with_content_hash(draft)


def read_checked(folder: Path, registry: HardwareRegistry) -> SkillFile:
    """The skill of a folder. One error names all problems, those of the format and unknown ids; a
    single unknown id has its own error."""
    skill, problems = parse_skill(folder)
    errors: list[tuple[str, KernloreError]] = []
    for path, check in _checks(skill, registry):
        try:
            check()
        except InvalidPredicate:  # reported by the format's own check
            continue
        except KernloreError as error:
            errors.append((path, error))
    if problems.entries or len(errors) > 1:
        for path, found in errors:
            near = found.details.get("nearest")
            problems.add(path, found.message, f"did you mean {near[0]}?" if near else found.hint)
    problems.raise_if_any()
    return skill


def _checks(
    skill: SkillFile, registry: HardwareRegistry
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Checks of ids, moves and recipe against the registries, each with its place in the file. A
    check raises; each id has its own, so that all unknown ones can be named."""
    signals = load_signals()
    for name in skill.scopes.hardware:
        yield "metadata.kb.hardware", partial(registry.resolve, name)
    for name in skill.scopes.signals:
        yield "metadata.kb.signals", partial(signals.get, name)
    with suppress(InvalidPredicate):
        names = compile_predicate(skill.predicate).names() if skill.predicate else None
        for name in names.signals if names is not None else ():
            yield "metadata.kb.predicate", partial(signals.get, name)
        if names is not None:
            yield "metadata.kb.predicate", partial(_check_metrics, skill.name, names.metrics)
    yield MOVES_JSON, partial(_moves, skill)
    yield RECIPE_JSON, partial(_recipe, skill)


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
            f"{name} of {skill.name} is not a JSON {kind.__name__}",
            hint="Export a skill to see one.",
        )
    return value


def _texts(skill: SkillFile) -> dict[str, str]:
    """The reference texts; scripts and binaries are dropped, which the import reports."""
    texts = {}
    for name, data in sorted(skill.files.items()):
        if name.startswith("references/") and name not in STRUCTURED:
            try:
                texts[name] = data.decode("utf-8")
            except UnicodeDecodeError:
                continue
    return texts


def _shipped_evidence(skill: SkillFile) -> dict[str, Any]:
    """The trials that ship with a skill, as its metadata has them. Those of an imported folder are
    a claim of its author and are left out."""
    if EVIDENCE_FILE not in skill.files:
        return {}
    problems = Problems(skill.name)
    trials = read_trials(skill.files[EVIDENCE_FILE].decode("utf-8"), problems)
    problems.raise_if_any()
    return {SHIPPED: [trial.as_json() for trial in trials]}


# -- shipped skills

BUILTIN_ACTOR = "builtin"


@dataclass(frozen=True)
class ShippedSync:
    """The number of shipped skills, and how many changed or were retired."""

    skills: int
    changed: int
    retired: int


def shipped_folders(folder: Path) -> list[Path]:
    """The folders of the shipped skills. Raises InvalidKnowledge for an empty folder: a mistyped
    name or an unmounted volume must not retire all skills."""
    paths = skill_folders(folder)
    if not paths:
        raise InvalidKnowledge(
            f"the folder of the shipped skills, {folder.absolute()}, holds none",
            hint="Correct KERNLORE_SKILLS_DIR, or mount what it names; without it, what ships is"
            " loaded. The skills that were loaded before are unchanged.",
        )
    return paths


def sync_shipped(catalog: Catalog, registry: HardwareRegistry, folder: Path) -> ShippedSync:
    """Bring the shipped skills up to the folders below `folder`. Those without a folder are
    retired, those about a chip that is not registered here are left out. Raises
    InvalidKnowledge."""
    drafts = []
    for path in shipped_folders(folder):
        with suppress(UnknownHardware):  # a team's knowledge folder may lack the chip
            drafts.append(draft_of(read_skill(path), "curated", "shipped", registry))
    changed = 0
    with catalog.write() as connection:
        shipped = {row.name: row for row in list_skills(connection, origin="shipped")}
        stored = set(skill_names(connection))
        for draft in drafts:
            known = shipped.get(draft.name)
            if known is not None and _is_current(known, draft):
                evidence = draft.metadata.get(SHIPPED, [])
                if known.metadata.get(SHIPPED, []) != evidence:
                    set_shipped_evidence(connection, known, evidence)
                    changed += 1
                continue
            if not draft.sources:
                raise InvalidKnowledge(
                    f"the shipped skill {draft.name} names no source",
                    hint="List where it comes from under `## Sources`.",
                )
            changed += _sync_one(connection, draft, stored=draft.name in stored)
        names = {draft.name for draft in drafts}
        gone = [row for name, row in shipped.items() if name not in names]
        in_use = [row for row in gone if row.state != "retired"]
        for row in in_use:
            reason = "no longer ships"
            set_state(connection, row.name, "retired", actor=BUILTIN_ACTOR, reason=reason)
    return ShippedSync(len(drafts), changed, len(in_use))


def _sync_one(connection: Connection, draft: SkillDraft, *, stored: bool) -> bool:
    """Bring one skill up to its folder; whether it changed. `stored`: there is one of its name."""
    before = find_skill(connection, draft.name) if stored else None
    put = store_skill(
        connection, draft, state="active", actor=BUILTIN_ACTOR, reason="ships with the product"
    )
    if before is None:
        return True
    row = get_skill(connection, draft.name)
    if before.origin != "shipped" and row.state != "active":
        # An imported skill of this name does not hold back the shipped one.
        reason = "ships with the product; replaces the imported skill"
        set_state(connection, draft.name, "active", actor=BUILTIN_ACTOR, reason=reason)
        return True
    last = events_of(connection, row.id)[-1]
    if row.state == "retired" and last.event == "state" and last.actor == BUILTIN_ACTOR:
        set_state(connection, draft.name, "active", actor=BUILTIN_ACTOR, reason="ships again")
    return put.outcome != "unchanged"


def _is_current(row: SkillRow, draft: SkillDraft) -> bool:
    """Whether the text of a shipped skill needs no change, as almost all at a start."""
    return row.state != "retired" and (row.tier, row.content_sha256) == (
        draft.tier,
        draft.content_sha256,
    )
