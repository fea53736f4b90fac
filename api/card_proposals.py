"""Cards of symbols that a language model proposes: connects `ingestion.symbols.proposals`, which
knows no provider, with the search's client of language models, which knows no documents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kb.errors import InvalidRequest, Unavailable
from optimizer.search.runs.models import check_keys
from optimizer.search.synthesizers.llm.client import (
    CallFailed,
    ChatReply,
    LitellmClient,
    RateLimit,
    load,
)
from optimizer.search.synthesizers.llm.settings import (
    LlmSettings,
    ModelOptions,
    Redaction,
    models_from,
)
from retrieval.knowledge_base import KnowledgeBase

if TYPE_CHECKING:
    from ingestion.symbols.proposals import CardProposals

OUTPUT_TOKENS = 8_000
CALL_SECONDS = 300.0


@dataclass(frozen=True)
class SectionModel:
    """A language model by its litellm name. Failed calls raise KernloreError."""

    name: str
    asker: LitellmClient

    def ask(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any]) -> ChatReply:
        """The model's reply. Raises Unavailable for a failed call."""
        try:
            return self.asker.ask(messages, tools)
        except CallFailed as problem:
            raise Unavailable(
                f"the call of the model failed: {problem}",
                hint="Check its name, its key and --api-base. Run the same command again to go on:"
                " earlier answers are stored.",
            ) from problem


def section_model(names: str, api_base: str | None) -> SectionModel:
    """The model of `--models`. Raises InvalidRequest unless it is a single one with a key, and
    Unavailable without litellm.
    """
    models = models_from(names)
    if len(models) != 1:
        raise InvalidRequest(
            f"--models names {len(models)} models",
            hint="Give a single litellm model name, as openai/gpt-4o.",
        )
    load()
    check_keys(ModelOptions(names, api_base))
    settings = LlmSettings(
        models,
        api_base=api_base,
        temperature=0.0,
        max_output_tokens=OUTPUT_TOKENS,
        timeout_s=CALL_SECONDS,
    )
    limit = RateLimit(settings.requests_per_minute)
    name = models[0].name
    return SectionModel(name, LitellmClient(name, settings, limit, Redaction(), random.Random(0)))


def propose_symbols(
    base: KnowledgeBase,
    hardware: str,
    model: SectionModel,
    most: int,
    say: Callable[[str], None],
) -> CardProposals:
    """Have a model propose cards for a chip; see `ingestion.symbols.proposals.propose_cards`. Its
    answers are stored in `transcripts/symbols` of the data directory.
    """
    from ingestion.findings.scopes import template_languages
    from ingestion.symbols.proposals import propose_cards

    chip = base.registry.resolve(hardware)
    return propose_cards(
        base.catalog,
        base.registry,
        chip,
        model,
        model.name,
        languages=template_languages((chip,), base.registry.all()),
        transcripts=base.settings.data_dir / "transcripts" / "symbols",
        most=most,
        say=say,
    )
