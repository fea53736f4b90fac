"""The prompt of a candidate: the one that a model was sent, where it is stored; else the one that a
model would have been sent, rendered from the same state.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from optimizer.search.propose import Task, compose_context, tree_before
from optimizer.search.records import Node
from optimizer.search.synthesizers.base import Context
from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, Transcript
from optimizer.search.synthesizers.llm.prompt import compose
from optimizer.search.synthesizers.llm.settings import Redaction
from optimizer.search.synthesizers.llm.templates import WORD, Fence
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.training.samples import Prompt
from skills.training.shown_knowledge import LEFT_OUT, KnowledgeAgain

_BLOCK = re.compile(
    rf"(?P<begin>--- {WORD} (?P<boundary>\w+) BEGIN (?P<kind>excerpt|move|skill) ---\n)"
    rf"(?P<text>.*?)\n(?P<end>--- {WORD} (?P=boundary) END ---)",
    re.S,
)
_ID = re.compile(r"id: (\S+)")


class Prompts:
    """Of one run or told trajectory."""

    def __init__(self, base: KnowledgeBase, task: Task, knowledge: KnowledgeAgain) -> None:
        self._task = task
        self._knowledge = knowledge
        self._redact = Redaction()
        self._transcripts = FolderTranscripts(base.settings.data_dir / "transcripts")

    def of(self, tree: Tree, node: Node) -> Prompt:
        stored = self._stored(node)
        found = self._sent(stored) if stored is not None else self._rendered(tree, node)
        known = self._redact.known
        return replace(found, system=known(found.system), user=known(found.user))

    def context(self, tree: Tree, node: Node) -> tuple[Context, tuple[str, ...]]:
        """What the candidate was proposed from, and the ids whose texts are missing in it."""
        known, left_out = self._knowledge.of(node.shown, self._task.hardware.id)
        return compose_context(
            self._task, tree_before(tree, node), node.parent or 0, known
        ), left_out

    def _rendered(self, tree: Tree, node: Node) -> Prompt:
        context, left_out = self.context(tree, node)
        # Of the state alone: the same state gives the same prompt in every export.
        state = f"{self._task.run_id}:{node.parent}"
        fence = Fence(hashlib.sha256(state.encode()).hexdigest()[:16])
        prompt = compose(context, fence, budget=context.max_tokens, tools=False)
        return Prompt(prompt.system, prompt.user, "rendered", left_out)

    def _stored(self, node: Node) -> Transcript | None:
        proposal = node.proposal
        if proposal is None or proposal.transcript is None:
            return None
        run, _, place = proposal.transcript.rpartition("/")
        step, _, attempt = place.partition("-")
        if not (run and step.isdigit() and attempt.isdigit()):
            return None
        found = self._transcripts.read(run, int(step), int(attempt))
        return found if found is not None and opening(found.messages) else None

    def _sent(self, found: Transcript) -> Prompt:
        """Its first two messages; what followed led to the answer and is not part of the state."""
        system, user = (str(message["content"]) for message in found.messages[:2])
        user, left_out = without_uploads(user, self._knowledge.may_show)
        return Prompt(system, user, "stored", left_out)


def opening(messages: Sequence[dict[str, object]]) -> bool:
    return [message.get("role") for message in messages[:2]] == ["system", "user"]


def without_uploads(text: str, may_show: Callable[[str], bool]) -> tuple[str, tuple[str, ...]]:
    """Quoted blocks of what may not be shown, down to their ids."""
    left_out: list[str] = []

    def kept(block: re.Match[str]) -> str:
        found = _ID.match(block["text"])
        if found is not None and may_show(found[1]):
            return block[0]
        name = found[1] if found is not None else "unknown"
        left_out.append(name)
        return f"{block['begin']}id: {name}\n{LEFT_OUT}\n{block['end']}"

    return _BLOCK.sub(kept, text), tuple(left_out)
