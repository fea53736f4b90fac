"""A name of a chip's language: its card, and the form that corrects it."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from api.http.dependencies import Parts
from api.operations import hardware
from api.web.pages import SentForm, carry_out, form_route, page, page_router, see_other
from retrieval.vocabulary import show_symbol

TEXTS = ("signature", "meaning", "example")
router = page_router("/ui/symbols")


@router.get("/{symbol_id}")
def show(symbol_id: str, request: Request, services: Parts) -> HTMLResponse:
    """The card of a name with its source."""
    return page(request, "symbol.html", card=show_symbol(services, symbol_id))


@form_route(router, "/{symbol_id}", hardware.correct_symbol)
def correct(symbol_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Correct the fields that were changed, or decide about a card that a model has proposed."""
    before = show_symbol(services, symbol_id)
    changes: dict[str, Any] = {}
    if form.text("status"):
        changes["status"] = form.text("status")
    else:
        # A browser sends lines with CR LF.
        given = {name: form.text(name).replace("\r\n", "\n") for name in TEXTS}
        changes |= {
            name: text for name, text in given.items() if text != getattr(before, name).strip()
        }
        lines = form.text("limits").replace("\r\n", "\n").split("\n")
        limits = [line.strip() for line in lines if line.strip()]
        if limits != list(before.limits):
            changes["limits"] = limits
    if changes:
        carry_out(request, services, hardware.correct_symbol, symbol_id=symbol_id, **changes)
    return see_other(request, f"/symbols/{symbol_id}")
