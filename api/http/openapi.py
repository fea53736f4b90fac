"""The OpenAPI description: schemas of the bodies, and an example for every signal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from api.operations import Download, Operation, operations
from kb.errors import ErrorBody
from kb.settings import product_version
from retrieval.diagnose.signals import load_signals

TITLE = "Kernlore"
DESCRIPTION = """A knowledge service for optimizing GPU kernels. Upload the manuals of a chip, ask
with what went wrong at run time, and get cited excerpts, moves and skills for that very hardware.

Every error has one shape: `{code, message, hint, details}`. An unknown hardware id is answered with
404 and the nearest known ids, and an answer never contains anything about another chip."""
TAGS = [
    {"name": "retrieve", "description": "Ask, and report whether the answer helped."},
    {"name": "knowledge", "description": "Run-time signals, and the tree of knowledge."},
    {"name": "documents", "description": "Upload, watch, read, correct and remove manuals."},
    {"name": "hardware", "description": "Chips, their lineage, facts and coverage."},
    {"name": "skills", "description": "Measured transformations of kernels."},
    {"name": "evaluations", "description": "Check and time a kernel."},
    {"name": "runs", "description": "Searches for a faster kernel."},
    {"name": "trajectories", "description": "Searches of other optimizers, evaluated here."},
    {"name": "service", "description": "Health, readiness and metrics."},
]
# Not as a model: FastAPI would make a validator of it for each route, in a tenth of a second.
_ERROR = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "content": _ERROR,
        "description": "The request is refused; the error says how to correct it.",
    },
    "5XX": {"content": _ERROR, "description": "The service failed, or is not ready yet."},
}


# Operation ids of the interface that differ from the name of the operation. Generated clients
# contain them, so that they do not change.
OPERATION_IDS = {
    "retrieve_by_query": "retrieve",
    "retrieve": "retrieve_for",
    "list_signals": "signals",
    "knowledge_node": "knowledge",
    "list_proposed_recipes": "recipes",
    "show_document": "show",
    "delete_document": "delete",
    "list_sections": "sections",
    "list_moves": "document_moves",
    "download_document": "original",
    "correct_passage": "correct",
    "register_hardware": "register",
    "show_hardware": "show",
    "remove_hardware": "remove",
    "list_symbols": "symbols",
    "list_samples": "samples",
    "correct_symbol": "correct",
    "facts_of": "list_facts",
    "decide_facts": "patch_facts",
    "decide_fact": "patch_fact",
    "change_skill": "patch_skill",
    "revise_skill": "revise",
    "show_history": "history",
    "export_skill": "export",
    "import_skill": "add_skill",
    "evaluate_candidate": "evaluate",
    "show_evaluation": "show",
    "start_run": "start",
    "show_run": "show",
    "show_tree": "tree",
    "node_record": "candidate",
    "cancel_run": "cancel",
    "show_context": "context",
    "propose_candidate": "propose",
    "list_flagged": "flagged",
    "review_candidate": "review",
    "submit_trajectory": "submit",
    "show_trajectory": "show",
}


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """A replacement for `app.openapi`, which builds the description once."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=TITLE,
                version=product_version(),
                description=DESCRIPTION,
                routes=app.routes,
                tags=TAGS,
            )
            known = schema.setdefault("components", {}).setdefault("schemas", {})
            _define(known, ErrorBody, "serialization")
            for operation in operations():
                _describe(
                    schema["paths"][operation.path][operation.method.lower()], known, operation
                )
            _add_signal_examples(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


def _describe(route: dict[str, Any], known: dict[str, Any], operation: Operation[Any, Any]) -> None:
    """Fill in the schemas of an operation's body and output."""
    if operation.model is not None:
        _define(known, operation.model, "validation")
    for status, response in route["responses"].items():
        if status.isdigit() and int(status) in {operation.status, *operation.responses}:
            if operation.output is Download:
                response["content"] = {kind: {} for kind in operation.produces}
            else:
                schema = _define(known, operation.output, "serialization")
                response["content"] = {"application/json": {"schema": schema}}


def _define(
    known: dict[str, Any], model: Any, mode: Literal["validation", "serialization"]
) -> dict[str, Any]:
    """Add the schemas of a type, and of what it consists of, to those that are known; its schema.
    Raises ValueError where another schema has its name already."""
    own = TypeAdapter(model).json_schema(mode=mode, ref_template="#/components/schemas/{model}")
    definitions = own.pop("$defs", {})
    if isinstance(model, type):
        definitions[model.__name__] = own
        own = {"$ref": f"#/components/schemas/{model.__name__}"}
    for name, definition in definitions.items():
        if known.setdefault(name, definition) != definition:
            raise ValueError(f"two schemas are named {name}")
    return own


def _add_signal_examples(schema: dict[str, Any]) -> None:
    """Let every signal be chosen from a list where GET /retrieve is tried out."""
    for parameter in schema["paths"].get("/retrieve", {}).get("get", {}).get("parameters", ()):
        if parameter["name"] == "signal":
            parameter["examples"] = {
                signal.id: {"summary": signal.title, "value": signal.id}
                for signal in load_signals()
            }
