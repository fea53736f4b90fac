"""Search over everything: chips, documents, names, skills, runs and signals, by their words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse

from api.http.dependencies import Parts
from api.operations import hardware
from api.services import Services
from api.web.pages import is_fragment, page, page_router
from kb.catalog.runs import RunWhere
from optimizer.search.runs.run_store import list_runs
from retrieval.diagnose.signals import load_signals
from retrieval.documents import page_of_documents
from retrieval.vocabulary import symbols_with_words

MOST = 6  # of each kind
router = page_router("/ui/search")


@dataclass(frozen=True)
class SearchHit:
    """One result: its address below /ui, its name, and a few words about it."""

    link: str
    name: str
    about: str = ""


@router.get("")
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
        [SearchHit(f"/skills/{s.name}", s.name, s.description[:90]) for s in skills[:MOST]],
    )
    runs = list_runs(services, MOST, 0, RunWhere(q))
    yield (
        "Runs",
        [
            SearchHit(f"/runs/{quote(r['run'])}", r["problem"], f"{r['hardware']}, {r['gain']}")
            for r in runs
        ],
    )
