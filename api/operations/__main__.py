"""`python -m api.operations` generates kb/routes.json and parts of retrieval/client.py from the
declarations.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api.operations import Operation, operations
from api.operations.client_code import CLIENT, client_module
from kb.routes import FILE


def generated_files() -> Mapping[Path, str]:
    """The text of each file with generated parts."""
    every = [either for o in operations() for either in (o, o.form) if either is not None]
    rows = (f"  {json.dumps(o.name)}: {json.dumps(route_row(o))}" for o in every)
    return {FILE: "{\n" + ",\n".join(rows) + "\n}\n", CLIENT: client_module()}


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


if __name__ == "__main__":
    for path, text in generated_files().items():
        path.write_text(text, encoding="utf-8")
