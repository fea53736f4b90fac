"""The first page: what is in the store, and what needs a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

from api.http.dependencies import Access, Parts, Threads
from api.services import Services
from api.web.pages import page, page_router
from ingestion import hardware as chips
from ingestion.progress import JobFilter, list_jobs
from kb.catalog.knowledge import corrections
from kb.catalog.knowledge.corrections import Unfit, no_longer_fit
from kb.scope import AccessScope
from optimizer.search.runs.run_store import count_runs, list_runs
from retrieval.documents import list_documents, list_proposed_recipes, page_of_documents

router = page_router("/ui")


@dataclass(frozen=True)
class Task:
    """Something that waits for a person: how many, what, where, and why it matters."""

    count: int
    what: str
    link: str
    why: str


@router.get("/")
@router.get("")
def home(request: Request, parts: Parts, threads: Threads, access: Access) -> HTMLResponse:
    """Counts, and what needs a person."""
    _, documents = page_of_documents(parts, limit=0, access_scope=access)
    _, skills = parts.skills.page(limit=0, access_scope=access)
    _, waiting = parts.skills.page(
        limit=0, tier="learned", states=("candidate", "suspect"), access_scope=access
    )
    chips_known = [c for c in chips.list_hardware(parts.registry) if c["kind"] == "accelerator"]
    readiness = threads.readiness()
    passages = readiness.passages
    if access.restricted:
        passages = sum(row["passages"] for row in list_documents(parts, access_scope=access))
    counts = (
        ("Chips", len(chips_known), "/hardware"),
        ("Documents", documents, "/documents"),
        ("Passages", passages, "/knowledge"),
        ("Skills", skills, "/skills"),
        ("Runs", count_runs(parts), "/runs"),
    )
    tasks = [*_of_chips(parts), *_of_documents(parts, access), *_of_store(parts, access, waiting)]
    return page(
        request,
        "home.html",
        counts=counts,
        tasks=[task for task in tasks if task.count],
        readiness=None if access.restricted else readiness,  # of the whole store
        runs=list_runs(parts, 5),
    )


def _of_chips(parts: Services) -> list[Task]:
    tasks: list[Task] = []
    names = {spec.id: spec.name for spec in parts.registry.all().values()}
    outdated = chips.outdated_counts(parts.registry)
    for chip, proposed, conflicts in chips.open_questions(parts.registry):
        link = f"/hardware/{chip}"
        why = "A newer version of a manual says something else; what was accepted holds until then."
        what = f"accepted facts of {names[chip]} are from a replaced version"
        tasks.append(Task(outdated.get(chip, 0), what, f"{link}?facts=all#facts", why))
        why = "Accepted facts bound the parameters of kernels; proposed ones are not used."
        tasks.append(
            Task(proposed, f"proposed facts of {names[chip]}", f"{link}?facts=proposed#facts", why)
        )
        why = "Sources give different values. Reject the wrong one."
        tasks.append(
            Task(conflicts, f"conflicts about {names[chip]}", f"{link}?facts=all#facts", why)
        )
    return tasks


def _of_documents(parts: Services, access: AccessScope) -> list[Task]:
    """Documents whose current version has no place for what a person corrected."""
    unfit: dict[str, list[Unfit]] = {}
    with parts.catalog.read() as connection:
        for entry in corrections.unfit(connection, access=access):
            unfit.setdefault(entry.document_id, []).append(entry)
    return [
        Task(
            len(entries),
            f"{no_longer_fit(entries).partition(' ')[2]} the new version of {entries[0].title}",
            f"/documents/{document_id}#corrections",
            "The page shows the old text: make it again, or drop it.",
        )
        for document_id, entries in unfit.items()
    ]


def _of_store(parts: Services, access: AccessScope, skills: int) -> list[Task]:
    recipes: list[dict[str, Any]] = list_proposed_recipes(parts, access_scope=access)
    proposed = sum(recipe["status"] == "proposed" for recipe in recipes)
    jobs = list_jobs(parts, JobFilter(), limit=1, access_scope=access).counts
    return [
        Task(
            skills,
            "learned skills await trials or approval",
            "/skills?tier=learned&state=candidate,suspect",
            "Read the evidence, then approve, quarantine or retire.",
        ),
        Task(
            proposed,
            "proposed recipes",
            "/recipes",
            "Recipes come from code samples of manuals; accept those that are right.",
        ),
        Task(jobs.failed, "documents failed to be read", "/jobs?state=failed", "See why, retry."),
        Task(
            jobs.partial,
            "documents were read in part",
            "/jobs?state=partial",
            "Some pages have gaps; the report names them.",
        ),
    ]
