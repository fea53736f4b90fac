"""Many questions to a language model: some at a time, within limits of calls and price.

Answers are taken one after another in the caller's thread as they arrive, so that earlier ones stay
when a later call fails. Knows no provider and no prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kb.errors import KernloreError
from kb.ids import sha256

FAILURES = 3  # calls that fail one after another, after which no more are made
AT_ONCE = 4  # calls, unless a caller says otherwise
SECONDS = 300.0  # longest time of a call, likewise
Message = dict[str, Any]
Q = TypeVar("Q")


class PricedReply(Protocol):
    """The reply of a model. `usd` is None if its price is unknown."""

    @property
    def content(self) -> str: ...

    @property
    def tokens_in(self) -> int: ...

    @property
    def tokens_out(self) -> int: ...

    @property
    def usd(self) -> float | None: ...


class PricedModel(Protocol):
    """A language model behind any provider. A call without a reply raises a KernloreError."""

    @property
    def name(self) -> str: ...

    def ask(self, messages: Sequence[Message], tools: Sequence[Any]) -> PricedReply: ...


class UnusableAnswer(ValueError):
    """An answer without the JSON that was asked for; the message is the reason."""


@dataclass(frozen=True)
class CallLimits:
    """`most` calls, `at_once` of them concurrently, and no new one from `usd` spent on."""

    most: int
    at_once: int
    usd: float | None = None


@dataclass
class Spent:
    """What the calls cost. `failed` are reasons of calls without a usable answer, `left` the number
    of questions that were not asked, `stopped` the reason for an early end. `usd` is None if the
    price of a call is unknown."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = 0.0
    left: int = 0
    failed: list[str] = field(default_factory=list)
    stopped: str = ""

    def add(self, reply: PricedReply) -> None:
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        self.usd = None if self.usd is None or reply.usd is None else self.usd + reply.usd


def ask_all(
    model: PricedModel,
    questions: Sequence[Q],
    messages_of: Callable[[Q], Sequence[Message]],
    take: Callable[[Q, str], str],
    limits: CallLimits,
    say: Callable[[str], None],
) -> Spent:
    """Ask every question and give each answer to `take`, which returns a line for `say`. An answer
    for which `take` raises UnusableAnswer counts as failed. Raises the error of the first call if
    it fails; later failures are recorded, and FAILURES in a row end the asking."""
    spent, waiting = Spent(), list(reversed(questions))
    running: dict[Future[PricedReply], Q] = {}
    failing, answered = 0, False  # calls in a row; whether any was answered
    with ThreadPoolExecutor(limits.at_once, "model") as pool:
        while True:
            # The first call shows whether the model answers at all.
            room = limits.at_once if answered else 1
            while waiting and len(running) < room and not _ended(spent, limits):
                question = waiting.pop()
                running[pool.submit(model.ask, messages_of(question), ())] = question
                spent.calls += 1
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                problem = _settled(future, running.pop(future), take, spent, say)
                if problem is not None and spent.calls == 1:
                    raise problem
                failing = 0 if problem is None else failing + 1
                answered = answered or problem is None
            if failing >= FAILURES:
                spent.stopped = spent.failed[-1]
    spent.left = len(waiting)
    if waiting and not spent.stopped:
        spent.stopped = "the limit of calls or of the price was reached"
    return spent


def _settled(
    future: Future[PricedReply],
    question: Q,
    take: Callable[[Q, str], str],
    spent: Spent,
    say: Callable[[str], None],
) -> KernloreError | None:
    """Take the answer of a call; the error of one without a reply."""
    try:
        reply = future.result()
    except KernloreError as problem:
        spent.failed.append(problem.message)
        return problem
    spent.add(reply)
    try:
        say(take(question, reply.content))
    except UnusableAnswer as problem:
        spent.failed.append(str(problem))
        say(str(problem))
    return None


def _ended(spent: Spent, limits: CallLimits) -> bool:
    dear = limits.usd is not None and (spent.usd is None or spent.usd >= limits.usd)
    return bool(spent.stopped) or spent.calls >= limits.most or dear


def json_of(answer: str) -> Mapping[str, Any]:
    """The JSON object of an answer, with or without a fence around it. Raises UnusableAnswer."""
    text = answer.strip()
    start, end = text.find("{"), text.rfind("}")
    try:
        # Models put raw line breaks into strings.
        value = json.JSONDecoder(strict=False).decode(text[start : end + 1])
    except (ValueError, RecursionError) as problem:
        raise UnusableAnswer(f"the answer is no JSON: {problem}") from None
    if not isinstance(value, dict):
        raise UnusableAnswer("the answer is no JSON object")
    return value


def rows_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """The objects in a list of an answer; anything else is left out."""
    yield from (row for row in (value if isinstance(value, list) else ()) if isinstance(row, dict))


def text_in(row: Mapping[str, Any], key: str, limit: int) -> str:
    """A text of an answer as one line, cut at `limit` characters; empty for anything else."""
    value = row.get(key)
    return " ".join(value.split())[:limit] if isinstance(value, str) else ""


def fenced(label: str, text: str) -> str:
    """A text of a document between marks that its author cannot have written into it."""
    mark = f"DATA {sha256(text)[:16]}"
    return f"{label}\n--- {mark} BEGIN ---\n{text}\n--- {mark} END ---"
