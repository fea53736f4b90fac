"""Evaluate a candidate on a hardware id: from files or a request to an Evaluation, with the
knowledge about it.

Connects hardware registry, devices, toolchains and catalog with the evaluator, which knows none of
them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from kb.answers import Move
from kb.catalog.evaluations import Evaluations
from kb.errors import InvalidRequest, UnknownHardware, nearest
from kb.hardware.detection import DetectedDevice, Resolver, detect_devices
from kb.hardware.spec import SignatureSpec
from kb.plain import plain
from optimizer.evaluation.bundle import MANIFEST, Bundle, read_bundle
from optimizer.evaluation.catalog_journal import CatalogJournal, store_device
from optimizer.evaluation.collectors.ceilings import Ceilings, DeviceStore
from optimizer.evaluation.collectors.probe import identify
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.levels import WANTED, Wanted
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.targets import (
    AUTO,
    ChosenTarget,
    command_toolchains,
    detected_hardware,
    facts_of,
    target_for,
)
from optimizer.evaluation.toolchains.base import EvaluationTarget, Toolchain
from optimizer.evaluation.toolchains.cpp import DEFAULTS, CppToolchain
from optimizer.evaluation.toolchains.registry import usable_toolchain
from retrieval.diagnose.rules import OwnRules, rules_of
from retrieval.knowledge_base import KnowledgeBase
from retrieval.request import RetrieveRequest

MAX_KNOWLEDGE = 5  # excerpts and moves in the answer of `kernlore evaluate`


@dataclass(frozen=True)
class EvaluationRequest:
    """An evaluation whose arguments were checked. No code of problem or candidate has run.

    cases: None for the problem's default cases.
    """

    problem: Problem
    bundle: Bundle
    chosen: ChosenTarget
    toolchain: Toolchain
    cases: tuple[Case, ...] | None


def evaluate_files(
    base: KnowledgeBase,
    problem_path: Path,
    candidate: Path,
    *,
    hardware: str = AUTO,
    language: str | None = None,
    entry: str | None = None,
    cases: tuple[str, ...] = (),
    isolation: str = "auto",
) -> Evaluation:
    """Evaluate the candidate in a file or folder. Raises the errors of `check_request`."""
    level = isolation_level(isolation)
    problem = load_problem(problem_path)
    language = language or _language_of_suffix(base, hardware, candidate)
    default = entry_for(base, hardware, language) if language is not None else ""
    bundle = read_bundle(candidate, language, entry, default)
    request = check_request(base, problem, bundle, hardware=hardware, cases=cases)
    return evaluate_request(base, request, EvaluationSettings(isolation=level))


def isolation_level(name: str) -> Wanted:
    """The isolation of this name. Raises InvalidRequest."""
    level = next((wanted for wanted in WANTED if wanted == name), None)
    if level is None:
        raise InvalidRequest(f"unknown isolation {name!r}", hint=f"Use one of {', '.join(WANTED)}.")
    return level


def check_request(
    base: KnowledgeBase,
    problem: Problem,
    bundle: Bundle,
    *,
    hardware: str = AUTO,
    cases: tuple[str, ...] = (),
) -> EvaluationRequest:
    """Raises InvalidRequest, UnknownHardware or Unavailable if the evaluation cannot run here."""
    _check_file_names(bundle)
    chosen = choose_target(base, hardware, bundle.language)
    toolchain = usable_toolchain(bundle.language, chosen.target, chosen.builtin)
    return EvaluationRequest(problem, bundle, chosen, toolchain, _named_cases(problem, cases))


def evaluate_request(
    base: KnowledgeBase, request: EvaluationRequest, settings: EvaluationSettings | None = None
) -> Evaluation:
    """Evaluate and store the result. The problem's code runs in this process, the candidate's in
    child processes."""
    settings = settings or EvaluationSettings()
    target = request.chosen.target
    with Evaluator(
        request.problem,
        target,
        settings,
        CatalogJournal(Evaluations(base.catalog), base.blobs),
        ceilings=known_ceilings(base, target, settings.threads),
        signatures=known_signatures(base, target.lineage),
        rules=known_rules(base, target.lineage),
    ) as evaluator:
        return evaluator.evaluate(request.bundle, request.toolchain, request.cases)


def _check_file_names(bundle: Bundle) -> None:
    """Reject files named like the manifest or like the folder of another file."""
    if MANIFEST in bundle.files:
        raise InvalidRequest(
            f"{MANIFEST} describes a bundle and is not one of its files", hint="Leave it out."
        )
    for name in bundle.files:
        for folder in PurePosixPath(name).parents:
            if folder.as_posix() in bundle.files:
                raise InvalidRequest(
                    f"{folder.as_posix()!r} is a file and the folder of {name!r}",
                    hint="Give one of the two another name.",
                )


def _named_cases(problem: Problem, names: tuple[str, ...]) -> tuple[Case, ...] | None:
    if not names:
        return None
    known = {case.name: case for case in problem.cases}
    for name in names:
        if name not in known:
            near = nearest(name, known)
            raise InvalidRequest(
                f"problem {problem.name} has no case {name!r}",
                hint=f"It has {', '.join(known)}." + (f" Did you mean {near[0]}?" if near else ""),
            )
    return tuple(known[name] for name in names)


# -- problems by name and from text


def problem_from_text(source: str, toml: str | None = None) -> Problem:
    """Parse a problem file and its declaration, without running code."""
    with tempfile.TemporaryDirectory(prefix="kernlore-problem-") as folder:
        file = Path(folder) / "sent.py"
        file.write_text(source, encoding="utf-8")
        if toml is not None:
            file.with_suffix(".toml").write_text(toml, encoding="utf-8")
        return load_problem(file)


def declaration_of(problem: Problem) -> str | None:
    """The declaration with which `problem_from_text` rebuilds this problem; None if it has none."""
    for toml in (problem.path.with_suffix(".toml"), problem.path.parent / "problem.toml"):
        text = toml.read_text(encoding="utf-8") if problem.declared and toml.is_file() else None
        if text is not None and problem_from_text(problem.source, text).sha256 == problem.sha256:
            return text
    return None


# -- knowledge about an evaluation


def with_knowledge(base: KnowledgeBase, evaluation: Evaluation) -> dict[str, Any]:
    """The output of `kernlore evaluate --json`."""
    return {**evaluation.as_json(), "knowledge": knowledge_about(base, evaluation)}


def knowledge_about(base: KnowledgeBase, evaluation: Evaluation) -> dict[str, Any]:
    """Signals, moves and excerpts for a verdict; {} if there is nothing to retrieve for."""
    settings = base.settings
    verdict = evaluation.verdict
    metrics = {**evaluation.metrics, **verdict.metrics}
    request = RetrieveRequest(
        log=evaluation.log or None if not evaluation.correct else None,
        # Counters and times explain why a correct kernel is slow, not why one is incorrect.
        metrics=metrics or None if evaluation.correct else None,
        signals=verdict.signal_ids,
        problem=verdict.problem or None,
        op=verdict.op if verdict.op not in ("", "unknown") else None,
        hardware=evaluation.hardware,
        language=evaluation.language,
        k=settings.default_k,
        max_tokens=settings.default_max_tokens,
    )
    symptoms = request.log or request.metrics or request.signals
    if not symptoms or not base.documents.find():
        return {}
    answer = base.retriever.retrieve(request)
    signals = [signal["id"] for signal in plain(answer.diagnosis)["signals"]]
    # Without a signal, excerpts after the first only share words with the request.
    excerpts = MAX_KNOWLEDGE if signals or not evaluation.correct else 1
    return {
        "retrieval_id": answer.retrieval_id,
        "signals": signals,
        "moves": plain(_remaining_moves(answer.moves, evaluation.toolchain))[:MAX_KNOWLEDGE],
        "excerpts": plain(answer.excerpts)[:excerpts],
    }


def _remaining_moves(moves: Sequence[Move], toolchain: str) -> list[Move]:
    """Omit moves that set an option which the toolchain ("NAME VERSION") sets by default."""
    done = DEFAULTS if toolchain.partition(" ")[0] == CppToolchain.name else {}
    return [
        move
        for move in moves
        if move.change.get("direction") != "set" or move.change.get("to") not in done
    ]


def known_ceilings(base: KnowledgeBase, target: EvaluationTarget, threads: int) -> Ceilings | None:
    """The measured ceilings of the device, stored after the first measurement; None if the target
    is not in this machine."""
    if target.device is None:
        return None
    ceilings = DeviceStore(base.settings.data_dir).ensure(target.device, threads)
    store_device(base.catalog, target.hardware, identify(target.device), ceilings)
    return ceilings


def known_signatures(base: KnowledgeBase, lineage: Sequence[str]) -> list[SignatureSpec]:
    """Error signatures of the tools of the chip and of its ancestors."""
    known = base.registry.all()
    return [s for ancestor in lineage if ancestor in known for s in known[ancestor].signatures]


def known_rules(base: KnowledgeBase, lineage: Sequence[str]) -> OwnRules:
    """Signal rules over the counters of the chip and of its ancestors."""
    return rules_of(base.registry.all(), lineage)


# -- targets


def choose_target(base: KnowledgeBase, hardware: str, language: str) -> ChosenTarget:
    """The target of a hardware id or AUTO. Raises UnknownHardware, or Unavailable for AUTO if no
    device of this machine is registered."""
    registry = base.registry
    devices: tuple[DetectedDevice, ...] = detect_devices(resolver(base)).devices
    hardware_id = detected_hardware(devices) if hardware == AUTO else registry.resolve(hardware)
    chosen = target_for(
        hardware_id,
        registry.lineage(hardware_id),
        registry.all(),
        registry.values(hardware_id),
        language,
        devices,
        _cuda,
    )
    if chosen.target.device is None:
        return chosen
    # Facts read from the device are more exact than those of its family's manuals.
    facts = {**chosen.target.facts, **facts_of(identify(chosen.target.device))}
    return replace(chosen, target=replace(chosen.target, facts=facts))


def resolver(base: KnowledgeBase) -> Resolver:
    """A function from a device's name to its hardware id, or None."""

    def resolve(name: str) -> str | None:
        try:
            return base.registry.resolve(name)
        except UnknownHardware:
            return None

    return resolve


def entry_for(base: KnowledgeBase, hardware: str, language: str) -> str:
    """The kernel name that the chip's command toolchain requires; "" if it requires none. Raises
    UnknownHardware."""
    if hardware == AUTO:
        return ""
    registry = base.registry
    lineage = registry.lineage(registry.resolve(hardware))
    toolchain = command_toolchains(registry.all(), lineage).get(language)
    return toolchain.called if toolchain is not None else ""


def _cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _language_of_suffix(base: KnowledgeBase, hardware: str, candidate: Path) -> str | None:
    """The language of a file suffix in the toolchains of the named chip."""
    if hardware == AUTO or not candidate.suffix:
        return None
    registry = base.registry
    specs = registry.all()
    for ancestor in registry.lineage(registry.resolve(hardware)):
        for language, chain in (specs[ancestor].toolchains if ancestor in specs else {}).items():
            if chain.suffix == candidate.suffix:
                return str(language)
    return None
