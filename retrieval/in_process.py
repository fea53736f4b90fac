"""Use the client without a service: `Kernlore(backend=InProcess(retriever))`.

Supports the requests of retrieval (retrieve, outcome, signals); uploads and the registry need the
service. Requests are validated as over HTTP, and answers and errors are the same JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kb.errors import InvalidRequest, KernloreError, Unavailable
from retrieval.diagnose.signals import load_signals
from retrieval.request_body import read_request
from retrieval.service import Retriever

_OUTCOME_PATH = re.compile(r"/retrievals/([^/]+)/outcome")
_OUTCOME_FIELDS = ("used", "correct", "speedup", "baseline_speedup", "note")


class InProcess:
    """A `retrieval.client.Backend` over a retriever."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any | None = None,
        files: Sequence[Any] | None = None,
    ) -> tuple[int, Any]:
        """The status and decoded JSON of the service's response. Operations that need the service
        return 503.
        """
        try:
            status, body = self._answer(method, path, {} if json is None else json)
        except KernloreError as error:
            status, body = error.status, error.as_json()
        return status, _decoded(body)

    def _answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if (method, path) == ("POST", "/retrieve"):
            return 200, self._retriever.retrieve(read_request(body)).as_json()
        if (method, path) == ("GET", "/signals"):
            return 200, {"signals": [asdict(signal) for signal in load_signals()]}
        outcome = _OUTCOME_PATH.fullmatch(path)
        if method == "POST" and outcome:
            return 201, self._report(outcome[1], body)
        raise Unavailable(
            f"{method} {path} needs the service", hint="Start `kernlore serve` and give its URL."
        )

    def _report(self, retrieval_id: str, body: Mapping[str, Any]) -> dict[str, str]:
        unknown = sorted(body.keys() - {*_OUTCOME_FIELDS})
        if unknown:
            raise InvalidRequest(
                f"unknown field {unknown[0]!r}", hint=f"Use {', '.join(_OUTCOME_FIELDS)}."
            )
        outcome_id = self._retriever.report_outcome(
            retrieval_id, **{"used": (), **{n: v for n, v in body.items() if v is not None}}
        )
        return {"retrieval_id": retrieval_id, "outcome_id": outcome_id}


def _decoded(body: Any) -> Any:
    """The body after a round trip through JSON: lists instead of tuples."""
    return json.loads(json.dumps(body))
