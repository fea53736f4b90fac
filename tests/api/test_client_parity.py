"""The client gives one answer in process and over HTTP; only the retrieval's id differs."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from retrieval.client import Kernlore, KernloreClientError
from retrieval.in_process import InProcess


def over_http(client: TestClient, **asked: object) -> object:
    answer = client.post("/retrieve", json=asked)
    assert answer.status_code == 200
    body = answer.json()
    body.pop("retrieval_id")
    return body


@pytest.mark.parametrize(
    "asked",
    [
        {"signal": "memory_bound", "hardware": "h100"},
        {"query": "how wide should a load be?", "hardware": "h100", "k": 7},
        {"log": "ptxas info : 8 bytes spill stores, 8 bytes spill loads", "hardware": "h100"},
        {"metrics": {"dram__throughput.avg.pct_of_peak_sustained_elapsed": 91}, "k": 3},
        {"signals": ["register_spill", "memory_bound"], "roles": ["warps"], "hardware": "h100"},
        {"profile": "4000,,cycles,9,100.00,,\n9000,,instructions,9,100.00,,", "k": 3},
        {"query": "barriers", "categories": "guidance,hardware", "hardware": "h100", "log": " "},
    ],
)
def test_in_process_and_over_http_are_one_answer(
    client: TestClient, asked: dict[str, object]
) -> None:
    services = client.app.state.services  # type: ignore[attr-defined]
    status, body = InProcess(services.retriever).send("POST", "/retrieve", json=asked)
    assert status == 200
    body.pop("retrieval_id")
    assert body == over_http(client, **asked)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"signal": "memory_bond"},
        {"signals": ["memory_bond"]},
        {"query": "q", "hardware": "h1000"},
        {"query": "q", "harware": "h100"},
        {"query": 7, "metrics": {"a": True}},
        {"query": "q", "k": 0},
        {"profile": "of no profiler"},
        {"query": "q", "roles": ["tile_q"]},
        {"query": "q", "problem": {"weight": 1}},
        {"query": "x" * 20_001},
        [],
    ],
)
def test_what_is_refused_is_refused_with_the_same_json(
    client: TestClient, body: dict[str, object]
) -> None:
    services = client.app.state.services  # type: ignore[attr-defined]
    answer = client.post("/retrieve", json=body)
    assert answer.status_code in (400, 404)
    sent = InProcess(services.retriever).send("POST", "/retrieve", json=body)
    assert sent == (answer.status_code, answer.json())


def test_outcomes_and_signals_have_the_same_json(client: TestClient) -> None:
    services = client.app.state.services  # type: ignore[attr-defined]
    in_process = InProcess(services.retriever)
    answer = client.get("/retrieve", params={"signal": "memory_bound"}).json()
    path = f"/retrievals/{answer['retrieval_id']}/outcome"
    body = {"used": [], "correct": True}
    status, reported = in_process.send("POST", path, json=body)
    over = client.post(path, json=body)
    assert status == over.status_code == 201
    assert reported.keys() == over.json().keys()
    assert reported["retrieval_id"] == over.json()["retrieval_id"]
    assert in_process.send("GET", "/signals") == (200, client.get("/signals").json())


def test_equal_requests_give_a_byte_identical_context(client: TestClient) -> None:
    asked = {"signal": "register_spill", "hardware": "h100", "query": "accumulators"}
    first, second = (client.post("/retrieve", json=asked).json() for _ in range(2))
    assert first["context"] and first["context"] == second["context"]
    assert first["retrieval_id"] != second["retrieval_id"]


def test_the_client_reads_it_and_reports_back(client: TestClient) -> None:
    services = client.app.state.services  # type: ignore[attr-defined]
    with Kernlore(backend=InProcess(services.retriever)) as kernlore:
        answer = kernlore.retrieve(signal="memory_bound", hardware="h100")
        kernlore.report(answer.retrieval_id, used=[answer.excerpts[0].id], correct=True)
        with pytest.raises(KernloreClientError) as caught:
            kernlore.retrieve(signal="memory_bond")
        assert caught.value.code == "unknown_signal"
        with pytest.raises(KernloreClientError) as needs_service:
            kernlore.hardware()
        assert needs_service.value.code == "unavailable"
