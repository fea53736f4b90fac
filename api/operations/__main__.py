"""`python -m api.operations` writes kb/routes.json anew from the declarations."""

from __future__ import annotations

import json
from typing import Any

from api.operations import Operation, declared_by_noun
from kb.routes import FILE


def described(noun: str, operation: Operation[Any, Any]) -> dict[str, Any]:
    """A row of kb/routes.json."""
    head = {"noun": noun, "method": operation.method, "path": operation.path}
    places: dict[str, list[str]] = {"query": [], "body": []}
    for given in operation.inputs:
        if given.place in places and given.name != "query":
            places[given.place].append(given.name)
    if operation.takes_model:
        return {**head, "whole": places["body"][0]}
    return {**head, **{name: rows for name, rows in places.items() if rows}}


def written() -> str:
    """The text of the file."""
    by_noun = declared_by_noun().items()
    rows = {o.name: described(noun, o) for noun, declared in by_noun for o in declared}
    lines = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
