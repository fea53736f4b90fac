"""Where a skill is tried: problems and cases that it was not distilled from, and could be offered
in. These are cases that a problem holds out, and other sizes of its main case.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from kb.catalog.skills import SkillHead, SkillRow
from kb.errors import KernloreError, Unavailable
from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import canonical_dtype, canonical_op, op_family
from optimizer.evaluation.diagnose import quantities
from optimizer.evaluation.problem.open_case import open_case
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.roofline import CaseWork, work_of
from skills.trajectories.reading import BOUNDING
from skills.trials.trial import TrialContext

DRAWS = 24  # at most, for sizes that the problem accepts
LEAST = 8  # sizes below that are rather modes than sizes
FACTORS = (0.5, 0.625, 0.75, 1.25, 1.5)


@dataclass(frozen=True)
class HeldOutCase:
    """A problem whose only timed case was not searched. `why` says in words why it was not."""

    problem: Problem
    case: Case
    why: str


def held_out_cases(
    problem: Problem, device: str, count: int, seed: int, known: Collection[str] = ()
) -> list[HeldOutCase]:
    """Up to `count` of them: held-out cases first, then other sizes. `known` names cases to leave
    out."""
    return list(islice(every_held_out(problem, device, seed, known), count))


def every_held_out(
    problem: Problem, device: str, seed: int, known: Collection[str] = ()
) -> Iterator[HeldOutCase]:
    """All of them, one after the other: only trying shows whether a problem can do other sizes."""
    return (case for case in _all(problem, device, seed) if case.case.name not in known)


def as_only(problem: Problem, case: Case, why: str) -> HeldOutCase:
    """The problem with this case as the one that is searched and timed."""
    only = replace(case, timed=True, held_out=False, devices=())
    return HeldOutCase(replace(problem, cases=(only,)), only, why)


def _all(problem: Problem, device: str, seed: int) -> Iterator[HeldOutCase]:
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
        target = as_only(problem, replace(main, name=name, constants=constants), "other sizes")
        if _opens(target):
            yield target


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


def _opens(target: HeldOutCase) -> bool:
    """Whether the problem's own code can do these sizes."""
    try:
        opened = open_case(target.problem, target.case)
        inputs, state = opened.inputs(0), opened.state(0)
        opened.reference(inputs, state)
    except (KernloreError, RuntimeError, ValueError, IndexError, AssertionError):
        return False
    return True


MAX_TRIALS = 3  # of a skill
MAX_LOOKED_AT = 3 * MAX_TRIALS  # of which some lie outside of what the skill is about


def admitted(context: TrialContext, skill: SkillRow) -> None:
    """Raises Unavailable where a skill is about another chip or language: it cannot be proven
    here."""
    here = context.hardware
    chips, languages = set(skill.scopes.hardware), set(skill.scopes.languages)
    if chips and not chips & set(here.lineage):
        raise Unavailable(
            f"{skill.name} is about {', '.join(sorted(chips))}, and this is {here.id}",
            hint="Verify it on that hardware, or in a portable session.",
        )
    if languages and not languages & set(here.languages):
        raise Unavailable(
            f"{skill.name} is about {', '.join(sorted(languages))}, which nothing here builds",
            hint="Install the toolchain, or verify it on a machine that has it.",
        )


def targets(
    context: TrialContext, skill: SkillRow, apart_from: Collection[tuple[str, str]]
) -> Iterator[HeldOutCase]:
    """Where a skill is tried: without what was tried before, and without cases where it could not
    be offered, as nobody gets its advice there. `apart_from` holds (sha256 of a problem, case)
    pairs."""
    facts = context.hardware.facts
    for target in islice(_unseen(context, skill), MAX_LOOKED_AT):
        if (target.problem.sha256, target.case.name) in apart_from:
            continue
        if leaves_in(skill, target.problem, target.case, facts):
            yield target


def no_held_out_case(skill: SkillRow) -> Unavailable:
    """The error where there is nothing to try a skill on."""
    return Unavailable(
        f"no unseen problem or case here is one that {skill.name} is about",
        hint="Add a problem of its op family with `kernlore problem new`.",
    )


def _unseen(context: TrialContext, skill: SkillRow) -> Iterator[HeldOutCase]:
    """Other problems of its families first: they are further from what it was made of."""
    device = context.hardware.device or "cpu"
    families = {op_family(op) for op in skill.scopes.ops}
    own = {sha256 for sha256, _ in context.seen}
    fitting = [p for p in context.problems if not families or op_family(p.op) in families]
    for problem in fitting:
        main = next((c for c in problem.searched if _timed_for(skill, c, device)), None)
        if problem.sha256 not in own and main is not None:
            yield as_only(problem, main, "another problem")
    for problem in fitting:
        if problem.sha256 in own:
            known = [case for sha256, case in context.seen if sha256 == problem.sha256]
            seed = context.seed
            yield from every_held_out(problem, device, seed, known)


def _timed_for(skill: SkillRow, case: Case, device: str) -> bool:
    dtypes = {canonical_dtype(dtype) for dtype in skill.scopes.dtypes}
    fitting = not dtypes or case.dtype is None or canonical_dtype(case.dtype) in dtypes
    return case.timed and case.fits(device) and fitting


def case_sizes(problem: Problem, case: Case) -> dict[str, float]:
    """Quantities by which advice is bounded (bytes, elements); none where the case cannot be opened
    here."""
    work = _work(problem, case)
    sizes = quantities(work) if work is not None else {}
    return {name: float(sizes[name]) for name in BOUNDING if name in sizes}


def leaves_in(
    skill: SkillHead, problem: Problem, case: Case, facts: Mapping[str, float | str]
) -> bool:
    """Whether a skill's precondition could let it be offered on a case. A verdict is not known yet,
    and what is not known excludes nothing."""
    if not skill.predicate:
        return True
    work = _work(problem, case)
    terms: dict[str, float | str | None] = dict(quantities(work)) if work is not None else {}
    dtype = case.dtype or (work.dtype if work is not None else None)
    terms["op"] = canonical_op(problem.op)
    terms["dtype"] = canonical_dtype(dtype) if dtype else None
    terms["language"] = next(iter(skill.scopes.languages), None)
    known = Bindings(facts=dict(facts), problem=terms)
    return compile_predicate(skill.predicate).evaluate(known).value is not False


def _work(problem: Problem, case: Case) -> CaseWork | None:
    try:
        return work_of(open_case(problem, case))
    except (KernloreError, RuntimeError, ValueError, IndexError, AssertionError):
        return None
