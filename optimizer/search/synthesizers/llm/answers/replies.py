"""What comes back from a model, and the ways in which nothing does.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from optimizer.search.records import Cost

Message = dict[str, Any]  # as the chat interface of the providers has it


@dataclass(frozen=True)
class ToolCall:
    """arguments: JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """finish: the provider's word for why it ended. usd: None where the price is not known."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = None


class CallFailed(Exception):
    """No reply; the message holds no secret."""


class ContextOverflow(CallFailed):
    """The prompt is longer than the model's window."""


class Asker(Protocol):
    """Brings a reply. Raises CallFailed."""

    def ask(self, messages: Sequence[Message], tools: Sequence[Any]) -> Reply: ...


def total(spent: Sequence[Reply], seconds: float, before: Cost) -> Cost:
    """usd: unknown as soon as one part is."""
    usd: float | None = before.usd
    for reply in spent:
        usd = None if usd is None or reply.usd is None else usd + reply.usd
    return Cost(
        seconds=round(before.seconds + seconds, 3),
        tokens_in=before.tokens_in + sum(reply.tokens_in for reply in spent),
        tokens_out=before.tokens_out + sum(reply.tokens_out for reply in spent),
        usd=usd,
    )


def reply_as_json(heard: Reply | CallFailed) -> dict[str, Any]:
    if isinstance(heard, Reply):
        return {"reply": asdict(heard)}
    kind = "overflow" if isinstance(heard, ContextOverflow) else "failed"
    return {kind: str(heard)}


def reply_from_json(row: Mapping[str, Any]) -> Reply | CallFailed:
    """The inverse of `reply_as_json`."""
    if "reply" in row:
        told = row["reply"]
        calls = tuple(ToolCall(**call) for call in told["tool_calls"])
        return Reply(**{**told, "tool_calls": calls})
    return ContextOverflow(row["overflow"]) if "overflow" in row else CallFailed(row["failed"])
