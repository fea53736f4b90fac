"""A language model as the curator's drafter. What it answers is checked by the curator."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kb.errors import Unavailable
from optimizer.search.synthesizers.llm.asker import (
    CallFailed,
    ContextOverflow,
    LitellmAsker,
    RateLimit,
    load,
)
from optimizer.search.synthesizers.llm.settings import LlmSettings, Redaction, models_from
from skills.curator.drafting.delta import Task

OUTPUT_TOKENS = 4_000


@dataclass(frozen=True)
class ModelDrafter:
    """A `skills.curator.drafting.delta.Drafter`. name: of the model, as litellm spells it."""

    name: str
    asker: LitellmAsker

    def propose(self, task: Task) -> str:
        """Raises Unavailable where the model cannot be asked: nothing is stored then."""
        messages = [
            {"role": "system", "content": task.system},
            {"role": "user", "content": task.message},
        ]
        try:
            return _bare(self.asker.ask(messages, ()).content)
        except (CallFailed, ContextOverflow) as problem:
            raise Unavailable(
                f"the drafter could not be asked: {problem}",
                hint="Check the model's name and key, or leave --model out: drafting needs none.",
            ) from problem


def model_drafter(name: str) -> ModelDrafter:
    """Raises Unavailable where litellm is not installed."""
    load()
    settings = LlmSettings(models_from(name), temperature=0.0, max_output_tokens=OUTPUT_TOKENS)
    chosen = settings.models[0].name
    limit = RateLimit(settings.requests_per_minute)
    return ModelDrafter(
        chosen, LitellmAsker(chosen, settings, limit, Redaction(), random.Random(0))
    )


def _bare(text: str) -> str:
    """Without the fence that models like to put around JSON."""
    lines = text.strip().splitlines()
    if len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return text.strip()
