"""The client without a service: `Kernlore(backend=InProcess(retriever))` asks a retriever in this
process.

Carries what retrieval itself answers (retrieve, outcome, signals); uploads and the registry need
the service. Answers have the service's JSON shapes, errors too."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from kb.errors import InvalidRequest, KernloreError, Unavailable
from retrieval.answer import RetrieveRequest
from retrieval.diagnose.signals import load_signals
from retrieval.service import Retriever

_OUTCOME = re.compile(r"/retrievals/([^/]+)/outcome")
_LISTS = ("categories", "skill_states", "signals", "roles")
_TOLD = ("correct", "speedup", "baseline_speedup", "note")


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
        try:
            return self._answer(method, path, json or {})
        except KernloreError as error:
            return error.status, error.as_json()

    def _answer(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        if (method, path) == ("POST", "/retrieve"):
            return 200, self._retriever.retrieve(_request(body)).as_json()
        if (method, path) == ("GET", "/signals"):
            return 200, {"signals": [asdict(signal) for signal in load_signals()]}
        outcome = _OUTCOME.fullmatch(path)
        if method == "POST" and outcome:
            told = {key: body.get(key) for key in _TOLD}
            outcome_id = self._retriever.report_outcome(
                outcome[1], used=body.get("used") or (), **told
            )
            return 201, {"id": outcome_id}
        raise Unavailable(
            f"{method} {path} needs the service", hint="Start `kernlore serve` and give its URL."
        )


def _request(body: Mapping[str, Any]) -> RetrieveRequest:
    known = {field.name for field in fields(RetrieveRequest)}
    foreign = sorted(set(body) - known)
    if foreign:
        raise InvalidRequest(
            f"unknown field {foreign[0]!r}", hint=f"Use {', '.join(sorted(known))}."
        )
    values: dict[str, Any] = {
        key: tuple(v) if key in _LISTS and v else v for key, v in body.items()
    }
    return RetrieveRequest(**{key: v for key, v in values.items() if v is not None})
