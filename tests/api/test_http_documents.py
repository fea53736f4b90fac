"""Upload, watch, read, correct, replace, remove."""

from __future__ import annotations

from io import BytesIO
from typing import Any
from zipfile import ZipFile

from fastapi.testclient import TestClient

from kb.settings import Settings
from tests.api.conftest import assert_error, finished, upload
from tests.stored_text import files_with
from tests.waiting import until

MANUAL = """# Zephyr engine

## Scratchpad of the zephyr engine

The zephyr scratchpad has quagmire banks of thirty-two bytes; stage tiles there before multiplying.

## Transfers

Zephyr copies run beside arithmetic when they are issued from the periwinkle queue.
"""


NO_FACTS = {
    "facts_removed": 0,
    "accepted_facts_removed": 0,
    "facts_stated_elsewhere": 0,
    "note": None,
}


def ingested(client: TestClient, name: str, text: str, **fields: Any) -> dict[str, Any]:
    answer = upload(client, name, text.encode(), **fields)
    assert answer.status_code == 202, answer.text
    submitted: dict[str, Any] = answer.json()
    assert finished(client, submitted["job_id"])["state"] == "ready"
    return submitted


def found(client: TestClient, words: str, hardware: str) -> list[str]:
    answer = client.get("/retrieve", params={"q": words, "hardware": hardware, "k": 20}).json()
    return [excerpt["text"] for excerpt in answer["excerpts"]]


def test_unrelated_files_of_one_name_are_not_versions(client: TestClient) -> None:
    texts = (b"# Umber one\n\nText of one.\n", b"# Sienna two\n\nAnother.\n")
    files = [("file", ("same.md", text)) for text in texts]
    answer = client.post("/documents", files=files, data={"hardware": "h100"})
    first, second = answer.json()["documents"]
    assert first["outcome"] == "created"
    assert "two files of this upload" in second["error"]["message"] and second["error"]["hint"]
    assert finished(client, first["job_id"])["result"]["remarks"] == []
    later = upload(client, "same.md", texts[1], hardware="h100").json()
    refused = finished(client, later["job_id"])
    assert refused["state"] == "failed" and refused["error"]["code"] == "unrelated_version"
    decide = f"/jobs/{later['job_id']}/decision"
    apart = client.post(decide, json={"decision": "separate"}).json()
    assert apart["document_id"] != first["document_id"]
    assert finished(client, apart["id"])["state"] == "ready"
    remaining = client.get(f"/documents/{first['document_id']}").json()
    assert remaining["title"] == "Umber one" and remaining["job_state"] == "ready"
    again = upload(client, "same.md", texts[1] + b".", hardware="h100", replace="true").json()
    [output] = finished(client, again["job_id"])["result"]["remarks"]
    assert output.startswith("replaces 'Umber one', with which it shares no text; ")
    restored = client.post(f"/documents/{first['document_id']}/restore", json={"version": 1})
    assert finished(client, restored.json()["job_id"])["state"] == "ready"
    assert client.get(f"/documents/{first['document_id']}").json()["title"] == "Umber one"
    assert client.post(decide, json={"decision": "replace"}).status_code == 404
    for document in (first["document_id"], apart["document_id"]):
        client.delete(f"/documents/{document}")


def test_equal_names_in_folders_are_separate_documents(client: TestClient) -> None:
    """Twelve files of a documentation, five of them README.md: in one request, in requests of one
    group, and as an archive.
    """
    names = [f"part{n}/README.md" for n in range(5)] + [f"part{n}/page{n}.md" for n in range(7)]
    texts = {name: f"# Ochre {n}\n\nAbout {name}, unit {n}.\n" for n, name in enumerate(names)}
    packed = BytesIO()
    with ZipFile(packed, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
        archive.writestr("__MACOSX/._README.md", "x")
    sent = upload(client, "manual.zip", packed.getvalue(), hardware="h100")
    accepted = sent.json()["documents"]
    assert [answer["outcome"] for answer in accepted] == ["created"] * 12
    documents = {answer["document_id"] for answer in accepted}
    assert len(documents) == 12
    for answer in accepted:
        assert finished(client, answer["job_id"])["state"] == "ready"
    # Without folders, the second file of one name is refused although it comes in a separate
    # request, as the page sends it.
    bare = [("README.md", texts[name]) for name in names[:2]]
    about = {"hardware": "h100", "group": "upl_ochre", "category": "guidance"}
    first, second = [upload(client, name, text.encode(), **about) for name, text in bare]
    assert first.status_code == 202 and second.status_code == 400
    assert "two files of this upload" in second.json()["message"]
    documents.add(first.json()["document_id"])
    damaged = upload(client, "manual.zip", packed.getvalue()[:200], hardware="h100")
    assert damaged.status_code == 422 and "cannot be unpacked" in damaged.json()["message"]
    for document in documents:
        client.delete(f"/documents/{document}")


def test_included_files_are_parts_of_one_document(client: TestClient) -> None:
    packed = BytesIO()
    with ZipFile(packed, "w") as archive:
        archive.writestr("spec/tiles.adoc", "== Tiles\n\nA sienna tile has sixteen rows.\n")
        archive.writestr("spec/main.adoc", "= Sienna\n\ninclude::tiles.adoc[]\n")
    sent = upload(client, "sienna.zip", packed.getvalue(), hardware="h100")
    main, tiles = sent.json()["documents"]
    assert (main["outcome"], tiles["outcome"]) == ("created", "included")
    assert tiles["document_id"] == main["document_id"] and tiles["job_id"] is None
    assert finished(client, main["job_id"])["state"] == "ready"
    sections = client.get(f"/documents/{main['document_id']}/sections").json()["sections"]
    assert [section["heading"] for section in sections] == ["Sienna", "Tiles"]
    client.delete(f"/documents/{main['document_id']}")


def test_upload_can_be_read(client: TestClient) -> None:
    submitted = ingested(client, "zephyr.md", MANUAL, hardware="H100 SXM5", languages="triton,cuda")
    assert submitted["outcome"] == "created"
    path = f"/documents/{submitted['document_id']}"
    document = client.get(path).json()
    assert document["hardware"] == ["h100"] and document["languages"] == ["cuda", "triton"]
    assert document["category"] == "hardware" and document["job_state"] == "ready"
    assert document["versions"][0]["state"] == "current" and "blob_key" not in document["version"]
    assert document["report"]["passages"] == document["passages"]
    sections = client.get(f"{path}/sections").json()["sections"]
    assert [s["heading"] for s in sections][-1] == "Transfers"
    page = client.get(f"{path}/passages", params={"offset": 1, "limit": 1}).json()
    assert page["total"] == document["passages"] and len(page["passages"]) == 1
    last = client.get(f"{path}/passages", params={"section": sections[-1]["id"]}).json()
    assert "periwinkle" in last["passages"][0]["text"] and last["total"] == 1
    assert client.get(f"{path}/moves").json() == {"moves": []}
    listed = client.get("/documents", params={"hardware": "h100"}).json()["documents"]
    assert submitted["document_id"] in [d["id"] for d in listed]
    assert_error(client.get(f"{path}/passages?section=sec_other"), 404, "not_found")
    assert_error(client.get(f"{path}/sections?version=7"), 404, "not_found")


def test_original_is_served_safely(client: TestClient) -> None:
    name = 'gui"de; é.md'
    submitted = ingested(client, name, MANUAL + "\nAbout originals.\n", hardware="x86-64")
    answer = client.get(f"/documents/{submitted['document_id']}/file")
    assert answer.content.decode().endswith("About originals.\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert '"' not in answer.headers["content-disposition"]
    page = b"<html><body><h1>Gale</h1><p>The gale unit adds.</p><script>alert(1)</script></body>"
    submitted = upload(client, "page.html", page, hardware="x86-64").json()
    saved = client.get(f"/documents/{submitted['document_id']}/file")
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in saved.headers["content-security-policy"]


def test_row_1_deleted_documents_are_not_found(client: TestClient) -> None:
    text = MANUAL.replace("zephyr", "mistral").replace("quagmire", "brambleweed")
    submitted = ingested(client, "mistral.md", text, hardware="h100")
    assert any("brambleweed" in t for t in found(client, "brambleweed banks", "h100"))
    path = f"/documents/{submitted['document_id']}"
    assert client.delete(path).json() == {
        "id": submitted["document_id"],
        "deleted": True,
        **NO_FACTS,
    }
    assert not any("brambleweed" in t for t in found(client, "brambleweed banks", "h100"))
    for answer in (client.get(path), client.get(f"{path}/file"), client.delete(path)):
        assert_error(answer, 404, "not_found")
    assert_error(client.get(f"/jobs/{submitted['job_id']}"), 404, "not_found")


def test_rows_6_and_7_revision_replaces_old_text(client: TestClient) -> None:
    fields = {"hardware": "mi300x", "source_key": "sirocco-guide", "title": "Sirocco guide"}
    first = ingested(
        client, "v1.md", "# Sirocco\n\nThe sirocco bus is oldensteel wide.\n", **fields
    )
    again = upload(client, "v1.md", b"# Sirocco\n\nThe sirocco bus is oldensteel wide.\n", **fields)
    assert again.json()["outcome"] == "unchanged" and again.json()["job_id"] is None
    text = "# Sirocco\n\nThe sirocco bus is newlumber wide.\n"
    second = ingested(client, "v2.md", text, **fields)
    assert second["outcome"] == "new_version"
    assert second["document_id"] == first["document_id"]
    texts = " ".join(found(client, "how wide is the sirocco bus", "mi300x"))
    assert "newlumber" in texts and "oldensteel" not in texts
    path = f"/documents/{first['document_id']}"
    old = client.get(f"{path}/passages", params={"version": 1}).json()["passages"]
    assert "oldensteel" in old[0]["text"]
    now = client.get(f"{path}/passages").json()["passages"][0]["id"]
    shown = client.get(f"/passages/{old[0]['id']}").json()
    assert shown["superseded"] and shown["current_passage"] == now
    current = client.get(f"/passages/{now}").json()
    assert not current["superseded"] and current["current_passage"] is None
    assert f"/ui/passages/{now}" in client.get(f"/ui/passages/{old[0]['id']}").text
    assert b"oldensteel" in client.get(f"{path}/file", params={"version": 1}).content


def test_several_files_have_separate_outcomes(client: TestClient) -> None:
    files = [
        ("file", ("isa/tramontane.md", b"# Tramontane\n\nIts adders are fast.\n")),
        ("file", ("isa/empty.md", b"")),
        ("file", ("isa/picture.png", b"\x89PNG\r\n\x1a\n" + b"\x00" * 40)),
    ]
    answer = client.post("/documents", files=files, data={"hardware": "mi300x"})
    assert answer.status_code == 202
    good, empty, picture = answer.json()["documents"]
    assert good["outcome"] == "created" and good["name"] == "isa/tramontane.md"
    assert empty["error"]["code"] == "parse_failed" and empty["name"] == "isa/empty.md"
    assert picture["error"]["code"] == "unsupported_format"
    assert sorted(picture["error"]) == ["code", "details", "hint", "message"]
    refused = assert_error(client.post("/documents", files=files[1:]), 422, "parse_failed")
    assert len(refused["details"]["documents"]) == 2


def test_correction_applies_at_once(client: TestClient) -> None:
    text = "# Ostro\n\nThe ostro cache has vermilion ways.\n"
    submitted = ingested(client, "ostro.md", text, hardware="h100")
    passages = client.get(f"/documents/{submitted['document_id']}/passages").json()["passages"]
    path = f"/passages/{passages[0]['id']}"
    change = {
        "text": "The ostro cache has cerulean ways.",
        "tags": [{"kind": "signal", "value": "cache_thrash"}],
        "hardware": ["Hopper"],
    }
    corrected = client.patch(path, json=change).json()
    assert corrected["corrected"] and corrected["hardware"] == ["hopper"]
    assert client.get(path).json()["tags"] == change["tags"]
    assert any("cerulean" in t for t in found(client, "cerulean ways of the ostro cache", "h200"))
    assert_error(client.patch(path, json={}), 400)
    assert_error(client.patch(path, json={"text": "  "}), 400)
    assert_error(client.patch(path, json={"text": "word " * 2000}), 400)
    assert_error(client.patch(path, json={"hardware": ["nonesuch"]}), 404, "unknown_hardware")
    wrong = {"tags": [{"kind": "signal", "value": "memory_bond"}]}
    assert_error(client.patch(path, json=wrong), 404, "unknown_signal")
    assert_error(client.patch(path, json={"tags": [{"kind": "color", "value": "red"}]}), 400)
    client.patch(path, json={"hardware": []})
    assert client.get(path).json()["hardware"] == []


def test_only_failed_jobs_can_be_retried(client: TestClient) -> None:
    submitted = ingested(client, "levanter.md", "# Levanter\n\nIt blows.\n", hardware="h100")
    assert_error(client.post(f"/jobs/{submitted['job_id']}/retry"), 409, "conflict")


def test_failed_job_has_reason_and_can_be_retried(client: TestClient) -> None:
    cut = b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n"
    submitted = upload(client, "cut.pdf", cut, hardware="h100").json()
    job = finished(client, submitted["job_id"])
    assert job["state"] == "failed" and job["document_id"] == submitted["document_id"]
    assert sorted(job["error"]) == ["code", "details", "hint", "message"]
    assert "lease_owner" not in job and "payload" not in job
    assert client.post(f"/jobs/{job['id']}/retry").status_code == 202
    assert finished(client, job["id"])["attempts"] == 2


def test_deletion_of_built_in_knowledge_has_note(client: TestClient) -> None:
    listed = client.get("/documents", params={"hardware": "mi300x"}).json()["documents"]
    built_in = next(d for d in listed if d["origin"] == "builtin")
    assert "next start" in client.delete(f"/documents/{built_in['id']}").json()["note"]


def test_deleted_document_is_in_no_file_of_service(client: TestClient, settings: Settings) -> None:
    """No query mentions it, because queries are stored in the journal."""
    text = MANUAL.replace("zephyr", "zyxomistral").replace("Zephyr", "Zyxomistral")
    submitted = ingested(client, "zyxo.md", text, hardware="h100")

    def files() -> list[str]:
        return files_with(settings.data_dir, "yxomistral")

    assert files()
    answer = client.delete(f"/documents/{submitted['document_id']}").json()
    assert answer == {"id": submitted["document_id"], "deleted": True, **NO_FACTS}
    assert files() == []


# -- `GET /jobs`: progress over HTTP, typed, with one request for all files of an upload

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
    page = until(
        lambda: client.get("/jobs", params={"group": group}).json(),
        lambda page: not page["counts"]["queued"] and not page["counts"]["running"],
    )
    counts = page["counts"]
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
