"""Chips: the list, a chip's page, its facts to decide about, and the context of a first kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from api.http.admission import admitted
from api.http.routes import Parts
from api.operations import documents, hardware
from api.operations.evaluations import evaluate_candidate
from api.operations.retrieve import retrieve
from api.services import CHECK_COMMAND, Services
from api.web.pages import (
    PAGE_SIZE,
    Number,
    SentForm,
    carry_out,
    check_box,
    counted,
    error_page,
    form_route,
    page,
    page_router,
    paged,
    see_other,
)
from ingestion.hardware import FactFilter, ShownFact
from kb.errors import InvalidRequest, KernloreError, NotFound, UnknownHardware
from kb.hardware.facts import fact_keys
from kb.hardware.schema import checked_toml, dump_hardware, hardware_template
from kb.hardware.spec import is_shipped
from kb.scope import CATEGORIES
from optimizer.evaluation.queue import check_in_child
from retrieval.coverage import onboarding_steps
from retrieval.diagnose.signals import load_signals
from retrieval.documents import page_of_documents
from retrieval.request_body import read_body

FIRST_TOKENS = 24_000
ROWS = 25  # of names on a page
MOST_TERMS = 200  # of a lexicon on a page
# Facts of the overview: what bounds a kernel first.
SHOWN_FACTS = (
    "compute_units",
    "shared_memory_per_block",
    "l2_size",
    "memory_size",
    "memory_bandwidth",
    "vector_bits",
    "peak_matrix_bf16",
    "peak_fp32",
    "clock_boost",
)
router = page_router("/ui/hardware")
facts_router = page_router("/ui/facts")


@router.get("")
def list_page(request: Request, services: Parts, q: str = "", add: bool = False) -> HTMLResponse:
    """Every chip with its lineage; `q` is searched in names and aliases, and `add` opens the form
    of a new one."""
    rows = hardware.list_hardware(services).hardware
    words = q.lower().split()
    fitting = [
        row
        for row in rows
        if all(w in f"{row.id} {row.name} {row.vendor} {row.aliases}".lower() for w in words)
    ]
    kinds = ("vendor", "family", "accelerator")
    parents = sorted(rows, key=lambda row: (kinds.index(row.kind), row.name.lower()))
    return page(
        request,
        "hardware_list.html",
        chips=fitting,
        q=q,
        add=add or not fitting,
        parents=[(row.id, f"{row.name} ({row.id})") for row in parents],
    )


@form_route(router, "", hardware.register_hardware)
def add(request: Request, services: Parts, form: SentForm) -> Response:
    """Register a chip by its id; the rest of its description can follow."""
    given: dict[str, Any] = {"id": form.text("id")}
    for name in ("name", "vendor", "parent"):
        if form.text(name):
            given[name] = form.text(name)
    if form.text("languages"):
        given["languages"] = form.listed("languages")
    answer = carry_out(request, services, hardware.register_hardware, description=given)
    return see_other(request, f"/hardware/{answer.id}/setup")


@router.get("/{hardware_id}")
def show(hardware_id: str, request: Request, services: Parts) -> HTMLResponse:
    """Lineage, the steps to a first kernel, counts."""
    chip = hardware.show_hardware(services, hardware_id)
    facts = hardware.list_facts(services, chip.id).facts
    proposed = hardware.list_facts(services, chip.id, "proposed").facts
    return page(
        request,
        "hardware.html",
        chip=chip,
        proposed=len(proposed),
        key_facts=[fact for fact in facts if fact.key in SHOWN_FACTS],
        steps=onboarding_steps(services, chip.id),
        built_in=is_shipped(chip.id, services.settings.knowledge_dir),
    )


@router.get("/{hardware_id}/facts")
def list_facts(
    hardware_id: str,
    request: Request,
    services: Parts,
    facts: FactFilter | None = None,
    q: str = "",
    sort: Literal["", "value", "source", "status"] = "",
    number: Number = 1,
    decided: int = 0,
    status: str = "",
    row: int = -1,
) -> HTMLResponse:
    """Facts with their sources, to filter, to sort and to decide about. By default the proposed
    ones while some wait, else those in use. `row` fills the form of a fact with a row that gave
    none."""
    if facts is None:
        waiting = not q and hardware.list_facts(services, hardware_id, "proposed").facts
        in_use = q or hardware.list_facts(services, hardware_id).facts
        facts = "effective" if in_use and not waiting else "proposed"
    new: dict[str, str] = {}
    if row >= 0:
        unread = hardware.list_facts(services, hardware_id, "proposed").not_read[row : row + 1]
        new = {k: v for found in unread for k, v in vars(found).items()}
        new["locator"] = new.pop("row", "")
    return _facts_page(
        request, services, hardware_id, facts, q, sort, number, done=(decided, status), new=new
    )


def _facts_page(
    request: Request,
    services: Services,
    hardware_id: str,
    chosen: FactFilter,
    q: str = "",
    sort: str = "",
    number: int = 1,
    done: tuple[int, str] = (0, ""),
    error: KernloreError | None = None,
    new: Mapping[str, str] | None = None,
) -> HTMLResponse:
    chip = hardware.show_hardware(services, hardware_id)
    listed = hardware.list_facts(services, chip.id, chosen)
    proposed = hardware.list_facts(services, chip.id, "proposed")
    named = (new or {}).get("document_id")
    title = next((row.title for row in proposed.not_read if row.document_id == named), "")
    words = q.lower().split()
    rows = [
        fact
        for fact in listed.facts
        if all(w in f"{fact.key} {fact.text} {fact.title} {fact.subject}".lower() for w in words)
    ]
    keys: dict[str, Callable[[ShownFact], Any]] = {
        "value": lambda fact: (fact.unit, -(fact.number or 0.0)),
        "source": lambda fact: fact.title,
        "status": lambda fact: fact.status,
    }
    if sort in keys:
        rows.sort(key=keys[sort])
    return page(
        request,
        "facts.html",
        error.status if error else 200,
        chip=chip,
        chosen=chosen,
        facts=listed,
        waiting=len(proposed.facts),
        not_read=proposed.not_read,
        probes=hardware.show_probes(services, chip.id),
        documents=page_of_documents(services, limit=0, hardware=chip.id)[1],
        shown=paged(rows, number),
        given={"facts": chosen, "q": q, "sort": sort},
        done=done,
        error=error,
        new={"title": title, **(new or {})},
        keys=fact_keys().values(),
    )


@form_route(router, "/{hardware_id}/facts/new", hardware.add_fact)
def add_fact(hardware_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """State a fact, of a row that gave none or of no document; an error is shown with the form."""
    names = ("key", "text", "document_id", "locator")
    given = {name: form.text(name) for name in names if form.text(name)}
    try:
        carry_out(request, services, hardware.add_fact, hardware_id=hardware_id, **given)
    except KernloreError as error:
        if error.status >= 500 or error.status == UnknownHardware.status:
            raise
        return _facts_page(request, services, hardware_id, "proposed", error=error, new=given)
    told = urlencode({"facts": "proposed", "decided": 1, "status": "added"})
    return see_other(request, f"/hardware/{hardware_id}/facts?{told}")


@router.get("/{hardware_id}/documents")
def list_documents_page(
    hardware_id: str, request: Request, services: Parts, q: str = "", number: Number = 1
) -> HTMLResponse:
    """The documents about exactly this chip."""
    chip = hardware.show_hardware(services, hardware_id)
    rows, total = page_of_documents(
        services, limit=PAGE_SIZE, offset=(number - 1) * PAGE_SIZE, hardware=chip.id, words=q[:400]
    )
    return page(request, "chip_documents.html", chip=chip, q=q, shown=counted(rows, number, total))


@router.get("/{hardware_id}/coverage")
def coverage_page(hardware_id: str, request: Request, services: Parts) -> HTMLResponse:
    """What the stored knowledge covers: a map of topics and signals, and the gaps."""
    chip = hardware.show_hardware(services, hardware_id)
    coverage = hardware.show_coverage(services, chip.id)
    topics = {topic.id: topic for topic in coverage.topics}
    lexicon = hardware.list_lexicon(services, chip.id)
    helping = {s.id: [topics[t] for t in s.topics if t in topics] for s in load_signals()}
    return page(
        request,
        "coverage.html",
        chip=chip,
        coverage=coverage,
        rows=[(signal, helping[signal.id]) for signal in coverage.signals],
        lexicon=lexicon,
        terms=sorted(lexicon.terms, key=lambda term: -term.passages)[:MOST_TERMS],
        built_in=is_shipped(chip.id, services.settings.knowledge_dir),
    )


@form_route(router, "/{hardware_id}/lexicon", hardware.correct_term)
def correct_term(hardware_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Store the meaning of a term on the chip."""
    term, concept = form.text("term"), form.text("concept")
    hardware.correct_term(services, hardware_id, term, None if concept == "as read" else concept)
    return see_other(request, f"/hardware/{hardware_id}/coverage#lexicon")


@form_route(router, "/{hardware_id}/remove", hardware.remove_hardware)
def remove(hardware_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Remove the chip; the box of the form must be ticked."""
    check_box(form, "nothing was removed")
    with_documents = form.text("documents") == "yes"
    hardware.remove_hardware(services, hardware_id, with_documents=with_documents)
    return see_other(request, "/hardware")


@form_route(router, "/{hardware_id}/facts", hardware.decide_facts)
def decide(hardware_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Accept or reject the ticked facts, or take their corrections back."""
    chip = hardware.show_hardware(services, hardware_id).id
    ids, status = form.values("ids"), form.text("status")
    shown: FactFilter = "all" if status == "withdrawn" else "proposed"
    try:
        if not ids:
            raise InvalidRequest(
                "no fact is marked", hint="Mark the facts in the first column, then press again."
            )
        if status == "withdrawn":
            for fact_id in ids:
                carry_out(request, services, hardware.decide_fact, fact_id=fact_id, withdraw=True)
        else:
            carry_out(
                request,
                services,
                hardware.decide_facts,
                hardware_id=chip,
                status=status,
                ids=ids,
                include_unclear=True,
            )
    except KernloreError as error:
        if error.status >= 500:
            raise
        return _facts_page(request, services, chip, shown, error=error)
    told = urlencode({"facts": shown, "decided": len(ids), "status": status})
    return see_other(request, f"/hardware/{chip}/facts?{told}")


@facts_router.get("/{fact_id}")
def fact_page(fact_id: str, request: Request, services: Parts) -> HTMLResponse:
    """One fact: value, source, the value before a correction, and the form that corrects it."""
    return _fact_page(request, services, fact_id)


def _fact_page(
    request: Request,
    services: Services,
    fact_id: str,
    error: KernloreError | None = None,
    given: str | None = None,
) -> HTMLResponse:
    fact = hardware.show_fact(services, fact_id)
    chip = hardware.show_hardware(services, fact.hardware_id)
    known = fact_keys().get(fact.key)
    return page(
        request,
        "fact.html",
        error.status if error else 200,
        fact=fact,
        chip=chip,
        meaning=known.meaning if known else "",
        range=known.range if known else None,
        others=[
            other
            for other in hardware.list_facts(services, chip.id, "all", key=fact.key).facts
            if other.id != fact.id
        ],
        given=given,
        error=error,
    )


@form_route(facts_router, "/{fact_id}", hardware.decide_fact)
def correct_fact(fact_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Correct the value, decide, or take a correction back; an error is shown with the form."""
    changes: dict[str, Any] = {}
    if form.text("status") == "withdrawn":
        changes["withdraw"] = True
    elif form.text("status"):
        changes["status"] = form.text("status")
    else:
        changes["text"] = form.text("value")
        if form.text("note"):
            changes["note"] = form.text("note")
    try:
        carry_out(request, services, hardware.decide_fact, fact_id=fact_id, **changes)
    except KernloreError as error:
        if error.status >= 500 or error.status == NotFound.status:
            raise
        return _fact_page(request, services, fact_id, error, form.text("value"))
    return see_other(request, f"/facts/{fact_id}")


@router.get("/{hardware_id}/symbols")
def symbols(
    hardware_id: str,
    request: Request,
    services: Parts,
    q: str = "",
    status: Literal["", "proposed", "rejected"] = "",
    number: Number = 1,
) -> HTMLResponse:
    """The names of a chip's languages, searched and paged."""
    chip = hardware.show_hardware(services, hardware_id)
    rows = hardware.list_symbols(services, chip.id, q[:400], status=status or "accepted").symbols
    return page(
        request,
        "symbols.html",
        chip=chip,
        q=q,
        status=status,
        statuses=("proposed", "rejected"),
        shown=paged(rows, number, ROWS),
    )


@router.get("/{hardware_id}/samples")
def samples(
    hardware_id: str, request: Request, services: Parts, operator: str = "", number: Number = 1
) -> HTMLResponse:
    """Whole kernels for a chip."""
    chip = hardware.show_hardware(services, hardware_id)
    rows = hardware.list_samples(services, chip.id, operator).samples
    shown = paged(rows, number, 2)  # whole kernels take 80 KB each, highlighted
    return page(request, "samples.html", chip=chip, operator=operator, shown=shown)


@router.get("/{hardware_id}/acceptance")
def acceptance(hardware_id: str, request: Request, services: Parts) -> HTMLResponse:
    """The last acceptance test of the chip's manuals, or how to make one."""
    chip = hardware.show_hardware(services, hardware_id)
    try:
        result = hardware.show_acceptance(services, chip.id)
    except NotFound:
        result = None
    return page(request, "acceptance.html", chip=chip, result=result)


@router.get("/{hardware_id}/first-prompt", dependencies=[Depends(admitted, scope="function")])
def first_prompt(
    hardware_id: str,
    request: Request,
    services: Parts,
    op: Annotated[str, Query(max_length=200)] = "matmul",
    language: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    """The context that an optimizer gets before its first kernel."""
    chip = hardware.show_hardware(services, hardware_id)
    body: dict[str, Any] = {
        "task": "write",
        "hardware": chip.id,
        "max_tokens": FIRST_TOKENS,
        "fields": ["context", "parts"],
    }
    body |= {"op": op} if op else {}
    body |= {"language": language} if language else {}
    answer = retrieve(services, read_body(body))
    return page(
        request, "first_prompt.html", chip=chip, op=op, language=language, answer=asdict(answer)
    )


# -- from the id of a chip to its first kernel: its steps, its description, the check of its tools

ORIGIN = "the form"


@router.get("/{hardware_id}/setup")
def setup(hardware_id: str, request: Request, services: Parts) -> HTMLResponse:
    """The steps of onboarding a chip, with their requirements."""
    return page(request, "setup.html", **_shown(services, hardware_id))


def _shown(services: Services, hardware_id: str) -> dict[str, Any]:
    chip = hardware.show_hardware(services, hardware_id)
    listed = documents.list_jobs(services, hardware=chip.id, limit=20)
    return {
        "chip": chip,
        "counts": listed.counts,
        "steps": onboarding_steps(services, chip.id),
        "jobs": listed.jobs,
        "chips": hardware.list_hardware(services).hardware,
        "categories": CATEGORIES,
        "settings": services.settings,
        "description": dump_hardware(services.registry.get(chip.id)),
        "template": hardware_template(chip.id),
        "checked": None,
        "error": None,
    }


@form_route(router, "/{hardware_id}/description", hardware.register_hardware)
def describe(hardware_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Replace the description by the text of a hardware.toml; an error is shown with the text."""
    text = next(iter(form.values("description")), "").replace("\r\n", "\n")
    shown = _shown(services, hardware_id)
    chip = shown["chip"].id
    try:
        services.register_hardware(_read(text, chip), ORIGIN)
    except KernloreError as error:
        if error.status >= 500:
            return error_page(request, error)
        return page(
            request, "setup.html", error.status, **shown | {"error": error, "description": text}
        )
    return see_other(request, f"/hardware/{chip}/setup#toolchain")


def _read(text: str, hardware_id: str) -> dict[str, Any]:
    described = checked_toml(text, ORIGIN)
    if described["id"] != hardware_id:
        raise InvalidRequest(
            f"the text describes {described['id']!r}, and this page is about {hardware_id!r}",
            hint=f'Write id = "{hardware_id}", or add the other chip first.',
        )
    return described


# It compiles and runs a kernel here, so it needs the role of an evaluation.
@form_route(router, "/{hardware_id}/check", evaluate_candidate)
def check(hardware_id: str, request: Request, services: Parts) -> HTMLResponse:
    """Compile and run the sample kernel with the chip's own tools, and name missing tools."""
    shown = _shown(services, hardware_id)
    checked = check_in_child(services.settings, CHECK_COMMAND, shown["chip"].id)
    return page(request, "setup.html", **shown | {"checked": checked})
