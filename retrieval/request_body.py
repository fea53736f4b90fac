"""A request as JSON or as query parameters: models built from `request.request_fields`.

HTTP routes and commands validate requests here, so they accept the same requests and report the
same errors. Unknown fields are refused, since a mistyped one would otherwise be ignored silently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    create_model,
)

from kb.errors import invalid_fields
from kb.scope import ALL_ACCESS, AccessScope
from kb.validity import checked_versions, versions_in
from retrieval.diagnose.metrics import load_metrics
from retrieval.request import MAX_NAME, FieldSpec, RetrieveRequest, request_fields

MAX_METRIC_TEXT = 500
QUERY_NAMES = {"query": "q"}  # URL parameters whose names differ from those in the body
IN_QUERY = ("text", "names", "count", "versions")


def _metric(value: object) -> float | str:
    """A profiler's value: a finite number, or the text that the profiler printed."""
    if isinstance(value, str):
        if len(value) > MAX_METRIC_TEXT:
            raise ValueError(f"a metric's text has at most {MAX_METRIC_TEXT} characters")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a metric is a number, or a number as text")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a metric is a finite number")
    return number


def _split(value: object) -> object:
    """`a,b` as well as ["a", "b"]."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _text_of(value: object) -> object:
    """A program's output as text; JSON that a caller has decoded is encoded again."""
    if not isinstance(value, dict | list):
        return value
    return json.dumps(value) if value else ""


def _versions(value: object) -> object:
    """A text that has versions as a mapping."""
    return versions_in(value) if isinstance(value, str) else value


_MetricValue = Annotated[float | str, PlainValidator(_metric, json_schema_input_type=float | str)]
_Name = Annotated[str, Field(max_length=MAX_NAME)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Versions = Annotated[
    dict[_Name, _Name], BeforeValidator(_versions, json_schema_input_type=dict[str, str] | str)
]
_Output = Annotated[
    str, BeforeValidator(_text_of, json_schema_input_type=str | dict[str, Any] | list[Any])
]


def _body_field(spec: FieldSpec) -> tuple[Any, Any]:
    types: dict[str, Any] = {
        "text": str,
        "names": Annotated[list[_Name], BeforeValidator(_split)],
        "count": int,
        "metrics": dict[_Name, _MetricValue],
        "quantities": dict[_Name, _Finite | _Name],
        "output": _Output,
        "versions": _Versions,
    }
    limits: dict[str, Any] = {}
    if spec.kind != "count" and spec.limit is not None:
        limits["max_length"] = spec.limit
    # The limit applies to the value and not to None, so it is inside the union.
    inner = Annotated[types[spec.kind], Field(**limits)] if limits else types[spec.kind]
    return inner | None, Field(None, description=spec.help)


def _query_field(spec: FieldSpec) -> tuple[Any, Any]:
    types: dict[str, Any] = {"text": str, "names": list[str], "count": int, "versions": list[str]}
    repeated = " Comma-separated or repeated." if types[spec.kind] == list[str] else ""
    return types[spec.kind] | None, Field(
        None, description=spec.help + repeated, alias=QUERY_NAMES.get(spec.name)
    )


if TYPE_CHECKING:

    class RetrieveBody(BaseModel):
        """The JSON body of POST /retrieve; its fields are those of `request_fields`."""

    class RetrieveQuery(BaseModel):
        """The query parameters of /retrieve."""

else:
    RetrieveBody = create_model(
        "RetrieveBody",
        __config__=ConfigDict(extra="forbid", strict=True),
        __doc__="Give a signal, a raw log, a profiler's metrics or a question, or several of them.",
        **{spec.name: _body_field(spec) for spec in request_fields()},
    )
    RetrieveQuery = create_model(
        "RetrieveQuery",
        **{
            spec.name: _query_field(spec)
            for spec in request_fields()
            if spec.kind in IN_QUERY and spec.name != "log"
        },
    )


def body_of_query(parameters: RetrieveQuery, **also: str | None) -> dict[str, Any]:
    """Query parameters as a body, without empty ones, which forms send."""
    values: dict[str, Any] = {**parameters.model_dump(exclude_none=True), **also}
    # A list of one entry may itself be comma-separated.
    joined = {n: ",".join(v) if isinstance(v, list) else v for n, v in values.items()}
    return {name: value for name, value in joined.items() if value not in (None, "")}


def read_body(body: Any) -> RetrieveBody:
    """Validate decoded JSON. Raises InvalidRequest that names every field that is unknown, of the
    wrong type or too long."""
    try:
        return RetrieveBody.model_validate(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise invalid_fields(problems, RetrieveBody.model_fields) from None


def request_of(
    body: RetrieveBody,
    defaults: Mapping[str, int] | None = None,
    access_scope: AccessScope = ALL_ACCESS,
) -> RetrieveRequest:
    """The request of a body. `defaults` are those of `k` and `max_tokens`; blank fields count as
    left out. Raises MetricNotANumber."""
    load_metrics().check_numbers(vars(body).get("metrics") or {})
    values: dict[str, Any] = dict(defaults or {})
    for name, value in body.model_dump(exclude_none=True).items():
        blank = not value.strip() if isinstance(value, str) else value in ([], {})
        if not blank:
            values[name] = tuple(dict.fromkeys(value)) if isinstance(value, list) else value
    if "versions" in values:
        values["versions"] = checked_versions(values["versions"])
    return RetrieveRequest(**values, access_scope=access_scope)
