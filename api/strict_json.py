"""Strict reading of JSON: UTF-8, finite numbers, storable text, and models that name what is wrong.

HTTP routes, commands and agents' tools check what they were sent with these functions, so all
refuse alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from kb.errors import InvalidRequest, invalid_fields, nearest

ModelT = TypeVar("ModelT", bound=BaseModel)


def validated(model: type[ModelT], value: Any) -> ModelT:
    """The value as this model. Raises InvalidRequest that names each field that is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
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
    # Both can only come in as escapes.
    if b"\\u" in raw:
        check_texts(value)
    return value


def _not_finite(name: str) -> NoReturn:
    raise InvalidRequest(
        f"{name} is not a JSON number", hint="Leave the value out, or send a finite number."
    )


def check_texts(value: Any) -> None:
    """Refuse NUL and half characters anywhere in a decoded body. Raises InvalidRequest."""
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
    """The text itself, if it can be stored. Raises InvalidRequest for NUL and half characters."""
    if "\x00" in text:
        raise InvalidRequest(f"{what} holds a NUL character", hint="Send text, not binary data.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{what} holds half of a surrogate pair", hint="Encode the whole character."
        ) from None
    return text


def meant_field(model: type[BaseModel], loc: Sequence[Any]) -> str:
    """The path of the field that is meant by the unknown one at `loc`, pydantic's path to it: the
    same name inside an object beside it, else the nearest of its own object; else nothing."""
    wrong = str(loc[-1])[:80]
    models = [model]
    for part in loc[:-1]:
        below = [m for owner in models for m in _models_of(owner, part)]
        models = below or [m for m in models if m.__name__ == part] or models
    for owner in models:
        for name in owner.model_fields:
            if any(wrong in inner.model_fields for inner in _models_of(owner, name)):
                return f"{name}.{wrong}"
    near = nearest(wrong, {name for owner in models for name in owner.model_fields}, count=1)
    return near[0] if near else ""


def _models_of(owner: type[BaseModel], name: Any) -> list[type[BaseModel]]:
    field = owner.model_fields.get(name) if isinstance(name, str) else None
    return list(_models_in(field.annotation)) if field is not None else []


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
