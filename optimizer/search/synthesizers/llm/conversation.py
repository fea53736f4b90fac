"""One conversation: prompt, tool calls, answer, and one chance to repair it."""

from __future__ import annotations

from optimizer.search.context import Context
from optimizer.search.synthesizers.base import ProposalFailed
from optimizer.search.synthesizers.llm.answers.answer import BadAnswer
from optimizer.search.synthesizers.llm.answers.candidate import Answer, answer_from
from optimizer.search.synthesizers.llm.answers.replies import (
    Asker,
    CallFailed,
    ContextOverflow,
    Reply,
)
from optimizer.search.synthesizers.llm.prompting.fence import Fence
from optimizer.search.synthesizers.llm.prompting.languages import rule
from optimizer.search.synthesizers.llm.prompting.prompt import Prompt, compose
from optimizer.search.synthesizers.llm.prompting.templates import rendered
from optimizer.search.synthesizers.llm.settings import LlmSettings
from optimizer.search.synthesizers.llm.tools import MAX_CALLS, ToolBench, Tools, offered
from optimizer.search.synthesizers.llm.transcripts import Transcript

MAX_QUOTED = 60_000  # characters of an answer that is shown to its author again


class Conversation:
    """Writes everything that is said into `record`, whatever comes of it."""

    def __init__(
        self,
        context: Context,
        settings: LlmSettings,
        asker: Asker,
        record: Transcript,
        tools: Tools | None,
        fence: Fence,
    ) -> None:
        self._context, self._settings = context, settings
        self._asker, self._record = asker, record
        self._fence = fence
        self._bench = ToolBench(tools, self._fence) if tools is not None else None
        self._rounds = 0
        self._shrunk = False
        self._prompt = self._composed(context.max_tokens)
        record.messages += self._opening()

    def answer(self) -> Answer:
        """Raises ProposalFailed."""
        for left in range(self._settings.repair_rounds, -1, -1):
            reply = self._reply()
            try:
                return self._read(reply)
            except BadAnswer as problem:
                if not left:
                    raise ProposalFailed(f"{self._record.model}: {problem}") from None
                self._ask_again(reply, problem)
        raise AssertionError("the last round returns or raises")

    def _composed(self, budget: int) -> Prompt:
        prompt = compose(self._context, self._fence, budget=budget, tools=self._bench is not None)
        self._record.left_out = prompt.left_out
        return prompt

    def _opening(self) -> list[dict[str, object]]:
        return [
            {"role": "system", "content": self._prompt.system},
            {"role": "user", "content": self._prompt.user},
        ]

    def _reply(self) -> Reply:
        """The first reply that is no tool call, or one that calls what was not offered."""
        while True:
            reply = self._ask()
            if not reply.tool_calls or self._bench is None:
                return reply
            self._rounds += 1
            if self._rounds > self._settings.tool_rounds:
                raise ProposalFailed(
                    f"{self._record.model}: still calling tools after"
                    f" {self._settings.tool_rounds} rounds"
                )
            self._run_tools(reply, self._bench)

    def _ask(self) -> Reply:
        try:
            return self._heard()
        except ContextOverflow as problem:
            if self._shrunk:
                raise ProposalFailed(f"{problem}; also with the shortest prompt") from None
        except CallFailed as problem:
            raise ProposalFailed(str(problem)) from None
        self._shrunk = True
        self._prompt = self._composed(0)
        self._record.messages[:2] = self._opening()
        return self._ask()

    def _heard(self) -> Reply:
        try:
            reply = self._asker.ask(self._record.messages, offered() if self._bench else ())
        except CallFailed as problem:
            self._record.heard.append(problem)
            raise
        self._record.heard.append(reply)
        return reply

    def _run_tools(self, reply: Reply, bench: ToolBench) -> None:
        calls = reply.tool_calls[:MAX_CALLS]
        told = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in calls
        ]
        self._record.messages.append(
            {"role": "assistant", "content": reply.content, "tool_calls": told}
        )
        self._record.messages += [
            {"role": "tool", "tool_call_id": c.id, "content": bench.result(c)} for c in calls
        ]

    def _read(self, reply: Reply) -> Answer:
        if reply.tool_calls and self._bench is None:
            names = ", ".join(sorted({call.name for call in reply.tool_calls}))[:100]
            raise BadAnswer(f"tools were called that were not offered: {names}")
        brought = self._bench.shown if self._bench is not None else set()
        try:
            return answer_from(reply.content, self._context, self._prompt.shown | brought)
        except BadAnswer as problem:
            if reply.finish == "length":
                limit = self._settings.max_output_tokens
                raise BadAnswer(f"{problem} (it was cut off at {limit} tokens)") from None
            raise

    def _ask_again(self, reply: Reply, problem: BadAnswer) -> None:
        values = {"error": self._fence.around("error", str(problem)), "files": rule(self._context)}
        self._record.messages += [
            {"role": "assistant", "content": reply.content[:MAX_QUOTED] or "(nothing)"},
            {"role": "user", "content": rendered("repair.md", values)},
        ]
