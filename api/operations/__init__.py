"""The operations of Kernlore, declared once for all its interfaces.

An operation is a function. Its parameters are the input, its return annotation is the output, its
docstring the documentation; `operation` adds the route, the role and further properties. HTTP
routes, `openapi.json`, authorisation, and the requests of commands, agents' tools and the Python
client are derived from these declarations, which know none of them. A new operation is one function
and one entry in a module of this folder.

Parameters named in the path come from the path. Of a GET or DELETE the others are query parameters.
Of a POST or PATCH they are the fields of the JSON body, or of a multipart form where one of them is
`Files`. `Annotated[int, Doc("..."), Ge(1)]` documents and bounds a parameter; a value out of bounds
is refused by every interface.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    BinaryIO,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    get_origin,
)

from pydantic import BaseModel, ConfigDict, create_model

from api.strict_json import validated
from kb.plain import Doc

if TYPE_CHECKING:
    from api.services import Services
    from kb.catalog.keys import Role

P = ParamSpec("P")
R = TypeVar("R")
Place = Literal["path", "query", "body", "files", "form"]
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
NOUNS = (
    "service",
    "retrieve",
    "knowledge",
    "documents",
    "hardware",
    "skills",
    "evaluations",
    "runs",
    "trajectories",
)


@dataclass(frozen=True)
class Incoming:
    """One uploaded file. `oversized` ones were not stored, so their content is cut."""

    name: str
    file: BinaryIO
    oversized: bool = False

    def close(self) -> None:
        self.file.close()


Files = tuple[Incoming, ...]


@dataclass(frozen=True)
class Download:
    """A file as output: its bytes, and the response headers for a browser."""

    data: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Input:
    """One parameter. `annotation` is resolved; `default` is `inspect.Parameter.empty` for a
    required one."""

    name: str
    place: Place
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def type(self) -> Any:
        """The annotation without documentation and bounds."""
        return _base(self.annotation)

    @property
    def bounds(self) -> tuple[Any, ...]:
        return tuple(m for m in _metadata(self.annotation) if not isinstance(m, Doc))

    @property
    def description(self) -> str:
        docs = (m.text for m in _metadata(self.annotation) if isinstance(m, Doc))
        return next(docs, "")


@dataclass(frozen=True)
class Media:
    """A further media type of a body. `read` converts its text, and the query parameters of the
    model `query`, into the value of the equivalent JSON body."""

    names: tuple[str, ...]
    description: str
    example: str
    read: Callable[[str, Any], Any]
    query: type[BaseModel] | None = None
    what: str = "body"  # its name in errors
    limit: str = "max_body_bytes"  # the setting that bounds it


@dataclass(frozen=True, eq=False)
class Operation(Generic[P, R]):
    """A declared operation. Call it with the services and its parameters.

    on: the part of the services that the function takes first.
    status: of a success. status_of: the status of an output, if it varies.
    responses: descriptions of statuses, further ones among them.
    produces: media types of a `Download`.
    form: the operation that takes the same as a multipart form.
    body: name and description of the JSON body in the description of the interface.
    reads: whether a request that is no GET changes nothing but logs.
    upload: whether it counts against the limit of uploads.
    runs_code: whether it executes code of the caller, so that callers must be on this machine.
    whole_store: whether its output covers all hardware, so that restricted keys are refused.
    public: whether it needs no key.
    computes: whether it counts against the limit of concurrent retrievals.
    static: whether its output depends on the program only, so that it needs no services.
    media: further media types of the body.
    examples: bodies for the description of the interface, by title; example: a single one.
    """

    function: Callable[Concatenate[Any, P], R]
    method: str
    path: str
    summary: str
    tag: str
    role: Role
    on: Callable[[Services], Any] = lambda services: services
    status: int = 200
    status_of: Callable[[Any], int] | None = None
    responses: Mapping[int, str] = field(default_factory=dict)
    produces: tuple[str, ...] = ()
    form: Operation[Any, Any] | None = None
    body: tuple[str, str] = ("", "")
    reads: bool = False
    upload: bool = False
    runs_code: bool = False
    whole_store: bool = False
    public: bool = False
    computes: bool = False
    static: bool = False
    media: tuple[Media, ...] = ()
    examples: Callable[[], Mapping[str, Any]] = dict
    example: Any = None

    def __call__(self, services: Services, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(self.on(services), *args, **kwargs)

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def route(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def whole(self) -> str:
        """The parameter that is the JSON body or all query parameters; empty without one."""
        models = (i.name for i in self.inputs if _is_model(i.type))
        return next(models, "") if self.model is None or self.takes_model else ""

    @property
    def changes(self) -> bool:
        """Whether it changes the store or a run, so that it is written to the audit log."""
        return self.method not in SAFE and not self.reads

    @property
    def description(self) -> str:
        return inspect.getdoc(self.function) or ""

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The parameters after the first, in their order."""
        scope = inspect.unwrap(self.function).__globals__
        given = [
            (p.name, eval(p.annotation, scope), p.default)
            for p in list(inspect.signature(self.function).parameters.values())[1:]
        ]
        uploads = any(_base(annotation) == Files for _, annotation, _ in given)
        named = set(re.findall(r"{(\w+)", self.path))
        return tuple(
            Input(name, self._place(name, annotation, named, uploads), annotation, default)
            for name, annotation, default in given
        )

    def _place(self, name: str, annotation: Any, named: set[str], uploads: bool) -> Place:
        if name in named:
            return "path"
        if self.method in ("GET", "DELETE"):
            return "query"
        if _base(annotation) == Files:
            return "files"
        return "form" if uploads else "body"

    @cached_property
    def model(self) -> type[BaseModel] | None:
        """The JSON body, or None: the only parameter in the body if that is a model, else a model
        with the parameters as fields."""
        fields = [i for i in self.inputs if i.place == "body"]
        if not fields:
            return None
        if self.takes_model:
            model: type[BaseModel] = fields[0].type
            return model
        name, doc = self.body
        given: dict[str, Any] = {
            i.name: (i.annotation, ... if i.required else i.default) for i in fields
        }
        config = ConfigDict(extra="forbid", strict=True)
        return create_model(name or self.name, __config__=config, __doc__=doc or None, **given)

    @cached_property
    def takes_model(self) -> bool:
        """Whether the function takes the JSON body as one value."""
        fields = [i.type for i in self.inputs if i.place == "body"]
        return len(fields) == 1 and _is_model(fields[0])

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The input with the fields of the body, and query parameters that are one model, checked
        against their types and bounds. Raises InvalidRequest, which names each field that is wrong.
        """
        if self.model is None:
            models = {i.name: i.type for i in self.inputs if _is_model(i.type)}
            return {n: validated(models[n], v) if n in models else v for n, v in given.items()}
        names = {i.name for i in self.inputs if i.place == "body"}
        path = {i.name: given[i.name] for i in self.inputs if i.place == "path"}
        if self.takes_model:
            (name,) = names
            return {**path, name: validated(self.model, given[name])}
        body = validated(self.model, {n: v for n, v in given.items() if n not in path})
        return {**path, **{name: getattr(body, name) for name in names}}

    @cached_property
    def output(self) -> Any:
        """The type of the output."""
        function = inspect.unwrap(self.function)
        return eval(function.__annotations__["return"], function.__globals__)


def operation(
    route: str, summary: str, *, tag: str, role: Role | None = None, **more: Any
) -> Callable[[Callable[Concatenate[Any, P], R]], Operation[P, R]]:
    """Declare a function as an operation. `route` is a method and a path, like
    `GET /documents/{document_id}`; `role` defaults to reader for a GET, otherwise to admin."""
    method, _, path = route.partition(" ")
    needed: Role = role or ("reader" if method in SAFE else "admin")
    return lambda function: Operation(function, method, path, summary, tag, needed, **more)


def declared_by_noun() -> Mapping[str, tuple[Operation[Any, Any], ...]]:
    """The operations of each noun, in the order of declaration."""
    by_noun = {}
    for noun in NOUNS:
        module = import_module(f"{__name__}.{noun}")
        declared = [v for v in vars(module).values() if isinstance(v, Operation)]
        forms = [o.form for o in declared if o.form is not None]
        by_noun[noun] = tuple(o for o in declared if not any(o is form for form in forms))
    return by_noun


def operations() -> tuple[Operation[Any, Any], ...]:
    """Every operation, by noun and in the order of declaration."""
    return tuple(operation for declared in declared_by_noun().values() for operation in declared)


def _metadata(annotation: Any) -> tuple[Any, ...]:
    return annotation.__metadata__ if get_origin(annotation) is Annotated else ()


def _base(annotation: Any) -> Any:
    return annotation.__origin__ if get_origin(annotation) is Annotated else annotation


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def listed(text: str | None) -> list[str] | None:
    """The parts of a list with commas; None for None."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
