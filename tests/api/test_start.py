"""A starting service: readiness and answers report missing knowledge until it is read."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.services import Services
from ingestion.builtin import BuiltinReport
from ingestion.worker import Worker
from kb.settings import Settings
from tests.api.conftest import URL, small_knowledge, wait_until_ready
from tests.known_device import store_ceilings
from tests.shared import place_models
from tests.waiting import until

pytestmark = pytest.mark.slow(seconds=6)

REQUEST = {"signal": "memory_bound", "hardware": "h100"}


def test_answers_report_unread_built_in_knowledge(
    tmp_path: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        data_dir=store_ceilings(place_models(tmp_path / "data", model_cache)),
        knowledge_dir=small_knowledge(tmp_path / "knowledge"),
    )
    may_read = threading.Event()
    read_all = Worker.read_all

    def delayed(self: Worker, stop: threading.Event, until_upload: bool = False) -> None:
        may_read.wait(60)
        read_all(self, stop, until_upload)

    monkeypatch.setattr(Worker, "read_all", delayed)
    with TestClient(create_app(settings), URL) as client:
        try:
            while "being listed" in (starting := client.get("/readyz")).json()["note"]:
                time.sleep(0.02)
            assert starting.status_code == 503
            assert "being loaded: " in starting.json()["note"]
            hints = client.post("/retrieve", json=REQUEST).json()["hints"]
            assert any("built-in knowledge is being loaded" in hint for hint in hints)
            assert client.get("/healthz").status_code == 200
        finally:
            may_read.set()
        while not (state := client.get("/readyz").json())["ready"]:
            assert state["note"] and ": 0 documents" not in state["note"], state
            time.sleep(0.02)
        assert state["note"] == ""
        assert state["knowledge_loaded"] and client.get("/readyz").status_code == 200
        answer = client.post("/retrieve", json=REQUEST).json()
        assert answer["excerpts"]
        assert not [hint for hint in answer["hints"] if "built-in knowledge" in hint]


def test_second_start_answers_before_it_compares_the_files(
    tmp_path: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        data_dir=store_ceilings(place_models(tmp_path / "data", model_cache)),
        knowledge_dir=small_knowledge(tmp_path / "knowledge"),
    )
    with TestClient(create_app(settings), URL) as client:
        wait_until_ready(client)
        passages = client.get("/readyz").json()["passages"]
    compared = threading.Event()
    load_builtin = Services.load_builtin

    def delayed(self: Services, specs: int | None = None) -> BuiltinReport:
        assert compared.wait(60)
        return load_builtin(self, specs)

    monkeypatch.setattr(Services, "load_builtin", delayed)
    monkeypatch.setattr("api.services.CONFIRM_SECONDS", 0.0)
    path = next((settings.knowledge_dir / "guidance").glob("*.md"))
    before, text = path.stat(), path.read_bytes()
    path.write_bytes(text[:-2] + b"!\n")  # as long as before
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with TestClient(create_app(settings), URL) as client:
        wait_until_ready(client)
        answer = client.post("/retrieve", json=REQUEST).json()
        assert answer["excerpts"] and not answer["hints"]
        compared.set()
        until(
            lambda: client.get("/documents").json()["documents"],
            lambda documents: any(d["version"]["number"] == 2 for d in documents),
        )
        assert wait_until_ready(client)["passages"] == passages
