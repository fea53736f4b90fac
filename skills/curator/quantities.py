"""How large the cases of a problem are in the words of predicates, and whether a skill's
precondition leaves a case in."""

from __future__ import annotations

from collections.abc import Mapping

from kb.catalog.skills import SkillHead
from kb.errors import KernloreError
from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import canonical_dtype, canonical_op
from optimizer.evaluation.diagnose import quantities
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.tensors import open_case
from optimizer.evaluation.roofline import Work, work_of

# What decides how a kernel is to be tuned: what it has to move, and how long its loops are. Other
# quantities follow from these, the operator and the element type.
BOUNDING = ("compulsory_bytes", "reduction_length")


def sizes_told(problem: Problem, case: Case) -> dict[str, float]:
    """Quantities by which advice is bounded; none where the case cannot be opened here."""
    work = _work(problem, case)
    told = quantities(work) if work is not None else {}
    return {name: float(told[name]) for name in BOUNDING if name in told}


def leaves_in(
    skill: SkillHead, problem: Problem, case: Case, facts: Mapping[str, float | str]
) -> bool:
    """Whether the skill could be offered there: a verdict is not known yet, and what is not known
    excludes nothing."""
    if not skill.predicate:
        return True
    work = _work(problem, case)
    told: dict[str, float | str | None] = dict(quantities(work)) if work is not None else {}
    dtype = case.dtype or (work.dtype if work is not None else None)
    told["op"] = canonical_op(problem.op)
    told["dtype"] = canonical_dtype(dtype) if dtype else None
    told["language"] = next(iter(skill.scopes.languages), None)
    known = Bindings(facts=dict(facts), problem=told)
    return compile_predicate(skill.predicate).evaluate(known).value is not False


def _work(problem: Problem, case: Case) -> Work | None:
    try:
        return work_of(open_case(problem, case))
    except (KernloreError, RuntimeError, ValueError, IndexError, AssertionError):
        return None
