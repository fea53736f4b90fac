"""Conversion of results into JSON values, and the documentation of their fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


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


class Doc:
    """Documentation of a field of a record, as `Annotated[int, Doc("Bytes read.")]`. The
    description of the HTTP interface shows it."""

    def __init__(self, text: str, *examples: str) -> None:
        self.text = text
        self.examples = examples

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        examples = {"examples": list(self.examples)} if self.examples else {}
        return {**handler(core_schema), "description": self.text, **examples}
