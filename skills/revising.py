"""A skill's text as it is sent in: a new skill, a new version of one that nobody is shown, or a
revision of one in use.

A revision is a candidate beside the skill, `NAME-r2` for what would be version 2 of `NAME`. It is
verified and approved like any other; when it becomes active it takes the place of the skill's text
(`kb.catalog.skills`), and until then the skill stays in use as it is.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.skills import Outcome, SkillDraft, SkillRow
from kb.errors import Conflict
from kb.hardware.table_reader import Problems
from kb.scope import AccessScope
from skills.format.schema import MAX_NAME, SkillFile, advice, check
from skills.format.skillfile import content_sha256, render

REVISABLE = ("candidate", "retired")  # nobody is shown them, so their text may change
IN_USE = ("active", "suspect")
CARRIED = (store.REVISES, store.REVISES_VERSION, store.REVISES_SHA256)


@dataclass(frozen=True)
class Revision:
    """What a person changes of a skill; None leaves it. An empty `predicate` is no precondition."""

    description: str | None = None
    predicate: str | None = None
    body: str | None = None


@dataclass(frozen=True)
class Taken:
    """What became of a text. `revises`: the skill in use that it is a revision of."""

    name: str
    outcome: Outcome
    state: str
    revises: str | None = None


def changed(file: SkillFile, skill: SkillRow, change: Revision) -> SkillFile:
    """What `skill` says, or a revision of it (`file`), with a change. Raises InvalidKnowledge for
    one that breaks the format, and Conflict for a skill that ships.
    """
    if skill.tier != "learned":
        raise Conflict(
            f"{skill.name} is {skill.tier}: its text comes with Kernlore",
            hint="Export it, give the folder and its `name` another name, import it, and retire"
            " this one once that is approved.",
        )
    metadata = dict(file.metadata)
    if change.predicate is not None:
        metadata["kb.predicate"] = change.predicate.strip()
    file = replace(
        file,
        name=skill.name,
        description=file.description if change.description is None else change.description.strip(),
        body=file.body if change.body is None else change.body.replace("\r\n", "\n").strip(),
        metadata={key: value for key, value in metadata.items() if value},
    )
    problems = Problems(f"the revision of {skill.name}")
    check(file, skill.name, problems)
    problems.raise_if_any()
    return file


def take(
    connection: Connection,
    draft: SkillDraft,
    *,
    actor: str,
    reason: str,
    details: Mapping[str, Any],
    access_scope: AccessScope,
) -> Taken:
    """Store a draft under its name, as a candidate; where that skill is in use, as its revision.
    Raises Conflict where the skill of its name is quarantined or shipped, Forbidden where the
    caller may not change it.
    """
    known = store.find(connection, draft.name, access_scope)
    if known is not None and known.tier == draft.tier and known.state in IN_USE:
        return _as_revision(connection, known, draft, actor, reason, details, access_scope)
    if known is not None and known.revises is not None:  # sent in under the revision's own name
        carried = {key: known.metadata[key] for key in CARRIED}
        carried[store.REVISES_SHA256] = _digest(replace(draft, name=known.revises))
        draft = replace(draft, metadata={**draft.metadata, **carried})
    if known is not None and known.content_sha256 == draft.content_sha256:
        return Taken(draft.name, "unchanged", known.state, known.revises)
    if known is not None and (known.state not in REVISABLE or known.tier != draft.tier):
        raise _not_revisable(known, draft)
    signed: dict[str, Any] = {"actor": actor, "access_scope": access_scope}
    stored = store.put(
        connection, draft, state="candidate", reason=reason, details=details, **signed
    )
    if known is not None and known.state == "retired":  # other text, to be judged anew
        why = "a new revision was imported"
        store.set_state(connection, draft.name, "candidate", reason=why, **signed)
    return Taken(draft.name, stored.outcome, "candidate", known.revises if known else None)


def _as_revision(
    connection: Connection,
    skill: SkillRow,
    draft: SkillDraft,
    actor: str,
    reason: str,
    details: Mapping[str, Any],
    access_scope: AccessScope,
) -> Taken:
    access_scope.check_change(skill.scopes.hardware, f"the skill {skill.name}")
    if skill.content_sha256 == draft.content_sha256:
        return Taken(skill.name, "unchanged", skill.state)
    pending = store.revision_of(connection, skill.name, access_scope)
    name = pending.name if pending is not None else _free_name(connection, skill)
    told = {
        store.REVISES: skill.name,
        store.REVISES_VERSION: skill.version,
        store.REVISES_SHA256: draft.content_sha256,
    }
    revision = replace(draft, name=name, version=1, metadata={**draft.metadata, **told})
    revision = replace(revision, content_sha256=_digest(revision))
    stored = store.put(
        connection,
        revision,
        state="candidate",
        actor=actor,
        reason=reason,
        details={**details, store.REVISES: skill.name},
        access_scope=access_scope,
    )
    return Taken(name, stored.outcome, "candidate", skill.name)


def changes_of(revision: SkillRow, skill: SkillRow) -> str:
    """How a revision's text differs from the skill's, as a unified diff; empty for equal texts."""
    before, after = (
        render(advice(row)).splitlines(keepends=True)
        for row in (skill, replace(revision, name=skill.name))
    )
    label = f"{skill.name} version {skill.version}"
    return "".join(difflib.unified_diff(before, after, label, revision.name))


def _free_name(connection: Connection, skill: SkillRow) -> str:
    """A name that nobody has, whoever may see it."""
    taken = set(store.names(connection))
    number = skill.version + 1
    while True:
        suffix = f"-r{number}"
        name = f"{skill.name[: MAX_NAME - len(suffix)].rstrip('-')}{suffix}"
        if name not in taken:
            return name
        number += 1


def _digest(draft: SkillDraft) -> str:
    return content_sha256(advice(draft))


def _not_revisable(known: SkillRow, draft: SkillDraft) -> Conflict:
    """The error for a text under the name of a skill whose text stays; it says how to go on."""
    name = known.name
    hint = "Give the folder and its `name` another name to import it beside that."
    if known.tier == draft.tier:
        hint = (
            f"To revise it: `kernlore skills restore {name} --reason TEXT`, then import it again."
            f" Or: {hint[0].lower()}{hint[1:]}"
        )
    return Conflict(f"{name} is already here as {known.tier} and {known.state}", hint=hint)
