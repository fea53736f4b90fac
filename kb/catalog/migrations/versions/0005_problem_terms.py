"""Scopes of skills in the words of kb.problem_terms"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def upgrade() -> None:
    _rename(DTYPES)


def downgrade() -> None:
    _rename({new: old for old, new in DTYPES.items()})


def _rename(names: dict[str, str]) -> None:
    for old, new in names.items():
        op.execute(
            sa.text(
                "UPDATE skill_scopes SET value = :new WHERE kind = 'dtype' AND value = :old"
            ).bindparams(new=new, old=old)
        )
