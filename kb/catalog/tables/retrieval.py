"""What was asked, what was shown, and what came of it."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Integer, String, Table

from kb.catalog.tables._columns import id_column, json, metadata, ref, scope, when

retrievals = Table(
    "retrievals",
    metadata,
    id_column(),
    json("request"),
    Column("hardware_id", String, nullable=True, index=True),
    json("signals", default="[]"),
    json("excerpt_ids", default="[]"),
    json("skill_ids", default="[]"),
    json("move_ids", default="[]"),
    json("skills_withheld", default="[]"),
    Column("context_sha256", String, nullable=False),
    Column("run_id", String, nullable=True, index=True),
    Column("node_id", String, nullable=True),
    Column("milliseconds", Float, nullable=False),
    Column("catalog_revision", Integer, nullable=False),
    when(),
    scope(),
)

outcomes = Table(
    "outcomes",
    metadata,
    id_column(),
    ref("retrieval_id", "retrievals.id"),
    json("used", default="[]"),
    Column("correct", Boolean, nullable=True),
    Column("speedup", Float, nullable=True),
    Column("note", String, nullable=True),
    when(),
)
