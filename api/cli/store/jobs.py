"""`kernlore jobs`: how far the reading of a document is, and reading it again after a failure."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.backends import open_target
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, pairs, show
from api.cli.store.watch import Entry, read_all

app = typer.Typer(help="The reading of documents, job by job.")

JobId = Annotated[str, typer.Argument(help="The job_id of an upload.")]


@app.command("show")
def show_(
    job_id: JobId, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """State, progress and result of one job."""
    with open_target(data_dir, url) as target:
        found = target.job(job_id)
    show(found, as_json, _one)


@app.command("retry")
def retry(
    job_id: JobId, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Do a failed job again and wait for its end."""
    with open_target(data_dir, url) as target:
        target.retry_job(job_id)
        entry = Entry(name=job_id, outcome="retried", job_id=job_id)
        read_all(target, [entry], quiet=as_json)
        found = target.job(job_id)
    show(found, as_json, _one)
    if found["state"] == "failed":
        raise typer.Exit(1)


def _one(job: Json) -> str:
    kept = ("id", "state", "kind", "document_id", "attempts", "created_at", "finished_at")
    lines = {key: job.get(key) for key in kept}
    error = job.get("error") or {}
    lines |= {"progress": job.get("progress"), "result": job.get("result")}
    lines |= {"error": error.get("message"), "hint": error.get("hint")}
    return pairs(lines)
