"""Skills from a git history: each change that claims speed is measured here, split into steps, and
judged by the curator like any other trajectory.

A change is bound to a problem by its results (`binding`). Both versions are compiled and checked;
those that are right are timed against the same reference, and the hunks between them are applied
one after the other, so that a step that does not compile, is wrong or makes no certain difference
is joined with the next. The author's claim is stored and compared, and enters no figure.

A history is read from git, a series of patches, or files that are steps of one kernel.
Repositories are read with git in place and not changed. A commit counts if its message claims
speed.
"""

from __future__ import annotations

import difflib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Literal

from kb.errors import InvalidRequest, KernloreError
from kb.ids import new_id
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.evaluate import problem_from_text
from optimizer.evaluation.journal import EvaluationJournal
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.timing.statistics import independent_ratio
from optimizer.evaluation.toolchains.command import CommandToolchain
from optimizer.search.bench.local import LocalBench, TargetToolchain
from optimizer.search.bench.simulated import SimulatedBench
from optimizer.search.records import Proposal
from optimizer.search.runs.places import bench_for, places_for
from retrieval.knowledge_base import KnowledgeBase
from skills.curator.comparison import canonical, kernel_key, shown_lines
from skills.curator.contrast import gain_of, noise_floor
from skills.curator.distil import Distilled, distil_source
from skills.curator.excerpt import kernel_code
from skills.curator.pipeline import KNOWN
from skills.lineage.binding import (
    CPU,
    EMULATOR,
    GPU,
    BoundCall,
    Reference,
    bundle_of,
    calls_of,
    references,
)
from skills.lineage.functions import (
    C_SUFFIXES,
    CFunction,
    CParameter,
    functions_of,
    python_functions_of,
)
from skills.trajectories.external import (
    SYNTHESIZER,
    ExternalProblem,
    ExternalStep,
    ExternalTrajectory,
)
from skills.trajectories.git_history import (
    CLAIM,
    Commit,
    Repository,
    claimed_speedup,
    run_git,
)
from skills.trajectories.queue import accept, resolved_hardware
from skills.trajectories.reading import trajectory, trajectory_store
from skills.trajectories.records import TrajectoryStep
from skills.trajectories.reevaluate import measured_end

Bench = LocalBench | SimulatedBench
ACTOR = "history"
ORIGIN = "history"  # of stored trajectories
MOST_HUNKS = 8
SHOWN = 160  # characters of a compiler's message
Outcome = Literal["learned", "measured", "refused"]


@dataclass(frozen=True)
class HistoryRequest:
    """What to look at. `files_are_steps`: the paths are versions of one kernel, in order.
    A path of a step may name its function, `PATH:FUNCTION`.

    `problem` with `call`, C statements over the arrays `t` or a Python expression over the tensors
    `t`, takes the place of the references; `{function}` in it is the function's name.
    `sizes` replace those of the timed case, by dimension. `functions` limits the functions, `limit`
    the changes, the newest first.
    """

    place: Path
    paths: tuple[str, ...] = ()
    patches: tuple[Path, ...] = ()
    files_are_steps: bool = False
    every_change: bool = False
    hardware: str = "auto"
    problem: Path | None = None
    call: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    limit: int = 50
    licence: str | None = None


@dataclass(frozen=True)
class TriedChange:
    """What became of one change.

    `outcome`: `learned` (a skill or evidence followed), `measured` (nothing followed, as `reason`
    says), or `refused` (it could not be checked). `gain` is after over before, measured here;
    `claimed` is the author's. `steps` has the gain of each step that it was split into.
    """

    commit: str
    path: str
    function: str
    subject: str
    outcome: Outcome
    reason: str
    reference: str = ""
    claimed: float | None = None
    gain: Interval | None = None
    steps: tuple[Interval | None, ...] = ()
    trajectory: str = ""
    skills: tuple[str, ...] = ()


@dataclass(frozen=True)
class HistoryReport:
    """The result of a history: every change that claims speed, learned from or refused."""

    repository: str
    hardware: str
    changes: list[TriedChange]


def learn_from_history(
    base: KnowledgeBase, request: HistoryRequest, report: Callable[[str], None] = lambda line: None
) -> HistoryReport:
    """Measure the changes of a history and give what holds to the curator. `report` gets a line for
    each change. Raises InvalidRequest for a place that is no history, for a size that no reference
    has, and if no toolchain compiles kernels for the hardware."""
    dims = {dim for reference in references() for dim in reference.sizes if dim != "one"}
    for name in request.sizes.keys() - dims:
        hint = f"Sizes are {', '.join(sorted(dims))}."
        raise InvalidRequest(f"no reference has a size {name}", hint=hint)
    hardware = resolved_hardware(base, request.hardware)
    places, chip = _places(base, hardware)
    with _source(request) as (repository, changes, refused):
        newest = changes[::-1]
        tried = [TriedChange(outcome="refused", **vars(refusal)) for refusal in refused]
        trial = _Trial(base, request, hardware, places, chip)
        for change in newest[: request.limit]:
            result = trial.tried(change)
            report(f"{change.commit[:10]} {change.after.name}: {result.outcome}: {result.reason}")
            tried.append(result)
        over = newest[request.limit :]
        tried += [_result(change, "refused", "over the limit of this call") for change in over]
    return HistoryReport(repository.name, hardware, tried)


@contextmanager
def _source(
    request: HistoryRequest,
) -> Iterator[tuple[Repository, list[Change], list[RefusedChange]]]:
    claimed, names = not request.every_change, request.functions
    if request.patches:
        with patched(request.patches) as (repository, failed):
            changes, refused = changes_of(repository, ["."], claimed_only=claimed, names=names)
            yield repository, changes, [*failed, *refused]
        return
    repository = Repository(request.place)
    paths = [_place_of(path)[0] for path in request.paths]
    if not paths or not repository.commits(paths, with_first=True):
        raise InvalidRequest(
            "no path is given, or no commit changes one",
            hint="Name kernel files or folders as the repository has them.",
        )
    if request.files_are_steps:
        yield repository, *steps_of_files(repository, request.paths, names, request.call)
    else:
        yield (
            repository,
            *changes_of(
                repository, request.paths, claimed_only=claimed, names=names, call=request.call
            ),
        )


def _places(base: KnowledgeBase, hardware: str) -> tuple[dict[str, TargetToolchain], str]:
    """Places that compile C, CUDA or Triton, with torch if it runs the reference, and the language
    of an emulated chip, empty for a CPU and a GPU."""
    places = places_for(base, hardware, None)
    if next(iter(places.values())).target.device == "cuda":
        places.pop("cpp", None)
        return places, ""
    if "cpp" in places:
        return {name: places[name] for name in ("cpp", "torch") if name in places}, ""
    for name, place in places.items():
        toolchain = place.toolchain
        if isinstance(toolchain, CommandToolchain) and "chip.h" in toolchain.template.sample:
            return {name: place}, name
    raise InvalidRequest(
        f"nothing here compiles plain C functions for {hardware}",
        hint="Give a CPU or a GPU of this machine, or an emulated chip whose kernels include"
        " chip.h.",
    )


class _Stopped(Exception):
    """A change that cannot be checked; the message says why."""


@dataclass
class _Trial:
    """The trials of one history on one hardware."""

    base: KnowledgeBase
    request: HistoryRequest
    hardware: str
    places: Mapping[str, TargetToolchain]
    chip: str
    known: dict[tuple[str, tuple[CParameter, ...]], BoundCall] = field(default_factory=dict)

    def tried(self, change: Change) -> TriedChange:
        try:
            return self._tried(change)
        except (_Stopped, KernloreError) as problem:
            text = problem.message if isinstance(problem, KernloreError) else str(problem)
            return _result(change, "refused", text)

    def _tried(self, change: Change) -> TriedChange:
        name, place, calls = self._bound(change)
        problem = problem_from_text(place.source, place.toml)
        before = bundle_of(change.before, calls[0], self.chip)
        after = bundle_of(change.after, calls[1], self.chip)
        if kernel_key(before) == kernel_key(after):
            raise _Stopped("the code is equal but for comments, spacing or names")
        with self._bench(problem) as bench:
            # On a simulator the first right kernel is what all others are compared with.
            first = self._right(bench, before, "before")
            last = self._right(bench, after, "after")
            reference = bench.reference()
            measured = {before.sha256: first, after.sha256: last}

            def stored(bundles: Sequence[Bundle]) -> tuple[str, list[Interval | None]]:
                external = _trajectory(place, self.hardware, change, bundles, self.request.licence)
                return external.id, self._stored(external, problem, reference, measured)

            whole, (*_, gain) = stored([before, after])
            result = replace(
                _result(change, "measured", ""), reference=name, gain=gain, trajectory=whole
            )
            if gain is None:
                busy = "repeat" in (first.timing, last.timing)
                why = "the machine was busy; run this again" if busy else f"timing {last.timing}"
                return replace(result, outcome="refused", reason=f"right, but not timed: {why}")
            floor = noise_floor(after.language)
            middle: list[tuple[Bundle, Evaluation]] = []
            if gain.low > 1 + floor:
                middle = list(self._middle(bench, change, calls))
                versions = [(before, first), *middle, (after, last)]
                bundles, results = zip(*versions, strict=True)
                kept = apart(bundles, [result.speedup for result in results], floor)
                middle = [versions[place] for place in kept]
                measured |= {bundle.sha256: evaluation for bundle, evaluation in middle}
        if middle:
            split, gains = stored([before, *(bundle for bundle, _ in middle), after])
            steps = tuple(gains[1:])  # without that of the first kernel over the reference
            result = replace(result, steps=steps)
            # A half-applied change may be slow: that its rest is faster teaches nothing.
            if not any(step is not None and step.high < 1 - floor for step in steps):
                learned = _learned(
                    replace(result, trajectory=split), distil_source(self.base, split)
                )
                if learned.skills:
                    return learned
        return _learned(result, distil_source(self.base, whole))

    # -- binding

    def _bound(self, change: Change) -> tuple[str, ExternalProblem, tuple[str, str]]:
        """Name and text of the problem that both versions solve, and the call of each. Raises
        _Stopped."""
        if self.request.problem is not None:
            problem = load_problem(self.request.problem)
            toml = problem.path.with_suffix(".toml")
            declared = toml.read_text(encoding="utf-8") if toml.is_file() else None
            call = self.request.call.rstrip() + "\n"
            old, new = (call.replace("{function}", f.name) for f in (change.before, change.after))
            return problem.name, ExternalProblem(None, problem.source, declared), (old, new)
        after = self._call(change.after)
        before = after
        if change.before.parameters != change.after.parameters:
            before = self._call(change.before, after.reference)
        # With a case of odd sizes if both versions are right for such sizes.
        versions = ((change.before, before.statements), (change.after, after.statements))
        checked = after.reference.check(after.element, odd=True, device=self._device)
        with self._bench(checked, kept=False) as bench:
            bundles = [bundle_of(version, call, self.chip) for version, call in versions]
            odd = all(bench.evaluate(Proposal(b, SYNTHESIZER)).correct for b in bundles)
        source, toml_text = after.reference.problem(
            after.element, device=self._device, odd=odd, sizes=self.request.sizes
        )
        name = after.reference.name if odd else f"{after.reference.name}, sizes of multiples"
        return name, ExternalProblem(None, source, toml_text), (before.statements, after.statements)

    @property
    def _device(self) -> int:
        on_gpu = next(iter(self.places.values())).target.device == "cuda"
        return EMULATOR if self.chip else GPU if on_gpu else CPU

    def _call(self, function: CFunction, only: Reference | None = None) -> BoundCall:
        """The first call whose results are those of its reference. Raises _Stopped."""
        key = (function.returns, function.parameters)
        calls = [call for call in calls_of(function) if only in (None, call.reference)]
        if key in self.known and only in (None, self.known[key].reference):
            calls.insert(0, self.known[key].of(function))
        if not calls:
            kinds = ", ".join(
                f"{p.element}{'*' if p.pointer and p.element else ''} {p.name}".strip()
                for p in function.parameters
            )
            raise _Stopped(f"no reference has arguments like ({kinds}); give --problem and --call")
        last = ""
        with ExitStack() as stack:
            benches: dict[str, Bench] = {}
            for call in calls:
                name = call.reference.name
                if name not in benches:
                    checked = call.reference.check(call.element, odd=False, device=self._device)
                    benches[name] = stack.enter_context(self._bench(checked, kept=False))
                bundle = bundle_of(function, call.statements, self.chip)
                result = benches[name].evaluate(Proposal(bundle, SYNTHESIZER))
                if result.correct:
                    self.known[key] = call
                    return call
                if result.validity == "not_compiled":
                    raise _Stopped(f"it does not compile alone: {_first_error(result)}")
                last = f"{name}: {result.validity}"
        raise _Stopped(
            f"its results are those of no reference ({len(calls)} calls tried; the last, {last});"
            " give --problem and --call"
        )

    @contextmanager
    def _bench(self, problem: Problem, *, kept: bool = True) -> Iterator[Bench]:
        """The bench of the hardware; `kept`: its evaluations are stored."""
        opened = bench_for(self.base, problem, self.places)
        journal = opened.journal if kept else EvaluationJournal()
        with replace(opened, settings=EvaluationSettings(), journal=journal) as bench:
            yield bench

    def _right(self, bench: Bench, bundle: Bundle, which: str) -> Evaluation:
        result = bench.evaluate(Proposal(bundle, SYNTHESIZER))
        if not result.correct:
            detail = _first_error(result)
            raise _Stopped(f"the kernel {which} the change is {result.validity}: {detail}")
        return result

    # -- steps

    def _middle(
        self, bench: Bench, change: Change, calls: tuple[str, str]
    ) -> Iterator[tuple[Bundle, Evaluation]]:
        """The kernels between before and after that compile and are right."""
        if calls[0] != calls[1]:
            return
        call, ends = calls[0], (change.before, change.after)
        seen = {kernel_key(bundle_of(version, call, self.chip)) for version in ends}
        python = change.after.language == "triton"
        for text in between(change.before.text, change.after.text, python=python):
            bundle = bundle_of(replace(change.after, text=text), call, self.chip)
            if kernel_key(bundle) in seen:
                continue
            seen.add(kernel_key(bundle))
            result = bench.evaluate(Proposal(bundle, SYNTHESIZER))
            if result.correct:
                yield bundle, result

    def _stored(
        self,
        external: ExternalTrajectory,
        problem: Problem,
        reference: Evaluation,
        evaluations: Mapping[str, Evaluation],
    ) -> list[Interval | None]:
        """Store the measured trajectory; returns the gain of each step over its parent."""
        row = accept(self.base, external, problem, ORIGIN)
        store, owner = trajectory_store(self.base), new_id(ACTOR)
        if row.state != "ready" and store.take(row.id, owner, self.base.settings.lease_seconds):
            ended = measured_end(self.base, row.id, external, problem, reference, evaluations, {})
            store.end(row.id, owner, ended.state, ended.measured, **ended.summary)
        steps: Sequence[TrajectoryStep] = trajectory(self.base, row.id).steps
        return [gain_of(step.parent, step.child) for step in steps]


def apart(
    kernels: Sequence[Bundle], speedups: Sequence[Interval | None], floor: float
) -> list[int]:
    """The places, but for the two ends, of kernels that are steps of their own. One that does not
    differ certainly from the one kept before it is none: a definition that nothing uses yet belongs
    to the step that uses it. Nor is one that the next only launches differently."""
    kept = [0]
    for place, speedup in enumerate(speedups[:-1]):
        last = speedups[kept[-1]]
        gain = independent_ratio(speedup, last) if place and speedup and last else None
        if gain is not None and (gain.low > 1 + floor or gain.high < 1 - floor):
            kept.append(place)
    codes = [kernel_code(kernels[place]).text for place in (*kept, len(kernels) - 1)]
    after = zip(kept[1:], codes[1:-1], codes[2:], strict=True)
    return [place for place, own, following in after if own != following]


def between(before: str, after: str, *, python: bool = False) -> list[str]:
    """The texts between two versions: the first hunk applied, the first two, and so on."""
    old, new = (list(shown_lines(text, python=python)) for text in (before, after))
    matcher = difflib.SequenceMatcher(
        None, [canonical(line) for line in old], [canonical(line) for line in new], autojunk=False
    )
    hunks = [op for op in matcher.get_opcodes() if op[0] != "equal"]
    if len(hunks) < 2:
        return []
    numbers = list(range(1, len(hunks)))
    if len(hunks) > MOST_HUNKS:
        numbers = sorted({round(n * len(hunks) / MOST_HUNKS) for n in range(1, MOST_HUNKS)})
    texts = []
    for count in numbers:
        lines, place = [], 0
        for _, i, j, k, m in hunks[:count]:
            lines += [*old[place:i], *new[k:m]]
            place = j
        texts.append("\n".join([*lines, *old[place:]]) + "\n")
    return texts


def _trajectory(
    place: ExternalProblem,
    hardware: str,
    change: Change,
    bundles: Sequence[Bundle],
    licence: str | None,
) -> ExternalTrajectory:
    origin = {name: text for name, text in change.provenance.items() if text}
    if change.claimed is not None:
        origin["claimed"] = f"{change.claimed:g}x"
    texts = (change.subject[:400],) if change.subject else ()
    steps = tuple(
        ExternalStep(number, number - 1, bundle, texts=texts, provenance=origin)
        for number, bundle in enumerate(bundles, 1)
    )
    return ExternalTrajectory(place, hardware, steps, ACTOR, licence)


def _learned(result: TriedChange, distilled: Distilled) -> TriedChange:
    """The result with the curator's decision about the change, or about its last step."""
    # Node 1 is the kernel before the change: that it beats the reference is no merit of the change.
    stored = [
        row
        for d in distilled.distillations
        for delta, row in zip(d.deltas, d.stored, strict=True)
        if delta.node > 1
    ]
    decisions = [d for distillation in distilled.distillations for d in distillation.decisions]
    later = [d for d in decisions if d.node > 1]
    known = [d.reason for d in later if d.stage == "match" and d.reason.endswith(KNOWN)]
    names = tuple(
        dict.fromkeys([*(row.skill for row in stored), *(r.removesuffix(KNOWN) for r in known)])
    )
    if names:
        return replace(result, outcome="learned", reason=", ".join(names), skills=names)
    refused = [d for d in later if not d.passed] or decisions
    return replace(result, reason=f"{refused[-1].stage}: {refused[-1].reason}")


def _first_error(result: Evaluation) -> str:
    lines = [line.strip() for line in result.log.splitlines()]
    mark = "undefined reference"  # to a function of another file
    missing = [line[line.index(mark) :] for line in lines if mark in line]
    errors = [line for line in lines if "error" in line.lower()]
    return [*missing, *errors, result.message][0][:SHOWN]


def _result(change: Change, outcome: Outcome, reason: str) -> TriedChange:
    return TriedChange(
        commit=change.commit,
        path=change.path,
        function=change.after.name,
        subject=change.subject,
        outcome=outcome,
        reason=reason,
        claimed=change.claimed,
    )


_WORD = re.compile(r"[A-Za-z_]\w*")
_LAUNCHED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[^<>;{}]*>)?\s*<<<")
SUFFIXES = C_SUFFIXES | {".py"}
_WHO = ("-c", "user.name=kernlore", "-c", "user.email=kernlore@localhost")
_COMMIT = (*_WHO, "-c", "commit.gpgSign=false", "commit", "-q")


@dataclass(frozen=True)
class Change:
    """Two versions of a function, and where they come from.

    `repository` names the repository, `commit` is empty for files that are steps. `subject` is the
    first line of the author's message, `claimed` the speed-up that it states.
    """

    repository: str
    commit: str
    path: str
    before: CFunction
    after: CFunction
    subject: str = ""
    claimed: float | None = None

    @property
    def provenance(self) -> dict[str, str]:
        """Where the change comes from; says nothing about its merit."""
        row = {"repository": self.repository, "commit": self.commit, "path": self.path}
        return {**row, "function": self.after.name}


@dataclass(frozen=True)
class RefusedChange:
    """A change that was not tried, or did not hold, with the reason."""

    commit: str
    path: str
    function: str
    reason: str
    subject: str = ""


def _functions(
    repository: Repository, commit: str, path: str, names: Sequence[str] = (), call: str = ""
) -> dict[str, CFunction]:
    """The functions of a file in a commit, or those with these names. With a `call` their arguments
    are given, so that none refuses one."""
    text = repository.text(commit, path)
    if text is None:
        return {}
    read = python_functions_of if path.endswith(".py") else functions_of
    found = read(text, path, lambda name: repository.text(commit, name))
    chosen = {name: f for name, f in found.items() if not names or name in names}
    return {name: replace(f, refusal="") for name, f in chosen.items()} if call else chosen


def changes_of(
    repository: Repository,
    paths: Sequence[str],
    *,
    claimed_only: bool = True,
    names: Sequence[str] = (),
    call: str = "",
) -> tuple[list[Change], list[RefusedChange]]:
    """The changes of functions that a history claims to be faster, and those left out; `names`
    limits the functions."""
    changes: list[Change] = []
    refused: list[RefusedChange] = []
    for commit in repository.commits(paths):
        claim = CLAIM.search(commit.message)
        for path in commit.paths:
            if PurePosixPath(path).suffix not in SUFFIXES or (claimed_only and not claim):
                continue
            after = _functions(repository, commit.sha, path, names, call)
            before = _functions(repository, commit.parent, path, names, call)
            if not before and after:
                refused.append(_left_out(commit, path, "", "the file is new: nothing is before it"))
            factor = claimed_speedup(commit.message)
            for old, new in _changed(before, after):
                why = new.refusal or old.refusal
                if why:
                    refused.append(_left_out(commit, path, new.name, why))
                    continue
                changes.append(
                    Change(repository.name, commit.sha, path, old, new, commit.subject, factor)
                )
    return changes, refused


def _place_of(step: str) -> tuple[str, str]:
    """The path of a step, and the function that it names."""
    path, _, name = step.partition(":")
    return path, name


def steps_of_files(
    repository: Repository, steps: Sequence[str], names: Sequence[str] = (), call: str = ""
) -> tuple[list[Change], list[RefusedChange]]:
    """Files of the newest commit, or functions of files, as steps of one kernel, in the given
    order."""
    commit = repository.head()
    changes: list[Change] = []
    refused: list[RefusedChange] = []
    for pair in pairwise(steps):
        (earlier, old_name), (later, new_name) = map(_place_of, pair)
        before = _functions(repository, commit, earlier, (old_name,) if old_name else names, call)
        after = _functions(repository, commit, later, (new_name,) if new_name else names, call)
        subject = f"{pair[0]} -> {pair[1]}"
        outer = [_outermost(functions) for functions in (before, after)]
        if not {old.name for old in outer[0]} & {new.name for new in outer[1]}:
            before = _renamed(*outer, named=bool(old_name and new_name))
        if not before:
            reason = (
                "the two files have no function in common, and not one each of equal parameters"
            )
            refused.append(RefusedChange(commit, later, new_name, reason, subject))
        for old, new in _changed(before, after):
            if new.refusal or old.refusal:
                reason = new.refusal or old.refusal
                refused.append(RefusedChange(commit, later, new.name, reason, subject))
            else:
                changes.append(Change(repository.name, commit, later, old, new, subject))
    return changes, refused


def _outermost(functions: Mapping[str, CFunction]) -> list[CFunction]:
    usable = [function for function in functions.values() if not function.refusal]

    def called(name: str) -> bool:
        call = re.compile(rf"\b{re.escape(name)}\s*\(")
        return any(call.search(other.text) for other in usable if other.name != name)

    return [function for function in usable if not called(function.name)]


def _renamed(
    before: Sequence[CFunction], after: Sequence[CFunction], *, named: bool = False
) -> dict[str, CFunction]:
    """The function before under the name of the only one after with equal parameters (`named`: with
    any), and its kernel and numbered helpers under theirs; empty if there are more."""
    pairs = [(old, new) for old in before for new in after]
    alike = [(old, new) for old, new in pairs if named or old.parameters == new.parameters]
    if len(alike) != 1:
        return {}
    old, new = alike[0]
    names = {old.name: new.name}
    kernels = [set(_LAUNCHED.findall(function.own)) for function in (old, new)]
    if len(kernels[0]) == len(kernels[1]) == 1:
        names |= dict(zip(*kernels, strict=True))
    words = set(_WORD.findall(new.text))
    numbers = [re.findall(r"\d+", function.name)[-1:] for function in (old, new)]
    if all(numbers):  # its helpers are numbered as it is
        for word in set(_WORD.findall(old.text)) - words:
            later = re.sub(rf"{numbers[0][0]}(?=\D*$)", numbers[1][0], word)
            names |= {word: later} if later in words else {}

    def renamed(text: str) -> str:
        return _WORD.sub(lambda match: names.get(match.group(), match.group()), text)

    texts = (renamed(text) for text in (old.text, old.own, old.needed))
    text, own, needed = texts
    return {new.name: replace(old, name=new.name, text=text, own=own, needed=needed)}


def _changed(
    before: Mapping[str, CFunction], after: Mapping[str, CFunction]
) -> list[tuple[CFunction, CFunction]]:
    """The functions whose code differs: of those that can be called the outermost, of the others
    those that differ themselves."""
    pairs = [(before[name], new) for name, new in after.items() if name in before]
    pairs = [(old, new) for old, new in pairs if old.needed != new.needed]
    usable = {new.name: new for old, new in pairs if not (old.refusal or new.refusal)}
    outermost = {function.name for function in _outermost(usable)}

    def kept(old: CFunction, new: CFunction) -> bool:
        return new.name in outermost if new.name in usable else old.own != new.own

    return [pair for pair in pairs if kept(*pair)]


@contextmanager
def patched(patches: Sequence[Path]) -> Iterator[tuple[Repository, list[RefusedChange]]]:
    """A repository that only these patches make, in order, and the patches that do not apply.

    A patch of a file whose earlier text no patch has cannot be checked.
    """
    refused: list[RefusedChange] = []
    with tempfile.TemporaryDirectory(prefix="kernlore-patches-") as folder:
        root = Path(folder)
        run_git(root, "init", "-q")
        run_git(root, *_COMMIT, "--allow-empty", "-m", "start")
        for patch in patches:
            whole = patch.read_text(encoding="utf-8", errors="replace")
            subject = re.search(r"^Subject:\s*(?:\[[^\]]*\]\s*)?(.+)$", whole, re.MULTILINE)
            title = subject[1].strip() if subject else patch.stem
            apply = ("apply", "--index", "--whitespace=nowarn", str(patch.resolve()))
            if run_git(root, *apply) is None:
                reason = "it does not apply: the text before it is not in these patches"
                refused.append(RefusedChange("", patch.name, "", reason, title))
                continue
            head = whole.partition("\ndiff --git")[0]
            run_git(root, *_COMMIT, "-m", title, "-m", head)
        yield Repository(root), refused


def _left_out(commit: Commit, path: str, function: str, reason: str) -> RefusedChange:
    return RefusedChange(commit.sha, path, function, reason, commit.subject)
