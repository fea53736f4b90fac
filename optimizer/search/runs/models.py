"""Language models as proposers of a run: what a search says about them becomes a synthesizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kb.errors import InvalidRequest, NotFound
from optimizer.search.goal import Goal
from optimizer.search.loop import Listener
from optimizer.search.runs.model_tools import ModelTools
from optimizer.search.runs.run_store import run_store
from optimizer.search.synthesizers.base import Synthesizer
from optimizer.search.synthesizers.llm.settings import (
    LlmSettings,
    ModelOptions,
    Redaction,
    models_from,
)
from retrieval.knowledge_base import KnowledgeBase


def check_keys(models: str, options: ModelOptions) -> None:
    """Raises InvalidRequest where a model's provider needs a key that is not set: to be known
    before anything is measured for it.
    """
    from optimizer.search.synthesizers.llm.asker import missing_keys

    if not models or options.replay is not None:
        return
    for model in models_from(models):
        if names := missing_keys(model.name):
            raise InvalidRequest(
                f"{model.name} needs a key, and {' or '.join(names)} is not set",
                hint=f"export {names[0]}=...; any text will do for a server of your own that"
                " asks for none.",
            )


def asked_models(models: str, options: ModelOptions, listener: Listener) -> dict[str, Any]:
    """What a run remembers of its language models, so that it can be continued: names, address,
    times and tools. An address that holds a secret is left out, and the log says so.
    """
    if not models:
        return {}
    address = options.api_base
    if address is not None and ("?" in address or Redaction().error(address) != address):
        listener.log("the address of the models may hold a key and is not stored: give --api-base")
        address = None
    return {
        "models": models,
        "api_base": address,
        "context_tokens": options.context_tokens,
        "tools": options.tools,
        "model_seconds": options.timeout_s,
    }


def models_to_go_on(
    asked: Mapping[str, Any],
    models: str = "",
    api_base: str | None = None,
    model_seconds: float | None = None,
    context_tokens: int | None = None,
) -> tuple[str, ModelOptions]:
    """The models of a run that is continued: what it remembers (`asked_models`), and in its place
    what is given now. A run of an older version remembers nothing.
    """
    options = ModelOptions()
    if asked:
        options = ModelOptions(
            asked["api_base"], asked["context_tokens"], asked["tools"], asked["model_seconds"]
        )
    if api_base is not None:
        options = replace(options, api_base=api_base)
    if model_seconds is not None:
        options = replace(options, timeout_s=model_seconds)
    if context_tokens is not None:
        options = replace(options, context_tokens=context_tokens)
    return models or str(asked.get("models", "")), options


def language_models(
    base: KnowledgeBase,
    models: str,
    options: ModelOptions,
    goal: Goal,
    listener: Listener,
    tools: ModelTools,
) -> Synthesizer:
    """The synthesizer that asks these models (`name=weight,name`), or replays the transcripts of a
    run. Raises Unavailable without litellm.
    """
    from optimizer.search.synthesizers.llm.asker import price_known, takes_tools
    from optimizer.search.synthesizers.llm.conversation import FolderTranscripts
    from optimizer.search.synthesizers.llm.synthesizer import LlmSynthesizer

    named = models_from(models)
    with_tools = options.tools
    if with_tools is None:
        with_tools = options.replay is None and all(takes_tools(model.name) for model in named)
    settings = LlmSettings(
        named,
        api_base=options.api_base,
        context_tokens=options.context_tokens,
        tools=with_tools,
        timeout_s=options.timeout_s,
    )
    for model in settings.models:
        if goal.usd is not None and not price_known(model.name):
            listener.log(f"{model.name} has no known price: --usd cannot count what it costs")
    return LlmSynthesizer(
        settings,
        FolderTranscripts(base.settings.data_dir / "transcripts"),
        tools=tools if with_tools else None,
        check=tools.unknown_names if options.check and goal.knowledge else None,
        replay=options.replay,
        asking=listener.asking,
        cancelled=lambda run: _cancelled(base, run),
    )


def _cancelled(base: KnowledgeBase, run: str) -> bool:
    """Whether a user asked for the end of the run; one that is not stored yet goes on."""
    try:
        return run_store(base).cancelled(run)
    except NotFound:
        return False
