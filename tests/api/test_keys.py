"""Keys in use: hardware of others on pages and in lists, sessions, the audit log, leaked secrets,
commands, the client, and rate limits.
The access of each role is in test_operations.py.
"""

from __future__ import annotations

import re
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
from tests.api.keyed_service import QUESTION, SECRET_WORDS, KeyedService, Planted
from tests.catalogs import builtin_data_dir, fresh_data_dir

pytestmark = pytest.mark.slow(seconds=20)


# -- hardware of others


def pages_of(planted: Planted) -> list[str]:
    """Every page that names a record about h100."""
    p = planted
    return [
        f"/ui/documents/{p.document}",
        f"/ui/passages/{p.passage}",
        f"/ui/jobs/{p.job}",
        f"/ui/skills/{p.skill}",
        f"/ui/runs/{p.run}",
        *(f"/ui/runs/{p.run}/{rest}" for rest in ("plots/tree.svg", "live", "download")),
        f"/ui/runs/{p.run}/candidates/0",
        *(f"/ui/hardware/h100{rest}" for rest in ("", "/symbols", "/samples", "/first-prompt")),
    ]


def test_foreign_hardware_is_unknown_on_every_page(keyed: KeyedService) -> None:
    """With the same text as for an id that never existed."""
    secret = {value for value in vars(keyed.planted).values()} | {"h100"}
    unlike = []
    for path in pages_of(keyed.planted):
        name = next(word for word in sorted(secret, key=len, reverse=True) if word in path)
        made_up = "h700" if name == "h100" else re.sub("[0-9a-f](?=[0-9a-f]*$)|s$", "7", name)
        requested = keyed.ask("mi300x", "GET", path)
        other = keyed.ask("mi300x", "GET", path.replace(name, made_up))
        same = requested.text.replace(name, "X") == other.text.replace(made_up, "X")
        if requested.status_code != 404 or not same:
            unlike.append((path, requested.status_code, requested.text[-300:], other.text[-300:]))
    assert unlike == []


def test_no_list_names_foreign_hardware(keyed: KeyedService) -> None:
    p = keyed.planted
    names = {p.document, p.passage, p.job, p.run, p.trajectory, p.skill, SECRET_WORDS, "Zanzibar"}
    lists = ["/documents", "/jobs", "/hardware", "/skills", "/runs", "/trajectories", "/knowledge"]
    lists += ["/knowledge?path=hardware", "/knowledge/recipes", "/skills?q=zanzibar"]
    lists += ["/ui", "/ui/documents", "/ui/jobs", "/ui/skills", "/ui/runs", "/ui/knowledge"]
    lists += [f"/retrieve?q={QUESTION}", f"/retrieve?q={QUESTION}&hardware=mi300x"]
    reported = []
    for path in lists:
        answer = keyed.ask("mi300x", "GET", path)
        assert answer.status_code == 200, path
        reported += [(path, name) for name in names if name in answer.text]
    assert reported == []
    chips = {c["id"] for c in keyed.ask("mi300x", "GET", "/hardware").json()["hardware"]}
    assert {"mi300x", "amd"} <= chips and not {"h100", "nvidia"} & chips
    # Check of the test: the key of the other team sees all of it.
    assert p.document in keyed.ask("h100", "GET", "/documents").text
    assert p.run in keyed.ask("h100", "GET", "/runs").text
    assert p.trajectory in keyed.ask("h100", "GET", "/trajectories").text
    for path in (f"/retrieve?q={QUESTION}", "/knowledge?path=hardware", "/skills"):
        assert re.search(f"h100|{SECRET_WORDS}", keyed.ask("h100", "GET", path).text), path


def a_file(text: str = "# Own\n\nOwn text.\n") -> list[tuple[str, tuple[str, bytes]]]:
    return [("file", ("own.md", text.encode()))]


def test_restricted_key_changes_only_its_hardware(keyed: KeyedService) -> None:
    ask = keyed.ask
    # Nothing shared, and not without stating its hardware.
    assert_error(ask("h100", "POST", "/documents", files=a_file()), 403, "forbidden")
    vendor = {"hardware": "nvidia"}
    assert_error(ask("h100", "POST", "/documents", data=vendor, files=a_file()), 403, "forbidden")
    own = f"/passages/{keyed.planted.passage}"
    assert_error(ask("h100", "PATCH", own, json={"hardware": ["hopper"]}), 403, "forbidden")
    # A key that moved its chip below another would see the knowledge about that one.
    moved = {"id": "h100", "parent": "mi300x"}
    assert ask("h100", "POST", "/hardware", json=moved).status_code in (404, 409)
    assert_error(ask("h100", "POST", "/hardware", json={"id": "new-x1"}), 403, "forbidden")
    assert_error(ask("h100", "POST", "/trajectories", json={}), 403, "forbidden")
    # The source key of an invisible document maps to a new document.
    key = {"hardware": "mi300x", "source_key": "zanzibar"}
    theirs = ask("writer", "POST", "/documents", data=key, files=a_file("# A\n\nTheirs.\n")).json()
    mine = {"hardware": "h100", "source_key": "zanzibar"}
    sent = ask("h100", "POST", "/documents", data=mine, files=a_file("# B\n\nMine.\n"))
    assert sent.status_code == 202 and sent.json()["document_id"] != theirs["document_id"]
    assert sent.json()["outcome"] == "created"
    requested = ask("h100", "GET", f"/retrieve?q={SECRET_WORDS}").json()  # about no particular chip
    outcome = f"/retrievals/{requested['retrieval_id']}/outcome"
    assert ask("mi300x", "POST", outcome, json={"correct": True}).status_code == 404
    assert ask("h100", "POST", outcome, json={"correct": True}).status_code == 201


# -- sessions of the pages


@pytest.fixture
def browser(keyed: KeyedService) -> TestClient:
    """A separate client from that of programs, with cookies."""
    return TestClient(keyed.app, URL, follow_redirects=False)


def log_in(browser: TestClient, secret: str, goal: str = "/ui/skills") -> httpx2.Response:
    form = {"key": secret, "next": goal}
    return browser.post("/ui/login", data=form, headers={"origin": URL})


def test_login_redirects_to_requested_page(keyed: KeyedService, browser: TestClient) -> None:
    refused = browser.get("/ui/documents?q=memory")
    assert refused.status_code == 401 and 'action="/ui/login"' in refused.text
    assert 'value="/ui/documents?q=memory"' in refused.text
    assert log_in(browser, "klk_wrong").status_code == 401
    assert browser.get("/ui/documents").status_code == 401
    answer = log_in(browser, keyed.secrets["writer"])
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/skills")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie
    assert keyed.secrets["writer"] not in cookie
    assert browser.get("/ui/documents").status_code == 200
    for goal in ("https://evil.example/ui", "//evil.example/ui", "/documents", "/ui\\@evil", ""):
        assert log_in(browser, keyed.secrets["writer"], goal).headers["location"] == "/ui"


def test_session_has_role_of_its_key_and_sends_only_own_forms(
    keyed: KeyedService, browser: TestClient
) -> None:
    log_in(browser, keyed.secrets["writer"])
    passage = f"/ui/passages/{keyed.planted.passage}"
    form = {"text": "", "tags": "", "hardware": "h100"}
    own = {"origin": URL}
    assert browser.post(passage, data=form).status_code == 403  # no origin: not a form of the pages
    foreign = {"origin": "http://evil.example"}
    assert browser.post(passage, data=form, headers=foreign).status_code == 403
    assert browser.post("/ui/hardware", data={"id": "own-x2"}, headers=own).status_code == 303
    delete = f"/ui/documents/{keyed.planted.document}/delete"
    assert browser.post(delete, data={"sure": "yes"}, headers=own).status_code == 403
    assert "Log out" in browser.get("/ui").text
    assert browser.post("/ui/logout", headers=own).status_code == 303
    assert browser.get("/ui").status_code == 401


def test_session_ends_when_its_key_is_revoked(keyed: KeyedService, browser: TestClient) -> None:
    made = keyed.services.keys.create("reader")
    log_in(browser, made.secret)
    assert browser.get("/ui").status_code == 200
    stolen = {"cookie": f"kernlore_session={made.secret}"}  # the key itself is not a session
    assert TestClient(keyed.app, URL).get("/ui", headers=stolen).status_code == 401
    keyed.services.keys.revoke(made.key.id)
    assert browser.get("/ui").status_code == 401


def test_page_text_cannot_run_scripts(keyed: KeyedService) -> None:
    title = "<img src=x onerror=alert(1)>"
    sent = keyed.ask(
        "admin", "POST", "/documents", data={"title": title}, files=a_file("# T\n\nText of it.\n")
    ).json()
    for path in (
        "/ui",
        "/ui/documents",
        f"/ui/documents/{sent['document_id']}",
        "/ui/login",
        "/docs",
    ):
        answer = keyed.ask("admin", "GET", path)
        policy = answer.headers["content-security-policy"]
        scripts = re.findall(r"script-src ([^;]*)", policy)
        assert answer.status_code == 200 and "default-src 'none'" in policy
        assert scripts and "unsafe" not in scripts[0], policy
        assert "frame-ancestors 'none'" in policy
        assert title not in answer.text


# -- stored records


def test_changes_are_audited_without_secrets_or_texts(keyed: KeyedService) -> None:
    text = "# Own\n\nA very private sentence.\n"
    sent = keyed.ask("writer", "POST", "/documents", data={"hardware": "a100"}, files=a_file(text))
    document = sent.json()["document_id"]
    keyed.ask("writer", "DELETE", f"/documents/{document}")
    keyed.ask("", "DELETE", f"/documents/{document}")
    keyed.ask("admin", "DELETE", f"/documents/{document}")
    keyed.ask("reader", "POST", "/retrieve", json={"query": "memory"})
    entries = keyed.services.audit.read(50, subject=document)[::-1]
    assert [(e["who"], e.get("role", ""), e["action"], e["outcome"]) for e in entries] == [
        (keyed.ids["writer"], "writer", "POST /documents", "202"),
        (keyed.ids["admin"], "admin", "DELETE /documents/{document_id}", "200"),
    ]
    refused = [e for e in keyed.services.audit.read(50) if e["action"].startswith("DELETE")]
    assert [e["outcome"] for e in refused[:3]] == ["200", "401", "403"]
    log = keyed.services.audit.path.read_text(encoding="utf-8")
    assert 'POST /retrieve"' not in log and "private sentence" not in log
    assert not [name for name, secret in keyed.secrets.items() if secret in log]
    assert keyed.services.audit.path.stat().st_mode & 0o077 == 0


@pytest.mark.embedded
def test_secrets_are_in_no_log_and_no_file(
    keyed: KeyedService, browser: TestClient, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = keyed.secrets["curator"]
    keyed.ask("curator", "GET", "/hardware")
    keyed.client.get(f"/retrieve?q=memory&key={secret}")
    keyed.client.get("/hardware", headers={"authorization": f"Basic {secret}"})
    log_in(browser, secret)
    assert browser.get("/ui").status_code == 200
    session = browser.cookies["kernlore_session"]
    keyed.services.keys.flush()
    written = "".join(capfd.readouterr())
    assert "request" in written  # check that the log was searched
    assert secret not in written and session not in written
    folder = keyed.services.settings.data_dir
    files = [p for p in folder.glob("*") if p.is_file()]
    assert {"audit.jsonl", "catalog.sqlite"} <= {p.name for p in files}
    assert [p.name for p in files if secret.encode() in p.read_bytes()] == []
    assert [p.name for p in files if session.encode() in p.read_bytes()] == []
    used = {str(k.id): k.last_used_at for k in keyed.services.keys.list()}
    assert used[keyed.ids["curator"]] and not used[keyed.ids["revoked"]]


# -- keys as callers use them: the commands, the client, and rate limits


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
