"""What a model is shown: our context, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.search.model_writes.chips import Chip
from kb.prompt_tokens import count_tokens
from optimizer.search.knowledge import Knowledge, KnowledgeSource, Query
from optimizer.search.runs.knowledge import ServiceKnowledge
from retrieval.knowledge_base import KnowledgeBase
from retrieval.request import RetrieveRequest

PASSAGES = 200  # of which those are shown that fit into the budget


@dataclass(frozen=True)
class Arm:
    """One way to inform a model. `memory` is whether it sees what became of its earlier attempts,
    `tools` whether it may call tools, `check` whether its names are held against the chip's before
    they are compiled, `second` whether another problem was solved on the chip before. `source`
    makes what it is shown; None for nothing.
    """

    name: str
    about: str
    source: Callable[[KnowledgeBase, Chip, Chip], KnowledgeSource] | None
    memory: bool = True
    tools: bool = False
    check: bool = False
    second: bool = False


@dataclass
class Fixed:
    """A source that shows the same text whatever happens."""

    text: str

    def consult(self, query: Query) -> Knowledge:
        """The text."""
        return Knowledge(target=self.text)

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Nothing is learnt."""


@dataclass
class Passages:
    """The best passages for the operator, as many as fit: what a plain retrieval of top-k gives."""

    base: KnowledgeBase
    _shown: dict[str, str] = field(default_factory=dict)

    def consult(self, query: Query) -> Knowledge:
        """The passages for the operator and language, the same in each attempt."""
        key = query.op
        if key not in self._shown:
            words = f"write a {query.language or ''} kernel for {query.op.replace('_', ' ')}"
            request = RetrieveRequest(query=words, hardware=query.hardware, task="ask", k=PASSAGES)
            parts: list[str] = []
            room = query.max_tokens
            for excerpt in self.base.retriever.retrieve(request).excerpts:
                cost = count_tokens(excerpt.text) + 1
                if cost <= room:
                    parts.append(excerpt.text)
                    room -= cost
            self._shown[key] = "\n\n".join(parts)
        return Knowledge(target=self._shown[key])

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Nothing is learnt."""


@dataclass
class Unadapted:
    """Our context of the first attempt, in every attempt."""

    inner: ServiceKnowledge
    _first: Knowledge | None = None

    def consult(self, query: Query) -> Knowledge:
        """The answer to the first request."""
        if self._first is None:
            self._first = self.inner.consult(replace(query, task="write", log="", draft=""))
        return self._first

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Nothing is learnt."""


def _ours(base: KnowledgeBase, chip: Chip, other: Chip) -> KnowledgeSource:
    return ServiceKnowledge(base)


ARMS: Mapping[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("nothing", "no knowledge, no earlier attempts", None, memory=False),
        Arm("errors", "no knowledge; earlier attempts and their errors", None),
        Arm("whole", "the manual, whole", lambda base, chip, other: Fixed(chip.manual)),
        Arm(
            "passages",
            "the best passages, as many as fit",
            lambda base, chip, other: Passages(base),
        ),
        Arm("ours", "our context", _ours, check=True),
        Arm(
            "unadapted",
            "our context of the first attempt, kept",
            lambda base, chip, other: Unadapted(ServiceKnowledge(base)),
            check=True,
        ),
        Arm("tools", "our context, and tools", _ours, tools=True, check=True),
        Arm(
            "second",
            "our context, after another problem was solved on the chip",
            _ours,
            check=True,
            second=True,
        ),
        Arm(
            "placebo", "another chip's manual, whole", lambda base, chip, other: Fixed(other.manual)
        ),
    )
}
