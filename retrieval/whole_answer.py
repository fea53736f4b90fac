"""An answer from its parts. Knows nothing of how they were found."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

from kb.ids import new_id
from retrieval.answer import Answer, ContextPart, Excerpt, Move
from retrieval.composer import Composed
from retrieval.diagnose.diagnosis import Conclusion
from retrieval.journal import Unwanted
from retrieval.request import RetrieveRequest
from retrieval.request_scope import RequestScope
from retrieval.skill_choice import Choice

_LOGGED_ONLY = ("run_id", "node_id")  # fields of a request that change nothing else in its answer


def key_of(request: RetrieveRequest, *more: object) -> str:
    """Equal for requests that differ in nothing but what is logged, with equal texts of `more`."""
    given = [
        tuple(value.items()) if isinstance(value, Mapping) else value
        for field in fields(request)
        if field.name not in _LOGGED_ONLY
        for value in [getattr(request, field.name)]
    ]
    return hashlib.sha256(repr((given, more)).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Asked:
    """A request with what was made of it before any document is read. `unwanted` is what is
    not to be shown again.
    """

    request: RetrieveRequest
    conclusion: Conclusion
    scope: RequestScope
    moves: tuple[Move, ...]
    choice: Choice
    unwanted: Unwanted

    @cached_property
    def key(self) -> str:
        """Equal where documents have the same to say, on one state of the catalog."""
        moves = [move.id for move in self.moves]
        # A run is not shown its own kernels among the samples of a chip that has such.
        run = self.request.run_id if self.scope.toolchain is not None else None
        unwanted = (
            sorted(self.unwanted.anywhere),
            sorted(self.unwanted.about_what_happened),
        )
        return key_of(self.request, moves, self.choice.answers, *unwanted, run)


@dataclass(frozen=True)
class Written:
    """What documents have to say about a request."""

    composed: Composed
    excerpts: tuple[Excerpt, ...]
    hints: tuple[str, ...]

    @property
    def shown(self) -> list[str]:
        """Ids of the passages that are shown."""
        context = self.composed.context
        cited = [block.id for block in context.shown if block.citation]
        return list(dict.fromkeys([*(e.id for e in self.excerpts), *cited, *context.passages]))


def answer_of(asked: Asked, written: Written) -> Answer:
    """The answer, with an id of its own."""
    composed, context = written.composed, written.composed.context
    return Answer(
        retrieval_id=new_id("ret"),
        diagnosis=asked.conclusion.verdict,
        hardware=asked.scope.named,
        excerpts=written.excerpts,
        skills=asked.choice.answers,
        moves=asked.moves,
        context=context.text,
        context_tokens=context.tokens,
        skills_withheld=asked.choice.withheld,
        hints=written.hints,
        task=composed.task,
        context_stable=context.stable,
        context_actions=context.actions,
        parts=tuple(
            ContextPart(b.kind, b.id, b.tokens, b.citation) for b in context.shown if b.citation
        ),
        unknown_names=tuple(name.as_json() for name in composed.unknown),
    )
