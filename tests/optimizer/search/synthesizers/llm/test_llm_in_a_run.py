"""A search over HTTP with a model that is wrong every second time; the stored transcripts give the
same tree again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.search.goal import Goal
from optimizer.search.knowledge import ShownKnowledge
from optimizer.search.loop import Search
from optimizer.search.records import Proposal
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import ModelCall
from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, LlmSynthesizer
from optimizer.search.synthesizers.llm.settings import LlmSettings, models_from
from optimizer.search.tree import Tree
from retrieval.request import RetrieveRequest
from tests.optimizer.search.synthesizers.llm.conftest import KEY
from tests.optimizer.search.synthesizers.llm.llm_contexts import (
    SOURCE,
    context,
    evaluation,
    knowledge,
)
from tests.optimizer.search.synthesizers.llm.llm_servers import Answered, ModelServer, good

pytestmark = pytest.mark.slow(seconds=12)

LIMIT = 100


class TileBench:
    """A simulated machine: the larger the tile in the source, the faster. It evaluates one
    candidate at a time.
    """

    at_once = 1

    def reference(self) -> Evaluation:
        return evaluation(speedup=Interval(1.0, 1.0, 1.0, 20))

    def evaluate(self, proposal: Proposal) -> Evaluation:
        tile = re.search(r"TILE_ROWS = (\d+)", proposal.bundle.source)
        assert tile
        gain = 1 + int(tile[1]) / 100
        return evaluation(speedup=Interval(gain, gain - 0.001, gain + 0.001, 20))


class OneMove:
    """The same knowledge for every request; records reported outcomes."""

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        return knowledge(limit=LIMIT)

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None: ...


class Listening:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def node(self, node: Any, tree: Tree) -> None: ...

    def asking(self, asking: ModelCall) -> None: ...

    def log(self, message: str) -> None:
        self.heard.append(message)


def search(folder: Path, run: str, asker: LlmSynthesizer) -> tuple[RunRow, Tree, list[str]]:
    store, first_context, listener = FileStore(folder), context(), Listening()
    row = RunRow(run, "double", "sha", "x86-64", Goal(candidates=10, seed=3))
    store.begin(row)
    first = Bundle({"kernel.cpp": SOURCE}, "kernel.cpp", "cpp", "kernlore_run", origin="recipe")
    going = Search(
        row,
        store,
        TileBench(),
        [asker],
        OneMove(),
        first_context.problem,
        first_context.hardware,
        listener,
        inherited=[Proposal(first, "recipe")],
    )
    return going.run(), going.tree, listener.heard


def tiles(tree: Tree) -> list[tuple[int | None, str | None]]:
    return [(n.parent, n.proposal.bundle.sha256 if n.proposal else None) for n in tree]


def test_run_survives_wrong_answers_and_is_replayed(
    serve: Callable[..., ModelServer], synthesizer: Callable[..., LlmSynthesizer], tmp_path: Path
) -> None:
    def every_other_wrong(body: dict[str, Any], number: int) -> Answered:
        return good(body) if number % 3 == 2 else Answered("I would rather not.")

    server = serve(every_other_wrong)
    row, tree, heard = search(tmp_path / "runs", "run_live", synthesizer(server))
    assert row.state == "finished"
    sources = [node.proposal.bundle.source for node in tree if node.proposal is not None]
    sizes = [int(re.findall(r"TILE_ROWS = (\d+)", source)[0]) for source in sources]
    # doubled up to the limit; then only the parent again, until the server stops
    assert sizes == [8, 16, 32, 64, LIMIT]
    assert "proposals in a row came to nothing" in row.ended
    assert all("llm: openai/scripted: " in message for message in heard)

    requests = len(server.requests)
    settings = LlmSettings(models_from("openai/scripted"), api_base="http://127.0.0.1:1/v1")
    stored = FolderTranscripts(tmp_path / "transcripts")
    replay = LlmSynthesizer(settings, stored, replay="run_live")
    again, same, heard_again = search(tmp_path / "runs", "run_again", replay)
    assert tiles(same) == tiles(tree)
    assert (again.ended, heard_again) == (row.ended, heard)
    assert len(server.requests) == requests


def test_run_with_unreachable_models_fails_with_their_address(
    serve: Callable[..., ModelServer], synthesizer: Callable[..., LlmSynthesizer], tmp_path: Path
) -> None:
    nowhere = "http://127.0.0.1:1/v1"
    asker = synthesizer(serve(lambda body, number: good(body)), api_base=nowhere)
    row, tree, heard = search(tmp_path / "runs", "run_alone", asker)
    assert row.state == "failed" and len(tree) == 2
    assert row.ended == (
        f"no answer of openai/scripted from {nowhere} (tried 4 times); give"
        " --api-base or OPENAI_API_BASE"
    )
    assert heard == [f"llm: {row.ended}"]
    assert FileStore(tmp_path / "runs").run("run_alone").state == "failed"

    stored = FolderTranscripts(tmp_path / "transcripts")
    settings = LlmSettings(models_from("openai/scripted"))
    replay = LlmSynthesizer(settings, stored, replay="run_alone")
    assert search(tmp_path / "runs", "run_again", replay)[0].ended == row.ended


def test_cancelled_run_does_not_wait_for_its_model(
    serve: Callable[..., ModelServer], tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "runs")

    def slow(body: dict[str, Any], number: int) -> Answered:
        store.cancel("run_slow")
        server.released.wait(60)
        return good(body)

    server = serve(slow)
    settings = LlmSettings(models_from("openai/scripted"), server.url, KEY, timeout_s=50.0)
    transcripts = FolderTranscripts(tmp_path / "transcripts")
    asker = LlmSynthesizer(settings, transcripts, cancelled=store.cancelled)
    began = time.monotonic()
    row, _, heard = search(tmp_path / "runs", "run_slow", asker)
    assert time.monotonic() - began < 30
    assert (row.state, len(server.requests)) == ("cancelled", 1)
    assert heard == ["llm: the run was cancelled during a call of a model"]
