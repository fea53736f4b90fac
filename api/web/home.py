"""The first page, with counts of the store and tasks for a person, and the login."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import shorten
from urllib.parse import quote, urlencode, urlsplit

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from api.http.authorisation import COOKIE, session_of
from api.http.routes import Parts
from api.operations import hardware, service
from api.services import Services
from api.web.pages import SentForm, error_page, is_fragment, page, page_router, see_other
from ingestion.hardware import open_questions, outdated_counts
from ingestion.progress import list_jobs
from kb.catalog.keys import SESSION_SECONDS
from kb.catalog.knowledge import corrections
from kb.catalog.knowledge.corrections import UnfitCorrection, no_longer_fit
from kb.catalog.runs import RunWhere
from kb.errors import KernloreError, Unauthorized
from optimizer.search.runs.run_store import count_runs, list_runs
from retrieval.diagnose.signals import load_signals
from retrieval.documents import list_documents, list_proposed_recipes, page_of_documents
from retrieval.vocabulary import symbols_with_words

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
        chips=chips,
        tasks=[task for task in tasks if task.count],
        readiness=None if access.restricted else readiness,  # of the whole store
        runs=list_runs(services, 5),
    )


def _of_chips(services: Services) -> list[HomeTask]:
    tasks: list[HomeTask] = []
    names = {spec.id: spec.name for spec in services.registry.all().values()}
    outdated = outdated_counts(services.registry)
    for chip, proposed, conflicts in open_questions(services.registry):
        link = f"/hardware/{chip}/facts"
        why = "A newer version of a manual has other values; accepted ones hold until then."
        what = f"accepted facts of {names[chip]} are from a replaced version"
        tasks.append(HomeTask(outdated.get(chip, 0), what, f"{link}?facts=all", why))
        why = "Accepted facts bound the parameters of kernels; proposed ones are not used."
        what = f"proposed {'fact' if proposed == 1 else 'facts'} of {names[chip]}"
        tasks.append(HomeTask(proposed, what, f"{link}?facts=proposed", why))
        why = "Sources give different values. Reject the wrong one."
        what = f"{'conflict' if conflicts == 1 else 'conflicts'} about {names[chip]}"
        tasks.append(HomeTask(conflicts, what, f"{link}?facts=all", why))
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


# -- search over everything: chips, documents, names, skills, runs and signals, by their words

MOST = 6  # of each kind


@dataclass(frozen=True)
class SearchHit:
    """One result: its address below /ui, its name, and a few words about it."""

    link: str
    name: str
    about: str = ""


@router.get("/search")
def search(request: Request, services: Parts, q: str = "") -> HTMLResponse:
    """Results by kind; to a script, without the frame of the page."""
    words = q.strip()[:200]
    groups = [(kind, hits) for kind, hits in _groups(services, words) if hits] if words else []
    template = "search_results.html" if is_fragment(request) else "search.html"
    return page(request, template, q=words, groups=groups, ask=urlencode({"text": words}))


def _groups(services: Services, q: str) -> Iterator[tuple[str, list[SearchHit]]]:
    words = q.lower().split()

    def fits(*texts: str) -> bool:
        text = " ".join(texts).lower()
        return all(word in text for word in words)

    chips = [
        SearchHit(f"/hardware/{chip.id}", chip.name, chip.id)
        for chip in hardware.list_hardware(services).hardware
        if fits(chip.id, chip.name, chip.vendor, *chip.aliases)
    ]
    yield "Hardware", chips[:MOST]
    yield (
        "Signals",
        [
            SearchHit(f"/retrieve?signal={s.id}", s.title, s.id)
            for s in load_signals()
            if fits(s.id, s.title)
        ][:MOST],
    )
    yield (
        "Names",
        [
            SearchHit(f"/symbols/{card.id}", card.name, f"{card.kind}, {', '.join(card.hardware)}")
            for card in symbols_with_words(services, q, MOST)
        ],
    )
    documents, _ = page_of_documents(services, limit=MOST, words=q)
    yield (
        "Documents",
        [SearchHit(f"/documents/{d.id}", d.title, ", ".join(d.hardware)) for d in documents],
    )
    skills = services.skills.list(words=q, access_scope=services.access)
    yield (
        "Skills",
        [
            SearchHit(f"/skills/{s.name}", s.name, shorten(s.description, 90, placeholder=" ..."))
            for s in skills[:MOST]
        ],
    )
    runs = list_runs(services, MOST, 0, RunWhere(q))
    yield (
        "Runs",
        [
            SearchHit(f"/runs/{quote(r['run'])}", r["problem"], f"{r['hardware']}, {r['gain']}")
            for r in runs
        ],
    )


# -- login with a key, and logout, where the store has keys


def refused_page(request: Request, error: KernloreError) -> Response:
    """The login form where a key is missing, else the error."""
    if not isinstance(error, Unauthorized):
        return error_page(request, error)
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    query = f"?{request.url.query}" if request.url.query else ""
    goal = f"{path}{query}" if request.method == "GET" else ""
    return _form(request, goal, error.message, error.status)


@router.get("/login")
def form(request: Request) -> Response:
    """The form itself."""
    return _form(request, "", "", 200)


@router.post("/login")
def log_in(request: Request, services: Parts, sent: SentForm) -> Response:
    """Open a session with a key, and redirect to the page that the browser requested."""
    key = services.keys.find(sent.text("key"))
    goal = local_path(sent.text("next"))
    if key is None:
        message = "This key is not valid: unknown, expired or revoked."
        return _form(request, goal, message, Unauthorized.status)
    secret = services.keys.open_session(key)
    answer = see_other(request, goal.removeprefix("/ui"))
    answer.set_cookie(
        COOKIE,
        secret,
        max_age=SESSION_SECONDS,
        path=request.scope.get("root_path", "") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


@router.post("/logout")
def log_out(request: Request, services: Parts) -> Response:
    """End the session."""
    services.keys.close_session(session_of(request.headers))
    answer = see_other(request, "/login")
    answer.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/")
    return answer


def local_path(goal: str) -> str:
    """A path of the pages, or the first page: a form must not lead to another site."""
    parts = urlsplit(goal)
    inside = parts.path == "/ui" or parts.path.startswith("/ui/")
    if parts.scheme or parts.netloc or not inside or "\\" in goal or len(goal) > 2_000:
        return "/ui"
    return goal


def _form(request: Request, goal: str, message: str, status: int) -> Response:
    return page(request, "login.html", status, goal=goal and local_path(goal), message=message)
