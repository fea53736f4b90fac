"""Cases that a skill was not distilled from: those that a problem holds out, and other sizes of its
main case.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from kb.errors import KernloreError
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.tensors import open_case

DRAWS = 24  # at most, for sizes that the problem accepts
LEAST = 8  # sizes below that are rather modes than sizes
FACTORS = (0.5, 0.625, 0.75, 1.25, 1.5)


@dataclass(frozen=True)
class Unseen:
    """A problem whose only timed case was not searched. why: in words."""

    problem: Problem
    case: Case
    why: str


def unseen_cases(
    problem: Problem, device: str, count: int, seed: int, known: Collection[str] = ()
) -> list[Unseen]:
    """Up to `count`: held-out cases first, then other sizes. known: names of cases to leave out."""
    return list(islice(every_unseen(problem, device, seed, known), count))


def every_unseen(
    problem: Problem, device: str, seed: int, known: Collection[str] = ()
) -> Iterator[Unseen]:
    """One after the other: whether a problem can do other sizes is found out by doing them."""
    return (one for one in _all(problem, device, seed) if one.case.name not in known)


def as_only(problem: Problem, case: Case, why: str) -> Unseen:
    """The problem with this case as the one that is searched and timed."""
    only = replace(case, timed=True, held_out=False, devices=())
    return Unseen(replace(problem, cases=(only,)), only, why)


def _all(problem: Problem, device: str, seed: int) -> Iterator[Unseen]:
    for case in problem.held_out:
        if case.fits(device):
            yield as_only(problem, case, "held out")
    main = next((c for c in problem.searched if c.timed and c.fits(device)), None)
    if main is None:
        return
    chance = random.Random(f"{problem.sha256}:{seed}")
    drawn: list[dict[str, Any]] = [dict(main.constants)]
    for _ in range(DRAWS):
        constants = _resized(main, chance)
        if constants in drawn:
            continue
        drawn.append(constants)
        name = "sizes_" + "_".join(str(value) for value in constants.values())
        unseen = as_only(problem, replace(main, name=name, constants=constants), "other sizes")
        if _opens(unseen):
            yield unseen


def _resized(main: Case, chance: random.Random) -> dict[str, Any]:
    """One of its sizes changed: more at once rarely fit together."""
    sizes = [
        name
        for name, value in main.constants.items()
        if isinstance(value, int) and not isinstance(value, bool) and value >= LEAST
    ]
    constants = dict(main.constants)
    if sizes:
        name = chance.choice(sizes)
        constants[name] = max(1, int(constants[name] * chance.choice(FACTORS)))
    return constants


def _opens(unseen: Unseen) -> bool:
    """Whether the problem's own code can do these sizes."""
    try:
        opened = open_case(unseen.problem, unseen.case)
        inputs, state = opened.inputs(0), opened.state(0)
        opened.reference(inputs, state)
    except (KernloreError, RuntimeError, ValueError, IndexError, AssertionError):
        return False
    return True
