"""Hostile and malformed requests: the common error shape, or a job that ends with a reason."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pypdf import PdfWriter
from reportlab.pdfgen.canvas import Canvas

from tests.api.conftest import FILE_LIMIT, assert_error, finished, upload

JSON = {"content-type": "application/json"}
MARKDOWN = b"# Harmattan\n\nA dry wind of the west.\n"
# A file name and a field name without the escapes of a well-behaved client.
RAW = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n# Bora\n\nBlows.\n'
    b'\r\n--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\nBora\r\n--x--\r\n'
)


def pdf(*lines: str) -> bytes:
    buffer = io.BytesIO()
    canvas = Canvas(buffer)
    for line in lines:
        canvas.drawString(72, 720, line)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def encrypted() -> bytes:
    writer = PdfWriter(clone_from=io.BytesIO(pdf("The secret of the chip.")))
    writer.encrypt("owner's word", algorithm="RC4-128")
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def without_bytes(value: object) -> str | None:
    """The id of a parameter: bytes may differ between workers, and are long."""
    return "bytes" if isinstance(value, bytes) else None


@pytest.mark.parametrize(
    ("params", "status", "code", "hint"),
    [
        ({"signal": "memory_bond"}, 404, "unknown_signal", "memory_bound"),
        ({"signal": "memory_bound", "hardware": "h10"}, 404, "unknown_hardware", "h100"),
        ({"signal": "memory_bound", "categories": "guidence"}, 400, "invalid_request", "guidance"),
        ({"signal": "memory_bound", "skill_states": "activ"}, 400, "invalid_request", "active"),
        ({"signal": "memory_bound", "k": "0"}, 400, "invalid_request", "1 to 200"),
        ({"signal": "memory_bound", "k": "10000"}, 400, "invalid_request", "1 to 200"),
        ({"signal": "memory_bound", "k": "9" * 40}, 400, "invalid_request", "1 to 200"),
        ({"signal": "memory_bound", "k": "many"}, 400, "invalid_request", "k"),
        ({"signal": "memory_bound", "max_tokens": "-1"}, 400, "invalid_request", "1 to"),
        ({"signal": "memory_bound", "max_tokens": "0"}, 400, "invalid_request", "1 to"),
        ({"q": "x" * 50_000}, 400, "invalid_request", "POST"),
        ({"q": "nul \x00"}, 400, "invalid_request", "text"),
        ({"signal": "x" * 5000}, 400, "invalid_request", "signal"),
        ({}, 400, "invalid_request", "signal"),
    ],
)
def test_invalid_queries_are_refused(
    client: TestClient, params: dict[str, str], status: int, code: str, hint: str
) -> None:
    body = assert_error(client.get("/retrieve", params=params), status, code)
    assert hint in body["hint"], body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"memory_bound"',
        b'{"signal": "memory_bound",}',
        b'{"signal": ["memory_bound"]}',
        b'{"signal": "memory_bound", "hardwear": "h100"}',
        b'{"signal": "memory_bound", "k": "ten"}',
        b'{"signal": "memory_bound", "k": 1.5}',
        b'{"signal": "memory_bound", "k": true}',
        b'{"signal": "memory_bound", "k": 1' + b"0" * 5000 + b"}",
        b'{"metrics": {"a": NaN}}',
        b'{"metrics": {"a": Infinity}}',
        b'{"metrics": {"a": 1e999}}',
        b'{"metrics": {"a": 1' + b"0" * 400 + b"}}",
        b'{"metrics": {"a": [1]}}',
        b'{"metrics": {"a": true}}',
        b'{"metrics": {"a": null}}',
        b'{"metrics": ["a"]}',
        b'{"metrics": {"' + b"a" * 5000 + b'": 1}}',
        b'{"query": "\\u0000"}',
        b'{"query": "\\ud800"}',
        b'{"log": "half \\udfff"}',
        b'{"metrics": {"\\ud800": 1}}',
        b'{"\\ud800": 1}',
        b'{"query": "\xff\xfe"}',
        b'{"query": "' + b"x" * 100_000 + b'"}',
        b'{"signal": "memory_bound", "categories": [1]}',
        b'{"signal": "memory_bound", "categories": ["nonesuch"]}',
        b"[" * 200_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)
def test_invalid_bodies_are_refused(client: TestClient, body: bytes) -> None:
    assert_error(client.post("/retrieve", content=body, headers=JSON), 400, "invalid_request")


def test_unknown_fields_have_suggestion(client: TestClient) -> None:
    request = {"signal": "memory_bound", "k": "ten", "metrics": {"dram": []}}
    body = assert_error(client.post("/retrieve", json=request), 400)
    assert {p["path"] for p in body["details"]["problems"]} == {"k", "metrics.dram"}
    assert any(path in body["message"] for path in ("k: ", "metrics.dram: "))
    for wrong, right in (("hardwear", "hardware"), ("q", "query"), ("question", "query")):
        request = {"signal": "memory_bound", wrong: "h100"}
        body = assert_error(client.post("/retrieve", json=request), 400)
        assert body["message"] == f"{wrong}: unknown field; did you mean {right}?"


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "application/xml"])
@pytest.mark.parametrize("path", ["/retrieve", "/hardware", "/retrievals/ret_1/outcome"])
def test_wrong_content_type(client: TestClient, path: str, kind: str) -> None:
    body = b'{"signal": "memory_bound"}'
    answer = client.post(path, content=body, headers={"content-type": kind} if kind else {})
    assert "application/json" in assert_error(answer, 415, "unsupported_format")["hint"]


def test_too_large_bodies(client: TestClient) -> None:
    text = {"content-type": "text/plain"}
    log = b"error: out of registers\n" * 270_000
    assert_error(client.post("/retrieve", content=log, headers=text), 413, "payload_too_large")
    in_json = client.post("/retrieve", json={"log": log.decode()})
    assert_error(in_json, 413, "payload_too_large")
    big = b'{"query": "' + b"x" * 8_000_000 + b'"}'
    for path in ("/retrieve", "/hardware", "/retrievals/ret_1/outcome"):
        answer = client.post(path, content=big, headers=JSON)
        assert_error(answer, 413, "payload_too_large")
    chunked = client.post("/retrieve", content=iter([big[:4_000_000]] * 3), headers=JSON)
    assert_error(chunked, 413, "payload_too_large")


def test_binary_log_is_accepted(client: TestClient) -> None:
    answer = client.post("/retrieve", content=b"\x00\x01", headers={"content-type": "text/plain"})
    assert_error(answer, 400)
    foreign = "Fehler: ungültig".encode("latin-1")
    answer = client.post("/retrieve", content=foreign, headers={"content-type": "text/plain"})
    assert answer.status_code == 200


def test_query_with_json_body_is_refused(client: TestClient) -> None:
    answer = client.post("/retrieve?hardware=h100", json={"signal": "memory_bound"})
    assert "hardware" in assert_error(answer, 400)["hint"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_unbounded_numbers_are_refused(client: TestClient, number: str) -> None:
    fact = client.patch("/facts/f", content=f'{{"number": {number}}}', headers=JSON)
    assert_error(fact, 400)
    outcome = client.post("/retrievals/r/outcome", content=f'{{"speedup": {number}}}', headers=JSON)
    assert_error(outcome, 400)
    hardware = client.post(
        "/hardware", content=f'{{"id": "a", "facts": [{{"value": {number}}}]}}', headers=JSON
    )
    assert_error(hardware, 400)


@pytest.mark.parametrize(
    "path",
    [
        "/documents/d/passages?limit=0",
        "/documents/d/passages?limit=100000",
        "/documents/d/passages?offset=-1",
        "/documents/d/passages?offset=99999999999999999999999",
        "/documents/d/sections?version=99999999999999999999999",
        "/documents/d/file?version=latest",
        "/documents?category=poetry",
        "/hardware/h100/facts?status=nice",
    ],
)
def test_invalid_parameters_are_refused(client: TestClient, path: str) -> None:
    assert_error(client.get(path), 400, "invalid_request")


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("../../etc/passwd.md", "etc/passwd.md"),
        ("/etc/cron.d/x.md", "etc/cron.d/x.md"),
        ("..\\..\\windows\\system.md", "windows/system.md"),
        ("C:\\manual.md", "manual.md"),
        ("tab|there<script>.md", "tab_there_script_.md"),
        ("....//....//x.md", "_/_/x.md"),
        ("-rf.md", "-rf.md"),
        ("a" * 1000 + ".md", None),
        ("日本語 🚀.md", "日本語 🚀.md"),
    ],
)
def test_hostile_names_become_labels(client: TestClient, name: str, stored: str | None) -> None:
    answer = upload(client, name, MARKDOWN, hardware="mi300x", category="hardware")
    assert answer.status_code == 202, answer.text
    label = answer.json()["name"]
    assert ".." not in label.split("/") and not label.startswith("/") and len(label) <= 200
    assert stored is None or label == stored


@pytest.mark.parametrize("name", ["..", "/", "...", "\\", "a" * 50_000])
def test_empty_file_names_are_refused(client: TestClient, name: str) -> None:
    assert_error(upload(client, name, MARKDOWN), 400)


@pytest.mark.parametrize(
    ("name", "data", "status"),
    [
        ("empty.md", b"", 422),
        ("blank.pdf", b"  \n ", 422),
        ("kernel.so", b"\x7fELF" + bytes(200), 415),
        ("noise.bin", bytes(range(256)) * 40, 415),
        ("archive.zip", b"PK\x03\x04" + bytes(50), 422),
        ("fake.pdf", bytes(range(256)) * 40, 422),
        ("large.md", b"x" * (FILE_LIMIT + 1), 413),
    ],
    ids=without_bytes,
)
def test_uploads_refused_before_parsing(
    client: TestClient, name: str, data: bytes, status: int
) -> None:
    assert_error(upload(client, name, data, hardware="h100"), status)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("encrypted.pdf", encrypted()),
        ("truncated.pdf", pdf(*["A page about the foehn unit."] * 30)[:1500]),
        ("scanned.pdf", pdf("")),
        ("broken.ipynb", b'{"nbformat": 4, "cells": [{"cell_type": '),
    ],
    ids=without_bytes,
)
def test_unreadable_files_end_with_reason(client: TestClient, name: str, data: bytes) -> None:
    answer = upload(client, name, data, hardware="h100")
    if answer.status_code != 202:
        assert_error(answer, answer.status_code)
        assert 400 <= answer.status_code < 500
        return
    job = finished(client, answer.json()["job_id"])
    assert job["state"] in ("partial", "failed")
    if job["state"] == "failed":
        assert job["error"]["message"] and job["error"]["code"] != "internal_error"
    else:
        assert job["result"]["warnings"] or job["result"]["pages_failed"]


def test_wrong_extension_is_read_by_content(client: TestClient) -> None:
    answer = upload(client, "guide.docx", pdf("The foehn unit adds."), hardware="h100").json()
    assert finished(client, answer["job_id"])["state"] == "ready"
    document = client.get(f"/documents/{answer['document_id']}").json()
    assert document["version"]["format"] == "pdf"


@pytest.mark.parametrize(
    ("fields", "status", "hint"),
    [
        ({"hardware": "h10"}, 404, "h100"),
        ({"category": "hardwear", "hardware": "h100"}, 400, "hardware"),
        ({"category": "hardware"}, 400, "hardware"),
        ({"hardwares": "h100"}, 400, "hardware"),
        ({"languages": "Tri ton!"}, 400, "triton"),
        ({"title": "nul \x00"}, 400, "text"),
        ({"title": "x" * 5000}, 400, "Shorten"),
        ({"category": ["guidance", "constraint"]}, 400, "once"),
    ],
)
def test_invalid_upload_fields_are_refused(
    client: TestClient, fields: dict[str, Any], status: int, hint: str
) -> None:
    assert hint in assert_error(upload(client, "a.md", MARKDOWN, **fields), status)["hint"]


def test_non_uploads_are_refused(client: TestClient) -> None:
    wrong = [
        client.post("/documents", files=[("files", ("a.md", MARKDOWN))]),
        client.post("/documents", files=[("file", (None, "text"))]),
        client.post("/documents", files=[("title", (None, "text"))]),
        client.post("/documents", files=[("file", ("", b""))]),
        client.post("/documents", files=[("file", (f"{n}.md", MARKDOWN)) for n in range(25)]),
        client.post(
            "/documents",
            files=[("file", (f"{n}.md", MARKDOWN)) for n in range(2)],
            data={"source_key": "one"},
        ),
    ]
    for answer in wrong:
        assert_error(answer, 400, "invalid_request")
    assert_error(client.post("/documents", json={}), 415)
    assert_error(client.post("/documents"), 415)


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("multipart/form-data", b"--x", 400),
        ("multipart/form-data; boundary=x", b"nonsense", 400),
        ("multipart/form-data; boundary=x; charset=idna", b"--x--\r\n", 415),
        ("multipart/form-data; boundary=x", RAW % (b"a\x00.md", b"title"), 400),
        ("multipart/form-data; boundary=x", RAW % (b"a.md", b"bell\x07"), 400),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Type: a\r\n\r\nb\r\n--x--\r\n", 400),
    ],
)
def test_malformed_multipart_is_refused(
    client: TestClient, kind: str, body: bytes, status: int
) -> None:
    answer = client.post("/documents", content=body, headers={"content-type": kind})
    assert_error(answer, status)


def test_control_characters_in_file_name_are_replaced(client: TestClient) -> None:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    body = RAW % (b"a\x01\tb.md", b"title")
    answer = client.post("/documents", content=body, headers=headers)
    assert answer.status_code == 202 and answer.json()["name"] == "a__b.md"


def test_oversized_file_does_not_affect_others(client: TestClient) -> None:
    files = [("file", ("big.md", b"x" * (FILE_LIMIT + 1))), ("file", ("small.md", MARKDOWN))]
    answer = client.post("/documents", files=files, data={"hardware": "h200"})
    assert answer.status_code == 202
    big, small = answer.json()["documents"]
    assert big["error"]["code"] == "payload_too_large" and small["outcome"] == "created"


@pytest.mark.parametrize(
    "name",
    [
        "dram__throughput",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.max.pct_of_peak_sustained_elapsed",
        "duration_us",
        "gpu__time_duration.sum [ns]",
    ],
)
def test_non_numeric_metric_is_reported(client: TestClient, name: str) -> None:
    body = assert_error(client.post("/retrieve", json={"metrics": {name: "high"}}), 422)
    assert name in body["message"] and "'high'" in body["message"]
    assert "a number" in body["hint"] and name in body["details"]["metrics"]
    for value in ("n/a", "", "87.5", 3):
        answer = client.post("/retrieve", json={"metrics": {name: value, "acme.note": "warm"}})
        assert answer.status_code == 200, (value, answer.text)
