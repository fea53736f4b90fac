"""A skill to store, and helpers of the skill store tests."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection

from kb.catalog.skills.reading import SkillDraft, SkillScopes, SkillState
from kb.catalog.skills.writing import store_skill

SCOPES = SkillScopes(
    hardware=("h100",),
    languages=("triton",),
    ops=("softmax",),
    dtypes=("float32",),
    signals=("memory_bound",),
)
DRAFT = SkillDraft(
    name="widen-loads",
    tier="learned",
    transformation="vectorise",
    description="Use when loads of a row are narrow.",
    body="## Steps\n\nLoad sixteen bytes at once.",
    scopes=SCOPES,
    content_sha256="sha-1",
    origin="run",
    metadata={"files": {}},
)


def put(connection: Connection, *drafts: SkillDraft) -> None:
    for draft in drafts:
        state: SkillState = "candidate" if draft.tier == "learned" else "active"
        store_skill(connection, draft, state=state, actor="curator", reason="test")


def named(name: str, **changes: object) -> SkillDraft:
    return replace(DRAFT, **{"name": name, "content_sha256": name, **changes})  # type: ignore[arg-type]
