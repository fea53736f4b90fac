"""Benches that measure on the nodes of a cluster.

A candidate is sent as a task; its evaluation is returned and stored here. The evaluations of a lost
node begin again on another. A task reports first on which node it runs and whether that node
measures like the run's other nodes; a node that does not is excluded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kb.cluster import Cluster, SentTask, Slots, WorkLost
from kb.errors import Unavailable
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.evaluator import MeasuringPlace, evaluation_key
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Case
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.toolchains.base import (
    Availability,
    CompileCase,
    Compiled,
    EvaluationTarget,
)
from optimizer.evaluation.toolchains.command import CommandToolchain
from optimizer.search.bench.local import ProblemBench, journal_evaluation, reference_bundle
from optimizer.search.bench.on_node import (
    Differs,
    Environment,
    Failed,
    NodeEvaluation,
    NodeWork,
    Setting,
    WorkStarted,
    compile_draft,
    measure,
)
from optimizer.search.bench.simulated import SimulatedBench
from optimizer.search.records import Proposal

LOOK_SECONDS = 2.0  # between two checks of the cluster while a task runs
NO_NODE_SECONDS = 60.0  # longest wait without a usable node
LONGEST_SECONDS = 1800.0  # of one task, since its deadlines do not cover the problem's code
TRIES = 3  # at tasks that the search does not repeat

Log = Callable[[str], None]


@dataclass
class Activity:
    """Progress of a run on the cluster, shared by its threads; `changed` gets the new state."""

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
        """The live state, as it is stored with the run."""
        return self._state

    def text(self) -> str:
        """The state in a few words."""
        nodes = self._state["nodes"].values()
        busy = sum(row["evaluating"] for row in nodes)
        words = [f"{busy} of {self._state['slots']} places busy"]
        words += [f"{self._state[w]} {w}" for w in ("waiting", "lost") if self._state[w]]
        return ", ".join(words)

    def count(self, host: str | None, what: str, by: int) -> None:
        """Add to a count of a node, or of the run without `host`."""
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
        """Record an excluded node."""
        with self._lock:
            self._state["left_out"] = {**self._state["left_out"], host: why}
            self._dirty = True

    def show(self) -> None:
        """Call `changed` if the state has changed, at most once in LOOK_SECONDS."""
        with self._lock:
            now = time.monotonic()
            if not self._dirty or now - self._shown < LOOK_SECONDS:
                return
            self._dirty, self._shown = False, now
            state = dict(self._state)
        self.changed(state)


class Nodes:
    """Sends the tasks of one run to nodes with an equal environment."""

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
        """`slots` are the nodes of this environment at the beginning of the run; `without` are ids
        of nodes with another one. `log` gets remarks, from the waiting thread."""
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
        """The evaluation of a task. Raises WorkLost if its node was lost at the last of `tries`,
        and the InvalidRequest or Unavailable of the task."""
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
        """Compile a draft on a node, without taking one of its devices."""
        options = {**self.slots.options(self._excluded()), "num_cpus": 1}
        options = {name: options[name] for name in ("num_cpus", "label_selector")}
        sent = self._cluster.send(
            compile_draft, self._setting, bundle, cases, name="a draft", options=options
        )
        try:
            self._wait(sent, time.monotonic() + LONGEST_SECONDS)
            answer = sent.next()
        finally:
            self._cluster.finish(sent)
        if isinstance(answer, Failed):
            raise answer.error()
        assert isinstance(answer, Compiled)
        return answer

    def _excluded(self) -> set[str]:
        with self._changing:
            return set(self._without)

    def _answer(self, work: NodeWork, name: str) -> NodeEvaluation | None:
        """The answer of a node; None if the node had another environment and was excluded."""
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
            raise answer.error()
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
        """Wait for the next value of a task: of a running one until `until`, else as long as there
        is a node that could run it. Raises Unavailable."""
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
                    hint="Start one; `kernlore runs resume --ray` continues the run.",
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


class _OnNodes:
    """A toolchain of the nodes: it compiles there, and nothing is loaded here. `named` is its name
    and version as a node reports them."""

    nodes: Nodes | None = None
    named: str = ""

    def available(self, target: EvaluationTarget) -> Availability:
        """Always: the run only uses nodes that have it."""
        return Availability(True)

    def version(self) -> str:
        return self.named.partition(" ")[2]

    def compile(
        self,
        bundle: Bundle,
        target: EvaluationTarget,
        workdir: Path,
        cases: tuple[CompileCase, ...],
    ) -> Compiled:
        assert self.nodes is not None
        return self.nodes.compile(bundle, cases)


class NodeToolchain(_OnNodes):
    """A built-in toolchain of the nodes."""

    def __init__(self, language: str, named: str) -> None:
        self.name, self.named = named.partition(" ")[0], named
        self.languages: tuple[str, ...] = (language,)


class NodeCommands(_OnNodes, CommandToolchain):
    """The command templates of a chip whose programs are on the nodes."""


def stored_or_measured(
    bench: ProblemBench,
    environment: Environment,
    bundle: Bundle,
    cases: Sequence[Case],
    measured: Callable[[], Evaluation],
) -> Evaluation:
    """The stored evaluation of a bundle in this environment, unless its timing has to be repeated;
    else a new one, which is stored."""
    place = bench.place(bundle.language)
    chain = place.toolchain
    by = MeasuringPlace(
        place.target.hardware,
        bench.device,
        chain.name,
        chain.version(),
        environment.settings,
        environment.processor,
    )
    earlier = bench.journal.finished(evaluation_key(bench.problem, cases, bundle, by))
    if earlier is not None and earlier.timing != "repeat":
        return earlier
    evaluation = measured()
    journal_evaluation(bench.journal, bench.problem, bundle, cases, evaluation, remote=True)
    return evaluation


@dataclass
class ClusterBench(ProblemBench):
    """Evaluates candidates on the nodes of a cluster, by the clock of the harness there."""

    nodes: Nodes = field(kw_only=True)

    @property
    def at_once(self) -> int:
        """The number of slots at the beginning of the run."""
        return max(1, self.nodes.slots.count)

    def reference(self) -> Evaluation:
        """As `LocalBench.reference`."""
        case = self.timed_case()
        bundle = reference_bundle(OpenCase(self.problem, case, shapes_only=True))
        name = f"{self.problem.name}: the reference"
        return self._stored(bundle, [case], NodeWork("reference"), name, TRIES)

    def evaluate(self, proposal: Proposal) -> Evaluation:
        """As `LocalBench.evaluate`. Raises WorkLost if the node was lost."""
        work = NodeWork("evaluate", proposal)
        return self._stored(proposal.bundle, self.cases(proposal), work, self._name(proposal), 1)

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        """As `LocalBench.confirm`; not stored."""
        self.place(proposal.bundle.language)
        work = NodeWork("confirm", proposal, held_out)
        return self.nodes.measure(work, f"{self._name(proposal)}, again", TRIES)

    def _name(self, proposal: Proposal) -> str:
        return f"{self.problem.name}: {proposal.bundle.sha256[:8]}"

    def _stored(
        self, bundle: Bundle, cases: Sequence[Case], work: NodeWork, name: str, tries: int
    ) -> Evaluation:
        return stored_or_measured(
            self,
            self.nodes.environment,
            bundle,
            cases,
            lambda: self.nodes.measure(work, name, tries),
        )


@dataclass
class SimulatedOnCluster(SimulatedBench):
    """Evaluates candidates through a chip's own commands on the nodes of a cluster; the baseline is
    chosen here."""

    nodes: Nodes = field(kw_only=True)

    def measure(self, bundle: Bundle, cases: Sequence[Case], fresh: bool) -> Evaluation:
        """As `SimulatedBench.measure`. Raises WorkLost if the node was lost."""
        self.place(bundle.language)
        work = NodeWork("run", bundle=bundle, cases=tuple(cases), fresh=fresh)
        name = f"{self.problem.name}: {bundle.sha256[:8]}"
        if fresh:
            return self.nodes.measure(work, f"{name}, again", TRIES)
        # The search repeats a failed candidate, but not the choice of the baseline.
        tries = 1 if self._baseline else TRIES
        return stored_or_measured(
            self,
            self.nodes.environment,
            bundle,
            cases,
            lambda: self.nodes.measure(work, name, tries),
        )
