"""A running service with keys of every role, and one record of every kind about h100."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI

from api.app import create_app
from api.services import Services
from kb.catalog.evaluations import CandidateRow, Evaluations, ProblemRow
from kb.catalog.keys import ROLES, NewKey
from kb.settings import Settings
from optimizer.search.goal import Goal
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from skills.trajectories.reading import trajectory_store
from tests.api.conftest import finished, upload, wait_until_ready
from tests.shared import copy_knowledge, place_models
from tests.waiting import until

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
    """Ids of records about h100 alone, by kind."""

    document: str
    version: str
    passage: str
    elsewhere: str  # a passage of the same document about the other chip
    section: str
    job: str
    fact: str
    retrieval: str
    run: str
    trajectory: str
    evaluation: str
    skill: str


@dataclass(frozen=True)
class KeyedService:
    """`secrets` are by role, and by `h100`, `mi300x` (curators) and `revoked`."""

    url: str
    app: FastAPI
    client: httpx2.Client
    services: Services
    secrets: dict[str, str]
    ids: dict[str, str]
    planted: Planted

    def ask(self, key: str, method: str, path: str, **carried: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.secrets[key]}"} if key else {}
        headers |= carried.pop("headers", {})
        return self.client.request(method, path, headers=headers, **carried)


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """The URL of an application served by a thread of this process."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started or not thread.is_alive(), seconds=60, pause=0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)


@contextmanager
def keyed_service(base: Path, model_cache: Path) -> Iterator[KeyedService]:
    """The service, over data in the folder `base`."""
    settings = Settings(
        data_dir=place_models(base / "data", model_cache),
        knowledge_dir=copy_knowledge(base / "knowledge", ("hardware/mi300x/tuning.md",)),
        requests_per_minute=0,
        uploads_per_minute=0,
    )
    app = create_app(settings)
    with running(app) as url, httpx2.Client(base_url=url, timeout=60) as client:
        services: Services = app.state.services
        planted = plant(client, services)
        wait_until_ready(client)
        keys = services.keys
        made: dict[str, NewKey] = {role: keys.create(role) for role in ROLES}
        made |= {c: keys.create("curator", hardware=[c]) for c in ("h100", "mi300x")}
        made["revoked"] = keys.create("admin")
        keys.revoke(made["revoked"].key.id)
        secrets = {name: new.secret for name, new in made.items()}
        ids = {name: str(new.key.id) for name, new in made.items()}
        yield KeyedService(url, app, client, services, secrets, ids, planted)


def plant(client: httpx2.Client, services: Services) -> Planted:
    """Store one record of every kind about h100, before the first key."""
    sent = upload(client, "zanzibar.md", MANUAL.encode(), hardware="h100").json()
    assert finished(client, sent["job_id"])["state"] == "ready"
    document = sent["document_id"]
    passages = client.get(f"/documents/{document}/passages").json()["passages"]
    elsewhere = next(p for p in passages if "other chips" in p["text"])
    client.patch(f"/passages/{elsewhere['id']}", json={"hardware": ["mi300x"]})
    facts = client.get("/hardware/h100/facts?status=all").json()["facts"]
    requested = client.post("/retrieve", json={"query": SECRET_WORDS, "hardware": "h100"}).json()
    assert SECRET_WORDS in requested["context"]
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
        retrieval=requested["retrieval_id"],
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
