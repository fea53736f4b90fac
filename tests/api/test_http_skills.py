"""The skill library over HTTP: search, decisions, export as a zip, import as a candidate."""

from __future__ import annotations

import io
import stat
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from skills.format.skillfile import MAX_BYTES, MAX_FILE_BYTES, MAX_FILES
from tests.api.conftest import assert_error

SHIPPED = "triton-mask-block-tail"
PAGE = """---
name: {name}
description: "Use when rows are summed on a machine of a test. Do not use elsewhere."
metadata:
  kb.ops: "reduction"
  kb.signals: "memory_bound"
  kb.hardware: "h100"
  kb.status: "active"
---

## When to use

Rows of zebras are summed.
"""
MOVES = """[{"id": "wider", "when": "signals.memory_bound",
"change": {"role": "vector", "direction": "increase"}, "why": "More lanes."}]"""
SIGNED = {"actor": "ann", "reason": "seen by a person"}


def texts(name: str, **more: str) -> dict[str, Any]:
    return {"name": name, "files": {"SKILL.md": PAGE.format(name=name), **more}, "actor": "ann"}


def zipped(files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def page(name: str) -> dict[str, bytes]:
    return {f"{name}/SKILL.md": PAGE.format(name=name).encode()}


def sent(client: TestClient, data: bytes, **fields: str) -> Any:
    return client.post("/skills", files=[("file", ("skill.zip", data))], data=fields)


def names(client: TestClient, **query: str) -> list[str]:
    answer = client.get("/skills", params=query)
    assert answer.status_code == 200, answer.text
    return [skill["name"] for skill in answer.json()["skills"]]


@pytest.fixture(scope="module", autouse=True)
def candidate(client: TestClient) -> str:
    """One of each: as texts, with a file next to the page."""
    body = texts("zebra-rows", **{"references/moves.json": MOVES, "scripts/run.sh": "rm -rf ."})
    answer = client.post("/skills", json=body)
    assert answer.status_code == 201, answer.text
    reported = answer.json()
    assert (reported["name"], reported["outcome"], reported["state"]) == (
        "zebra-rows",
        "created",
        "candidate",
    )
    assert set(reported["dropped"]) == {"kb.status", "scripts/run.sh"}
    return "zebra-rows"


def test_repeated_import_is_unchanged(client: TestClient, candidate: str) -> None:
    answer = client.post("/skills", json=texts(candidate, **{"references/moves.json": MOVES}))
    assert answer.status_code == 200 and answer.json()["outcome"] == "unchanged"
    (first,) = client.get(f"/skills/{candidate}/history").json()["events"]
    assert (first["event"], first["actor"], first["to_state"]) == ("created", "ann", "candidate")


def test_zip_import_needs_actor(client: TestClient) -> None:
    page = PAGE.format(name="zebra-zip")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("zebra-zip/SKILL.md", page)
    file = ("file", ("s.zip", buffer.getvalue()))
    refused = client.post("/skills", data={"title": "x"}, files=[file])
    assert refused.status_code == 400 and "fields are actor" in refused.json()["hint"]
    assert client.post("/skills", data={"actor": "ann"}, files=[file]).status_code == 201
    (first,) = client.get("/skills/zebra-zip/history").json()["events"]
    assert first["actor"] == "ann"
    client.patch("/skills/zebra-zip", json={**SIGNED, "state": "retired"})


def test_filters_narrow_list(client: TestClient, candidate: str) -> None:
    every = names(client)
    assert candidate in every and SHIPPED in every
    assert names(client, state="candidate", tier="learned") == [candidate]
    assert candidate not in names(client, state="active,suspect")
    assert names(client, q="zebras") == [] or candidate in names(client, q="zebras")
    assert names(client, q="zebra rows", state="candidate") == [candidate]
    assert candidate in names(client, signal="memory_bound", hardware="h100")
    for sibling in ("h200", "a100", "hopper"):
        assert candidate not in names(client, hardware=sibling)
        assert SHIPPED in names(client, hardware=sibling)
    for chip in ("h100", "trainium2"):
        listed = names(client, hardware=chip)
        assert any(name.startswith("nki-") for name in listed) == (chip == "trainium2")
        assert {*names(client, hardware=chip, language="cuda")} < {*listed}
        assert f"/skills/{listed[0]}" in client.get(f"/ui/skills?hardware={chip}").text
    assert "triton" in assert_error(client.get("/skills?language=trition"), 400)["hint"]
    assert client.get("/ui/skills?language=nki").text.count("/ui/skills/nki-") == 5
    assert_error(client.get("/skills?state=actve"), 400)
    assert_error(client.get("/skills?hardware=h10"), 404, "unknown_hardware")
    assert_error(client.get("/skills?signal=memory_bund"), 404)
    assert_error(client.get("/skills?stat=active"), 400)


def test_decision_is_an_event_with_actor_and_reason(client: TestClient, candidate: str) -> None:
    def patch(state: str) -> Any:
        return client.patch(f"/skills/{candidate}", json={"state": state, **SIGNED})

    unmeasured = assert_error(patch("active"), 409, "conflict")
    assert "no measurement" in unmeasured["message"]
    assert_error(patch("restored"), 409)
    assert patch("quarantined").json()["state"] == "quarantined"
    assert_error(patch("candidate"), 409)
    assert_error(patch("active"), 409)
    assert patch("restored").json()["state"] == "candidate"
    assert patch("retired").json()["event"]["from_state"] == "candidate"
    assert patch("restored").json()["state"] == "candidate"
    events = client.get(f"/skills/{candidate}/history").json()["events"]
    assert [e["to_state"] for e in events][1:] == [
        "quarantined",
        "candidate",
        "retired",
        "candidate",
    ]
    assert {(e["actor"], e["reason"]) for e in events[1:]} == {("ann", "seen by a person")}
    forced = {"state": "active", "force": True, **SIGNED}
    event = client.patch(f"/skills/{candidate}", json=forced).json()["event"]
    assert event["to_state"] == "active"
    assert event["details"] == {"approved_without_measurement": True}
    assert_error(client.patch(f"/skills/{candidate}", json={**forced, "state": "retired"}), 400)
    assert patch("retired").json()["state"] == "retired"  # other tests list active skills


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"state": "active"},
        {"state": "suspect", **SIGNED},
        {"state": "active", "actor": " ", "reason": "x"},
        {"state": "active", "actor": "ann", "reason": ""},
        {"state": "active", **SIGNED, "tier": "curated"},
    ],
)
def test_decision_without_actor_or_reason_is_refused(
    client: TestClient, candidate: str, body: dict[str, str]
) -> None:
    assert_error(client.patch(f"/skills/{candidate}", json=body), 400)


def test_export_is_valid_imports_and_is_byte_equal(
    client: TestClient, candidate: str, tmp_path: Path
) -> None:
    for name in (candidate, SHIPPED):
        answer = client.get(f"/skills/{name}/export")
        assert answer.headers["content-type"] == "application/zip"
        assert f'"{name}.zip"' in answer.headers["content-disposition"]
        with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
            assert f"{name}/SKILL.md" in archive.namelist()
            assert not [n for n in archive.namelist() if "scripts" in n]
            archive.extractall(tmp_path)
        command = Path(sys.executable).with_name("agentskills")
        done = subprocess.run(
            [command, "validate", tmp_path / name], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert client.get(f"/skills/{name}/export").content == answer.content
        again = sent(client, answer.content)
        assert again.status_code == 200 and again.json()["outcome"] == "unchanged", again.text


def test_active_skill_is_not_overwritten(client: TestClient) -> None:
    forged = {f"{SHIPPED}/SKILL.md": PAGE.format(name=SHIPPED).encode()}
    assert_error(sent(client, zipped(forged)), 409)


def link(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("evil/SKILL.md", PAGE.format(name="evil"))
        entry = zipfile.ZipInfo(name)
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    return out.getvalue()


def duplicate_zip() -> bytes:
    out = io.BytesIO()
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(out, "w") as archive:
        for text in ("one", "other"):
            archive.writestr("evil/SKILL.md", text)
    return out.getvalue()


def forged_zip() -> bytes:
    """A zip bomb: the sizes in its directories are forged."""
    data = zipped({**page("evil"), "evil/references/a.md": b"\0" * 60 * MAX_FILE_BYTES})
    size = (60 * MAX_FILE_BYTES).to_bytes(4, "little")
    assert data.count(size) == 2
    return data.replace(size, (100).to_bytes(4, "little"))


BOMB = {**page("evil"), "evil/references/a.md": b"\0" * 60 * MAX_FILE_BYTES}
MANY = {**page("evil"), **{f"evil/references/{n}.md": b"x" for n in range(MAX_FILES + 1)}}
LARGE = {**page("evil"), **{f"evil/references/{n}": b"\1" * 200_000 for n in range(30)}}


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (lambda: zipped({**page("evil"), "evil/../../escaped.md": b"x"}), 400),
        (lambda: zipped({**page("evil"), "/tmp/escaped.md": b"x"}), 400),
        (lambda: zipped({**page("evil"), "evil\\..\\escaped.md": b"x"}), 400),
        (lambda: zipped({**page("evil"), "C:/escaped.md": b"x"}), 400),
        (lambda: zipped({**page("evil"), "evil/./a.md": b"x"}), 400),
        (lambda: zipped({**page("evil"), "evil/SKILL.md/a.md": b"x"}), 400),
        (lambda: zipped({**page("evil"), "evil/skill.md": b"x"}), 400),
        (lambda: zipped({**page("evil"), **page("other")}), 404),
        (lambda: zipped({"SKILL.md": b"x"}), 404),
        (lambda: zipped({}), 404),
        (lambda: zipped(BOMB), 413),
        (forged_zip, None),
        (lambda: zipped(MANY), 413),
        (lambda: zipped(LARGE), 413),
        (lambda: link("evil/references/passwd"), 400),
        (duplicate_zip, 400),
        (lambda: b"PK\3\4 no zip", 400),
        (lambda: zipped(page("evil"))[:-30], 400),
        (lambda: zipped({"evil/SKILL.md": b"no front matter"}), 400),
        (lambda: b"\0" * (MAX_BYTES + 1), 413),
    ],
)
def test_malicious_archive_is_refused_without_files(
    client: TestClient, make: Any, status: int | None
) -> None:
    before = names(client)
    answer = sent(client, make())
    assert_error(answer, status if status is not None else answer.status_code)
    assert answer.status_code in (404, 413, 400)
    assert names(client) == before
    assert not Path("/tmp/escaped.md").exists()


def test_paths_out_of_folder_are_refused(client: TestClient) -> None:
    for path in ("../evil.md", "/evil.md", "a/../../evil.md", "a\\b", "a//b"):
        assert_error(client.post("/skills", json=texts("evil", **{path: "x"})), 400)
    assert_error(client.post("/skills", json={**texts("evil"), "name": "../evil"}), 400)
    assert_error(client.post("/skills", json={"name": "evil", "files": {"a.md": "x"}}), 404)
    assert_error(client.post("/skills", json={**texts("evil"), "state": "active"}), 400)
    too_large = texts("evil", **{"references/a.md": "x" * (MAX_FILE_BYTES + 1)})
    assert_error(client.post("/skills", json=too_large), 413)
    assert "evil" not in names(client)


def test_open_scopes_give_warnings_at_import_and_approval(client: TestClient) -> None:
    text = (
        "---\nname: talon-wait\ndescription: Use when a kernel waits for its talon.\n---\nWait.\n"
    )
    body = {"name": "talon-wait", "files": {"SKILL.md": text}}
    (warning,) = client.post("/skills", json=body).json()["warnings"]
    assert "neither hardware, language nor signal" in warning
    forced = {"state": "active", "force": True, **SIGNED}
    assert client.patch("/skills/talon-wait", json=forced).json()["warnings"] == [warning]
    assert warning in client.get("/ui/skills/talon-wait").text
    for chip in ("h100", "mi300x"):
        request = {"signal": "memory_latency", "hardware": chip}
        shown = client.post("/retrieve", json=request).json()["skills"]
        assert "talon-wait" not in [skill["name"] for skill in shown]
    retired = client.patch("/skills/talon-wait", json={"state": "retired", **SIGNED}).json()
    assert retired["warnings"] == []


def test_upload_is_exactly_one_zip(client: TestClient) -> None:
    assert_error(sent(client, zipped(page("evil")), hardware="h100"), 400)
    files = [("file", (f"{n}.zip", zipped(page("evil")))) for n in range(2)]
    assert_error(client.post("/skills", files=files), 400)
    for kind in ("text/plain", "application/zip"):
        headers = {"content-type": kind}
        refused = assert_error(client.post("/skills", content=b"x", headers=headers), 415)
        assert refused["hint"].endswith("curl -F file=@skill.zip .../skills")


def test_active_skill_has_separate_revision(client: TestClient) -> None:
    page = "---\nname: okapi-rows\ndescription: Use when okapi rows are short.\n---\nKeep them.\n"
    client.post("/skills", json={"name": "okapi-rows", "files": {"SKILL.md": page}})
    forced = {"state": "active", "force": True, **SIGNED}
    client.patch("/skills/okapi-rows", json=forced)
    change = {"body": "Keep them in registers.", **SIGNED}
    stored = client.post("/skills/okapi-rows/revisions", json=change)
    assert stored.status_code == 201
    revision = stored.json()["name"]
    assert revision == "okapi-rows-r2" and stored.json()["revises"] == "okapi-rows"
    shown = client.get("/skills/okapi-rows").json()
    assert shown["body"] == "Keep them." and shown["revision"] == revision
    assert "+Keep them in registers." in client.get(f"/skills/{revision}").json()["changes"]
    assert_error(client.post("/skills/okapi-rows/revisions", json=SIGNED), 400)
    assert_error(client.post("/skills/okapi-rows/revisions", json=change), 409, "conflict")
    assert_error(client.post(f"/skills/{SHIPPED}/revisions", json=change), 409, "conflict")
    event = client.patch(f"/skills/{revision}", json=forced).json()["event"]
    assert (event["event"], event["details"]["version"]) == ("revised", 2)
    assert client.get("/skills/okapi-rows").json()["body"] == "Keep them in registers."
    form = client.get("/ui/skills/okapi-rows/revise")
    assert form.status_code == 200 and "Keep them in registers." in form.text
    fields = {"description": "Use when.", "predicate": "and (", "body": "x", **SIGNED}
    refused = client.post("/ui/skills/okapi-rows/revise", data=fields)
    assert refused.status_code == 400 and "and (" in refused.text
    sent = client.post("/ui/skills/okapi-rows/revise", data={**fields, "predicate": ""})
    assert sent.url.path == "/ui/skills/okapi-rows-r3" and "What it changes" in sent.text
    for name in ("okapi-rows-r3", "okapi-rows"):
        client.patch(f"/skills/{name}", json={"state": "retired", **SIGNED})
