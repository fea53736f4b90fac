"""Skills: the list with its filters, a skill with its evidence, and a person's decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from api.http.routes import Parts
from api.operations import skills
from api.operations.hardware import list_hardware as hardware_of
from api.services import Services
from api.web.pages import (
    Number,
    SentForm,
    carry_out,
    counted,
    form_route,
    page,
    page_router,
    paged,
    see_other,
)
from kb.catalog.skills.reading import STATES, TIERS
from kb.catalog.skills.shipped import EFFECTS
from kb.errors import Conflict, InvalidRequest, KernloreError
from retrieval.diagnose.signals import load_signals
from skills.skill_library import ORDERS

CARDS = 24  # on a page
router = page_router("/ui/skills")


@router.get("")
def list_page(
    request: Request,
    services: Parts,
    q: str = "",
    state: str = "",
    tier: str = "",
    hardware: str = "",
    signal: str = "",
    language: str = "",
    effect: str = "",
    order: str = "name",
    number: Number = 1,
) -> HTMLResponse:
    """Skills that fit every filter."""
    wanted: dict[str, Any] = {
        "states": [part.strip() for part in state.split(",")] if state else None,
        "tier": tier or None,
        "hardware": hardware or None,
        "signal": signal or None,
        "language": language or None,
        "effect": effect or None,
        "order": order,
        "access_scope": services.access,
    }
    if q:
        shown = paged(services.skills.list(words=q, **wanted), number, CARDS)
    else:
        rows, total = services.skills.page(limit=CARDS, offset=(number - 1) * CARDS, **wanted)
        shown = counted(rows, number, total, CARDS)
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
            "effect": effect,
            "order": order,
        },
        effects=EFFECTS,
        orders=ORDERS,
        states=STATES,
        tiers=TIERS,
        chips=hardware_of(services).hardware,
        signals=list(load_signals()),
        languages=[
            (name, name) for name in services.skills.languages(access_scope=services.access)
        ],
    )


@router.get("/{name}")
def show(name: str, request: Request, services: Parts) -> HTMLResponse:
    """Its text, evidence, sources, links and history."""
    return _shown(name, request, services)


def _shown(
    name: str,
    request: Request,
    services: Services,
    error: KernloreError | None = None,
    given: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """The page of a skill. After a refused decision, with the error and the fields of its form."""
    skill = skills.show_skill(services, name)
    bounds = [
        bound
        for row in skill.evidence
        for bound in (row.speedup_low or row.speedup, row.speedup_high or row.speedup)
        if bound is not None
    ]
    bounds += [bound for row in skill.gains if row.gain for bound in (row.gain.low, row.gain.high)]
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
def revise_page(name: str, request: Request, services: Parts) -> HTMLResponse:
    """The form for text and precondition, filled from the waiting revision or the skill."""
    return _to_revise(name, request, services)


def _to_revise(
    name: str,
    request: Request,
    services: Services,
    error: KernloreError | None = None,
    given: Mapping[str, str] | None = None,
) -> HTMLResponse:
    skill = skills.show_skill(services, name)
    waiting = skill.revision
    text = skill if waiting is None else skills.show_skill(services, waiting)
    present = {
        "description": text.summary.description,
        "predicate": text.predicate or "",
        "body": text.body,
    }
    status = error.status if error else 200
    values = {"skill": skill, "error": error, "given": given or present}
    return page(request, "skill_revise.html", status, **values)


@form_route(router, "/{name}/revise", skills.revise_skill)
def revise(name: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Change the text or precondition, and show the candidate that has it."""
    fields = {f: form.text(f) for f in ("actor", "reason", "description", "predicate", "body")}
    try:
        stored = carry_out(request, services, skills.revise_skill, name=name, **fields)
    except (InvalidRequest, Conflict) as error:
        return _to_revise(name, request, services, error, fields)
    return see_other(request, f"/skills/{stored.name}")


@form_route(router, "/{name}", skills.change_skill)
def decide(name: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Approve, quarantine, retire or restore, with a name and a reason. An error is shown with the
    form, which keeps both."""
    fields = {field: form.text(field) for field in ("state", "actor", "reason")}
    # Every form has the box; it applies to approvals only.
    force = form.text("force") == "yes" and fields["state"] == "active"
    try:
        carry_out(request, services, skills.change_skill, name=name, force=force, **fields)
    except (InvalidRequest, Conflict) as error:
        return _shown(name, request, services, error, fields)
    return see_other(request, f"/skills/{name}#history")


@form_route(router, "/{name}/narrow", skills.narrow_skill)
def narrow(name: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Leave a part out of the scope. An error is shown with the form, which keeps its fields."""
    fields = {f: form.text(f) for f in ("actor", "reason", "key", "value", "below", "at_least")}
    given: dict[str, Any] = {key: value for key, value in fields.items() if value}
    try:
        given |= {key: _number(given[key]) for key in ("below", "at_least") if key in given}
        carry_out(request, services, skills.narrow_skill, name=name, **given)
    except (InvalidRequest, Conflict) as error:
        return _shown(name, request, services, error, fields)
    return see_other(request, f"/skills/{name}#history")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"{text!r} is no number", hint="Write it as 4096 or 0.5.") from None


@form_route(router, "/{name}/merge", skills.merge_skill)
def merge(name: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Retire the skill in favour of another one, which is shown then."""
    fields = {f: form.text(f) for f in ("actor", "reason", "into")}
    try:
        carry_out(request, services, skills.merge_skill, name=name, **fields)
    except (InvalidRequest, Conflict) as error:
        return _shown(name, request, services, error, fields)
    return see_other(request, f"/skills/{fields['into']}#history")
