"""Sections that a model drafts for a chip: only sentences that their source supports, proposed to a
person, and apart from the vendor's text in answers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.services import open_services
from ingestion.drafts import unfounded
from ingestion.uploads import FileUpload
from kb.catalog.knowledge.drafts import MARK
from kb.settings import Settings
from tests.api.cli_process import kernlore
from tests.api.conftest import assert_error, finished, upload
from tests.catalogs import fresh_data_dir
from tests.ingestion.section_model import Sections, serving
from tests.optimizer.search.synthesizers.llm.llm_servers import Answered, ModelServer
from tests.shared import place_models

pytestmark = pytest.mark.slow(seconds=15)

MANUAL = """\
# Orbit chip

## Ferries

A ferry carries rows between device memory and the deck, at most 64 KiB at a time. The bandwidth of
a ferry is 3.2 GB/s. Copies below 4 KiB waste its bandwidth; `FERRY_STALLS` counts them.

## Deck

The deck is the on-chip memory of a lane. It has eight banks.
"""
KEY = {"OPENAI_API_KEY": "local-test-key-0123456789"}
SOUND = [
    ("A ferry moves at most 64 KiB at a time.", "at most 64 KiB at a time"),
    (
        "Copies below 4 KiB waste bandwidth, and FERRY_STALLS counts them.",
        "Copies below 4 KiB waste",
    ),
]
UNSOUND = [
    ("A ferry moves 128 KiB.", "at most 64 KiB at a time"),
    ("Set FERRY_MODE for larger copies.", "A ferry carries rows"),
    ("The deck is slow.", "the deck is a slow memory"),
]


def drafted(sections: Sections) -> dict[str, object]:
    """Drafts of a request in which the section on ferries is one of the sections."""
    [number] = [n for n, (heading, _) in sections.items() if heading == "Ferries"]
    rows = [{"text": t, "quote": q, "section": number} for t, q in (*SOUND, *UNSOUND)]
    rows.append({"text": "No source.", "quote": "A ferry carries rows", "section": 99})
    return {"drafts": [{"signal": "memory_bound", "sentences": rows}]}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    pytest.importorskip("litellm", reason="the extra `llm` is not installed")
    started = serving(drafted)
    yield started
    started.close()


@pytest.fixture
def manual(tmp_path: Path, model_cache: Path) -> Path:
    """A data directory with the manual of a chip."""
    folder = place_models(fresh_data_dir(tmp_path / "data"), model_cache)
    services = open_services(Settings(data_dir=folder))
    services.register_hardware({"id": "orbit-1", "name": "Orbit One"}, "a test")
    services.uploads.submit(FileUpload("orbit.md", MANUAL.encode(), hardware=("orbit-1",)))
    with services.local_reader() as reader:
        services.worker(reader).read_all(threading.Event())
    services.close()
    return folder


def test_commands_draft_list_and_decide(manual: Path, server: ModelServer) -> None:
    asking = ("--models", "openai/scripted", "--api-base", server.url, "--signal", "memory_bound")
    made = kernlore("hardware", "prepare", "orbit-1", *asking, data=manual, environment=KEY)
    assert made.code == 0, made.err
    assert "drafted: memory_bound" in made.out and "2 sentences kept, 4 dropped" in made.out
    for reason in (
        "a number is not in the section: 128 KiB: A ferry moves 128 KiB.",
        "a name is not in the section: FERRY_MODE: Set FERRY_MODE",
        "its quote is not in the section: The deck is slow.",
        "it names no section: No source.",
    ):
        assert f"dropped, {reason}" in made.out

    shown = kernlore("hardware", "drafts", "orbit-1", "--json", data=manual)
    [draft] = shown.json
    assert (draft["title"], draft["status"]) == ("Memory bound on Orbit One", "proposed")
    assert [s["text"] for s in draft["sentences"]] == [text for text, _ in SOUND]
    assert draft["sentences"][0]["path"][-1] == "Ferries"

    def first_excerpt() -> dict[str, str]:
        asked = ("--signal", "memory_bound", "--hardware", "orbit-1", "--json")
        rows = kernlore("retrieve", *asked, data=manual).json["excerpts"]
        excerpt: dict[str, str] = next(row for row in rows if "orbit-1" in row["hardware"])
        return excerpt

    assert first_excerpt()["mark"] == ""
    accepted = kernlore("hardware", "drafts", "orbit-1", "--accept", draft["id"], data=manual)
    assert accepted.code == 0 and "accepted  Memory bound on Orbit One" in accepted.out
    excerpt = first_excerpt()
    assert excerpt["mark"] == MARK and excerpt["section"].endswith("Memory bound on Orbit One")
    again = kernlore("hardware", "prepare", "orbit-1", *asking, data=manual, environment=KEY)
    assert "decided before: memory_bound" in again.out and len(server.requests) == 1

    assert kernlore("hardware", "drafts", "orbit-1", "--reject", draft["id"], data=manual).code == 0
    assert first_excerpt()["mark"] == ""


def test_ingest_has_a_model_read_the_documents(tmp_path: Path, manual: Path) -> None:
    reader = serving(
        lambda sections: {"sections": [{"section": n, "signals": []} for n in sections]}
    )
    added = tmp_path / "more.md"
    rafts = "".join(
        f"\n## Raft {n}\n\nRaft {n} carries rows between memory and the deck, at most {n} KiB at a"
        " time, and stalls when its copies are smaller.\n"
        for n in range(50)
    )
    text = MANUAL.replace("Ferries", "Rafts").replace("ferry", "raft") + rafts
    added.write_text(text, encoding="utf-8")
    asking = ("--models", "openai/scripted", "--api-base", reader.url)
    read = kernlore(
        "ingest", str(added), "--hardware", "orbit-1", *asking, data=manual, environment=KEY
    )
    reader.close()
    assert read.code == 0, read.err
    assert len(reader.requests) == 5  # in two requests of the service
    assert "52 read now by openai/scripted, 0 before" in read.out and "0 left" in read.out
    assert "5 calls, 500 tokens in, 100 out" in read.out
    refused = kernlore("ingest", str(added), *asking, data=manual, environment=KEY)
    assert refused.code != 0 and "--models without --hardware" in refused.err


def test_reading_command_reports_its_cost(manual: Path) -> None:
    reader = serving(
        lambda sections: {"sections": [{"section": n, "signals": []} for n in sections]}
    )
    asking = ("hardware", "read", "orbit-1", "--models", "openai/gpt-4o", "--api-base", reader.url)
    read = kernlore(*asking, "--usd", "1", data=manual, environment=KEY)
    reader.close()
    assert read.code == 0, read.err
    assert "1 read now by openai/gpt-4o, 0 before, 1 too short, 0 left" in read.out
    assert "1 calls, 100 tokens in, 20 out, 0.000" in read.out
    assert "a thousand pages of 3,000 characters: " in read.out
    bounded = kernlore(
        *asking[:4], "openai/scripted", "--api-base", reader.url, "--usd", "1",
        data=manual, environment=KEY,
    )  # fmt: skip
    assert bounded.code != 0 and "price of openai/scripted is unknown" in bounded.err


def test_drafts_over_http(
    client: TestClient, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY["OPENAI_API_KEY"])
    client.post("/hardware", json={"id": "orbit-2"})
    sent = upload(client, "orbit.md", MANUAL.encode(), hardware="orbit-2").json()
    assert finished(client, sent["job_id"])["state"] == "ready"
    model = {"models": "openai/scripted", "api_base": server.url}
    made = client.post("/hardware/orbit-2/prepare", json={**model, "signals": ["memory_bound"]})
    assert (made.json()["drafted"], made.json()["kept"]) == (["memory_bound"], 2), str(made.json())[
        :900
    ]
    at = "/hardware/orbit-2/drafts"
    [draft] = client.get(at, params={"status": "proposed"}).json()["drafts"]
    wrong = client.patch(at, json={"status": "accepted", "ids": ["draft_0"]})
    assert_error(wrong, 404, "not_found")
    decided = client.patch(at, json={"status": "accepted"}).json()
    assert [row["status"] for row in decided["drafts"]] == ["accepted"]
    assert finished(client, decided["job_id"])["state"] == "ready"
    text = client.get(f"/documents/{decided['document_id']}/file").text
    assert f"[1] Ferries ({draft['sentences'][0]['section_id']})" in text
    assert client.get(f"/documents/{decided['document_id']}").json()["origin"] == "draft"
    facts = client.get("/hardware/orbit-2/facts", params={"status": "proposed"}).json()["facts"]
    assert {fact["document_id"] for fact in facts} <= {sent["document_id"]}
    assert client.get(at).json()["outdated"] == []
    changed = MANUAL.replace("at most 64 KiB", "at most 32 KiB").encode()
    sent = upload(client, "orbit.md", changed, hardware="orbit-2").json()
    assert finished(client, sent["job_id"])["state"] == "ready"
    assert client.get(at).json()["outdated"] == [draft["id"]]
    client.patch(at, json={"status": "rejected", "ids": [draft["id"]]})
    gone = client.get(f"/documents/{decided['document_id']}")
    assert_error(gone, 404, "not_found")
    again = client.patch(at, json={"status": "accepted", "ids": [draft["id"]]}).json()
    assert finished(client, again["job_id"])["state"] == "ready"
    assert client.delete(f"/documents/{sent['document_id']}").status_code == 200
    assert client.get(at).json()["drafts"] == []
    gone = client.get(f"/documents/{again['document_id']}")
    assert_error(gone, 404, "not_found")


def test_broken_answer_drafts_nothing(manual: Path) -> None:
    broken = serving(lambda sections: Answered("I cannot do that."))
    asking = ("--models", "openai/scripted", "--api-base", broken.url, "--signal", "memory_bound")
    made = kernlore("hardware", "prepare", "orbit-1", *asking, data=manual, environment=KEY)
    broken.close()
    assert "failed: the answer is no JSON" in made.out and "0 sentences kept" in made.out
    assert kernlore("hardware", "drafts", "orbit-1", "--json", data=manual).json == []


SOURCE = """\
Each tile has 1,024 KiB in four banks of 32-bit words; `set_mode` takes 12 cycles (DMA). Its cache
has dual ports. Write 0x30UL to the register.

| Operation | Latency (ns) |
|---|---|
| load | 85 |
"""


@pytest.mark.parametrize(
    "sentence",
    [
        "A tile has 1024 KiB in 4 banks.",
        "Words of 32 bits fill four banks.",
        "Calls of set_mode by a DMA take 12 cycles.",
        "DMAs of the Orbit-2 are fast.",
        "Two ports serve the cache.",
        "Write 0x30 first.",
        "A load takes 85 ns.",
    ],
)
def test_sentences_that_their_source_supports(sentence: str) -> None:
    assert unfounded(sentence, SOURCE, "Orbit-2") == ""


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("A tile has 1024 KB.", "1024 KB"),
        ("A tile has 1 MiB.", "1 MiB"),
        ("There are eight banks.", "8"),
        ("It takes 12 ns.", "12 ns"),
        ("Half of 1,024 KiB is 512 KiB.", "512 KiB"),
        ("Use set_modes or get_mode.", "set_modes"),
        ("The TMA does it.", "TMA"),
        ("Write 0x40 first.", "0x40"),
        ("A load takes 85 cycles.", "85 cycle"),
    ],
)
def test_sentences_that_it_does_not(sentence: str, reason: str) -> None:
    assert unfounded(sentence, SOURCE).endswith(f": {reason}")
