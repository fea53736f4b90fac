"""Keys of callers, and the sessions that were opened with them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("hardware", sa.JSON, nullable=False, server_default=sa.text("'[]'")),
        sa.Column("secret_sha256", sa.String, nullable=False),
        sa.Column("created_at", sa.String, nullable=False),
        sa.Column("expires_at", sa.String, nullable=True),
        sa.Column("revoked_at", sa.String, nullable=True),
        sa.Column("last_used_at", sa.String, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("secret_sha256", name="uq_api_keys_secret_sha256"),
    )
    op.create_table(
        "key_sessions",
        sa.Column("secret_sha256", sa.String, nullable=False),
        sa.Column("key_id", sa.String, nullable=False),
        sa.Column("created_at", sa.String, nullable=False),
        sa.Column("expires_at", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("secret_sha256", name="pk_key_sessions"),
        sa.ForeignKeyConstraint(
            ["key_id"],
            ["api_keys.id"],
            name="fk_key_sessions_key_id_api_keys",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_key_sessions_key_id", "key_sessions", ["key_id"])
