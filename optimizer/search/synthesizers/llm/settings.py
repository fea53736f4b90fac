"""Settings of language models, and the redaction of their keys.

Standard library only. The budget in USD belongs to the run.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kb.errors import InvalidRequest
from retrieval.readers import reader_of
from retrieval.request import READERS

REMOVED = "[removed]"
_SECRET_NAME = re.compile(r"(_API_KEY|_TOKEN|_SECRET|_PASSWORD|_ACCESS_KEY|_CREDENTIALS)$")
_SECRET_FORM = re.compile(
    r"\b(?:sk|pk|rk|xai)-[A-Za-z0-9_*-]{12,}|\b(?:gsk|hf)_[A-Za-z0-9]{20,}"
    r"|\bAIza[A-Za-z0-9_-]{20,}|(?<=Bearer )[^\s\"',]+|(?<=://)[^/\s@]+:[^/\s@]+(?=@)"
)
# Keys in the row of a run, and the fields of ModelOptions.
_REMEMBERED = {
    "models": "models",
    "api_base": "api_base",
    "context_tokens": "context_tokens",
    "tools": "tools",
    "model_seconds": "timeout_s",
    "reader": "reader",
}
BY_NAME, FULL = "auto", "full"
READER_CHOICES = (BY_NAME, FULL, *READERS)  # of ModelOptions.reader
LEAST_GIVEN, LEAST_NAMED = 4, 12  # characters; shorter values would remove ordinary words


@dataclass(frozen=True)
class WeightedModel:
    """A model by litellm's name (`anthropic/...`, `openai/...`) and its relative weight, above 0.
    Raises InvalidRequest for any other weight."""

    name: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name or not 0 < self.weight < float("inf"):
            raise InvalidRequest(
                f"model {self.name!r} with weight {self.weight}",
                hint="Write model=weight with a weight above 0, as openai/gpt-4o=2.",
            )


@dataclass(frozen=True)
class LlmSettings:
    """Settings of the calls. Raises InvalidRequest for values out of range.

    `api_base` and `api_key`: None for litellm's environment variables. `context_tokens` bounds
    the retrieved knowledge in a prompt, and `reader` is the class of the models as its readers,
    None for the full context. `timeout_s` bounds a call. `retries` counts further tries
    while the provider is busy or broken. `tools` allows tool calls, in at most `tool_rounds`
    answers of a conversation. `repair_rounds` is how often a model gets its answer back with the
    error.
    """

    models: tuple[WeightedModel, ...]
    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)
    temperature: float | None = 0.7
    max_output_tokens: int = 16_384
    context_tokens: int = 48_000
    timeout_s: float = 300.0
    retries: int = 3
    requests_per_minute: float | None = None
    tools: bool = False
    tool_rounds: int = 4
    repair_rounds: int = 1
    reader: str | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise InvalidRequest("no model is named", hint="Give at least one litellm model name.")
        for name in ("max_output_tokens", "context_tokens", "timeout_s", "requests_per_minute"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidRequest(f"{name} is {value}", hint=f"Give a {name} above 0.")
        for name in ("retries", "tool_rounds", "repair_rounds"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}", hint="Give 0 or more.")


@dataclass(frozen=True)
class ModelOptions:
    """The language models of a search; `models` has the form `name=weight,name`, "" for none.

    `api_base` is the address of an OpenAI-compatible server. `context_tokens` bounds the retrieved
    knowledge in a prompt. `tools` allows tool calls (None: if litellm knows that all models take
    them). `timeout_s` bounds a call. `replay` is the id of a run whose stored transcripts answer
    instead of the models. `check` compares the names in a candidate with the chip's before it is
    compiled. `reader` is the class of the models as readers of knowledge, `auto` for that of their
    names, `full` for the full context. Raises InvalidRequest for another one.
    """

    models: str = ""
    api_base: str | None = None
    context_tokens: int = 48_000
    tools: bool | None = None
    timeout_s: float = 300.0
    replay: str | None = None
    check: bool = True
    reader: str = BY_NAME

    def __post_init__(self) -> None:
        if self.reader not in READER_CHOICES:
            raise InvalidRequest(
                f"reader is {self.reader!r}", hint=f"Use one of {', '.join(READER_CHOICES)}."
            )

    @property
    def reader_class(self) -> str | None:
        """The class of all models, None for the full context: where they differ, or where that of a
        model is unknown."""
        if self.reader != BY_NAME:
            return None if self.reader == FULL else self.reader
        classes = {reader_of(model.name) for model in models_from(self.models)}
        return classes.pop() if len(classes) == 1 else None

    def remembered(self, log: Callable[[str], None]) -> dict[str, Any]:
        """The options that a run stores, so that it can be resumed; {} without models. An address
        that holds a secret is left out, which is logged."""
        if not self.models:
            return {}
        address = self.api_base
        if address is not None and ("?" in address or Redaction().error(address) != address):
            log("the address of the models may hold a key and is not stored: give --api-base")
            address = None
        stored = {key: getattr(self, name) for key, name in _REMEMBERED.items()}
        return {**stored, "api_base": address}

    @classmethod
    def to_resume(
        cls,
        asked: Mapping[str, Any],
        models: str = "",
        api_base: str | None = None,
        model_seconds: float | None = None,
        context_tokens: int | None = None,
        reader: str | None = None,
    ) -> ModelOptions:
        """The options of a run that is resumed: those that it stored (`remembered`; {} for a run of
        an older version), replaced by those that are given now."""
        stored = {name: asked[key] for key, name in _REMEMBERED.items() if key in asked}
        given = {
            "models": models or None,
            "api_base": api_base,
            "timeout_s": model_seconds,
            "context_tokens": context_tokens,
            "reader": reader,
        }
        return cls(**{**stored, **{n: value for n, value in given.items() if value is not None}})


def models_from(text: str) -> tuple[WeightedModel, ...]:
    """Parse `a=2,b`: a with weight 2 and b with weight 1. Raises InvalidRequest."""
    return tuple(_model(part.strip()) for part in text.split(",") if part.strip())


def _model(text: str) -> WeightedModel:
    name, equals, weight = text.rpartition("=")
    if not equals:
        return WeightedModel(text)
    try:
        return WeightedModel(name.strip(), float(weight))
    except ValueError as problem:
        raise InvalidRequest(
            f"{weight!r} is no weight", hint="Write model=weight, as openai/gpt-4o=2."
        ) from problem


def drawn(models: Sequence[WeightedModel], seed: int, step: int, attempt: int) -> str:
    """The model for an attempt at a step, drawn by weight. `attempt` counts the earlier attempts;
    each draws again, so that a failing model among several does not end a run."""
    chance = random.Random(f"{seed}:{step}:model")
    names = [model.name for model in models]
    weights = [model.weight for model in models]
    return chance.choices(names, weights, k=attempt + 1)[attempt]


class Redaction:
    """Removes secrets from stored and shown texts: `secrets`, the keys in environment variables,
    and text that looks like a key. None and very short values are ignored."""

    def __init__(self, *secrets: str | None) -> None:
        named = [value for name, value in os.environ.items() if _SECRET_NAME.search(name)]
        known = {value for value in secrets if value and len(value) >= LEAST_GIVEN}
        known |= {value for value in named if len(value) >= LEAST_NAMED}
        self._known = sorted(known, key=len, reverse=True)

    def known(self, text: str) -> str:
        """The text without known secrets; for source code and answers, in which names may look
        like keys."""
        for secret in self._known:
            text = text.replace(secret, REMOVED)
        return text

    def error(self, text: str) -> str:
        """The text without known secrets and text that looks like a key, since providers quote keys
        in part."""
        return _SECRET_FORM.sub(REMOVED, self.known(text))
