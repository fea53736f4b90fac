"""The signals, and the tree of knowledge."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from api.http.dependencies import Access, Parts
from kb.catalog.knowledge import proposed_recipes
from kb.plain import plain
from retrieval.diagnose.signals import load_signals

router = APIRouter(tags=["knowledge"])


@router.get("/signals", summary="Every run-time signal")
def signals() -> dict[str, Any]:
    return {"signals": [plain(signal) for signal in load_signals()]}


@router.get("/knowledge", summary="One place in the tree of knowledge")
def knowledge(
    parts: Parts,
    access: Access,
    path: Annotated[
        str, Query(description="As hardware/h100/memory; empty: the top.", max_length=2000)
    ] = "",
) -> JSONResponse:
    """category / hardware / topic / document / section, with counts."""
    from retrieval.knowledge_tree import knowledge_node

    return JSONResponse(knowledge_node(parts.catalog, parts.registry, path, access).as_json())


@router.get("/knowledge/recipes", summary="Recipes proposed from the samples of manuals")
def recipes(
    parts: Parts,
    access: Access,
    hardware: Annotated[str, Query(description="Of this chip and those above it.")] = "",
) -> dict[str, Any]:
    """Only a search on the manual's own hardware uses them; none is a skill."""
    lineage = None
    if hardware:
        lineage = parts.registry.lineage(parts.registry.resolve(hardware))
    with parts.catalog.read() as connection:
        found = proposed_recipes.listed(connection, lineage, access_scope=access)
    return {"recipes": [plain(recipe) for recipe in found]}
