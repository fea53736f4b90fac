"""The signals, the tree of knowledge, and the recipes proposed from manuals."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse

from api.http.dependencies import Access, Parts, api_router
from kb.plain import plain
from retrieval.diagnose.signals import load_signals
from retrieval.documents import list_proposed_recipes

router = api_router("knowledge")


@router.get("/signals", summary="List the run-time signals")
def signals() -> dict[str, Any]:
    """A signal names what went wrong with a kernel, such as `memory_bound`."""
    return {"signals": [plain(signal) for signal in load_signals()]}


@router.get("/knowledge", summary="Show one place in the tree of knowledge")
def knowledge(
    parts: Parts,
    access: Access,
    path: Annotated[
        str, Query(description="Like hardware/h100/memory. Empty: the root.", max_length=2000)
    ] = "",
) -> JSONResponse:
    """The levels are category, hardware, topic, document and section, each with counts."""
    from retrieval.knowledge_tree import knowledge_node

    return JSONResponse(knowledge_node(parts.catalog, parts.registry, path, access).as_json())


@router.get("/knowledge/recipes", summary="List recipes proposed from code samples of manuals")
def recipes(
    parts: Parts,
    access: Access,
    hardware: Annotated[
        str, Query(description="Only recipes for this chip, its family or its vendor.")
    ] = "",
) -> dict[str, Any]:
    """Only a search on the manual's own hardware uses them; none of them is a skill."""
    return {"recipes": list_proposed_recipes(parts, hardware, access_scope=access)}
