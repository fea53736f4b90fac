"""What people answered to integrity flags"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "evaluation_reviews",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("evaluation_id", sa.String(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("access_scope", sa.String(), server_default=sa.text("'all'"), nullable=False),
        sa.ForeignKeyConstraint(
            ["evaluation_id"],
            ["evaluations.id"],
            name="fk_evaluation_reviews_evaluation_id_evaluations",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_evaluation_reviews"),
        sa.UniqueConstraint(
            "evaluation_id", "sequence", name="uq_evaluation_reviews_evaluation_id_sequence"
        ),
    )
    op.create_index("ix_evaluation_reviews_evaluation_id", "evaluation_reviews", ["evaluation_id"])


def downgrade() -> None:
    op.drop_index("ix_evaluation_reviews_evaluation_id", "evaluation_reviews")
    op.drop_table("evaluation_reviews")
