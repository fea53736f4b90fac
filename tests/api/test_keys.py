"""Keys in use: hardware of others on pages and in lists, sessions, the audit log, leaked secrets.
The access of each role is in test_operations.py.
"""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from tests.api.conftest import URL, assert_error
from tests.api.keyed_service import QUESTION, SECRET_WORDS, KeyedService, Planted

pytestmark = pytest.mark.slow(seconds=15)


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


def log_in(browser: TestClient, secret: str, goal: str = "/ui/skills") -> Response:
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
