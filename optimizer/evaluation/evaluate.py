"""Evaluations wired together: registry, devices, toolchains and the catalog for the evaluator."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from kb.catalog.evaluations import Evaluations
from kb.errors import InvalidRequest, NotFound, Unavailable, UnknownHardware, nearest
from kb.hardware.detection import DetectedDevice, Resolver, probe
from kb.hardware.spec import HardwareSpec, SignatureSpec, ToolchainSpec
from kb.plain import plain
from optimizer.evaluation.bundle import MANIFEST, SUFFIXES, Bundle, read_bundle
from optimizer.evaluation.catalog_journal import CatalogJournal, store_device
from optimizer.evaluation.collectors.ceilings import Ceilings, DeviceStore
from optimizer.evaluation.collectors.probe import DeviceIdentity, identify
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.levels import WANTED
from optimizer.evaluation.problem.load import SHIPPED, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import EvaluationTarget, Toolchain
from optimizer.evaluation.toolchains.cpp import DEFAULTS, CppToolchain
from optimizer.evaluation.toolchains.registry import NOT_BUILT, usable_toolchain
from retrieval.answer import Move
from retrieval.diagnose.own_rules import OwnRules, rules_of
from retrieval.knowledge_base import KnowledgeBase
from retrieval.request import RetrieveRequest

# -- targets: From a hardware id to what a toolchain needs: facts, the compiler's name for the chi

AUTO = "auto"
# As the operating system names a core's caches, and the fact of each.
CACHES = {"L1d": "l1_size", "L2": "l2_size", "L3": "l3_size"}
# Widest first; flags of /proc/cpuinfo.
VECTORS = (("avx512f", 512), ("avx2", 256), ("avx", 256))


@dataclass(frozen=True)
class ChosenTarget:
    """A target, and the built-in toolchain that its hardware.toml names for the language."""

    target: EvaluationTarget
    builtin: str | None


def here(devices: tuple[DetectedDevice, ...]) -> str:
    """The id of the first registered device of this machine, accelerators first. Raises Unavailable
    where none is registered."""
    for device in devices:
        if device.hardware_id_hint is not None:
            return device.hardware_id_hint
    names = ", ".join(device.name for device in devices) or "nothing"
    raise Unavailable(
        f"none of this machine's devices is a known hardware ({names})",
        hint="Name one with --hardware, or describe it with `kernlore hardware new ID`.",
    )


def target_for(
    hardware: str,
    lineage: tuple[str, ...],
    specs: Mapping[str, HardwareSpec],
    facts: Mapping[str, float | str],
    language: str,
    devices: tuple[DetectedDevice, ...],
    cuda: Callable[[], bool],
) -> ChosenTarget:
    """The target of a hardware id for one language. `cuda` says whether torch can use a GPU here;
    it is only called where that matters."""
    toolchain = _toolchain(lineage, specs, language)
    return ChosenTarget(
        EvaluationTarget(
            hardware=hardware,
            lineage=lineage,
            arch=_arch(facts, lineage),
            device=_device(hardware, lineage, specs, devices, cuda),
            facts=facts,
            templates=_templates(toolchain),
            languages=_languages(lineage, specs),
        ),
        (toolchain.builtin or None) if toolchain else None,
    )


def facts_of(identity: DeviceIdentity) -> dict[str, float | str]:
    """Facts that a CPU of this machine reports about itself, by key: caches in bytes, as one core
    sees them, and the width of its vectors, where an instruction set has several. Empty for a GPU,
    whose facts are those of its data sheet."""
    if identity.kind != "cpu":
        return {}
    known = identity.caches
    facts: dict[str, float | str] = {
        fact: float(known[level]) for level, fact in CACHES.items() if level in known
    }
    bits = next((bits for flag, bits in VECTORS if flag in identity.flags), None)
    if bits is not None:
        facts |= {"vector_bits": float(bits), "vector_load_max": bits / 8}
    return facts


def _toolchain(
    lineage: tuple[str, ...], specs: Mapping[str, HardwareSpec], language: str
) -> ToolchainSpec | None:
    """Of the chip, else of the nearest above it."""
    for place in lineage:
        spec = specs.get(place)
        if spec is not None and language in spec.toolchains:
            return spec.toolchains[language]
    return None


def _languages(lineage: tuple[str, ...], specs: Mapping[str, HardwareSpec]) -> dict[str, str]:
    """The suffix of a kernel's file in each language that something compiles for the hardware."""
    suffixes = {language: suffix for suffix, language in reversed([*SUFFIXES.items()])}
    known: dict[str, str] = {}
    for place in lineage:
        for language, chain in specs[place].toolchains.items() if place in specs else ():
            if chain.builtin not in NOT_BUILT:
                known.setdefault(language, chain.suffix or suffixes.get(language, ".py"))
    return dict(sorted(known.items()))


def _templates(toolchain: ToolchainSpec | None) -> Mapping[str, object]:
    if toolchain is None or toolchain.builtin:
        return {}
    return {name: value for name, value in vars(toolchain).items() if name != "builtin"}


def own_toolchains(
    specs: Mapping[str, HardwareSpec], lineage: Sequence[str]
) -> dict[str, ToolchainSpec]:
    """The command templates of a hardware by language: its own, else of the nearest above it."""
    nearest: dict[str, ToolchainSpec] = {}
    for place in lineage:
        for language, toolchain in specs[place].toolchains.items() if place in specs else ():
            nearest.setdefault(language, toolchain)
    return {name: toolchain for name, toolchain in nearest.items() if not toolchain.builtin}


def own_entry(specs: Mapping[str, HardwareSpec], lineage: Sequence[str], language: str) -> str:
    """What a hardware's own toolchain wants a kernel to be called; empty where it does not say."""
    toolchain = own_toolchains(specs, lineage).get(language)
    return toolchain.entry if toolchain is not None else ""


def _arch(facts: Mapping[str, float | str], lineage: tuple[str, ...]) -> str | None:
    """ "90" for compute capability 9.0, "gfx942" as it is; a CPU is compiled for as "native"."""
    capability = facts.get("compute_capability")
    if isinstance(capability, str):
        return capability.replace(".", "") if capability[0].isdigit() else capability
    return "native" if {"x86-64", "arm"} & set(lineage) else None


def _device(
    hardware: str,
    lineage: tuple[str, ...],
    specs: Mapping[str, HardwareSpec],
    devices: tuple[DetectedDevice, ...],
    cuda: Callable[[], bool],
) -> Literal["cpu", "cuda"] | None:
    present = [device for device in devices if device.hardware_id_hint == hardware]
    if not present:
        return None
    if present[0].kind == "cpu":
        return "cpu"
    return "cuda" if cuda() else None


READ = 5  # excerpts and moves of an answer


@dataclass(frozen=True)
class EvaluationRequest:
    """What is to be evaluated, checked as far as that goes without running any of it.

    cases: None for those that the problem lists for searching.
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
    settings: EvaluationSettings | None = None,
) -> Evaluation:
    """One candidate, from files, on the hardware named."""
    level = next((wanted for wanted in WANTED if wanted == isolation), None)
    if level is None:
        raise InvalidRequest(
            f"unknown isolation {isolation!r}", hint=f"Use one of {', '.join(WANTED)}."
        )
    problem = load_problem(problem_path)
    language = language or _language_of_suffix(base, hardware, candidate)
    named = entry_for(base, hardware, language) if language is not None else ""
    bundle = read_bundle(candidate, language, entry, named)
    asked = ask_for(base, problem, bundle, hardware=hardware, cases=cases)
    limits = replace(settings or EvaluationSettings(), isolation=level)
    return evaluate_asked(base, asked, limits)


def problem_named(name: str) -> Problem:
    """A shipped problem; unlike for `load_problem`, a path is no name."""
    if name not in shipped_problems():
        near = nearest(name, shipped_problems())
        raise NotFound(
            f"there is no shipped problem {name[:200]!r}",
            hint=(f"Did you mean {', '.join(near)}? " if near else "")
            + "Give a name of `kernlore problem list`, or the problem's source.",
            details={"nearest": near},
        )
    return load_problem(SHIPPED / name)


def problem_sent(source: str, toml: str | None = None) -> Problem:
    """A problem from its text. Nothing of it runs here."""
    with tempfile.TemporaryDirectory(prefix="kernlore-problem-") as folder:
        file = Path(folder) / "sent.py"
        file.write_text(source, encoding="utf-8")
        if toml is not None:
            file.with_suffix(".toml").write_text(toml, encoding="utf-8")
        return load_problem(file)


def declaration_of(problem: Problem) -> str | None:
    """The text beside a problem's file that `problem_sent` makes this very problem with; None where
    it has none."""
    for toml in (problem.path.with_suffix(".toml"), problem.path.parent / "problem.toml"):
        text = toml.read_text(encoding="utf-8") if problem.declared and toml.is_file() else None
        if text is not None and problem_sent(problem.source, text).sha256 == problem.sha256:
            return text
    return None


def ask_for(
    base: KnowledgeBase,
    problem: Problem,
    bundle: Bundle,
    *,
    hardware: str = AUTO,
    cases: tuple[str, ...] = (),
) -> EvaluationRequest:
    """InvalidRequest, UnknownHardware or Unavailable for what cannot be evaluated."""
    _check_names(bundle)
    chosen = choose_target(base, hardware, bundle.language)
    toolchain = usable_toolchain(bundle.language, chosen.target, chosen.builtin)
    return EvaluationRequest(problem, bundle, chosen, toolchain, _cases(problem, cases))


def _check_names(bundle: Bundle) -> None:
    """No file may stand where the manifest or the folder of another one has to be."""
    if MANIFEST in bundle.files:
        raise InvalidRequest(
            f"{MANIFEST} describes a bundle and is none of its files", hint="Leave it out."
        )
    for name in bundle.files:
        for folder in PurePosixPath(name).parents:
            if folder.as_posix() in bundle.files:
                raise InvalidRequest(
                    f"{folder.as_posix()!r} is a file and the folder of {name!r}",
                    hint="Give one of the two another name.",
                )


def evaluate_asked(
    base: KnowledgeBase, asked: EvaluationRequest, settings: EvaluationSettings | None = None
) -> Evaluation:
    """Runs the problem's file in this process and the candidate in processes of its own."""
    settings = settings or EvaluationSettings()
    target = asked.chosen.target
    with Evaluator(
        asked.problem,
        target,
        settings,
        CatalogJournal(Evaluations(base.catalog), base.blobs),
        ceilings=known_ceilings(base, target, settings.threads),
        signatures=known_signatures(base, target.lineage),
        rules=known_rules(base, target.lineage),
    ) as evaluator:
        return evaluator.evaluate(asked.bundle, asked.toolchain, asked.cases)


def with_knowledge(base: KnowledgeBase, evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as `kernlore evaluate --json` prints it."""
    return {**evaluation.as_json(), "knowledge": known_about(base, evaluation)}


def known_about(base: KnowledgeBase, evaluation: Evaluation) -> dict[str, Any]:
    """What the service says about a verdict; nothing where there is nothing to ask for."""
    settings = base.settings
    verdict = evaluation.verdict
    metrics = {**evaluation.metrics, **verdict.metrics}
    request = RetrieveRequest(
        log=evaluation.log or None if not evaluation.correct else None,
        # What was counted and timed says why a right kernel is slow, not why one is wrong.
        metrics=metrics or None if evaluation.correct else None,
        signals=verdict.signal_ids,
        problem=verdict.problem or None,
        op=verdict.op if verdict.op not in ("", "unknown") else None,
        hardware=evaluation.hardware,
        language=evaluation.language,
        k=settings.default_k,
        max_tokens=settings.default_max_tokens,
    )
    telling = request.log or request.metrics or request.signals
    if not telling or not base.documents.find():
        return {}
    answer = base.retriever.retrieve(request)
    signals = [signal["id"] for signal in plain(answer.diagnosis)["signals"]]
    # Without a condition to remedy, what comes after the first is only near in its words.
    read = READ if signals or not evaluation.correct else 1
    return {
        "retrieval_id": answer.retrieval_id,
        "signals": signals,
        "moves": plain(_left_to_do(answer.moves, evaluation.toolchain))[:READ],
        "excerpts": plain(answer.excerpts)[:read],
    }


def _left_to_do(moves: Sequence[Move], toolchain: str) -> list[Move]:
    """Without those that set an option which this toolchain, by its name and version, sets by
    itself."""
    done = DEFAULTS if toolchain.partition(" ")[0] == CppToolchain.name else {}
    return [
        move
        for move in moves
        if move.change.get("direction") != "set" or move.change.get("to") not in done
    ]


def known_ceilings(base: KnowledgeBase, target: EvaluationTarget, threads: int) -> Ceilings | None:
    """What this device reaches, measured once and stored; nothing where the target is not here."""
    if target.device is None:
        return None
    ceilings = DeviceStore(base.settings.data_dir).ensure(target.device, threads)
    store_device(base.catalog, target.hardware, identify(target.device), ceilings)
    return ceilings


def known_signatures(base: KnowledgeBase, lineage: Sequence[str]) -> list[SignatureSpec]:
    """Error texts of the chip's own tools and of those above it."""
    known = base.registry.all()
    return [s for place in lineage if place in known for s in known[place].signatures]


def known_rules(base: KnowledgeBase, lineage: Sequence[str]) -> OwnRules:
    """Rules over the chip's own counters, and over those of the ids above it."""
    return rules_of(base.registry.all(), lineage)


def choose_target(base: KnowledgeBase, hardware: str, language: str) -> ChosenTarget:
    """The target that `hardware` names; `auto` is the first device here that is registered."""
    registry = base.registry
    known = registry.all()
    devices: tuple[DetectedDevice, ...] = probe(resolver(base)).devices
    identity = here(devices) if hardware == AUTO else registry.resolve(hardware)
    chosen = target_for(
        identity,
        registry.lineage(identity),
        known,
        registry.values(identity),
        language,
        devices,
        _cuda,
    )
    if chosen.target.device is None:
        return chosen
    # The chip that is here knows itself better than its family's manuals do.
    facts = {**chosen.target.facts, **facts_of(identify(chosen.target.device))}
    return replace(chosen, target=replace(chosen.target, facts=facts))


def entry_for(base: KnowledgeBase, hardware: str, language: str) -> str:
    """What a named chip's own toolchain wants a kernel to be called; empty where it does not say.
    Raises UnknownHardware."""
    if hardware == AUTO:
        return ""
    registry = base.registry
    return own_entry(registry.all(), registry.lineage(registry.resolve(hardware)), language)


def _language_of_suffix(base: KnowledgeBase, hardware: str, candidate: Path) -> str | None:
    """The language that a named chip's own toolchain gives files of this suffix."""
    if hardware == AUTO or not candidate.suffix:
        return None
    registry = base.registry
    specs = registry.all()
    for place in registry.lineage(registry.resolve(hardware)):
        for language, toolchain in (specs[place].toolchains if place in specs else {}).items():
            if toolchain.suffix == candidate.suffix:
                return str(language)
    return None


def resolver(base: KnowledgeBase) -> Resolver:
    """What gives the id of a device's name, or None."""

    def resolve(name: str) -> str | None:
        try:
            return base.registry.resolve(name)
        except UnknownHardware:
            return None

    return resolve


def _cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _cases(problem: Problem, names: tuple[str, ...]) -> tuple[Case, ...] | None:
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
