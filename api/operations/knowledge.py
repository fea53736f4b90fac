"""The signals, the tree of knowledge, and the recipes proposed from manuals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from api.operations import operation
from retrieval import documents
from retrieval.coverage import delivered_kernels
from retrieval.diagnose.signals import Signal, load_signals
from retrieval.knowledge_tree import knowledge_node
from retrieval.knowledge_validity import knowledge_validity

if TYPE_CHECKING:
    from api.services import Services

declared = partial(operation, tag="knowledge")


@dataclass(frozen=True)
class Signals:
    """The run-time signals."""

    signals: tuple[Signal, ...]


@declared("GET /signals", "List the run-time signals", static=True)
def list_signals(services: Services) -> Signals:
    """A signal names what went wrong with a kernel, such as `memory_bound`."""
    return Signals(tuple(load_signals()))


show_knowledge = declared("GET /knowledge", "Show one place in the tree of knowledge")(
    knowledge_node
)
list_delivered = declared(
    "GET /knowledge/delivered", "List the whole kernels that reach contexts", computes=True
)(delivered_kernels)
show_validity = declared(
    "GET /knowledge/validity", "Show what of the knowledge holds with which tools"
)(knowledge_validity)
list_recipes = declared(
    "GET /knowledge/recipes", "List recipes proposed from code samples of manuals"
)(documents.list_proposed_recipes)
decide_recipe = declared(
    "PATCH /knowledge/recipes/{recipe_id}",
    "Accept or reject a proposed recipe",
    role="curator",
    body=("RecipePatch", "A decision about a proposed recipe."),
)(documents.decide_proposed_recipe)
