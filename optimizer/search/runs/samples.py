"""Code samples of uploaded manuals in a search: which there are, and what a simulated run is
compared with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kb.catalog.knowledge.samples import StoredRecipe, list_recipes
from optimizer.search.bench.local import Place
from optimizer.search.bench.simulated import SimulatedBench, by_commands
from optimizer.search.confirm import FIRST_RIGHT
from optimizer.search.store import RunStore
from optimizer.search.synthesizers.base import HardwareView, ProblemView, Synthesizer
from optimizer.search.synthesizers.recipe.samples import ManualSample, SampleSynthesizer
from retrieval.knowledge_base import KnowledgeBase

AS_IT_STANDS = "the manual's sample as it stands"
CLOSE_TO_IT = "the manual's sample, as near to it as the limits allow"


def manual_samples(base: KnowledgeBase, places: Mapping[str, Place]) -> list[ManualSample]:
    """Samples of the chip's own manuals that nobody rejected, in languages whose toolchain is given
    by command templates.
    """
    languages = {name for name, place in places.items() if by_commands(place.toolchain)}
    if not languages:
        return []
    target = next(iter(places.values())).target
    with base.catalog.read() as connection:
        recipes = list_recipes(connection, target.lineage, statuses=("proposed", "accepted"))
    return [
        ManualSample(
            recipe.id,
            recipe.name,
            recipe.language,
            _source(recipe),
            recipe.body,
        )
        for recipe in recipes
        if recipe.language in languages
    ]


def _source(recipe: StoredRecipe) -> str:
    section = f'section "{recipe.section[-1]}" of ' if recipe.section else ""
    return f"{section}{recipe.document_title}"


def compared_with(
    bench: SimulatedBench,
    proposers: Iterable[Synthesizer],
    problem: ProblemView,
    hardware: HardwareView,
    store: RunStore,
    resume: str | None,
) -> str:
    """Set what the figures of the bench are relative to, and return that in words.

    It is the first sample of the manual if there is one that is correct, else the first correct
    candidate. `resume` is the id of a run to continue, whose first correct candidate counts.
    """
    samples = next((p for p in proposers if isinstance(p, SampleSynthesizer)), None)
    bench.first = samples.first(problem, hardware) if samples is not None else None
    if resume is not None:
        nodes = store.nodes(resume)
        right = next((n.evaluation for n in nodes if n.correct and n.evaluation is not None), None)
        if right is not None:
            bench.compare_with(right)
    if bench.first is None or not bench.reference().correct:
        return FIRST_RIGHT
    return AS_IT_STANDS if bench.first.plan.endswith("as it stands.") else CLOSE_TO_IT
