"""Chips over HTTP: registration, facts, and decisions about them."""

from __future__ import annotations

from typing import Any

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


def test_chip_needs_only_id(client: TestClient) -> None:
    made = client.post("/hardware", json={"id": "acme-x1"})
    assert made.status_code == 201
    assert made.json() == {"id": "acme-x1", "outcome": "created", "lineage": ["acme-x1"]}
    again = client.post("/hardware", json={"id": "acme-x1"})
    assert again.status_code == 200 and again.json()["outcome"] == "unchanged"
    shown = client.get("/hardware/acme-x1").json()
    assert shown["name"] == "acme-x1" and shown["vendor"] == "unknown"
    request = {"signal": "memory_bound", "hardware": "acme-x1"}
    assert client.get("/retrieve", params=request).status_code == 200


def test_child_inherits_facts(client: TestClient) -> None:
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


def test_all_problems_are_listed(client: TestClient) -> None:
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


def test_built_in_chip_is_not_replaced(client: TestClient) -> None:
    before = client.get("/hardware/h100").json()
    error = assert_error(client.post("/hardware", json={"id": "h100"}), 409, "conflict")
    assert 'parent = "h100"' in error["hint"]
    assert client.get("/hardware/h100").json() == before
    # Its names would map its documents to built-in ones.
    assert_error(client.post("/hardware", json={"id": "builtin"}), 400, "invalid_knowledge")


def test_proposed_facts_wait_for_decision(client: TestClient) -> None:
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


GUIDE = b"""# Acme guide

## Memory of the Acme X6

| Property | X6 | X7 | Mode B |
|---|---|---|---|
| Memory size | 12 GB | 24 GB | 6 GB |

Each core has 48 KB of L1. The L2 cache of the X6 is 16 MB.

## Limits of the Acme X7

The L2 cache is 32 MB.
"""


def test_proposals_are_filtered_and_decided_in_bulk(client: TestClient) -> None:
    for name in ("acme-x6", "acme-x7"):
        client.post("/hardware", json={"id": name, "aliases": [name[-2:]]})
    submitted = upload(client, "guide.md", GUIDE, hardware="acme-x6").json()
    finished(client, submitted["job_id"])
    path = "/hardware/acme-x6/facts"

    def proposed(**where: str) -> list[tuple[str, float]]:
        rows = client.get(path, params={"status": "proposed", **where}).json()["facts"]
        return [(row["key"], row["value"]) for row in rows]

    clear = [("l1_size", 48 * 2.0**10), ("l2_size", 2.0**24), ("memory_size", 12 * 2.0**30)]
    assert sorted(proposed()) == clear
    assert proposed(key="l2_size") == [("l2_size", 2.0**24)]
    assert proposed(subject="x6", key="memory_size") == [("memory_size", 12 * 2.0**30)]
    assert proposed(subject="x7") == proposed(document="another guide") == []
    assert sorted(proposed(document=submitted["document_id"])) == clear
    assert sorted(proposed(document="acme GUIDE", subject_kind="chip")) == clear
    assert_error(client.get(path, params={"subject_kind": "sibling"}), 400)
    size = client.get(path, params={"status": "proposed", "key": "memory_size"}).json()["facts"][0]
    assert size["title"] == "Acme guide"
    assert size["locator"].startswith("Memory of the Acme X6: ")

    where = {"key": "l2_size"}
    rejected = client.patch(path, json={"status": "rejected", "where": where}).json()
    assert [fact["status"] for fact in rejected["facts"]] == ["rejected"]
    accepted = client.patch(path, json={"status": "accepted", "where": {}, "actor": "Kim"}).json()
    assert {fact["key"] for fact in accepted["facts"]} == {"l1_size", "memory_size"}
    assert accepted["left"] == [] and accepted["facts"][0]["actor"] == "Kim"
    effective = client.get(path).json()["facts"]
    assert {fact["key"] for fact in effective} == {"l1_size", "memory_size"}


def test_unclear_or_conflicting_facts_need_explicit_acceptance(client: TestClient) -> None:
    client.post("/hardware", json={"id": "acme-x8"})
    rows = b"| Property | Mode A |\n|---|---|\n| L2 cache | 4 MB |\n\n"
    sizes = b"| Property | Value |\n|---|---|\n| Memory size | %d GB |\n"
    for number, text in enumerate((rows + sizes % 8, sizes % 16)):
        submitted = upload(client, f"x8-{number}.md", b"# Acme X8\n\n" + text, hardware="acme-x8")
        finished(client, submitted.json()["job_id"])
    path = "/hardware/acme-x8/facts"
    bulk = {"status": "accepted", "where": {}}
    answer = client.patch(path, json=bulk).json()
    assert answer["facts"] == []
    reasons = {left["key"]: left["reason"] for left in answer["left"]}
    assert "not clear" in reasons["l2_size"] and "different values" in reasons["memory_size"]
    request = client.patch(path, json={**bulk, "include_unclear": True}).json()
    assert [fact["key"] for fact in request["facts"]] == ["l2_size"]
    ids = [left["id"] for left in answer["left"] if left["key"] == "memory_size"]
    chosen = client.patch(path, json={"status": "accepted", "ids": ids[:1]}).json()
    assert [fact["id"] for fact in chosen["facts"]] == ids[:1]
    # "Mode A" is not a name of the chip: the fact is stored but does not apply to it.
    assert [f["key"] for f in client.get(path).json()["facts"]] == ["memory_size"]
    both: dict[str, Any] = {"ids": ids, "where": {}}
    refused: list[dict[str, Any]] = [{}, both, {"ids": []}, {"where": {"keys": "l2_size"}}]
    for fields in refused:
        assert_error(client.patch(path, json={"status": "accepted", **fields}), 400)
    unknown = {"status": "accepted", "ids": [*ids, "fact_unknown"]}
    assert_error(client.patch(path, json=unknown), 404)


def test_conflicts_between_sources_are_shown(client: TestClient) -> None:
    body = {"id": "acme-x4", "facts": [BANDWIDTH]}
    client.post("/hardware", json=body)
    table = TABLE.replace(b"X3", b"X4")
    submitted = upload(client, "x4.md", table, hardware="acme-x4").json()
    finished(client, submitted["job_id"])
    conflicts = client.get("/hardware/acme-x4/facts").json()["conflicts"]
    assert [c["key"] for c in conflicts] == ["memory_bandwidth"]
    assert {v["value"] for v in conflicts[0]["values"]} == {3.0e12, 2.5e12}


def test_unsafe_signatures_are_refused(client: TestClient) -> None:
    good = {
        "pattern": "ACME-0042: .{0,80} does not fit",
        "signal": "shared_memory_limit",
        "title": "Scratchpad too small",
        "remedy": "Use smaller tiles.",
    }
    request = {"log": "ACME-0042: tile 3 does not fit", "hardware": "acme-x5"}
    for change in ({"pattern": "(.*)(.*)(.*)x"}, {"signal": "nonesuch"}, {"remedy": ""}):
        body = {"id": "acme-x5", "signatures": [{**good, **change}]}
        assert_error(client.post("/hardware", json=body), 400, "invalid_knowledge")
    made = client.post("/hardware", json={"id": "acme-x5", "signatures": [good]})
    assert made.status_code == 201
    found = client.post("/retrieve", json=request).json()["diagnosis"]["signals"]
    assert found[0]["id"] == "shared_memory_limit"


def test_coverage(client: TestClient) -> None:
    covered = client.get("/hardware/H100/coverage").json()
    assert covered["hardware"] == "h100" or covered["hardware"]["id"] == "h100"
    assert_error(client.get("/hardware/nonesuch/coverage"), 404, "unknown_hardware")


def test_lexicon_term_is_corrected_and_exported(client: TestClient) -> None:
    client.post("/hardware", json={"id": "acme-x6"})
    manual = (
        b"# Acme X6\n\nThe Fast Store (FST) is the scratchpad of a core. The SRAM is external.\n"
    )
    job = upload(client, "x6.md", manual, hardware="acme-x6").json()["job_id"]
    assert finished(client, job)["state"] == "ready"
    path = "/hardware/acme-x6/lexicon"

    def terms() -> dict[str, str]:
        return {t["term"]: t["concept"] for t in client.get(path).json()["terms"]}

    assert terms()["FST"] == "on_chip_memory"
    for term, concept in (("FST", ""), ("SRAM", "off_chip_memory")):
        changed = client.patch(path, json={"term": term, "concept": concept})
        assert changed.status_code == 200 and changed.json()["outcome"] == "updated"
    assert "FST" not in terms() and terms()["SRAM"] == "off_chip_memory"
    stated = client.get("/hardware/acme-x6").json()["terms"]
    assert stated == {"FST": "", "SRAM": "off_chip_memory"}
    client.patch(path, json={"term": "FST", "concept": None})
    assert terms()["FST"] == "on_chip_memory"
    assert_error(
        client.patch(path, json={"term": "A", "concept": "slab"}), 400, "invalid_knowledge"
    )
    refused = client.patch("/hardware/h100/lexicon", json={"term": "A", "concept": ""})
    assert_error(refused, 409, "conflict")
    page = client.get("/ui/hardware/acme-x6/coverage").text
    assert "decided here" in page and "off chip memory" in page


def test_hardware_list(client: TestClient) -> None:
    listed = {h["id"]: h for h in client.get("/hardware").json()["hardware"]}
    assert listed["h200"]["lineage"] == ["h200", "hopper", "nvidia"]


def test_chip_is_removed_once_unused(client: TestClient) -> None:
    client.post("/hardware", json={"id": "acme-r1", "facts": [BANDWIDTH]})
    client.post("/hardware", json={"id": "acme-r2", "parent": "acme-r1"})
    sent = upload(client, "r1.md", TABLE.replace(b"X3", b"R1"), hardware="acme-r1").json()
    finished(client, sent["job_id"])
    problem = assert_error(client.delete("/hardware/acme-r1"), 409, "conflict")
    assert problem["details"]["in_the_way"] == ["acme-r2"]
    assert client.delete("/hardware/acme-r2").json()["removed"] is True
    problem = assert_error(client.delete("/hardware/acme-r1"), 409, "conflict")
    assert problem["details"]["in_the_way"] == [sent["document_id"]]
    answer = client.delete("/hardware/acme-r1", params={"with_documents": "true"}).json()
    assert answer["documents_removed"] == [sent["document_id"]] and answer["facts_removed"] >= 1
    for path in ("/hardware/acme-r1", f"/documents/{sent['document_id']}"):
        assert client.get(path).status_code == 404
    assert_error(client.delete("/hardware/h100"), 409, "conflict")
    assert_error(client.delete("/hardware/acme-r1"), 404, "unknown_hardware")
