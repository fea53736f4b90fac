"""`kernlore hardware check`: whether a hardware description suffices for a search. Checks the
chip's tools, its sample kernel, its counters, and the parts of a first prompt.

Each row is present or missing, with the line to add to hardware.toml. Runs the chip's own tools on
the sample; changes nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from kb.catalog.knowledge.samples import list_recipes
from kb.errors import KernloreError
from kb.hardware.spec import HardwareSpec, SampleArgument, ToolchainSpec
from kb.scope import ALL_ACCESS
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.correctness.check import run_simulated
from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.evaluate import choose_target, problem_from_text
from optimizer.evaluation.problem.spec import Case
from optimizer.evaluation.targets import command_toolchains
from optimizer.evaluation.toolchains.base import CompileCase, Compiled, EvaluationTarget, Metric
from optimizer.evaluation.toolchains.command import CommandToolchain
from optimizer.evaluation.toolchains.registry import usable_toolchain
from retrieval.compose.target import own_symbols
from retrieval.diagnose.metrics import MetricRegistry, load_metrics
from retrieval.diagnose.rules import OwnRules, Rule, as_rules, load_rules, rules_of
from retrieval.knowledge_base import KnowledgeBase

SAMPLE_SECONDS = 60.0  # per run of a sample
SEED = 7
MAX_MESSAGE = 600  # characters of a log
ROLES = {"input": "input", "weight": "buffer", "output": "output"}

State = Literal["present", "missing", "failed"]


@dataclass(frozen=True)
class CheckedPart:
    """A row of the check. The check fails if a `needed` part is not present. `fix` is the line to
    add to hardware.toml, or the command to run."""

    name: str
    state: State
    message: str = ""
    fix: str = ""
    needed: bool = False

    @property
    def ok(self) -> bool:
        """Whether it is present or optional."""
        return self.state == "present" or not self.needed


@dataclass(frozen=True)
class Counter:
    """A metric of the sample's report. `metric` is its canonical name, "" for a metric that only
    this chip has; `leads_to` are the rules that read it, as (rule, signal)."""

    name: str
    metric: str
    leads_to: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LanguageCheck:
    """The check of one language. `prompt` are the parts of a first prompt."""

    language: str
    tools: tuple[CheckedPart, ...]
    sample: tuple[CheckedPart, ...]
    counters: tuple[Counter, ...]
    prompt: tuple[CheckedPart, ...]


@dataclass(frozen=True)
class HardwareCheck:
    """The check of one hardware; `parts` concern no single language."""

    hardware: str
    parts: tuple[CheckedPart, ...]
    languages: tuple[LanguageCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether all needed parts are present."""
        rows = [*self.parts]
        for check in self.languages:
            rows += [*check.tools, *check.sample, *check.prompt]
        return all(part.ok for part in rows)


def check_hardware(base: KnowledgeBase, name: str) -> HardwareCheck:
    """Check a hardware with each of its languages. Raises UnknownHardware."""
    registry = base.registry
    hardware = registry.resolve(name)
    lineage, specs = registry.lineage(hardware), registry.all()
    toolchains = command_toolchains(specs, lineage)
    named = {
        name for ancestor in lineage if ancestor in specs for name in specs[ancestor].toolchains
    }
    languages = tuple(
        _check_language(
            base, hardware, language, toolchains.get(language), rules_of(specs, lineage)
        )
        for language in sorted(named)
    )
    parts = [] if named else [_no_toolchain(specs[hardware].languages)]
    inherited = sorted(toolchains.keys() - specs[hardware].toolchains.keys())
    parts += (_inherited(language, lineage, specs) for language in inherited)
    return HardwareCheck(hardware, tuple(parts), languages)


def _inherited(
    language: str, lineage: Sequence[str], specs: Mapping[str, HardwareSpec]
) -> CheckedPart:
    """A part for a toolchain of a parent, which accepts what this chip may lack."""
    owner = next(place for place in lineage if language in specs[place].toolchains)
    message = f"{language} is that of {owner}: what it accepts, {lineage[0]} may lack"
    return CheckedPart("toolchain", "present", message, f"[toolchains.{language}] of its own")


def _no_toolchain(languages: Sequence[str]) -> CheckedPart:
    language = languages[0] if languages else "mylang"
    fix = f'[toolchains.{language}] with run = "my-runner {{output}} {{input}}"'
    return CheckedPart(
        "toolchain", "missing", "no language can be compiled and run", fix, needed=True
    )


def _check_language(
    base: KnowledgeBase,
    hardware: str,
    language: str,
    toolchain: ToolchainSpec | None,
    own: OwnRules,
) -> LanguageCheck:
    try:
        chosen = choose_target(base, hardware, language)
        usable_toolchain(language, chosen.target, chosen.builtin)
    except KernloreError as problem:
        # A built-in toolchain is optional on this machine; the chip's own commands are not.
        needed = toolchain is not None
        tools = CheckedPart("tools", "failed", problem.message, problem.hint or "", needed=needed)
        target = None
    else:
        tools, target = CheckedPart("tools", "present"), chosen.target
    if toolchain is None:
        return LanguageCheck(language, (replace(tools, name="built-in tools"),), (), (), ())
    run = run_sample(language, toolchain, target) if target and toolchain.sample else SampleRun()
    lineage = base.registry.lineage(hardware)
    return LanguageCheck(
        language,
        (tools,),
        _sample_parts(language, toolchain, target, run),
        counters_of_report(run.metrics, lineage, own),
        first_prompt_parts(base, hardware, language, toolchain),
    )


def _sample_parts(
    language: str, toolchain: ToolchainSpec, target: EvaluationTarget | None, run: SampleRun
) -> tuple[CheckedPart, ...]:
    """The rows "compiles", "runs" and "right" (the outputs are correct), up to the first
    failure."""
    table = f"[toolchains.{language}]"
    if not toolchain.sample:
        fix = f'{table} sample = """the source of a kernel that compiles and runs"""'
        return (
            CheckedPart(
                "sample", "missing", "nothing proves that the tools work", fix, needed=True
            ),
        )
    if target is None:
        return (CheckedPart("sample", "missing", "not tried: the tools are not here"),)
    steps = (("compiles", run.compiled), ("runs", run.ran), ("right", run.correct))
    fixes = {
        "compiles": f"Correct sample or compile under {table}.",
        "runs": f"{table} sample_arguments = "
        '[{name = "x", role = "input", dtype = "float32", shape = [64, 64]}, '
        '{name = "out", role = "output", dtype = "float32", shape = [64, 64]}]',
        "right": f'{table} sample_reference = "x * 2 + 1" (a torch expression over the arguments)',
    }
    parts = []
    failed = False
    for name, passed in steps:
        needed = name != "right" or passed is False
        if passed:
            parts.append(
                CheckedPart(name, "present", run.time if name == "runs" else "", needed=needed)
            )
        elif passed is False:
            fix = f"Correct the sample, its arguments or the templates under {table}."
            parts.append(CheckedPart(name, "failed", run.message, fix, needed=True))
            failed = True
        elif not failed:
            message = "not stated" if needed else "not stated (optional)"
            parts.append(
                CheckedPart(name, "missing", f"{message}, so not tried", fixes[name], needed)
            )
    return tuple(parts)


def counters_of_report(
    metrics: Mapping[str, Metric], lineage: Sequence[str], own: OwnRules
) -> tuple[Counter, ...]:
    """Each metric of a report with the rules that read it, directly or through a formula."""
    registry = load_metrics()
    normalised = registry.normalise(dict(metrics))
    rules = load_rules().for_hardware(frozenset(lineage), normalised.collectors)
    canonical = {raw: name for name, raw in normalised.sources.items() if raw in metrics}
    canonical |= {c: alias.canonical for c, alias in own.aliases.items() if c in metrics}
    return tuple(
        Counter(name, canonical.get(name, ""), _readers(name, canonical.get(name, ""), rules, own))
        for name in metrics
    )


def _readers(
    counter: str, metric: str, rules: Sequence[Rule], own: OwnRules
) -> tuple[tuple[str, str], ...]:
    derived = _derived_from(metric, load_metrics()) if metric else frozenset[str]()
    found = []
    for rule in (*rules, *as_rules(own)):
        names = rule.when.names()
        read = {*names.metrics, *names.parameters}
        if rule.signal and (read & derived or counter in names.parameters):
            found.append((rule.id, rule.signal))
    return tuple(found)


def _derived_from(metric: str, registry: MetricRegistry) -> frozenset[str]:
    """The metric and all metrics that formulas compute from it, transitively."""
    found = {metric}
    grown = True
    while grown:
        further = {
            other.name
            for other in registry
            for formula in other.derived
            if found & {*formula.names().metrics}
        }
        grown = not further <= found
        found |= further
    return frozenset(found)


# -- the first prompt


def first_prompt_parts(
    base: KnowledgeBase, hardware: str, language: str, toolchain: ToolchainSpec
) -> tuple[CheckedPart, ...]:
    """The parts of the first prompt about the chip, present and missing ones."""
    return (*_toml_parts(language, toolchain), *_knowledge_parts(base, hardware, language))


def _toml_parts(language: str, toolchain: ToolchainSpec) -> list[CheckedPart]:
    """Parts from hardware.toml. The default entry, `kernlore_run`, is in no manual."""
    table = f"[toolchains.{language}]"
    interface = f'{table} interface = """how a kernel is launched, what its arguments are"""'
    rows = (
        ("entry", toolchain.entry, f'{table} entry = "main"', False),
        ("interface", toolchain.interface, interface, True),
        ("suffix", toolchain.suffix, f'{table} suffix = ".xyz"', False),
        (
            "arguments",
            ", ".join(toolchain.arguments),
            f'[toolchains.{language}.arguments] input = "in{{index}}", output = "out{{index}}"',
            False,
        ),
        (
            "scalars",
            ", ".join(toolchain.scalars),
            f'[toolchains.{language}.scalars] rows = "input[0].shape[0]"',
            False,
        ),
        ("sample", toolchain.sample, f'{table} sample = """..."""', True),
    )
    parts = []
    for name, text, fix, needed in rows:
        if text.strip():
            long = name in ("interface", "sample")
            summary = f"{len(text)} characters" if long else text
            parts.append(CheckedPart(name, "present", summary, needed=needed))
        else:
            message = "not stated" if needed else "not stated (optional)"
            if name == "entry":
                message += ": kernels are called kernlore_run"
            parts.append(CheckedPart(name, "missing", message, fix, needed))
    return parts


_RECIPE_HINT = (
    "nothing, where a language model writes the kernels: a recipe is made from a sample of a manual"
    " whose numbers can vary, and searched without a model"
)


def _knowledge_parts(base: KnowledgeBase, hardware: str, language: str) -> list[CheckedPart]:
    """Parts from the knowledge base, about the chip or its ancestors."""
    lineage = base.registry.lineage(hardware)
    manuals = {
        document.id: document.title
        for ancestor in lineage
        for document in base.documents.find(hardware=ancestor, category="hardware")
    }
    with base.catalog.read() as connection:
        listed = list_recipes(connection, lineage, statuses=("proposed", "accepted"))
    snapshot = base.snapshots.current()
    cards = own_symbols(snapshot, lineage, language, ALL_ACCESS)
    kernels = snapshot.kernels(lineage)
    recipes = [recipe.name for recipe in listed if recipe.language == language]
    upload = f"kernlore ingest MANUAL --hardware {hardware} --category hardware"
    upload_sample = f"{upload}, of a manual with a code sample in {language}"
    return [
        _counted("manual documents", list(manuals.values()), upload),
        _counted("names with cards", [c.name for c in cards if c.kind != "error"], upload),
        _counted("error codes with cards", [c.name for c in cards if c.kind == "error"], upload),
        _counted("names with limits", [card.name for card in cards if card.limits], upload),
        _counted("whole kernels", [kernel.title for kernel in kernels], upload_sample),
        _counted("recipes", recipes, _RECIPE_HINT),
    ]


def _counted(name: str, titles: Sequence[str], fix: str) -> CheckedPart:
    if not titles:
        return CheckedPart(name, "missing", "none", fix)
    more = f" and {len(titles) - 3} more" if len(titles) > 3 else ""
    return CheckedPart(name, "present", f"{len(titles)}: {', '.join(titles[:3])}{more}")


# -- the sample kernel


@dataclass(frozen=True)
class SampleRun:
    """The result of a sample kernel. `compiled`, `ran` and `correct`: None for a step that did not
    run; `message` explains the first False. `metrics` are those of the program's report."""

    compiled: bool | None = None
    ran: bool | None = None
    correct: bool | None = None
    message: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    time: str = ""


def run_sample(language: str, toolchain: ToolchainSpec, target: EvaluationTarget) -> SampleRun:
    """Compile the sample, run it if it has arguments, and compare if it has a reference."""
    chain = CommandToolchain(language, toolchain)
    main = "sample" + (toolchain.suffix or ".txt")
    bundle = Bundle({main: toolchain.sample}, main, language, toolchain.called)
    with tempfile.TemporaryDirectory(prefix="kernlore-sample-") as folder:
        workdir = Path(folder)
        signature = signature_of(toolchain.sample_arguments)
        compiled = chain.compile(bundle, target, workdir, (CompileCase(signature),))
        if not compiled.ok:
            return SampleRun(False, message=_tail(compiled.log))
        if not toolchain.sample_arguments:
            return SampleRun(True)
        try:
            if toolchain.sample_reference:
                return _run_and_compare(chain, compiled, signature, workdir)
            return _run(chain, compiled, signature, workdir)
        except KernloreError as problem:
            return SampleRun(True, False, message=f"{problem.message}. {problem.hint}")


def signature_of(arguments: tuple[SampleArgument, ...]) -> Signature:
    """The interface of a sample with these arguments; weights are buffers."""
    return Signature(
        tuple(TensorSpec(a.name, ROLES[a.role], a.dtype, a.shape) for a in arguments)  # type: ignore[arg-type]
    )


def random_inputs(signature: Signature) -> list[torch.Tensor]:
    """Equal random values in every call for the inputs and buffers."""
    generator = torch.Generator().manual_seed(SEED)

    def drawn(spec: TensorSpec) -> torch.Tensor:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if dtype.is_floating_point:
            return torch.randn(spec.shape, generator=generator).to(dtype)
        return torch.randint(0, 2, spec.shape, generator=generator).to(dtype)

    return list(map(drawn, signature.of("input", "buffer")))


def _run(
    chain: CommandToolchain, compiled: Compiled, signature: Signature, workdir: Path
) -> SampleRun:
    outcome = chain.run(compiled, random_inputs(signature), signature, workdir, SAMPLE_SECONDS)
    if not outcome.ok:
        return SampleRun(True, False, message=_tail(f"{outcome.log}\n{outcome.message}"))
    count = f"{outcome.count} {outcome.counted}" if outcome.count else ""
    time = _time(count or (f"{outcome.cycles} cycles" if outcome.cycles else ""), outcome.time_us)
    return SampleRun(True, True, None, "; ".join(outcome.notes), outcome.metrics, time)


def _run_and_compare(
    chain: CommandToolchain, compiled: Compiled, signature: Signature, workdir: Path
) -> SampleRun:
    """Evaluate the sample on a problem whose model is the sample's reference."""
    problem = problem_from_text(reference_source(chain.template))
    prepared = PreparedCase(problem, Case("sample", timed=False), "cpu")
    declared = [(t.dtype, t.shape) for t in signature.of("output")]
    computed = [(t.dtype, t.shape) for t in prepared.signature.of("output")]
    if declared != computed:
        message = (
            f"sample_reference gives {_shapes(computed)}, sample_arguments says {_shapes(declared)}"
        )
        return SampleRun(True, None, False, message)
    outcome = run_simulated(
        prepared, chain, compiled, seeds=(SEED,), workdir=workdir, seconds=SAMPLE_SECONDS
    )
    timing = outcome.timing
    time = _time(timing.simulated_cost, timing.candidate_us) if timing is not None else ""
    ran = outcome.validity == "correct" or any(check.errors for check in outcome.checks)
    correct = outcome.validity == "correct" if ran else None
    message = outcome.message if ran else _tail(f"{outcome.log}\n{outcome.message}")
    return SampleRun(True, ran, correct, message, outcome.metrics or {}, time)


def reference_source(toolchain: ToolchainSpec) -> str:
    """A problem file that computes the sample's reference on its arguments."""
    inputs = [a for a in toolchain.sample_arguments if a.role == "input"]
    weights = [a for a in toolchain.sample_arguments if a.role == "weight"]
    lines = ["import torch", "", "class Model(torch.nn.Module):", "    def __init__(self):"]
    lines.append("        super().__init__()")
    lines += [f"        self.register_buffer({a.name!r}, {_random_source(a)})" for a in weights]
    lines.append(f"    def forward({', '.join(['self', *(a.name for a in inputs)])}):")
    lines += [f"        {a.name} = self.{a.name}" for a in weights]
    expression = " ".join(toolchain.sample_reference.split())
    lines += [f"        return ({expression})", "", "def get_inputs():"]
    lines.append(f"    return [{', '.join(_random_source(a) for a in inputs)}]")
    return "\n".join([*lines, "", "def get_init_inputs():", "    return []", ""])


def _random_source(argument: SampleArgument) -> str:
    shape, dtype = list(argument.shape), f"torch.{argument.dtype}"
    if argument.dtype.startswith(("float", "bfloat")):
        return f"torch.randn({shape}).to({dtype})"
    return f"torch.randint(0, 2, {shape}).to({dtype})"


def _shapes(outputs: list[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype} {list(shape)}" for dtype, shape in outputs) or "nothing"


def _time(cost: str, time_us: float | None) -> str:
    parts = [cost, f"{time_us:.2f} us" if time_us else ""]
    return ", ".join(part for part in parts if part)


def _tail(log: str) -> str:
    return log.strip()[-MAX_MESSAGE:] or "it failed and printed nothing"
