"""Ablation trials wired to this machine: shipped problems or given ones, the local device, the
recipes of active skills."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from kb.catalog import skills as store
from kb.catalog.skills import SkillRow
from kb.errors import InvalidRequest, NotFound, Unavailable
from kb.scope import ALL_ACCESS
from optimizer.evaluation.problem.load import SHIPPED, SOURCE_NAME, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.targets import AUTO
from optimizer.search.bench.local import Place
from optimizer.search.bench.simulated import SimulatedBench
from optimizer.search.runs.knowledge import ServiceKnowledge, library_recipes
from optimizer.search.runs.optimize import bench_for, hardware_view_of, places_for
from retrieval.knowledge_base import KnowledgeBase
from skills.lifecycle import queue
from skills.trials.ablation import RecipeAblation
from skills.trials.trial_context import ConfirmingBench, Means
from skills.trials.verification import judge, verify


def waiting(base: KnowledgeBase, *, queued: bool) -> list[str]:
    """Names: of what is to be measured again, else of learned candidates."""
    if queued:
        return [one.name for one in queue(base.catalog)]
    with base.catalog.read() as connection:
        rows = store.heads(
            connection, states=("candidate",), tier="learned", access_scope=ALL_ACCESS
        )
    return [row.name for row in rows]


class Verifier:
    """problems: a folder of them, None for the shipped ones."""

    def __init__(self, base: KnowledgeBase, problems: Path | None = None) -> None:
        self._base = base
        self._folder = problems

    def verified(self, name: str, budget: int, actor: str) -> dict[str, Any]:
        """What came of it; one that nothing here can measure stays what it is and says why."""
        skill = self._skill(name)
        try:
            found = verify(
                self._base.catalog, name, self._ablation(skill), budget=budget, actor=actor
            )
        except Unavailable as problem:
            told = f"not verified: {problem.message}. {problem.hint}"
            return {"skill": name, "state": skill.state, "reason": told, "gain": None, "trials": []}
        return {
            "skill": name,
            "state": found.state,
            "reason": found.verdict.reason,
            "gain": asdict(found.verdict.gain) if found.verdict.gain is not None else None,
            "trials": [asdict(trial) for trial in found.trials],
        }

    def tried(self, name: str, budget: int) -> dict[str, Any]:
        """The trials and what they would mean. Raises Unavailable."""
        skill = self._skill(name)
        trials = tuple(self._ablation(skill).trials(skill, budget))
        verdict = judge(trials, skill.polarity)
        return {
            "skill": name,
            "state": skill.state,
            "helps": verdict.helps,
            "reason": verdict.reason,
            "gain": asdict(verdict.gain) if verdict.gain is not None else None,
            "trials": [asdict(trial) for trial in trials],
        }

    def _skill(self, name: str) -> SkillRow:
        with self._base.catalog.read() as connection:
            return store.get(connection, name, ALL_ACCESS)

    # -- what trials are run with

    @cached_property
    def _problems(self) -> list[Problem]:
        if self._folder is None:
            return [load_problem(SHIPPED / name) for name in shipped_problems()]
        if not self._folder.is_dir():
            raise NotFound(f"no folder {self._folder}", hint="Give a folder of problems.")
        paths = [*self._folder.glob("*.py"), *self._folder.glob(f"*/{SOURCE_NAME}")]
        if not paths:
            raise InvalidRequest(
                f"there is no problem in {self._folder}",
                hint=f"Put NAME.py or NAME/{SOURCE_NAME} there; `kernlore problem new` writes one.",
            )
        return [load_problem(path) for path in sorted(paths)]

    @cached_property
    def _places(self) -> dict[str, Place]:
        return places_for(self._base, AUTO, None)

    def _ablation(self, skill: SkillRow) -> RecipeAblation:
        base, places = self._base, self._places
        target = next(iter(places.values())).target
        return RecipeAblation(
            Means(
                problems=self._problems,
                bench=self._bench,
                recipes=library_recipes(base),
                knowledge=ServiceKnowledge(base),
                hardware=hardware_view_of(target, places),
                seen=self._seen(skill),
            )
        )

    @contextmanager
    def _bench(self, problem: Problem) -> Iterator[ConfirmingBench]:
        with bench_for(self._base, problem, self._places) as bench:
            if isinstance(bench, SimulatedBench):
                raise Unavailable(
                    "only a simulator is here, and its times are no wall time",
                    hint="Verify where the device itself is.",
                )
            yield bench

    def _seen(self, skill: SkillRow) -> frozenset[tuple[str, str]]:
        """Pairs that its evidence was measured on, except by trials; with the searched cases of
        those problems, which the search that it comes from saw too."""
        with self._base.catalog.read() as connection:
            rows = store.evidence_of(connection, skill.id, ALL_ACCESS)
        made_of = [row for row in rows if row.kind != "ablation" and row.problem_id is not None]
        found = {(str(row.problem_id), row.case_id or "") for row in made_of}
        own = {sha256 for sha256, _ in found}
        for problem in self._problems:
            if problem.sha256 in own:
                found |= {(problem.sha256, case.name) for case in problem.searched}
        return frozenset(found)
