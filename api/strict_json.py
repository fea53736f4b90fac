"""Strict JSON: UTF-8, finite numbers, storable text, and errors that name each wrong field.

HTTP routes, commands and agents' tools check their input with these functions, so that they give
the same errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

from kb.errors import InvalidRequest, invalid_fields, nearest

ModelT = TypeVar("ModelT", bound=BaseModel)
_UNEXPECTED = "unexpected_keyword_argument"  # an unknown field of a dataclass in a model


def validated(model: type[ModelT], value: Any) -> ModelT:
    """The value as this model. Raises InvalidRequest that names each field that is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = [
            {**problem, "type": "extra_forbidden"} if problem["type"] == _UNEXPECTED else problem
            for problem in error.errors(include_url=False, include_context=False)
        ]
        raise invalid_fields(problems, partial(meant_field, model)) from None


def load_json(raw: bytes) -> Any:
    """Read strict JSON: UTF-8, finite numbers, text that can be stored. Raises InvalidRequest."""
    try:
        value = json.loads(raw, parse_constant=_not_finite)
    except RecursionError:
        raise InvalidRequest("the JSON is nested too deeply", hint="Send it flatter.") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8: {error}", hint="Encode it as UTF-8."
        ) from None
    except ValueError as error:
        raise InvalidRequest(
            f"broken JSON: {error}", hint="Correct the syntax at that place."
        ) from None
    # NUL and unpaired surrogates can only occur as escapes.
    if b"\\u" in raw:
        check_texts(value)
    return value


def _not_finite(name: str) -> NoReturn:
    raise InvalidRequest(
        f"{name} is not a JSON number", hint="Leave the value out, or send a finite number."
    )


def check_texts(value: Any) -> None:
    """Raise InvalidRequest for NUL or an unpaired surrogate in any text of a decoded body."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, dict):
        for key, entry in value.items():
            check_text(key)
            check_texts(entry)
    elif isinstance(value, list):
        for entry in value:
            check_texts(entry)


def check_text(text: str, what: str = "the text") -> str:
    """The text itself. Raises InvalidRequest for NUL and unpaired surrogates."""
    if "\x00" in text:
        raise InvalidRequest(f"{what} holds a NUL character", hint="Send text, not binary data.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{what} holds half of a surrogate pair", hint="Encode the whole character."
        ) from None
    return text


def meant_field(model: type[Any], loc: Sequence[Any]) -> str:
    """The path of the field that an unknown one was probably meant to be, or "". `loc` is
    pydantic's path to the unknown field. A field of the same name in a nested object comes first,
    then the nearest name in the same object."""
    wrong = str(loc[-1])[:80]
    owners = [model]
    for part in loc[:-1]:
        below = [record for owner in owners for record in _records_of(owner, part)]
        owners = below or [owner for owner in owners if owner.__name__ == part] or owners
    for owner in owners:
        for name in _fields(owner):
            if any(wrong in _fields(inner) for inner in _records_of(owner, name)):
                return f"{name}.{wrong}"
    near = nearest(wrong, {name for owner in owners for name in _fields(owner)}, count=1)
    return near[0] if near else ""


def _records_of(owner: type[Any], name: Any) -> list[type[Any]]:
    """The models and dataclasses that a field may hold."""
    return list(_records_in(_fields(owner).get(name))) if isinstance(name, str) else []


def _fields(record: type[Any]) -> dict[str, Any]:
    """The annotations of a model or dataclass by field."""
    if issubclass(record, BaseModel):
        return {name: field.annotation for name, field in record.model_fields.items()}
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in fields(record)}


def _records_in(annotation: Any) -> Iterator[type[Any]]:
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or is_dataclass(annotation)
    ):
        yield annotation
    for part in get_args(annotation):
        yield from _records_in(part)
