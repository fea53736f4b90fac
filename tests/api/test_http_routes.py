"""Row 20: every route answers alike for an unknown id and for an id of another scope."""

from __future__ import annotations

import re
from typing import Any

from fastapi.testclient import TestClient

from api.web.pages import PageRoute
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
                    json=BODIES[template] if method == "patch" or template in BODIES else None,
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
