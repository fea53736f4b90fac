"""Lists of runs and the figures of /metrics are read from indexes: with 100,000 runs they took
seconds (benchmarks/results/operation.md)."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
oldest_code = "0013"  # it only adds indexes

INDEXES = {
    "ix_runs_created_at": ("runs", ["created_at"]),
    "ix_runs_hardware_id_created_at": ("runs", ["hardware_id", "created_at"]),
    "ix_runs_state_cost_usd": ("runs", ["state", "cost_usd"]),
    "ix_evaluations_state": ("evaluations", ["state"]),
}


def upgrade() -> None:
    for name, (table, columns) in INDEXES.items():
        op.create_index(name, table, columns)
