"""The optimizer's rows: problems with named cases, candidates, evaluations, runs and their trees.

`evaluation_cases` repeats op family, dtype, shape bucket and hardware so that a warm start is one
indexed look-up: the best correct candidates of the same op family, dtype and lineage, nearest shape
bucket first."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    String,
    Table,
    UniqueConstraint,
    text,
)

from kb.catalog.dialect import Integer
from kb.catalog.tables._columns import id_column, json, metadata, ref, scope, when

problems = Table(
    "problems",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    Column("sha256", String, nullable=False, unique=True),
    Column("provider", String, nullable=False),
    Column("op_family", String, nullable=False, index=True),
    Column("blob_key", String, nullable=False),
    json("policy"),  # tolerance, precision, library, reduction length
    when(),
    scope(),
)

problem_cases = Table(
    "problem_cases",
    metadata,
    id_column(),
    ref("problem_id", "problems.id"),
    Column("name", String, nullable=False),
    Column("dtype", String, nullable=False),
    json("shapes", default="[]"),
    Column("shape_bucket", String, nullable=False),
    Column("distribution", String, nullable=False),
    Column("weight", Float, nullable=False),
    Column("held_out", Boolean, nullable=False),
    UniqueConstraint("problem_id", "name"),
)

candidates = Table(
    "candidates",
    metadata,
    id_column(),
    Column("bundle_sha256", String, nullable=False, unique=True),
    Column("language", String, nullable=False),
    Column("entry", String, nullable=False),
    Column("origin", String, nullable=False),  # config | rewrite | recipe | llm | external
    json("parameters"),
    Column("blob_key", String, nullable=False),
    when(),
    scope(),
)

evaluations = Table(
    "evaluations",
    metadata,
    id_column(),
    # problem + cases + bundle + device + toolchain + policy and harness versions
    Column("key", String, nullable=False, unique=True),
    ref("problem_id", "problems.id"),
    ref("candidate_id", "candidates.id"),
    Column("device_id", String, nullable=True, index=True),
    Column("toolchain_id", String, nullable=True),
    Column("harness_version", String, nullable=False),
    Column("stage", String, nullable=False),
    Column("state", String, nullable=False),
    Column("validity", String, nullable=True),
    Column("timing", String, nullable=True),  # wall | simulator | must be repeated
    Column("speedup", Float, nullable=True),
    Column("speedup_low", Float, nullable=True),
    Column("speedup_high", Float, nullable=True),
    json("isolation"),
    json("metrics"),
    json("verdict"),
    json("stages"),
    when(),
    when("finished_at", nullable=True),
    scope(),
    Index(None, "state"),
)

evaluation_cases = Table(
    "evaluation_cases",
    metadata,
    id_column(),
    ref("evaluation_id", "evaluations.id"),
    ref("case_id", "problem_cases.id"),
    Column("op_family", String, nullable=False),
    Column("dtype", String, nullable=False),
    Column("shape_bucket", String, nullable=False),
    Column("hardware_id", String, nullable=False),
    Column("candidate_id", String, nullable=False),
    Column("correct", Boolean, nullable=True),
    Column("baseline_us", Float, nullable=True),
    Column("candidate_us", Float, nullable=True),
    Column("speedup", Float, nullable=True),
    Column("speedup_low", Float, nullable=True),
    json("errors"),
    UniqueConstraint("evaluation_id", "case_id"),
    Index("ix_warm_start", "op_family", "dtype", "hardware_id", "shape_bucket", "speedup_low"),
)

# What people answered to integrity flags that wait for them. Rows are added, never changed.
evaluation_reviews = Table(
    "evaluation_reviews",
    metadata,
    id_column(),
    ref("evaluation_id", "evaluations.id"),
    Column("sequence", Integer, nullable=False),  # of the evaluation's, from 1
    Column("decision", String, nullable=False),  # accepted | refused
    Column("actor", String, nullable=False),
    Column("reason", String, nullable=False),
    when(),
    scope(),
    UniqueConstraint("evaluation_id", "sequence"),
)

runs = Table(
    "runs",
    metadata,
    id_column(),
    ref("problem_id", "problems.id"),
    Column("hardware_id", String, nullable=False),
    Column("device_id", String, nullable=True),
    Column("state", String, nullable=False),
    Column("policy", String, nullable=False),
    Column("seed", Integer, nullable=False),
    json("goal"),
    json("settings"),
    json("summary"),
    Column("cost_usd", Float, nullable=False),
    when(),
    when("finished_at", nullable=True),
    when("cancel_requested_at", nullable=True),
    scope(),
    Index(None, "created_at"),
    Index(None, "hardware_id", "created_at"),
    Index(None, "state", "cost_usd"),
)

nodes = Table(
    "nodes",
    metadata,
    id_column(),
    ref("run_id", "runs.id"),
    Column("number", Integer, nullable=False),
    Column("parent_id", String, nullable=True, index=True),
    Column("island", Integer, nullable=False),
    Column("memory", String, nullable=False),  # none | parent | siblings | both | ancestors
    Column("synthesizer", String, nullable=False),
    Column("state", String, nullable=False, server_default=text("'evaluated'")),
    Column("candidate_id", String, nullable=True, index=True),
    Column("evaluation_id", String, nullable=True, index=True),
    Column("retrieval_id", String, nullable=True),
    json("shown"),
    json("claimed"),
    json("attributed"),
    json("usage"),
    json("record"),
    when(),
    UniqueConstraint("run_id", "number"),
)

trajectories = Table(
    "trajectories",
    metadata,
    id_column(),
    Column("run_id", String, nullable=True, index=True),
    Column("origin", String, nullable=False),
    Column("state", String, nullable=False),
    Column("blob_key", String, nullable=False),
    json("summary"),
    when(),
    scope(),
)
