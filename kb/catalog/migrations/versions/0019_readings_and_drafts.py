"""Readings of sections by language models, and sections that models drafted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
oldest_code = "0017"


def _text(name: str, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String, nullable=nullable)


def _list(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.JSON, nullable=False, server_default=sa.text("'[]'"))


def upgrade() -> None:
    op.create_table(
        "readings",
        *map(_text, ("document_id", "text_sha256", "model")),
        _list("lines"),
        _text("created_at"),
        sa.PrimaryKeyConstraint("document_id", "text_sha256", name=op.f("pk_readings")),
        sa.ForeignKeyConstraint(
            ["document_id"],
            ["documents.id"],
            name=op.f("fk_readings_document_id_documents"),
            ondelete="CASCADE",
        ),
    )
    op.create_table(
        "drafts",
        *map(_text, ("id", "hardware_id", "signal", "title")),
        _list("sentences"),
        *map(_text, ("model", "status")),
        _text("actor", nullable=True),
        _text("created_at"),
        sa.Column("access_scope", sa.String, nullable=False, server_default=sa.text("'all'")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_drafts")),
        sa.UniqueConstraint(
            "access_scope",
            "hardware_id",
            "signal",
            name=op.f("uq_drafts_access_scope_hardware_id_signal"),
        ),
        sa.ForeignKeyConstraint(
            ["hardware_id"],
            ["hardware.id"],
            name=op.f("fk_drafts_hardware_id_hardware"),
            ondelete="CASCADE",
        ),
    )
    op.create_index(op.f("ix_drafts_hardware_id"), "drafts", ["hardware_id"])


def downgrade() -> None:
    op.drop_table("drafts")
    op.drop_table("readings")
