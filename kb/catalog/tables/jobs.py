"""Work that outlives a request, and the catalog's own bookkeeping."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Index, String, Table, false, text

from kb.catalog.dialect import Integer
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
    Column("group_id", String, nullable=True),  # names what was sent together
    Column("share", String, nullable=False, server_default=""),  # shares take turns
    Column("behind", Boolean, nullable=False, server_default=false()),  # after all others
    Column("passages", Integer, nullable=True),  # None until the document was read
    Column("passages_done", Integer, nullable=False, server_default=text("0")),
    Index(None, "state", "created_at"),
    Index(None, "group_id", "created_at"),
    Index(None, "state", "behind", "share", "created_at"),
    Index(None, "share", "started_at"),
)

meta = Table(
    "meta",
    metadata,
    Column("key", String, primary_key=True),
    json("value"),
    when("updated_at"),
)
