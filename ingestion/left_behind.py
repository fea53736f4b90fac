"""What workers that were stopped have left: jobs that the next one takes over. Knows nothing of how
a document is read.
"""

from __future__ import annotations

from contextlib import suppress

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog.engine import Catalog
from kb.catalog.jobs import Jobs
from kb.catalog.knowledge import versions
from kb.catalog.work import Job
from kb.data_dir import is_alive
from kb.errors import Conflict

ATTEMPTS = 3  # of a job whose worker was killed, which may be the document's doing
READ = ("current", "superseded")  # states of a version whose passages are stored


def take_over(catalog: Catalog, jobs: Jobs) -> None:
    """Take what dead workers left, here or on another machine: it is queued again, to be embedded
    where it was read. What has killed workers ATTEMPTS times fails, in one transaction with its
    version: between the two a version would count as failed whose job is tried again, and the next
    start would queue the same file beside it.
    """
    jobs.expire(lambda owner: is_alive(catalog.data_dir, owner), _fail_version, ATTEMPTS)


def retry_read(catalog: Catalog, jobs: Jobs) -> None:
    """Queue jobs that failed although their document was read, as earlier versions left them when a
    process was stopped while it embedded.
    """
    with catalog.read() as connection:
        read = set(
            connection.execute(
                sa.select(t.document_versions.c.id).where(t.document_versions.c.state.in_(READ))
            ).scalars()
        )
    for job in jobs.in_state("failed"):
        lost = (job.error or {}).get("code") == "lease_expired"
        if lost and job.payload.get("version_id") in read:
            with suppress(Conflict):  # another replica was first
                jobs.retry(job.id)


def _fail_version(connection: Connection, job: Job) -> None:
    """Not staged any more: the same file may be sent again and is then read."""
    versions.fail_version(
        connection, str(job.payload.get("version_id")), {"error": dict(job.error or {})}
    )
