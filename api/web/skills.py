"""Skills: the list with its filters, a skill with its evidence, and a person's decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse

from api.bodies import validated
from api.http.bodies import signed
from api.http.dependencies import Access, Parts
from api.services import Services
from api.skill_bodies import RevisionBody, SkillPatch
from api.web.pages import (
    MAX_PAGE,
    PAGE_SIZE,
    SentForm,
    counted,
    page,
    page_router,
    paged,
    see_other,
)
from ingestion import hardware as chips
from kb.catalog.skills.reading import STATES, TIERS
from kb.errors import KernloreError
from kb.scope import AccessScope
from retrieval.diagnose.signals import load_signals
from skills.lifecycle import change_state
from skills.skill_library import Revision

router = page_router("/ui/skills")
Number = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("")
def list_page(
    request: Request,
    parts: Parts,
    access: Access,
    q: str = "",
    state: str = "",
    tier: str = "",
    hardware: str = "",
    signal: str = "",
    language: str = "",
    number: Number = 1,
) -> HTMLResponse:
    """Skills that fit every filter."""
    wanted: dict[str, Any] = {
        "states": [part.strip() for part in state.split(",")] if state else None,
        "tier": tier or None,
        "hardware": hardware or None,
        "signal": signal or None,
        "language": language or None,
        "access_scope": access,
    }
    if q:
        shown = paged(parts.skills.list(words=q, **wanted), number)
    else:
        rows, total = parts.skills.page(limit=PAGE_SIZE, offset=(number - 1) * PAGE_SIZE, **wanted)
        shown = counted(rows, number, total)
    return page(
        request,
        "skills.html",
        shown=shown,
        given={
            "q": q,
            "state": state,
            "tier": tier,
            "hardware": hardware,
            "signal": signal,
            "language": language,
        },
        states=STATES,
        tiers=TIERS,
        chips=chips.list_hardware(parts.registry),
        signals=list(load_signals()),
        languages=[(name, name) for name in parts.skills.languages(access_scope=access)],
    )


@router.get("/{name}")
def show(name: str, request: Request, parts: Parts, access: Access) -> HTMLResponse:
    """Its text, evidence, sources, links and history."""
    return _shown(name, request, parts, access)


def _shown(
    name: str,
    request: Request,
    parts: Services,
    access: AccessScope,
    error: KernloreError | None = None,
    given: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """The page of a skill; with the refusal of a decision, and what was written in its form."""
    skill = parts.skills.show(name, access_scope=access)
    bounds = [
        bound
        for row in skill.evidence
        for bound in (row.speedup_low or row.speedup, row.speedup_high or row.speedup)
        if bound is not None
    ]
    return page(
        request,
        "skill.html",
        error.status if error else 200,
        skill=skill,
        error=error,
        given=given or {},
        low=min([1.0, *bounds]),
        high=max([1.0, *bounds]),
    )


@router.get("/{name}/revise")
def revise_page(name: str, request: Request, parts: Parts, access: Access) -> HTMLResponse:
    """The text and precondition to change: of the revision that waits, where there is one."""
    return _to_revise(name, request, parts, access)


def _to_revise(
    name: str,
    request: Request,
    parts: Services,
    access: AccessScope,
    error: KernloreError | None = None,
    given: Mapping[str, str] | None = None,
) -> HTMLResponse:
    skill = parts.skills.show(name, access_scope=access)
    waiting = skill.revision
    text = skill if waiting is None else parts.skills.show(waiting, access_scope=access)
    present = {
        "description": text.summary.description,
        "predicate": text.predicate or "",
        "body": text.body,
    }
    status = error.status if error else 200
    values = {"skill": skill, "error": error, "given": given or present}
    return page(request, "skill_revise.html", status, **values)


@router.post("/{name}/revise")
def revise(name: str, request: Request, parts: Parts, access: Access, form: SentForm) -> Response:
    """Change the text or precondition; the page of the candidate that says so."""
    fields = {f: form.text(f) for f in ("actor", "reason", "description", "predicate", "body")}
    try:
        body = validated(RevisionBody, fields)
        revision = Revision(body.description, body.predicate, body.body)
        stored = parts.skills.revise(
            name,
            revision,
            actor=signed(request, body.actor),
            reason=body.reason,
            access_scope=access,
        )
    except KernloreError as error:
        if error.status not in (400, 409):
            raise
        return _to_revise(name, request, parts, access, error, fields)
    return see_other(request, f"/skills/{stored.name}")


@router.post("/{name}")
def decide(name: str, request: Request, parts: Parts, access: Access, form: SentForm) -> Response:
    """Approve, quarantine, retire or restore, with a name and a reason. A refusal is said beside
    the form, which keeps both."""
    fields = {field: form.text(field) for field in ("state", "actor", "reason")}
    try:
        body = validated(SkillPatch, {**fields, "force": form.text("force") == "yes"})
        change_state(
            parts.catalog,
            name,
            body.state,
            actor=signed(request, body.actor),
            reason=body.reason,
            # The tick stands beside every button, and is about one of them.
            force=body.force and body.state == "active",
            access_scope=access,
        )
    except KernloreError as error:
        if error.status not in (400, 409):
            raise
        return _shown(name, request, parts, access, error, fields)
    return see_other(request, f"/skills/{name}#history")
