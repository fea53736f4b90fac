"""A kernel without a recipe becomes one: its named constants are typed parameters, its tensors the
problem's. Believed only when instances of it are right on cases that nobody searched and with other
values of its parameters; those values are its domain.

Implements `skills.curator.distillation.Lifter`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from kb.errors import KernloreError
from kb.hardware.checks import Problems
from optimizer.evaluation.abi import TensorSpec
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.bench.local import problem_view
from optimizer.search.records import Proposal
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
from skills.curator.distillation import Lifted
from skills.curator.reading.contrast import constant_role
from skills.curator.records import Change, Kernel, Trajectory
from skills.trials.held_out import unseen_cases
from skills.trials.trial_context import ConfirmingBench

UNSEEN_CASES = 3
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
    """A named number of the source. start, end: where the number stands."""

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
    """problem: that the trajectory is about. bench: of a problem on the device at hand."""

    problem: Problem
    device: str
    bench: Callable[[Problem], AbstractContextManager[ConfirmingBench]]
    seed: int = 0

    def lift(self, trajectory: Trajectory, change: Change) -> Lifted | str:
        kernel = change.step.child.kernel
        assert kernel is not None
        try:
            view = problem_view(self.problem, self.device)
            constants = constants_of(kernel)
            name = f"{kernel.language}-{trajectory.subject.family}-{view.name}".replace("_", "-")
            made = lifted_from(name.lower(), kernel, view, constants)
            return self._tested(made, constants)
        except NotLifted as problem:
            return str(problem)
        except KernloreError as problem:
            return problem.message

    def _tested(self, made: Lifted, constants: Sequence[Constant]) -> Lifted:
        """With the domains that were tested. Raises NotLifted for a wrong instance."""
        recipe = recipe_from(made)
        cases = unseen_cases(self.problem, self.device, UNSEEN_CASES, self.seed)
        if len(cases) < UNSEEN_CASES:
            raise NotLifted(
                f"it can be tried on {len(cases)} unseen cases only, {UNSEEN_CASES} are needed"
            )
        for unseen in cases:
            self._right(recipe, recipe.defaults, unseen.problem, f"on {unseen.case.name}")
        good: dict[str, list[Value]] = {c.name: [c.value] for c in constants}
        for constant, value in _other_values(constants):
            values = {**recipe.defaults, constant.name: value}
            try:
                self._right(recipe, values, self.problem, f"with {constant.name} = {value}")
            except NotLifted:
                continue  # outside of what the kernel can do: not in its domain
            good[constant.name].append(value)
        tried = sum(len(values) - 1 for values in good.values())
        if constants and tried < OTHER_VALUES:
            raise NotLifted(f"it is right with {tried} other values, {OTHER_VALUES} are needed")
        body = dict(made.recipe)
        body["parameters"] = [
            {**p, "values": sorted(good[p["name"]]), "tested": sorted(good[p["name"]])}
            for p in made.recipe["parameters"]
        ]
        return replace(made, recipe=body)

    def _right(
        self, recipe: Recipe, values: Mapping[str, Value], problem: Problem, where: str
    ) -> None:
        view = problem_view(problem, self.device)
        fitting = fit(recipe, view, {})
        if fitting is None:
            raise NotLifted(f"its recipe does not fit {where}")
        bundle = instantiate(recipe, values, fitting.binding, view.source)
        proposal = Proposal(bundle, "lifting", cases=fitting.cases)
        with self.bench(problem) as bench:
            found = bench.evaluate(proposal)
        if not found.correct:
            raise NotLifted(f"an instance of it is {found.validity} {where}: {found.message}")


def constants_of(kernel: Kernel) -> list[Constant]:
    """Named numbers whose role is known, each defined once; in the order of the source."""
    text, python = kernel.files[kernel.main], kernel.language not in C_LIKE
    found: dict[str, list[Constant]] = {}
    for match in _CONSTANT[python].finditer(text):
        groups = match.groupdict()
        name = groups["name"] or groups.get("macro") or ""
        role = constant_role(name)
        if role is not None:
            start, end = match.span("value")
            constant = Constant(name, role, int(groups["value"]), start, end)
            found.setdefault(name, []).append(constant)
    # A name that is defined twice may mean two things.
    single = [c for c in found.values() if len(c) == 1]
    return [constants[0] for constants in single][:MAX_PARAMETERS]


def lifted_from(
    name: str, kernel: Kernel, view: ProblemView, constants: Sequence[Constant]
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
    made = Lifted(name, body, {path: text})
    recipe_from(made)
    return made


def recipe_from(made: Lifted) -> Recipe:
    """Raises InvalidKnowledge where it is none."""
    problems = Problems(f"recipe {made.name}")
    found = parse_recipe(made.name, made.recipe, made.files, problems)
    problems.raise_if_any()
    assert found is not None
    return found


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


def _same_kind(one: TensorSpec, other: TensorSpec) -> bool:
    return len(one.shape) == len(other.shape) and one.dtype == other.dtype


def _identifier(name: str, number: int) -> str:
    return f"t{number}_" + re.sub(r"\W", "_", name)


def _other_values(constants: Sequence[Constant]) -> Iterator[tuple[Constant, int]]:
    for constant in constants:
        for value in constant.others:
            yield constant, value
