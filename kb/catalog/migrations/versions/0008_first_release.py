"""Every table of the first release.

It has the revision id of the last of the eight migrations that it replaces, so a catalog that they
made is up to date. Names of indexes and constraints follow the naming convention of the metadata.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from kb.catalog import dialect

revision = "0008"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_documents()
    _create_hardware()
    _create_jobs()
    _create_skills()
    _create_searches()
    dialect.create_marks(op.get_bind())
    dialect.mark_writes(op.get_bind(), "embeddings")
    for table in ("lexical_passages", "lexical_sections"):
        dialect.create_word_table(op.get_bind(), table)


def _create(name: str, *columns: sa.schema.SchemaItem) -> None:
    """Create a table with an id."""
    op.create_table(name, _text("id", primary_key=True), *columns)


def _column(name: str, kind: Any, *, nullable: bool = False, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=nullable, **options)


def _text(name: str, **options: Any) -> sa.Column[Any]:
    return _column(name, sa.String, **options)


def _columns(kind: Any, *names: str, **options: Any) -> list[sa.Column[Any]]:
    return [_column(name, kind, **options) for name in names]


def _texts(*names: str, **options: Any) -> list[sa.Column[Any]]:
    return _columns(sa.String, *names, **options)


def _jsons(*names: str, **options: Any) -> list[sa.Column[Any]]:
    return [_json(name, **options) for name in names]


def _ref(name: str, target: str, *, nullable: bool = False, index: bool = True) -> sa.Column[Any]:
    key = sa.ForeignKey(target, ondelete="CASCADE")
    return sa.Column(name, sa.String, key, nullable=nullable, index=index)


def _scope() -> sa.Column[Any]:
    return _text("access_scope", server_default=sa.text("'all'"))


def _json(name: str, *, nullable: bool = False, default: str = "{}") -> sa.Column[Any]:
    if nullable:
        return _column(name, sa.JSON, nullable=True)
    return _column(name, sa.JSON, server_default=sa.text(f"'{default}'"))


def _create_documents() -> None:
    _create(
        "documents",
        *_texts("source_key", "title", "category", "origin"),
        _text("current_version_id", nullable=True),
        *_texts("created_at", "updated_at"),
        _scope(),
        sa.UniqueConstraint("access_scope", "source_key"),
    )
    op.create_table(
        "document_scopes",
        _ref("document_id", "documents.id", index=False),
        *_texts("kind", "value"),
        sa.PrimaryKeyConstraint("document_id", "kind", "value"),
        sa.Index(None, "kind", "value"),
    )
    _create(
        "document_versions",
        _ref("document_id", "documents.id"),
        _column("number", sa.Integer),
        _text("sha256", index=True),
        *_texts("pipeline", "state", "file_name", "format"),
        _column("size_bytes", sa.Integer),
        _text("blob_key"),
        *_jsons("declared", "report"),
        _text("created_at"),
        sa.UniqueConstraint("document_id", "number"),
    )
    op.create_table(
        "sections",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        _text("id", unique=True),
        _ref("version_id", "document_versions.id"),
        _text("parent_id", nullable=True, index=True),
        *_columns(sa.Integer, "ordinal", "level"),
        _text("heading"),
        _json("path", default="[]"),
        _column("page_index", sa.Integer, nullable=True),
        _text("page_label", nullable=True),
        _json("hardware_scope", nullable=True),
        sa.Index(None, "version_id", "ordinal"),
    )
    op.create_table(
        "passages",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        _text("id", unique=True),
        _ref("document_id", "documents.id"),
        _ref("version_id", "document_versions.id"),
        _ref("section_id", "sections.id"),
        _column("ordinal", sa.Integer),
        _text("kind"),
        *_columns(sa.Text, "lead", "text"),
        _text("language", nullable=True),
        _text("text_sha256"),
        _text("embed_sha256", index=True),
        _json("boxes", default="[]"),
        _column("page_index", sa.Integer, nullable=True),
        _text("page_label", nullable=True),
        _column("prose", sa.Integer),
        *_columns(sa.Boolean, "corrected", "active", server_default=sa.false()),
        _scope(),
        sa.Index(None, "version_id", "ordinal"),
    )
    op.create_table(
        "passage_hardware",
        _ref("passage_id", "passages.id", index=False),
        _text("hardware_id", index=True),
        sa.PrimaryKeyConstraint("passage_id", "hardware_id"),
    )
    op.create_table(
        "passage_tags",
        _ref("passage_id", "passages.id", index=False),
        *_texts("kind", "value", "origin"),
        sa.PrimaryKeyConstraint("passage_id", "kind", "value"),
        sa.Index(None, "kind", "value"),
    )
    _create(
        "corrections",
        _ref("document_id", "documents.id"),
        *_texts("target", "anchor", "field"),
        _json("value"),
        *_texts("actor", "created_at"),
        sa.Index(None, "document_id", "target", "anchor"),
    )
    op.create_table(
        "embeddings",
        *_texts("text_sha256", "model_fingerprint"),
        _column("vector", sa.LargeBinary),
        _text("created_at"),
        sa.PrimaryKeyConstraint("text_sha256", "model_fingerprint"),
    )
    _create(
        "moves",
        _text("name"),
        _ref("document_id", "documents.id", nullable=True),
        *_texts("section_id", "passage_id", nullable=True),
        *_jsons("hardware", "languages", "signals", default="[]"),
        _text("predicate"),
        _json("change"),
        _text("limit_fact", nullable=True),
        *_texts("why", "status", "origin", "created_at"),
        _scope(),
    )
    _create(
        "recipes",
        *_texts("name", "language"),
        _ref("document_id", "documents.id", nullable=True),
        _text("passage_id", nullable=True),
        _text("skill_id", nullable=True, index=True),
        _json("hardware", default="[]"),
        _json("body"),
        *_texts("status", "origin", "created_at"),
        _scope(),
    )


def _create_hardware() -> None:
    _create(
        "hardware",
        _text("name"),
        _text("vendor", nullable=True),
        _text("parent_id", nullable=True, index=True),
        *_texts("kind", "summary"),
        *_jsons("aliases", "languages", "signatures", default="[]"),
        _json("toolchains"),
        _column("spec", sa.Text),
        *_texts("origin", "created_at", "updated_at"),
        _scope(),
    )
    _create(
        "facts",
        _ref("hardware_id", "hardware.id"),
        _text("key"),
        _column("number", sa.Float, nullable=True),
        *_texts("text", "unit", "kind", "status", "origin", "title", "publisher", "locator"),
        *_texts("url", "date", "note", "formula", "subject", nullable=True),
        _text("document_id", nullable=True, index=True),
        _text("version_id", nullable=True),
        _column("page_index", sa.Integer, nullable=True),
        _text("page_label", nullable=True),
        _json("cell", nullable=True),
        _text("actor", nullable=True),
        _text("created_at"),
        _scope(),
        sa.Index(None, "hardware_id", "key", "status"),
    )
    _create(
        "devices",
        _ref("hardware_id", "hardware.id"),
        *_texts("uuid", "name"),
        _text("driver", nullable=True),
        _column("memory_bytes", sa.Integer, nullable=True),
        _column("copy_bandwidth", sa.Float, nullable=True),
        _json("matmul_peak"),
        _column("launch_latency", sa.Float, nullable=True),
        _json("environment"),
        _text("measured_at", nullable=True),
        _text("created_at"),
        _scope(),
        sa.UniqueConstraint("uuid", "driver"),
    )
    _create(
        "toolchains",
        *_texts("name", "language"),
        _text("hardware_id", nullable=True),
        _json("versions"),
        _text("fingerprint", unique=True),
        _text("created_at"),
    )


def _create_jobs() -> None:
    _create(
        "jobs",
        *_texts("kind", "state"),
        _text("subject_id", nullable=True, index=True),
        *_jsons("payload", "progress", "result"),
        _json("error", nullable=True),
        _column("attempts", sa.Integer, server_default=sa.text("0")),
        *_texts("lease_owner", "lease_expires_at", "heartbeat_at", nullable=True),
        _text("created_at"),
        *_texts("started_at", "finished_at", nullable=True),
        _scope(),
        sa.Index(None, "state", "created_at"),
    )
    op.create_table("meta", _text("key", primary_key=True), _json("value"), _text("updated_at"))


def _create_skills() -> None:
    _create(
        "retrievals",
        _json("request"),
        _text("hardware_id", nullable=True, index=True),
        *_jsons("signals", "excerpt_ids", "skill_ids", "move_ids", "skills_withheld", default="[]"),
        _text("context_sha256"),
        _text("run_id", nullable=True, index=True),
        _text("node_id", nullable=True),
        _column("milliseconds", sa.Float),
        _column("catalog_revision", sa.Integer),
        _text("created_at", index=True),
        _scope(),
    )
    _create(
        "outcomes",
        _ref("retrieval_id", "retrievals.id"),
        _json("used", default="[]"),
        _column("correct", sa.Boolean, nullable=True),
        _column("speedup", sa.Float, nullable=True),
        _text("note", nullable=True),
        _text("created_at"),
        *_columns(sa.Float, "baseline_speedup", "gain", nullable=True),
        _column("helped", sa.Integer, nullable=True),
    )
    _create(
        "skills",
        _text("name"),
        _column("version", sa.Integer),
        _text("tier"),
        _text("state", index=True),
        *_texts("polarity", "transformation", "description"),
        *_texts("compatibility", "license", nullable=True),
        _column("body", sa.Text),
        _text("predicate", nullable=True),
        _json("moves", default="[]"),
        _json("recipe", nullable=True),
        _json("sources", default="[]"),
        _json("metadata"),
        *_texts("content_sha256", "structured_key", index=True),
        _text("origin"),
        *_texts("origin_run_id", "toolchain_id", nullable=True),
        *_texts("created_at", "updated_at"),
        _scope(),
        *_columns(sa.Integer, "trials", "wins", server_default=sa.text("0")),
        *_texts("last_used_at", "written_at", nullable=True),
        sa.UniqueConstraint("access_scope", "name"),
    )
    op.create_table(
        "skill_scopes",
        _ref("skill_id", "skills.id", index=False),
        *_texts("kind", "value"),
        sa.PrimaryKeyConstraint("skill_id", "kind", "value"),
        sa.Index(None, "kind", "value"),
    )
    _create(
        "skill_events",
        _ref("skill_id", "skills.id"),
        _column("sequence", sa.Integer),
        _text("event"),
        *_texts("from_state", "to_state", nullable=True),
        *_texts("actor", "reason"),
        _json("details"),
        _text("created_at"),
        sa.UniqueConstraint("skill_id", "sequence"),
    )
    op.create_table(
        "skill_links",
        _ref("skill_id", "skills.id", index=False),
        _text("other_id", index=True),
        *_texts("kind", "created_at"),
        sa.PrimaryKeyConstraint("skill_id", "other_id", "kind"),
    )
    _create(
        "skill_uses",
        _ref("retrieval_id", "retrievals.id"),
        _text("outcome_id", nullable=True),
        _ref("skill_id", "skills.id", index=False),
        _column("version", sa.Integer),
        _text("role"),
        _column("helped", sa.Integer, nullable=True),
        _column("gain", sa.Float, nullable=True),
        _json("situation"),
        _text("created_at"),
        sa.Index(None, "skill_id", "role", "created_at"),
    )
    _create(
        "evidence",
        *_texts("subject_kind", "subject_id", "hardware_id"),
        *_texts(
            "device_id", "toolchain_id", "problem_id", "case_id", "evaluation_id", nullable=True
        ),
        _text("kind"),
        _column("n", sa.Integer),
        *_columns(
            sa.Float,
            "baseline_us",
            "measured_us",
            "speedup",
            "speedup_low",
            "speedup_high",
            nullable=True,
        ),
        _json("details"),
        _text("created_at"),
        _scope(),
        sa.Index(None, "subject_kind", "subject_id"),
    )


def _create_searches() -> None:
    _create(
        "problems",
        _text("name"),
        _text("sha256", unique=True),
        _text("provider"),
        _text("op_family", index=True),
        _text("blob_key"),
        _json("policy"),
        _text("created_at"),
        _scope(),
    )
    _create(
        "problem_cases",
        _ref("problem_id", "problems.id"),
        *_texts("name", "dtype"),
        _json("shapes", default="[]"),
        *_texts("shape_bucket", "distribution"),
        _column("weight", sa.Float),
        _column("held_out", sa.Boolean),
        sa.UniqueConstraint("problem_id", "name"),
    )
    _create(
        "candidates",
        _text("bundle_sha256", unique=True),
        *_texts("language", "entry", "origin"),
        _json("parameters"),
        *_texts("blob_key", "created_at"),
        _scope(),
    )
    _create(
        "evaluations",
        _text("key", unique=True),
        _ref("problem_id", "problems.id"),
        _ref("candidate_id", "candidates.id"),
        _text("device_id", nullable=True, index=True),
        _text("toolchain_id", nullable=True),
        *_texts("harness_version", "stage", "state"),
        *_texts("validity", "timing", nullable=True),
        *_columns(sa.Float, "speedup", "speedup_low", "speedup_high", nullable=True),
        *_jsons("isolation", "metrics", "verdict", "stages"),
        _text("created_at"),
        _text("finished_at", nullable=True),
        _scope(),
    )
    _create(
        "evaluation_cases",
        _ref("evaluation_id", "evaluations.id"),
        _ref("case_id", "problem_cases.id"),
        *_texts("op_family", "dtype", "shape_bucket", "hardware_id", "candidate_id"),
        _column("correct", sa.Boolean, nullable=True),
        *_columns(sa.Float, "baseline_us", "candidate_us", "speedup", "speedup_low", nullable=True),
        _json("errors"),
        sa.UniqueConstraint("evaluation_id", "case_id"),
        sa.Index(
            "ix_warm_start", "op_family", "dtype", "hardware_id", "shape_bucket", "speedup_low"
        ),
    )
    _create(
        "evaluation_reviews",
        _ref("evaluation_id", "evaluations.id"),
        _column("sequence", sa.Integer),
        *_texts("decision", "actor", "reason", "created_at"),
        _scope(),
        sa.UniqueConstraint("evaluation_id", "sequence"),
    )
    _create(
        "runs",
        _ref("problem_id", "problems.id"),
        _text("hardware_id"),
        _text("device_id", nullable=True),
        *_texts("state", "policy"),
        _column("seed", sa.Integer),
        *_jsons("goal", "settings", "summary"),
        _column("cost_usd", sa.Float),
        _text("created_at"),
        _text("finished_at", nullable=True),
        _scope(),
        _text("cancel_requested_at", nullable=True),
    )
    _create(
        "nodes",
        _ref("run_id", "runs.id"),
        _column("number", sa.Integer),
        _text("parent_id", nullable=True, index=True),
        _column("island", sa.Integer),
        *_texts("memory", "synthesizer"),
        *_texts("candidate_id", "evaluation_id", nullable=True, index=True),
        _text("retrieval_id", nullable=True),
        *_jsons("shown", "claimed", "attributed", "usage"),
        _text("created_at"),
        _text("state", server_default=sa.text("'evaluated'")),
        _json("record"),
        sa.UniqueConstraint("run_id", "number"),
    )
    _create(
        "trajectories",
        _text("run_id", nullable=True, index=True),
        *_texts("origin", "state", "blob_key"),
        _json("summary"),
        _text("created_at"),
        _scope(),
    )
