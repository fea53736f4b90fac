"""How it was done, in words, from the plan of the folder."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.skills.learning.plan import Plan

NUMBERS = (
    *("no", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
LANGUAGES = {"cpp": "C++", "triton": "Triton"}
DEVICES = {"cpu": "this CPU", "cuda": "a GPU"}


def count(number: int) -> str:
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def title(plan: Plan) -> str:
    return f"What a library learns from {count(len(plan.taught))} runs"


def method(plan: Plan, measured_on: Sequence[str], rounds: int = 1) -> list[str]:
    """measured_on: devices and toolchains of the evaluations, as they told it. rounds: of every
    point."""
    paragraphs = [_runs(plan), _spaces(plan, rounds), _arms(plan)]
    if not plan.documents:
        paragraphs.append(
            "The machine that measured had no embedding model: answers held moves, facts and skills"
            " without excerpts of documents, and the curator compared texts by their words alone."
        )
    if plan.device != "cpu":
        paragraphs.append(
            f"The evaluations were made on {', '.join(measured_on) or 'nothing yet'}; the line at"
            " the end is about the machine that wrote this page."
        )
    return paragraphs


def _runs(plan: Plan) -> str:
    taught = count(len(plan.taught))
    problems = "problem was" if len(plan.taught) == 1 else "problems were"
    return (
        f"{taught.capitalize()} shipped {problems} searched on {DEVICES[plan.device]} with the"
        f" {LANGUAGES[plan.language]} recipes of this version, {_candidates(plan.candidates)}"
        " each, by the product's loop and evaluator, into a library without learned"
        " skills. The product's curator judged each run without a language model; candidates that"
        " have a recipe or moves were tried by its ablation with a budget of"
        f" {_candidates(plan.budget)} a side, compared over the whole of it, and one that helps on"
        " some sizes and harms on others is narrowed and tried again; skills to avoid by forced"
        " trials: one search"
        " without the skill, whose best instance is measured with and without the change that the"
        " skill warns of, made on purpose. Both are on unseen cases and problems among the"
        f" {taught} alone."
    )


def _candidates(number: int) -> str:
    return f"{count(number)} candidate{'' if number == 1 else 's'}"


def _spaces(plan: Plan, rounds: int) -> str:
    often = "once" if rounds == 1 else f"in {count(rounds)} rounds, apart in time"
    return (
        f"Then small spaces were measured {often}: for `unseen`, one case of a problem that neither"
        f" its run nor a trial had, at most {plan.unseen_points} points with the recipe's defaults"
        " and the values of the run's best candidate among them (more where these alone span more);"
        f" for `others`, at most {plan.other_points} points of a problem that nobody learned from."
        " Points are the curated recipes'. A run of an arm goes through the real loop and recipe"
        " synthesizer over that table (best-first) and counts candidates until the lower bound of a"
        " speed-up is at least 95 % of the highest in the table, which is what the arm without"
        " knowledge can reach; a run that does not get there counts with the number of points."
        " Repeats of a point count."
    )


def _arms(plan: Plan) -> str:
    known = "facts, moves and documents" if plan.documents else "facts and moves"
    return (
        "`nothing` starts at a drawn point and knows neither facts nor moves; `curated` has"
        f" defaults, {known}; `curated + learned` also has the learned skills that are active, as"
        " the product's own answers show them; `all drafts, unverified` has every learned skill"
        " that was drafted, verified or not, offered first as the curator's trials do, where its"
        " precondition does not exclude it; `preconditions ignored` offers them everywhere. The"
        " last two are no state of the product. Intervals are 95 %, by a cluster bootstrap"
        " (problems, then seeds)."
    )
