"""Which field of a body is meant by an unknown one, also inside nested objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from kb.errors import nearest


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
