"""Where a skill is tried: problems and cases that it was not distilled from, and could be offered
in."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from kb.catalog.skills import SkillRow
from kb.errors import Unavailable
from kb.problem_terms import canonical_dtype, op_family
from optimizer.evaluation.problem.spec import Case
from skills.curator.quantities import leaves_in
from skills.trials.held_out import Unseen, as_only, every_unseen
from skills.trials.trial_context import Means

MAX_TRIALS = 3  # of a skill
MAX_LOOKED_AT = 3 * MAX_TRIALS  # of which some lie outside of what the skill is about


def admitted(means: Means, skill: SkillRow) -> None:
    """Raises Unavailable: what is about another chip or language cannot be proven here."""
    here = means.hardware
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
    means: Means, skill: SkillRow, apart_from: Collection[tuple[str, str]]
) -> Iterator[Unseen]:
    """Without what was tried, and where it could not be offered: nobody will hear what it says of
    other operators and sizes. apart_from: (sha256 of a problem, case) pairs."""
    facts = means.hardware.facts
    for unseen in islice(_unseen(means, skill), MAX_LOOKED_AT):
        if (unseen.problem.sha256, unseen.case.name) in apart_from:
            continue
        if leaves_in(skill, unseen.problem, unseen.case, facts):
            yield unseen


def nothing_unseen(skill: SkillRow) -> Unavailable:
    return Unavailable(
        f"no unseen problem or case here is one that {skill.name} is about",
        hint="Add a problem of its op family with `kernlore problem new`.",
    )


def _unseen(means: Means, skill: SkillRow) -> Iterator[Unseen]:
    """Other problems of its families first: they are further from what it was made of."""
    device = means.hardware.device or "cpu"
    families = {op_family(op) for op in skill.scopes.ops}
    own = {sha256 for sha256, _ in means.seen}
    fitting = [p for p in means.problems if not families or op_family(p.op) in families]
    for problem in fitting:
        main = next((c for c in problem.searched if _timed_for(skill, c, device)), None)
        if problem.sha256 not in own and main is not None:
            yield as_only(problem, main, "another problem")
    for problem in fitting:
        if problem.sha256 in own:
            known = [case for sha256, case in means.seen if sha256 == problem.sha256]
            seed = means.seed
            yield from every_unseen(problem, device, seed, known)


def _timed_for(skill: SkillRow, case: Case, device: str) -> bool:
    dtypes = {canonical_dtype(dtype) for dtype in skill.scopes.dtypes}
    fitting = not dtypes or case.dtype is None or canonical_dtype(case.dtype) in dtypes
    return case.timed and case.fits(device) and fitting
