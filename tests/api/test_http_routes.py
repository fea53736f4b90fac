"""Row 20: every route answers alike for an unknown id and for an id of another scope."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from api.operations.evaluations import evaluate_candidate
from api.operations.runs import propose_candidate, start_run
from api.strict_json import validated
from api.web.pages import PageRoute
from kb.errors import InvalidRequest
from tests.api.conftest import assert_error

# A valid body for each route that takes one, so that only the id is wrong.
BODIES: dict[str, Any] = {
    "/runs/{run_id}/candidates": {
        "step": 1,
        "candidate": {"files": {"k.cpp": ""}, "main": "k.cpp", "language": "cpp"},
    },
    "/runs/{run_id}/nodes/{number}/review": {
        "decision": "accepted",
        "actor": "absent",
        "reason": "a test",
    },
    "/retrievals/{retrieval_id}/outcome": {"used": []},
    "/passages/{passage_id}": {"text": "A correction."},
    "/facts/{fact_id}": {"status": "accepted"},
    "/hardware/{hardware_id}/facts": {"status": "accepted", "where": {}},
    "/hardware/{hardware_id}/lexicon": {"term": "FST", "concept": ""},
    "/knowledge/recipes/{recipe_id}": {"status": "accepted"},
    "/symbols/{symbol_id}": {"meaning": "A correction."},
    "/skills/{name}": {"state": "retired", "actor": "absent", "reason": "a test"},
    "/hardware/{hardware_id}/acceptance": {"language": "cpp"},
    "/hardware/{hardware_id}/readings": {"models": "openai/m"},
    "/hardware/{hardware_id}/prepare": {"models": "openai/m"},
    "/hardware/{hardware_id}/drafts": {"status": "accepted"},
    "post /hardware/{hardware_id}/facts": {"key": "x_lanes", "text": "4"},
    "/documents/{document_id}/restore": {"version": 1},
    "/jobs/{job_id}/decision": {"decision": "discard"},
    "/skills/{name}/narrow": {"key": "op", "value": "softmax", "actor": "a", "reason": "a test"},
    "/skills/{name}/merge": {"into": "absent", "actor": "absent", "reason": "a test"},
    "/skills/{name}/revisions": {"body": "Another.", "actor": "absent", "reason": "a test"},
}
WRONG = ("absent", "doc_0123456789abcdef", "../../etc/passwd", "%00", "a" * 3000, "' OR 1=1 --")


def test_every_route_refuses_foreign_id(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    checked = 0
    for template, operations in paths.items():
        if "{" not in template:
            continue
        for method in operations:
            for wrong in WRONG:
                path = re.sub(r"\{\w+\}", wrong.replace("/", "%2F"), template)
                answer = client.request(
                    method,
                    path,
                    json=BODIES.get(f"{method} {template}", BODIES.get(template)),
                    headers={"host": "127.0.0.1:8321"},
                )
                assert_error(answer, 404)
                checked += 1
    assert checked >= 16 * len(WRONG)


def test_unknown_hardware_has_nearest_ids(client: TestClient) -> None:
    for path in ("/hardware/h10", "/hardware/h10/facts", "/hardware/h10/coverage"):
        body = assert_error(client.get(path), 404, "unknown_hardware")
        assert "h100" in body["hint"]
    assert_error(client.get("/documents?hardware=h10"), 404, "unknown_hardware")


def test_every_route_refuses_unknown_query_parameters(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for template, operations in paths.items():
        path = re.sub(r"\{\w+\}", "absent", template)
        for method in operations:
            answer = client.request(method, f"{path}?hardwares=h100")
            assert "unknown query parameter" in answer.json()["message"], (method, path)


def test_every_page_refuses_query_with_nul(client: TestClient) -> None:
    pages = [
        route
        for route in client.app.routes  # type: ignore[attr-defined]
        if isinstance(route, PageRoute) and route.path != "/ui/{rest:path}"
    ]
    assert len(pages) > 20
    for route in pages:
        for method in route.methods or ():
            answer = client.request(method, re.sub(r"\{\w+\}", "1", route.path) + "?x=%00")
            assert answer.status_code == 400, (method, route.path)
            assert "NUL" in answer.text, (method, route.path)


# -- unknown fields get a suggestion at any depth; `hardware` is optional

EvaluationBody, RunBody, StepBody = (
    operation.model or BaseModel for operation in (evaluate_candidate, start_run, propose_candidate)
)
KERNEL = {"files": {"k.cpp": "x"}, "main": "k.cpp", "language": "cpp"}


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        (RunBody, {"problem": "softmax", "candidates": 3}, "did you mean goal.candidates?"),
        (RunBody, {"problem": "softmax", "hardwares": "h100"}, "did you mean hardware?"),
        (RunBody, {"problem": "softmax", "goal": {"minuts": 3}}, "goal.minuts: unknown field; did"),
        (RunBody, {"problem": "softmax", "goal": {"minuts": 3}}, "did you mean minutes?"),
        (EvaluationBody, {"problem": "x", "candidate": {**KERNEL, "fils": {}}}, "mean files?"),
        (StepBody, {"step": 1, "candidate": {**KERNEL, "parameter": {}}}, "mean parameters?"),
        (RunBody, {"problem": "softmax", "zzzz": 3}, "zzzz: unknown field"),
    ],
)
def test_unknown_field_has_suggestion(
    model: type[BaseModel], body: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        validated(model, body)
    assert expected in error.value.message


def test_evaluation_hardware_defaults_to_this_machine() -> None:
    body = evaluate_candidate.checked({"problem": "x", "candidate": KERNEL})
    assert body["hardware"] == "auto"
