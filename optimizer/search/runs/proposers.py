"""The built-in proposers of a run: those that its goal names, all that can be asked here, and those
that it leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kb.errors import InvalidRequest
from optimizer.search.bench.local import Place
from optimizer.search.goal import Goal
from optimizer.search.runs.knowledge import library_recipes
from optimizer.search.runs.samples import manual_samples
from optimizer.search.synthesizers.base import Synthesizer
from optimizer.search.synthesizers.recipe.samples import SampleSynthesizer
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer
from optimizer.search.untried import LeftOut
from retrieval.knowledge_base import KnowledgeBase

# The built-in synthesizers, and what each of them requires.
REQUIRES = {
    "recipe": "recipes of active skills",
    "sample": "code samples of an uploaded manual",
    "traced": "C++ for the CPU or Triton for a GPU: --language cpp or triton, or no --language",
    "compiler": "--language torch, or no --language",
}
BUILTIN = tuple(REQUIRES)


def builtin(base: KnowledgeBase, goal: Goal, places: dict[str, Place]) -> list[Synthesizer]:
    """The synthesizers that need no key: recipes, samples of manuals, torch's compiler.

    If the goal names some of them, only those. Raises InvalidRequest for one that is unavailable.
    """
    available = _available(base, goal, places)
    if not goal.synthesizers:
        return available
    chosen = [synthesizer for synthesizer in available if synthesizer.name in goal.synthesizers]
    named = set(goal.synthesizers) & set(BUILTIN)
    absent = sorted(named - {synthesizer.name for synthesizer in chosen})
    if absent:
        names = ", ".join(synthesizer.name for synthesizer in available)
        raise InvalidRequest(
            f"the {absent[0]} synthesizer is unavailable: it requires {REQUIRES[absent[0]]}",
            hint=f"Available here: {names}.",
        )
    return chosen


def _available(base: KnowledgeBase, goal: Goal, places: dict[str, Place]) -> list[Synthesizer]:
    wanted = [goal.language] if goal.language else list(places)
    proposers: list[Synthesizer] = []
    recipes = library_recipes(base)
    proposers.append(RecipeSynthesizer(recipes, [name for name in wanted if name in places]))
    samples = manual_samples(base, places) if goal.knowledge else []
    if samples:
        proposers.append(SampleSynthesizer(samples))
    # After recipes, which a person wrote for such problems.
    if any(name in wanted and name in places for name in ("cpp", "triton")):
        from optimizer.search.synthesizers.traced.synthesizer import TracedSynthesizer

        proposers.append(TracedSynthesizer())
    if "torch" in wanted:
        from optimizer.search.synthesizers.compiler.synthesizer import CompilerSynthesizer

        proposers.append(CompilerSynthesizer())
    return proposers


def left_out(
    base: KnowledgeBase, goal: Goal, places: dict[str, Place], asked: Sequence[Synthesizer]
) -> list[LeftOut]:
    """The built-in synthesizers that the goal leaves out although they could run here."""
    names = {synthesizer.name for synthesizer in asked}
    available = _available(base, replace(goal, language=None), places)
    left = []
    for synthesizer in (s for s in available if s.name not in names):
        if goal.synthesizers and synthesizer.name not in goal.synthesizers:
            left.append(LeftOut(synthesizer, "add it to --synthesizers"))
        elif goal.language is not None:
            left.append(LeftOut(synthesizer, "leave --language out"))
    return left
