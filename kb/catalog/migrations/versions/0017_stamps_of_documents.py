"""A stamp on each document, so that a snapshot reads only changed ones again; no lexical tables.

Words are searched in snapshots, which are files next to the catalog. Older code cannot work with
the catalog: it looks for the lexical tables. Going back makes them anew, empty; that code fills
them when it starts.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kb.catalog import dialect

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
oldest_code = "0017"

TABLES = ("lexical_passages", "lexical_sections")


def upgrade() -> None:
    op.add_column(
        "documents", sa.Column("stamp", sa.Integer, nullable=False, server_default=sa.text("0"))
    )
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
    dialect.drop_marks(op.get_bind())


def downgrade() -> None:
    op.drop_column("documents", "stamp")
    dialect.create_marks(op.get_bind())
    dialect.mark_writes(op.get_bind(), "embeddings")
    for table in TABLES:
        dialect.create_word_table(op.get_bind(), table)
