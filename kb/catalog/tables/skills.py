"""Retrievals with their outcomes, and skills with their append-only history, their uses in those
retrievals, and the measurements that back them."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from kb.catalog.dialect import Integer
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


skills = Table(
    "skills",
    metadata,
    id_column(),
    Column("name", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("tier", String, nullable=False),  # curated | learned
    Column("state", String, nullable=False),  # candidate | active | suspect | retired | quarantined
    Column("polarity", String, nullable=False),  # use | avoid
    Column("transformation", String, nullable=False),
    Column("description", String, nullable=False),
    Column("compatibility", String, nullable=True),
    Column("license", String, nullable=True),
    Column("body", Text, nullable=False),
    Column("predicate", String, nullable=True),  # preconditions, kb.predicates
    json("moves", default="[]"),
    json("recipe", nullable=True),
    json("sources", default="[]"),
    json("metadata"),
    Column("content_sha256", String, nullable=False, index=True),
    Column("structured_key", String, nullable=False, index=True),
    Column("origin", String, nullable=False),  # shipped | import | run | person
    Column("origin_run_id", String, nullable=True),
    Column("toolchain_id", String, nullable=True),  # of its newest evidence
    # Of the present text within the present scope: uses with a known effect, and those that helped.
    Column("trials", Integer, nullable=False, server_default=text("0")),
    Column("wins", Integer, nullable=False, server_default=text("0")),
    when("last_used_at", nullable=True),
    when("written_at", nullable=True),  # the present text; narrowing writes none
    when(),
    when("updated_at"),
    scope(),
    UniqueConstraint("access_scope", "name"),
    Index(None, "state"),
)

skill_scopes = Table(
    "skill_scopes",
    metadata,
    ref("skill_id", "skills.id", index=False),
    Column("kind", String, nullable=False),  # hardware | language | op | dtype | signal
    Column("value", String, nullable=False),
    PrimaryKeyConstraint("skill_id", "kind", "value"),
    Index(None, "kind", "value"),
)

skill_events = Table(
    "skill_events",
    metadata,
    id_column(),
    ref("skill_id", "skills.id"),
    Column("sequence", Integer, nullable=False),
    Column("event", String, nullable=False),
    Column("from_state", String, nullable=True),
    Column("to_state", String, nullable=True),
    Column("actor", String, nullable=False),
    Column("reason", String, nullable=False),
    json("details"),
    when(),
    UniqueConstraint("skill_id", "sequence"),
)

skill_links = Table(
    "skill_links",
    metadata,
    ref("skill_id", "skills.id", index=False),
    Column("other_id", String, nullable=False),
    Column("kind", String, nullable=False),  # conflicts_with
    when(),
    PrimaryKeyConstraint("skill_id", "other_id", "kind"),
    Index(None, "other_id"),
)

skill_uses = Table(
    "skill_uses",
    metadata,
    id_column(),
    ref("retrieval_id", "retrievals.id"),
    # One answer can have several outcomes: the optimizer tries more than one child of a node.
    Column("outcome_id", String, nullable=True),
    ref("skill_id", "skills.id", index=False),
    Column("version", Integer, nullable=False),  # of the skill at that time
    Column("role", String, nullable=False),  # shown | used | withheld
    Column("helped", Integer, nullable=True),  # 1, 0 or unknown
    Column("gain", Float, nullable=True),  # time before over time after
    json("situation"),  # op, op_family, dtype, language, hardware, quantities of the problem
    when(),
    Index(None, "skill_id", "role", "created_at"),
)

evidence = Table(
    "evidence",
    metadata,
    id_column(),
    Column("subject_kind", String, nullable=False),  # skill | move | recipe | candidate
    Column("subject_id", String, nullable=False),
    Column("hardware_id", String, nullable=False),
    Column("device_id", String, nullable=True),
    Column("toolchain_id", String, nullable=True),
    Column("problem_id", String, nullable=True),
    Column("case_id", String, nullable=True),
    Column("evaluation_id", String, nullable=True),
    Column("kind", String, nullable=False),  # ablation | pair | lift | simulator
    Column("n", Integer, nullable=False),
    Column("baseline_us", Float, nullable=True),
    Column("measured_us", Float, nullable=True),
    Column("speedup", Float, nullable=True),
    Column("speedup_low", Float, nullable=True),
    Column("speedup_high", Float, nullable=True),
    json("details"),
    when(),
    scope(),
    Index(None, "subject_kind", "subject_id"),
)
