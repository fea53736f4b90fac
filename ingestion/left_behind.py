"""What workers that were stopped have left: jobs that the next one takes over. Knows nothing of how
a document is read.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.jobs import Job, Jobs
from kb.catalog.knowledge import versions
from kb.catalog.tables import knowledge as t
from kb.liveness import lives

BUILTIN_ATTEMPTS = 3
READ = ("current", "superseded")  # states of a version whose passages are stored


def take_over(catalog: Catalog, jobs: Jobs) -> None:
    """Take what dead workers left: what they had read is queued to be embedded, the rest fails.
    Built-in documents are queued again: nobody else would.
    """
    for job_id in jobs.expire(lambda owner: lives(catalog.data_dir, owner), _fail_version):
        job = jobs.get(job_id)
        with catalog.read() as connection:
            origin = connection.execute(
                sa.select(t.documents.c.origin).where(t.documents.c.id == job.subject_id)
            ).scalar()
        if origin == "builtin" and job.attempts < BUILTIN_ATTEMPTS:
            jobs.retry(job_id)


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
            jobs.retry(job.id)


def _fail_version(connection: Connection, job: Job) -> None:
    """Not staged any more: the same file may be sent again and is then read."""
    versions.fail(connection, str(job.payload.get("version_id")), {"error": dict(job.error or {})})
