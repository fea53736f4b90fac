"""What can be set about language models: which models, how often, how long, and with what tools;
and how their keys are kept out of what is stored.

Standard library only. The budget in USD is the run's, not theirs.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kb.errors import InvalidRequest

REMOVED = "[removed]"
_SECRET_NAME = re.compile(r"(_API_KEY|_TOKEN|_SECRET|_PASSWORD|_ACCESS_KEY|_CREDENTIALS)$")
_SECRET_FORM = re.compile(
    r"\b(?:sk|pk|rk|xai)-[A-Za-z0-9_*-]{12,}|\b(?:gsk|hf)_[A-Za-z0-9]{20,}"
    r"|\bAIza[A-Za-z0-9_-]{20,}|(?<=Bearer )[^\s\"',]+|(?<=://)[^/\s@]+:[^/\s@]+(?=@)"
)
LEAST_GIVEN, LEAST_NAMED = 4, 12  # characters; shorter values would take ordinary words out


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
    """How models are called. Raises InvalidRequest for values out of range.

    `context_tokens` bounds what the knowledge base packs into a prompt.

    `api_base` and `api_key` are None for litellm's usual environment variables. `timeout_s` bounds
    a call, in seconds. `retries` counts tries after the first, where the provider is busy or
    broken. `tools` says whether a model may call tools; `tool_rounds` is how many answers of a
    conversation may be tool calls. `repair_rounds` is how often a model gets its answer back with
    the error.
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
    """What a search says about its models beside their names: the address of an OpenAI-compatible
    server, the room for knowledge in a prompt, and whether models may call tools (None: those that
    litellm knows to take them), and the longest time of one call in seconds. `replay` is the id of
    a run whose stored transcripts answer in place of the models. `check` holds the names of a
    candidate against the chip's before it is compiled."""

    api_base: str | None = None
    context_tokens: int = 48_000
    tools: bool | None = None
    timeout_s: float = 300.0
    replay: str | None = None
    check: bool = True


def models_from(text: str) -> tuple[WeightedModel, ...]:
    """`a=2,b` -> a with weight 2 and b with weight 1. Raises InvalidRequest."""
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
    """The name of the model for an attempt at a step, drawn by weight.

    `attempt` counts the earlier attempts at this step; each attempt draws again, so that a dead
    model among several does not end a run.
    """
    chance = random.Random(f"{seed}:{step}:model")
    names = [model.name for model in models]
    weights = [model.weight for model in models]
    return chance.choices(names, weights, k=attempt + 1)[attempt]


class Redaction:
    """Takes secrets out of what is stored or shown: configured keys, and text that looks like a
    key.

    `secrets` are known beside those of the environment; None and very short values are ignored.
    """

    def __init__(self, *secrets: str | None) -> None:
        named = [value for name, value in os.environ.items() if _SECRET_NAME.search(name)]
        known = {value for value in secrets if value and len(value) >= LEAST_GIVEN}
        known |= {value for value in named if len(value) >= LEAST_NAMED}
        self._known = sorted(known, key=len, reverse=True)

    def known(self, text: str) -> str:
        """The text without the secrets of this process. For source code and answers, in which text
        that only looks like a key is a name."""
        for secret in self._known:
            text = text.replace(secret, REMOVED)
        return text

    def error(self, text: str) -> str:
        """The text without these secrets and without anything of their form: providers quote keys
        in part."""
        return _SECRET_FORM.sub(REMOVED, self.known(text))
