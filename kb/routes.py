"""The route of every operation, for programs that call a service: a method, a path and where each
parameter goes. `routes.json` is generated from the declarations in `api.operations`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

FILE = Path(__file__).with_name("routes.json")


@dataclass(frozen=True)
class Route:
    """`noun` is the module of `api.operations` that declares it; `query` and `body` are names of
    parameters; `whole` is the parameter that is the JSON body as a whole, empty where none is.
    """

    noun: str
    method: str
    path: str
    query: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    whole: str = ""

    def request(self, given: Mapping[str, Any]) -> tuple[str, str, dict[str, Any], Any]:
        """Method, path, query parameters and JSON body (None without one) of a call. Parameters
        that are None are left out.
        """
        filled = {name: quote(str(value), safe="") for name, value in given.items()}
        path = self.path.format_map(filled)
        known = {name: given[name] for name in self.query if given.get(name) is not None}
        query = {n: _text(v) if isinstance(v, bool) else v for n, v in known.items()}
        if self.whole:
            return self.method, path, query, given[self.whole]
        body = {name: given[name] for name in self.body if given.get(name) is not None}
        return self.method, path, query, body if self.body else None


def _text(value: bool) -> str:
    return "true" if value else "false"


@cache
def routes() -> Mapping[str, Route]:
    """Every operation by name."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        name: Route(
            row["noun"],
            row["method"],
            row["path"],
            tuple(row.get("query", ())),
            tuple(row.get("body", ())),
            row.get("whole", ""),
        )
        for name, row in rows.items()
    }
