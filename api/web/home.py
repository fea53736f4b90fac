"""The first page: counts of the store, and tasks for a person."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import HTMLResponse

from api.http.dependencies import Parts
from api.operations import hardware, service
from api.services import Services
from api.web.pages import page, page_router
from ingestion.hardware import open_questions, outdated_counts
from ingestion.progress import list_jobs
from kb.catalog.knowledge import corrections
from kb.catalog.knowledge.corrections import UnfitCorrection, no_longer_fit
from optimizer.search.runs.run_store import count_runs, list_runs
from retrieval.documents import list_documents, list_proposed_recipes, page_of_documents

router = page_router("/ui")


@dataclass(frozen=True)
class HomeTask:
    """Something that waits for a person: how many, what, where, and why it matters."""

    count: int
    what: str
    link: str
    why: str


@router.get("/")
@router.get("")
def home(request: Request, services: Parts) -> HTMLResponse:
    """Counts, and tasks for people."""
    access = services.access
    _, documents = page_of_documents(services, limit=0)
    _, skills = services.skills.page(limit=0, access_scope=access)
    _, waiting = services.skills.page(
        limit=0, tier="learned", states=("candidate", "suspect"), access_scope=access
    )
    chips = hardware.list_hardware(services).hardware
    readiness = service.readyz(services)
    passages = readiness.passages
    if access.restricted:
        passages = sum(row.passages for row in list_documents(services).documents)
    counts = (
        ("Chips", sum(chip.kind == "accelerator" for chip in chips), "/hardware"),
        ("Documents", documents, "/documents"),
        ("Passages", passages, "/knowledge"),
        ("Skills", skills, "/skills"),
        ("Runs", count_runs(services), "/runs"),
    )
    tasks = [*_of_chips(services), *_of_documents(services), *_of_store(services, waiting)]
    return page(
        request,
        "home.html",
        counts=counts,
        tasks=[task for task in tasks if task.count],
        readiness=None if access.restricted else readiness,  # of the whole store
        runs=list_runs(services, 5),
    )


def _of_chips(services: Services) -> list[HomeTask]:
    tasks: list[HomeTask] = []
    names = {spec.id: spec.name for spec in services.registry.all().values()}
    outdated = outdated_counts(services.registry)
    for chip, proposed, conflicts in open_questions(services.registry):
        link = f"/hardware/{chip}"
        why = "A newer version of a manual has other values; accepted ones hold until then."
        what = f"accepted facts of {names[chip]} are from a replaced version"
        tasks.append(HomeTask(outdated.get(chip, 0), what, f"{link}?facts=all#facts", why))
        why = "Accepted facts bound the parameters of kernels; proposed ones are not used."
        tasks.append(
            HomeTask(
                proposed, f"proposed facts of {names[chip]}", f"{link}?facts=proposed#facts", why
            )
        )
        why = "Sources give different values. Reject the wrong one."
        tasks.append(
            HomeTask(conflicts, f"conflicts about {names[chip]}", f"{link}?facts=all#facts", why)
        )
    return tasks


def _of_documents(services: Services) -> list[HomeTask]:
    """Documents with corrections that do not fit their current version."""
    unfit: dict[str, list[UnfitCorrection]] = {}
    with services.catalog.read() as connection:
        for entry in corrections.unfit(connection, access=services.access):
            unfit.setdefault(entry.document_id, []).append(entry)
    return [
        HomeTask(
            len(entries),
            f"{no_longer_fit(entries).partition(' ')[2]} the new version of {entries[0].title}",
            f"/documents/{document_id}#corrections",
            "The page shows the old text: make it again, or drop it.",
        )
        for document_id, entries in unfit.items()
    ]


def _of_store(services: Services, skills: int) -> list[HomeTask]:
    recipes = list_proposed_recipes(services).recipes
    proposed = sum(recipe.status == "proposed" for recipe in recipes)
    jobs = list_jobs(services, limit=1).counts
    return [
        HomeTask(
            skills,
            "learned skills await trials or approval",
            "/skills?tier=learned&state=candidate,suspect",
            "Read the evidence, then approve, quarantine or retire.",
        ),
        HomeTask(
            proposed,
            "proposed recipes",
            "/recipes",
            "Recipes come from code samples of manuals; accept those that are right.",
        ),
        HomeTask(
            jobs.failed, "documents failed to be read", "/jobs?state=failed", "See why, retry."
        ),
        HomeTask(
            jobs.partial,
            "documents were read in part",
            "/jobs?state=partial",
            "Some pages have gaps; the report names them.",
        ),
    ]
