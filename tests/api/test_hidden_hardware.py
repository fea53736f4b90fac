"""A key for one chip learns no id of another chip."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.keyed_service import KeyedService, keyed_service
from tests.waiting import until

pytestmark = pytest.mark.slow(seconds=20)

SKILL = """---
name: shared-tiles
description: Use when tiles are shared by chips.
metadata:
  kb.signals: memory_bound
  kb.hardware: h100, mi300x
---
## When to use

Always.
"""


def read(keyed: KeyedService, job_id: str) -> None:
    """Wait until a document is read."""
    until(lambda: keyed.ask("admin", "GET", f"/jobs/{job_id}").json()["state"] == "ready")


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, model_cache: Path
) -> Iterator[tuple[KeyedService, str]]:
    """A service with a document, its job and a skill about two chips; the id of the document."""
    with keyed_service(tmp_path_factory.mktemp("hidden"), model_cache) as keyed:
        sent = keyed.ask(
            "writer",
            "POST",
            "/documents",
            files=[("file", ("shared.md", b"# Shared\n\nTwo persimmon chips share this.\n"))],
            data={"hardware": "h100,mi300x"},
        ).json()
        read(keyed, sent["job_id"])
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("shared-tiles/SKILL.md", SKILL)
        files = [("file", ("s.zip", buffer.getvalue()))]
        assert keyed.ask("curator", "POST", "/skills", files=files).status_code == 201
        yield keyed, sent["document_id"]


def test_record_about_two_chips_shows_only_own_one(service: tuple[KeyedService, str]) -> None:
    keyed, document = service
    job = keyed.ask("mi300x", "GET", f"/documents/{document}").json()["job_id"]
    paths = (
        "/jobs",
        f"/jobs/{job}",
        "/documents",
        f"/documents/{document}",
        f"/documents/{document}/passages",
        f"/documents/{document}/sections",
        "/skills",
        "/skills/shared-tiles",
        "/retrieve?q=persimmon&hardware=mi300x",
    )
    for path in paths:
        answer = keyed.ask("mi300x", "GET", path)
        assert answer.status_code == 200, path
        text = answer.text
        assert "h100" not in text, (path, text[max(0, text.find("h100") - 200) :][:300])
        assert (
            "h100" in keyed.ask("admin", "GET", path).text
            or "retrieve" in path
            or (path.endswith("sections"))
        )


def test_hidden_document_changes_no_score(service: tuple[KeyedService, str]) -> None:
    keyed, _ = service

    def answers() -> list[list[tuple[str, float]]]:
        """The excerpts of each question with their scores, which depend on how rare words are."""
        queries = ("q=persimmon+quixotry", "q=persimmon+quixotry&hardware=mi300x")
        found = [keyed.ask("mi300x", "GET", f"/retrieve?{query}").json() for query in queries]
        return [[(e["id"], e["score"]) for e in answer["excerpts"]] for answer in found]

    before = answers()
    hidden = b"# Hidden\n\n## Chips\n\n" + b"Quixotry of persimmon chips.\n\n" * 9
    files = [("file", ("hidden.md", hidden))]
    sent = keyed.ask("admin", "POST", "/documents", data={"hardware": "h100"}, files=files).json()
    read(keyed, sent["job_id"])
    every = keyed.ask("admin", "GET", "/retrieve?q=persimmon+quixotry").json()["excerpts"]
    assert any(excerpt["document"]["title"] == "Hidden" for excerpt in every)
    assert answers() == before and before[0]


def test_exported_skill_shows_only_own_chip(service: tuple[KeyedService, str]) -> None:
    keyed, _ = service
    for key, chips in (("mi300x", "mi300x"), ("admin", "h100,mi300x")):
        answer = keyed.ask(key, "GET", "/skills/shared-tiles/export")
        with zipfile.ZipFile(io.BytesIO(answer.content)) as folder:
            text = folder.read("shared-tiles/SKILL.md").decode()
        assert f"kb.hardware: {chips}\n" in text.replace(", ", ",").replace('"', "")


def test_source_key_does_not_reveal_other_documents(service: tuple[KeyedService, str]) -> None:
    keyed, _ = service
    theirs = {"hardware": "mi300x", "source_key": "taken"}
    file = [("file", ("a.md", b"# A\n\nText of theirs.\n"))]
    assert keyed.ask("writer", "POST", "/documents", data=theirs, files=file).status_code == 202
    keys = []
    for name in ("taken", "free"):
        data = {"hardware": "h100", "source_key": name}
        own = [("file", ("b.md", f"# B\n\nMine, {name}.\n".encode()))]
        sent = keyed.ask("h100", "POST", "/documents", data=data, files=own).json()
        assert sent["outcome"] == "created"
        shown = keyed.ask("h100", "GET", f"/documents/{sent['document_id']}").json()
        keys.append(shown["source_key"].removesuffix(name))
        again = keyed.ask("h100", "POST", "/documents", data=data, files=own).json()
        assert (again["outcome"], again["document_id"]) == ("unchanged", sent["document_id"])
    assert keys[0] == keys[1]


def test_alias_of_a_hidden_chip_is_only_reported_as_used(service: tuple[KeyedService, str]) -> None:
    keyed, _ = service
    secret = keyed.ask("admin", "GET", "/hardware/h100").json()
    alias = secret["aliases"][0]
    for name in (alias, "h100"):
        changed = {"id": "mi300x", "name": "X", "vendor": "amd", "aliases": [name]}
        refused = keyed.ask("mi300x", "POST", "/hardware", json=changed)
        assert refused.status_code in (400, 403, 409), refused.text
        reported = refused.text.replace(name, "")
        assert "h100" not in reported and secret["name"] not in reported
