"""What is being read: all jobs with their counts, one job, and a second attempt."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from api.http.dependencies import Access, Parts, api_router
from ingestion.progress import MAX_LIMIT, DocumentJob, JobFilter, JobPage
from ingestion.progress import list_jobs as jobs_of
from ingestion.progress import retry_job as queue_again
from ingestion.progress import show_job as job_of
from kb.catalog.jobs import JobState

router = api_router("documents")


@router.get("/jobs", summary="List jobs, newest first, with counts")
def list_jobs(
    parts: Parts,
    access: Access,
    state: Annotated[
        list[JobState] | None, Query(description="Only jobs in this state; repeat for several.")
    ] = None,
    hardware: Annotated[
        str, Query(description="Only jobs of documents about this hardware (id, name or alias).")
    ] = "",
    group: Annotated[
        str, Query(description="Only jobs of this group, which an upload names or is given.")
    ] = "",
    ended_since: Annotated[
        str, Query(description="Only jobs with this `finished_at` or a later one.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Jobs to return.")] = 100,
    cursor: Annotated[str, Query(description="`cursor` of the page before.")] = "",
) -> JobPage:
    """`counts` are of all jobs of the hardware and group, whatever the other filters: one request
    says how far an upload is. `cursor` asks for the next page, and is null on the last."""
    asked = JobFilter(tuple(state or ()), hardware or None, group or None, ended_since or None)
    return jobs_of(parts, asked, limit=limit, cursor=cursor or None, access_scope=access)


@router.get("/jobs/{job_id}", summary="Show how far a job is")
def show_job(job_id: str, parts: Parts, access: Access) -> DocumentJob:
    """`state` is queued, running, ready, partial or failed. `error` says why a job failed."""
    return job_of(parts, job_id, access_scope=access)


@router.post("/jobs/{job_id}/retry", summary="Queue a failed job again", status_code=202)
def retry_job(job_id: str, parts: Parts, access: Access) -> DocumentJob:
    """409 for a job that has not failed."""
    return queue_again(parts, job_id, access_scope=access)
