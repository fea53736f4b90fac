"""Conversion of records into JSON values and back, and the documentation of their fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts, sequences as lists; infinite numbers and NaN become None.

    Unlike `dataclasses.asdict`, it does not fail for read-only mappings. Raises TypeError for any
    other type.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(entry) for entry in value)
    raise TypeError(f"{type(value).__name__} cannot be converted to JSON")


def from_json(cls: type[T], row: Mapping[str, Any]) -> T:
    """The inverse of `dataclasses.asdict` for values that were JSON: lists become tuples, and
    objects records, as the fields of `cls` declare. Fields of newer versions are ignored; those
    that an older version lacks get their defaults. Raises TypeError for another row."""
    kind: Any = cls
    readers = _readers(kind)
    return cls(**{name: read(row[name]) for name, read in readers.items() if name in row})


@cache
def _readers(cls: Any) -> Mapping[str, Callable[[Any], Any]]:
    hints = get_type_hints(cls)
    return {field.name: _reader(hints[field.name]) for field in fields(cls)}


def _reader(kind: Any) -> Callable[[Any], Any]:
    """Reads a value of the type from JSON."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return partial(from_json, cast(type[Any], kind))
    if NoneType in parts:
        known = [_reader(part) for part in parts if part is not NoneType]
        return lambda value: None if value is None else known[0](value)
    if origin is tuple:
        item = _reader(parts[0])
        return lambda value: tuple(map(item, value))
    if origin is Mapping and _reader(parts[1]) is not _same:
        entry = _reader(parts[1])
        return lambda value: {key: entry(one) for key, one in value.items()}
    return _same


def _same(value: Any) -> Any:
    return value


class Doc:
    """Documentation of a field of a record, as `Annotated[int, Doc("Bytes read.")]`. The
    description of the HTTP interface shows it."""

    def __init__(self, text: str, *examples: str) -> None:
        self.text = text
        self.examples = examples

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        examples = {"examples": list(self.examples)} if self.examples else {}
        return {**handler(core_schema), "description": self.text, **examples}
