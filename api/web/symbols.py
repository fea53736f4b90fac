"""A name of a chip's language: its card, and the form that corrects it."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from api.bodies import SymbolPatch, validated
from api.http.bodies import signed
from api.http.dependencies import Access, Parts
from api.web.pages import SentForm, page, page_router, see_other
from retrieval.vocabulary import correct_symbol, show_symbol

ACTOR = "web"
TEXTS = ("signature", "meaning", "example")
router = page_router("/ui/symbols")


@router.get("/{symbol_id}")
def show(symbol_id: str, request: Request, parts: Parts, access: Access) -> HTMLResponse:
    """What is known of a name, and where that stands."""
    return page(request, "symbol.html", card=show_symbol(parts, symbol_id, access))


@router.post("/{symbol_id}")
def correct(
    symbol_id: str, request: Request, parts: Parts, access: Access, form: SentForm
) -> Response:
    """Correct the fields that were changed, or decide about a card that a model has proposed."""
    before = show_symbol(parts, symbol_id, access)
    changes: dict[str, Any] = {}
    if form.text("status"):
        changes["status"] = form.text("status")
    else:
        # A browser sends lines with CR LF.
        given = {name: form.text(name).replace("\r\n", "\n") for name in TEXTS}
        changes |= {name: text for name, text in given.items() if text != before[name].strip()}
        lines = form.text("limits").replace("\r\n", "\n").split("\n")
        limits = [line.strip() for line in lines if line.strip()]
        if limits != list(before["limits"]):
            changes["limits"] = limits
    fix = validated(SymbolPatch, changes).model_dump(exclude_none=True)
    if fix:
        correct_symbol(parts, symbol_id, fix, signed(request, ACTOR), access)
    return see_other(request, f"/symbols/{symbol_id}")
