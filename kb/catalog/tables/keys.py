"""Keys of callers, and the sessions of pages that were opened with one. No secret is stored: a row
holds the hash of one.
"""

from __future__ import annotations

from sqlalchemy import Column, String, Table

from kb.catalog.tables._columns import id_column, json, metadata, ref, when

api_keys = Table(
    "api_keys",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    Column("role", String, nullable=False),  # reader | writer | curator | admin
    json("hardware", default="[]"),  # ids; empty: not restricted
    Column("secret_sha256", String, nullable=False, unique=True),
    when(),
    when("expires_at", nullable=True),
    when("revoked_at", nullable=True),
    when("last_used_at", nullable=True),
)

key_sessions = Table(
    "key_sessions",
    metadata,
    Column("secret_sha256", String, primary_key=True),
    ref("key_id", "api_keys.id"),
    when(),
    when("expires_at"),
)
