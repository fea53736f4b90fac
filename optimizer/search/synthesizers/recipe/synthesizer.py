"""Proposes instances of recipes: defaults first, then changes of one value. A stored winner of
another problem becomes an instance too.

With knowledge, facts prune the domains and the moves that fit the parent's verdict say which value
to change; without, or when moves are used up, neighbours are tried (coordinate descent) and then
what is left of the space, in an order drawn from the seed. What changes brought in this run decides
which of them come first (see `steps`). What a skill says to avoid comes last of all, unless it has
just won in this run: nothing is out of reach.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from optimizer.evaluation.abi import ITEM_BYTES
from optimizer.search.knowledge import Move
from optimizer.search.records import REFERENCE, Node, Proposal
from optimizer.search.synthesizers.base import ProblemView, ProposalContext
from optimizer.search.synthesizers.recipe.recipe import (
    Binding,
    Parameter,
    Recipe,
    RecipeMismatch,
    Value,
    allowed,
    instantiate,
    match,
    space,
)
from optimizer.search.synthesizers.recipe.steps import (
    Knob,
    StepRecord,
    avoided,
    does,
    record_of,
    step_between,
)

Values = Mapping[str, Value]
NAME = "recipe"


@dataclass(frozen=True)
class Fitting:
    """A recipe that fits the problem; `cases` names the cases that it claims."""

    recipe: Recipe
    binding: Binding
    cases: tuple[str, ...]


@dataclass(frozen=True)
class ValueChoice:
    """Values and why they were chosen. `attributed` are ids of the moves behind them; `applies` is
    None where the move's predicate could not be decided."""

    values: Values
    plan: str
    attributed: tuple[str, ...] = ()
    applies: bool | None = None


class RecipeSynthesizer:
    """Proposes instances of a fixed set of recipes."""

    name = NAME
    first_tries = 3

    def __init__(self, recipes: Sequence[Recipe], languages: Sequence[str]) -> None:
        """`languages` are those that can be built here; recipes in others are left out."""
        self._recipes = [recipe for recipe in recipes if recipe.language in languages]
        self._fitting: dict[str, list[Fitting]] = {}

    def fitting(self, context: ProposalContext) -> list[Fitting]:
        """Recipes that fit the problem's first timed case, in the order in which they are tried."""
        key = f"{context.problem.name} {context.with_knowledge}"
        if key not in self._fitting:
            facts = _facts(context)
            candidates = (fit(recipe, context.problem, facts) for recipe in self._recipes)
            self._fitting[key] = [fitting for fitting in candidates if fitting is not None]
        return self._fitting[key]

    def roles(self, problem: ProblemView) -> tuple[str, ...]:
        """The roles of the parameters of every recipe that fits, whatever the facts allow."""
        fitting = [recipe for recipe in self._recipes if fit(recipe, problem, {}) is not None]
        return tuple(sorted({p.role for recipe in fitting for p in recipe.parameters}))

    def propose(self, context: ProposalContext) -> Proposal | None:
        """The next instance: defaults of a recipe from the reference, else a change of the parent's
        values that was not tried yet. None when nothing is left or the parent is no instance."""
        facts = _facts(context)
        if context.parent.number == REFERENCE:
            return self._first(context, facts)
        parent = context.parent.proposal
        if parent is None or parent.recipe is None:
            return None
        fitting = next((f for f in self.fitting(context) if f.recipe.name == parent.recipe), None)
        if fitting is None:
            return None
        tried = _tried(context.tried, parent.recipe)
        for choice in _changes(context, fitting, parent.values, facts):
            if _frozen(choice.values) not in tried:
                return _proposal(context, fitting, choice)
        return None

    def _first(self, context: ProposalContext, facts: Values) -> Proposal | None:
        """The default of the next recipe that was not tried yet."""
        order = _order(self.fitting(context), context)
        for fitting in order:
            if not _tried(context.tried, fitting.recipe.name):
                values = start(fitting, facts)
                if values is not None:
                    plan = f"Start from recipe {fitting.recipe.name} with its defaults."
                    attributed = (fitting.recipe.name,)
                    return _proposal(context, fitting, ValueChoice(values, plan, attributed))
        return None


def fit(recipe: Recipe, problem: ProblemView, facts: Values) -> Fitting | None:
    """The recipe bound to the problem's first timed case, claiming every case that it fits with the
    same traits in its text; None where it does not fit."""
    main = problem.main
    binding = match(recipe, main.signature, main.traits, facts, problem.op, main.kinds)
    if isinstance(binding, RecipeMismatch):
        return None
    written = recipe.written_traits
    claimed = []
    for case in problem.cases:
        bound = match(recipe, case.signature, case.traits, facts, problem.op, case.kinds)
        if isinstance(bound, RecipeMismatch):
            continue
        if all(bound.traits[name] == binding.traits[name] for name in written):
            claimed.append(case.name)
    return Fitting(recipe, binding, tuple(claimed))


def start(fitting: Fitting, facts: Values) -> Values | None:
    """The values to start from: the defaults, or the allowed values that differ from them in the
    fewest places and there by the fewest steps; None where nothing is allowed."""
    recipe, binding = fitting.recipe, fitting.binding
    if allowed(recipe, recipe.defaults, binding, facts):
        return recipe.defaults
    near = space(recipe, binding, facts)
    return min(near, key=lambda values: _distance(recipe, values), default=None)


def _distance(recipe: Recipe, values: Values) -> tuple[int, int]:
    """How many values are not the default, and how many steps they are from it together."""
    steps = [
        abs(p.values.index(values[p.name]) - p.values.index(p.default)) for p in recipe.parameters
    ]
    return sum(step > 0 for step in steps), sum(steps)


def _facts(context: ProposalContext) -> Values:
    """Knowledge of the chip; nothing where the run is to do without."""
    return context.hardware.facts if context.with_knowledge else {}


def _order(fitting: Sequence[Fitting], context: ProposalContext) -> list[Fitting]:
    """Recipes of skills that were retrieved for this verdict first, then the others by name."""
    shown = [skill.name for skill in context.knowledge.skills]

    def place(fitting_recipe: Fitting) -> tuple[int, str]:
        name = fitting_recipe.recipe.name
        return (shown.index(name) if name in shown else len(shown), name)

    return sorted(fitting, key=place)


def _changes(
    context: ProposalContext, fitting: Fitting, values: Values, facts: Values
) -> Iterator[ValueChoice]:
    """Allowed choices that may follow these values, the best-founded first, those to be avoided
    last."""
    recipe = fitting.recipe
    record = record_of(recipe, context.tried)
    against = _against(context)
    waiting: list[ValueChoice] = []
    for choice in _in_turn(context, fitting, values, facts, record):
        warnings = [id_ for id_, knobs in against if does(recipe, values, choice.values, knobs)]
        if warnings and not record.has_won(step_between(recipe, values, choice.values)):
            warned = f"{choice.plan} Tried last: {', '.join(warnings)} says to avoid it."
            waiting.append(replace(choice, plan=warned))
        else:
            yield choice
    yield from waiting


def _against(context: ProposalContext) -> list[tuple[str, tuple[Knob, ...]]]:
    """The knobs to be avoided here, with the id of the move that warns. A warning makes no
    candidate, so no proposal is attributed to it; that it was shown is kept with the node."""
    holding = [r for r in context.knowledge.moves if r.applies is not False]
    return [(r.id, knobs) for r in holding if (knobs := avoided(r))]


def _in_turn(
    context: ProposalContext, fitting: Fitting, values: Values, facts: Values, record: StepRecord
) -> Iterator[ValueChoice]:
    """Allowed choices that may follow these values, the best-founded first."""
    recipe, binding = fitting.recipe, fitting.binding

    def rank(choice: ValueChoice) -> int:
        step = step_between(recipe, values, choice.values)
        return record.rank(step, choice.attributed, choice.applies)

    for choice in sorted(_all_changes(context, recipe, values), key=rank):
        if allowed(recipe, choice.values, binding, facts):
            yield choice
    rest = list(space(recipe, binding, facts))
    random.Random(f"{context.seed}:{recipe.name}").shuffle(rest)
    for other in rest:
        yield ValueChoice(other, "Try another point of the recipe's space.")


def _all_changes(context: ProposalContext, recipe: Recipe, values: Values) -> Iterator[ValueChoice]:
    for move in context.knowledge.moves:
        if move.applies is not False:
            yield from _by_move(context, recipe, values, move)
    chance = random.Random(f"{context.seed}:{context.parent.number}")
    parameters = list(recipe.parameters)
    chance.shuffle(parameters)
    for step in (1, -1):
        for parameter in parameters:
            value = stepped(parameter, values[parameter.name], step)
            if value is not None:
                plan = f"Change {parameter.name} from {values[parameter.name]} to {value}."
                yield ValueChoice({**values, parameter.name: value}, plan)


def _by_move(
    context: ProposalContext, recipe: Recipe, values: Values, move: Move
) -> Iterator[ValueChoice]:
    """Every parameter of the move's role, changed as the move says. A limit known of this very chip
    overrides the limit known of its family."""
    limit = _facts(context).get(move.limit_name or "")
    if isinstance(limit, int | float):
        move = replace(move, limit=float(limit))
    element_bytes = ITEM_BYTES.get(context.problem.main.dtype or "")
    for parameter in recipe.parameters:
        if parameter.role != move.change.get("role"):
            continue
        value = moved(parameter, values[parameter.name], move, element_bytes)
        if value is not None:
            plan = f"{move.name}: {parameter.name} from {values[parameter.name]} to {value}."
            chosen = {**values, parameter.name: value}
            yield ValueChoice(chosen, f"{plan} {move.why}", (move.id,), move.applies)


def moved(
    parameter: Parameter, value: Value, move: Move, element_bytes: int | None = None
) -> Value | None:
    """The value that a move asks for; None where the domain has none or the limit forbids it.

    `element_bytes` is the size of one element of the problem's type, None where it is not known.
    """
    direction = move.change.get("direction")
    if direction in ("increase", "add"):
        changed = stepped(parameter, value, 1)
    elif direction in ("decrease", "remove"):
        changed = stepped(parameter, value, -1)
    elif direction == "set":
        to = move.change.get("to")
        changed = next((v for v in parameter.values if str(v) == str(to) and v != value), None)
    else:
        others = [v for v in parameter.values if v != value]
        changed = others[0] if others else None
    if direction == "increase" and isinstance(changed, int | float) and move.limit is not None:
        size = in_unit(changed, parameter.unit, move.limit_unit, element_bytes)
        if size is not None and size > move.limit:
            return None
    return changed


def in_unit(value: float, unit: str, wanted: str | None, element_bytes: int | None) -> float | None:
    """A parameter's value in the unit of a limit; None where the two cannot be compared: lanes are
    not registers, and a tile's side is not a size."""
    if not unit or wanted is None:
        return None
    if unit == wanted:
        return value
    if unit == "elements" and element_bytes and wanted in ("B", "bit"):
        return value * element_bytes * (8 if wanted == "bit" else 1)
    return None


def stepped(parameter: Parameter, value: Value, step: int) -> Value | None:
    """The value `step` places on in the domain's order; None at its end."""
    if value not in parameter.values:
        return None
    place = parameter.values.index(value) + step
    return parameter.values[place] if 0 <= place < len(parameter.values) else None


def _tried(nodes: Sequence[Node], recipe: str) -> set[tuple[tuple[str, Value], ...]]:
    return {
        _frozen(node.proposal.values)
        for node in nodes
        if node.proposal is not None and node.proposal.recipe == recipe
    }


def _frozen(values: Values) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(values.items()))


def _proposal(context: ProposalContext, fitting: Fitting, choice: ValueChoice) -> Proposal:
    recipe = fitting.recipe
    return Proposal(
        bundle=instantiate(recipe, choice.values, fitting.binding, context.problem.source),
        synthesizer=NAME,
        parent=context.parent.number,
        plan=choice.plan,
        recipe=recipe.name,
        values=dict(choice.values),
        attributed=choice.attributed,
        cases=fitting.cases,
    )


def adapt_winner(
    winner: Proposal,
    problem: ProblemView,
    recipes: Mapping[str, Recipe],
    facts: Mapping[str, Value],
    *,
    same_problem: bool,
) -> Proposal | None:
    """A stored winner as a candidate for this problem; None where it does not fit.

    An instance of a recipe is made anew with the winner's values, as its source may hold constants
    of the other problem. Any other kernel does not say what it fits, so it is used only where it
    won on this very problem (`same_problem`). `recipes` are those of the library, by name.
    """
    recipe = recipes.get(winner.recipe or "")
    if recipe is None:
        dtype = problem.main.dtype
        cases = tuple(case.name for case in problem.cases if case.dtype == dtype)
        return replace(winner, cases=cases) if same_problem else None
    fitting = fit(recipe, problem, facts)
    domains = {p.name: p.values for p in recipe.parameters}
    known = winner.values.keys() == domains.keys() and all(
        value in domains[name] for name, value in winner.values.items()
    )
    if fitting is None or not known or not allowed(recipe, winner.values, fitting.binding, facts):
        return None
    bundle = instantiate(recipe, winner.values, fitting.binding, problem.source)
    return replace(winner, bundle=bundle, cases=fitting.cases)
