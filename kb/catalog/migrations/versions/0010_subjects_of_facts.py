"""Whether the subject of a proposed fact is the chip itself, a family above it, or not clear."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("facts", sa.Column("subject_kind", sa.String, nullable=True))
