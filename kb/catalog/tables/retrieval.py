"""What was asked, what was shown, and what came of it."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Index, Integer, String, Table

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
    Index(None, "created_at"),
)

outcomes = Table(
    "outcomes",
    metadata,
    id_column(),
    ref("retrieval_id", "retrievals.id"),
    json("used", default="[]"),
    Column("correct", Boolean, nullable=True),
    Column("speedup", Float, nullable=True),
    Column("baseline_speedup", Float, nullable=True),  # of what was there before, same reference
    Column("gain", Float, nullable=True),  # speedup over baseline_speedup
    Column("helped", Integer, nullable=True),  # 1, 0 or unknown
    Column("note", String, nullable=True),
    when(),
)
