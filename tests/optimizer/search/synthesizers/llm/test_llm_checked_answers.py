"""A check before compiling: its remark is sent to the model once, and a replay gives the same."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, LlmSynthesizer
from optimizer.search.synthesizers.llm.settings import LlmSettings, models_from
from tests.optimizer.search.synthesizers.llm.llm_contexts import context
from tests.optimizer.search.synthesizers.llm.llm_servers import (
    Answered,
    ModelServer,
    Script,
    block,
    failure,
    tool_call,
)
from tests.optimizer.search.synthesizers.llm.test_llm_synthesizer import Library

pytestmark = [
    pytest.mark.slow(seconds=10),
    pytest.mark.skipif(find_spec("litellm") is None, reason="the extra `llm` is not installed"),
]

Serve = Callable[[Script], ModelServer]
REMARK = "- `vaddq` is no name that the documents of this chip define; near it: vadd"
KERNEL = (
    '{"plan": "p", "used": [], "language": "cpp", "main": "k.cpp"}\n\nFile: k.cpp\n```\n%s\n```'
)
FIRST, SECOND = "int kernlore_run() { vaddq(); }", "int kernlore_run() { vadd(); }"


class Checking:
    """Remarks on sources with an error; records its input."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    def __call__(self, source: str) -> str:
        self.sources.append(source.strip())
        return REMARK if "vaddq" in source else ""


def asker(folder: Path, server: ModelServer, **given: Any) -> LlmSynthesizer:
    settings = LlmSettings(
        models_from("openai/scripted"),
        api_base=server.url,
        api_key="local",
        retries=0,
        tools="tools" in given,
    )
    return LlmSynthesizer(settings, FolderTranscripts(folder), sleep=lambda _: None, **given)


def replayed(folder: Path) -> str:
    """The candidate of the stored conversation, without server, check or tools."""
    settings = LlmSettings(models_from("openai/other"), api_base="http://127.0.0.1:1/v1")
    replay = LlmSynthesizer(settings, FolderTranscripts(folder), replay="run_test")
    return replay.propose(context(run_id="run_again")).bundle.source.strip()


def test_remark_gives_one_more_answer(serve: Serve, tmp_path: Path) -> None:
    texts = [KERNEL % FIRST, KERNEL % SECOND]
    server, check = serve(lambda body, n: Answered(texts[n])), Checking()
    proposal = asker(tmp_path, server, check=check).propose(context())
    assert proposal.bundle.source.strip() == SECOND and check.sources == [FIRST]
    messages = server.requests[1]["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert messages[2]["content"] == texts[0] and block(messages[3]["content"], "check") == REMARK
    assert messages[3]["content"].startswith("Before your candidate is compiled")
    assert proposal.cost.tokens_in == 200 and replayed(tmp_path) == SECOND


def test_correct_draft_costs_no_request(serve: Serve, tmp_path: Path) -> None:
    server, check = serve(lambda body, n: Answered(KERNEL % SECOND)), Checking()
    proposal = asker(tmp_path, server, check=check).propose(context())
    assert proposal.bundle.source.strip() == SECOND
    assert len(server.requests) == 1 and check.sources == [SECOND]


def test_remark_is_made_once(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda body, n: Answered(KERNEL % f"{FIRST} // {n}"))
    proposal = asker(tmp_path, server, check=Checking()).propose(context())
    assert proposal.bundle.source.strip() == f"{FIRST} // 1" and len(server.requests) == 2


@pytest.mark.parametrize(
    "second",
    [Answered("I would rather not."), Answered(""), failure(500, "broken"), failure(400, "no")],
    ids=["no kernel", "nothing", "server error", "refused"],
)
def test_unusable_second_answer_leaves_first(
    serve: Serve, tmp_path: Path, second: Answered
) -> None:
    server = serve(lambda body, n: Answered(KERNEL % FIRST) if n == 0 else second)
    proposal = asker(tmp_path, server, check=Checking()).propose(context())
    assert proposal.bundle.source.strip() == FIRST == replayed(tmp_path)
    stored = FolderTranscripts(tmp_path).read("run_test", 4, 0)
    assert stored is not None and stored.outcome == "proposal" and len(stored.replies) == 2


def test_repaired_answer_is_checked_too(serve: Serve, tmp_path: Path) -> None:
    texts = ["No.", KERNEL % FIRST, KERNEL % SECOND]
    server = serve(lambda body, n: Answered(texts[n]))
    proposal = asker(tmp_path, server, check=Checking()).propose(context())
    assert proposal.bundle.source.strip() == SECOND == replayed(tmp_path)


def test_conversation_with_tools_is_replayed_without_them(serve: Serve, tmp_path: Path) -> None:
    def script(body: dict[str, Any], number: int) -> Answered:
        if number in (0, 1, 3):
            return Answered("", [tool_call("search_manual", query="rows")], "tool_calls")
        return Answered(KERNEL % (FIRST if number == 2 else SECOND))

    server = serve(script)
    live = asker(tmp_path, server, check=Checking(), tools=Library())
    assert live.propose(context()).bundle.source.strip() == SECOND == replayed(tmp_path)
    assert len(server.requests) == 5
