"""Runs that can be resumed: a node's state and record, and the wish to end a run"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "nodes", sa.Column("state", sa.String, nullable=False, server_default="evaluated")
    )
    op.add_column(
        "nodes", sa.Column("record", sa.JSON, nullable=False, server_default=sa.text("'{}'"))
    )
    op.add_column("runs", sa.Column("cancel_requested_at", sa.String, nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "cancel_requested_at")
    op.drop_column("nodes", "record")
    op.drop_column("nodes", "state")
