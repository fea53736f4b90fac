"""Cards of the symbols that manuals define, and whole kernels: of manuals and of runs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "symbols",
        sa.Column("id", sa.String, primary_key=True),
        _ref("document_id", "documents.id", nullable=False, index=True),
        _ref("version_id", "document_versions.id", nullable=False, index=True),
        _ref("section_id", "sections.id", nullable=False),
        sa.Column("ordinal", sa.Integer, nullable=False),
        *_texts("name", "kind", "language"),
        _json("hardware", "[]"),
        _json("card", "{}"),
        *_flags(),
    )
    op.create_index("ix_symbols_active_name", "symbols", ["active", "name"])
    op.create_table(
        "samples",
        sa.Column("id", sa.String, primary_key=True),
        _ref("document_id", "documents.id", index=True),
        _ref("version_id", "document_versions.id"),
        sa.Column("section_id", sa.String, nullable=True),
        sa.Column("run_id", sa.String, nullable=True, index=True),
        *_texts("title", "operator", "language"),
        *(_json(name, "[]") for name in ("hardware", "shapes", "symbols")),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("code_sha256", sa.String, nullable=False, index=True),
        *_texts("status", "evidence", "created_at"),
        *_flags(),
    )


def _ref(name: str, target: str, *, nullable: bool = True, index: bool = False) -> sa.Column[Any]:
    key = sa.ForeignKey(target, ondelete="CASCADE")
    return sa.Column(name, sa.String, key, nullable=nullable, index=index)


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.String, nullable=False) for name in names]


def _json(name: str, default: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON, nullable=False, server_default=sa.text(f"'{default}'"))


def _flags() -> list[sa.Column[Any]]:
    """Whether a person corrected the row, whether it is current, and who may read it."""
    flags = [
        sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())
        for name in ("corrected", "active")
    ]
    scope = sa.Column("access_scope", sa.String, nullable=False, server_default=sa.text("'all'"))
    return [*flags, scope]
