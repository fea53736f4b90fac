"""Every table of the first release.

It has the revision id of the last of the eight migrations that it replaces, so a catalog that they
made is up to date.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = None
branch_labels = None
depends_on = None

LEXICAL_TABLES = ("lexical_passages", "lexical_sections")


def upgrade() -> None:
    op.create_table(
        "candidates",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("bundle_sha256", sa.String(), nullable=False),
        sa.Column("language", sa.String(), nullable=False),
        sa.Column("entry", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("parameters", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("blob_key", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_candidates")),
        sa.UniqueConstraint("bundle_sha256", name=op.f("uq_candidates_bundle_sha256")),
    )
    op.create_table(
        "documents",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("source_key", sa.String(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("category", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("current_version_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_documents")),
        sa.UniqueConstraint(
            "access_scope", "source_key", name=op.f("uq_documents_access_scope_source_key")
        ),
    )
    op.create_table(
        "embeddings",
        sa.Column("text_sha256", sa.String(), nullable=False),
        sa.Column("model_fingerprint", sa.String(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("text_sha256", "model_fingerprint", name=op.f("pk_embeddings")),
    )
    op.create_table(
        "evidence",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("subject_kind", sa.String(), nullable=False),
        sa.Column("subject_id", sa.String(), nullable=False),
        sa.Column("hardware_id", sa.String(), nullable=False),
        sa.Column("device_id", sa.String(), nullable=True),
        sa.Column("toolchain_id", sa.String(), nullable=True),
        sa.Column("problem_id", sa.String(), nullable=True),
        sa.Column("case_id", sa.String(), nullable=True),
        sa.Column("evaluation_id", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("baseline_us", sa.Float(), nullable=True),
        sa.Column("measured_us", sa.Float(), nullable=True),
        sa.Column("speedup", sa.Float(), nullable=True),
        sa.Column("speedup_low", sa.Float(), nullable=True),
        sa.Column("speedup_high", sa.Float(), nullable=True),
        sa.Column("details", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evidence")),
    )
    op.create_index(
        op.f("ix_evidence_subject_kind_subject_id"),
        "evidence",
        ["subject_kind", "subject_id"],
        unique=False,
    )
    op.create_table(
        "hardware",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("vendor", sa.String(), nullable=True),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("summary", sa.String(), nullable=False),
        sa.Column("aliases", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("languages", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("signatures", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("toolchains", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hardware")),
    )
    op.create_index(op.f("ix_hardware_parent_id"), "hardware", ["parent_id"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("subject_id", sa.String(), nullable=True),
        sa.Column("payload", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("progress", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("result", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_owner", sa.String(), nullable=True),
        sa.Column("lease_expires_at", sa.String(), nullable=True),
        sa.Column("heartbeat_at", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("started_at", sa.String(), nullable=True),
        sa.Column("finished_at", sa.String(), nullable=True),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_state_created_at"), "jobs", ["state", "created_at"], unique=False)
    op.create_index(op.f("ix_jobs_subject_id"), "jobs", ["subject_id"], unique=False)
    op.create_table(
        "meta",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_meta")),
    )
    op.create_table(
        "problems",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("op_family", sa.String(), nullable=False),
        sa.Column("blob_key", sa.String(), nullable=False),
        sa.Column("policy", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_problems")),
        sa.UniqueConstraint("sha256", name=op.f("uq_problems_sha256")),
    )
    op.create_index(op.f("ix_problems_op_family"), "problems", ["op_family"], unique=False)
    op.create_table(
        "retrievals",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("hardware_id", sa.String(), nullable=True),
        sa.Column("signals", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("excerpt_ids", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("skill_ids", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("move_ids", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("skills_withheld", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("context_sha256", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("node_id", sa.String(), nullable=True),
        sa.Column("milliseconds", sa.Float(), nullable=False),
        sa.Column("catalog_revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_retrievals")),
    )
    op.create_index(op.f("ix_retrievals_created_at"), "retrievals", ["created_at"], unique=False)
    op.create_index(op.f("ix_retrievals_hardware_id"), "retrievals", ["hardware_id"], unique=False)
    op.create_index(op.f("ix_retrievals_run_id"), "retrievals", ["run_id"], unique=False)
    op.create_table(
        "skills",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("polarity", sa.String(), nullable=False),
        sa.Column("transformation", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("compatibility", sa.String(), nullable=True),
        sa.Column("license", sa.String(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("predicate", sa.String(), nullable=True),
        sa.Column("moves", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=True),
        sa.Column("sources", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("metadata", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("content_sha256", sa.String(), nullable=False),
        sa.Column("structured_key", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("origin_run_id", sa.String(), nullable=True),
        sa.Column("toolchain_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("updated_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.Column("trials", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("wins", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_used_at", sa.String(), nullable=True),
        sa.Column("written_at", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_skills")),
        sa.UniqueConstraint("access_scope", "name", name=op.f("uq_skills_access_scope_name")),
    )
    op.create_index(op.f("ix_skills_content_sha256"), "skills", ["content_sha256"], unique=False)
    op.create_index(op.f("ix_skills_state"), "skills", ["state"], unique=False)
    op.create_index(op.f("ix_skills_structured_key"), "skills", ["structured_key"], unique=False)
    op.create_table(
        "toolchains",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("language", sa.String(), nullable=False),
        sa.Column("hardware_id", sa.String(), nullable=True),
        sa.Column("versions", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_toolchains")),
        sa.UniqueConstraint("fingerprint", name=op.f("uq_toolchains_fingerprint")),
    )
    op.create_table(
        "trajectories",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("blob_key", sa.String(), nullable=False),
        sa.Column("summary", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trajectories")),
    )
    op.create_index(op.f("ix_trajectories_run_id"), "trajectories", ["run_id"], unique=False)
    op.create_table(
        "corrections",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("document_id", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("anchor", sa.String(), nullable=False),
        sa.Column("field", sa.String(), nullable=False),
        sa.Column("value", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["document_id"],
            ["documents.id"],
            name=op.f("fk_corrections_document_id_documents"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_corrections")),
    )
    op.create_index(
        op.f("ix_corrections_document_id"), "corrections", ["document_id"], unique=False
    )
    op.create_index(
        op.f("ix_corrections_document_id_target_anchor"),
        "corrections",
        ["document_id", "target", "anchor"],
        unique=False,
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("hardware_id", sa.String(), nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("driver", sa.String(), nullable=True),
        sa.Column("memory_bytes", sa.Integer(), nullable=True),
        sa.Column("copy_bandwidth", sa.Float(), nullable=True),
        sa.Column("matmul_peak", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("launch_latency", sa.Float(), nullable=True),
        sa.Column("environment", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("measured_at", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.ForeignKeyConstraint(
            ["hardware_id"],
            ["hardware.id"],
            name=op.f("fk_devices_hardware_id_hardware"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        sa.UniqueConstraint("uuid", "driver", name=op.f("uq_devices_uuid_driver")),
    )
    op.create_index(op.f("ix_devices_hardware_id"), "devices", ["hardware_id"], unique=False)
    op.create_table(
        "document_scopes",
        sa.Column("document_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["document_id"],
            ["documents.id"],
            name=op.f("fk_document_scopes_document_id_documents"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("document_id", "kind", "value", name=op.f("pk_document_scopes")),
    )
    op.create_index(
        op.f("ix_document_scopes_kind_value"), "document_scopes", ["kind", "value"], unique=False
    )
    op.create_table(
        "document_versions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("document_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("pipeline", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("file_name", sa.String(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("blob_key", sa.String(), nullable=False),
        sa.Column("declared", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("report", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["document_id"],
            ["documents.id"],
            name=op.f("fk_document_versions_document_id_documents"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_document_versions")),
        sa.UniqueConstraint(
            "document_id", "number", name=op.f("uq_document_versions_document_id_number")
        ),
    )
    op.create_index(
        op.f("ix_document_versions_document_id"), "document_versions", ["document_id"], unique=False
    )
    op.create_index(
        op.f("ix_document_versions_sha256"), "document_versions", ["sha256"], unique=False
    )
    op.create_table(
        "evaluations",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("candidate_id", sa.String(), nullable=False),
        sa.Column("device_id", sa.String(), nullable=True),
        sa.Column("toolchain_id", sa.String(), nullable=True),
        sa.Column("harness_version", sa.String(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("validity", sa.String(), nullable=True),
        sa.Column("timing", sa.String(), nullable=True),
        sa.Column("speedup", sa.Float(), nullable=True),
        sa.Column("speedup_low", sa.Float(), nullable=True),
        sa.Column("speedup_high", sa.Float(), nullable=True),
        sa.Column("isolation", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("metrics", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("verdict", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("stages", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("finished_at", sa.String(), nullable=True),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.ForeignKeyConstraint(
            ["candidate_id"],
            ["candidates.id"],
            name=op.f("fk_evaluations_candidate_id_candidates"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["problem_id"],
            ["problems.id"],
            name=op.f("fk_evaluations_problem_id_problems"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
        sa.UniqueConstraint("key", name=op.f("uq_evaluations_key")),
    )
    op.create_index(
        op.f("ix_evaluations_candidate_id"), "evaluations", ["candidate_id"], unique=False
    )
    op.create_index(op.f("ix_evaluations_device_id"), "evaluations", ["device_id"], unique=False)
    op.create_index(op.f("ix_evaluations_problem_id"), "evaluations", ["problem_id"], unique=False)
    op.create_table(
        "facts",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("hardware_id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("number", sa.Float(), nullable=True),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("publisher", sa.String(), nullable=False),
        sa.Column("locator", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=True),
        sa.Column("date", sa.String(), nullable=True),
        sa.Column("note", sa.String(), nullable=True),
        sa.Column("formula", sa.String(), nullable=True),
        sa.Column("subject", sa.String(), nullable=True),
        sa.Column("document_id", sa.String(), nullable=True),
        sa.Column("version_id", sa.String(), nullable=True),
        sa.Column("page_index", sa.Integer(), nullable=True),
        sa.Column("page_label", sa.String(), nullable=True),
        sa.Column("cell", sa.JSON(), nullable=True),
        sa.Column("actor", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.ForeignKeyConstraint(
            ["hardware_id"],
            ["hardware.id"],
            name=op.f("fk_facts_hardware_id_hardware"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_facts")),
    )
    op.create_index(op.f("ix_facts_document_id"), "facts", ["document_id"], unique=False)
    op.create_index(op.f("ix_facts_hardware_id"), "facts", ["hardware_id"], unique=False)
    op.create_index(
        op.f("ix_facts_hardware_id_key_status"),
        "facts",
        ["hardware_id", "key", "status"],
        unique=False,
    )
    op.create_table(
        "moves",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("document_id", sa.String(), nullable=True),
        sa.Column("section_id", sa.String(), nullable=True),
        sa.Column("passage_id", sa.String(), nullable=True),
        sa.Column("hardware", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("languages", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("signals", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("predicate", sa.String(), nullable=False),
        sa.Column("change", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("limit_fact", sa.String(), nullable=True),
        sa.Column("why", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.ForeignKeyConstraint(
            ["document_id"],
            ["documents.id"],
            name=op.f("fk_moves_document_id_documents"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_moves")),
    )
    op.create_index(op.f("ix_moves_document_id"), "moves", ["document_id"], unique=False)
    op.create_table(
        "outcomes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("retrieval_id", sa.String(), nullable=False),
        sa.Column("used", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("correct", sa.Boolean(), nullable=True),
        sa.Column("speedup", sa.Float(), nullable=True),
        sa.Column("note", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("baseline_speedup", sa.Float(), nullable=True),
        sa.Column("gain", sa.Float(), nullable=True),
        sa.Column("helped", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["retrieval_id"],
            ["retrievals.id"],
            name=op.f("fk_outcomes_retrieval_id_retrievals"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outcomes")),
    )
    op.create_index(op.f("ix_outcomes_retrieval_id"), "outcomes", ["retrieval_id"], unique=False)
    op.create_table(
        "problem_cases",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("dtype", sa.String(), nullable=False),
        sa.Column("shapes", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("shape_bucket", sa.String(), nullable=False),
        sa.Column("distribution", sa.String(), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("held_out", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["problem_id"],
            ["problems.id"],
            name=op.f("fk_problem_cases_problem_id_problems"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_problem_cases")),
        sa.UniqueConstraint("problem_id", "name", name=op.f("uq_problem_cases_problem_id_name")),
    )
    op.create_index(
        op.f("ix_problem_cases_problem_id"), "problem_cases", ["problem_id"], unique=False
    )
    op.create_table(
        "recipes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("language", sa.String(), nullable=False),
        sa.Column("document_id", sa.String(), nullable=True),
        sa.Column("passage_id", sa.String(), nullable=True),
        sa.Column("skill_id", sa.String(), nullable=True),
        sa.Column("hardware", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("body", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.ForeignKeyConstraint(
            ["document_id"],
            ["documents.id"],
            name=op.f("fk_recipes_document_id_documents"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recipes")),
    )
    op.create_index(op.f("ix_recipes_document_id"), "recipes", ["document_id"], unique=False)
    op.create_index(op.f("ix_recipes_skill_id"), "recipes", ["skill_id"], unique=False)
    op.create_table(
        "runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("problem_id", sa.String(), nullable=False),
        sa.Column("hardware_id", sa.String(), nullable=False),
        sa.Column("device_id", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("goal", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("settings", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("summary", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("cost_usd", sa.Float(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("finished_at", sa.String(), nullable=True),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.Column("cancel_requested_at", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["problem_id"],
            ["problems.id"],
            name=op.f("fk_runs_problem_id_problems"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_problem_id"), "runs", ["problem_id"], unique=False)
    op.create_table(
        "skill_events",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("skill_id", sa.String(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("from_state", sa.String(), nullable=True),
        sa.Column("to_state", sa.String(), nullable=True),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("details", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["skill_id"],
            ["skills.id"],
            name=op.f("fk_skill_events_skill_id_skills"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_skill_events")),
        sa.UniqueConstraint("skill_id", "sequence", name=op.f("uq_skill_events_skill_id_sequence")),
    )
    op.create_index(op.f("ix_skill_events_skill_id"), "skill_events", ["skill_id"], unique=False)
    op.create_table(
        "skill_links",
        sa.Column("skill_id", sa.String(), nullable=False),
        sa.Column("other_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["skill_id"],
            ["skills.id"],
            name=op.f("fk_skill_links_skill_id_skills"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("skill_id", "other_id", "kind", name=op.f("pk_skill_links")),
    )
    op.create_index(op.f("ix_skill_links_other_id"), "skill_links", ["other_id"], unique=False)
    op.create_table(
        "skill_scopes",
        sa.Column("skill_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["skill_id"],
            ["skills.id"],
            name=op.f("fk_skill_scopes_skill_id_skills"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("skill_id", "kind", "value", name=op.f("pk_skill_scopes")),
    )
    op.create_index(
        op.f("ix_skill_scopes_kind_value"), "skill_scopes", ["kind", "value"], unique=False
    )
    op.create_table(
        "skill_uses",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("retrieval_id", sa.String(), nullable=False),
        sa.Column("outcome_id", sa.String(), nullable=True),
        sa.Column("skill_id", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("helped", sa.Integer(), nullable=True),
        sa.Column("gain", sa.Float(), nullable=True),
        sa.Column("situation", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["retrieval_id"],
            ["retrievals.id"],
            name=op.f("fk_skill_uses_retrieval_id_retrievals"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["skill_id"],
            ["skills.id"],
            name=op.f("fk_skill_uses_skill_id_skills"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_skill_uses")),
    )
    op.create_index(
        op.f("ix_skill_uses_retrieval_id"), "skill_uses", ["retrieval_id"], unique=False
    )
    op.create_index(
        op.f("ix_skill_uses_skill_id_role_created_at"),
        "skill_uses",
        ["skill_id", "role", "created_at"],
        unique=False,
    )
    op.create_table(
        "evaluation_cases",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("evaluation_id", sa.String(), nullable=False),
        sa.Column("case_id", sa.String(), nullable=False),
        sa.Column("op_family", sa.String(), nullable=False),
        sa.Column("dtype", sa.String(), nullable=False),
        sa.Column("shape_bucket", sa.String(), nullable=False),
        sa.Column("hardware_id", sa.String(), nullable=False),
        sa.Column("candidate_id", sa.String(), nullable=False),
        sa.Column("correct", sa.Boolean(), nullable=True),
        sa.Column("baseline_us", sa.Float(), nullable=True),
        sa.Column("candidate_us", sa.Float(), nullable=True),
        sa.Column("speedup", sa.Float(), nullable=True),
        sa.Column("speedup_low", sa.Float(), nullable=True),
        sa.Column("errors", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.ForeignKeyConstraint(
            ["case_id"],
            ["problem_cases.id"],
            name=op.f("fk_evaluation_cases_case_id_problem_cases"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["evaluation_id"],
            ["evaluations.id"],
            name=op.f("fk_evaluation_cases_evaluation_id_evaluations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluation_cases")),
        sa.UniqueConstraint(
            "evaluation_id", "case_id", name=op.f("uq_evaluation_cases_evaluation_id_case_id")
        ),
    )
    op.create_index(
        op.f("ix_evaluation_cases_case_id"), "evaluation_cases", ["case_id"], unique=False
    )
    op.create_index(
        op.f("ix_evaluation_cases_evaluation_id"),
        "evaluation_cases",
        ["evaluation_id"],
        unique=False,
    )
    op.create_index(
        "ix_warm_start",
        "evaluation_cases",
        ["op_family", "dtype", "hardware_id", "shape_bucket", "speedup_low"],
        unique=False,
    )
    op.create_table(
        "evaluation_reviews",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("evaluation_id", sa.String(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.ForeignKeyConstraint(
            ["evaluation_id"],
            ["evaluations.id"],
            name=op.f("fk_evaluation_reviews_evaluation_id_evaluations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluation_reviews")),
        sa.UniqueConstraint(
            "evaluation_id", "sequence", name=op.f("uq_evaluation_reviews_evaluation_id_sequence")
        ),
    )
    op.create_index(
        op.f("ix_evaluation_reviews_evaluation_id"),
        "evaluation_reviews",
        ["evaluation_id"],
        unique=False,
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("island", sa.Integer(), nullable=False),
        sa.Column("memory", sa.String(), nullable=False),
        sa.Column("synthesizer", sa.String(), nullable=False),
        sa.Column("candidate_id", sa.String(), nullable=True),
        sa.Column("evaluation_id", sa.String(), nullable=True),
        sa.Column("retrieval_id", sa.String(), nullable=True),
        sa.Column("shown", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("claimed", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("attributed", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("usage", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("state", sa.String(), server_default=sa.text("'evaluated'"), nullable=False),
        sa.Column("record", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_nodes_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
        sa.UniqueConstraint("run_id", "number", name=op.f("uq_nodes_run_id_number")),
    )
    op.create_index(op.f("ix_nodes_candidate_id"), "nodes", ["candidate_id"], unique=False)
    op.create_index(op.f("ix_nodes_evaluation_id"), "nodes", ["evaluation_id"], unique=False)
    op.create_index(op.f("ix_nodes_parent_id"), "nodes", ["parent_id"], unique=False)
    op.create_index(op.f("ix_nodes_run_id"), "nodes", ["run_id"], unique=False)
    op.create_table(
        "sections",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("version_id", sa.String(), nullable=False),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("heading", sa.String(), nullable=False),
        sa.Column("path", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("page_index", sa.Integer(), nullable=True),
        sa.Column("page_label", sa.String(), nullable=True),
        sa.Column("hardware_scope", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["document_versions.id"],
            name=op.f("fk_sections_version_id_document_versions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_sections")),
        sa.UniqueConstraint("id", name=op.f("uq_sections_id")),
    )
    op.create_index(op.f("ix_sections_parent_id"), "sections", ["parent_id"], unique=False)
    op.create_index(op.f("ix_sections_version_id"), "sections", ["version_id"], unique=False)
    op.create_index(
        op.f("ix_sections_version_id_ordinal"), "sections", ["version_id", "ordinal"], unique=False
    )
    op.create_table(
        "passages",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("document_id", sa.String(), nullable=False),
        sa.Column("version_id", sa.String(), nullable=False),
        sa.Column("section_id", sa.String(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("lead", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("language", sa.String(), nullable=True),
        sa.Column("text_sha256", sa.String(), nullable=False),
        sa.Column("embed_sha256", sa.String(), nullable=False),
        sa.Column("boxes", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("page_index", sa.Integer(), nullable=True),
        sa.Column("page_label", sa.String(), nullable=True),
        sa.Column("prose", sa.Integer(), nullable=False),
        sa.Column("corrected", sa.Boolean(), server_default=sa.text("0"), nullable=False),
        sa.Column("active", sa.Boolean(), server_default=sa.text("0"), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.ForeignKeyConstraint(
            ["document_id"],
            ["documents.id"],
            name=op.f("fk_passages_document_id_documents"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["section_id"],
            ["sections.id"],
            name=op.f("fk_passages_section_id_sections"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["document_versions.id"],
            name=op.f("fk_passages_version_id_document_versions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_passages")),
        sa.UniqueConstraint("id", name=op.f("uq_passages_id")),
    )
    op.create_index(op.f("ix_passages_document_id"), "passages", ["document_id"], unique=False)
    op.create_index(op.f("ix_passages_embed_sha256"), "passages", ["embed_sha256"], unique=False)
    op.create_index(op.f("ix_passages_section_id"), "passages", ["section_id"], unique=False)
    op.create_index(op.f("ix_passages_version_id"), "passages", ["version_id"], unique=False)
    op.create_index(
        op.f("ix_passages_version_id_ordinal"), "passages", ["version_id", "ordinal"], unique=False
    )
    op.create_table(
        "passage_hardware",
        sa.Column("passage_id", sa.String(), nullable=False),
        sa.Column("hardware_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["passage_id"],
            ["passages.id"],
            name=op.f("fk_passage_hardware_passage_id_passages"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("passage_id", "hardware_id", name=op.f("pk_passage_hardware")),
    )
    op.create_index(
        op.f("ix_passage_hardware_hardware_id"), "passage_hardware", ["hardware_id"], unique=False
    )
    op.create_table(
        "passage_tags",
        sa.Column("passage_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["passage_id"],
            ["passages.id"],
            name=op.f("fk_passage_tags_passage_id_passages"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("passage_id", "kind", "value", name=op.f("pk_passage_tags")),
    )
    op.create_index(
        op.f("ix_passage_tags_kind_value"), "passage_tags", ["kind", "value"], unique=False
    )
    _create_lexical_tables()


def _create_lexical_tables() -> None:
    """The lexical index: FTS5 over shadow text, one table a level (kb.catalog.knowledge.lexical).

    Shadow text is [a-z0-9_] tokens (kb.tokens): the engine's own tokenizer only splits at spaces.
    """
    for table in LEXICAL_TABLES:
        op.execute(
            f"CREATE VIRTUAL TABLE {table} USING fts5("
            "scope, heading, body, detail = full, "
            "tokenize = \"unicode61 remove_diacritics 0 tokenchars '_'\")"
        )


def downgrade() -> None:
    for table in LEXICAL_TABLES:
        op.execute(f"DROP TABLE {table}")
    op.drop_table("passage_tags")
    op.drop_table("passage_hardware")
    op.drop_table("passages")
    op.drop_table("sections")
    op.drop_table("nodes")
    op.drop_table("evaluation_reviews")
    op.drop_table("evaluation_cases")
    op.drop_table("skill_uses")
    op.drop_table("skill_scopes")
    op.drop_table("skill_links")
    op.drop_table("skill_events")
    op.drop_table("runs")
    op.drop_table("recipes")
    op.drop_table("problem_cases")
    op.drop_table("outcomes")
    op.drop_table("moves")
    op.drop_table("facts")
    op.drop_table("evaluations")
    op.drop_table("document_versions")
    op.drop_table("document_scopes")
    op.drop_table("devices")
    op.drop_table("corrections")
    op.drop_table("trajectories")
    op.drop_table("toolchains")
    op.drop_table("skills")
    op.drop_table("retrievals")
    op.drop_table("problems")
    op.drop_table("meta")
    op.drop_table("jobs")
    op.drop_table("hardware")
    op.drop_table("evidence")
    op.drop_table("embeddings")
    op.drop_table("documents")
    op.drop_table("candidates")
