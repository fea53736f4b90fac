"""The OpenAPI description: schemas of the bodies, and an example for every signal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter

from api import bodies, skill_bodies
from api.http import models
from api.http.answers import ANSWERS
from api.http.errors import ErrorBody
from kb.settings import product_version
from retrieval.diagnose.signals import load_signals
from retrieval.request_body import RetrieveBody

TITLE = "Kernlore"
DESCRIPTION = """A knowledge service for optimizing GPU kernels. Upload the manuals of a chip, ask
with what went wrong at run time, and get cited excerpts, moves and skills for that very hardware.

Every error has one shape: `{code, message, hint, details}`. An unknown hardware id is answered with
404 and the nearest known ids, and an answer never contains anything about another chip."""
TAGS = [
    {"name": "retrieve", "description": "Ask, and report whether the answer helped."},
    {"name": "knowledge", "description": "The run-time signals, and the tree of what is known."},
    {"name": "documents", "description": "Upload, watch, read, correct and remove manuals."},
    {"name": "hardware", "description": "Chips, their lineage, facts and coverage."},
    {"name": "skills", "description": "Measured transformations of kernels."},
    {"name": "evaluations", "description": "Check and time a kernel."},
    {"name": "runs", "description": "Searches for a faster kernel."},
    {"name": "trajectories", "description": "Searches of other optimizers, evaluated here."},
    {"name": "service", "description": "Health, readiness and metrics."},
]
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The request cannot be answered as it is."},
    "5XX": {"model": ErrorBody, "description": "The service failed, or is not ready yet."},
}
_BODIES: tuple[type[BaseModel], ...] = (
    RetrieveBody,
    models.OutcomeBody,
    bodies.PassagePatch,
    bodies.FactPatch,
    bodies.FactsPatch,
    bodies.SymbolPatch,
    bodies.HardwareBody,
    bodies.EvaluationBody,
    bodies.RunBody,
    bodies.StepBody,
    bodies.ReviewBody,
    skill_bodies.SkillPatch,
    skill_bodies.RevisionBody,
    skill_bodies.SkillBody,
)

_LOG = (
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, "
    "Required: 294912, Hardware limit: 232448. Reducing block sizes or `num_stages` may help."
)
_METRICS = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 91.4,
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": 22.8,
    "launch__registers_per_thread": 64,
}


# A body that the route takes, by path; ids of answers and runs are the caller's own.
EXAMPLES: Mapping[str, dict[str, Any]] = {
    "/skills": {
        "name": "wait-for-talon",
        "files": {
            "SKILL.md": "---\nname: wait-for-talon\n"
            "description: Use when a kernel waits for loads.\n"
            'metadata:\n  kb.hardware: "h100"\n  kb.languages: "cuda"\n'
            '  kb.signals: "memory_latency"\n---\n## Steps\n\n1. Begin the next load sooner.\n'
        },
        "actor": "ann",
    },
    "/evaluations": {
        "problem": "map_id",
        "candidate": {
            "files": {"k.py": "class ModelNew: ..."},
            "main": "k.py",
            "language": "torch",
        },
        "hardware": "x86-64",
    },
    "/runs": {
        "problem": "map_id",
        "hardware": "x86-64",
        "goal": {"language": "cpp", "candidates": 8},
        "proposers": ["builtin"],
    },
    "/trajectories": {
        "problem": "map_id",
        "hardware": "x86-64",
        "language": "cpp",
        "actor": "my-optimizer",
        "steps": [{"parent": 0, "source": "// a kernel", "plan": "binary search"}],
    },
    "/retrievals/{retrieval_id}/outcome": {
        "used": ["any-split-k-skinny-matmul"],
        "correct": True,
        "speedup": 1.4,
    },
}


def retrieve_examples() -> dict[str, Any]:
    """An example for every signal, then one for every other way to ask."""
    examples: dict[str, Any] = {
        signal.id: {
            "summary": f"signal, {signal.group}: {signal.title}",
            "value": {"signal": signal.id, "hardware": "h100"},
        }
        for signal in load_signals()
    }
    question = "How do I overlap global loads with matrix instructions?"
    ways = {
        "raw log": {"log": _LOG, "hardware": "h100", "language": "triton"},
        "profiler metrics": {"metrics": _METRICS, "hardware": "h100", "op": "softmax"},
        "question": {"query": question, "hardware": "mi300x", "categories": ["hardware"]},
        "combination": {
            "signal": "memory_bound",
            "metrics": _METRICS,
            "query": question,
            "hardware": "h200",
            "op": "matmul",
            "language": "triton",
            "dtype": "bf16",
            "k": 10,
            "max_tokens": 3000,
        },
        "several signals, and what can be changed": {
            "signals": ["register_spill", "memory_bound"],
            "roles": ["tile_m", "tile_n", "warps"],
            "hardware": "h100",
        },
        "what a first kernel needs": {
            "task": "write",
            "hardware": "h100",
            "op": "softmax",
            "language": "cuda",
            "max_tokens": 24000,
        },
    }
    return examples | {name: {"summary": name, "value": value} for name, value in ways.items()}


def json_request(model: type[BaseModel], examples: dict[str, Any] | None = None) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body `bodies.json_body` reads."""
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    if examples:
        content["examples"] = examples
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def text_request(extra: dict[str, Any], media_type: str, what: str, example: str) -> dict[str, Any]:
    """Add plain text to what a route accepts; `what` describes it."""
    schema = {"type": "string", "description": what}
    extra["requestBody"]["content"][media_type] = {"schema": schema, "example": example}
    return extra


def upload_request() -> dict[str, Any]:
    """The `openapi_extra` of the upload of documents."""
    text = {"type": "string"}
    many = {"type": "array", "items": text}
    properties = {
        "file": {"type": "array", "items": {"type": "string", "format": "binary"}},
        "hardware": {
            **many,
            "description": "Ids, names or aliases of what the files are about. None: any hardware.",
        },
        "category": {"type": "string", "enum": ["constraint", "guidance", "hardware"]},
        "languages": many,
        "title": {**text, "description": "Title, for a single file. Default: the document's own."},
        "source_key": {
            **text,
            "description": "A name that stays the same over the revisions of the document.",
        },
        "group": {
            **text,
            "description": "A name of your own for what is sent together, over several requests"
            " too. `GET /jobs?group=` lists its jobs. Default for several files: a new one.",
        },
    }
    schema = {"type": "object", "required": ["file"], "properties": properties}
    return {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    }


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The function to put in place of `app.openapi`; it builds the description once."""

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
            for model in _BODIES:
                _define(known, model, "validation")
            for route, answer in ANSWERS.items():
                method, _, path = route.partition(" ")
                responses = schema["paths"][path][method.lower()]["responses"]
                content = {"application/json": {"schema": _define(known, answer, "serialization")}}
                for status in responses:
                    if status.startswith("2"):
                        responses[status]["content"] = content
            _add_signal_examples(schema)
            _add_examples(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


def _define(
    known: dict[str, Any], model: type[Any], mode: Literal["validation", "serialization"]
) -> dict[str, str]:
    """Add the schema of a model, and of what it consists of, to those that are known; a reference
    to it. Raises ValueError where another schema has its name already.
    """
    own = TypeAdapter(model).json_schema(mode=mode, ref_template="#/components/schemas/{model}")
    for name, definition in {**own.pop("$defs", {}), model.__name__: own}.items():
        if known.setdefault(name, definition) != definition:
            raise ValueError(f"two schemas are named {name}")
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _add_examples(schema: dict[str, Any]) -> None:
    """Fill the body of a route where it is tried out."""
    for path, example in EXAMPLES.items():
        posted = schema["paths"].get(path, {}).get("post", {})
        content = posted.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            content["application/json"]["example"] = example


def _add_signal_examples(schema: dict[str, Any]) -> None:
    """Let every signal be chosen from a list where GET /retrieve is tried out."""
    for parameter in schema["paths"].get("/retrieve", {}).get("get", {}).get("parameters", ()):
        if parameter["name"] == "signal":
            parameter["examples"] = {
                signal.id: {"summary": signal.title, "value": signal.id}
                for signal in load_signals()
            }
