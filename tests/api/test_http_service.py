"""Health, metrics, openapi.json, and headers of every request."""

from __future__ import annotations

import re

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from api.app import create_app
from api.http.routes import query_parameters
from api.operations import operations
from kb.settings import Settings
from retrieval.diagnose.signals import load_signals
from tests.api.conftest import URL, assert_error, wait_until_ready

pytestmark = pytest.mark.slow(seconds=3)


def test_alive_and_ready(client: TestClient) -> None:
    assert client.get("/healthz").json()["status"] == "alive"
    answer = client.get("/readyz")
    assert answer.status_code == 200
    state = wait_until_ready(client)
    assert state["ready"] and state["index"] == "exact" and state["knowledge_loaded"]
    assert state["passages"] == state["embedded"] > 20


def test_start_names_three_requests(client: TestClient) -> None:
    start = client.get("/").json()
    assert start["docs"] == "/docs"
    assert len(start["try"]) == 3


def test_docs_page_needs_no_internet(client: TestClient) -> None:
    page = client.get("/docs").text
    links = re.findall(r"""(?:src|href)=["']([^"']+)["']""", page)
    assert len(links) >= 3
    assert not [link for link in links if link.startswith(("http", "//"))]
    for link in links:
        assert client.get(link).status_code == 200, link


def test_every_signal_has_example(client: TestClient) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/retrieve"]["post"]
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    assert {s.id for s in load_signals()} < set(examples)
    assert {"raw log", "profiler metrics", "question", "combination"} < set(examples)


def test_examples_are_valid_requests(client: TestClient) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/retrieve"]["post"]
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    for name in ("memory_bound", "raw log", "profiler metrics", "question", "combination"):
        answer = client.post("/retrieve", json=examples[name]["value"])
        assert answer.status_code == 200, (name, answer.text)


def test_body_examples_are_valid(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    with_example = [operation for operation in operations() if operation.example is not None]
    assert len(with_example) == 5
    for operation in with_example:
        described = paths[operation.path][operation.method.lower()]["requestBody"]
        example = described["content"]["application/json"]["example"]
        assert operation.model is not None
        read = operation.model.model_validate(example)
        assert read.model_dump(exclude_unset=True) == example, operation.name


def test_parameters_are_checked_by_their_openapi_names(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    compared = 0
    for route in client.app.routes:  # type: ignore[attr-defined]
        if not isinstance(route, APIRoute) or not route.include_in_schema:
            continue
        for method in route.methods or ():
            described = paths[route.path][method.lower()].get("parameters", ())
            names = [p["name"] for p in described if p["in"] == "query"]
            assert list(query_parameters(route)) == names, (method, route.path)
            compared += 1
    assert compared == sum(map(len, paths.values()))


def test_every_operation_declares_error_shape(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            schema = operation["responses"]["4XX"]["content"]["application/json"]["schema"]
            assert schema["$ref"].endswith("/ErrorBody"), (method, path)
            assert "422" not in operation["responses"]
            assert operation["tags"]


def test_every_answer_has_model(client: TestClient) -> None:
    """The client of these tests validates answers against the models."""
    described = client.get("/openapi.json").json()
    other = {"/metrics", "/documents/{document_id}/file", "/skills/{name}/export"}  # not JSON
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            good = {s: r for s, r in operation["responses"].items() if s.startswith("2")}
            assert good, (method, path)
            for response in good.values():
                content = response.get("content", {})
                assert ("application/json" in content) is (path not in other), (method, path)
                for kind in content.values():
                    schema = kind.get("schema", {})
                    named = [schema, *schema.get("anyOf", ())]
                    assert path in other or any("$ref" in part for part in named), (method, path)


def test_schema_references_resolve(client: TestClient) -> None:
    answer = client.get("/openapi.json")
    schemas = answer.json()["components"]["schemas"]
    for name in re.findall(r'"#/components/schemas/([^"]+)"', answer.text):
        assert name in schemas


def test_metrics_have_templates_as_labels(client: TestClient) -> None:
    client.get("/documents/doc_somebody_elses")
    client.get("/no/such/page")
    client.request("BREW", "/healthz")
    client.get("/retrieve", params={"signal": "memory_bound", "hardware": "h100"})
    client.get("/retrieve", params={"signal": "not_a_signal"})
    text = client.get("/metrics").text
    assert 'route="/documents/{document_id}",status="404"' in text
    assert 'route="other",status="404"' in text
    assert 'method="other"' in text and "BREW" not in text
    assert 'kernlore_retrievals_total{signal="memory_bound"}' in text
    assert 'kernlore_jobs{state="ready"}' in text
    for stage in ("diagnosis", "ranking", "context", "excerpts", "moves and skills", "other"):
        assert f'kernlore_retrieval_stage_seconds_count{{stage="{stage}"}}' in text, stage
    assert "kernlore_oldest_queued_job_seconds" in text and "kernlore_model_cost_usd" in text
    assert 'kernlore_skills{state="active"}' in text
    assert "doc_somebody_elses" not in text and "not_a_signal" not in text
    for name in ("passages", "passages_embedded", "excerpts_returned_total", "ready"):
        assert re.search(rf"^kernlore_{name} [1-9]", text, re.M), name


def test_request_ids(client: TestClient) -> None:
    assert client.get("/healthz").headers["x-request-id"].startswith("req_")
    given = client.get("/healthz", headers={"x-request-id": "run-7.3"})
    assert given.headers["x-request-id"] == "run-7.3"
    hostile = client.get("/healthz", headers={"x-request-id": "a b{}"})
    assert hostile.headers["x-request-id"].startswith("req_")


def test_internal_error_has_no_internals(settings: Settings) -> None:
    app = create_app(settings)

    @app.get("/defect")
    def defect() -> None:
        raise LookupError("the secret inside")

    # Without its lifespan: nothing is opened, because this route does not need it.
    answer = TestClient(app, URL, raise_server_exceptions=False).get("/defect")
    body = assert_error(answer, 500, "internal_error")
    assert body["details"]["request_id"] == answer.headers["x-request-id"]
    assert "secret" not in answer.text


def test_wrong_method_has_allowed_ones(client: TestClient) -> None:
    answer = client.put("/documents")
    body = assert_error(answer, 405, "method_not_allowed")
    assert body["details"]["allowed"] == ["GET", "POST"]
    assert answer.headers["allow"] == "GET, POST"


def test_unknown_route_has_nearest_ones(client: TestClient) -> None:
    body = assert_error(client.get("/hardwares"), 404, "not_found")
    assert "/hardware" in body["details"]["nearest"]


@pytest.mark.parametrize("header", ["x-content-type-options"])
def test_every_answer_has_security_headers(client: TestClient, header: str) -> None:
    assert client.get("/no/such/page").headers[header] == "nosniff"


def test_upload_cannot_replace_built_in_knowledge(client: TestClient) -> None:
    files = {"file": ("mine.md", b"# Mine\n\nNothing is masked.")}
    for key in (
        "builtin/constraints/masking-and-bounds.md",
        ".\\BUILTIN\\constraints/masking-and-bounds.md",
    ):
        answer = client.post("/documents", files=files, data={"source_key": key})
        body = assert_error(answer, 400, "invalid_request")
        assert "built-in knowledge" in body["message"] and "source key" in body["hint"]
