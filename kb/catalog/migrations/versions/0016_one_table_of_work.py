"""One table of work for jobs, sent evaluations, trajectories and runs, in place of four. Code of
older releases cannot work with it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
oldest_code = "0016"

INDEXES = {
    "ix_work_subject_id": ["subject_id"],
    "ix_work_kind_state_created_at": ["kind", "state", "created_at"],
    "ix_work_kind_state_behind_share_created_at": [
        "kind",
        "state",
        "behind",
        "share",
        "created_at",
    ],
    "ix_work_kind_share_started_at": ["kind", "share", "started_at"],
    "ix_work_group_id_created_at": ["group_id", "created_at"],
}
_JOB_COLUMNS = (
    "id, kind, state, subject_id, payload, progress, result, error, attempts, lease_owner,"
    " lease_expires_at, heartbeat_at, created_at, started_at, finished_at, access_scope, group_id,"
    " share, behind, passages, passages_done"
)
# States of runs without a process, by the former owner.
_STATES_OF_OWNERS = {"starting": "queued", "cancelled": "failed"}


def upgrade() -> None:
    _create_work()
    op.execute(f"INSERT INTO work ({_JOB_COLUMNS}) SELECT {_JOB_COLUMNS} FROM jobs")
    shared = "id, state, error, attempts, lease_owner, lease_expires_at, created_at, started_at"
    shared += ", finished_at, access_scope"
    op.execute(
        f"INSERT INTO work ({shared}, kind, payload, result) SELECT {shared}, 'evaluation',"
        " submission, CASE WHEN result IS NULL OR result = 'null' THEN '{}' ELSE result END"
        " FROM submissions"
    )
    _move_trajectories(op.get_bind())
    _move_run_processes(op.get_bind())
    for table in ("jobs", "submissions", "run_processes"):
        op.drop_table(table)
    op.drop_column("trajectories", "state")


def _move_trajectories(connection: sa.Connection) -> None:
    rows = connection.execute(
        sa.text("SELECT id, state, summary, created_at, access_scope FROM trajectories")
    )
    for row in rows.all():
        # It may contain infinite numbers, which no SQL function reads.
        summary = json.loads(row.summary)
        owner, until = summary.pop("worker", None), summary.pop("lease_expires_at", None)
        _insert(
            connection,
            id=row.id,
            kind="trajectory",
            state=row.state,
            lease_owner=owner,
            lease_expires_at=until,
            created_at=row.created_at,
            access_scope=row.access_scope,
        )
        connection.execute(
            sa.text("UPDATE trajectories SET summary = :summary WHERE id = :id"),
            {"summary": json.dumps(summary), "id": row.id},
        )


def _move_run_processes(connection: sa.Connection) -> None:
    for row in connection.execute(sa.text("SELECT * FROM run_processes")).all():
        began = datetime.fromtimestamp(row.began, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        state = _STATES_OF_OWNERS.get(row.owner, "running")
        payload = {name: getattr(row, name) for name in ("place", "pid", "began", "seconds")}
        _insert(
            connection,
            id=row.run_id,
            kind="run",
            state=state,
            payload=json.dumps(payload),
            lease_owner=row.owner if state == "running" else None,
            lease_expires_at=row.lease_expires_at,
            created_at=began,
            started_at=began,
        )


def _insert(connection: sa.Connection, **values: Any) -> None:
    names, places = ", ".join(values), ", ".join(f":{name}" for name in values)
    connection.execute(sa.text(f"INSERT INTO work ({names}) VALUES ({places})"), values)


def _create_work() -> None:
    op.create_table(
        "work",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("subject_id", sa.String, nullable=True),
        sa.Column("payload", sa.JSON, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("progress", sa.JSON, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("result", sa.JSON, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("error", sa.JSON, nullable=True),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("lease_owner", sa.String, nullable=True),
        sa.Column("lease_expires_at", sa.String, nullable=True),
        sa.Column("heartbeat_at", sa.String, nullable=True),
        sa.Column("created_at", sa.String, nullable=False),
        sa.Column("started_at", sa.String, nullable=True),
        sa.Column("finished_at", sa.String, nullable=True),
        sa.Column("access_scope", sa.String, nullable=False, server_default=sa.text("'all'")),
        sa.Column("group_id", sa.String, nullable=True),
        sa.Column("share", sa.String, nullable=False, server_default=""),
        sa.Column("behind", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("passages", sa.Integer, nullable=True),
        sa.Column("passages_done", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("id", name="pk_work"),
    )
    for index, columns in INDEXES.items():
        op.create_index(index, "work", columns)
