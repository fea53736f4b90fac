"""Kernels that become recipes, so that a search can begin with them: whole kernels, and the winner
of a search that tuned a recipe.

In a whole kernel the named constants become typed parameters, and its tensors are the problem's. It
is accepted only if instances are correct on cases that no search used and with other values of the
parameters; those values are its domain.

A tuned recipe is the same template with the winner's values as defaults. Several values may have
changed one after the other, so no single step of the tree shows the gain. The first instance of the
recipe is therefore compared with the winner as one composed step, which passes the gate like any
other: both were measured, and the gain follows from their figures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from kb.errors import KernloreError
from kb.hardware.table_reader import Problems
from optimizer.evaluation.abi import TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.bench.local import LocalBench, problem_view
from optimizer.search.records import Proposal, Value
from optimizer.search.runs.knowledge import RecipeSource
from optimizer.search.synthesizers.base import CaseView, ProblemView
from optimizer.search.synthesizers.recipe.recipe import (
    C_LIKE,
    ENTRY,
    FORMAT,
    PLACEHOLDER,
    PYTHON,
    ROLE_OF,
    Recipe,
    instantiate,
    parse_recipe,
)
from optimizer.search.synthesizers.recipe.synthesizer import fit
from skills.curator.contrast import constant_role
from skills.curator.records import KernelChange, Lift, LiftedRecipe
from skills.trajectories.records import Trajectory, TrajectoryStep
from skills.trials.trial import held_out_cases

HELD_OUT_CASES = 3
OTHER_VALUES = 2
MAX_PARAMETERS = 4
_RUN = re.compile(r"^def run\(", re.MULTILINE)
_CONSTANT = {
    True: re.compile(r"(?P<name>\b[A-Za-z_]\w*)\s*(?::\s*tl\.constexpr\s*)?=\s*(?P<value>\d+)\b"),
    False: re.compile(
        r"(?:#define[ \t]+(?P<macro>[A-Za-z_]\w*)[ \t]+|(?:constexpr|const)\s[\w\s:]*?"
        r"(?P<name>[A-Za-z_]\w*)\s*=\s*)(?P<value>\d+)\b"
    ),
}


class NotLifted(Exception):
    """A kernel cannot become a recipe; the message is the reason."""


@dataclass(frozen=True)
class NamedConstant:
    """A named number of the source. `start` and `end` are its offsets in the text."""

    name: str
    role: str
    value: int
    start: int
    end: int

    @property
    def others(self) -> tuple[int, ...]:
        """Other values to try: twice and half of a power of two."""
        if self.value & (self.value - 1) or self.value < 1:
            return ()
        return tuple(v for v in (2 * self.value, self.value // 2) if v >= 1)


@dataclass(frozen=True)
class KernelLifter:
    """Lifts whole kernels of one problem. `bench` opens a bench for a problem on the device, where
    instances of the recipe are tried."""

    problem: Problem
    device: str
    bench: Callable[[Problem], AbstractContextManager[LocalBench]]
    seed: int = 0

    def lift(self, trajectory: Trajectory, change: KernelChange) -> LiftedRecipe | str:
        """The kernel of a change as a recipe with the tested values, or the reason why not."""
        kernel = change.step.proposal.bundle
        try:
            view = problem_view(self.problem, self.device)
            constants = constants_of(kernel)
            name = f"{kernel.language}-{trajectory.subject.family}-{view.name}".replace("_", "-")
            lifted = lifted_from(name.lower(), kernel, view, constants)
            return self._tested(lifted, constants)
        except NotLifted as problem:
            return str(problem)
        except KernloreError as problem:
            return problem.message

    def _tested(self, lifted: LiftedRecipe, constants: Sequence[NamedConstant]) -> LiftedRecipe:
        recipe = recipe_from(lifted)
        unseen = held_out_cases(self.problem, self.device, self.seed)
        cases = list(islice(unseen, HELD_OUT_CASES))
        if len(cases) < HELD_OUT_CASES:
            raise NotLifted(
                f"it can be tried on {len(cases)} unseen cases only, {HELD_OUT_CASES} are needed"
            )
        for target in cases:
            with self.bench(target.problem) as bench:
                self._check(bench, recipe, recipe.defaults, f"on {target.case.name}")
        good: dict[str, list[Value]] = {c.name: [c.value] for c in constants}
        with self.bench(self.problem) as bench:
            for constant, value in ((c, value) for c in constants for value in c.others):
                values = {**recipe.defaults, constant.name: value}
                try:
                    self._check(bench, recipe, values, f"with {constant.name} = {value}")
                except NotLifted:
                    continue  # not in its domain
                good[constant.name].append(value)
        tried = sum(len(values) - 1 for values in good.values())
        if constants and tried < OTHER_VALUES:
            raise NotLifted(f"it is right with {tried} other values, {OTHER_VALUES} are needed")
        body = dict(lifted.recipe)
        body["parameters"] = [
            {**p, "values": sorted(good[p["name"]]), "tested": sorted(good[p["name"]])}
            for p in lifted.recipe["parameters"]
        ]
        return replace(lifted, recipe=body)

    def _check(
        self, bench: LocalBench, recipe: Recipe, values: Mapping[str, Value], where: str
    ) -> None:
        view = problem_view(bench.problem, self.device)
        fitting = fit(recipe, view, {})
        if fitting is None:
            raise NotLifted(f"its recipe does not fit {where}")
        bundle = instantiate(recipe, values, fitting.binding, view.source)
        proposal = Proposal(bundle, "lifting", cases=fitting.cases)
        evaluation = bench.evaluate(proposal)
        if not evaluation.correct:
            raise NotLifted(
                f"an instance of it is {evaluation.validity} {where}: {evaluation.message}"
            )


def constants_of(kernel: Bundle) -> list[NamedConstant]:
    """Named numbers of a known role that are defined once, in the order of the source."""
    text, python = kernel.files[kernel.main], kernel.language not in C_LIKE
    by_name: dict[str, list[NamedConstant]] = {}
    for match in _CONSTANT[python].finditer(text):
        groups = match.groupdict()
        name = groups["name"] or groups.get("macro") or ""
        role = constant_role(name)
        if role is not None:
            start, end = match.span("value")
            constant = NamedConstant(name, role, int(groups["value"]), start, end)
            by_name.setdefault(name, []).append(constant)
    # A name that is defined twice may mean two things.
    single = [c for c in by_name.values() if len(c) == 1]
    return [constants[0] for constants in single][:MAX_PARAMETERS]


def lifted_from(
    name: str, kernel: Bundle, view: ProblemView, constants: Sequence[NamedConstant]
) -> LiftedRecipe:
    """The kernel's text with placeholders for its constants. Raises NotLifted."""
    if len(kernel.files) != 1:
        raise NotLifted(f"it has {len(kernel.files)} files, and a template is one")
    text = kernel.files[kernel.main]
    if kernel.language in C_LIKE and kernel.entry != ENTRY:
        raise NotLifted(f"its entry is {kernel.entry}, and a recipe's is {ENTRY}")
    if kernel.language in PYTHON and not _RUN.search(text):
        raise NotLifted("it is a module of its own, and a recipe in Python is a function `run`")
    if PLACEHOLDER.search(text):
        raise NotLifted("its text has a placeholder like those of a template")
    for constant in sorted(constants, key=lambda c: -c.start):
        text = f"{text[: constant.start]}@{{{constant.name}}}{text[constant.end :]}"
    suffix = kernel.main.rsplit(".", 1)[-1]
    path = f"references/kernel.{suffix}"
    body = {
        "format": FORMAT,
        "language": kernel.language,
        "template": path,
        "ops": [view.op],
        "tensors": list(_tensors(view)),
        "parameters": [
            {
                "name": c.name,
                "role": c.role,
                "values": sorted({c.value, *c.others}),
                "default": c.value,
            }
            for c in constants
        ],
    }
    lifted = LiftedRecipe(name, body, {path: text})
    recipe_from(lifted)
    return lifted


def recipe_from(lifted: LiftedRecipe) -> Recipe:
    """The parsed recipe. Raises InvalidKnowledge for an invalid one."""
    problems = Problems(f"recipe {lifted.name}")
    recipe = parse_recipe(lifted.name, lifted.recipe, lifted.files, problems)
    problems.raise_if_any()
    assert recipe is not None
    return recipe


def _tensors(view: ProblemView) -> Iterator[dict[str, Any]]:
    """The main case's tensors; sizes that are equal in every case share a name."""
    main = view.main
    same = [case for case in view.cases if _alike(case, main)]
    names: dict[tuple[int, ...], str] = {}
    for number, tensor in enumerate(main.signature.tensors):
        dims = []
        for axis in range(len(tensor.shape)):
            sizes = tuple(case.signature.tensors[number].shape[axis] for case in same)
            dims.append(names.setdefault(sizes, f"d{len(names)}"))
        yield {
            "name": f"t{number}_" + re.sub(r"\W", "_", tensor.name),
            "role": ROLE_OF[tensor.role],
            "dtypes": [tensor.dtype],
            "dims": dims,
        }


def _alike(case: CaseView, main: CaseView) -> bool:
    """Whether two cases differ only in the sizes of their tensors."""
    ours, theirs = case.signature.tensors, main.signature.tensors
    return len(ours) == len(theirs) and all(map(_same_kind, ours, theirs))


def _same_kind(ours: TensorSpec, theirs: TensorSpec) -> bool:
    return len(ours.shape) == len(theirs.shape) and ours.dtype == theirs.dtype


# -- tuned recipes

COMPOSED = "composed"  # synthesizer of the composed step


@dataclass(frozen=True)
class TunedRecipe:
    """The recipe that a search tuned, and the trajectory of its composed step."""

    trajectory: Trajectory
    lifted: LiftedRecipe


def tuned_instance(
    trajectory: Trajectory, recipes: Mapping[str, RecipeSource]
) -> TunedRecipe | str:
    """The recipe that a trajectory tuned, from its certainly fastest candidate, or the reason for
    its absence. `recipes` are those of the library, by name."""
    correct = [step for step in trajectory.steps if _is_correct(step)]
    faster = [step for step in correct if _merit(step) > 0]
    best = max(faster, key=lambda step: (_merit(step), -step.child.number), default=None)
    if best is None:
        return "no candidate is correct and measured"
    winner, number = best.proposal, best.child.number
    if winner.recipe is None:
        return f"the winner, node {number}, is no instance of a recipe"
    if winner.recipe not in recipes:
        return f"no skill in use has the recipe {winner.recipe}"
    source = recipes[winner.recipe]
    changed = {
        name: value
        for name, value in winner.values.items()
        if name in source.defaults and source.defaults[name] != value
    }
    if not changed:
        return f"the winner, node {number}, has the values of {winner.recipe} itself"
    instances = [step for step in correct if step.proposal.recipe == winner.recipe]
    if instances[0].child.number == number:
        return f"{winner.recipe} was begun with the winner's values: nothing to compare them with"
    parts = [f"{name}{value}" for name, value in sorted(changed.items())]
    name = re.sub(r"[^a-z0-9]+", "-", "-".join([winner.recipe, *parts]).lower()).strip("-")
    composed = replace(
        winner,
        synthesizer=COMPOSED,
        plan=f"The values that {winner.recipe} was tuned to.",
        recipe=name,
        claimed=(),
        attributed=(),
    )
    step = TrajectoryStep(
        parent=instances[0].child,
        child=replace(best.child, proposal=composed),
        shown={"excerpts": (), "moves": (), "skills": ()},
    )
    template = source.body["template"]
    lifted = LiftedRecipe(
        name,
        _tuned_body(source, winner, [step.proposal for step in instances]),
        {template: source.files[template]},
        _signals(trajectory, source),
    )
    return TunedRecipe(replace(trajectory, steps=(step,)), lifted)


def _is_correct(step: TrajectoryStep) -> bool:
    evaluation = step.child.evaluation
    if step.child.proposal is None or evaluation is None or evaluation.rejected:
        return False
    return evaluation.correct and evaluation.checks[0] == evaluation.checks[1]


def _merit(step: TrajectoryStep) -> float:
    """Lower bound of the speed-up over the reference; 0 without a figure."""
    return step.child.speedup.low if step.child.speedup is not None else 0.0


def _tuned_body(
    source: RecipeSource, winner: Proposal, instances: Sequence[Proposal]
) -> dict[str, Any]:
    """The recipe's JSON with the winner's values as defaults, and as `tested` the values of correct
    candidates."""
    parameters = []
    for parameter in source.body["parameters"]:
        name = parameter["name"]
        tried = [*parameter.get("tested", ()), *(i.values.get(name) for i in instances)]
        default = winner.values.get(name, source.defaults[name])
        tested = [value for value in parameter["values"] if value in tried]
        parameters.append({**parameter, "default": default, "tested": tested})
    return {**source.body, "parameters": parameters}


def _signals(trajectory: Trajectory, source: RecipeSource) -> tuple[str, ...]:
    """The signals of the reference, then those of the recipe's skill. The verdict of an instance
    does not count: it is known only once the recipe was used."""
    references = (step.parent for step in trajectory.steps if step.parent.proposal is None)
    seen = next((kernel.signals for kernel in references if kernel.evaluation is not None), ())
    return tuple(dict.fromkeys((*seen, *source.signals)))


def recipe_lift(
    tuned: Mapping[str, LiftedRecipe],
    whole: Lift | str = "there is no device here to try instances of it on",
) -> Lift:
    """Lifting of tuned recipes, by name, and of whole kernels. `whole` may be the reason why these
    cannot be lifted here."""

    def lift(trajectory: Trajectory, change: KernelChange) -> LiftedRecipe | str:
        recipe = change.step.proposal.recipe
        if recipe is not None:
            return tuned.get(recipe) or f"no skill has the recipe {recipe}"
        return whole if isinstance(whole, str) else whole(trajectory, change)

    return lift
