"""Who read the card of a symbol, and whether a person accepted it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Cards so far were read from the structure of documents and need no decision.
    for name, default in (("origin", "structure"), ("status", "accepted")):
        column = sa.Column(name, sa.String, nullable=False, server_default=sa.text(f"'{default}'"))
        op.add_column("symbols", column)
