"""Asks a model through litellm: one face for every provider, its failures sorted into retry, shrink
and give up. litellm is imported at the first call.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from kb.errors import Unavailable
from optimizer.search.synthesizers.llm.answers.replies import (
    CallFailed,
    ContextOverflow,
    Message,
    Reply,
    ToolCall,
)
from optimizer.search.synthesizers.llm.pace import DeadlinePassed, RateLimit, pause, within
from optimizer.search.synthesizers.llm.redact import Redaction
from optimizer.search.synthesizers.llm.settings import LlmSettings

GRACE_S = 5.0  # beyond the provider's own time-out, before the call is abandoned
MAX_TOLD = 400  # characters of a provider's message
RETRIED = frozenset({408, 409, 425, 429})
# Words by which providers that litellm does not know say that a prompt is too long.
OVERFLOWS = ("context_length_exceeded", "context length", "context window", "too many tokens")
NEVER_HELPS = ("insufficient_quota", "billing")


def load() -> Any:
    """The litellm module, set up not to fetch or print anything. Raises Unavailable."""
    # Without these it fetches a price list and reads a `.env` file of the working directory.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    try:
        litellm: Any = import_module("litellm")
    except ModuleNotFoundError as problem:
        raise Unavailable(
            "litellm is not installed, so no language model can be asked",
            hint="Install the extra: pip install 'kernlore[llm]'; or leave --models out.",
        ) from problem
    litellm.suppress_debug_info = True  # it prints to standard output, where JSON belongs
    return litellm


def price_known(model: str) -> bool:
    """Whether litellm's price list has the model; without it a limit in USD cannot hold."""
    litellm = load()
    try:
        litellm.cost_per_token(model=model, prompt_tokens=1, completion_tokens=1)
    except (litellm.exceptions.ModelNotMappedError, litellm.exceptions.BadRequestError):
        return False
    return True


class LitellmAsker:
    """One model. chance: of the spread between retries."""

    def __init__(
        self,
        model: str,
        settings: LlmSettings,
        limit: RateLimit,
        redact: Redaction,
        chance: random.Random,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._model, self._settings, self._limit = model, settings, limit
        self._redact, self._chance, self._sleep = redact, chance, sleep

    def ask(self, messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        attempt = 0
        while True:
            self._limit.wait()
            try:
                return self._once(messages, tools)
            except _Again as busy:
                told, asked = busy.told, busy.retry_after
                wait = pause(attempt, asked, self._chance)
            if wait is None:
                raise CallFailed(f"{told}; it says Retry-After: {asked}, which is too long")
            if attempt >= self._settings.retries:
                raise CallFailed(f"{told}; tried {attempt + 1} times")
            attempt += 1
            self._sleep(wait)

    def _once(self, messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        litellm = load()
        request = self._request(messages, tools)
        seconds = self._settings.timeout_s
        try:
            answer = within(seconds + GRACE_S, lambda: litellm.completion(**request))
            return self._reply(litellm, answer)
        except DeadlinePassed as late:
            raise _Again(str(late), None) from None
        except Exception as problem:
            # The boundary to a library that raises what each provider's answer happens to break;
            # every one of them becomes a recorded failure of this call. Its traceback may hold
            # the key, so it is not chained.
            raise self._sorted(problem) from None

    def _request(self, messages: Sequence[Message], tools: Sequence[Any]) -> dict[str, Any]:
        chosen = self._settings
        request: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": chosen.max_output_tokens,
            "timeout": chosen.timeout_s,
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": True,  # a model without a temperature is asked without one
            "temperature": chosen.temperature,
            "api_base": chosen.api_base,
            "api_key": chosen.api_key,
        }
        if tools:
            request["tools"] = list(tools)
            # Else this version imports the mcp package for every request with tools.
            request["_skip_mcp_handler"] = True
        return {name: value for name, value in request.items() if value is not None}

    def _reply(self, litellm: Any, answer: Any) -> Reply:
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
        return Reply(
            str(content),
            calls,
            str(choice.finish_reason or ""),
            tokens_in,
            tokens_out,
            self._usd(litellm, tokens_in, tokens_out, usage),
        )

    def _usd(self, litellm: Any, tokens_in: int, tokens_out: int, usage: Any) -> float | None:
        """None for a model without a price, and where the provider did not count."""
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

    def _sorted(self, problem: Exception) -> Exception:
        said = " ".join(self._redact.error(str(problem)).split())[:MAX_TOLD]
        told = f"{self._model}: {type(problem).__name__}: {said}"
        lower = said.lower()
        status = getattr(problem, "status_code", None)
        if type(problem).__name__ == "ContextWindowExceededError" or status == 413:
            return ContextOverflow(told)
        if status == 400 and any(word in lower for word in OVERFLOWS):
            return ContextOverflow(told)
        again = isinstance(status, int) and (status in RETRIED or status >= 500)
        if again and not any(word in lower for word in NEVER_HELPS):
            return _Again(told, _retry_after(problem))
        return CallFailed(told)


class _Again(Exception):
    """Busy or broken for now."""

    def __init__(self, told: str, retry_after: str | None) -> None:
        super().__init__(told)
        self.told, self.retry_after = told, retry_after


def _retry_after(problem: Exception) -> str | None:
    response = getattr(problem, "response", None)
    for headers in (
        getattr(response, "headers", None),
        getattr(problem, "litellm_response_headers", None),
        getattr(problem, "headers", None),
    ):
        found = headers.get("retry-after") if headers else None
        if found:
            return str(found)
    return None
