"""A model server with named faults. Each ends in a ProposalFailed or in a good proposal, never in
another exception.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kb.errors import NotFound
from optimizer.search.knowledge import ShownExcerpt
from optimizer.search.synthesizers.base import ProposalFailed
from optimizer.search.synthesizers.llm.conversation import LlmSynthesizer
from tests.optimizer.search.synthesizers.llm.conftest import KEY
from tests.optimizer.search.synthesizers.llm.llm_contexts import PLANTED, SOURCE, context, knowledge
from tests.optimizer.search.synthesizers.llm.llm_servers import (
    Answered,
    ModelServer,
    blocks,
    failure,
    good,
    moved,
    prompt_of,
    tool_call,
)

pytestmark = pytest.mark.slow(seconds=3)

Made = Callable[..., LlmSynthesizer]
Serve = Callable[..., ModelServer]
RETRIES = 3


class NoAnswers:
    """Tools that work and find nothing."""

    def lookup_symbol(self, name: str) -> list[ShownExcerpt]:
        return []

    def search_manual(self, query: str) -> list[ShownExcerpt]:
        return []

    def read_section(self, id: str) -> ShownExcerpt:
        raise NotFound(f"no section {id!r}", hint="Search first.")

    def compile_draft(self, step: int, files: Mapping[str, str]) -> str:
        return ""


def changed(body: dict[str, Any], **fields: Any) -> Answered:
    return Answered(json.dumps({**moved(body), **fields}))


def malformed(body: dict[str, Any], number: int) -> Answered:
    return Answered(json.dumps(moved(body)).replace('"files":', '"files"'))


def truncated(body: dict[str, Any], number: int) -> Answered:
    text = json.dumps(moved(body))
    return Answered(text[: len(text) // 2], finish="length")


def rate_limited(body: dict[str, Any], number: int) -> Answered:
    return failure(429, "slow down", {"Retry-After": "7"}) if number == 0 else good(body)


def broken(body: dict[str, Any], number: int) -> Answered:
    return failure(500, "internal error") if number < 2 else good(body)


def overflow(body: dict[str, Any], number: int) -> Answered:
    if "Paragraph" in prompt_of(body):
        return failure(400, "This model's maximum context length is 4096 tokens.")
    return good(body)


def tool_loop(body: dict[str, Any], number: int) -> Answered:
    return Answered(None, [tool_call("search_manual", query="tiles")], finish="tool_calls")


def escape(body: dict[str, Any], number: int) -> Answered:
    answer = moved(body)
    return changed(body, files={**answer["files"], "../../outside.h": "int x;"})


def duplicate(body: dict[str, Any], number: int) -> Answered:
    _, _, source = dict(blocks(prompt_of(body))[0])["source"].partition("\n")
    return changed(body, files={"kernel.cpp": source + "\n"}, parameters={})


def obeys_the_manual(body: dict[str, Any], number: int) -> Answered:
    """Follows the instruction in the manual, if it finds one."""
    answer = moved(body)
    assert "setup.sh" in prompt_of(body) and "run_shell" in prompt_of(body)
    if number == 0:
        return Answered(None, [tool_call("run_shell", command="sh setup.sh")], finish="tool_calls")
    return changed(body, files={**answer["files"], "setup.sh": "#!/bin/sh\n"})


@dataclass(frozen=True)
class Case:
    """says: the message of the failure; None for a proposal. asked: number of requests."""

    name: str
    script: Callable[[dict[str, Any], int], Answered]
    says: str | None
    requests: int
    waits: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    tools: bool = False


def always(answered: Answered) -> Callable[[dict[str, Any], int], Answered]:
    return lambda body, number: answered


CASES = (
    Case("malformed JSON", malformed, "no complete JSON object", 2),
    Case("truncated JSON", truncated, "cut off at 16384 tokens", 2),
    Case("empty content", always(Answered("")), "the answer is empty", 2),
    Case("429 with Retry-After", rate_limited, None, 2, waits=1),
    Case("500", broken, None, 3, waits=2),
    Case("context overflow", overflow, None, 2),
    Case("endless tool calls", tool_loop, "still calling tools after 4 rounds", 5, tools=True),
    Case("unknown language", lambda b, n: changed(b, language="fortran"), "not offered", 2),
    Case("path escape", escape, "file name '../../outside.h' is not allowed", 2),
    Case("prose only", always(Answered("Raise the tile size.")), "no complete JSON object", 2),
    Case("wrong types", lambda b, n: changed(b, files=["kernel.cpp"]), "`files` must be", 2),
    Case("duplicate of the parent", duplicate, "this is node 3 again", 2),
    Case("planted instruction", obeys_the_manual, "setup.sh", 2),
    Case("refusal", always(Answered("I'm sorry, but I can't help with that.")), "no complete", 2),
    # more than the fifteen
    Case("refusal field", always(Answered(None, refusal="No.")), "no complete JSON object", 2),
    Case("always 500", always(failure(500, "down")), "tried 4 times", RETRIES + 1, RETRIES),
    Case(
        "Retry-After of a day",
        always(failure(429, "tomorrow", {"Retry-After": "86400"})),
        "too long",
        1,
    ),
    Case(
        "overflow that stays",
        always(failure(400, "This model's maximum context length is 10 tokens.")),
        "also with the shortest prompt",
        2,
    ),
    Case("unknown field", lambda b, n: changed(b, shell="ls"), "unknown fields: 'shell'", 2),
    Case("no such model", always(failure(404, "model not found")), "NotFoundError", 1),
    Case("tools that nobody offered", tool_loop, "not offered: search", 2),
)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_faulty_model_gives_failure_or_proposal(
    case: Case, serve: Serve, synthesizer: Made, waits: list[float]
) -> None:
    server = serve(case.script)
    tools = NoAnswers() if case.tools else None
    asker = synthesizer(server, tools=tools, retries=RETRIES, **case.settings)
    long_context = context(knowledge=knowledge(excerpts=8))
    if case.says is None:
        proposal = asker.propose(long_context)
        assert "TILE_ROWS = 16" in proposal.bundle.source
        assert proposal.bundle.origin == "llm"
    else:
        with pytest.raises(ProposalFailed, match=case.says.replace(".", r"\.")):
            asker.propose(long_context)
    assert len(server.requests) == case.requests
    assert len(waits) == case.waits


def test_wait_follows_retry_after(serve: Serve, synthesizer: Made, waits: list[float]) -> None:
    synthesizer(serve(rate_limited)).propose(context())
    assert waits == [7.0]


def test_hanging_server_times_out(serve: Serve, synthesizer: Made) -> None:
    def hang(body: dict[str, Any], number: int) -> Answered:
        server.released.wait(60)
        return good(body)

    server = serve(hang)
    asker = synthesizer(server, timeout_s=0.5, retries=1)
    with pytest.raises(ProposalFailed, match=r"Timeout.*tried 2 times"):
        asker.propose(context())
    assert len(server.requests) == 2


def test_non_json_body_is_a_failed_proposal(serve: Serve, synthesizer: Made) -> None:
    server = serve(always(Answered(raw="<html>proxy</html>")))
    with pytest.raises(ProposalFailed):
        synthesizer(server, retries=0).propose(context())


def test_shortened_prompt_drops_excerpts_and_keeps_move(serve: Serve, synthesizer: Made) -> None:
    server = serve(overflow)
    synthesizer(server).propose(context(knowledge=knowledge(excerpts=20)))
    first, second = (prompt_of(body) for body in server.requests)
    assert len(second) < len(first)
    assert "Paragraph" not in second
    assert SOURCE.strip() in second and "mv_tile_up" in second


def test_planted_instruction_is_only_inside_fence(serve: Serve, synthesizer: Made) -> None:
    server = serve(obeys_the_manual)
    with pytest.raises(ProposalFailed):
        synthesizer(server).propose(context())
    inside, outside = blocks(prompt_of(server.requests[0]))
    assert PLANTED in dict(inside)["excerpt"] or any(PLANTED in text for _, text in inside)
    for body in server.requests:
        for message in body["messages"]:
            if message["role"] in ("system", "user"):
                assert "downloads the vendor kernel" not in blocks(str(message["content"]))[1]
    assert "setup.sh" not in outside and "run_shell" not in outside
    assert "tools" not in server.requests[0]


def test_repair_round_states_error(serve: Serve, synthesizer: Made) -> None:
    def learns(body: dict[str, Any], number: int) -> Answered:
        return changed(body, language="fortran") if number == 0 else good(body)

    server = serve(learns)
    assert "TILE_ROWS = 16" in synthesizer(server).propose(context()).bundle.source
    repair = server.requests[1]["messages"][-1]["content"]
    assert "'fortran' is not offered; use cpp, torch" in repair


def test_key_is_in_no_error_and_no_transcript(
    serve: Serve, synthesizer: Made, tmp_path: Path
) -> None:
    server = serve(
        always(failure(401, f"Incorrect API key provided: {KEY}, sk-abcdefgh1234567890"))
    )
    with pytest.raises(ProposalFailed) as caught:
        synthesizer(server).propose(context())
    stored = [path.read_text() for path in tmp_path.rglob("*.json")]
    assert len(stored) == 1 and "AuthenticationError" in stored[0]
    for text in (str(caught.value), stored[0]):
        assert KEY not in text and "sk-abcdefgh1234567890" not in text
        assert "[removed]" in text
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_cost_of_failed_attempts_is_added_to_next(serve: Serve, synthesizer: Made) -> None:
    def second_time(body: dict[str, Any], number: int) -> Answered:
        return Answered("No.") if number < 2 else good(body)

    asker = synthesizer(serve(second_time), model="openai/gpt-4o")
    with pytest.raises(ProposalFailed):
        asker.propose(context())
    cost = asker.propose(context()).cost
    assert (cost.tokens_in, cost.tokens_out) == (300, 60)
    assert cost.usd == pytest.approx(300 * 2.5e-06 + 60 * 1e-05)
