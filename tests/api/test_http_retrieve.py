"""Retrieval over HTTP in every form, and its outcome."""

from __future__ import annotations

import inspect

import pytest
from fastapi.testclient import TestClient

from api.cli.commands.retrieve import retrieve
from retrieval.request import request_fields
from tests.api.conftest import assert_error, finished, upload

LOG = "OutOfResources: out of resource: shared memory, Required: 294912, Hardware limit: 232448."
METRICS = {
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": 92.0,
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": 20.0,
}


def test_retrieve_by_signal(client: TestClient) -> None:
    params = {"signal": "memory_bound", "hardware": "h100", "k": "5"}
    answer = client.get("/retrieve", params=params).json()
    assert answer["diagnosis"]["signals"][0]["id"] == "memory_bound"
    assert answer["hardware"]["lineage"] == ["h100", "hopper", "nvidia"]
    assert 1 <= len(answer["excerpts"]) <= 5
    for excerpt in answer["excerpts"]:
        assert "mi300x" not in excerpt["hardware"]
        assert excerpt["document"]["title"] and excerpt["section"]
    assert answer["context"]


def test_answer_is_short_by_default(client: TestClient) -> None:
    requested = {"signal": "memory_bound", "hardware": "h100"}
    short = client.post("/retrieve", json=requested).json()
    whole = client.post("/retrieve", json=requested | {"k": len(short["excerpts"])}).json()
    assert short["context"] == whole["context"]
    assert not short["parts"] and whole["parts"]
    pairs = list(zip(short["excerpts"], whole["excerpts"], strict=True))
    for cited, excerpt in pairs:
        quoted = excerpt["text"].strip() in short["context"]
        assert cited["text"] == ("" if quoted else excerpt["text"])
        assert cited["id"] == excerpt["id"]
    assert any(not cited["text"] for cited, _ in pairs)
    named = client.post("/retrieve", json=requested | {"fields": "excerpts,uplift"}).json()
    assert [e["text"] for e in named["excerpts"]] == [e["text"] for _, e in pairs]
    assert not named["context"] and not named["moves"]
    written = client.post("/retrieve", json={"task": "write", "hardware": "h100"}).json()
    assert 0 < short["context_tokens"] <= 3_000 and written["context_tokens"] <= 6_000


def test_get_and_post_give_equal_answers(client: TestClient) -> None:
    params = {"signal": "memory_bound", "hardware": "h100", "categories": "guidance,hardware"}
    got = client.get("/retrieve", params=params).json()
    repeated = {**params, "categories": ["guidance", "hardware"]}
    again = client.get("/retrieve", params=repeated).json()
    posted = client.post("/retrieve", json=repeated).json()
    assert got["context"] == again["context"] == posted["context"]
    assert {e["category"] for e in got["excerpts"]} <= {"guidance", "hardware"}
    assert len({got["retrieval_id"], again["retrieval_id"], posted["retrieval_id"]}) == 3


def test_several_signals_and_roles_by_url_and_body(client: TestClient) -> None:
    body = {
        "signals": ["register_spill", "memory_bound"],
        "roles": ["warps", "stages"],
        "hardware": "h100",
    }
    posted = client.post("/retrieve", json=body).json()
    repeated = client.get("/retrieve", params=body).json()
    url = "/retrieve?signal=register_spill&signals=memory_bound&roles=warps,stages&hardware=h100"
    listed = client.get(url).json()
    ids = [signal["id"] for signal in posted["diagnosis"]["signals"]]
    assert ids == ["register_spill", "memory_bound"]
    assert posted["moves"] == repeated["moves"] == listed["moves"]
    assert posted["context"] == repeated["context"] == listed["context"]
    assert_error(client.get("/retrieve?signal=memory_bound&roles=tile_q"), 400)


def test_every_request_field_is_in_schema_and_command_line(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    body = schema["components"]["schemas"]["RetrieveBody"]["properties"]
    specs = {spec.name: spec for spec in request_fields()}
    assert body.keys() == specs.keys()
    assert all(body[name]["description"] == spec.help for name, spec in specs.items())
    for method in ("get", "post"):
        parameters = {p["name"] for p in schema["paths"]["/retrieve"][method]["parameters"]}
        no_parameter = {"log", "metrics", "problem", "profile"}  # only in a body
        assert parameters == ({*specs} - no_parameter - {"query"}) | {"q"}
    plural = {"category": "categories", "skill_state": "skill_states", "role": "roles"}
    options = {plural.get(name, name) for name in inspect.signature(retrieve).parameters}
    # `--signal` is repeated for further signals.
    assert options - {"text", "context", "data_dir", "url", "as_json"} == {*specs} - {"signals"}


def test_raw_log_as_json_and_as_text(client: TestClient) -> None:
    posted = client.post("/retrieve", json={"log": LOG, "hardware": "h100", "k": 3}).json()
    raw = client.post(
        "/retrieve",
        params={"hardware": "h100", "k": 3},
        content=LOG.encode(),
        headers={"content-type": "text/plain; charset=utf-8"},
    ).json()
    assert posted["diagnosis"]["signals"][0]["id"] == "shared_memory_limit"
    assert raw["context"] == posted["context"]


def test_metrics_and_unknown_names(client: TestClient) -> None:
    requested = {
        "metrics": {**METRICS, "acme.pipe_stalls": 3, "acme.note": "12 %"},
        "hardware": "h100",
    }
    answer = client.post("/retrieve", json=requested).json()
    assert "memory_bound" in [s["id"] for s in answer["diagnosis"]["signals"]]
    assert "acme.pipe_stalls" in answer["diagnosis"]["unrecognised"]


def test_profile_as_text_and_as_json(client: TestClient) -> None:
    rows = "\n".join(f'"0","k","{name}","%","{value}"' for name, value in METRICS.items())
    text = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n' + rows
    given = client.post("/retrieve", json={"metrics": METRICS, "hardware": "h100"}).json()
    assert given["profile"] is None
    read = client.post("/retrieve", json={"profile": text, "hardware": "h100"}).json()
    assert read["profile"]["kind"] == "ncu" and read["profile"]["metrics"] == METRICS
    assert read["context"] == given["context"] and read["diagnosis"] == given["diagnosis"]
    tree = [{"frame": {"name": "add"}, "metrics": {"count": 4, "time (ns)": 8000.0}}]
    timed = client.post("/retrieve", json={"profile": tree, "hardware": "h100"}).json()
    assert timed["profile"]["metrics"] == {"duration_us": 2.0}
    refused = assert_error(client.post("/retrieve", json={"profile": "a,b\n1,2\n"}), 400)
    assert "ncu --csv" in refused["hint"]


def test_query_without_hardware(client: TestClient) -> None:
    answer = client.get("/retrieve", params={"q": "how wide should vector loads be"}).json()
    assert answer["hardware"] is None and answer["excerpts"]


def test_empty_form_fields_are_ignored(client: TestClient) -> None:
    url = (
        "/retrieve?signal=memory_bound&hardware=&q=&op=&language=&dtype=&categories=&skill_states="
    )
    assert client.get(url).status_code == 200


def test_five_megabytes_of_log(client: TestClient) -> None:
    log = f"ninja: building kernel step {'.' * 100}\n" * 41_000 + LOG
    assert len(log) > 5_000_000
    answer = client.post("/retrieve", json={"log": log, "hardware": "h100"})
    assert answer.status_code == 200
    assert answer.json()["diagnosis"]["signals"][0]["id"] == "shared_memory_limit"


def test_outcome(client: TestClient) -> None:
    answer = client.get("/retrieve", params={"signal": "memory_bound", "hardware": "h100"}).json()
    path = f"/retrievals/{answer['retrieval_id']}/outcome"
    used = [answer["excerpts"][0]["id"]]
    reported = client.post(path, json={"used": used, "correct": True, "speedup": 1.5})
    assert reported.status_code == 201
    assert reported.json()["retrieval_id"] == answer["retrieval_id"]
    assert_error(client.post(path, json={"used": ["psg_foreign"]}), 400)
    for figure in (-1.0, 1e300):
        refused = assert_error(client.post(path, json={"used": used, "speedup": figure}), 400)
        assert f"{figure:g}" in refused["message"] and "1,000,000" in refused["message"]


@pytest.mark.parametrize("parameter", ["hardwares", "query", "K"])
def test_mistyped_parameters_are_refused(client: TestClient, parameter: str) -> None:
    url = f"/retrieve?signal=memory_bound&{parameter}=h100"
    body = assert_error(client.get(url), 400)
    assert "hardware" in body["details"]["known"]


def test_signals(client: TestClient) -> None:
    signals = client.get("/signals").json()["signals"]
    assert {"id", "group", "title", "description", "related", "topics"} <= set(signals[0])


def test_knowledge_tree(client: TestClient) -> None:
    top = client.get("/knowledge").json()
    below = client.get("/knowledge", params={"path": "hardware/h100"}).json()
    assert top != below
    assert_error(client.get("/knowledge", params={"path": "hardware/nonesuch"}), 404)


def test_a_field_of_the_body_in_a_query_names_the_post(client: TestClient) -> None:
    answer = client.get("/retrieve", params={"log": "error: x", "hardware": "h100"})
    assert answer.status_code == 400
    assert answer.json()["hint"].startswith("Send log in the JSON body of POST /retrieve.")


OVERLAP = """# Skua engine

## Loads

The mover copies tiles of device memory into the scratchpad while the array computes. Vector loads
of the mover are 64 bytes wide, and wider loads keep more bytes in flight.

## Registers

An accumulator holds sixteen rows.

## Lengths

The register `vlen` stops the mover after a partial tile; the rest of the tail is not written.
"""


MASKED = "how is the tail of a load masked and which value do masked lanes get"


def test_uploaded_manual_precedes_general_guides(client: TestClient) -> None:
    client.post("/hardware", json={"id": "skua-x1"})
    sent = upload(client, "skua.md", OVERLAP.encode(), hardware="skua-x1").json()
    finished(client, sent["job_id"])
    question = {"query": MASKED, "hardware": "skua-x1", "k": 8}
    excerpts = client.post("/retrieve", json=question).json()["excerpts"]
    assert excerpts[0]["document"]["id"] == sent["document_id"]
    general = [e["section"] for e in excerpts if e["document"]["id"] != sent["document_id"]]
    assert general, "the guides follow"
    assert len(set(map(tuple, general[:3]))) == 3, "one passage of each section at first"
