"""Work that several processes carry out beside each other: submitted evaluations, and which process
works on which run. The work itself is in `tables.search`."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, PrimaryKeyConstraint, String, Table, text

from kb.catalog.dialect import Integer
from kb.catalog.tables._columns import id_column, json, metadata, scope, when

submissions = Table(
    "submissions",
    metadata,
    id_column(),
    Column("state", String, nullable=False),  # queued | running | ready | failed
    Column("lease_owner", String, nullable=True),  # of a queued one: who accepted it
    Column("lease_expires_at", String, nullable=True),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    json("submission"),
    json("result", nullable=True),
    json("error", nullable=True),
    when(),
    when("started_at", nullable=True),
    when("finished_at", nullable=True),
    scope(),
    Index(None, "state", "created_at"),
)

# Who works on a run. `place` is the machine and data directory, within which `pid` means something.
run_processes = Table(
    "run_processes",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("place", String, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("began", Float, nullable=False),  # Unix time
    Column("seconds", Float, nullable=False),  # that the run had gone on before
    Column("lease_expires_at", String, nullable=False),
)

# What a run asks an external optimizer, and the answer.
run_mail = Table(
    "run_mail",
    metadata,
    Column("run_id", String, nullable=False),
    Column("step", Integer, nullable=False),
    json("context"),
    json("candidate", nullable=True),
    PrimaryKeyConstraint("run_id", "step"),
)

# Requests of a caller to all replicas, since it was last forgotten.
request_counts = Table(
    "request_counts",
    metadata,
    Column("who", String, nullable=False),
    Column("kind", String, nullable=False),  # request | upload
    Column("sent", Integer, nullable=False),
    when("at"),
    PrimaryKeyConstraint("who", "kind"),
)
