"""Who may do what: every route, page and mount, with each kind of key and without one."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx2 import Response

from api.app import create_app
from api.http.authorisation import routes_of
from api.http.roles import OPEN_PAGES, Needs, is_tools
from api.mcp.tools import TOOLS
from api.operations import SAFE, operations
from api.services import Services
from api.web.pages import FORMS
from kb.catalog.evaluations import CandidateRow, Evaluations, ProblemRow
from kb.catalog.keys import ROLES, NewKey, Role, may
from kb.settings import Settings
from optimizer.search.goal import Goal
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from skills.trajectories.reading import trajectory_store
from tests.api.conftest import URL, assert_error, finished, upload
from tests.shared import copy_knowledge, place_models

pytestmark = pytest.mark.slow(seconds=15)

DECLARED = {operation.route: operation for operation in operations()} | FORMS
NEEDS = Needs(DECLARED, TOOLS)
SECRET_WORDS = "zanzibarium"  # of the manual that only one team may read
QUESTION = "cache of this chip has 48 KB"
MANUAL = f"""# Zanzibar notes

## Memory

The {SECRET_WORDS} cache of this chip has 48 KB and is memory bound; coalescing helps.

| quantity | value |
|---|---|
| Memory bandwidth | 3.9 TB/s |

## Elsewhere

On other chips the {SECRET_WORDS} trick costs memory bandwidth.
"""
SKILL = """---
name: zanzibar-tiles
description: Use when zanzibarium tiles are small.
metadata:
  kb.signals: memory_bound
  kb.hardware: h100
  kb.ops: matmul
---
## When to use

Always.
"""


@dataclass(frozen=True)
class Planted:
    """Ids of what is about h100 alone, by what they name."""

    document: str
    version: str
    passage: str
    elsewhere: str  # a passage of the same document that is about the other chip
    section: str
    job: str
    fact: str
    retrieval: str
    run: str
    trajectory: str
    evaluation: str
    skill: str


@dataclass(frozen=True)
class Door:
    """A service with keys: `secrets` by role, and by `h100`, `mi300x` (curators) and `revoked`."""

    app: FastAPI
    client: TestClient
    services: Services
    secrets: dict[str, str]
    ids: dict[str, str]
    planted: Planted

    def ask(self, key: str, method: str, path: str, **carried: Any) -> Response:
        headers = {"authorization": f"Bearer {self.secrets[key]}"} if key else {}
        headers |= carried.pop("headers", {})
        return self.client.request(method, path, headers=headers, follow_redirects=False, **carried)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[Door]:
    base = tmp_path_factory.mktemp("keys")
    settings = Settings(
        data_dir=place_models(base / "data", model_cache),
        knowledge_dir=copy_knowledge(base / "knowledge", ("hardware/mi300x/tuning.md",)),
    )
    app = create_app(settings)
    with TestClient(app, URL, raise_server_exceptions=False) as client:
        services: Services = app.state.services
        planted = plant(client, services)
        keys = services.keys
        made: dict[str, NewKey] = {role: keys.create(role) for role in ROLES}
        made |= {c: keys.create("curator", hardware=[c]) for c in ("h100", "mi300x")}
        made["revoked"] = keys.create("admin")
        keys.revoke(made["revoked"].key.id)
        secrets = {name: new.secret for name, new in made.items()}
        ids = {name: str(new.key.id) for name, new in made.items()}
        yield Door(app, client, services, secrets, ids, planted)


def plant(client: TestClient, services: Services) -> Planted:
    """One of everything about h100, before there is a key."""
    sent = upload(client, "zanzibar.md", MANUAL.encode(), hardware="h100").json()
    assert finished(client, sent["job_id"])["state"] == "ready"
    document = sent["document_id"]
    passages = client.get(f"/documents/{document}/passages").json()["passages"]
    elsewhere = next(p for p in passages if "other chips" in p["text"])
    client.patch(f"/passages/{elsewhere['id']}", json={"hardware": ["mi300x"]})
    facts = client.get("/hardware/h100/facts?status=all").json()["facts"]
    asked = client.post("/retrieve", json={"query": SECRET_WORDS, "hardware": "h100"}).json()
    assert SECRET_WORDS in asked["context"]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("zanzibar-tiles/SKILL.md", SKILL)
    brought = client.post("/skills", files=[("file", ("s.zip", buffer.getvalue()))])
    assert brought.status_code == 201, brought.text
    evaluation = plant_measurements(services)
    return Planted(
        document=document,
        version=client.get(f"/documents/{document}").json()["version"]["id"],
        passage=passages[0]["id"],
        elsewhere=elsewhere["id"],
        section=passages[0]["section"]["id"],
        job=sent["job_id"],
        fact=facts[0]["id"],
        retrieval=asked["retrieval_id"],
        run="run_0123456789abcdef",
        trajectory="trj_0123456789abcdef",
        evaluation=evaluation,
        skill="zanzibar-tiles",
    )


def plant_measurements(services: Services) -> str:
    """A run, an evaluation and an external search on h100; the key of the evaluation."""
    rows, digest, key = Evaluations(services.catalog), "0" * 64, "e" * 64
    problem = ProblemRow("map_id", digest, "file", "map", "blob", {})
    rows.begin(key, problem, [], CandidateRow("1" * 64, "cpp", "k", "llm", {}, "b"), "3", "d")
    run_store(services).begin(RunRow("run_0123456789abcdef", "map_id", digest, "h100", Goal()))
    trajectory_store(services).add(
        "trj_0123456789abcdef", "elsewhere", "unverified", {}, {"hardware": "h100"}
    )
    return key


# -- every route


def every(app: FastAPI) -> list[tuple[str, str]]:
    """Method and template of everything that answers; of a mount, a path below it."""
    routes = [r for r in routes_of(app) if r.template]
    return [
        (method, f"{r.template}/x" if r.methods is None else r.template)
        for r in routes
        for method in sorted((r.methods or {"GET", "POST", "DELETE"}) - {"HEAD", "OPTIONS"})
    ]


def filled(template: str) -> str:
    return re.sub(r"\{(\w+?)(:path)?\}", r"unknown_\1", template)


def need(app: FastAPI, method: str, template: str) -> Role | None:
    if is_tools(template) and method == "POST":
        return "reader"  # by message: tests/api/test_key_use.py
    of_mount = [r.template for r in routes_of(app) if r.methods is None]
    mount = next((m for m in of_mount if template.startswith(f"{m}/")), template)
    return NEEDS.of_route(method, mount).role


def test_without_a_valid_key_nothing_answers(door: Door) -> None:
    answered = []
    for method, template in every(door.app):
        role = need(door.app, method, template)
        for key in ("", "revoked"):
            answer = door.ask(key, method, filled(template))
            if (answer.status_code == 401) == (role is None):
                answered.append((key, method, template, answer.status_code))
            if answer.status_code == 401 and "/ui" not in template and template != "/docs":
                assert assert_error(answer, 401, "unauthorized")["hint"]
                assert answer.headers["www-authenticate"] == "Bearer"
    # The way in refuses a wrong key by itself.
    assert [a for a in answered if a[2] != "/ui/login"] == []
    assert door.ask("", "GET", "/no/such/route").status_code == 401


@pytest.mark.parametrize("role", ROLES)
def test_each_role_may_do_what_the_table_says(door: Door, role: Role) -> None:
    wrong = []
    for method, template in every(door.app):
        needed = need(door.app, method, template)
        if needed is None:
            continue
        answer = door.ask(role, method, filled(template))
        allowed = may(role, needed)
        if allowed == (answer.status_code == 403) or answer.status_code in (401, 500):
            wrong.append((method, template, answer.status_code))
    assert wrong == []


def test_every_route_that_changes_something_is_declared(door: Door) -> None:
    routes = [r for r in routes_of(door.app) if r.methods is not None]
    unsafe = {f"{m} {r.template}" for r in routes for m in r.methods or () if m not in SAFE}
    declared = {route for route in DECLARED if route.split()[0] not in SAFE}
    assert unsafe - declared - OPEN_PAGES == set()
    assert declared - unsafe == set(), "declared, but there is no such route"
    assert NEEDS.of_route("POST", "/something/new").role == "admin"


# -- hardware of others


def paths_of(planted: Planted) -> list[str]:
    """Everything that names something about h100, as a path to read."""
    p = planted
    of_document = ("", "/sections", "/passages", "/moves", "/file")
    of_chip = ("", "/coverage", "/facts", "/symbols", "/samples")
    of_page = ("", "/symbols", "/samples", "/first-prompt")
    return [
        *(f"/documents/{p.document}{rest}" for rest in of_document),
        *(f"/passages/{i}" for i in (p.passage, p.elsewhere)),
        *(f"/hardware/h100{rest}" for rest in of_chip),
        *(f"/skills/{p.skill}{rest}" for rest in ("", "/history", "/export")),
        *(
            f"/runs/{p.run}{rest}"
            for rest in ("", "/tree", "/candidates/0", "/context", "/flagged")
        ),
        f"/jobs/{p.job}",
        f"/trajectories/{p.trajectory}",
        f"/trajectories/{p.run}",
        f"/evaluations/{p.evaluation}",
        "/knowledge?path=hardware/h100",
        "/jobs?hardware=h100",
        "/documents?hardware=h100",
        "/skills?hardware=h100",
        "/knowledge/recipes?hardware=h100",
        "/retrieve?q=memory&hardware=h100",
        f"/ui/documents/{p.document}",
        f"/ui/passages/{p.passage}",
        f"/ui/jobs/{p.job}",
        f"/ui/skills/{p.skill}",
        f"/ui/runs/{p.run}",
        *(f"/ui/runs/{p.run}/{rest}" for rest in ("plots/tree.svg", "live", "download")),
        f"/ui/runs/{p.run}/candidates/0",
        *(f"/ui/hardware/h100{rest}" for rest in of_page),
    ]


def test_foreign_hardware_is_unknown_through_every_side_route(door: Door) -> None:
    """In the words for what was never there, whoever asks for what."""
    secret = {value for value in vars(door.planted).values()} | {"h100"}
    unlike = []
    for path in paths_of(door.planted):
        name = next(word for word in sorted(secret, key=len, reverse=True) if word in path)
        made_up = "h700" if name == "h100" else re.sub("[0-9a-f](?=[0-9a-f]*$)|s$", "7", name)
        asked = door.ask("mi300x", "GET", path)
        other = door.ask("mi300x", "GET", path.replace(name, made_up))
        same = asked.text.replace(name, "X") == other.text.replace(made_up, "X")
        if asked.status_code != 404 or not same:
            unlike.append((path, asked.status_code, asked.text[-300:], other.text[-300:]))
    assert unlike == []
    for path in ("/metrics", "/readyz"):
        assert_error(door.ask("mi300x", "GET", path), 403, "forbidden")


def test_no_list_names_foreign_hardware(door: Door) -> None:
    p = door.planted
    names = {p.document, p.passage, p.job, p.run, p.trajectory, p.skill, SECRET_WORDS, "Zanzibar"}
    lists = ["/documents", "/jobs", "/hardware", "/skills", "/runs", "/trajectories", "/knowledge"]
    lists += ["/knowledge?path=hardware", "/knowledge/recipes", "/skills?q=zanzibar"]
    lists += ["/ui", "/ui/documents", "/ui/jobs", "/ui/skills", "/ui/runs", "/ui/knowledge"]
    lists += [f"/retrieve?q={QUESTION}", f"/retrieve?q={QUESTION}&hardware=mi300x"]
    told = []
    for path in lists:
        answer = door.ask("mi300x", "GET", path)
        assert answer.status_code == 200, path
        told += [(path, name) for name in names if name in answer.text]
    assert told == []
    chips = {c["id"] for c in door.ask("mi300x", "GET", "/hardware").json()["hardware"]}
    assert {"mi300x", "amd"} <= chips and not {"h100", "nvidia"} & chips
    # It has the power to see: the other team's key finds all of it.
    assert p.document in door.ask("h100", "GET", "/documents").text
    assert p.run in door.ask("h100", "GET", "/runs").text
    assert p.trajectory in door.ask("h100", "GET", "/trajectories").text
    for path in (f"/retrieve?q={QUESTION}", "/knowledge?path=hardware", "/skills"):
        assert re.search(f"h100|{SECRET_WORDS}", door.ask("h100", "GET", path).text), path


def test_foreign_hardware_cannot_be_changed(door: Door) -> None:
    p = door.planted
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("PATCH", f"/passages/{p.passage}", {"json": {"text": "mine", "actor": "a"}}),
        ("PATCH", f"/passages/{p.elsewhere}", {"json": {"text": "mine", "actor": "a"}}),
        ("PATCH", f"/facts/{p.fact}", {"json": {"status": "rejected", "actor": "a"}}),
        (
            "PATCH",
            "/hardware/h100/facts",
            {"json": {"status": "rejected", "where": {}, "actor": "a"}},
        ),
        (
            "PATCH",
            f"/skills/{p.skill}",
            {"json": {"state": "retired", "reason": "no", "actor": "a"}},
        ),
        ("POST", f"/jobs/{p.job}/retry", {}),
        ("POST", f"/retrievals/{p.retrieval}/outcome", {"json": {"correct": True}}),
        (
            "POST",
            f"/runs/{p.run}/nodes/0/review",
            {"json": {"decision": "accepted", "reason": "x", "actor": "a"}},
        ),
    ]
    for method, path, carried in changes:
        answer = door.ask("mi300x", method, path, **carried)
        assert answer.status_code == 404, (path, answer.status_code, answer.text)
    sent = door.ask("mi300x", "POST", "/documents", data={"hardware": "h100"}, files=a_file())
    assert_error(sent, 404, "unknown_hardware")


def a_file(text: str = "# Own\n\nOwn text.\n") -> list[tuple[str, tuple[str, bytes]]]:
    return [("file", ("own.md", text.encode()))]


def test_a_restricted_key_changes_its_own_hardware_alone(door: Door) -> None:
    ask = door.ask
    # Nothing that others share, and not without saying what it is about.
    assert_error(ask("h100", "POST", "/documents", files=a_file()), 403, "forbidden")
    vendor = {"hardware": "nvidia"}
    assert_error(ask("h100", "POST", "/documents", data=vendor, files=a_file()), 403, "forbidden")
    own = f"/passages/{door.planted.passage}"
    assert_error(ask("h100", "PATCH", own, json={"hardware": ["hopper"]}), 403, "forbidden")
    # A key that moved its chip below another would see what is about that one.
    moved = {"id": "h100", "parent": "mi300x"}
    assert ask("h100", "POST", "/hardware", json=moved).status_code in (404, 409)
    assert_error(ask("h100", "POST", "/hardware", json={"id": "new-x1"}), 403, "forbidden")
    assert_error(ask("h100", "POST", "/trajectories", json={}), 403, "forbidden")
    # The source key of a document that it does not see leads to a document of its own.
    key = {"hardware": "mi300x", "source_key": "zanzibar"}
    theirs = ask("writer", "POST", "/documents", data=key, files=a_file("# A\n\nTheirs.\n")).json()
    mine = {"hardware": "h100", "source_key": "zanzibar"}
    sent = ask("h100", "POST", "/documents", data=mine, files=a_file("# B\n\nMine.\n"))
    assert sent.status_code == 202 and sent.json()["document_id"] != theirs["document_id"]
    assert sent.json()["outcome"] == "created"
    asked = ask("h100", "GET", f"/retrieve?q={SECRET_WORDS}").json()  # about no chip in particular
    outcome = f"/retrievals/{asked['retrieval_id']}/outcome"
    assert ask("mi300x", "POST", outcome, json={"correct": True}).status_code == 404
    assert ask("h100", "POST", outcome, json={"correct": True}).status_code == 201


# -- the pages' sessions


@pytest.fixture
def browser(door: Door) -> TestClient:
    """Another one than the client of programs, with cookies of its own."""
    return TestClient(door.app, URL, follow_redirects=False)


def log_in(browser: TestClient, secret: str, goal: str = "/ui/skills") -> Response:
    form = {"key": secret, "next": goal}
    return browser.post("/ui/login", data=form, headers={"origin": URL})


def test_pages_ask_for_a_key_and_go_on_to_where_one_wanted(door: Door, browser: TestClient) -> None:
    refused = browser.get("/ui/documents?q=memory")
    assert refused.status_code == 401 and 'action="/ui/login"' in refused.text
    assert 'value="/ui/documents?q=memory"' in refused.text
    assert log_in(browser, "klk_wrong").status_code == 401
    assert browser.get("/ui/documents").status_code == 401
    answer = log_in(browser, door.secrets["writer"])
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/skills")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/" in cookie
    assert door.secrets["writer"] not in cookie
    assert browser.get("/ui/documents").status_code == 200
    for goal in ("https://evil.example/ui", "//evil.example/ui", "/documents", "/ui\\@evil", ""):
        assert log_in(browser, door.secrets["writer"], goal).headers["location"] == "/ui"


def test_a_session_has_the_role_of_its_key_and_sends_only_own_forms(
    door: Door, browser: TestClient
) -> None:
    log_in(browser, door.secrets["writer"])
    passage = f"/ui/passages/{door.planted.passage}"
    form = {"text": "", "tags": "", "hardware": "h100"}
    own = {"origin": URL}
    assert browser.post(passage, data=form).status_code == 403  # no origin: no form of ours
    foreign = {"origin": "http://evil.example"}
    assert browser.post(passage, data=form, headers=foreign).status_code == 403
    assert browser.post("/ui/hardware", data={"id": "own-x2"}, headers=own).status_code == 303
    delete = f"/ui/documents/{door.planted.document}/delete"
    assert browser.post(delete, data={"sure": "yes"}, headers=own).status_code == 403
    assert "Log out" in browser.get("/ui").text
    assert browser.post("/ui/logout", headers=own).status_code == 303
    assert browser.get("/ui").status_code == 401


def test_a_session_ends_when_its_key_is_revoked(door: Door, browser: TestClient) -> None:
    made = door.services.keys.create("reader")
    log_in(browser, made.secret)
    assert browser.get("/ui").status_code == 200
    stolen = {"cookie": f"kernlore_session={made.secret}"}  # the key itself is no session
    assert TestClient(door.app, URL).get("/ui", headers=stolen).status_code == 401
    door.services.keys.revoke(made.key.id)
    assert browser.get("/ui").status_code == 401


def test_no_page_may_run_a_script_of_its_text(door: Door) -> None:
    title = "<img src=x onerror=alert(1)>"
    sent = door.ask(
        "admin", "POST", "/documents", data={"title": title}, files=a_file("# T\n\nText of it.\n")
    ).json()
    for path in (
        "/ui",
        "/ui/documents",
        f"/ui/documents/{sent['document_id']}",
        "/ui/login",
        "/docs",
    ):
        answer = door.ask("admin", "GET", path)
        policy = answer.headers["content-security-policy"]
        scripts = re.findall(r"script-src ([^;]*)", policy)
        assert answer.status_code == 200 and "default-src 'none'" in policy
        assert scripts and "unsafe" not in scripts[0], policy
        assert "frame-ancestors 'none'" in policy
        assert title not in answer.text


# -- what is written down


def test_changes_are_audited_without_secrets_or_texts(door: Door) -> None:
    text = "# Own\n\nA very private sentence.\n"
    sent = door.ask("writer", "POST", "/documents", data={"hardware": "a100"}, files=a_file(text))
    document = sent.json()["document_id"]
    door.ask("writer", "DELETE", f"/documents/{document}")
    door.ask("", "DELETE", f"/documents/{document}")
    door.ask("admin", "DELETE", f"/documents/{document}")
    door.ask("reader", "POST", "/retrieve", json={"query": "memory"})
    entries = door.services.audit.read(50, subject=document)[::-1]
    assert [(e["who"], e.get("role", ""), e["action"], e["outcome"]) for e in entries] == [
        (door.ids["writer"], "writer", "POST /documents", "202"),
        (door.ids["admin"], "admin", "DELETE /documents/{document_id}", "200"),
    ]
    refused = [e for e in door.services.audit.read(50) if e["action"].startswith("DELETE")]
    assert [e["outcome"] for e in refused[:3]] == ["200", "401", "403"]
    log = door.services.audit.path.read_text(encoding="utf-8")
    assert 'POST /retrieve"' not in log and "private sentence" not in log
    assert not [name for name, secret in door.secrets.items() if secret in log]
    assert door.services.audit.path.stat().st_mode & 0o077 == 0


@pytest.mark.embedded
def test_secrets_are_in_no_log_and_no_file(
    door: Door, browser: TestClient, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = door.secrets["curator"]
    door.ask("curator", "GET", "/hardware")
    door.client.get(f"/retrieve?q=memory&key={secret}")
    door.client.get("/hardware", headers={"authorization": f"Basic {secret}"})
    log_in(browser, secret)
    assert browser.get("/ui").status_code == 200
    session = browser.cookies["kernlore_session"]
    door.services.keys.flush()
    written = "".join(capfd.readouterr())
    assert "request" in written  # the log was looked at
    assert secret not in written and session not in written
    folder = door.services.settings.data_dir
    files = [p for p in folder.glob("*") if p.is_file()]
    assert {"audit.jsonl", "catalog.sqlite"} <= {p.name for p in files}
    assert [p.name for p in files if secret.encode() in p.read_bytes()] == []
    assert [p.name for p in files if session.encode() in p.read_bytes()] == []
    used = {str(k.id): k.last_used_at for k in door.services.keys.list()}
    assert used[door.ids["curator"]] and not used[door.ids["revoked"]]
