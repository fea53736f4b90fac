"""A service with processes beside it answers many callers with what it would answer itself."""

from __future__ import annotations

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.api.cli_process import kernlore, serving
from tests.catalogs import copy_data_dir

pytestmark = pytest.mark.slow(seconds=15)

OTHER = "---\ntitle: Other\nlanguages: []\nsources: []\n---\n# Other\n\nIt counts its cycles.\n"
QUESTIONS = [
    f"how do I bound the {what} of a kernel"
    for what in ("registers", "threads", "cycles", "memory", "blocks", "warps", "tiles", "loads")
]


def test_many_callers_get_the_answers_of_the_service(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "served" / "data"
    copy_data_dir(data, folder)
    knowledge = folder.parent / "knowledge"
    (knowledge / "hardware" / "mtia-v2i").mkdir(parents=True)
    (knowledge / "hardware" / "mtia-v2i" / "other.md").write_text(OTHER, encoding="utf-8")
    monkeypatch.setenv("KERNLORE_ANSWER_PROCESSES", "2")
    with serving(folder, knowledge) as url:
        deadline = time.monotonic() + 60
        while _get(url, "/readyz")["answer_processes"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with ThreadPoolExecutor(8) as callers:
            answers = list(callers.map(lambda question: _ask(url, question), QUESTIONS * 3))
        text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
        unknown = kernlore("retrieve", "--q", "x", "--hardware", "h1000", data=folder)
    by_question = dict(zip(QUESTIONS, answers, strict=False))
    for question in QUESTIONS:
        alone = kernlore("retrieve", "--q", question, "--hardware", "h100", "--json", data=data)
        assert alone.json["context"] == by_question[question]["context"]
    for question, answer in zip(QUESTIONS * 3, answers, strict=True):
        assert answer["context"] == by_question[question]["context"]
    assert len({answer["retrieval_id"] for answer in answers}) == len(answers)
    assert "kernlore_answer_processes 2.0" in text
    assert 'kernlore_retrieval_stage_seconds_count{stage="ranking"}' in text
    assert unknown.code != 0 and "h1000" in unknown.err


def _get(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=30) as answer:
        return json.load(answer)


def _ask(url: str, question: str) -> Any:
    body = json.dumps({"query": question, "hardware": "h100"}).encode()
    request = urllib.request.Request(
        f"{url}/retrieve", body, {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
