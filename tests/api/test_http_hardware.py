"""Chips over HTTP: registration, facts, decisions about them."""

from __future__ import annotations

from fastapi.testclient import TestClient

from tests.api.conftest import assert_error, finished, upload

BANDWIDTH = {
    "key": "memory_bandwidth",
    "value": 3.0e12,
    "unit": "B/s",
    "kind": "datasheet",
    "title": "Acme X2 datasheet",
    "publisher": "Acme",
    "locator": "Table 1",
    "date": "2026-11-20",
}
TABLE = b"""# Acme X3 datasheet

## Specifications

| Specification | Value |
|---|---|
| Memory bandwidth | 2.5 TB/s |
| Memory size | 96 GB |
"""


def test_an_id_is_enough(client: TestClient) -> None:
    made = client.post("/hardware", json={"id": "acme-x1"})
    assert made.status_code == 201
    assert made.json() == {"id": "acme-x1", "outcome": "created", "lineage": ["acme-x1"]}
    again = client.post("/hardware", json={"id": "acme-x1"})
    assert again.status_code == 200 and again.json()["outcome"] == "unchanged"
    shown = client.get("/hardware/acme-x1").json()
    assert shown["name"] == "acme-x1" and shown["vendor"] == "unknown"
    asked = {"signal": "memory_bound", "hardware": "acme-x1"}
    assert client.get("/retrieve", params=asked).status_code == 200


def test_a_child_inherits(client: TestClient) -> None:
    body = {"id": "h100-pcie-96", "parent": "Hopper", "facts": [BANDWIDTH]}
    made = client.post("/hardware", json=body).json()
    assert made["lineage"] == ["h100-pcie-96", "hopper", "nvidia"]
    shown = client.get("/hardware/H100_PCIE_96").json()
    assert shown["vendor"] == "nvidia" and shown["parent"] == "hopper"
    answer = client.get("/hardware/h100-pcie-96/facts").json()
    facts = {fact["key"]: fact for fact in answer["facts"]}
    assert facts["memory_bandwidth"]["value"] == 3.0e12
    assert not facts["memory_bandwidth"]["inherited"]
    assert facts["warp_size"]["inherited"] and facts["warp_size"]["locator"]
    own = client.get("/hardware/h100-pcie-96/facts", params={"status": "all"}).json()["facts"]
    assert [fact["key"] for fact in own] == ["memory_bandwidth"]


def test_toml(client: TestClient) -> None:
    toml = 'id = "acme-y1"\nlanguages = ["acme-c"]\naliases = ["Y One"]\n'
    headers = {"content-type": "text/toml"}
    assert client.post("/hardware", content=toml, headers=headers).status_code == 201
    assert client.get("/hardware/y-one").json()["languages"] == ["acme-c"]
    changed = client.post("/hardware", content=toml + 'summary = "New."\n', headers=headers)
    assert changed.status_code == 200 and changed.json()["outcome"] == "updated"
    broken = client.post("/hardware", content='id = "acme-y2', headers=headers)
    assert_error(broken, 400, "invalid_knowledge")


def test_what_is_wrong_is_listed(client: TestClient) -> None:
    body = {"id": "acme z!", "langauges": ["c"], "facts": [{**BANDWIDTH, "unit": "TB/s"}]}
    problems = assert_error(client.post("/hardware", json=body), 400, "invalid_knowledge")
    paths = [problem["path"] for problem in problems["details"]["problems"]]
    assert paths == ["langauges", "id", "facts[0].unit"] or set(paths) == {
        "langauges",
        "id",
        "facts[0].unit",
    }
    assert_error(client.post("/hardware", json={}), 400, "invalid_knowledge")
    assert_error(client.post("/hardware", json=[]), 400)
    orphan = client.post("/hardware", json={"id": "acme-z2", "parent": "hooper"})
    assert "hopper" in assert_error(orphan, 404, "unknown_hardware")["hint"]
    clash = client.post("/hardware", json={"id": "acme-z3", "aliases": ["h100"]})
    assert_error(clash, 400, "invalid_knowledge")


def test_a_changed_built_in_says_that_it_returns(client: TestClient) -> None:
    # A chip that no other test of this service runs on.
    body = {"id": "mtia-v2i", "vendor": "meta", "summary": "Ours."}
    assert "next start" in client.post("/hardware", json=body).json()["note"]


def test_proposed_facts_wait_for_a_person(client: TestClient) -> None:
    client.post("/hardware", json={"id": "acme-x3"})
    submitted = upload(client, "x3.md", TABLE, hardware="acme-x3").json()
    assert finished(client, submitted["job_id"])["result"]["facts_proposed"] == 2
    path = "/hardware/acme-x3/facts"
    assert client.get(path).json()["facts"] == []
    proposed = client.get(path, params={"status": "proposed"}).json()["facts"]
    fact = next(f for f in proposed if f["key"] == "memory_bandwidth")
    assert fact["document_id"] == submitted["document_id"]
    accepted = client.patch(f"/facts/{fact['id']}", json={"status": "accepted"}).json()
    assert accepted["status"] == "accepted" and accepted["actor"] == "api"
    assert [f["key"] for f in client.get(path).json()["facts"]] == ["memory_bandwidth"]
    corrected = client.patch(f"/facts/{fact['id']}", json={"number": 2.4e12, "actor": "Kim"}).json()
    assert corrected["value"] == 2.4e12 and corrected["origin"] == "person"
    assert_error(client.patch(f"/facts/{fact['id']}", json={}), 400)
    assert_error(client.patch(f"/facts/{fact['id']}", json={"status": "maybe"}), 400)


def test_conflicts_between_sources_are_shown(client: TestClient) -> None:
    body = {"id": "acme-x4", "facts": [BANDWIDTH]}
    client.post("/hardware", json=body)
    table = TABLE.replace(b"X3", b"X4")
    submitted = upload(client, "x4.md", table, hardware="acme-x4").json()
    finished(client, submitted["job_id"])
    conflicts = client.get("/hardware/acme-x4/facts").json()["conflicts"]
    assert [c["key"] for c in conflicts] == ["memory_bandwidth"]
    assert {v["value"] for v in conflicts[0]["values"]} == {3.0e12, 2.5e12}


def test_signatures_that_retrieval_refuses_are_refused_here(client: TestClient) -> None:
    good = {
        "pattern": "ACME-0042: .{0,80} does not fit",
        "signal": "shared_memory_limit",
        "title": "Scratchpad too small",
        "remedy": "Use smaller tiles.",
    }
    asked = {"log": "ACME-0042: tile 3 does not fit", "hardware": "acme-x5"}
    for change in ({"pattern": "(.*)(.*)(.*)x"}, {"signal": "nonesuch"}, {"remedy": ""}):
        body = {"id": "acme-x5", "signatures": [{**good, **change}]}
        assert_error(client.post("/hardware", json=body), 400, "invalid_knowledge")
    made = client.post("/hardware", json={"id": "acme-x5", "signatures": [good]})
    assert made.status_code == 201
    found = client.post("/retrieve", json=asked).json()["diagnosis"]["signals"]
    assert found[0]["id"] == "shared_memory_limit"


def test_coverage(client: TestClient) -> None:
    covered = client.get("/hardware/H100/coverage").json()
    assert covered["hardware"] == "h100" or covered["hardware"]["id"] == "h100"
    assert_error(client.get("/hardware/nonesuch/coverage"), 404, "unknown_hardware")


def test_the_list(client: TestClient) -> None:
    listed = {h["id"]: h for h in client.get("/hardware").json()["hardware"]}
    assert listed["h200"]["lineage"] == ["h200", "hopper", "nvidia"]
