"""A scripted model writes for a drawn chip: its prompts, tools, the check, and the stored
results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from benchmarks.search.model_writes.chips import Chip
from kb.errors import InvalidRequest, NotFound
from kb.settings import Settings
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.bench.local import problem_view
from optimizer.search.goal import Goal
from optimizer.search.runs.hardware_view import hardware_view_of
from optimizer.search.runs.models import MAX_DRAFTS, ModelTools
from optimizer.search.runs.optimize import FinishedRun, optimize
from optimizer.search.runs.places import places_for
from optimizer.search.synthesizers.llm.settings import ModelOptions
from optimizer.search.tree import last_failure
from retrieval.vocabulary import list_samples
from tests.api.cli_process import kernlore
from tests.api.conftest import URL, assert_error
from tests.optimizer.search.landscape import RecordingListener
from tests.optimizer.search.synthesizers.llm.llm_servers import (
    Answered,
    ModelServer,
    prompt_of,
    tool_call,
)
from tests.retrieval.drawn_bases import DrawnBase
from tests.shared import copy_knowledge

pytestmark = [
    pytest.mark.slow(seconds=20),
    pytest.mark.skipif(find_spec("litellm") is None, reason="the extra `llm` is not installed"),
]

MODEL = "openai/scripted"
SLIP = "vaddq"  # not an instruction of the chip


@dataclass(frozen=True)
class Place:
    base: DrawnBase
    chip: Chip

    @property
    def good(self) -> str:
        return self.chip.good_kernel("elementwise").read_text(encoding="utf-8")

    @property
    def broken(self) -> str:
        """It no longer compiles, because its tile is far too large."""
        path = next((self.chip.folder / "kernels").glob("elementwise_too_large.*"))
        return path.read_text(encoding="utf-8")

    def answer(self, source: str) -> Answered:
        head = {"plan": "p", "used": [], "language": "novac", "main": "kernel.nv"}
        return Answered(f"{json.dumps(head)}\n\nFile: kernel.nv\n```\n{source}\n```")

    def tools(self) -> ModelTools:
        services = self.base.services
        places = places_for(services, self.chip.id, "novac")
        view = problem_view(load_problem(self.chip.problem("elementwise")), "cpu")
        target = next(iter(places.values())).target
        return ModelTools(services, hardware_view_of(target, places, "novac"), view, places)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[Place]:
    base = DrawnBase(tmp_path_factory.mktemp("models"), model_cache)
    yield Place(base, base.add("block", 11))
    base.local.close()


@pytest.fixture(scope="module")
def knowledge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few of the built-in documents, because a search and a service read them first."""
    return copy_knowledge(tmp_path_factory.mktemp("knowledge"), ("guidance/memory-bound.md",))


@pytest.fixture(scope="module")
def ran(place: Place) -> Iterator[tuple[FinishedRun, ModelServer]]:
    """A kernel that does not compile, one with an error repaired before compiling, and the correct
    result.
    """
    slip = place.good.replace("vadd ", f"{SLIP} ")
    assert slip != place.good
    script = [place.broken, slip, place.good]
    server = ModelServer(lambda body, n: place.answer(script[min(n, 2)]))
    goal = Goal(language="novac", candidates=2, synthesizers=("llm",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "local-test-key-0123456789")
        finished = optimize(
            place.base.services,
            place.chip.problem("elementwise"),
            goal,
            place.chip.id,
            RecordingListener(),
            models=ModelOptions(MODEL, server.url, tools=False),
        )
    yield finished, server
    server.close()


def test_second_kernel_is_correct_after_remark(ran: tuple[FinishedRun, ModelServer]) -> None:
    finished, server = ran
    assert [n.verdict for n in finished.tree.nodes[1:]] == ["not_compiled", "correct"]
    assert len(server.requests) == 3
    remark = str(server.requests[2]["messages"][-1]["content"])
    assert f"`{SLIP}`" in remark and "vadd" in remark
    assert last_failure(finished.tree, 0) is None


def test_prompts_share_prefix_and_describe_failure(ran: tuple[FinishedRun, ModelServer]) -> None:
    _, server = ran
    first, second = (prompt_of(request) for request in server.requests[:2])
    assert "The documents of this chip, whole" in first
    same = next(n for n, pair in enumerate(zip(first, second, strict=False)) if len({*pair}) > 1)
    step = re.search(r"^# (?:The kernel to start from|What was measured)", first, re.M)
    assert step is not None and same > step.start()
    assert "Lessons of this run" in second or "did not compile" in second
    assert "did not compile" not in first and "# What is known about what happened" in second


def test_correct_kernel_becomes_a_sample_of_its_chip(
    ran: tuple[FinishedRun, ModelServer], place: Place
) -> None:
    finished, _ = ran
    remaining = [s for s in list_samples(place.base.services, place.chip.id).samples if s.run_id]
    [sample] = remaining
    assert (sample.run_id, sample.status) == (finished.run.id, "right")
    assert sample.code.strip() == place.good.strip() and "vadd" in sample.symbols
    assert "cycles in the simulator" in sample.evidence
    answer = place.base.ask(place.chip.id, task="write", op=sample.operator)
    assert sample.id in {part.id for part in answer.parts if part.kind == "sample"}


def test_tools_answer_from_documents_of_chip(place: Place) -> None:
    tools = place.tools()
    assert tools.lookup_symbol("vadd")[0].text.startswith("- `")
    assert f"`{SLIP}`" in tools.unknown_names(f"kernel k() {{\n  {SLIP} y, x;\n}}\n")
    assert tools.unknown_names(place.good) == ""
    [hit, *_] = tools.search_manual("scratchpad size and tiles")
    section = tools.read_section(hit.id)
    assert hit.text.split("\n")[0][:40] in section.text
    with pytest.raises(NotFound):
        tools.read_section("psg_nonesuch")


def test_drafts_are_compiled_and_bounded(place: Place) -> None:
    tools = place.tools()
    assert tools.compile_draft(1, {"kernel.nv": place.good}) == ""
    assert "NOC" in tools.compile_draft(1, {"kernel.nv": place.broken})
    with pytest.raises(InvalidRequest, match="no file"):
        tools.compile_draft(1, {})
    for _ in range(MAX_DRAFTS - 3):
        tools.compile_draft(1, {"kernel.nv": "kernel"})
    with pytest.raises(InvalidRequest, match="drafts were compiled"):
        tools.compile_draft(1, {"kernel.nv": place.good})
    assert tools.compile_draft(2, {"kernel.nv": place.good}) == ""


# -- interfaces


def test_requests_over_http(place: Place, knowledge: Path) -> None:
    """On the same data: the store is briefly opened a second time."""
    chip = place.chip.id
    place.base.local.close()
    settings = Settings(data_dir=place.base.folder / "data", knowledge_dir=knowledge)
    with TestClient(create_app(settings), URL) as client:
        listed = client.get(f"/hardware/{chip}/symbols").json()["symbols"]
        [first, *_] = client.get(f"/hardware/{chip}/symbols?q=vadd&limit=3").json()["symbols"]
        assert first["name"] == "vadd" and len(listed) > 20
        fix = client.patch(f"/symbols/{first['id']}", json={"example": "vadd y, x, x;"})
        assert fix.json()["example"] == "vadd y, x, x;" and fix.json()["corrected"]
        assert_error(client.patch(f"/symbols/{first['id']}", json={}), 400)
        assert_error(client.patch("/symbols/sym_none", json={"meaning": "a"}), 404)
        assert_error(client.get("/hardware/nonesuch/symbols"), 404)
        samples = client.get(f"/hardware/{chip}/samples").json()["samples"]
        assert all(s["hardware"] == [chip] for s in samples)
        body: dict[str, Any] = {"task": "repair", "hardware": chip, "max_tokens": 3_000}
        body |= {"draft": f"kernel k() {{\n  {SLIP} y, x;\n}}\n", "log": "error: a"}
        answer = client.post("/retrieve", json=body).json()
        assert answer["task"] == "repair" and answer["unknown_names"][0]["name"] == SLIP
        happened = [p["id"] for p in answer["parts"] if p["kind"] in ("hardware", "guidance")]
        again = client.post("/retrieve", json={**body, "exclude": happened}).json()
        assert not set(happened) & {p["id"] for p in again["parts"]}
        assert_error(client.post("/retrieve", json={**body, "task": "dance"}), 400)


def test_command(
    place: Place, knowledge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.base.local.close()
    data, chip = place.base.folder / "data", place.chip.id
    cards = kernlore("knowledge", "symbols", "--hardware", chip, "-q", "vadd", data=data)
    assert cards.code == 0 and "vadd" in cards.out.splitlines()[0]
    assert kernlore("knowledge", "samples", "--hardware", chip, data=data).code == 0
    draft = tmp_path / "k.nv"
    draft.write_text(f"kernel k() {{\n  {SLIP} y, x;\n}}\n")
    requested = ("--hardware", chip, "--task", "repair", "--draft", draft, "--exclude", "psg_1")
    answer = kernlore("retrieve", *requested, "--json", data=data)
    assert answer.json["task"] == "repair" and answer.json["unknown_names"][0]["name"] == SLIP

    def script(body: dict[str, Any], number: int) -> Answered:
        if number == 0:
            call = tool_call("lookup_symbol")
            call["function"]["arguments"] = json.dumps({"name": "vadd"})
            return Answered("", [call], "tool_calls")
        return place.answer(place.good)

    server = ModelServer(script)
    monkeypatch.setenv("OPENAI_API_KEY", "local-test-key-0123456789")
    options = ("--models", MODEL, "--api-base", server.url, "--tools", "--context-tokens", "3000")
    search = ("--hardware", chip, "--language", "novac", "--candidates", "1")
    only = ("--synthesizers", "llm", "-o", tmp_path / "out")
    problem = place.chip.problem("elementwise")
    few = {"KERNLORE_KNOWLEDGE_DIR": str(knowledge)}
    ended = kernlore("optimize", problem, *search, *options, *only, data=data, environment=few)
    server.close()
    assert ended.code == 0, ended.err
    assert "lookup_symbol" in json.dumps(server.requests[0]["tools"])
    result = next(m for m in server.requests[1]["messages"] if m["role"] == "tool")
    assert "vadd" in result["content"]
    assert "The documents of this chip, whole" not in prompt_of(server.requests[0])
