"""Whose turn a job is, what it came in with, and how many of its passages are done."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

COLUMNS: dict[str, sa.Column[Any]] = {
    "group_id": sa.Column("group_id", sa.String, nullable=True),
    "share": sa.Column("share", sa.String, nullable=False, server_default=""),
    "behind": sa.Column("behind", sa.Boolean, nullable=False, server_default=sa.false()),
    "passages": sa.Column("passages", sa.Integer, nullable=True),
    "passages_done": sa.Column("passages_done", sa.Integer, nullable=False, server_default="0"),
}
INDEXES = {
    "ix_jobs_group_id_created_at": ["group_id", "created_at"],
    "ix_jobs_state_behind_share_created_at": ["state", "behind", "share", "created_at"],
    "ix_jobs_share_started_at": ["share", "started_at"],
}


def upgrade() -> None:
    for column in COLUMNS.values():
        op.add_column("jobs", column)
    for name, columns in INDEXES.items():
        op.create_index(name, "jobs", columns)
