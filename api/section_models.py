"""What language models do with sections of manuals: propose cards, read them, draft others from
them. Connects `ingestion`, which knows no provider, with the search's client of language models,
which knows no documents, and with the sections that retrieval chooses.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestion.model_calls import SECONDS, CallLimits
from kb.errors import InvalidRequest, Unavailable
from optimizer.search.runs.models import check_keys
from optimizer.search.synthesizers.llm.client import (
    CallFailed,
    ChatReply,
    LitellmClient,
    RateLimit,
    load,
    price_known,
)
from optimizer.search.synthesizers.llm.settings import (
    LlmSettings,
    ModelOptions,
    Redaction,
    models_from,
)
from retrieval.diagnose.signals import load_signals
from retrieval.knowledge_base import KnowledgeBase
from retrieval.material import UNKNOWN, material_for

if TYPE_CHECKING:
    from ingestion.drafts import DraftReport
    from ingestion.readings import ReadingReport
    from ingestion.symbols.proposals import CardProposals

OUTPUT_TOKENS = 8_000


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


def section_model(names: str, api_base: str | None, seconds: float = SECONDS) -> SectionModel:
    """The model of `--models`. Raises InvalidRequest unless it is a single one with a key, and
    Unavailable without litellm."""
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
        timeout_s=seconds,
    )
    limit = RateLimit(settings.requests_per_minute)
    name = models[0].name
    return SectionModel(name, LitellmClient(name, settings, limit, Redaction(), random.Random(0)))


def propose_symbols(
    base: KnowledgeBase, hardware: str, model: SectionModel, most: int, say: Callable[[str], None]
) -> CardProposals:
    """Have a model propose cards for a chip; see `ingestion.symbols.proposals.propose_cards`. Its
    answers are stored in `transcripts/symbols` of the data directory."""
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


def limits_of(model: SectionModel, most: int, at_once: int, usd: float | None) -> CallLimits:
    """The limits of the calls. Raises InvalidRequest for a limit in USD without a known price."""
    if usd is not None and not price_known(model.name):
        raise InvalidRequest(
            f"the price of {model.name} is unknown, so no limit in USD can be kept",
            hint="Leave the limit in USD out, and bound the number of calls.",
        )
    return CallLimits(most, at_once, usd)


def read_sections(
    base: KnowledgeBase,
    hardware: str,
    model: SectionModel,
    limits: CallLimits,
    again: bool = False,
    say: Callable[[str], None] = lambda message: None,
) -> ReadingReport:
    """Have a model read a chip's sections; see `ingestion.readings.read_sections`."""
    from ingestion import readings
    from ingestion.readings import SignalText

    signals = [SignalText(s.id, s.title) for s in load_signals() if s.id != UNKNOWN]
    return readings.read_sections(
        base.catalog,
        base.registry,
        hardware,
        model,
        signals,
        limits,
        say=say,
        again=again,
        access_scope=base.access,
    )


def draft_sections(
    base: KnowledgeBase,
    hardware: str,
    model: SectionModel,
    limits: CallLimits,
    signals: Sequence[str] = (),
    again: bool = False,
    say: Callable[[str], None] = lambda message: None,
) -> DraftReport:
    """Have a model draft sections about signals of a chip; see `ingestion.drafts.draft_sections`.
    Signals with a decided draft are left out, unless `again`."""
    from ingestion.drafts import DraftReport, SignalMaterial, draft_sections
    from kb.catalog.knowledge import drafts, section_texts

    spec = base.registry.get(hardware)
    material = material_for(base, spec.id, signals)
    with base.catalog.read() as connection:
        sections = section_texts.sections_about(connection, spec.id, base.access)
        stored = drafts.listed(connection, spec.id, access_scope=base.access)
    by_id = {section.id: section for section in sections}
    decided = {d.signal for d in stored if d.status != "proposed" and not again}
    known = [
        SignalMaterial(
            signal,
            load_signals().get(signal).title,
            drafts.title_of(signal, spec.name),
            [by_id[section] for section in own if section in by_id],
        )
        for signal, own in material.sections.items()
        if signal not in decided
    ]
    report = DraftReport(
        spec.id,
        model.name,
        written=list(material.written),
        decided=sorted(decided & set(material.sections)),
        without_material=list(material.missing),
    )
    return draft_sections(base.catalog, spec, model, known, report, limits, say, base.access)
