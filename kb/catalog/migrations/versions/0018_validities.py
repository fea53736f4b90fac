"""Versions of tools with which entries were checked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
oldest_code = "0017"

_TEXTS = ("tool", "min", "max", "target", "driver", "checked", "date")


def upgrade() -> None:
    op.create_table(
        "validities",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("subject", sa.String, nullable=False),
        sa.Column("document_id", sa.String, nullable=True),
        *(sa.Column(name, sa.String, nullable=False) for name in _TEXTS),
        sa.Column("holds", sa.Boolean, nullable=False),
        sa.Column("origin", sa.String, nullable=False),
        sa.Column("title", sa.String, nullable=False, server_default=sa.text("''")),
        sa.Column("detail", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("created_at", sa.String, nullable=False),
        sa.Column("access_scope", sa.String, nullable=False, server_default=sa.text("'all'")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_validities")),
        sa.ForeignKeyConstraint(
            ["document_id"],
            ["documents.id"],
            name=op.f("fk_validities_document_id_documents"),
            ondelete="CASCADE",
        ),
    )
    for column in ("subject", "document_id"):
        op.create_index(op.f(f"ix_validities_{column}"), "validities", [column])
    # Built-in documents are read again at the next start, which stores what they state.
    op.execute(
        "UPDATE document_versions SET pipeline = '' WHERE document_id IN"
        " (SELECT id FROM documents WHERE origin = 'builtin')"
    )


def downgrade() -> None:
    op.drop_table("validities")
