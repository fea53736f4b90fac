"""The skills that ship, as folders, kept in step with the catalog.

Shipped skills are curated and active. A state that somebody else set stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills import SkillDraft, SkillRow, Stored
from kb.errors import InvalidKnowledge, UnknownHardware
from kb.scope import ALL_ACCESS
from skills.drafts import draft_of
from skills.format.skillfile import read_skill, skill_folders

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
