"""A problem as proposers see it: signatures and traits of its cases, nothing of its values."""

from __future__ import annotations

from optimizer.evaluation.problem.operators import traits_of
from optimizer.evaluation.problem.spec import Case, Policy, Problem
from optimizer.evaluation.problem.tensors import open_case
from optimizer.search.context import CaseView, ProblemView


def problem_view(problem: Problem, device: str) -> ProblemView:
    """Of the searched cases for this kind of device; the held-out ones stay unseen."""
    cases = [case for case in problem.searched if case.fits(device)]
    return ProblemView(
        name=problem.name,
        op=problem.op,
        summary=problem.summary,
        source=problem.source,
        cases=tuple(_case_view(problem, case, device) for case in cases),
        policy=_policy(problem.policy),
    )


def _case_view(problem: Problem, case: Case, device: str) -> CaseView:
    opened = open_case(problem, case)
    dtype = case.dtype or next(
        (t.dtype for t in opened.signature.tensors if t.dtype.startswith(("float", "bfloat"))), None
    )
    return CaseView(case.name, opened.signature, traits_of(opened, device), case.timed, dtype)


def _policy(policy: Policy) -> dict[str, str]:
    return {
        "precision": policy.precision,
        "library": policy.library,
        "weights": policy.weights,
        "outputs": ", ".join(policy.outputs) or "float",
    }
