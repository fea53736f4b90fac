"""Submitted evaluations, processes of runs and what runs ask: rows that every replica sees."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
oldest_code = "0013"  # it only adds tables


def upgrade() -> None:
    op.create_table(
        "submissions",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("lease_owner", sa.String, nullable=True),
        sa.Column("lease_expires_at", sa.String, nullable=True),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("submission", sa.JSON, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("result", sa.JSON, nullable=True),
        sa.Column("error", sa.JSON, nullable=True),
        sa.Column("created_at", sa.String, nullable=False),
        sa.Column("started_at", sa.String, nullable=True),
        sa.Column("finished_at", sa.String, nullable=True),
        sa.Column("access_scope", sa.String, nullable=False, server_default=sa.text("'all'")),
        sa.PrimaryKeyConstraint("id", name="pk_submissions"),
    )
    op.create_index("ix_submissions_state_created_at", "submissions", ["state", "created_at"])
    op.create_table(
        "run_processes",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("place", sa.String, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("began", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("lease_expires_at", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_run_processes"),
    )
    op.create_table(
        "run_mail",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("context", sa.JSON, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("candidate", sa.JSON, nullable=True),
        sa.PrimaryKeyConstraint("run_id", "step", name="pk_run_mail"),
    )
    op.create_table(
        "request_counts",
        sa.Column("who", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("sent", sa.Integer, nullable=False),
        sa.Column("at", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("who", "kind", name="pk_request_counts"),
    )
