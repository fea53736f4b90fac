"""Keys as callers use them: the commands, the client, and rate limits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import httpx2
import pytest
from fastapi import Request, Response
from fastapi.testclient import TestClient
from starlette.types import Receive, Scope, Send

from api.app import create_app
from api.http.admission import Limits
from api.http.authorisation import MCP, caller_of
from api.mcp.tools import TOOLS
from api.services import open_services
from kb.catalog import open_catalog
from kb.catalog.keys import ROLES, RequestCounts, Role, may
from kb.errors import TooManyRequests
from kb.settings import Settings
from retrieval.client import HttpBackend, Kernlore, KernloreClientError, Part
from tests.api.cli_process import kernlore
from tests.api.conftest import URL, assert_error
from tests.catalogs import builtin_data_dir, fresh_data_dir

pytestmark = pytest.mark.slow(seconds=5)


def test_commands_create_list_and_revoke_keys(tmp_path: Path) -> None:
    data = builtin_data_dir(tmp_path / "data")
    made = kernlore("keys", "create", "--role", "writer", "--hardware", "H100", "--json", data=data)
    assert made.code == 0 and made.json["hardware"] == ["h100"] and "It is the first" in made.err
    secret = made.json["key"]
    unknown = kernlore("keys", "create", "--role", "reader", "--hardware", "h10", data=data)
    assert unknown.code == 2 and "h100" in unknown.err
    assert kernlore("keys", "create", "--role", "admin", "--hardware", "h100", data=data).code == 2
    listed = kernlore("keys", "list", data=data)
    assert made.json["id"] in listed.out and secret not in listed.out
    revoked = kernlore("keys", "revoke", made.json["id"], "--json", data=data)
    assert revoked.json["state"] == "revoked"
    audited = kernlore("keys", "audit", "--json", data=data)
    assert [c["action"] for c in audited.json["changes"]] == ["keys revoke", "keys create"]
    assert secret not in audited.out and audited.json["changes"][0]["who"].startswith("local:")


@pytest.fixture
def limited(tmp_path: Path) -> TestClient:
    """A service whose keys have five requests and two uploads per minute. It reads no documents, so
    it is not started.
    """
    settings = Settings(
        data_dir=builtin_data_dir(tmp_path / "data"), requests_per_minute=5, uploads_per_minute=2
    )
    app = create_app(settings)
    app.state.services = open_services(settings)
    return TestClient(app, URL)


def test_key_over_its_limit_gets_retry_after(limited: TestClient) -> None:
    assert {limited.get("/signals").status_code for _ in range(9)} == {200}  # no keys, on loopback
    keys = limited.app.state.services.keys  # type: ignore[attr-defined]
    first, second = ({"authorization": f"Bearer {keys.create('writer').secret}"} for _ in "ab")
    assert [limited.get("/signals", headers=first).status_code for _ in range(5)] == [200] * 5
    refused = limited.get("/signals", headers=first)
    body = assert_error(refused, 429, "too_many_requests")
    assert refused.headers["retry-after"] == str(body["details"]["retry_after_seconds"]) == "12"
    assert limited.get("/signals", headers=second).status_code == 200  # has a separate limit
    sent = [limited.post("/documents", headers=second).status_code for _ in range(3)]
    assert sent == [415, 415, 429]
    guesses = [limited.get("/signals", headers={"authorization": "Bearer x"}) for _ in range(6)]
    assert [answer.status_code for answer in guesses] == [401] * 5 + [429]


def test_change_with_key_is_recorded_with_its_name(limited: TestClient) -> None:
    services = limited.app.state.services  # type: ignore[attr-defined]
    secret = services.keys.create("admin", name="compiler team").secret
    headers = {"authorization": f"Bearer {secret}"}
    page = "---\nname: load-early\ndescription: Use when.\n---\nDo.\n"
    body = {"name": "load-early", "files": {"SKILL.md": page}}
    assert limited.post("/skills", json=body, headers=headers).status_code == 201
    patch = {"state": "retired", "actor": "ann", "reason": "old"}
    assert limited.patch("/skills/load-early", json=patch, headers=headers).status_code == 200
    events = limited.get("/skills/load-early/history", headers=headers).json()["events"]
    assert [event["actor"] for event in events] == ["compiler team", "compiler team (as ann)"]


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Replaces the MCP application: answers with the caller and the message."""
    body = await Request(scope, receive).body()
    caller = caller_of(scope)
    await Response(f"{caller.role} {body.decode()}")(scope, receive, send)


def test_mounted_application_is_behind_same_access_check(tmp_path: Path) -> None:
    settings = Settings(data_dir=builtin_data_dir(tmp_path / "data"))
    app = create_app(settings)
    services = app.state.services = open_services(settings)
    app.mount(MCP, _echo)
    client, keys = TestClient(app, URL), services.keys
    made = {role: keys.create(role) for role in ROLES}
    chip = keys.create("writer", hardware=["h100"])

    def call(secret: str, *tools: str) -> httpx2.Response:
        messages = [{"method": "tools/call", "params": {"name": tool}} for tool in tools]
        headers = {"authorization": f"Bearer {secret}"}
        return client.post(f"{MCP}/", json=messages, headers=headers)

    wrong = []
    roles: dict[str, Role] = {name: operation.role for name, operation in TOOLS.items()}
    for tool, needed in {**roles, "unheard_of": "admin"}.items():
        assert call("", tool).status_code == 401
        for role in ROLES:
            answer = call(made[role].secret, "retrieve_context", tool)
            if (answer.status_code == 200) != may(role, needed):
                wrong.append((role, tool, answer.status_code))
            if answer.status_code == 200:  # the inspected message is passed on completely
                assert answer.text.startswith(f"{role} [") and tool in answer.text
    assert wrong == []
    changed = [entry["action"] for entry in services.audit.read(100) if entry["outcome"] == "200"]
    assert "mcp evaluate_candidate,retrieve_context" in changed
    assert "mcp retrieve_context,search_manual" not in changed  # reads
    for method in ("GET", "DELETE", "POST"):
        assert client.request(method, MCP).status_code == 401
    assert call(chip.secret, "retrieve_context").status_code == 200
    assert call(chip.secret, "submit_trajectory").status_code == 403


def test_rate_limit_refills_with_time() -> None:
    now = [0.0]
    limits = Limits(Settings(requests_per_minute=60, uploads_per_minute=0), lambda: now[0])
    for _ in range(60):
        limits.take("key_1", "request", with_key=True)
    with pytest.raises(TooManyRequests):
        limits.take("key_1", "request", with_key=True)
    limits.take("key_1", "free", with_key=True)
    limits.take("127.0.0.1", "request", with_key=False)
    now[0] = 1.0
    limits.take("key_1", "upload", with_key=True)  # uploads have no separate limit here
    with pytest.raises(TooManyRequests):
        limits.take("key_1", "request", with_key=True)
    now[0] = 1e6
    for _ in range(60):  # at most the share of one minute
        limits.take("key_1", "request", with_key=True)
    with pytest.raises(TooManyRequests):
        limits.take("key_1", "request", with_key=True)


def test_address_is_limited_on_public_service() -> None:
    limits = Limits(Settings(host="0.0.0.0", requests_per_minute=1))
    limits.take("10.0.0.7", "request", with_key=False)
    with pytest.raises(TooManyRequests):
        limits.take("10.0.0.7", "request", with_key=False)


def exchanged(limits: Limits, counts: RequestCounts) -> None:
    own = limits.own()
    limits.learn(counts.exchange(own, 120.0), own)


def test_replicas_share_one_limit(tmp_path: Path) -> None:
    """Requests counted by one replica reduce the limit at the other after an exchange."""
    catalog = open_catalog(fresh_data_dir(tmp_path / "data"))
    counts = RequestCounts(catalog)
    one, other = (Limits(Settings(requests_per_minute=60), lambda: 0.0) for _ in range(2))
    for limits in (one, other):
        limits.take("key_1", "request", with_key=True)
    for limits in (one, other, one):
        exchanged(limits, counts)
    for _ in range(40):
        one.take("key_1", "request", with_key=True)
    exchanged(one, counts)
    exchanged(other, counts)
    for _ in range(19):
        other.take("key_1", "request", with_key=True)
    with pytest.raises(TooManyRequests):
        other.take("key_1", "request", with_key=True)
    own = other.own()
    other.keep(own)  # the exchange failed
    exchanged(other, counts)
    exchanged(one, counts)
    with pytest.raises(TooManyRequests):
        one.take("key_1", "request", with_key=True)
    new = Limits(Settings(requests_per_minute=60), lambda: 0.0)
    exchanged(new, counts)  # earlier requests are not counted
    new.take("key_1", "request", with_key=True)
    catalog.close()


class Listening(BaseHTTPRequestHandler):
    """Answers the first request with `Retry-After: 0`; records the requests."""

    came: ClassVar[list[tuple[str | None, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.came.append((self.headers["authorization"], body))
        self.send_response(429 if len(self.came) == 1 else 200)
        self.send_header("retry-after", "0")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """The default would print between the lines of the tests."""


@pytest.fixture
def listening() -> Iterator[str]:
    Listening.came = []
    with HTTPServer(("127.0.0.1", 0), Listening) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_client_sends_key_of_environment_and_retries(
    listening: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KERNLORE_KEY", " klk_of-the-environment\n")
    backend = HttpBackend(listening, 5.0, None)
    manual = tmp_path / "manual.md"
    manual.write_bytes(b"the whole manual")
    with manual.open("rb") as file:
        status, _ = backend.send("POST", "/documents", files=[Part("file", file, "manual.md")])
    backend.close()
    assert status == 200
    assert [key for key, _ in Listening.came] == ["Bearer klk_of-the-environment"] * 2
    assert all(b"the whole manual" in body for _, body in Listening.came)
    with Kernlore(listening, key="klk_given") as client:
        client._call("POST", "/x", json={})
    assert Listening.came[-1][0] == "Bearer klk_given"
    with pytest.raises(KernloreClientError) as refused:
        Kernlore(listening, key="klk_a b")
    assert refused.value.code == "invalid_key" and "klk_a b" not in str(refused.value)
