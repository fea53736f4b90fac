"""Tasks of a search that run on the nodes of a cluster: they describe the node and measure with the
bench of a single machine. Nodes have few packages, so this imports nothing of the connection.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from kb.errors import InvalidRequest, KernloreError, Unavailable
from kb.hardware.spec import SignatureSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.collectors.ceilings import Ceilings, DeviceStore
from optimizer.evaluation.collectors.probe import DeviceIdentity, DeviceKind, identify
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.machine import processor, usable_processors
from optimizer.evaluation.isolation.runner_process import VISIBLE
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.targets import facts_of
from optimizer.evaluation.toolchains.base import CompileCase, Compiled, EvaluationTarget
from optimizer.evaluation.toolchains.registry import usable_toolchain
from optimizer.search.bench.local import LocalBench, TargetToolchain
from optimizer.search.bench.simulated import GOLDENS, SimulatedBench, by_commands
from optimizer.search.records import Proposal
from retrieval.diagnose.rules import NO_RULES, OwnRules


@dataclass(frozen=True)
class OfferedLanguage:
    """A language that the catalog describes for a hardware: its target, without the device and the
    facts of the node, and the built-in toolchain that hardware.toml names."""

    target: EvaluationTarget
    builtin: str | None


@dataclass(frozen=True)
class Setting:
    """Settings of all tasks of a run. `device` is the kind of device, None if a chip's own commands
    run the candidates. The node sets the number of threads in `settings`."""

    offered: Mapping[str, OfferedLanguage]
    device: DeviceKind | None
    problem: Problem | None = None
    settings: EvaluationSettings = field(default_factory=EvaluationSettings)
    signatures: Sequence[SignatureSpec] = ()
    rules: OwnRules = NO_RULES


@dataclass(frozen=True)
class NodeWork:
    """A task: evaluate the reference, evaluate a candidate on the searched cases, confirm it on
    fresh values, or `run` a bundle through a chip's own commands on these cases."""

    kind: Literal["reference", "evaluate", "confirm", "run"]
    proposal: Proposal | None = None
    held_out: bool = False
    bundle: Bundle | None = None
    cases: tuple[Case, ...] = ()
    fresh: bool = False


@dataclass(frozen=True)
class Environment:
    """Properties of a node that affect figures; evaluations are only compared between nodes with an
    equal environment. `versions` are those of the toolchains by language, `device` is name and
    driver of the device."""

    versions: tuple[tuple[str, str], ...]
    device: str
    processor: str
    settings: str
    isolation: str

    def difference(self, other: Environment) -> str:
        """The differences from another environment, in words."""
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
    """Description of a node. `refused` maps unusable languages to the reason; `facts` are those
    that its device reports."""

    node: str
    host: str
    environment: Environment
    refused: Mapping[str, str]
    facts: Mapping[str, float | str]
    identity: DeviceIdentity | None


@dataclass(frozen=True)
class WorkStarted:
    """The task has begun on this node."""

    node: str
    host: str


@dataclass(frozen=True)
class Differs:
    """The node's environment is not the run's; nothing was measured."""

    environment: Environment


@dataclass(frozen=True)
class Failed:
    """The error of a task."""

    code: str
    message: str
    hint: str

    def error(self) -> KernloreError:
        """The error, to be raised in the process of the run."""
        kind = InvalidRequest if self.code.startswith("invalid") else Unavailable
        return kind(self.message, hint=self.hint)


@dataclass(frozen=True)
class NodeEvaluation:
    """An evaluation with the ceilings of its device."""

    evaluation: Evaluation
    ceilings: Ceilings | None


def node_folder() -> Path:
    """The folder of a node for the ceilings of its devices."""
    return Path(tempfile.gettempdir()) / f"kernlore-node-{os.getuid()}"


def survey(setting: Setting) -> Iterator[Surveyed]:
    """Describe this node; the device need not be free."""
    if os.environ.get(VISIBLE) == "":  # set for tasks that take no GPU
        del os.environ[VISIBLE]
    yield _surveyed(setting)


def compile_draft(
    setting: Setting, bundle: Bundle, cases: tuple[CompileCase, ...]
) -> Iterator[Compiled | Failed]:
    """Compile a candidate without running it."""
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
    """Carry out a task: yields that it has begun, then the result."""
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
    """The usable languages, and the reasons why others are not."""
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


@dataclass
class _OpenBench:
    """A bench that this process keeps for the next task of the same run."""

    key: Any
    bench: LocalBench | SimulatedBench
    folder: tempfile.TemporaryDirectory[str]


_OPEN: list[_OpenBench] = []  # at most one


def _bench_of(setting: Setting) -> LocalBench | SimulatedBench:
    """The bench of a run: the open one, or a new one that replaces it."""
    assert setting.problem is not None
    key = (setting.problem.sha256, setting.device, setting.settings, tuple(setting.offered))
    if _OPEN and _OPEN[0].key == key:
        return _OPEN[0].bench
    while _OPEN:
        old = _OPEN.pop()
        old.bench.close()
        old.folder.cleanup()
    # Ray limits the threads of a task to the processors that it takes.
    torch.set_num_threads(usable_processors())
    folder = tempfile.TemporaryDirectory(prefix="kernlore-node-")
    file = Path(folder.name) / setting.problem.path.name
    file.write_text(setting.problem.source, encoding="utf-8")
    bench = _opened(setting, replace(setting.problem, path=file))
    _OPEN.append(_OpenBench(key, bench, folder))
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
