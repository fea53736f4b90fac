"""Proposes instances of recipes: defaults first, then changes of one value. A stored winner of
another problem is adapted to an instance too.

With knowledge, facts prune the domains and moves that fit the parent's verdict choose the value to
change; then neighbours are tried (coordinate descent), then the rest of the space in an order drawn
from the seed. A step that has just won is repeated in its direction before anything else, as in the
pattern moves of Hooke and Jeeves (Direct search solution of numerical and statistical problems,
JACM 8, 1961); a step that has just lost waits. Changes that a skill warns of come last, unless they
have just won in this run.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kb.hardware.table_reader import Problems
from kb.problem_terms import direction_of
from optimizer.evaluation.abi import ITEM_BYTES, TensorSpec
from optimizer.search.knowledge import ShownMove
from optimizer.search.records import REFERENCE, Node, Proposal, Value
from optimizer.search.synthesizers.base import HardwareView, ProblemView, ProposalContext
from optimizer.search.synthesizers.recipe.recipe import (
    PLACEHOLDER,
    ROLE_OF,
    Binding,
    Parameter,
    Recipe,
    RecipeMismatch,
    allowed,
    instantiate,
    match,
    parse_recipe,
    space,
)

Values = Mapping[str, Value]
NAME = "recipe"
# Other directions do not determine a step.
DIRECTIONS = ("increase", "decrease", "add", "remove")
AVOID = "avoid"  # key of a move's change


@dataclass(frozen=True)
class Fitting:
    """A recipe that fits the problem, and the cases that it claims."""

    recipe: Recipe
    binding: Binding
    cases: tuple[str, ...]


@dataclass(frozen=True)
class ValueChoice:
    """Values with the plan of their choice. `attributed` are ids of the moves behind it; `applies`:
    None if the move's predicate could not be decided."""

    values: Values
    plan: str
    attributed: tuple[str, ...] = ()
    applies: bool | None = None


class RecipeSynthesizer:
    """Proposes instances of a fixed set of recipes."""

    name = NAME
    first_tries = 3

    def __init__(self, recipes: Sequence[Recipe], languages: Sequence[str]) -> None:
        """`languages` can be built here; recipes in others are left out."""
        self._recipes = [recipe for recipe in recipes if recipe.language in languages]
        self._fitting: dict[str, list[Fitting]] = {}

    def fitting(self, context: ProposalContext) -> list[Fitting]:
        """Recipes that fit the problem's first timed case."""
        key = f"{context.problem.name} {context.with_knowledge}"
        if key not in self._fitting:
            facts = _facts(context)
            candidates = (fit(recipe, context.problem, facts) for recipe in self._recipes)
            self._fitting[key] = [fitting for fitting in candidates if fitting is not None]
        return self._fitting[key]

    def roles(self, problem: ProblemView) -> tuple[str, ...]:
        """The roles of the parameters of every recipe that fits without facts."""
        fitting = [recipe for recipe in self._recipes if fit(recipe, problem, {}) is not None]
        return tuple(sorted({p.role for recipe in fitting for p in recipe.parameters}))

    def propose(self, context: ProposalContext) -> Proposal | None:
        """The next instance: the defaults of a recipe from the reference, else an untried change of
        the parent's values. None if nothing is left or the parent is no instance."""
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
            if _key(choice.values) not in tried:
                return _proposal(context, fitting, choice)
        return None

    def _first(self, context: ProposalContext, facts: Values) -> Proposal | None:
        """The start of the next untried recipe."""
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
    """The recipe bound to the problem's first timed case; it claims every case that it fits with
    equal traits in its text. None if it does not fit."""
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
    """The values to start from: the defaults, or the nearest allowed values, if any."""
    recipe, binding = fitting.recipe, fitting.binding
    if allowed(recipe, recipe.defaults, binding, facts):
        return recipe.defaults
    near = space(recipe, binding, facts)
    return min(near, key=lambda values: _distance(recipe, values), default=None)


def _distance(recipe: Recipe, values: Values) -> tuple[int, int]:
    """Number of values that are not the default, and the sum of their steps from it."""
    steps = [
        abs(p.values.index(values[p.name]) - p.values.index(p.default)) for p in recipe.parameters
    ]
    return sum(step > 0 for step in steps), sum(steps)


def _facts(context: ProposalContext) -> Values:
    """Facts of the chip, if the run uses knowledge."""
    return context.hardware.facts if context.with_knowledge else {}


def _order(fitting: Sequence[Fitting], context: ProposalContext) -> list[Fitting]:
    """Recipes of retrieved skills first, then the others by name."""
    shown = [skill.name for skill in context.knowledge.skills]

    def place(fitting_recipe: Fitting) -> tuple[int, str]:
        name = fitting_recipe.recipe.name
        return (shown.index(name) if name in shown else len(shown), name)

    return sorted(fitting, key=place)


def _changes(
    context: ProposalContext, fitting: Fitting, values: Values, facts: Values
) -> Iterator[ValueChoice]:
    """Allowed choices from these values in the order in which to try them, warned ones last."""
    recipe = fitting.recipe
    record = record_of(recipe, context.tried)
    warned_of = _warnings(context)
    waiting: list[ValueChoice] = []
    for choice in _in_turn(context, fitting, values, facts, record):
        warnings = [id_ for id_, knobs in warned_of if does(recipe, values, choice.values, knobs)]
        if warnings and not record.has_won(step_between(recipe, values, choice.values)):
            warned = f"{choice.plan} Tried last: {', '.join(warnings)} says to avoid it."
            waiting.append(replace(choice, plan=warned))
        else:
            yield choice
    yield from waiting


def _warnings(context: ProposalContext) -> list[tuple[str, tuple[Knob, ...]]]:
    """Ids of the warning moves, with the knobs to avoid. A warning makes no candidate, so no
    proposal is attributed to it; the node records that it was shown."""
    holding = [r for r in context.knowledge.moves if r.applies is not False]
    return [(r.id, knobs) for r in holding if (knobs := avoided(r))]


def _in_turn(
    context: ProposalContext, fitting: Fitting, values: Values, facts: Values, record: StepRecord
) -> Iterator[ValueChoice]:
    """Allowed choices from these values, ranked by the record of the run."""
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
    context: ProposalContext, recipe: Recipe, values: Values, move: ShownMove
) -> Iterator[ValueChoice]:
    """Choices that change each parameter of the move's role. A limit of this chip overrides that of
    its family."""
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
    parameter: Parameter, value: Value, move: ShownMove, element_bytes: int | None = None
) -> Value | None:
    """The value after a move; None if the domain has none or the limit forbids it. `element_bytes`
    is the size of an element of the problem's type, if known."""
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
    """A parameter's value in the unit of a limit; None if they cannot be compared, such as lanes
    and registers."""
    if not unit or wanted is None:
        return None
    if unit == wanted:
        return value
    if unit == "elements" and element_bytes and wanted in ("B", "bit"):
        return value * element_bytes * (8 if wanted == "bit" else 1)
    return None


def stepped(parameter: Parameter, value: Value, step: int) -> Value | None:
    """The value that is `step` places further in the domain; None beyond its end."""
    if value not in parameter.values:
        return None
    place = parameter.values.index(value) + step
    return parameter.values[place] if 0 <= place < len(parameter.values) else None


def _tried(nodes: Sequence[Node], recipe: str) -> set[tuple[tuple[str, Value], ...]]:
    return {
        _key(node.proposal.values)
        for node in nodes
        if node.proposal is not None and node.proposal.recipe == recipe
    }


def _key(values: Values) -> tuple[tuple[str, Value], ...]:
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
    """A stored winner as a candidate for this problem; None if it does not fit.

    An instance of a recipe is instantiated with the winner's values, since its source may contain
    constants of the other problem. Any other kernel is used only if it won on this very problem
    (`same_problem`). `recipes` are those of the library, by name.
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


# -- order of steps, and steps to avoid


@dataclass(frozen=True, order=True)
class Knob:
    """A change of a parameter of this role, in one of DIRECTIONS."""

    role: str
    direction: str


class NoStep(Exception):
    """A change is impossible for an instance; the message has the reason."""


def avoiding(knobs: Sequence[Knob]) -> dict[str, Any]:
    """The `change` of a move that warns of these knobs together. It has no role, so that proposers
    do not follow it."""
    return {AVOID: [vars(knob).copy() for knob in knobs]}


def avoided(move: ShownMove) -> tuple[Knob, ...]:
    """The knobs that a move warns of; empty for a move to follow."""
    rows = move.change.get(AVOID) or ()
    return tuple(Knob(str(row["role"]), str(row["direction"])) for row in rows)


def does(recipe: Recipe, before: Values, after: Values, knobs: Sequence[Knob]) -> bool:
    """Whether a change consists of exactly these knobs, over any number of steps."""
    changed = [p for p in recipe.parameters if before.get(p.name) != after.get(p.name)]
    if not knobs or len(changed) != len(knobs):
        return False
    changes = [Knob(p.role, direction_of(before.get(p.name), after[p.name])) for p in changed]
    return sorted(changes) == sorted(knobs)


def turned(recipe: Recipe, values: Values, knobs: Sequence[Knob]) -> dict[str, Value]:
    """The values after one step of each knob. Raises NoStep if a step is impossible."""
    changed = dict(values)
    for knob in knobs:
        name, value = _step(recipe, changed, knob)
        changed[name] = value
    return changed


def _step(recipe: Recipe, values: Values, knob: Knob) -> tuple[str, Value]:
    """The first parameter of the role that has a next value, and that value."""
    own = [parameter for parameter in recipe.parameters if parameter.role == knob.role]
    if not own:
        raise NoStep(f"{recipe.name} has no parameter of the role {knob.role}")
    for parameter in own:
        value = next_value(parameter, values[parameter.name], knob.direction)
        if value is not None:
            return parameter.name, value
    state = " and ".join(f"{p.name} is {values[p.name]}" for p in own)
    raise NoStep(f"{state} in {recipe.name}, which has no tested value to {knob.direction} it to")


def next_value(parameter: Parameter, value: Value, direction: str) -> Value | None:
    """The nearest value in this direction, if any, among the tested values if the recipe has
    them."""
    offered = parameter.tested or parameter.values
    reached = [v for v in offered if v != value and direction_of(value, v) == direction]
    if direction in ("add", "remove"):
        return next(iter(reached), None)
    numbers = [v for v in reached if isinstance(v, int | float)]
    return min(numbers, key=lambda v: abs(v - _number(value)), default=None)


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return float(value)


@dataclass(frozen=True)
class ValueStep:
    """A change of one parameter along its domain; `up` is towards later values."""

    parameter: str
    up: bool


@dataclass(frozen=True)
class StepRecord:
    """Whether the last use of each step, and of each move by id, improved on the parent."""

    steps: Mapping[ValueStep, bool] = field(default_factory=dict)
    moves: Mapping[str, bool] = field(default_factory=dict)

    def has_won(self, step: ValueStep | None) -> bool:
        """Whether the last use of the step improved on the parent."""
        return step is not None and self.steps.get(step, False)

    def rank(self, step: ValueStep | None, moves: Sequence[str], applies: bool | None) -> int:
        """Rank of a change, 0 first: a step that won last, moves that apply, undecided moves, plain
        changes, a step or move that lost last. `moves` are the ids behind the change."""
        if self.has_won(step):
            return 0
        lost = step is not None and self.steps.get(step) is False
        if lost or any(self.moves.get(move) is False for move in moves):
            return 4
        if not moves:
            return 3
        return 1 if applies else 2


def step_between(recipe: Recipe, before: Values, after: Values) -> ValueStep | None:
    """The step between two sets of values; None unless exactly one value differs within its
    domain."""
    changed = [p for p in recipe.parameters if before.get(p.name) != after.get(p.name)]
    if len(changed) != 1:
        return None
    values = changed[0].values
    old, new = before.get(changed[0].name), after.get(changed[0].name)
    if old not in values or new not in values:
        return None
    return ValueStep(changed[0].name, values.index(new) > values.index(old))


def record_of(recipe: Recipe, tried: Sequence[Node]) -> StepRecord:
    """The record of the measured changes of one value between instances of the recipe. A step that
    won marks its reverse as lost, but not the other way round."""
    known = {node.number: node for node in tried}
    steps: dict[ValueStep, bool] = {}
    moves: dict[str, bool] = {}
    for node in tried:
        parent = known.get(node.parent) if node.parent is not None else None
        if node.state != "evaluated" or node.proposal is None or parent is None:
            continue
        before = parent.proposal
        if before is None or not before.recipe == node.proposal.recipe == recipe.name:
            continue
        won = node.merit > parent.merit
        moves.update(dict.fromkeys(node.proposal.attributed, won))
        step = step_between(recipe, before.values, node.proposal.values)
        if step is not None:
            steps[step] = won
            if won:
                steps[ValueStep(step.parameter, not step.up)] = False
    return StepRecord(steps, moves)


# -- code samples of manuals: the unchanged sample first, then changes of its constants within the
# limits of the manual and of the chip's facts
#
# A sample is a recipe with placeholders for sizes, which are filled with the problem's sizes first.
# The evaluation decides whether it computes the problem.

SAMPLE = "sample"
_TEMPLATE = "sample"


@dataclass(frozen=True)
class ManualSample:
    """A code sample of a manual. `id` is that of the stored recipe proposal, `source` its section
    and document in words; `body` has the form that ingestion stores."""

    id: str
    name: str
    language: str
    source: str
    body: Mapping[str, Any]

    @property
    def entry(self) -> str:
        """The name of the kernel's function."""
        return str(self.body["entry"])


def bind(sample: ManualSample, problem: ProblemView, name: str = "") -> Recipe | None:
    """The sample as a recipe with the sizes of the problem's first timed case; None if its tensors
    differ from the problem's. `name` is that of the recipe, by default the sample's id. Raises
    InvalidKnowledge for an unreadable body."""
    tensors = problem.main.signature.tensors
    inputs = [t for t in tensors if t.role != "output"]
    outputs = [t for t in tensors if t.role == "output"]
    sizes: dict[str, int] = {}
    for role, actual in (("input", inputs), ("output", outputs)):
        patterns = [t["dims"] for t in sample.body["tensors"] if t["role"] == role]
        if len(patterns) != len(actual):
            return None
        for dims, tensor in zip(patterns, actual, strict=True):
            if not _same_sizes(dims, tensor, sizes):
                return None
    raw = {
        "format": 1,
        "language": sample.language,
        "template": _TEMPLATE,
        "tensors": [_pattern(tensor) for tensor in tensors],
        "parameters": list(sample.body["parameters"]),
        "constraints": [_sized(c["predicate"], sizes) for c in sample.body["constraints"]],
    }
    problems = Problems(f"the sample of {sample.source}")
    files = {_TEMPLATE: _sized(sample.body["template"], sizes)}
    recipe = parse_recipe(name or sample.id, raw, files, problems)
    problems.raise_if_any()
    return recipe


def _same_sizes(dims: Sequence[str], tensor: TensorSpec, sizes: dict[str, int]) -> bool:
    if len(dims) != len(tensor.shape):
        return False
    return all(
        sizes.setdefault(dim, size) == size for dim, size in zip(dims, tensor.shape, strict=True)
    )


def _pattern(tensor: TensorSpec) -> dict[str, Any]:
    return {
        "name": "t_" + re.sub(r"\W", "_", tensor.name),
        "role": ROLE_OF[tensor.role],
        "dtypes": [tensor.dtype],
        "dims": [str(size) for size in tensor.shape],
    }


def _sized(text: str, sizes: Mapping[str, int]) -> str:
    """The text with sizes filled in; placeholders of constants stay."""

    def put(match: re.Match[str]) -> str:
        return str(sizes[match[1]]) if match[1] in sizes else match[0]

    return PLACEHOLDER.sub(put, text)


@dataclass(frozen=True)
class _BoundSample:
    """A sample that fits a problem, as a recipe with its sizes."""

    sample: ManualSample
    recipe: Recipe

    def beginning(self, values: Mapping[str, Value]) -> str:
        """A phrase about the difference of the first values from the sample's own."""
        defaults = self.recipe.defaults
        changed = [f"{n} = {v}" for n, v in values.items() if v != defaults[n]]
        if not changed:
            return "as it stands."
        return f"as near to it as the limits allow, {', '.join(changed)}."

    def marked(self, proposal: Proposal, change: str, moves: Sequence[str] = ()) -> Proposal:
        return replace(
            proposal,
            synthesizer=SAMPLE,
            bundle=replace(proposal.bundle, entry=self.sample.entry),
            plan=f"From the manual's sample, {self.sample.source}: {change}",
            attributed=(self.sample.id, *moves),
        )


class SampleSynthesizer:
    """Proposes variants of the samples in the manuals of one chip."""

    name = SAMPLE

    def __init__(self, samples: Sequence[ManualSample]) -> None:
        self._samples = tuple(samples)
        self.first_tries = max(1, len(self._samples))
        self._known: tuple[str, dict[str, _BoundSample], RecipeSynthesizer] | None = None

    def _for(self, problem: ProblemView) -> tuple[dict[str, _BoundSample], RecipeSynthesizer]:
        """The samples that fit, by the recipe's name: the sample's name, or its id if two samples
        share a name."""
        if self._known is None or self._known[0] != problem.name:
            names = Counter(sample.name for sample in self._samples)
            bindings = [
                (sample, bind(sample, problem, sample.name if names[sample.name] == 1 else ""))
                for sample in self._samples
            ]
            bound = {r.name: _BoundSample(sample, r) for sample, r in bindings if r is not None}
            recipes = [item.recipe for item in bound.values()]
            languages = [recipe.language for recipe in recipes]
            self._known = (problem.name, bound, RecipeSynthesizer(recipes, languages))
        return self._known[1], self._known[2]

    def propose(self, context: ProposalContext) -> Proposal | None:
        """The next variant of a sample; None if nothing is left. Raises InvalidKnowledge for an
        unreadable sample."""
        bound, recipes = self._for(context.problem)
        proposal = recipes.propose(context)
        if proposal is None or proposal.recipe is None:
            return None
        sample = bound[proposal.recipe]
        if context.parent.number == REFERENCE:
            return sample.marked(proposal, sample.beginning(proposal.values))
        return sample.marked(proposal, proposal.plan, proposal.attributed)

    def first(self, problem: ProblemView, hardware: HardwareView) -> Proposal | None:
        """The first sample that fits, unchanged if the limits allow that: the baseline of the other
        candidates. None if no sample fits."""
        bound, _ = self._for(problem)
        for item in bound.values():
            fitting = fit(item.recipe, problem, hardware.facts)
            values = start(fitting, hardware.facts) if fitting is not None else None
            if fitting is None or values is None:
                continue
            bundle = instantiate(item.recipe, values, fitting.binding, problem.source)
            proposal = Proposal(
                bundle, SAMPLE, recipe=item.recipe.name, values=dict(values), cases=fitting.cases
            )
            return item.marked(proposal, item.beginning(values))
        return None
