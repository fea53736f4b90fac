"""HTTP routes and their OpenAPI description, made from the operations: parameters and bodies in,
JSON or a file out."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, create_model

from api.http.admission import with_place
from api.http.authorisation import caller_of
from api.http.bodies import UploadForm, is_json, media_type, read_form, read_limited, signed
from api.operations import Download, Input, Media, Operation, operations
from api.services import Services
from api.strict_json import check_text, load_json, validated
from kb.addresses import is_loopback
from kb.errors import ErrorBody, InvalidRequest, KernloreError, UnsupportedFormat, nearest
from kb.plain import plain
from kb.scope import AccessScope
from kb.settings import Settings, product_version
from retrieval.diagnose.signals import load_signals
from retrieval.request_body import RetrieveBody

# -- the OpenAPI description: schemas of the bodies, and an example for every signal

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


# -- dependencies

_MAX_PARAMETER = 20_000


async def _services(request: Request) -> Services:
    """The services restricted to the access of the caller. None before the application has started,
    when only public operations answer."""
    services: Services = request.app.state.services
    return services and services.seen_by(caller_of(request.scope).access)


async def access_scope(request: Request) -> AccessScope:
    """The hardware that the caller may see. Middleware has already authorised the request
    (`api.http.authorisation`)."""
    return caller_of(request.scope).access


class EvaluationForbidden(KernloreError):
    """Running code was requested from another machine."""

    code, status = "evaluation_forbidden", 403


def from_this_machine(request: Request) -> None:
    """Refuse requests that may come from another machine: the service listens on another address,
    or a proxy forwards requests under another name. Raises EvaluationForbidden."""
    settings: Settings = request.app.state.settings
    if settings.evaluate_over_http:
        return
    for what, name in (
        ("listens on", settings.host),
        ("was called as", request.url.hostname or ""),
    ):
        if not is_loopback(name):
            raise EvaluationForbidden(
                f"this service {what} {name[:200]!r}, and an evaluation runs the code that is sent",
                hint="Evaluate on its own machine through 127.0.0.1, or set"
                " KERNLORE_EVALUATE_OVER_HTTP=true where everyone who reaches it may run code.",
            )


async def known_parameters(request: Request) -> None:
    """Refuse unknown and repeated query parameters: `?hardwares=h100` would otherwise answer for
    any chip, and the second of two values would be ignored."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute) or not route.include_in_schema:
        return
    known = query_parameters(route)
    for name, value in request.query_params.multi_items():
        if name not in known:
            near = nearest(name[:80], known)
            allowed = f"Known here: {', '.join(known)}." if known else "None is known here."
            meant = f"Did you mean {near[0]}? " if near else ""
            if route.path == "/retrieve" and name in RetrieveBody.model_fields:
                meant = f"Send {name} in the JSON body of POST /retrieve. "
            raise InvalidRequest(
                f"unknown query parameter {name[:80]!r}",
                hint=meant + allowed,
                details={"known": list(known)},
            )
        check_text(value, name)
        if len(value) > _MAX_PARAMETER:
            raise InvalidRequest(
                f"{name} has {len(value):,} characters; the limit is {_MAX_PARAMETER:,}",
                hint="Send long text in the body of a POST.",
            )
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if count > 1 and not known[name]:
            more = f" Give further {name}s as {name}s=a,b." if f"{name}s" in known else ""
            raise InvalidRequest(f"{name} is given {count} times", hint=f"Give {name} once.{more}")


def query_parameters(route: APIRoute) -> dict[str, bool]:
    """The query parameters of a route, and whether each may be repeated. The description of the
    interface has them too, but takes a third of a second to build."""
    return {
        field.alias: field.field_info.annotation is not None
        and "list" in str(field.field_info.annotation)
        for field in get_flat_params(route.dependant)
        if not isinstance(field.field_info, params.Path | params.Header | params.Cookie)
        and getattr(field.field_info, "include_in_schema", True)
    }


Parts = Annotated[Services, Depends(_services)]
Access = Annotated[AccessScope, Depends(access_scope)]


# -- routes

Call = Callable[[Services], Any]  # an operation with its input


def router_of(operations: tuple[Operation[Any, Any], ...]) -> APIRouter:
    """The routes of these operations."""
    # Dependencies are given here and not when the application takes the routes in: FastAPI would
    # then build each route's parameters a second time, within the first request.
    checks = [Depends(access_scope), Depends(known_parameters)]
    router = APIRouter(responses=ERRORS, dependencies=checks)
    for operation in operations:
        add_route(router, operation)
    return router


def add_route(router: APIRouter, operation: Operation[Any, Any]) -> None:
    """Add the route of an operation."""
    more = [Depends(from_this_machine)] if operation.runs_code else []
    statuses = {operation.status, *operation.responses}
    router.add_api_route(
        operation.path,
        _endpoint(operation),
        methods=[operation.method],
        name=OPERATION_IDS.get(operation.name, operation.name),
        summary=operation.summary,
        description=operation.description,
        tags=[operation.tag],
        status_code=operation.status,
        dependencies=more,
        response_class=Response if operation.output is Download else JSONResponse,
        responses={
            status: {"description": operation.responses[status]}
            for status in statuses
            if status in operation.responses
        },
        openapi_extra=_request_body(operation),
    )


def respond(operation: Operation[Any, Any], result: Any) -> Response:
    """The output of an operation as a response."""
    if isinstance(result, Download):
        return Response(result.data, media_type=result.media_type, headers=dict(result.headers))
    status = operation.status if operation.status_of is None else operation.status_of(result)
    return JSONResponse(plain(result), status_code=status)


def _endpoint(operation: Operation[Any, Any]) -> Callable[..., Response]:
    reader = _body_reader(operation)

    def endpoint(services: Services, **given: Any) -> Response:
        carry_out: Operation[Any, Any] = operation
        if reader is not None:
            carry_out, sent = given.pop("body_of_request")
            given |= sent
        try:
            return respond(operation, carry_out(services, **given))
        finally:
            for file in given.get("file", ()):
                file.close()

    parameters = [_parameter(i) for i in operation.inputs if i.place in ("path", "query")]
    if reader is not None:
        parameters.append(_keyword("body_of_request", Annotated[Any, Depends(reader)]))
    services = _keyword("services", Parts)
    endpoint.__signature__ = inspect.Signature([services, *parameters])  # type: ignore[attr-defined]
    endpoint.__name__ = operation.name
    endpoint.__doc__ = operation.description
    return with_place(endpoint) if operation.computes else endpoint


def _keyword(
    name: str, annotation: Any, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _parameter(given: Input) -> inspect.Parameter:
    if given.place == "path":
        return _keyword(given.name, Annotated[given.type, Path()])
    described = Query(description=given.description or None)
    annotation = given.type
    for bound in given.bounds:
        annotation = Annotated[annotation, bound]
    return _keyword(given.name, Annotated[annotation, described], given.default)


# -- bodies


def _body_reader(operation: Operation[Any, Any]) -> Callable[..., Any] | None:
    """A dependency that returns the operation to carry out, and its input from the body."""
    if operation.form is None and operation.model is None and not _uploads(operation):
        return None
    form = operation if _uploads(operation) else operation.form
    query = next((media.query for media in operation.media if media.query is not None), None)

    async def read(request: Request) -> Any:
        if form is not None and (operation is form or not is_json(media_type(request))):
            return form, await _form_fields(request, form)
        return await _text(request, operation)

    def decoded(
        request: Request, raw: Annotated[Any, Depends(read)], parameters: BaseModel | None = None
    ) -> tuple[Operation[Any, Any], dict[str, Any]]:
        if isinstance(raw, tuple) and isinstance(raw[0], Operation):
            return raw
        data, media = raw
        return operation, _fields(operation, request, _value(request, data, media, parameters))

    signature = inspect.signature(decoded, eval_str=False)
    given = [_keyword("request", Request), _keyword("raw", Annotated[Any, Depends(read)])]
    if query is not None:
        given.append(_keyword("parameters", Annotated[query, Query()]))
    decoded.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
    return decoded


def _uploads(operation: Operation[Any, Any]) -> bool:
    return any(i.place == "files" for i in operation.inputs)


async def _text(request: Request, operation: Operation[Any, Any]) -> tuple[bytes, Media | None]:
    """The body as bytes, and its media type where that is not JSON."""
    kind = media_type(request)
    media = next((m for m in operation.media if kind in m.names), None)
    if media is None and not is_json(kind):
        raise UnsupportedFormat(
            f"{kind or 'a body without content type'} instead of JSON",
            hint="Send JSON with the header `content-type: application/json`"
            + "".join(f", or {m.names[0]}: {m.description}" for m in operation.media).rstrip(".")
            + ".",
        )
    setting = "max_body_bytes" if media is None else media.limit
    limit = getattr(request.app.state.settings, setting)
    what = "body" if media is None else media.what
    return await read_limited(request, limit, what, f"KERNLORE_{setting.upper()}"), media


def _value(request: Request, data: bytes, media: Media | None, query: BaseModel | None) -> Any:
    if media is None:
        if request.query_params and query is not None:
            raise InvalidRequest(
                "query parameters in addition to a JSON body",
                hint=f"Put {', '.join(request.query_params)} into the body.",
            )
        return load_json(data)
    try:
        text = data.decode("utf-8", "replace" if media.what == "log" else "strict")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the {media.what} is not UTF-8: {error}", hint="Save it as UTF-8."
        ) from None
    return media.read(check_text(text, f"the {media.what}"), query)


def _fields(operation: Operation[Any, Any], request: Request, value: Any) -> dict[str, Any]:
    """The input of an operation from a decoded body."""
    model = operation.model
    assert model is not None
    body = validated(model, value)
    if "actor" in model.model_fields:
        body = body.model_copy(update={"actor": signed(request, str(vars(body)["actor"]))})
    names = [i.name for i in operation.inputs if i.place == "body"]
    return {n: body if operation.takes_model else getattr(body, n) for n in names}


async def _form_fields(request: Request, operation: Operation[Any, Any]) -> dict[str, Any]:
    """The input of an upload from a multipart form."""
    form = await read_files(operation)(request)
    given: dict[str, Any] = {"file": form.files, **form.input}
    for field in operation.inputs:
        if field.place == "form" and field.name == "actor":
            bounded = create_model("Form", actor=(field.annotation, field.default))
            claimed = validated(bounded, {k: v for k, v in given.items() if k == "actor"})
            given["actor"] = signed(request, str(vars(claimed)["actor"]))
    return given


def read_files(operation: Operation[Any, Any]) -> Callable[[Request], Awaitable[UploadForm]]:
    """A dependency that reads the multipart form of an operation; its user closes the files."""
    fields = [i for i in operation.inputs if i.place == "form"]
    several = tuple(i.name for i in fields if i.type == tuple[str, ...])

    async def read(request: Request) -> UploadForm:
        return await read_form(request, [i.name for i in fields], several)

    return read


# -- the description of bodies


def _request_body(operation: Operation[Any, Any]) -> dict[str, Any] | None:
    content: dict[str, Any] = {}
    if operation.model is not None:
        reference = f"#/components/schemas/{operation.model.__name__}"
        content["application/json"] = {"schema": {"$ref": reference}}
        if examples := operation.examples():
            content["application/json"]["examples"] = dict(examples)
        if operation.example is not None:
            content["application/json"]["example"] = operation.example
    for media in operation.media:
        schema = {"type": "string", "description": media.description}
        example = {"example": media.example} if media.example else {}
        content[media.names[0]] = {"schema": schema, **example}
    form = operation if _uploads(operation) else operation.form
    if form is not None:
        content["multipart/form-data"] = {"schema": _form_schema(form)}
    return {"requestBody": {"required": True, "content": content}} if content else None


def _form_schema(operation: Operation[Any, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for i in operation.inputs:
        if i.place == "files":
            file: dict[str, Any] = {"type": "string", "format": "binary"}
            several = {"type": "array", "items": file}
            description = {"description": i.description} if i.description else {}
            properties[i.name] = {**(file if i.bounds else several), **description}
        elif i.place == "form":
            schema = TypeAdapter(i.annotation).json_schema()
            options = [o for o in schema.pop("anyOf", ()) if o.get("type") != "null"]
            properties[i.name] = {**(options[0] if len(options) == 1 else {}), **schema}
    closed = {"required": ["file"], "additionalProperties": False}
    return {"type": "object", **closed, "properties": properties}
