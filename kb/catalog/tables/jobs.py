"""Work that outlives a request, and the catalog's own bookkeeping."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, String, Table, text

from kb.catalog.tables._columns import id_column, json, metadata, scope, when

jobs = Table(
    "jobs",
    metadata,
    id_column(),
    Column("kind", String, nullable=False),  # ingest | verify | ...
    Column("state", String, nullable=False),  # queued | running | ready | partial | failed
    Column("subject_id", String, nullable=True, index=True),
    json("payload"),
    json("progress"),
    json("result"),
    json("error", nullable=True),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("lease_owner", String, nullable=True),
    Column("lease_expires_at", String, nullable=True),
    Column("heartbeat_at", String, nullable=True),
    when(),
    when("started_at", nullable=True),
    when("finished_at", nullable=True),
    scope(),
    Index(None, "state", "created_at"),
)

meta = Table(
    "meta",
    metadata,
    Column("key", String, primary_key=True),
    json("value"),
    when("updated_at"),
)
