"""Cards proposed by a model, through commands and over HTTP, until a person decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.services import open_services
from ingestion.uploads import FileUpload
from kb.catalog.knowledge import section_texts, symbols
from kb.catalog.knowledge.symbols import ProposedCard
from kb.scope import ALL_ACCESS
from kb.settings import Settings
from tests.api.cli_process import kernlore
from tests.api.conftest import assert_error, finished, upload
from tests.catalogs import fresh_data_dir
from tests.optimizer.search.synthesizers.llm.llm_servers import Answered, ModelServer, failure

pytestmark = pytest.mark.slow(seconds=6)

MANUAL = """\
# Quark assembler

## Opcodes

| Opcode | Operands | Operation |
|---|---|---|
| ldq | dst, [addr] | load a quark |
| stq | [addr], src | store a quark |

## Fences

Write `qfence lanes` between two lanes that share a quark: it orders their accesses.

## Sleeping

Write `qsleep cycles` to wait. It saves power.
"""
CARDS = {
    "Fences": {"name": "qfence", "kind": "instruction", "meaning": "it orders their accesses."},
    "Sleeping": {"name": "qsleep", "kind": "instruction", "signature": "qsleep seconds"},
}
KEY = {"OPENAI_API_KEY": "local-test-key-0123456789"}


@pytest.fixture
def manual(tmp_path: Path) -> Path:
    """A data directory with the manual of a chip, read but not embedded."""
    folder = fresh_data_dir(tmp_path / "data")
    services = open_services(Settings(data_dir=folder))
    services.register_hardware({"id": "quark-1"}, "a test")
    services.uploads.submit(FileUpload("quark.md", MANUAL.encode(), hardware=("quark-1",)))
    with services.local_reader() as reader:
        services.worker(reader).read_all(threading.Event())
    services.close()
    return folder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    pytest.importorskip("litellm", reason="the extra `llm` is not installed")

    def answer(body: dict[str, Any], number: int) -> Answered:
        section = body["messages"][1]["content"]
        cards = [card for title, card in CARDS.items() if f"> {title}\n" in section]
        return Answered(json.dumps({"cards": cards}))

    started = ModelServer(answer)
    yield started
    started.close()


def test_commands_propose_list_and_decide(manual: Path, server: ModelServer) -> None:
    chip = ("knowledge", "symbols", "--hardware", "quark-1")
    asking = (*chip, "--propose", "--models", "openai/scripted", "--api-base", server.url)
    first = kernlore(*asking, "--sections", "1", "--json", data=manual, environment=KEY)
    assert first.code == 0, first.err
    assert (first.json["sections"], first.json["asked"], first.json["left"]) == (2, 1, 1)
    assert first.json["kept"] == ["qfence"] and "1 cards kept" in first.err
    rest = kernlore(*asking, data=manual, environment=KEY)
    assert (
        "1 sent to the model, 1 with a stored answer, 0 left" in rest.out
        and len(server.requests) == 2
    )
    assert "refused, neither its meaning nor its signature is in the section: 1" in rest.out
    assert len([*(manual / "transcripts" / "symbols").iterdir()]) == 2

    assert [row["name"] for row in kernlore(*chip, "--json", data=manual).json] == ["ldq", "stq"]
    shown = kernlore(*chip, "--proposed", data=manual)
    assert "(proposed, model openai/scripted)" in shown.out and "ldq" not in shown.out
    [row] = kernlore(*chip, "--proposed", "--json", data=manual).json
    accepted = kernlore(*chip, "--accept", row["id"], "--json", data=manual)
    assert [(r["name"], r["status"]) for r in accepted.json] == [("qfence", "accepted")]
    names = [row["name"] for row in kernlore(*chip, "--json", data=manual).json]
    assert names == ["ldq", "stq", "qfence"]
    assert kernlore(*chip, "--reject", row["id"], data=manual).code == 0
    assert len(kernlore(*chip, "--json", data=manual).json) == 2
    assert "No proposed card" in kernlore(*chip, "--proposed", data=manual).out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--propose",), "0 models"),
        (("--propose", "--models", "openai/a,openai/b"), "2 models"),
        (("--models", "openai/a"), "--models without --propose"),
        (("--propose", "--models", "openai/a", "--url", "http://127.0.0.1:9"), "--url"),
    ],
)
def test_invalid_decision_is_refused(options: tuple[str, ...], words: str) -> None:
    ran = kernlore("knowledge", "symbols", "--hardware", "quark-1", *options, environment=KEY)
    assert ran.code != 0 and words in ran.err and "hint:" in ran.err


def test_unreachable_model_has_hint(manual: Path, server: ModelServer) -> None:
    broken = ModelServer(lambda body, number: failure(404, "no such model"))
    asking = ("--propose", "--models", "openai/scripted", "--api-base", broken.url)
    chip = ("knowledge", "symbols", "--hardware", "quark-1")
    ran = kernlore(*chip, *asking, data=manual, environment=KEY)
    broken.close()
    assert ran.code != 0 and "no such model" in ran.err and "--api-base" in ran.err


def test_proposals_over_http(client: TestClient) -> None:
    client.post("/hardware", json={"id": "quark-2"})
    sent = upload(client, "quark.md", MANUAL.encode(), hardware="quark-2").json()
    assert finished(client, sent["job_id"])["state"] == "ready"
    catalog = client.app.state.services.catalog  # type: ignore[attr-defined]
    _propose(catalog)
    rows = client.get("/hardware/quark-2/symbols").json()["symbols"]
    assert [(row["name"], row["origin"]) for row in rows] == [
        ("ldq", "structure"),
        ("stq", "structure"),
    ]
    at = "/hardware/quark-2/symbols"
    [row] = client.get(at, params={"status": "proposed"}).json()["symbols"]
    assert (row["name"], row["status"], row["origin"]) == ("qfence", "proposed", "model m")
    assert_error(client.get(at, params={"status": "all"}), 400, "invalid_request")
    changed = client.patch(f"/symbols/{row['id']}", json={"status": "accepted"})
    assert changed.status_code == 200 and changed.json()["status"] == "accepted"
    assert len(client.get(at).json()["symbols"]) == 3
    stated = client.patch(f"/symbols/{rows[0]['id']}", json={"status": "rejected"})
    assert "no proposal" in assert_error(stated, 400, "invalid_request")["message"]


def _propose(catalog: Any) -> None:
    with catalog.read() as connection:
        sections = section_texts.sections_about(connection, "quark-2", ALL_ACCESS)
    fences = next(section for section in sections if section.path[-1] == "Fences")
    card = ProposedCard(
        name="qfence",
        kind="instruction",
        language="",
        signature="qfence lanes",
        operands=(),
        meaning="it orders their accesses.",
        limits=(),
        example="",
        origin="model m",
        path=fences.path,
    )
    assert symbols.propose(catalog, fences.id, [card]) == ["qfence"]
