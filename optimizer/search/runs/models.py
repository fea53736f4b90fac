"""Language models as proposers of a run, and the tools that they may call: look up names, search
the manuals, read whole sections, compile drafts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from kb.errors import InvalidRequest, NotFound
from kb.scope import ALL_ACCESS, ANY, ScopeFilter
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains.base import CompileCase
from optimizer.search.bench.local import TargetToolchain
from optimizer.search.goal import Goal
from optimizer.search.knowledge import ShownExcerpt
from optimizer.search.loop import Listener
from optimizer.search.runs.knowledge import excerpt_of
from optimizer.search.runs.run_store import run_store
from optimizer.search.synthesizers.base import HardwareView, ProblemView, Synthesizer
from optimizer.search.synthesizers.llm.settings import LlmSettings, ModelOptions, models_from
from retrieval.compose.cards import symbol_line
from retrieval.compose.sections import citation
from retrieval.compose.target import (
    Target,
    language_documents,
    of_language,
    texts_of,
    usable_symbols,
)
from retrieval.diagnose.log_digest import digest
from retrieval.knowledge_base import KnowledgeBase
from retrieval.layout import load_layout
from retrieval.request import RetrieveRequest
from retrieval.scope import own_toolchain
from retrieval.search.names import search_symbols, unknown_line, unknown_names
from retrieval.snapshot.snapshot import Snapshot

SYMBOLS = 6  # of one look-up
EXCERPTS = 5  # of one search
MAX_DRAFTS = 8  # compiled for one candidate
LOG_CHARS = 4_000


def check_keys(options: ModelOptions) -> None:
    """Raises InvalidRequest if the key of a model's provider is not set, before anything is
    measured for it."""
    from optimizer.search.synthesizers.llm.client import missing_keys

    if not options.models or options.replay is not None:
        return
    for model in models_from(options.models):
        if names := missing_keys(model.name):
            raise InvalidRequest(
                f"{model.name} needs a key, and {' or '.join(names)} is not set",
                hint=f"export {names[0]}=...; any text will do for a server of your own that"
                " needs none.",
            )


def language_models(
    base: KnowledgeBase, options: ModelOptions, goal: Goal, listener: Listener, tools: ModelTools
) -> Synthesizer:
    """The synthesizer that asks these models, or replays the transcripts of a run. Raises
    Unavailable without litellm."""
    from optimizer.search.synthesizers.llm.client import price_known, takes_tools
    from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, LlmSynthesizer

    named = models_from(options.models)
    with_tools = options.tools
    if with_tools is None:
        with_tools = options.replay is None and all(takes_tools(model.name) for model in named)
    settings = LlmSettings(
        named,
        api_base=options.api_base,
        context_tokens=options.context_tokens,
        tools=with_tools,
        timeout_s=options.timeout_s,
        reader=options.reader_class,
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
    """Whether cancelling the run was requested; False for a run that is not stored yet."""
    try:
        return run_store(base).cancelled(run)
    except NotFound:
        return False


class ModelTools:
    """The tools of one run (`conversation.Tools`)."""

    def __init__(
        self,
        base: KnowledgeBase,
        hardware: HardwareView,
        problem: ProblemView,
        places: Mapping[str, TargetToolchain],
    ) -> None:
        self._base = base
        self._hardware = hardware
        self._problem = problem
        self._places = places
        self._drafts: dict[int, int] = {}  # number of compiled drafts by step
        self._about: Mapping[str, float] | None = None
        self._embed = lru_cache(maxsize=4096)(base.embedder.encode_query)

    def lookup_symbol(self, name: str) -> Sequence[ShownExcerpt]:
        """The cards that fit a name or a few words, best first."""
        language = self._hardware.languages[0]
        snapshot = self._base.snapshots.current()
        cards = usable_symbols(snapshot, self._hardware.lineage, language, ALL_ACCESS)
        return [
            ShownExcerpt(
                card.id, f"{card.document_title}: {' > '.join(card.path)}", symbol_line(card)
            )
            for card in search_symbols(
                name, cards, self._embed if self._base.dense_ready else None, SYMBOLS
            )
        ]

    def unknown_names(self, source: str) -> str:
        """Lines with the names in a draft that the chip's documents do not define and the nearest
        defined names; always "" for a language that models know."""
        language = self._hardware.languages[0]
        if language in load_layout().known_languages:
            return ""
        snapshot = self._base.snapshots.current()
        about = self._about_language(snapshot)
        cards = usable_symbols(snapshot, self._hardware.lineage, language, ALL_ACCESS)
        cards = of_language(cards, about)
        texts = texts_of(snapshot, self._hardware.id, ALL_ACCESS, about)
        embed = self._embed if self._base.dense_ready else None
        return "\n".join(map(unknown_line, unknown_names(source, cards, embed, texts)))

    def _about_language(self, snapshot: Snapshot) -> Mapping[str, float]:
        """How much each document of the chip is about the language; empty for a chip without its
        own toolchain."""
        if self._about is None:
            language, lineage = self._hardware.languages[0], self._hardware.lineage
            specs = self._base.registry.all()
            own = own_toolchain(language, lineage, specs, load_layout())
            self._about = {}
            if own is not None:
                spec = specs[self._hardware.id]
                target = Target(spec, lineage, language, own[1], spec.id, None, ALL_ACCESS)
                scope = ScopeFilter((spec.id,), ("hardware",))
                self._about = language_documents(snapshot, target, scope)
        return self._about

    def search_manual(self, query: str) -> Sequence[ShownExcerpt]:
        """Excerpts of the manuals and guides that answer a query."""
        request = RetrieveRequest(
            query=query,
            hardware=self._hardware.id,
            language=self._hardware.languages[0],
            task="ask",
            k=EXCERPTS,
            max_tokens=1,
        )
        answer = self._base.retriever.retrieve(request)
        return list(map(excerpt_of, answer.excerpts))

    def read_section(self, id: str) -> ShownExcerpt:
        """The whole section that an excerpt was taken from. Raises NotFound."""
        snapshot = self._base.snapshots.current()
        scope = ScopeFilter((*self._hardware.lineage, ANY))
        found = snapshot.load(snapshot.numbers([id]).values(), scope)
        if not found:
            raise NotFound(
                f"no passage {id} about this hardware", hint="Take an id from search_manual."
            )
        [passage] = found.values()
        section = snapshot.sections([passage.section_id], scope)[passage.section_id]
        title = f"{passage.document_title}: {' > '.join(passage.path)}"
        return ShownExcerpt(id, title, section.text, citation(passage))

    def compile_draft(self, step: int, files: Mapping[str, str]) -> str:
        """The compiler's messages for a draft. Raises InvalidRequest for a draft without a file and
        once a step has compiled MAX_DRAFTS."""
        if self._drafts.get(step, 0) >= MAX_DRAFTS:
            raise InvalidRequest(
                f"{MAX_DRAFTS} drafts were compiled for this candidate", hint="Answer now."
            )
        self._drafts[step] = self._drafts.get(step, 0) + 1
        language = self._hardware.languages[0]
        place = self._places[language]
        if not files:
            raise InvalidRequest("the draft has no file", hint='Give files: {"name": "source"}.')
        main = next(iter(files))
        template = getattr(place.toolchain, "template", None)
        entry = getattr(template, "entry", "") or (
            "ModelNew" if main.endswith(".py") else "kernlore_run"
        )
        bundle = Bundle(dict(files), main, language, entry, origin="llm")
        cases = tuple(CompileCase(case.signature) for case in self._problem.cases)
        with tempfile.TemporaryDirectory(prefix="kernlore-draft-") as folder:
            compiled = place.toolchain.compile(bundle, place.target, Path(folder), cases)
        if compiled.ok:
            return ""
        return digest(compiled.log, LOG_CHARS) or "it does not compile, and nothing was printed"
