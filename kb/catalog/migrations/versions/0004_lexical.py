"""The lexical index: FTS5 over shadow text, one table a level (kb.catalog.knowledge.lexical)"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TABLES = ("lexical_passages", "lexical_sections")


def upgrade() -> None:
    # Shadow text is [a-z0-9_] tokens (kb.tokens): the engine's own tokenizer only splits at spaces.
    for table in TABLES:
        op.execute(
            f"CREATE VIRTUAL TABLE {table} USING fts5("
            "scope, heading, body, detail = full, "
            "tokenize = \"unicode61 remove_diacritics 0 tokenchars '_'\")"
        )


def downgrade() -> None:
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
