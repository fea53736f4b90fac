"""Evidence for shipped skills: trials on cases that they were not made from, here or in a packed
session, as lines of `evidence.jsonl`.

A recipe is tried on two cases inside its preconditions, one at their edge and one outside. Each
shipped recipe was made from the built-in problem that it fits, so other problems come first: those
of a folder. Then follow held-out cases of that problem, and other sizes.

A skill that is text is tried with a model, which writes kernels with the skill in its request,
without it, and with a placebo, another skill of the language that is about other operators. The
drafts are written first, each from a request of its arm alone and independently of the other
drafts, and evaluated like candidates of recipes (`RecipeTrials`). The interval of a gain is that of
the timing; drafts of one request differ by more, which shows in the figure of the placebo.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kb.catalog.skills.reading import SkillRow, get_skill, list_skills
from kb.catalog.skills.shipped import (
    EVIDENCE_FILE,
    ShippedTrial,
    SkillEffect,
    effect_of,
    trial_from_json,
)
from kb.errors import Conflict, InvalidRequest, KernloreError, NotFound, Unavailable
from kb.ids import new_id
from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import canonical_dtype, canonical_op, op_family
from kb.scope import ALL_ACCESS
from optimizer.evaluation.collectors.probe import identify
from optimizer.evaluation.problem.load import SHIPPED, SOURCE_NAME, load_problem
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.search.bench.local import problem_view
from optimizer.search.goal import Goal
from optimizer.search.knowledge import KnowledgeSnapshot, KnowledgeSource
from optimizer.search.loop import Listener
from optimizer.search.portable.skill_trial import (
    PlannedTrial,
    RecipeTrials,
    SilentListener,
    TrialRecord,
    only_case,
)
from optimizer.search.records import Node
from optimizer.search.runs.hardware_view import hardware_view_of
from optimizer.search.runs.knowledge import ServiceKnowledge, library_recipes, recipe_of
from optimizer.search.runs.sessions import draft_candidates, session_target, write_session
from optimizer.search.store import RunRow
from optimizer.search.synthesizers.base import ProblemView
from optimizer.search.synthesizers.llm.settings import ModelOptions
from optimizer.search.synthesizers.recipe.recipe import Recipe, RecipeMismatch, match
from optimizer.search.synthesizers.recipe.synthesizer import fit, start
from retrieval.knowledge_base import KnowledgeBase
from skills.trials.trial import LEAST, can_be_offered
from skills.trials.verification import Verifier, WithSkill

BUDGET = 3  # candidates of each search
INSIDE = 2  # cases of each skill
UNUSABLE = (KernloreError, RuntimeError, ValueError, IndexError, AssertionError, TypeError)
SIZED = (0.5, 1.5, 0.75, 1.25)
SHRINKING = (1 / 8, 1 / 64)
GROWING = (8, 64)
MOST = 1.6  # times the elements of the main case that another size may have
NO_RECIPE = "it is text, which no search follows without a language model"
TRANSCRIPTS = "benchmarks/results/skill_trials"


@dataclass(frozen=True)
class TrialCase:
    """One setting of a problem, with the reason why no recipe was made from it."""

    problem: Problem
    case: Case
    unseen: str


@dataclass
class TrialPlanner:
    """Chooses the cases of trials by the preconditions of a recipe. `device` is a kind of device;
    `remote`: it is on another machine, so that references are not run here."""

    problems: Sequence[Problem]
    facts: Mapping[str, float | str]
    device: str
    remote: bool = False
    _views: dict[tuple[str, str], ProblemView | None] = field(default_factory=dict)

    def plan(self, skill: SkillRow, recipe: Recipe) -> list[PlannedTrial]:
        """The trials of a skill: inside, at the edge, outside. Fewer if no such case exists."""
        origin = [p for p in self.problems if _shipped(p) and self._made_from(recipe, p)]
        inside = self._inside(skill, recipe, origin)
        edge = self._edge(skill, recipe, origin, inside)
        outside = self._outside(skill, recipe, origin)
        chosen = [("inside", s, "") for s in inside]
        chosen += [("edge", edge, "")] if edge is not None else []
        chosen += [("outside", *outside)] if outside is not None else []
        return [
            PlannedTrial(
                skill.name,
                only_case(sizes.problem, sizes.case),
                sizes.case,
                "inside" if place == "inside" else "edge" if place == "edge" else "outside",
                sizes.unseen,
                seed,
                reason,
            )
            for seed, (place, sizes, reason) in enumerate(chosen)
        ]

    def _inside(
        self, skill: SkillRow, recipe: Recipe, origin: Sequence[Problem]
    ) -> list[TrialCase]:
        chosen: list[TrialCase] = []
        for sizes in self._unseen(recipe, origin):
            if self.mismatch(skill, recipe, sizes) is None:
                chosen.append(sizes)
                if len(chosen) == INSIDE:
                    break
        return chosen

    def _unseen(self, recipe: Recipe, origin: Sequence[Problem]) -> Iterator[TrialCase]:
        for problem in self._fitting(recipe, origin):
            main = self._main(problem)
            if main is not None:
                yield TrialCase(problem, main, "another problem")
        for problem in origin:
            for case in problem.held_out:
                if case.fits(self.device):
                    yield TrialCase(problem, case, "held out")
        for problem in origin:
            yield from self._resized(problem)

    def _fitting(self, recipe: Recipe, origin: Sequence[Problem]) -> list[Problem]:
        families = {op_family(op) for op in recipe.ops}
        apart = [p for p in self.problems if p not in origin]
        return [p for p in apart if not families or op_family(p.op) in families]

    def _edge(
        self,
        skill: SkillRow,
        recipe: Recipe,
        origin: Sequence[Problem],
        inside: Sequence[TrialCase],
    ) -> TrialCase | None:
        """The sizes within the preconditions next to a size that they exclude; without any, the
        most extreme ones."""
        known = [(s.problem.sha256, dict(s.case.constants)) for s in inside]
        farthest: TrialCase | None = None
        for problem in origin:
            before: dict[tuple[str, bool], TrialCase] = {}
            for name, factor, sizes in self._stretched(problem):
                if (problem.sha256, dict(sizes.case.constants)) in known:
                    continue
                side = (name, factor > 1)
                mismatch = self.mismatch(skill, recipe, sizes)
                if mismatch is None:
                    before[side] = farthest = sizes
                elif mismatch and side in before:
                    return before[side]
        return farthest

    def _stretched(self, problem: Problem) -> Iterator[tuple[str, float, TrialCase]]:
        """The main case with one size changed further and further, for one size after another, with
        the factor; about the same number of elements, and at least some."""
        main = self._main(problem)
        if main is None:
            return
        sizes = _sizes(main)
        for name in sizes:
            for factors in (SHRINKING, GROWING):
                for factor in factors:
                    changed = self._changed(problem, main, sizes, name, factor, "extreme sizes")
                    if changed is not None:
                        yield name, factor, changed

    def _outside(
        self, skill: SkillRow, recipe: Recipe, origin: Sequence[Problem]
    ) -> tuple[TrialCase, str] | None:
        """A case of the same family of operators that the preconditions exclude, and by which."""
        others = [(p, self._main(p)) for p in self._fitting(recipe, origin)]
        cases = [TrialCase(p, case, "another problem") for p, case in others if case is not None]
        for problem in origin:
            main = self._main(problem)
            dtypes = [c.dtype for c in problem.cases if main and c.dtype not in (None, main.dtype)]
            if main is not None and dtypes:
                dtype = dtypes[0]
                changed = replace(main, name=f"{main.name}_{dtype}", dtype=dtype)
                cases.append(TrialCase(problem, changed, "another dtype"))
        for sizes in cases:
            reason = self.mismatch(skill, recipe, sizes)
            if reason:
                return sizes, reason
        return None

    def _resized(self, problem: Problem) -> Iterator[TrialCase]:
        """The main case with one size changed a little."""
        main = self._main(problem)
        if main is None:
            return
        sizes = _sizes(main)
        for factor in SIZED:
            for name in sorted(sizes, key=lambda n: -sizes[n]):
                changed = self._changed(problem, main, sizes, name, factor, "other sizes")
                if changed is not None:
                    yield changed

    def _changed(
        self,
        problem: Problem,
        main: Case,
        sizes: Mapping[str, int],
        name: str,
        factor: float,
        why: str,
    ) -> TrialCase | None:
        """The main case with one size changed by a factor, and another one, the largest that allows
        it, changed the other way where there would be too many elements. None if neither opens."""
        most = self._elements(TrialCase(problem, main, why)) * MOST
        others = [n for n in sorted(sizes, key=lambda n: -sizes[n]) if n != name]
        # Larger inputs are drawn where shapes depend on values, so none is opened to be refused.
        for other in others if factor > MOST else (None, *others):
            constants = {**main.constants, name: max(1, round(sizes[name] * factor))}
            if other is not None:
                constants[other] = max(1, round(sizes[other] / factor))
            case = replace(main, name=_label(constants, main), constants=constants)
            changed = TrialCase(problem, case, why)
            if 0 < self._elements(changed) <= most:
                return changed
        return None

    def _elements(self, sizes: TrialCase) -> int:
        """The elements of all tensors of a case; 0 if it cannot be opened."""
        view = self._view(sizes)
        return sum(t.elements for t in view.main.signature.tensors) if view is not None else 0

    def _main(self, problem: Problem) -> Case | None:
        cases = (c for c in problem.searched if c.timed and c.fits(self.device))
        return next(cases, None)

    def _made_from(self, recipe: Recipe, problem: Problem) -> bool:
        if recipe.ops and problem.op not in recipe.ops:
            return False
        view = self._view_of(problem)
        return view is not None and any(
            not isinstance(
                match(recipe, case.signature, case.traits, self.facts, problem.op, case.kinds),
                RecipeMismatch,
            )
            for case in view.cases
        )

    def _view(self, sizes: TrialCase) -> ProblemView | None:
        return self._view_of(only_case(sizes.problem, sizes.case))

    def _view_of(self, problem: Problem) -> ProblemView | None:
        key = (problem.sha256, repr(problem.cases))
        if key not in self._views:
            try:
                self._views[key] = problem_view(problem, self.device, remote=self.remote)
            except UNUSABLE:  # the reference is foreign code, and sizes may be impossible
                self._views[key] = None
        return self._views[key]

    def mismatch(self, skill: SkillRow, recipe: Recipe, sizes: TrialCase) -> str | None:
        """Why the skill makes no candidate for a case: "" for a case that cannot be opened, None if
        it makes one."""
        view = self._view(sizes)
        if view is None:
            return ""
        main = view.main
        bound = match(recipe, main.signature, main.traits, self.facts, view.op, main.kinds)
        if isinstance(bound, RecipeMismatch):
            return bound.reason
        fitting = fit(recipe, view, self.facts)
        if fitting is None or start(fitting, self.facts) is None:
            return "no values of its parameters satisfy its constraints"
        if not self.remote and not can_be_offered(skill, sizes.problem, sizes.case, self.facts):
            return f"its precondition excludes it: {skill.predicate}"
        return None


def _sizes(main: Case) -> dict[str, int]:
    """The constants of a case that are sizes rather than modes."""
    return {
        name: value
        for name, value in main.constants.items()
        if isinstance(value, int) and not isinstance(value, bool) and value >= LEAST
    }


def _label(constants: Mapping[str, Any], main: Case) -> str:
    changed = [f"{k}_{v}" for k, v in constants.items() if v != main.constants.get(k)]
    return "_".join(changed) or main.name


def _shipped(problem: Problem) -> bool:
    return problem.path.is_relative_to(SHIPPED)


# -- here


@dataclass(frozen=True)
class Proof:
    """The trials of a skill on one device, as lines to ship, and the rows with their searches."""

    skill: str
    trials: Sequence[ShippedTrial]
    transcripts: Sequence[Mapping[str, Any]] = ()

    @property
    def effect(self) -> SkillEffect:
        return effect_of(self.trials)


class Prover:
    """Runs trials of shipped skills on this machine, or packs them for another one."""

    def __init__(
        self,
        base: KnowledgeBase,
        problems: Path | None = None,
        models: ModelOptions | None = None,
        listener: Listener | None = None,
    ) -> None:
        if problems is not None and not problems.is_dir():
            raise NotFound(f"no folder {problems}", hint="Give a folder of problems.")
        self._base = base
        self._models = models if models is not None and models.models else None
        self._listener = listener or SilentListener()
        self._verifier = Verifier(base)
        self._folder = problems

    def names(self, wanted: Sequence[str]) -> list[str]:
        """The named skills, or all shipped ones. Raises NotFound, and Conflict for a skill that
        does not ship."""
        with self._base.catalog.read() as connection:
            rows = [get_skill(connection, name) for name in wanted] or list_skills(
                connection, states=("active",), origin="shipped", access_scope=ALL_ACCESS
            )
        for row in rows:
            if row.origin != "shipped":
                raise Conflict(
                    f"{row.name} does not ship with Kernlore",
                    hint="`kernlore skills verify` measures it on this machine.",
                )
        return [row.name for row in rows]

    def prove(
        self,
        names: Sequence[str],
        budget: int,
        command: str,
        say: Callable[[str], None],
    ) -> Iterator[Proof]:
        """The trials of each skill as they end. A skill that cannot be tried here has one line that
        says why."""
        places = self._verifier.places
        target = next(iter(places.values())).target
        hardware = hardware_view_of(target, places)
        device = target.device or "cpu"
        planner = TrialPlanner(self._problems(), hardware.facts, device)
        recipes = library_recipes(self._base)
        running = RecipeTrials(recipes, hardware, budget, say=say)
        session = {
            "hardware": hardware.id,
            "lineage": hardware.lineage,
            "device": device,
            "languages": {name: "" for name in hardware.languages},
            "facts": hardware.facts,
        }
        for name in names:
            skill = self._skill(name)
            reason = self._why_untried(skill, hardware.id, hardware.lineage, hardware.languages)
            if reason:
                row = ShippedTrial(hardware.id, _today(), command=command, untried=reason)
                yield Proof(name, [row])
                continue
            rows, transcripts = list[ShippedTrial](), list[Mapping[str, Any]]()
            for planned in self._planned(skill, planner, session, budget):
                load = round(os.getloadavg()[0], 2)
                record = self._record(planned, running, hardware.id, say)
                say(_line(record))
                transcripts.append(record.as_json())
                rows.append(shipped_trial(transcripts[-1], command, load))
            if not rows:
                why = "no problem here fits its preconditions"
                rows = [ShippedTrial(hardware.id, _today(), command=command, untried=why)]
            yield Proof(name, rows, transcripts)

    def _record(
        self,
        planned: PlannedTrial,
        running: RecipeTrials,
        hardware: str,
        say: Callable[[str], None],
    ) -> TrialRecord:
        if planned.place == "outside":
            return TrialRecord(planned, hardware, identify("cpu").name, note=planned.reason)
        say(f"{planned.skill}: {planned.place}, {planned.problem.name} {planned.case.name}")
        try:
            with self._verifier.bench(planned.problem) as bench:
                return running.run(planned, bench)
        except (KernloreError, OSError) as problem:
            return TrialRecord(planned, hardware, note=f"not measured: {problem}")

    def _skill(self, name: str) -> SkillRow:
        with self._base.catalog.read() as connection:
            return get_skill(connection, name)

    def _problems(self) -> list[Problem]:
        """The problems of the folder, and the built-in ones, which sizes are drawn from."""
        return [*_problems_in(self._folder), *self._verifier.all_problems]

    def _own_problems(self, skill: str) -> list[Problem]:
        """The problems in the subfolder with a skill's name."""
        return _problems_in(self._folder / skill if self._folder is not None else None)

    def _planned(
        self, skill: SkillRow, planner: TrialPlanner, target: Mapping[str, Any], budget: int
    ) -> list[PlannedTrial]:
        """The trials of a skill, with the drafts of models for one that is text."""
        recipe = recipe_of(skill)
        if recipe is not None:
            return planner.plan(skill, recipe)
        assert self._models is not None
        trials = TextTrials(
            self._base,
            planner.problems,
            self._own_problems,
            target,
            self._models,
            budget,
            self._listener,
        )
        return trials.drafted(trials.plan(skill), skill)

    def _why_untried(
        self, skill: SkillRow, hardware: str, lineage: Sequence[str], languages: Sequence[str]
    ) -> str:
        """Why a skill cannot be tried on a hardware; empty if it can."""
        chips, own = set(skill.scopes.hardware), set(skill.scopes.languages)
        if chips and not chips & set(lineage):
            return f"no {' or '.join(sorted(chips))} was at hand"
        if skill.recipe is None and self._models is None:
            return NO_RECIPE
        if own and not own & set(languages):
            return f"no device for {', '.join(sorted(own))} was at hand"
        return ""

    # -- elsewhere

    def pack(
        self,
        names: Sequence[str],
        hardware: str,
        budget: int,
        output: Path,
        say: Callable[[str], None],
    ) -> dict[str, Any]:
        """Write a session with the trials of these skills for a hardware, which need not be here.
        Raises UnknownHardware, and Unavailable if no skill can be tried on it."""
        identity = self._base.registry.resolve(hardware)
        target = session_target(self._base, identity)
        planner = TrialPlanner(
            self._problems(), target["facts"], target["device"], target["device"] != "cpu"
        )
        trials, left = list[PlannedTrial](), dict[str, str]()
        languages = tuple(target["languages"])
        for name in names:
            skill = self._skill(name)
            reason = self._why_untried(skill, identity, target["lineage"], languages)
            planned = [] if reason else self._planned(skill, planner, target, budget)
            say(f"{name}: {len(planned)} trials" if planned else f"{name}: {reason or 'no case'}")
            if not planned:
                left[name] = reason or "no problem fits its preconditions"
            trials += planned
        searched = [trial for trial in trials if trial.place != "outside"]
        if not searched:
            raise Unavailable(
                f"none of these skills can be tried on {identity}",
                hint="Name skills for one of its languages; one that is text needs --models.",
            )
        recipes = [r for r in library_recipes(self._base) if r.language in languages]
        with self._base.catalog.read() as connection:
            rows = {r.name: get_skill(connection, r.name, ALL_ACCESS) for r in recipes}
        write_session(
            output,
            session_id=new_id("session"),
            goal=asdict(Goal(candidates=budget)),
            target=target,
            trials=_in_rounds(trials),
            knowledge=KnowledgeSnapshot(),
            recipes=[
                {"name": n, "recipe": r.recipe, "files": r.metadata.get("files", {})}
                for n, r in rows.items()
            ],
        )
        return {"session": str(output), "trials": len(searched), "left out": left}


def _problems_in(folder: Path | None) -> list[Problem]:
    """The problems of a folder; none without one."""
    if folder is None or not folder.is_dir():
        return []
    paths = [*folder.glob("*.py"), *folder.glob(f"*/{SOURCE_NAME}")]
    return [load_problem(path) for path in sorted(paths)]


def _in_rounds(trials: Sequence[PlannedTrial]) -> list[PlannedTrial]:
    """Cases inside of every skill first, so that a session that runs out of time has tried all."""
    return sorted(trials, key=lambda trial: trial.seed)


def proofs_of(results: Path, command: str) -> list[Proof]:
    """The trials of a packed session by skill. Raises NotFound and InvalidRequest."""
    if not results.exists():
        raise NotFound(f"{results} is not there", hint="Give results.zip or its folder.")
    with _opened(results) as folder:
        rows = [json.loads(p.read_text(encoding="utf-8")) for p in folder.glob("*.trial.json")]
    if not rows:
        raise InvalidRequest(
            f"{results} holds no trial", hint="Give the results of `kernlore skills prove --pack`."
        )
    by_skill: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["skill"], row["seed"])):
        by_skill.setdefault(row["skill"], []).append(row)
    return [
        Proof(name, [shipped_trial(row, command, row.get("load")) for row in own], own)
        for name, own in by_skill.items()
    ]


@contextmanager
def _opened(results: Path) -> Iterator[Path]:
    if results.is_dir():
        yield results
        return
    with tempfile.TemporaryDirectory(prefix="kernlore-trials-") as folder:
        try:
            with zipfile.ZipFile(results) as packed:
                packed.extractall(folder)
        except zipfile.BadZipFile as error:
            raise InvalidRequest(f"{results} is no zip file", hint="Give results.zip.") from error
        yield Path(folder)


# -- lines of evidence


def shipped_trial(row: Mapping[str, Any], command: str, load: float | None) -> ShippedTrial:
    """The line of a trial's row, as `TrialRecord.as_json` writes it."""
    fields = {k: row[k] for k in ShippedTrial.__dataclass_fields__ if k in row}
    fields |= {"date": row.get("date") or _today(), "command": command, "load": load}
    fields["versions"] = row.get("versions") or dict(identify("cpu").versions)
    fields["transcript"] = f"{TRANSCRIPTS}/{row['skill']}.{row['hardware']}.jsonl"
    return trial_from_json(fields)


def write_evidence(library: Path, proof: Proof) -> Path:
    """Add the lines to a skill's `evidence.jsonl`, in place of those of the same cases on these
    chips and of those that say why nothing was measured; add the transcript next to the
    repository's results where it has such a folder. Raises NotFound."""
    name, trials, transcripts = proof.skill, proof.trials, proof.transcripts
    folder = library / name
    if not folder.is_dir():
        raise NotFound(f"{library} has no skill {name}", hint="Give the folder of the library.")
    path = folder / EVIDENCE_FILE
    measured = any(not trial.untried for trial in trials)
    _add_rows(
        path, [t.as_json() for t in trials], lambda row: measured and bool(row.get("untried"))
    )
    results = library.parent.parent / "benchmarks" / "results"
    if transcripts and results.is_dir():
        for chip in sorted({trial.hardware for trial in trials}):
            target = library.parent.parent / TRANSCRIPTS / f"{name}.{chip}.jsonl"
            target.parent.mkdir(exist_ok=True)
            _add_rows(target, [t for t in transcripts if t["hardware"] == chip])
    return path


def _add_rows(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    is_void: Callable[[Mapping[str, Any]], bool] = lambda row: False,
) -> None:
    """Add rows to a file of trials, in place of those of the same cases and of void ones."""

    def case(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(key) for key in ("hardware", "problem", "case", "dtype"))

    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    stored = [json.loads(line) for line in text.splitlines() if line]
    replaced = {case(row) for row in rows}
    left = [row for row in stored if case(row) not in replaced and not is_void(row)]
    lines = [json.dumps(row, ensure_ascii=False) for row in (*left, *rows)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _line(record: TrialRecord) -> str:
    planned = record.planned
    gain = record.gain
    figure = f"{gain.value:.3f} [{gain.low:.3f}, {gain.high:.3f}]" if gain else record.note
    return f"{planned.skill} {planned.place} {planned.problem.name} {planned.case.name}: {figure}"


# -- skills that are text


@dataclass(frozen=True)
class TextTrials:
    """Chooses cases for text skills and asks models for their drafts.

    `target` is that of a session, `budget` the drafts of each arm, `at_once` the requests that
    models get concurrently. `own_problems` are those for a skill of a name alone.
    """

    base: KnowledgeBase
    problems: Sequence[Problem]
    own_problems: Callable[[str], Sequence[Problem]]
    target: Mapping[str, Any]
    models: ModelOptions
    budget: int
    listener: Listener
    at_once: int = 8

    def plan(self, skill: SkillRow) -> list[PlannedTrial]:
        """The cases of a skill without drafts: inside its preconditions, and one outside if there
        is any."""
        inside, outside = list[PlannedTrial](), list[PlannedTrial]()
        for problem in self._fitting(skill):
            case = next(
                (c for c in problem.searched if c.timed and c.fits(self.target["device"])), None
            )
            if case is None or (excluded := self._excluded(skill, problem, case)) is None:
                continue
            place = outside if excluded else inside
            if len(place) < (1 if excluded else INSIDE):
                reason = f"its precondition excludes it: {skill.predicate}" if excluded else ""
                place.append(
                    PlannedTrial(
                        skill.name,
                        only_case(problem, case),
                        case,
                        "outside" if excluded else "inside",
                        "another problem",
                        len(place) + (INSIDE if excluded else 0),
                        reason,
                    )
                )
        return [*inside, *outside]

    def _fitting(self, skill: SkillRow) -> list[Problem]:
        """Problems of the skill's own folder, then those of its operators."""
        families = {op_family(op) for op in skill.scopes.ops}
        others = [p for p in self.problems if not families or op_family(p.op) in families]
        return [*self.own_problems(skill.name), *others]

    def _excluded(self, skill: SkillRow, problem: Problem, case: Case) -> bool | None:
        """Whether the precondition excludes a case; unknown terms, such as signals, exclude
        nothing. None for a case that cannot be opened."""
        try:
            view = problem_view(only_case(problem, case), self.target["device"], remote=True)
        except UNUSABLE:  # the reference is foreign code
            return None
        main = view.main
        terms: dict[str, float | str | None] = {
            **main.quantities,
            "op": canonical_op(problem.op),
            "dtype": canonical_dtype(main.dtype) if main.dtype else None,
            "language": self._language(skill),
        }
        known = Bindings(facts=dict(self.target["facts"]), problem=terms)
        predicate = skill.predicate
        return bool(predicate) and compile_predicate(predicate).evaluate(known).value is False

    def _language(self, skill: SkillRow) -> str:
        own = skill.scopes.languages
        offered: Mapping[str, str] = self.target["languages"]
        return next(name for name in offered if not own or name in own)

    # -- drafts

    def drafted(self, planned: Sequence[PlannedTrial], skill: SkillRow) -> list[PlannedTrial]:
        """The trials with the drafts of their arms; those outside are not drafted, and one without
        a draft with or without the skill is left out. Raises Unavailable if no draft is left."""
        chances = [
            (trial, arm, source)
            for trial in planned
            if trial.place != "outside"
            for arm, source in self._arms(skill, trial).items()
            for _ in range(self.budget)
        ]
        with ThreadPoolExecutor(self.at_once) as pool:
            nodes = list(pool.map(lambda chance: self._draft(skill, *chance), chances))
        result, why = list[PlannedTrial](), ""
        for trial in planned:
            drafts: dict[str, list[Node]] = {}
            for (of, arm, _), (node, reason) in zip(chances, nodes, strict=True):
                if of is trial:
                    drafts.setdefault(arm, []).extend([node] if node is not None else [])
                    why = why or reason
            if trial.place == "outside" or (drafts.get("with") and drafts.get("without")):
                result.append(replace(trial, drafts=drafts, model=self.models.models))
        if chances and not any(trial.drafts for trial in result):
            raise Unavailable(
                f"no model wrote kernels for {skill.name}: {why}",
                hint="Check --models and --api-base.",
            )
        return result

    def _arms(self, skill: SkillRow, trial: PlannedTrial) -> dict[str, KnowledgeSource]:
        knowledge = ServiceKnowledge(self.base)
        arms: dict[str, KnowledgeSource] = {
            "with": WithSkill(knowledge, skill, skill.name),
            "without": WithSkill(knowledge, None, skill.name),
        }
        if (placebo := self._placebo(skill, trial.problem)) is not None:
            arms["placebo"] = WithSkill(knowledge, placebo, skill.name)
        return arms

    def _placebo(self, skill: SkillRow, problem: Problem) -> SkillRow | None:
        """The text skill nearest in length that is about other operators, in the same language if
        there is any."""
        families = {op_family(op) for op in (*skill.scopes.ops, problem.op)}
        with self.base.catalog.read() as connection:
            rows = list_skills(connection, states=("active",), access_scope=ALL_ACCESS)
        others = [
            row
            for row in rows
            if row.recipe is None
            and row.scopes.ops
            and families.isdisjoint(op_family(op) for op in row.scopes.ops)
        ]
        language = self._language(skill)
        return min(
            others,
            key=lambda row: (
                language not in row.scopes.languages,
                abs(len(row.body) - len(skill.body)),
                row.name,
            ),
            default=None,
        )

    def _draft(
        self, skill: SkillRow, trial: PlannedTrial, arm: str, source: KnowledgeSource
    ) -> tuple[Node | None, str]:
        run = RunRow(
            id=new_id("run"),
            problem=str(trial.problem.path),
            problem_sha256=trial.problem.sha256,
            hardware=self.target["hardware"],
            goal=Goal(language=self._language(skill), seed=trial.seed, synthesizers=("llm",)),
        )
        try:
            nodes, why = draft_candidates(
                self.base, run, trial.problem, self.target, self.models, 1, self.listener, source
            )
        except KernloreError as error:
            return None, f"{error.message}. {error.hint}"
        return (nodes[-1], "") if len(nodes) > 1 else (None, f"{arm}: {why}")
