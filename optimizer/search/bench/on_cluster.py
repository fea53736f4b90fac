"""The benches of a run whose candidates are measured on the nodes of a cluster.

A candidate goes out as a task, and its evaluation comes back and is stored here. A node that dies
costs the evaluations that it was at: they begin again elsewhere. Every task says first where it has
begun and whether that node measures as the others of the run do; one that does not gets no more.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from kb.cluster import Cluster, SentTask, Slots, WorkLost
from kb.errors import InvalidRequest, KernloreError, Unavailable
from kb.hardware.spec import SignatureSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.collectors.ceilings import Ceilings, DeviceStore
from optimizer.evaluation.collectors.probe import DeviceIdentity, DeviceKind, identify
from optimizer.evaluation.evaluator import MeasuringPlace, evaluation_key
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.machine import processor, usable_processors
from optimizer.evaluation.journal import EvaluationJournal
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.targets import facts_of
from optimizer.evaluation.toolchains.base import (
    Availability,
    CompileCase,
    Compiled,
    EvaluationTarget,
)
from optimizer.evaluation.toolchains.command import CommandToolchain
from optimizer.evaluation.toolchains.registry import usable_toolchain
from optimizer.search.bench.local import LocalBench, TargetToolchain
from optimizer.search.bench.simulated import GOLDENS, SimulatedBench, by_commands
from optimizer.search.records import Proposal
from retrieval.diagnose.own_rules import NO_RULES, OwnRules

LOOK_SECONDS = 2.0  # between two looks at the cluster while work is waited for
NO_NODE_SECONDS = 60.0  # without a node that could do the work, after which it is given up
LONGEST_SECONDS = (
    1800.0  # of one piece of work, whose own deadlines do not cover the problem's code
)
TRIES = 3  # of work that the search does not try again by itself

Log = Callable[[str], None]


@dataclass
class Activity:
    """What a run does on the cluster, for whoever watches it. Threads share one."""

    address: str
    dashboard: str | None
    hosts: Sequence[str]
    slots: int
    left_out: Mapping[str, str] = field(default_factory=dict)
    changed: Callable[[Mapping[str, Any]], None] = lambda state: None
    _state: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # protects _state and _dirty
    _dirty: bool = False
    _shown: float = 0.0

    def __post_init__(self) -> None:
        nodes = {host: {"evaluating": 0, "evaluated": 0} for host in self.hosts}
        self._state |= {
            "address": self.address,
            "dashboard": self.dashboard or "",
            "slots": self.slots,
            "waiting": 0,
            "lost": 0,
            "nodes": nodes,
            "left_out": dict(self.left_out),
        }

    @property
    def state(self) -> Mapping[str, Any]:
        """As it is stored with the run. It goes on changing with the run."""
        return self._state

    def text(self) -> str:
        """What is going on, in a few words."""
        nodes = self._state["nodes"].values()
        busy = sum(row["evaluating"] for row in nodes)
        words = [f"{busy} of {self._state['slots']} places busy"]
        words += [f"{self._state[w]} {w}" for w in ("waiting", "lost") if self._state[w]]
        return ", ".join(words)

    def count(self, host: str | None, what: str, by: int) -> None:
        """Add to a figure of a node, or with None of the run."""
        with self._lock:
            if host is None:
                self._state[what] += by
            else:
                nodes = dict(self._state["nodes"])
                row = nodes.get(host, {"evaluating": 0, "evaluated": 0})
                nodes[host] = {**row, what: row[what] + by}
                self._state["nodes"] = nodes
            self._dirty = True

    def leave_out(self, host: str, why: str) -> None:
        """A node that is not used any more."""
        with self._lock:
            self._state["left_out"] = {**self._state["left_out"], host: why}
            self._dirty = True

    def show(self) -> None:
        """Tell who watches what has changed, at most once in LOOK_SECONDS."""
        with self._lock:
            now = time.monotonic()
            if not self._dirty or now - self._shown < LOOK_SECONDS:
                return
            self._dirty, self._shown = False, now
            state = dict(self._state)
        self.changed(state)


class Nodes:
    """Sends the work of one run to nodes that measure alike."""

    def __init__(
        self,
        cluster: Cluster,
        slots: Slots,
        setting: Setting,
        environment: Environment,
        without: Sequence[str],
        activity: Activity,
        log: Log,
    ) -> None:
        """`slots` are the nodes of the run at its beginning, all of this environment; `without` are
        ids of nodes of another one. `log` gets remarks, from the thread that waits."""
        self.slots = slots
        self.activity = activity
        self.environment = environment
        self._cluster = cluster
        self._setting = cluster.put(setting)
        self._without = set(without)
        self._changing = threading.Lock()  # protects _without
        self._log = log
        self.measured_on: Callable[[Ceilings], None] = lambda ceilings: None

    def measure(self, work: NodeWork, name: str, tries: int = 1) -> Evaluation:
        """The evaluation of a piece of work. Raises WorkLost where a node was lost at the last of
        `tries`, InvalidRequest and Unavailable for what the work itself raised."""
        lost = 0
        while True:
            try:
                answer = self._answer(work, name)
            except WorkLost as error:
                lost += 1
                self.activity.count(None, "lost", 1)
                if lost >= tries:
                    raise
                self._log(f"{name}: {error.message}; it begins again")
                continue
            if answer is not None:
                if answer.ceilings is not None:
                    self.measured_on(answer.ceilings)
                return answer.evaluation

    def compile(self, bundle: Bundle, cases: tuple[CompileCase, ...]) -> Compiled:
        """Compile a draft on a node, beside what is measured on its chips."""
        options = {**self.slots.options(self._excluded()), "num_cpus": 1}
        options = {name: options[name] for name in ("num_cpus", "label_selector")}
        sent = self._cluster.send(
            compile_draft,
            self._setting,
            bundle,
            cases,
            name="a draft",
            options=options,
        )
        try:
            self._wait(sent, time.monotonic() + LONGEST_SECONDS)
            answer = sent.next()
        finally:
            self._cluster.finish(sent)
        if isinstance(answer, Failed):
            answer.raise_it()
        assert isinstance(answer, Compiled)
        return answer

    def _excluded(self) -> set[str]:
        with self._changing:
            return set(self._without)

    def _answer(self, work: NodeWork, name: str) -> NodeEvaluation | None:
        """The answer of a node; None where it was none of the run's, and is not asked again."""
        sent = self._cluster.send(
            measure,
            self._setting,
            self.environment,
            work,
            name=name,
            options=self.slots.options(self._excluded()),
            own_process=self.slots.resource == "GPU",  # it cannot go on with another GPU
        )
        try:
            with self._counted(None, "waiting"):
                self._wait(sent, None)
                started = sent.next()
            assert isinstance(started, WorkStarted)
            with self._counted(started.host, "evaluating"):
                self._wait(sent, time.monotonic() + LONGEST_SECONDS)
                answer = sent.next()
        finally:
            self._cluster.finish(sent)
        if isinstance(answer, Differs):
            self._leave_out(started, answer.environment)
            return None
        if isinstance(answer, Failed):
            answer.raise_it()
        assert isinstance(answer, NodeEvaluation)
        self.activity.count(started.host, "evaluated", 1)
        return answer

    @contextmanager
    def _counted(self, host: str | None, what: str) -> Iterator[None]:
        self.activity.count(host, what, 1)
        try:
            yield
        finally:
            self.activity.count(host, what, -1)

    def _wait(self, sent: SentTask, until: float | None) -> None:
        """Wait for the next value of the work, by `until` if it has begun; without one, as long as
        there is a node that could do it. Raises Unavailable."""
        seen = time.monotonic()
        while not sent.wait_for_value(LOOK_SECONDS):
            self.activity.show()
            now = time.monotonic()
            if self._cluster.closed:
                raise Unavailable("the connection is closed", hint="Start the command again.")
            if until is not None and now > until:
                raise Unavailable(
                    f"an evaluation did not end within {LONGEST_SECONDS:.0f} s",
                    hint="Give fewer or smaller cases; check that the problem's functions return.",
                )
            if until is None and self._living():
                seen = now
            if until is None and now - seen > NO_NODE_SECONDS:
                raise Unavailable(
                    f"no node with {self.slots.label}={'|'.join(self.slots.values)} is left",
                    hint="Start one; `kernlore runs resume` with --ray goes on.",
                )
        self.activity.show()

    def _living(self) -> bool:
        without = self._excluded()
        return any(n.id not in without and self.slots.has(n) for n in self._cluster.nodes())

    def _leave_out(self, node: WorkStarted, environment: Environment) -> None:
        why = environment.difference(self.environment)
        with self._changing:
            known = node.node in self._without
            self._without.add(node.node)
        if not known:
            self.activity.leave_out(node.host, why)
            self._log(f"{node.host} is left out: {why}")


class ToolchainThere:
    """A built-in toolchain of the nodes."""

    def __init__(self, language: str, named: str) -> None:
        """`named` is its name and version as a node reports them."""
        self.name, _, self._version = named.partition(" ")
        self.languages: tuple[str, ...] = (language,)
        self.nodes: Nodes | None = None

    def available(self, target: EvaluationTarget) -> Availability:
        """The nodes have it."""
        return Availability(True)

    def version(self) -> str:
        """The version on the nodes of the run."""
        return self._version

    def compile(
        self,
        bundle: Bundle,
        target: EvaluationTarget,
        workdir: Path,
        cases: tuple[CompileCase, ...],
    ) -> Compiled:
        """Compile on a node; there is nothing to load here."""
        assert self.nodes is not None
        return self.nodes.compile(bundle, cases)


class CommandsThere(CommandToolchain):
    """The command templates of a chip, whose programs are on the nodes."""

    nodes: Nodes | None = None
    named: str = ""

    def available(self, target: EvaluationTarget) -> Availability:
        """The nodes have it."""
        return Availability(True)

    def version(self) -> str:
        """The version on the nodes of the run."""
        return self.named.partition(" ")[2]

    def compile(
        self,
        bundle: Bundle,
        target: EvaluationTarget,
        workdir: Path,
        cases: tuple[CompileCase, ...],
    ) -> Compiled:
        """Compile on a node; there is nothing to load here."""
        assert self.nodes is not None
        return self.nodes.compile(bundle, cases)


def stored_or_measured(
    problem: Problem,
    bundle: Bundle,
    cases: Sequence[Case],
    by: MeasuringPlace,
    journal: EvaluationJournal,
    measured: Callable[[], Evaluation],
) -> Evaluation:
    """The stored evaluation of this key, unless its timing has to be repeated; else a new one,
    stored from now on."""
    key = evaluation_key(problem, cases, bundle, by)
    earlier = journal.finished(key)
    if earlier is not None and earlier.timing != "repeat":
        return earlier
    evaluation = measured()
    store_evaluation(problem, bundle, cases, evaluation, journal)
    return evaluation


def store_evaluation(
    problem: Problem,
    bundle: Bundle,
    cases: Sequence[Case],
    evaluation: Evaluation,
    journal: EvaluationJournal,
) -> None:
    """Store what a node has found, as it would be stored there."""
    signatures = {case.name: OpenCase(problem, case, shapes_only=True).signature for case in cases}
    journal.begin(evaluation.key, problem, signatures, bundle, evaluation.device)
    journal.finish(evaluation, problem)


@dataclass
class ClusterBench:
    """Evaluates candidates on the nodes of a cluster, by the clocks of the harness there. It is a
    context manager; leaving it changes nothing on the nodes."""

    problem: Problem
    places: Mapping[str, TargetToolchain]
    nodes: Nodes
    journal: EvaluationJournal

    def __enter__(self) -> ClusterBench:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def at_once(self) -> int:
        """As many as the nodes had places when the run began."""
        return max(1, self.nodes.slots.count)

    @property
    def device(self) -> str:
        """The kind of device of the nodes: `cpu` or `cuda`."""
        return next(iter(self.places.values())).target.device or "cpu"

    def reference(self) -> Evaluation:
        """As that of a single machine. Raises InvalidRequest where no kernel can be held against
        it."""
        timed = [case for case in self.cases(None) if case.timed]
        if not timed:
            raise InvalidRequest(
                f"{self.problem.name} has no timed case for {self.device}",
                hint="Give its problem.toml a case without `timed = false` for this device.",
            )
        opened = OpenCase(self.problem, timed[0], shapes_only=True)
        files = {"reference.py": opened.source}
        bundle = Bundle(files, "reference.py", "torch", "Model", {}, "external")
        work, name = NodeWork("reference"), f"{self.problem.name}: the reference"
        return self._stored(bundle, timed[:1], work, name, TRIES)

    def evaluate(self, proposal: Proposal) -> Evaluation:
        """As that of a single machine. Raises WorkLost where its node was lost."""
        self._check(proposal)
        work = NodeWork("evaluate", proposal)
        return self._stored(proposal.bundle, self.cases(proposal), work, self._name(proposal), 1)

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        """As that of a single machine; not stored."""
        self._check(proposal)
        work = NodeWork("confirm", proposal, held_out)
        return self.nodes.measure(work, f"{self._name(proposal)}, again", TRIES)

    def cases(self, proposal: Proposal | None) -> list[Case]:
        """The searched cases that the candidate claims and that are meant for this device."""
        claimed = set(proposal.cases) if proposal is not None else set()
        return [
            case
            for case in self.problem.searched
            if case.fits(self.device) and (not claimed or case.name in claimed)
        ]

    def _name(self, proposal: Proposal) -> str:
        return f"{self.problem.name}: {proposal.bundle.sha256[:8]}"

    def _check(self, proposal: Proposal) -> None:
        if proposal.bundle.language not in self.places:
            raise InvalidRequest(
                f"no node here builds {proposal.bundle.language!r}",
                hint=f"Propose one of {', '.join(self.places)}.",
            )

    def _stored(
        self, bundle: Bundle, cases: Sequence[Case], work: NodeWork, name: str, tries: int
    ) -> Evaluation:
        place = self.places[bundle.language]
        by = measured_by(place, self.device, self.nodes.environment)
        return stored_or_measured(
            self.problem,
            bundle,
            cases,
            by,
            self.journal,
            lambda: self.nodes.measure(work, name, tries),
        )


def measured_by(place: TargetToolchain, device: str, environment: Environment) -> MeasuringPlace:
    """By what nodes of this environment evaluate."""
    chain = place.toolchain
    return MeasuringPlace(
        place.target.hardware,
        device,
        chain.name,
        chain.version(),
        environment.settings,
        environment.processor,
    )


@dataclass
class SimulatedOnCluster(SimulatedBench):
    """Evaluates candidates through a chip's own commands, on the nodes that have them. What they
    are compared with is decided here."""

    nodes: Nodes = field(kw_only=True)

    def measure(self, bundle: Bundle, cases: Sequence[Case], fresh: bool) -> Evaluation:
        """As that of a single machine. Raises WorkLost where its node was lost."""
        if bundle.language not in self.places:
            raise Unavailable(
                f"no commands of the nodes run {bundle.language!r}",
                hint=f"Propose one of {', '.join(self.places)}.",
            )
        work = NodeWork("run", bundle=bundle, cases=tuple(cases), fresh=fresh)
        name = f"{self.problem.name}: {bundle.sha256[:8]}"
        if fresh:
            return self.nodes.measure(work, f"{name}, again", TRIES)
        by = measured_by(self.places[bundle.language], GOLDENS, self.nodes.environment)
        return stored_or_measured(
            self.problem,
            bundle,
            cases,
            by,
            self.journal,
            # Before there is a baseline, nobody tries the run's first candidate again.
            lambda: self.nodes.measure(work, name, 1 if self._baseline else TRIES),
        )


# -- on node: What runs on a node of a cluster: it says how the node measures, and measures with t

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Offered:
    """A language as the catalog describes it for a hardware: the target, whose device and own facts
    only a node knows, and the built-in toolchain that its hardware.toml names."""

    target: EvaluationTarget
    builtin: str | None


@dataclass(frozen=True)
class Setting:
    """What all candidates of a run have in common. `device` is the kind that they are measured on,
    None where a chip's own commands run them. `settings` are without the number of threads, which
    is the node's."""

    offered: Mapping[str, Offered]
    device: DeviceKind | None
    problem: Problem | None = None
    settings: EvaluationSettings = field(default_factory=EvaluationSettings)
    signatures: Sequence[SignatureSpec] = ()
    rules: OwnRules = NO_RULES


@dataclass(frozen=True)
class NodeWork:
    """One piece of work: the reference, a candidate on the searched cases, a candidate on fresh
    values, or (`run`) a bundle through a chip's own commands on these cases."""

    kind: Literal["reference", "evaluate", "confirm", "run"]
    proposal: Proposal | None = None
    held_out: bool = False
    bundle: Bundle | None = None
    cases: tuple[Case, ...] = ()
    fresh: bool = False


@dataclass(frozen=True)
class Environment:
    """What decides a figure beside the candidate. Evaluations that are compared with one another
    come from nodes that have this in common. `versions` are those of the toolchains by language,
    `device` the name and the driver of what is measured on."""

    versions: tuple[tuple[str, str], ...]
    device: str
    processor: str
    settings: str
    isolation: str

    def difference(self, other: Environment) -> str:
        """In what this differs from another, in words."""
        before, after = dict(other.versions), dict(self.versions)
        parts = [
            f"{name} {after.get(name, 'missing')} instead of {before.get(name, 'missing')}"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]
        for name in ("device", "processor", "settings", "isolation"):
            if getattr(self, name) != getattr(other, name):
                parts.append(f"{name} {getattr(self, name)} instead of {getattr(other, name)}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Surveyed:
    """How a node measures. `refused` says why a language cannot be used there, `facts` are what its
    device reports of itself."""

    node: str
    host: str
    environment: Environment
    refused: Mapping[str, str]
    facts: Mapping[str, float | str]
    identity: DeviceIdentity | None


@dataclass(frozen=True)
class WorkStarted:
    """The work has begun on this node."""

    node: str
    host: str


@dataclass(frozen=True)
class Differs:
    """The node measures otherwise than the run's other nodes; nothing was measured."""

    environment: Environment


@dataclass(frozen=True)
class Failed:
    """The work could not be carried out, for a reason that the user can act on."""

    code: str
    message: str
    hint: str

    def raise_it(self) -> None:
        """Raise it where the work is waited for."""
        kind = InvalidRequest if self.code.startswith("invalid") else Unavailable
        raise kind(self.message, hint=self.hint)


@dataclass(frozen=True)
class NodeEvaluation:
    """An evaluation, and the ceilings of the device that it was measured on."""

    evaluation: Evaluation
    ceilings: Ceilings | None


def node_folder() -> Path:
    """Where a node keeps the ceilings of its devices from one run to the next."""
    return Path(tempfile.gettempdir()) / f"kernlore-node-{os.getuid()}"


def survey(setting: Setting) -> Iterator[Surveyed]:
    """How this node measures; the device need not be free."""
    if os.environ.get(VISIBLE) == "":  # of a task that takes no GPU
        del os.environ[VISIBLE]
    yield _surveyed(setting)


def compile_draft(
    setting: Setting, bundle: Bundle, cases: tuple[CompileCase, ...]
) -> Iterator[Compiled | Failed]:
    """Compile a candidate and run nothing of it."""
    try:
        place = _places(setting)[0][bundle.language]
        with tempfile.TemporaryDirectory(prefix="kernlore-draft-") as folder:
            compiled = place.toolchain.compile(bundle, place.target, Path(folder), cases)
        yield replace(compiled, loader=None)
    except KeyError:
        yield Failed("unavailable", f"{bundle.language} cannot be used on this node", "")
    except KernloreError as error:
        yield _failed(error)


def measure(
    setting: Setting, expected: Environment, work: NodeWork
) -> Iterator[WorkStarted | Differs | Failed | NodeEvaluation]:
    """Carry out one piece of work. First yields that it has begun, then what came of it."""
    node, host = _where()
    yield WorkStarted(node, host)
    try:
        here = _surveyed(setting).environment
        if here != expected:
            yield Differs(here)
            return
        bench = _bench_of(setting)
        evaluation = _carried_out(bench, work)
        yield NodeEvaluation(evaluation, bench.ceilings if isinstance(bench, LocalBench) else None)
    except KernloreError as error:
        yield _failed(error)
    except (OSError, MemoryError) as error:
        yield Failed("unavailable", f"{host}: {type(error).__name__}: {error}", "Try it again.")


def _failed(error: KernloreError) -> Failed:
    return Failed(error.code, error.message, error.hint)


def _carried_out(bench: LocalBench | SimulatedBench, work: NodeWork) -> Evaluation:
    if work.kind == "reference":
        return bench.reference()
    if work.kind == "run":
        assert isinstance(bench, SimulatedBench) and work.bundle is not None
        return bench.measure(work.bundle, work.cases, work.fresh)
    assert work.proposal is not None
    if work.kind == "confirm":
        return bench.confirm(work.proposal, work.held_out)
    return bench.evaluate(work.proposal)


# -- how this node measures


def _where() -> tuple[str, str]:
    import ray

    node = ray.get_runtime_context().get_node_id()
    return node, f"{socket.gethostname()}/{node[:6]}"


@cache
def _identity(device: DeviceKind) -> DeviceIdentity:
    return identify(device)


def _settings(setting: Setting) -> EvaluationSettings:
    return replace(setting.settings, threads=usable_processors())


def _places(setting: Setting) -> tuple[dict[str, TargetToolchain], dict[str, str]]:
    """The languages that can be used here, and why others cannot."""
    own = facts_of(_identity(setting.device)) if setting.device is not None else {}
    places, refused = {}, {}
    for language, offered in setting.offered.items():
        facts = {**offered.target.facts, **own}
        target = replace(offered.target, device=setting.device, facts=facts)
        try:
            toolchain = usable_toolchain(language, target, offered.builtin)
        except (InvalidRequest, Unavailable) as problem:
            refused[language] = problem.message
            continue
        places[language] = TargetToolchain(target, toolchain)
    return places, refused


def _surveyed(setting: Setting) -> Surveyed:
    node, host = _where()
    places, refused = _places(setting)
    identity = _identity(setting.device) if setting.device is not None else None
    settings = _settings(setting)
    device = f"{identity.name} {identity.driver or ''}".strip() if identity is not None else ""
    versions = tuple(
        (name, f"{place.toolchain.name} {place.toolchain.version()}")
        for name, place in sorted(places.items())
    )
    environment = Environment(
        versions,
        device,
        processor(),
        settings.fingerprint,
        level_for(settings.isolation, setting.device or GOLDENS),
    )
    facts = facts_of(identity) if identity is not None else {}
    return Surveyed(node, host, environment, refused, facts, identity)


# -- the bench of this process


@dataclass
class _Kept:
    """The bench that this process has open."""

    key: Any
    bench: LocalBench | SimulatedBench
    folder: tempfile.TemporaryDirectory[str]


_KEPT: list[_Kept] = []


def _bench_of(setting: Setting) -> LocalBench | SimulatedBench:
    """The bench of a run: the one that is open, or a new one in its place."""
    assert setting.problem is not None
    key = (setting.problem.sha256, setting.device, setting.settings, tuple(setting.offered))
    if _KEPT and _KEPT[0].key == key:
        return _KEPT[0].bench
    while _KEPT:
        old = _KEPT.pop()
        old.bench.close()
        old.folder.cleanup()
    # Ray lets a task see as many threads as it takes processors.
    torch.set_num_threads(usable_processors())
    folder = tempfile.TemporaryDirectory(prefix="kernlore-node-")
    file = Path(folder.name) / setting.problem.path.name
    file.write_text(setting.problem.source, encoding="utf-8")
    bench = _opened(setting, replace(setting.problem, path=file))
    _KEPT.append(_Kept(key, bench, folder))
    return bench


def _opened(setting: Setting, problem: Problem) -> LocalBench | SimulatedBench:
    places, refused = _places(setting)
    if not places:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise Unavailable(f"nothing can be run on this node ({reasons})", hint="Install it there.")
    settings = _settings(setting)
    if all(by_commands(place.toolchain) for place in places.values()):
        return SimulatedBench(
            problem, places, settings, signatures=setting.signatures, rules=setting.rules
        )
    assert setting.device is not None
    return LocalBench(
        problem,
        places,
        settings,
        ceilings=DeviceStore(node_folder()).ensure(setting.device, settings.threads),
        signatures=setting.signatures,
        rules=setting.rules,
    )
