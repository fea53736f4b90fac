"""Client of language models: replies, deadlines, rate limits, and failures of calls.

litellm gives every provider one interface; it is imported at the first call. Its failures are
classified as retry, prompt too long, unreachable, or failed.
"""

from __future__ import annotations

import os
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import Any, Protocol

from kb.errors import Unavailable
from kb.plain import from_json
from optimizer.search.records import Cost
from optimizer.search.synthesizers.llm.settings import LlmSettings, Redaction

LONGEST_WAIT_S = 120.0
Message = dict[str, Any]  # in the form of the providers' chat interface
TICK_S = 1.0  # between two progress reports of a call
GRACE_S = 5.0  # after the provider's own time-out, before the call is abandoned
MAX_MESSAGE = 400  # characters of a provider's message
RETRIED = frozenset({408, 409, 425, 429})
# Words in errors about too long prompts, of providers that litellm does not know.
OVERFLOWS = ("context_length_exceeded", "context length", "context window", "too many tokens")
NEVER_HELPS = ("insufficient_quota", "billing")


class DeadlinePassed(Exception):
    """The work did not end in time; it continues in an abandoned thread."""


class RateLimit:
    """Starts at most `per_minute` evenly spaced calls a minute; None for no limit."""

    def __init__(
        self,
        per_minute: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._clock, self._sleep = clock, sleep
        self._next = 0.0
        self._lock = threading.Lock()  # protects _next: several searches may share one limit

    def wait(self) -> None:
        """Sleep until the next call may start."""
        with self._lock:
            now = self._clock()
            start = max(now, self._next)
            self._next = start + self._gap
        if start > now:
            self._sleep(start - now)


def pause(attempt: int, retry_after: str | None, chance: random.Random) -> float | None:
    """Seconds to wait before try number `attempt` + 1, doubling with each attempt unless the
    provider's header `retry_after` sets them. None if that exceeds LONGEST_WAIT_S."""
    seconds = _seconds(retry_after) if retry_after else None
    if seconds is not None:
        return seconds if seconds <= LONGEST_WAIT_S else None
    # 1, 2, 4 ... s, spread so that several callers do not come back together
    return min(LONGEST_WAIT_S, 2.0**attempt) * chance.uniform(0.75, 1.25)


def _seconds(header: str) -> float | None:
    """The seconds of a header with a number or an HTTP date; None for anything else."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            when = parsedate_to_datetime(header)
        except ValueError:
            return None
        aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        seconds = (aware - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if seconds == seconds else None


def within(
    seconds: float, work: Callable[[], Any], waited: Callable[[float], None] | None = None
) -> Any:
    """Call `work`; raises its exception, or DeadlinePassed after `seconds`.

    `waited` is called before the work begins and every TICK_S, with the seconds so far; its
    exceptions end the wait. A read time-out does not replace this deadline: a provider that sends a
    byte now and then never meets it.
    """
    done: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def go() -> None:
        try:
            done.put((True, work()))
        except BaseException as problem:  # raised again by the waiting thread
            done.put((False, problem))

    report = waited or (lambda _: None)
    report(0.0)
    threading.Thread(target=go, name="model-call", daemon=True).start()
    fine, value = _awaited(done, seconds, report)
    if not fine:
        raise value
    return value


def _awaited(
    done: queue.SimpleQueue[tuple[bool, Any]], seconds: float, waited: Callable[[float], None]
) -> tuple[bool, Any]:
    began = time.monotonic()
    passed = 0.0
    while passed < seconds:
        try:
            return done.get(timeout=min(TICK_S, seconds - passed))
        except queue.Empty:
            passed = time.monotonic() - began
            waited(passed)
    raise DeadlinePassed(f"no answer within {seconds:g} s")


@dataclass(frozen=True)
class ToolCall:
    """A tool call; `arguments` is the model's JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ChatReply:
    """An answer of a model. `finish` is the provider's reason for its end; `usd`: None if the price
    is unknown."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = None


class CallFailed(Exception):
    """There is no reply. The message contains no secret."""


class ContextOverflow(CallFailed):
    """The prompt is longer than the model's window."""


class NoAnswer(CallFailed):
    """The model's address, which the message names, could not be reached."""


class CallAbandoned(CallFailed):
    """The caller does not need the answer any more."""


class ModelClient(Protocol):
    """A model, or a stored conversation with one."""

    def ask(self, messages: Sequence[Message], tools: Sequence[Any]) -> ChatReply:
        """The reply to these messages. Raises CallFailed, and ContextOverflow for a too long
        prompt."""
        ...


def total(spent: Sequence[ChatReply], seconds: float, before: Cost) -> Cost:
    """The cost of these replies plus an earlier cost; `seconds` is their wall time. The sum in USD
    is unknown if any part is."""
    usd: float | None = before.usd
    for reply in spent:
        usd = None if usd is None or reply.usd is None else usd + reply.usd
    return Cost(
        seconds=round(before.seconds + seconds, 3),
        tokens_in=before.tokens_in + sum(reply.tokens_in for reply in spent),
        tokens_out=before.tokens_out + sum(reply.tokens_out for reply in spent),
        usd=usd,
    )


# Kinds of failures in stored transcripts.
FAILURES: Mapping[str, type[CallFailed]] = {
    "overflow": ContextOverflow,
    "no_answer": NoAnswer,
    "failed": CallFailed,
}


def reply_as_json(reply: ChatReply | CallFailed) -> dict[str, Any]:
    """The stored row of a reply or a failure."""
    if isinstance(reply, ChatReply):
        return {"reply": asdict(reply)}
    kind = next((k for k, cls in FAILURES.items() if type(reply) is cls), "failed")
    return {kind: str(reply)}


def reply_from_json(row: Mapping[str, Any]) -> ChatReply | CallFailed:
    """Inverse of `reply_as_json`."""
    if "reply" in row:
        return from_json(ChatReply, row["reply"])
    kind = next(kind for kind in FAILURES if kind in row)
    return FAILURES[kind](row[kind])


def load() -> Any:
    """The litellm module, configured not to fetch or print anything. Raises Unavailable."""
    # Otherwise it fetches a price list and reads a `.env` file of the working directory.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    try:
        litellm: Any = import_module("litellm")
    except ModuleNotFoundError as problem:
        raise Unavailable(
            "litellm is not installed, so no language model can be called",
            hint="Install the extra: pip install 'kernlore[llm]'; or leave --models out.",
        ) from problem
    litellm.suppress_debug_info = True  # it prints to standard output, where JSON belongs
    return litellm


def price_known(model: str) -> bool:
    """Whether litellm's price list has the model, which a limit in USD requires."""
    litellm = load()
    try:
        litellm.cost_per_token(model=model, prompt_tokens=1, completion_tokens=1)
    except (litellm.exceptions.ModelNotMappedError, litellm.exceptions.BadRequestError):
        return False
    return True


def takes_tools(model: str) -> bool:
    """Whether litellm knows that the model can call tools."""
    litellm = load()
    try:
        return bool(litellm.supports_function_calling(model=model))
    except Exception:  # litellm raises a bare Exception for a name without a provider
        return False


def missing_keys(model: str) -> tuple[str, ...]:
    """Environment variables for the key of the model's provider if none is set; empty if a key is
    set, or if litellm knows of none that is needed."""
    litellm = load()
    environment = litellm.validate_environment(model=model)
    if environment.get("keys_in_environment"):
        return ()
    return tuple(n for n in environment.get("missing_keys", ()) if n.endswith("_API_KEY"))


class LitellmClient:
    """A `ModelClient` for a single model; `chance` spreads the waits between retries."""

    def __init__(
        self,
        model: str,
        settings: LlmSettings,
        limit: RateLimit,
        redact: Redaction,
        chance: random.Random,
        sleep: Callable[[float], None] = time.sleep,
        waited: Callable[[float], None] | None = None,
    ) -> None:
        """`waited` is called during a call with its seconds so far; it may raise CallAbandoned."""
        self._model, self._settings, self._limit = model, settings, limit
        self._redact, self._chance, self._sleep = redact, chance, sleep
        self._waited = waited

    def ask(self, messages: Sequence[Message], tools: Sequence[Any]) -> ChatReply:
        """The reply, after retries. Raises CallFailed, and Unavailable without litellm."""
        attempt = 0
        while True:
            self._limit.wait()
            try:
                return self._once(messages, tools)
            except _Again as busy:
                message, retry_after, unreached = busy.message, busy.retry_after, busy.unreached
                wait = pause(attempt, retry_after, self._chance)
            if wait is None:
                raise CallFailed(
                    f"{message}; it says Retry-After: {retry_after}, which is too long"
                )
            if attempt >= self._settings.retries:
                if unreached:
                    raise NoAnswer(self._unreached_text(attempt + 1))
                raise CallFailed(f"{message}; tried {attempt + 1} times")
            attempt += 1
            self._sleep(wait)

    def _once(self, messages: Sequence[Message], tools: Sequence[Any]) -> ChatReply:
        litellm = load()
        request = self._request(messages, tools)
        seconds = self._settings.timeout_s
        try:
            answer = within(seconds + GRACE_S, lambda: litellm.completion(**request), self._waited)
            return self._reply(litellm, answer)
        except DeadlinePassed as late:
            raise _Again(str(late), None) from None
        except CallAbandoned:
            raise
        except Exception as problem:
            # The library raises errors of any kind for unexpected answers of providers; each is
            # recorded as a failure of this call. Not chained, since its traceback may hold the key.
            raise self._classified(problem) from None

    def _request(self, messages: Sequence[Message], tools: Sequence[Any]) -> dict[str, Any]:
        chosen = self._settings
        request: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": chosen.max_output_tokens,
            "timeout": chosen.timeout_s,
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": True,  # leaves out parameters that a model does not take
            "temperature": chosen.temperature,
            "api_base": chosen.api_base,
            "api_key": chosen.api_key,
        }
        if tools:
            request["tools"] = list(tools)
            # Otherwise litellm imports the mcp package for every request with tools.
            request["_skip_mcp_handler"] = True
        return {name: value for name, value in request.items() if value is not None}

    def _reply(self, litellm: Any, answer: Any) -> ChatReply:
        choice = answer.choices[0]
        message, usage = choice.message, getattr(answer, "usage", None)
        calls = tuple(
            ToolCall(str(call.id or ""), str(call.function.name or ""), call.function.arguments)
            for call in message.tool_calls or ()
        )
        tokens_in = int(getattr(usage, "prompt_tokens", 0) or 0)
        tokens_out = int(getattr(usage, "completion_tokens", 0) or 0)
        extra = getattr(message, "provider_specific_fields", None) or {}
        content = message.content or extra.get("refusal") or ""
        return ChatReply(
            str(content),
            calls,
            str(choice.finish_reason or ""),
            tokens_in,
            tokens_out,
            self._usd(litellm, tokens_in, tokens_out, usage),
        )

    def _usd(self, litellm: Any, tokens_in: int, tokens_out: int, usage: Any) -> float | None:
        """The price in USD; None for a model without a price or a reply without token counts."""
        if not tokens_in:
            return None
        try:
            parts = litellm.cost_per_token(
                model=self._model,
                prompt_tokens=tokens_in,
                completion_tokens=tokens_out,
                usage_object=usage,
            )
        except (litellm.exceptions.ModelNotMappedError, litellm.exceptions.BadRequestError):
            return None
        return float(sum(parts))

    def _unreached_text(self, tries: int) -> str:
        address = self._settings.api_base or _usual_address(self._model)
        where = self._redact.error(address) if address else "its provider"
        return (
            f"no answer of {self._model} from {where} (tried {tries} times); give"
            " --api-base or OPENAI_API_BASE"
        )

    def _classified(self, problem: Exception) -> Exception:
        quoted = " ".join(self._redact.error(str(problem)).split())[:MAX_MESSAGE]
        message = f"{self._model}: {type(problem).__name__}: {quoted}"
        if _unreached(problem):
            return _Again(message, None, unreached=True)
        lower = quoted.lower()
        status = getattr(problem, "status_code", None)
        if type(problem).__name__ == "ContextWindowExceededError" or status == 413:
            return ContextOverflow(message)
        if status == 400 and any(word in lower for word in OVERFLOWS):
            return ContextOverflow(message)
        again = isinstance(status, int) and (status in RETRIED or status >= 500)
        if again and not any(word in lower for word in NEVER_HELPS):
            return _Again(message, _retry_after(problem))
        return CallFailed(message)


class _Again(Exception):
    """The provider is busy or broken; a retry may succeed."""

    def __init__(self, message: str, retry_after: str | None, unreached: bool = False) -> None:
        super().__init__(message)
        self.message, self.retry_after, self.unreached = message, retry_after, unreached


def _usual_address(model: str) -> str | None:
    """The address in the environment for models with OpenAI's interface."""
    if not model.startswith("openai/"):
        return None
    return os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")


def _unreached(problem: BaseException | None) -> bool:
    """Whether no connection was established, which litellm reports as other errors."""
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        if isinstance(problem, ConnectionRefusedError | socket.gaierror):
            return True
        if type(problem).__name__ in ("ConnectError", "ConnectTimeout"):
            return True
        seen.add(id(problem))
        problem = problem.__cause__ or problem.__context__
    return False


def _retry_after(problem: Exception) -> str | None:
    response = getattr(problem, "response", None)
    for headers in (
        getattr(response, "headers", None),
        getattr(problem, "litellm_response_headers", None),
        getattr(problem, "headers", None),
    ):
        value = headers.get("retry-after") if headers else None
        if value:
            return str(value)
    return None
