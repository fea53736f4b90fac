"""What became of skills: every use with its gain, counters for ranking, and outcomes with a
baseline
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# Languages are part of what a skill claims: the same change in another language is another skill.
KEYS = """
UPDATE skills SET structured_key = structured_key || '|' || coalesce(
    (SELECT group_concat(value, ',') FROM (
        SELECT value FROM skill_scopes
        WHERE skill_id = skills.id AND kind = 'language' ORDER BY value)), '')
"""
WRITTEN = """
UPDATE skills SET written_at = coalesce(
    (SELECT max(created_at) FROM skill_events
     WHERE skill_id = skills.id AND event IN ('created', 'revised')), created_at)
"""
USES = """
INSERT INTO skill_uses
    (id, retrieval_id, skill_id, version, role, helped, situation, created_at)
SELECT 'use_' || lower(hex(randomblob(8))), u.retrieval_id, u.skill_id, s.version, u.role,
    u.helped, '{}', u.created_at
FROM skill_uses_before u JOIN skills s ON s.id = u.skill_id
"""


def upgrade() -> None:
    op.add_column(
        "skills", sa.Column("trials", sa.Integer, nullable=False, server_default=sa.text("0"))
    )
    op.add_column(
        "skills", sa.Column("wins", sa.Integer, nullable=False, server_default=sa.text("0"))
    )
    op.add_column("skills", sa.Column("last_used_at", sa.String, nullable=True))
    op.add_column("skills", sa.Column("written_at", sa.String, nullable=True))
    op.create_index("ix_skills_state", "skills", ["state"])
    op.execute(KEYS)
    op.execute(WRITTEN)
    op.create_index("ix_skill_links_other_id", "skill_links", ["other_id"])
    for name, kind in (("baseline_speedup", sa.Float), ("gain", sa.Float), ("helped", sa.Integer)):
        op.add_column("outcomes", sa.Column(name, kind, nullable=True))
    op.create_index("ix_retrievals_created_at", "retrievals", ["created_at"])
    _uses()


def _uses() -> None:
    """An answer can have several outcomes, so its uses need ids of their own."""
    op.drop_index("ix_skill_uses_skill_id", "skill_uses")
    op.rename_table("skill_uses", "skill_uses_before")
    op.create_table(
        "skill_uses",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("retrieval_id", sa.String(), nullable=False),
        sa.Column("outcome_id", sa.String(), nullable=True),
        sa.Column("skill_id", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("helped", sa.Integer(), nullable=True),
        sa.Column("gain", sa.Float(), nullable=True),
        sa.Column("situation", sa.JSON(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["retrieval_id"],
            ["retrievals.id"],
            name="fk_skill_uses_retrieval_id_retrievals",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["skill_id"], ["skills.id"], name="fk_skill_uses_skill_id_skills", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_skill_uses"),
    )
    op.execute(USES)
    op.drop_table("skill_uses_before")
    op.create_index("ix_skill_uses_retrieval_id", "skill_uses", ["retrieval_id"])
    op.create_index(
        "ix_skill_uses_skill_id_role_created_at", "skill_uses", ["skill_id", "role", "created_at"]
    )


def downgrade() -> None:
    op.drop_table("skill_uses")
    op.create_table(
        "skill_uses",
        sa.Column("retrieval_id", sa.String(), nullable=False),
        sa.Column("skill_id", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("helped", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["retrieval_id"],
            ["retrievals.id"],
            name="fk_skill_uses_retrieval_id_retrievals",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["skill_id"], ["skills.id"], name="fk_skill_uses_skill_id_skills", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("retrieval_id", "skill_id", "role", name="pk_skill_uses"),
    )
    op.create_index("ix_skill_uses_skill_id", "skill_uses", ["skill_id"])
    op.drop_index("ix_retrievals_created_at", "retrievals")
    for name in ("helped", "gain", "baseline_speedup"):
        op.drop_column("outcomes", name)
    op.drop_index("ix_skill_links_other_id", "skill_links")
    op.drop_index("ix_skills_state", "skills")
    for name in ("written_at", "last_used_at", "wins", "trials"):
        op.drop_column("skills", name)
