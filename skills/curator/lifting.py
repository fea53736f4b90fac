"""A kernel becomes a recipe, so that a search can begin with it: a whole kernel that was written
freely, or the winner of a search that tuned a recipe.

Of a whole kernel the named constants become typed parameters and the tensors are the problem's. It
is believed only when instances of it are right on cases that nobody searched and with other values
of its parameters; those values are its domain.

A tuned recipe is the same template with the winner's values as its defaults. No step of the tree
may say so, where several values changed one after the other on the way. So the first instance of
the recipe is compared with the winner, as one composed step that passes the gate like any other:
its two sides were measured, the gain follows from their figures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from kb.errors import KernloreError
from kb.hardware.table_reader import Problems
from optimizer.evaluation.abi import TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation
from optimizer.search.bench.local import LocalBench, problem_view
from optimizer.search.records import Proposal
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
    Value,
    instantiate,
    parse_recipe,
)
from optimizer.search.synthesizers.recipe.synthesizer import fit
from skills.curator.contrast import constant_role
from skills.curator.records import Change, Lift, Lifted
from skills.trajectories.records import Side, Step, Trajectory
from skills.trials.held_out import held_out_cases

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
    """Why a kernel cannot become a recipe; the message says it in words."""


@dataclass(frozen=True)
class Constant:
    """A named number of the source. `start` and `end` are the places where the number stands."""

    name: str
    role: str
    value: int
    start: int
    end: int

    @property
    def others(self) -> tuple[int, ...]:
        """Values to try it with beside its own: a step of two either way where it is a power."""
        if self.value & (self.value - 1) or self.value < 1:
            return ()
        return tuple(v for v in (2 * self.value, self.value // 2) if v >= 1)


@dataclass(frozen=True)
class KernelLifter:
    """Lifts whole kernels of one problem. `bench` opens a bench for a problem on the device at
    hand, where instances of the recipe are tried."""

    problem: Problem
    device: str
    bench: Callable[[Problem], AbstractContextManager[LocalBench]]
    seed: int = 0

    def lift(self, trajectory: Trajectory, change: Change) -> Lifted | str:
        """The kernel of a change as a recipe with the values that were tested, or why not."""
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

    def _tested(self, lifted: Lifted, constants: Sequence[Constant]) -> Lifted:
        """With the domains that were tested. Raises NotLifted for a wrong instance."""
        recipe = recipe_from(lifted)
        cases = held_out_cases(self.problem, self.device, HELD_OUT_CASES, self.seed)
        if len(cases) < HELD_OUT_CASES:
            raise NotLifted(
                f"it can be tried on {len(cases)} unseen cases only, {HELD_OUT_CASES} are needed"
            )
        for target in cases:
            with self.bench(target.problem) as bench:
                self._right(bench, recipe, recipe.defaults, f"on {target.case.name}")
        good: dict[str, list[Value]] = {c.name: [c.value] for c in constants}
        with self.bench(self.problem) as bench:
            for constant, value in _other_values(constants):
                values = {**recipe.defaults, constant.name: value}
                try:
                    self._right(bench, recipe, values, f"with {constant.name} = {value}")
                except NotLifted:
                    continue  # outside of what the kernel can do: not in its domain
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

    def _right(
        self, bench: LocalBench, recipe: Recipe, values: Mapping[str, Value], where: str
    ) -> None:
        """Raises NotLifted where the instance is wrong on what the bench measures."""
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


def constants_of(kernel: Bundle) -> list[Constant]:
    """Named numbers whose role is known, each defined once; in the order of the source."""
    text, python = kernel.files[kernel.main], kernel.language not in C_LIKE
    by_name: dict[str, list[Constant]] = {}
    for match in _CONSTANT[python].finditer(text):
        groups = match.groupdict()
        name = groups["name"] or groups.get("macro") or ""
        role = constant_role(name)
        if role is not None:
            start, end = match.span("value")
            constant = Constant(name, role, int(groups["value"]), start, end)
            by_name.setdefault(name, []).append(constant)
    # A name that is defined twice may mean two things.
    single = [c for c in by_name.values() if len(c) == 1]
    return [constants[0] for constants in single][:MAX_PARAMETERS]


def lifted_from(
    name: str, kernel: Bundle, view: ProblemView, constants: Sequence[Constant]
) -> Lifted:
    """The kernel's text with placeholders for its constants. Raises NotLifted."""
    if len(kernel.files) != 1:
        raise NotLifted(f"it has {len(kernel.files)} files, and a template is one")
    text = kernel.files[kernel.main]
    if kernel.language in C_LIKE and kernel.entry != ENTRY:
        raise NotLifted(f"its entry is {kernel.entry}, and a recipe's is {ENTRY}")
    if kernel.language in PYTHON and not _RUN.search(text):
        raise NotLifted("it is a module of its own, and a recipe in Python is a function `run`")
    if PLACEHOLDER.search(text):
        raise NotLifted("its text has what looks like a placeholder of a template")
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
    lifted = Lifted(name, body, {path: text})
    recipe_from(lifted)
    return lifted


def recipe_from(lifted: Lifted) -> Recipe:
    """The recipe that was lifted. Raises InvalidKnowledge where it is none."""
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
            "name": _identifier(tensor.name, number),
            "role": ROLE_OF[tensor.role],
            "dtypes": [tensor.dtype],
            "dims": dims,
        }


def _alike(case: CaseView, main: CaseView) -> bool:
    """Whether it has the same tensors but for their sizes."""
    ours, theirs = case.signature.tensors, main.signature.tensors
    return len(ours) == len(theirs) and all(map(_same_kind, ours, theirs))


def _same_kind(ours: TensorSpec, theirs: TensorSpec) -> bool:
    return len(ours.shape) == len(theirs.shape) and ours.dtype == theirs.dtype


def _identifier(name: str, number: int) -> str:
    return f"t{number}_" + re.sub(r"\W", "_", name)


def _other_values(constants: Sequence[Constant]) -> Iterator[tuple[Constant, int]]:
    for constant in constants:
        for value in constant.others:
            yield constant, value


COMPOSED = "composed"  # synthesizer of the composed step


@dataclass(frozen=True)
class Tuned:
    """The composed step of a tuned recipe, as a trajectory of its own, and the recipe that it
    teaches."""

    trajectory: Trajectory
    lifted: Lifted


@dataclass(frozen=True)
class Instance:
    """A correct candidate with its figures."""

    step: Step
    proposal: Proposal
    evaluation: Evaluation

    @property
    def number(self) -> int:
        """Number of its node."""
        return self.step.child.number

    @property
    def merit(self) -> float:
        """Lower bound of the speed-up over the reference; 0 without a figure."""
        return self.evaluation.speedup.low if self.evaluation.speedup is not None else 0.0


def tuned_instance(trajectory: Trajectory, recipes: Mapping[str, RecipeSource]) -> Tuned | str:
    """The recipe that a trajectory tuned, from the candidate that is certainly fastest; a text says
    why there is none. `recipes` are those of the library, by name."""
    best = _best(trajectory)
    if best is None:
        return "no candidate is correct and measured"
    recipe = best.proposal.recipe
    if recipe is None:
        return f"the winner, node {best.number}, is no instance of a recipe"
    if recipe not in recipes:
        return f"no skill in use has the recipe {recipe}"
    source = recipes[recipe]
    changed = {
        name: value
        for name, value in best.proposal.values.items()
        if name in source.defaults and source.defaults[name] != value
    }
    if not changed:
        return f"the winner, node {best.number}, has the values of {recipe} itself"
    instances = _instances(trajectory, recipe)
    if instances[0].number == best.number:
        return f"{recipe} was begun with the winner's values: nothing to compare them with"
    name = _name(recipe, changed)
    body, signals = _body(source, best.proposal, instances), _signals(trajectory, source)
    lifted = Lifted(name, body, _template(source), signals)
    composed = replace(
        best.proposal,
        synthesizer=COMPOSED,
        plan=f"The values that {recipe} was tuned to.",
        recipe=name,
        claimed=(),
        attributed=(),
    )
    step = Step(
        parent=instances[0].step.child,
        child=replace(best.step.child, proposal=composed),
        shown={"excerpts": (), "moves": (), "skills": ()},
    )
    return Tuned(replace(trajectory, steps=(step,)), lifted)


@dataclass(frozen=True)
class Lifting:
    """Lifting of both kinds: tuned instances by the name of their recipe, whole kernels by `whole`.
    `absent` says why whole kernels cannot be lifted here."""

    tuned: Mapping[str, Lifted]
    whole: Lift | None = None
    absent: str = "there is no device here to try instances of it on"

    def lift(self, trajectory: Trajectory, change: Change) -> Lifted | str:
        """The recipe of a change's kernel, or why there is none."""
        recipe = change.step.proposal.recipe
        if recipe is not None:
            return self.tuned.get(recipe) or f"no skill has the recipe {recipe}"
        return self.absent if self.whole is None else self.whole(trajectory, change)


def _best(trajectory: Trajectory) -> Instance | None:
    faster = [instance for instance in _candidates(trajectory) if instance.merit > 0]
    return max(faster, key=lambda instance: (instance.merit, -instance.number), default=None)


def _instances(trajectory: Trajectory, recipe: str) -> list[Instance]:
    """The correct instances of a recipe, in their order."""
    return [i for i in _candidates(trajectory) if i.proposal.recipe == recipe]


def _candidates(trajectory: Trajectory) -> list[Instance]:
    correct = map(_correct, trajectory.steps)
    return [instance for instance in correct if instance is not None]


def _correct(step: Step) -> Instance | None:
    side: Side = step.child
    if side.proposal is None or side.evaluation is None or side.rejected:
        return None
    passed, count = side.checks
    if not side.evaluation.correct or passed != count:
        return None
    return Instance(step, side.proposal, side.evaluation)


def _body(source: RecipeSource, winner: Proposal, instances: Sequence[Instance]) -> dict[str, Any]:
    """The recipe's JSON with the winner's values as defaults. tested: values of correct candidates,
    in the order of the domain."""
    parameters = []
    for parameter in source.body["parameters"]:
        name = parameter["name"]
        tried = [*parameter.get("tested", ()), *(i.proposal.values.get(name) for i in instances)]
        default = winner.values.get(name, source.defaults[name])
        tested = [value for value in parameter["values"] if value in tried]
        parameters.append({**parameter, "default": default, "tested": tested})
    return {**source.body, "parameters": parameters}


def _signals(trajectory: Trajectory, source: RecipeSource) -> tuple[str, ...]:
    """Signals that a search sees with nothing but the reference, then those of the recipe's skill:
    the verdict of an instance is only seen after the recipe was used."""
    references = (step.parent for step in trajectory.steps if step.parent.proposal is None)
    seen = next((side.signals for side in references if side.evaluation is not None), ())
    return tuple(dict.fromkeys((*seen, *source.signals)))


def _template(source: RecipeSource) -> dict[str, str]:
    path = source.body["template"]
    return {path: source.files[path]}


def _name(recipe: str, changed: Mapping[str, Value]) -> str:
    """The recipe with what differs, as `cpp-fused-row-softmax-rows4`."""
    parts = [f"{name}{value}" for name, value in sorted(changed.items())]
    return re.sub(r"[^a-z0-9]+", "-", "-".join([recipe, *parts]).lower()).strip("-")
