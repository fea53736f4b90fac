"""The route of every operation, for programs that call a service: a method, a path and the place of
each parameter. `routes.json` is generated from the declarations in `api.operations`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

FILE = Path(__file__).with_name("routes.json")


class RouteRequest(NamedTuple):
    """A request without its host. `body` is the JSON body, None without one; `form` and `files` are
    the fields of a multipart body."""

    method: str
    path: str
    query: Mapping[str, Any]
    body: Any = None
    form: Mapping[str, Any] = {}
    files: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Route:
    """`query`, `body`, `form` and `files` are names of parameters; `whole` names the parameter that
    is the JSON body or all query parameters, empty without one."""

    method: str
    path: str
    query: Sequence[str] = ()
    body: Sequence[str] = ()
    form: Sequence[str] = ()
    files: Sequence[str] = ()
    whole: str = ""

    def request(self, given: Mapping[str, Any]) -> RouteRequest:
        """The request of a call. Parameters that are None are left out, unknown ones are sent in
        the body, so that the service refuses them."""
        known = {name: value for name, value in given.items() if value is not None}
        path = self.path.format_map({n: quote(str(v), safe="") for n, v in known.items()})
        if self.whole:
            value = known.get(self.whole, {})
            if self.method == "GET":
                return RouteRequest(self.method, path, value)
            return RouteRequest(self.method, path, {}, value)
        query, form, files = (
            {name: known[name] for name in names if name in known}
            for names in (self.query, self.form, self.files)
        )
        placed = {*query, *form, *files, *(n for n in known if f"{{{n}}}" in self.path)}
        fields = {name: value for name, value in known.items() if name not in placed}
        return RouteRequest(self.method, path, query, fields if self.body else None, form, files)


@cache
def routes() -> Mapping[str, Route]:
    """The route of each operation, by the operation's name."""
    rows: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Route(**row) for name, row in rows.items()}
