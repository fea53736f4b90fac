"""What a vector variable that is narrower or wider than the registers costs on this CPU.

Every shipped C++ recipe whose parameter `lanes` counts floats is built with its defaults but that
one, for the first shipped problem that it fits, and timed by the product's evaluator against the
reference on that problem's `main` case, one thread. Facts of the chip are not used: they would
leave out the widths that this is about.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.report import ended, say, table, write_result
from kb.hardware.checks import Problems
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.problem.load import SHIPPED, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.timing.measure import TimingPolicy
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.cpp import CppToolchain
from optimizer.search.bench.local import problem_view
from optimizer.search.synthesizers.recipe.recipe import Recipe, instantiate, parse_recipe
from optimizer.search.synthesizers.recipe.synthesizer import Fitting, fit
from skills.format.skillfile import read_skill, skill_folders

TITLE = "Vectors narrower and wider than the registers"
LIBRARY = Path(__file__).parents[2] / "skills" / "library"
WIDTHS = (4, 8, 16)
CASE = "main"
# The share of time in which threads wait for a processor bounds nothing: pairs are alternated.
TIMING = TimingPolicy(block_ms=5.0, min_pairs=6, max_pairs=6, quiet=1e6)


def recipes() -> Iterator[Recipe]:
    """The shipped recipes in C++ that choose how many floats a vector has."""
    for folder in skill_folders(LIBRARY):
        files = {path: data.decode() for path, data in read_skill(folder).files.items()}
        raw = json.loads(files.get("references/recipe.json", "{}"))
        if raw.get("language") != "cpp":
            continue
        problems = Problems(folder.name)
        recipe = parse_recipe(folder.name, raw, files, problems)
        problems.raise_if_any()
        lanes = [p for p in recipe.parameters if p.name == "lanes"] if recipe else []
        if recipe and any(set(WIDTHS) <= set(parameter.values) for parameter in lanes):
            yield recipe


def fitted(recipe: Recipe, problems: Sequence[Problem]) -> tuple[Problem, Fitting] | None:
    """The first problem that the recipe fits, without facts."""
    for problem in problems:
        fitting = fit(recipe, problem_view(problem, "cpu"), {})
        if fitting is not None:
            return problem, fitting
    return None


def evaluations(problem: Problem, fitting: Fitting) -> list[Evaluation]:
    """One for each width, defaults otherwise."""
    recipe, toolchain = fitting.recipe, CppToolchain()
    cases = [case for case in problem.searched if case.name == CASE]
    target = EvaluationTarget("x86-64", ("x86-64",), None, "cpu")
    with Evaluator(problem, target, EvaluationSettings(threads=1, timing=TIMING)) as evaluator:
        bundles = [
            instantiate(
                recipe, {**recipe.defaults, "lanes": width}, fitting.binding, problem.source
            )
            for width in WIDTHS
        ]
        return [evaluator.evaluate(bundle, toolchain, cases) for bundle in bundles]


def shown(evaluation: Evaluation) -> str:
    """The speed-up over the reference with its interval, or how far the evaluation came."""
    gain = evaluation.speedup
    if gain is None:
        return f"{evaluation.validity}: {evaluation.message}"
    return f"{gain.value:.2f} [{gain.low:.2f}, {gain.high:.2f}]"


def main(output: Path | None) -> None:
    """Measure all recipes and write the table."""
    problems = [load_problem(SHIPPED / name) for name in shipped_problems()]
    rows = []
    for recipe in recipes():
        found = fitted(recipe, problems)
        if found is None:
            continue
        problem, fitting = found
        rows.append([recipe.name, problem.name, *map(shown, evaluations(problem, fitting))])
        say(" | ".join(rows[-1]))
    header = ["recipe", "problem", *(f"{width} floats" for width in WIDTHS)]
    note = (
        "Speed-up over the eager reference with its 95 per cent interval, one thread, the recipe's"
        " defaults but the width. What was rejected was rejected for its timing, not its values."
    )
    command = "Command: `python -m benchmarks.skills.vector_width --output FILE`"
    write_result(output, TITLE, [note, table(header, rows), command])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=None)
    ended(lambda: main(parser.parse_args().output))
