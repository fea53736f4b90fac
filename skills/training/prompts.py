"""The prompt of a candidate and the answer that goes with it.

The prompt is the one that a model was sent, where it is stored; else the one that a model would
have been sent, rendered from the same state. The answer is the candidate in the words in which a
model answers: the JSON object, then every file in a code block.
`optimizer.search.synthesizers.llm.answers.candidate.answer_from` reads it back.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from optimizer.evaluation.bundle import Bundle, default_entry
from optimizer.search.propose import Task, compose_context, tree_before
from optimizer.search.records import Node
from optimizer.search.synthesizers.base import Context
from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, Transcript
from optimizer.search.synthesizers.llm.prompt import compose
from optimizer.search.synthesizers.llm.settings import Redaction
from optimizer.search.synthesizers.llm.templates import WORD, Fence
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.training.samples import TrainingPrompt
from skills.training.shown_knowledge import LEFT_OUT, ShownKnowledge

_BLOCK = re.compile(
    rf"(?P<begin>--- {WORD} (?P<boundary>\w+) BEGIN (?P<kind>excerpt|move|skill) ---\n)"
    rf"(?P<text>.*?)\n(?P<end>--- {WORD} (?P=boundary) END ---)",
    re.S,
)
_ID = re.compile(r"id: (\S+)")


class Prompts:
    """The prompts of one run or external trajectory."""

    def __init__(self, base: KnowledgeBase, task: Task, knowledge: ShownKnowledge) -> None:
        self._task = task
        self._knowledge = knowledge
        self._redact = Redaction()
        self._transcripts = FolderTranscripts(base.settings.data_dir / "transcripts")

    def of(self, tree: Tree, node: Node) -> TrainingPrompt:
        """The prompt of a candidate, without known secrets."""
        stored = self._stored(node)
        prompt = self._sent(stored) if stored is not None else self._rendered(tree, node)
        known = self._redact.known
        return replace(prompt, system=known(prompt.system), user=known(prompt.user))

    def context(self, tree: Tree, node: Node) -> tuple[Context, tuple[str, ...]]:
        """What the candidate was proposed from, and the ids whose texts are missing in it."""
        known, left_out = self._knowledge.of(node.shown, self._task.hardware.id)
        return compose_context(
            self._task, tree_before(tree, node), node.parent or 0, known
        ), left_out

    def _rendered(self, tree: Tree, node: Node) -> TrainingPrompt:
        context, left_out = self.context(tree, node)
        # Of the state alone: the same state gives the same prompt in every export.
        state = f"{self._task.run_id}:{node.parent}"
        fence = Fence(hashlib.sha256(state.encode()).hexdigest()[:16])
        prompt = compose(context, fence, budget=context.max_tokens, tools=False)
        return TrainingPrompt(prompt.system, prompt.user, "rendered", left_out)

    def _stored(self, node: Node) -> Transcript | None:
        proposal = node.proposal
        if proposal is None or proposal.transcript is None:
            return None
        run, _, place = proposal.transcript.rpartition("/")
        step, _, attempt = place.partition("-")
        if not (run and step.isdigit() and attempt.isdigit()):
            return None
        transcript = self._transcripts.read(run, int(step), int(attempt))
        return transcript if transcript is not None and opening(transcript.messages) else None

    def _sent(self, transcript: Transcript) -> TrainingPrompt:
        """Its first two messages; what followed led to the answer and is not part of the state."""
        system, user = (str(message["content"]) for message in transcript.messages[:2])
        user, left_out = without_uploads(user, self._knowledge.may_show)
        return TrainingPrompt(system, user, "stored", left_out)


def opening(messages: Sequence[dict[str, object]]) -> bool:
    """Whether a conversation begins with a system and a user message."""
    return [message.get("role") for message in messages[:2]] == ["system", "user"]


def without_uploads(text: str, may_show: Callable[[str], bool]) -> tuple[str, tuple[str, ...]]:
    """Quoted blocks of what may not be shown, down to their ids."""
    left_out: list[str] = []

    def kept(block: re.Match[str]) -> str:
        named = _ID.match(block["text"])
        if named is not None and may_show(named[1]):
            return block[0]
        name = named[1] if named is not None else "unknown"
        left_out.append(name)
        return f"{block['begin']}id: {name}\n{LEFT_OUT}\n{block['end']}"

    return _BLOCK.sub(kept, text), tuple(left_out)


_FENCE = re.compile(r"^[ \t]*(`{3,})", re.M)


def answer_text(bundle: Bundle, plan: str, used: Sequence[str]) -> str:
    """A candidate as a model would answer it. `used` holds ids that it was shown. A file that does
    not end in a line break gets one."""
    head: dict[str, Any] = {
        "plan": plan,
        "used": list(used),
        "language": bundle.language,
        "main": bundle.main,
    }
    if bundle.entry != default_entry(bundle.main):
        head["entry"] = bundle.entry
    if bundle.parameters:
        head["parameters"] = dict(bundle.parameters)
    parts = [json.dumps(head, ensure_ascii=False)]
    return "\n\n".join([*parts, *(_block(name, text) for name, text in bundle.files.items())])


def _block(name: str, text: str) -> str:
    """Fenced with more backticks than any line of the file begins with."""
    ticks = "`" * max([3, *(len(fence[1]) + 1 for fence in _FENCE.finditer(text))])
    end = "" if text.endswith("\n") else "\n"
    return f"File: {name}\n{ticks}\n{text}{end}{ticks}"
