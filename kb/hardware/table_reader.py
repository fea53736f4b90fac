"""Strict reading of untyped tables: every wrong entry becomes a problem with its path, and reading
continues. Knows no particular field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from typing import Any

from kb.errors import InvalidKnowledge, nearest


@dataclass(frozen=True)
class SpecProblem:
    """A wrong entry: its path, such as `facts[3].unit`, the error, and what to write instead."""

    path: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message} -> {self.fix}"


@dataclass
class Problems:
    """Collects the problems of a file, so that all are reported at once."""

    origin: str
    entries: list[SpecProblem] = field(default_factory=list)

    def add(self, path: str, message: str, fix: str) -> None:
        self.entries.append(SpecProblem(path, message, fix))

    def raise_if_any(self) -> None:
        """Raise InvalidKnowledge with every problem, in the order of the file."""
        if not self.entries:
            return
        listed = "\n".join(f"  {problem}" for problem in self.entries)
        noun = "problem" if len(self.entries) == 1 else "problems"
        raise InvalidKnowledge(
            f"{self.origin}: {len(self.entries)} {noun}\n{listed}",
            hint="Correct each entry named in the message, then send it again.",
            details={
                "origin": self.origin,
                "problems": [
                    {"path": p.path, "message": p.message, "fix": p.fix} for p in self.entries
                ],
            },
        )


class TableReader:
    """A table of a file; `path` is empty for the outermost."""

    def __init__(self, raw: Mapping[str, Any], path: str, problems: Problems) -> None:
        self.raw = raw
        self.path = path
        self.problems = problems

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def add(self, key: str, message: str, fix: str) -> None:
        """Add a problem of a key of this table."""
        self.problems.add(self.at(key), message, fix)

    def only(self, known: Iterable[str]) -> None:
        """Add a problem for each unknown key, with the nearest known one."""
        names = list(known)
        for key in self.raw:
            if key not in names:
                near = nearest(key, names, count=1)
                fix = f"did you mean {near[0]}? " if near else ""
                fix += f"known keys: {', '.join(names)}"
                self.add(key, "unknown key", fix)

    def text(self, key: str, *, required: bool = False, limit: int = 500) -> str:
        """The text of a key; "" and a problem if it is not text."""
        value = self.raw.get(key)
        if value is None:
            if required:
                self.add(key, "missing", f'add {key} = "..."')
            return ""
        if not isinstance(value, str):
            self.add(key, f"{_kind(value)} where text belongs", "write it in quotes")
            return ""
        if required and not value.strip():
            self.add(key, "empty", "fill it in")
        if len(value) > limit:
            self.add(key, f"{len(value)} characters", f"keep it under {limit}")
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        """One of the allowed words; `default` if the key is missing or wrong."""
        value = self.text(key) or default
        if value in allowed:
            return value
        near = nearest(value, allowed, count=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        self.add(key, f"{value!r} is not allowed", f"one of {', '.join(allowed)}{hint}")
        return default

    def flag(self, key: str) -> bool:
        """true or false; false if the key is missing or wrong."""
        value = self.raw.get(key, False)
        if not isinstance(value, bool):
            self.add(key, f"{_kind(value)} where true or false belongs", f"write {key} = true")
            return False
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The non-empty texts of a list; other entries are problems."""
        value = self.raw.get(key, [])
        if not isinstance(value, list | tuple):
            self.add(key, f"{_kind(value)} where a list belongs", f'write {key} = ["..."]')
            return ()
        for index, item in enumerate(value):
            if not isinstance(item, str) or not item.strip():
                self.add(f"{key}[{index}]", "not a text", "write a non-empty text in quotes")
        return tuple(item for item in value if isinstance(item, str) and item.strip())

    def tables(self, key: str) -> list[TableReader]:
        value = self.raw.get(key, [])
        if not isinstance(value, list | tuple):
            self.add(key, f"{_kind(value)} where tables belong", f"write [[{key}]] above each")
            return []
        readers = []
        for index, item in enumerate(value):
            where = f"{key}[{index}]"
            if isinstance(item, Mapping):
                readers.append(TableReader(item, self.at(where), self.problems))
            else:
                self.add(where, f"{_kind(item)} where a table belongs", f"write [[{key}]]")
        return readers

    def table(self, key: str) -> TableReader:
        """A reader for a table; an empty one if the key is missing or wrong."""
        value = self.raw.get(key, {})
        if not isinstance(value, Mapping):
            self.add(key, f"{_kind(value)} where a table belongs", f"write [{self.at(key)}]")
            value = {}
        return TableReader(value, self.at(key), self.problems)

    def date(self, key: str, *, required: bool = False) -> str:
        """A date, as text or TOML date, in ISO format; "" if missing or wrong."""
        value = self.raw.get(key)
        if isinstance(value, date) and not isinstance(value, datetime):
            return value.isoformat()
        text = self.text(key, required=required)
        if not text:
            return ""
        try:
            return date.fromisoformat(text).isoformat()
        except ValueError:
            self.add(key, f"{text!r} is not a date", 'write the day it was read as "2026-11-20"')
            return ""


def names_of(shape: type[Any]) -> list[str]:
    """The keys of a table that is read into a dataclass."""
    return [entry.name for entry in fields(shape)]


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}
    for kind, name in names.items():
        if isinstance(value, kind):
            return name
    return "a table" if isinstance(value, Mapping) else f"a {type(value).__name__}"
