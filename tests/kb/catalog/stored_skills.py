"""A skill to store, and helpers of the skill store tests."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection

from kb.catalog import Catalog
from kb.catalog.skills.reading import EvidenceRow, SkillDraft, SkillScopes, SkillState
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


def put_curated(catalog: Catalog, name: str, scopes: SkillScopes, **changes: object) -> None:
    """Store a skill of a person, in use."""
    own = {"tier": "curated", "origin": "person", "transformation": name, "body": f"Do {name}."}
    own["description"] = f"Use {name} for {name}."
    draft = named(name, scopes=scopes, metadata={}, **{**own, **changes})
    with catalog.write() as connection:
        store_skill(connection, draft, state="active", actor="ann", reason="test")


def ablation(low: float, hardware: str = "h100", **fields: object) -> EvidenceRow:
    """A trial without the skill, whose interval begins at `low` and is 0.2 wide."""
    row = EvidenceRow(
        kind="ablation",
        hardware_id=hardware,
        n=12,
        speedup=low + 0.1,
        speedup_low=low,
        speedup_high=low + 0.2,
    )
    return replace(row, **fields)  # type: ignore[arg-type]
