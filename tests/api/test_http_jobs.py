"""`GET /jobs`: progress over HTTP, typed, with one request for all files of an upload."""

from __future__ import annotations

import time
from typing import Any

from fastapi.testclient import TestClient

from tests.api.conftest import assert_error, finished

FILES = {
    "bora.md": b"# Bora\n\nThe bora unit has twelve ports.\n",
    "foehn.md": b"# Foehn\n\nThe foehn unit has thirteen ports.\n",
    "empty-bora.md": b"---\ntitle: Nothing\n---\n",
}


def sent(client: TestClient, **fields: str) -> list[dict[str, Any]]:
    files = [("file", (name, content)) for name, content in FILES.items()]
    answer = client.post("/documents", files=files, data={"hardware": "a100", **fields})
    assert answer.status_code == 202, answer.text
    documents: list[dict[str, Any]] = answer.json()["documents"]
    return documents


def test_one_request_watches_all_files_of_an_upload(client: TestClient) -> None:
    documents = sent(client, source_key="")
    [group] = {document["group"] for document in documents}
    assert group.startswith("upl_")
    deadline = time.monotonic() + 120
    while True:
        page = client.get("/jobs", params={"group": group}).json()
        counts = page["counts"]
        if not counts["queued"] and not counts["running"]:
            break
        assert time.monotonic() < deadline, page
        time.sleep(0.1)
    assert [job["id"] for job in page["jobs"]] == [d["job_id"] for d in reversed(documents)]
    nothing, foehn, bora = page["jobs"]
    assert (counts["ready"], counts["failed"]) == (2, 1)
    assert bora["document"]["title"] == "Bora" and bora["document"]["hardware"] == ["a100"]
    assert (foehn["passages_done"], foehn["passages"], foehn["stage"]) == (1, 1, None)
    assert foehn["seconds"] > 0 and foehn["started_at"] < foehn["finished_at"]
    assert sorted(nothing["error"]) == ["code", "details", "hint", "message"]
    assert client.get(f"/jobs/{bora['id']}").json() == bora
    listed = client.get("/jobs", params={"group": group, "state": ["ready", "failed"], "limit": 2})
    assert [job["id"] for job in listed.json()["jobs"]] == [nothing["id"], foehn["id"]]
    rest = client.get("/jobs", params={"group": group, "cursor": listed.json()["cursor"]}).json()
    assert [job["id"] for job in rest["jobs"]] == [bora["id"]] and rest["cursor"] is None


def test_upload_group_spans_several_requests(client: TestClient) -> None:
    for n in range(2):
        file = ("file", (f"passat{n}.md", f"# Passat {n}\n\nIt has {n} ports.\n".encode()))
        answer = client.post("/documents", files=[file], data={"group": "passats"})
        assert answer.json()["group"] == "passats"
        finished(client, answer.json()["job_id"])
    page = client.get("/jobs?group=passats").json()
    assert [job["document"]["title"] for job in page["jobs"]] == ["Passat 1", "Passat 0"]
    unnamed = client.post("/documents", files=[("file", ("alone.md", b"# A\n\nAlone.\n"))])
    assert unnamed.json()["group"] is None
    finished(client, unnamed.json()["job_id"])  # later tests compare answers of one catalog


def test_invalid_job_queries_are_refused(client: TestClient) -> None:
    assert_error(client.get("/jobs?state=done"), 400)
    assert_error(client.get("/jobs?cursor=nonsense"), 400, "invalid_request")
    assert_error(client.get("/jobs?limit=100000"), 400)
    assert_error(client.get("/jobs?hardware=h10"), 404, "unknown_hardware")
    files = [("file", ("a.md", b"# A\n\nA.\n"))]
    assert_error(client.post("/documents", files=files, data={"group": "a b"}), 400)


def test_job_answer_is_in_openapi(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    schemas = description["components"]["schemas"]
    for path in ("/jobs", "/jobs/{job_id}"):
        answer = description["paths"][path]["get"]["responses"]["200"]
        name = answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert name == {"/jobs": "JobPage", "/jobs/{job_id}": "DocumentJob"}[path]
    assert schemas["DocumentJob"]["properties"]["state"]["enum"][:2] == ["queued", "running"]
    assert set(schemas["JobCounts"]["properties"]) >= {"queued", "passages_done", "passages"}
