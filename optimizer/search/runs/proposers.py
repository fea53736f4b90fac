"""The built-in proposers of a run: those that its goal names, or all that can run here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kb.catalog.knowledge.samples import StoredRecipe, list_recipes
from kb.errors import InvalidRequest
from optimizer.search.bench.local import TargetToolchain
from optimizer.search.bench.simulated import SimulatedBench, by_commands
from optimizer.search.confirm import FIRST_RIGHT
from optimizer.search.goal import Goal
from optimizer.search.loop import UnusedProposer
from optimizer.search.runs.knowledge import library_recipes
from optimizer.search.store import RunStore
from optimizer.search.synthesizers.base import HardwareView, ProblemView, Synthesizer
from optimizer.search.synthesizers.recipe.samples import ManualSample, SampleSynthesizer
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer
from retrieval.knowledge_base import KnowledgeBase

# The built-in synthesizers with their requirements.
REQUIRES = {
    "recipe": "recipes of active skills",
    "sample": "code samples of an uploaded manual",
    "traced": "C++ for the CPU or Triton for a GPU: --language cpp or triton, or no --language",
    "compiler": "--language torch, or no --language",
}
AS_IT_STANDS = "the manual's sample as it stands"
CLOSE_TO_IT = "the manual's sample, as near to it as the limits allow"


def builtin(
    base: KnowledgeBase, goal: Goal, places: dict[str, TargetToolchain]
) -> list[Synthesizer]:
    """The built-in synthesizers, or those of them that the goal names. Raises InvalidRequest for
    one that is unavailable."""
    available = _available(base, goal, places)
    if not goal.synthesizers:
        return available
    chosen = [synthesizer for synthesizer in available if synthesizer.name in goal.synthesizers]
    named = set(goal.synthesizers) & set(REQUIRES)
    absent = sorted(named - {synthesizer.name for synthesizer in chosen})
    if absent:
        names = ", ".join(synthesizer.name for synthesizer in available)
        raise InvalidRequest(
            f"the {absent[0]} synthesizer is unavailable: it requires {REQUIRES[absent[0]]}",
            hint=f"Available here: {names}.",
        )
    return chosen


def _available(
    base: KnowledgeBase, goal: Goal, places: dict[str, TargetToolchain]
) -> list[Synthesizer]:
    wanted = [goal.language] if goal.language else list(places)
    proposers: list[Synthesizer] = []
    recipes = library_recipes(base)
    proposers.append(RecipeSynthesizer(recipes, [name for name in wanted if name in places]))
    samples = manual_samples(base, places) if goal.knowledge else []
    if samples:
        proposers.append(SampleSynthesizer(samples))
    # After recipes, which were written for such problems.
    if any(name in wanted and name in places for name in ("cpp", "triton")):
        from optimizer.search.synthesizers.traced.synthesizer import TracedSynthesizer

        proposers.append(TracedSynthesizer())
    if "torch" in wanted:
        from optimizer.search.synthesizers.compiler.synthesizer import CompilerSynthesizer

        proposers.append(CompilerSynthesizer())
    return proposers


def left_out(
    base: KnowledgeBase,
    goal: Goal,
    places: dict[str, TargetToolchain],
    chosen: Sequence[Synthesizer],
) -> list[UnusedProposer]:
    """Built-in synthesizers that could run here but that the goal leaves out."""
    names = {synthesizer.name for synthesizer in chosen}
    available = _available(base, replace(goal, language=None), places)
    left = []
    for synthesizer in (s for s in available if s.name not in names):
        if goal.synthesizers and synthesizer.name not in goal.synthesizers:
            left.append(UnusedProposer(synthesizer, "add it to --synthesizers"))
        elif goal.language is not None:
            left.append(UnusedProposer(synthesizer, "leave --language out"))
    return left


def manual_samples(
    base: KnowledgeBase, places: Mapping[str, TargetToolchain]
) -> list[ManualSample]:
    """Samples of the chip's own manuals, without rejected ones, in the languages that command
    templates run."""
    languages = {name for name, place in places.items() if by_commands(place.toolchain)}
    if not languages:
        return []
    target = next(iter(places.values())).target
    with base.catalog.read() as connection:
        recipes = list_recipes(connection, target.lineage, statuses=("proposed", "accepted"))
    return [
        ManualSample(recipe.id, recipe.name, recipe.language, _source(recipe), recipe.body)
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
    """Set the baseline of the bench and return it in words: the first sample of the manual if that
    is correct, else the first correct candidate, also of the run `resume` that is continued."""
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
