"""`python -m api.operations` writes kb/routes.json from the declarations."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from api.operations import Operation, operations
from kb.routes import FILE


def route_row(operation: Operation[Any, Any]) -> dict[str, Any]:
    """A row of kb/routes.json."""
    row = {"method": operation.method, "path": operation.path}
    if operation.whole:
        return {**row, "whole": operation.whole}
    places: dict[str, list[str]] = defaultdict(list)
    for i in operation.inputs:
        if i.place != "path":
            places[i.place].append(i.name)
    return {**row, **places}


def routes_file() -> str:
    """The text of kb/routes.json."""
    rows = (f"  {json.dumps(o.name)}: {json.dumps(route_row(o))}" for o in operations())
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(routes_file(), encoding="utf-8")
