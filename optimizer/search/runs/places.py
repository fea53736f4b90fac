"""Places of a run: target and toolchain by language, on this machine or on the nodes of a cluster,
and the bench over them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kb.catalog.evaluations import Evaluations
from kb.cluster import (
    NODE_ID,
    Cluster,
    ClusterNode,
    SentTask,
    Slots,
    WorkLost,
    only_hardware,
    slots_for,
)
from kb.errors import InternalError, InvalidRequest, KernloreError, Unavailable
from kb.hardware.detection import detect_devices
from kb.hardware.spec import COST_KINDS
from optimizer.evaluation.catalog_journal import CatalogJournal, store_device
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.collectors.probe import DeviceKind
from optimizer.evaluation.evaluate import (
    choose_target,
    known_ceilings,
    known_rules,
    known_signatures,
    resolver,
)
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.settings import EvaluationSettings, settings_of_search
from optimizer.evaluation.targets import AUTO, target_for
from optimizer.evaluation.toolchains.base import EvaluationTarget, Toolchain
from optimizer.evaluation.toolchains.command import CommandToolchain
from optimizer.evaluation.toolchains.registry import toolchain_for, usable_toolchain
from optimizer.search.bench.cluster import (
    LOOK_SECONDS,
    TRIES,
    Activity,
    ClusterBench,
    NodeCommands,
    Nodes,
    NodeToolchain,
    SimulatedOnCluster,
)
from optimizer.search.bench.local import LocalBench, TargetToolchain
from optimizer.search.bench.on_node import OfferedLanguage, Setting, Surveyed, survey
from optimizer.search.bench.simulated import SimulatedBench, by_commands, clock_of
from retrieval.knowledge_base import KnowledgeBase

LANGUAGES = ("torch", "triton", "cpp", "cuda")
CLOCKS = ("wall", "program", "simulator", *COST_KINDS)  # preferred first
CUDA_VENDORS = ("nvidia", "amd")
SURVEY_SECONDS = 300.0  # for a node to start a process and to import torch


def bench_for(
    base: KnowledgeBase,
    problem: Problem,
    places: Mapping[str, TargetToolchain],
    minutes: float | None = None,
) -> LocalBench | SimulatedBench:
    """The bench of this machine's devices, or of a chip's own commands, for a search of at most
    `minutes`."""
    target = target_of(places)
    settings = settings_of_search(minutes)
    journal = CatalogJournal(Evaluations(base.catalog), base.blobs)
    signatures = known_signatures(base, target.lineage)
    rules = known_rules(base, target.lineage)
    if all(by_commands(place.toolchain) for place in places.values()):
        return SimulatedBench(problem, places, settings, journal, signatures, rules)
    ceilings = known_ceilings(base, target, settings.threads)
    return LocalBench(problem, places, settings, journal, signatures, rules, ceilings)


def places_for(
    base: KnowledgeBase, hardware: str, language: str | None
) -> dict[str, TargetToolchain]:
    """Target and toolchain by language, on this machine.

    With `language`, that one and torch, which the reference is written in; else every language that
    works here. All of them have times of one clock. Raises Unavailable with the missing parts.
    """
    places: dict[str, TargetToolchain] = {}
    problems: dict[str, KernloreError] = {}
    own = own_languages(base, hardware)
    known = (*LANGUAGES, *own)
    for name in dict.fromkeys(known if language is None else (language, "torch")):
        try:
            chosen = choose_target(base, hardware, name)
            toolchain = usable_toolchain(name, chosen.target, chosen.builtin)
        except (InvalidRequest, Unavailable) as problem:
            if name == language:
                raise
            problems[name] = problem
            continue
        if chosen.target.device is not None or by_commands(toolchain):
            places[name] = TargetToolchain(chosen.target, toolchain)
    places = of_one_clock(places, language)
    if not places:
        raise _nothing_runs(hardware, {n: p for n, p in problems.items() if n in own} or problems)
    return places


def _nothing_runs(hardware: str, problems: Mapping[str, KernloreError]) -> KernloreError:
    if len(problems) == 1:
        return next(iter(problems.values()))
    reasons = "; ".join(f"{name}: {problem.message}" for name, problem in problems.items())
    return Unavailable(
        f"nothing can be run on {hardware} here ({reasons})",
        hint="Search on a machine that has it, or pack a portable session.",
    )


def refuse_absent(base: KnowledgeBase, hardware: str, language: str | None) -> None:
    """Raise the error of `places_for` before a run is started, for a chip that is not in this
    machine. A chip that is here is left to the run: querying its driver would hold the device."""
    if hardware == AUTO:
        return
    identity = base.registry.resolve(hardware)
    devices = detect_devices(resolver(base)).devices
    if all(device.hardware_id_hint != identity for device in devices):
        places_for(base, hardware, language)


def target_of(places: Mapping[str, TargetToolchain]) -> EvaluationTarget:
    """The target of these places; all have the same hardware."""
    return next(iter(places.values())).target


def of_one_clock(
    places: Mapping[str, TargetToolchain], language: str | None
) -> dict[str, TargetToolchain]:
    """The languages with times of one clock, which can be compared: that of `language`, else this
    harness's own where a language has it."""
    clocks = {name: clock_of(place.toolchain) for name, place in places.items()}
    preferred = sorted({*clocks.values()}, key=CLOCKS.index)
    clock = clocks.get(language or "") or next(iter(preferred), "")
    return {name: place for name, place in places.items() if clocks[name] == clock}


def own_languages(base: KnowledgeBase, hardware: str) -> list[str]:
    """Languages with a toolchain in the description of a named chip."""
    if hardware == AUTO:
        return []
    specs = base.registry.all()
    lineage = base.registry.lineage(base.registry.resolve(hardware))
    return [name for place in lineage if place in specs for name in specs[place].toolchains]


# -- on a cluster


@dataclass(frozen=True)
class ClusterPlaces:
    """The nodes of a run. `places` are by language. `slots` are the nodes with the environment of
    `chosen`, `others` the ids of the remaining ones. `activity` belongs to a single run."""

    hardware: str
    cluster: Cluster
    slots: Slots
    setting: Setting
    chosen: Surveyed
    hosts: Sequence[str]
    others: Sequence[str]
    places: Mapping[str, TargetToolchain]
    activity: Activity

    def bench(
        self, base: KnowledgeBase, problem: Problem, log: Callable[[str], None]
    ) -> ClusterBench | SimulatedOnCluster:
        """The bench of a problem on these nodes. `log` gets remarks."""
        lineage = base.registry.lineage(self.hardware)
        signatures, rules = known_signatures(base, lineage), known_rules(base, lineage)
        setting = replace(self.setting, problem=problem, signatures=signatures, rules=rules)
        nodes = Nodes(
            self.cluster,
            self.slots,
            setting,
            self.chosen.environment,
            self.others,
            self.activity,
            log,
        )
        nodes.measured_on = self._storing_device(base)
        for place in self.places.values():
            chain = place.toolchain
            assert isinstance(chain, NodeToolchain | NodeCommands)
            chain.nodes = nodes
        journal = CatalogJournal(Evaluations(base.catalog), base.blobs)
        if all(by_commands(place.toolchain) for place in self.places.values()):
            return SimulatedOnCluster(
                problem,
                self.places,
                setting.settings,
                journal,
                signatures,
                rules,
                side_by_side=max(1, self.slots.count),
                nodes=nodes,
            )
        return ClusterBench(problem, self.places, setting.settings, journal, nodes=nodes)

    def _storing_device(self, base: KnowledgeBase) -> Callable[[Ceilings], None]:
        """A function that stores the row of the chosen node's device once."""
        stored: set[str] = set()

        def store(ceilings: Ceilings) -> None:
            identity = self.chosen.identity
            if identity is not None and identity.id == ceilings.device not in stored:
                stored.add(ceilings.device)
                store_device(base.catalog, self.hardware, identity, ceilings)

        return store


def cluster_places(
    base: KnowledgeBase,
    cluster: Cluster,
    hardware: str,
    language: str | None,
    log: Callable[[str], None],
) -> ClusterPlaces:
    """The largest group of nodes with an equal environment among those that declare a hardware;
    `log` gets the reasons why others are left out. `auto` is the only hardware of a cluster.

    Raises UnknownHardware, InvalidRequest, and Unavailable if no node has it or can run anything.
    """
    resolve = resolver(base)
    nodes = cluster.nodes()
    named = only_hardware(nodes, resolve) if hardware == AUTO else base.registry.resolve(hardware)
    slots = slots_for(nodes, named, resolve)
    offered = _offered(base, named, language)
    setting = Setting(offered, _device(base, named), settings=EvaluationSettings())
    surveyed, silent = _survey(cluster, slots, setting)
    chosen, others = _alike(slots, surveyed)
    left_out = silent | {
        other.host: other.environment.difference(chosen.environment)
        for other in surveyed
        if other.environment != chosen.environment
    }
    for host, why in left_out.items():
        log(f"{host} is left out: {why}")
    places = _places(setting, chosen, language)
    kept = slots.only([node.id for node in slots.nodes if node.id not in others])
    hosts = [node.host for node in surveyed if node.node not in others]
    narrowed = replace(setting, offered={name: offered[name] for name in places})
    environment = replace(
        chosen.environment,
        versions=tuple(pair for pair in chosen.environment.versions if pair[0] in places),
    )
    chosen = replace(chosen, environment=environment)
    activity = Activity(cluster.address, cluster.dashboard, hosts, kept.count, left_out)
    return ClusterPlaces(named, cluster, kept, narrowed, chosen, hosts, others, places, activity)


def _device(base: KnowledgeBase, hardware: str) -> DeviceKind | None:
    """Torch's kind of device for a hardware; None if only its own commands run it."""
    lineage = set(base.registry.lineage(hardware))
    if lineage & set(CUDA_VENDORS):
        return "cuda"
    return "cpu" if lineage & {"x86-64", "arm"} else None


def _offered(
    base: KnowledgeBase, hardware: str, language: str | None
) -> dict[str, OfferedLanguage]:
    """The languages that a toolchain of the catalog compiles for a hardware, or only `language` and
    torch, which the reference is written in. Raises InvalidRequest for one that nothing compiles.
    """
    registry = base.registry
    specs, lineage = registry.all(), registry.lineage(hardware)
    facts = registry.values(hardware)
    known = (*LANGUAGES, *own_languages(base, hardware))
    offered: dict[str, OfferedLanguage] = {}
    for name in dict.fromkeys(known if language is None else (language, "torch")):
        chosen = target_for(hardware, lineage, specs, facts, name, (), lambda: False)
        try:
            toolchain_for(name, chosen.target, chosen.builtin)
        except (InvalidRequest, Unavailable):
            if name == language:
                raise
            continue
        offered[name] = OfferedLanguage(chosen.target, chosen.builtin)
    return offered


def _survey(
    cluster: Cluster, slots: Slots, setting: Setting
) -> tuple[list[Surveyed], dict[str, str]]:
    """Descriptions of the nodes, and the errors of those without one. Raises Unavailable if no node
    could be described."""

    def send(node: ClusterNode) -> SentTask:
        return cluster.send(
            survey,
            setting,
            name="survey",
            options={"num_cpus": 0, "label_selector": {NODE_ID: node.id}},
            own_process=setting.device == "cuda",  # so that it holds no GPU
        )

    sent = [(node, send(node)) for node in slots.nodes]
    answers, silent = [], {}
    deadline = time.monotonic() + SURVEY_SECONDS
    for node, work in sent:
        try:
            answers.append(_surveyed(cluster, node, work, send, deadline))
        except (WorkLost, InternalError) as error:
            silent[node.name] = error.message
    if not answers:
        reasons = "; ".join(f"{name}: {why}" for name, why in silent.items())
        raise Unavailable(
            f"no node with {slots.label}={'|'.join(slots.values)} can be used: {reasons}",
            hint="See the nodes and their logs in Ray's dashboard.",
        )
    return answers, silent


def _surveyed(
    cluster: Cluster,
    node: ClusterNode,
    work: SentTask,
    send: Callable[[ClusterNode], SentTask],
    deadline: float,
) -> Surveyed:
    """The description of a node. The task is repeated if its process was lost but not the node,
    which happens on busy machines. Raises WorkLost and InternalError."""
    for left in reversed(range(TRIES)):
        try:
            while not work.wait_for_value(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline or not _is_alive(cluster, node):
                    raise WorkLost(f"no answer within {SURVEY_SECONDS:.0f} s, or the node is gone")
            answer: Surveyed = work.next()
            return answer
        except WorkLost:
            if not left or time.monotonic() >= deadline or not _is_alive(cluster, node):
                raise
        finally:
            cluster.finish(work)
        work = send(node)
    raise AssertionError("the last try answers or raises")


def _is_alive(cluster: Cluster, node: ClusterNode) -> bool:
    return any(living.id == node.id for living in cluster.nodes())


def _alike(slots: Slots, surveyed: Sequence[Surveyed]) -> tuple[Surveyed, list[str]]:
    """A node of the group with an equal environment that has most slots, and the ids of all nodes
    outside that group."""
    places = {node.id: slots.of(node) for node in slots.nodes}

    def weight(one: Surveyed) -> tuple[int, str]:
        same = [s for s in surveyed if s.environment == one.environment]
        return sum(places[s.node] for s in same), repr(one.environment)

    chosen = max(surveyed, key=weight)
    same = {s.node for s in surveyed if s.environment == chosen.environment}
    return chosen, [node.id for node in slots.nodes if node.id not in same]


def _places(setting: Setting, node: Surveyed, language: str | None) -> dict[str, TargetToolchain]:
    """The languages of one clock that the nodes can use. Raises Unavailable."""
    versions = dict(node.environment.versions)
    if language is not None and language not in versions:
        raise Unavailable(
            f"{node.host}: {node.refused.get(language, f'{language} cannot be used')}",
            hint="Install it on the nodes, or leave --language out.",
        )
    places: dict[str, TargetToolchain] = {}
    for name, offered in setting.offered.items():
        if name not in versions:
            continue
        facts = {**offered.target.facts, **node.facts}
        target = replace(offered.target, device=setting.device, facts=facts)
        chain = _toolchain(name, offered, versions[name])
        if target.device is not None or by_commands(chain):
            places[name] = TargetToolchain(target, chain)
    places = of_one_clock(places, language)
    if not places:
        reasons = "; ".join(f"{name}: {why}" for name, why in node.refused.items())
        raise Unavailable(
            f"nothing can be run on {node.host} ({reasons or 'it has no toolchain'})",
            hint="Install a toolchain on the nodes.",
        )
    return places


def _toolchain(language: str, offered: OfferedLanguage, named: str) -> Toolchain:
    chain = toolchain_for(language, offered.target, offered.builtin)
    if not isinstance(chain, CommandToolchain):
        return NodeToolchain(language, named)
    commands = NodeCommands(language, chain.template)
    commands.named = named
    return commands
