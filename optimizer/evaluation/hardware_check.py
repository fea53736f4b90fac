"""Whether a hardware description is complete enough for a search: its tools, the sample kernel, its
counters, and what a first prompt would hold.

Each row says what is there or missing, and which line to add to hardware.toml. Runs the chip's own
tools on the sample; changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kb.catalog.knowledge.samples import list_recipes
from kb.errors import KernloreError
from kb.hardware.spec import ToolchainSpec
from kb.scope import ALL_ACCESS
from optimizer.evaluation.evaluate import choose_target
from optimizer.evaluation.sample_run import SampleRun, run_sample
from optimizer.evaluation.targets import own_toolchains
from optimizer.evaluation.toolchains.base import Metric, Target
from optimizer.evaluation.toolchains.registry import usable_toolchain
from retrieval.compose.target import own_symbols
from retrieval.diagnose.metrics import MetricRegistry, load_metrics
from retrieval.diagnose.own_rules import OwnRules, as_rules, rules_of
from retrieval.diagnose.rules import Rule, load_rules
from retrieval.knowledge_base import KnowledgeBase

State = Literal["present", "missing", "failed"]


@dataclass(frozen=True)
class Part:
    """One thing that is there or not. `needed` ones decide about the check as a whole; `fix` is the
    line to add to hardware.toml, or the command to run."""

    name: str
    state: State
    message: str = ""
    fix: str = ""
    needed: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done about it."""
        return self.state == "present" or not self.needed


@dataclass(frozen=True)
class Counter:
    """A metric of the sample's report. `metric` is its canonical name, empty for one of the chip's
    own; `leads_to` are the rules that read it, as (rule, signal)."""

    name: str
    metric: str
    leads_to: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LanguageCheck:
    """What holds for one language. `prompt` are the parts of a first prompt."""

    language: str
    tools: tuple[Part, ...]
    sample: tuple[Part, ...]
    counters: tuple[Counter, ...]
    prompt: tuple[Part, ...]


@dataclass(frozen=True)
class HardwareCheck:
    """The check of one hardware; `parts` concern no single language."""

    hardware: str
    parts: tuple[Part, ...]
    languages: tuple[LanguageCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing that is needed is missing or failed."""
        rows = [*self.parts]
        for check in self.languages:
            rows += [*check.tools, *check.sample, *check.prompt]
        return all(part.ok for part in rows)


def check_hardware(base: KnowledgeBase, name: str) -> HardwareCheck:
    """Check a hardware with each of its languages. Raises UnknownHardware."""
    registry = base.registry
    hardware = registry.resolve(name)
    lineage, specs = registry.lineage(hardware), registry.all()
    own = own_toolchains(specs, lineage)
    stated = {lang for place in lineage if place in specs for lang in specs[place].toolchains}
    languages = tuple(
        _language(base, hardware, language, own.get(language), rules_of(specs, lineage))
        for language in sorted(stated)
    )
    parts = () if stated else (_no_toolchain(specs[hardware].languages),)
    return HardwareCheck(hardware, parts, languages)


def _no_toolchain(languages: Sequence[str]) -> Part:
    language = languages[0] if languages else "mylang"
    fix = f'[toolchains.{language}] with run = "my-runner {{output}} {{input}}"'
    return Part("toolchain", "missing", "no language can be compiled and run", fix, needed=True)


def _language(
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
        # A built-in toolchain is for machines that have it; a chip's own has to be here.
        own_tool = toolchain is not None
        tools = Part("tools", "failed", problem.message, problem.hint or "", needed=own_tool)
        target = None
    else:
        tools, target = Part("tools", "present"), chosen.target
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
    language: str, toolchain: ToolchainSpec, target: Target | None, run: SampleRun
) -> tuple[Part, ...]:
    """Compiles, runs, is right: each as far as it was tried."""
    table = f"[toolchains.{language}]"
    if not toolchain.sample:
        fix = f'{table} sample = """the source of a kernel that compiles and runs"""'
        return (Part("sample", "missing", "nothing proves that the tools work", fix, needed=True),)
    if target is None:
        return (Part("sample", "missing", "not tried: the tools are not here"),)
    tried = (("compiles", run.compiled), ("runs", run.ran), ("right", run.right))
    fixes = {
        "compiles": f"Correct sample or compile under {table}.",
        "runs": f"{table} sample_arguments = "
        '[{name = "x", role = "input", dtype = "float32", shape = [64, 64]}, '
        '{name = "out", role = "output", dtype = "float32", shape = [64, 64]}]',
        "right": f'{table} sample_reference = "x * 2 + 1" (a torch expression over the arguments)',
    }
    parts = []
    failed = False
    for name, passed in tried:
        needed = name != "right" or passed is False
        if passed:
            parts.append(Part(name, "present", run.time if name == "runs" else "", needed=needed))
        elif passed is False:
            fix = f"Correct the sample, its arguments or the templates under {table}."
            parts.append(Part(name, "failed", run.message, fix, needed=True))
            failed = True
        elif not failed:
            stated = "not stated" if needed else "not stated (optional)"
            parts.append(Part(name, "missing", f"{stated}, so not tried", fixes[name], needed))
    return tuple(parts)


# -- counters


def counters_of_report(
    metrics: Mapping[str, Metric], lineage: Sequence[str], own: OwnRules
) -> tuple[Counter, ...]:
    """Each metric of a report with the rules that read it, directly or by a formula."""
    registry = load_metrics()
    normalised = registry.normalise(dict(metrics))
    rules = load_rules().for_hardware(frozenset(lineage), normalised.collectors)
    canonical = {raw: name for name, raw in normalised.sources.items() if raw in metrics}
    canonical |= {c: alias.canonical for c, alias in own.aliases.items() if c in metrics}
    return tuple(
        Counter(name, canonical.get(name, ""), _leads(name, canonical.get(name, ""), rules, own))
        for name in metrics
    )


def _leads(
    counter: str, metric: str, rules: Sequence[Rule], own: OwnRules
) -> tuple[tuple[str, str], ...]:
    reached = _derived_from(metric, load_metrics()) if metric else frozenset[str]()
    leads = []
    for rule in (*rules, *as_rules(own)):
        names = rule.when.names()
        read = {*names.metrics, *names.parameters}
        if rule.signal and (read & reached or counter in names.parameters):
            leads.append((rule.id, rule.signal))
    return tuple(leads)


def _derived_from(metric: str, registry: MetricRegistry) -> frozenset[str]:
    """The metric, and all that formulas make of it."""
    reached = {metric}
    grown = True
    while grown:
        further = {
            other.name
            for other in registry
            for formula in other.derived
            if reached & {*formula.names().metrics}
        }
        grown = not further <= reached
        reached |= further
    return frozenset(reached)


# -- the first prompt


def first_prompt_parts(
    base: KnowledgeBase, hardware: str, language: str, toolchain: ToolchainSpec
) -> tuple[Part, ...]:
    """What a model that never saw the chip would be told about it, and what not.

    To say more, add a part here: it appears in the command and its JSON.
    """
    return (
        *_stated_parts(language, toolchain),
        *_known_parts(base, hardware, language),
    )


def _stated_parts(language: str, toolchain: ToolchainSpec) -> list[Part]:
    """Those that hardware.toml itself holds. Without an entry a kernel is called `kernlore_run`,
    which no manual says."""
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
            parts.append(Part(name, "present", summary, needed=needed))
        else:
            message = "not stated" if needed else "not stated (optional)"
            if name == "entry":
                message += ": kernels are called kernlore_run"
            parts.append(Part(name, "missing", message, fix, needed))
    return parts


_RECIPE_HINT = (
    "nothing, where a language model writes the kernels: a recipe is made from a sample of a manual"
    " whose numbers can vary, and searched without a model"
)


def _known_parts(base: KnowledgeBase, hardware: str, language: str) -> list[Part]:
    """Those that the knowledge base holds about the chip or its families."""
    lineage = base.registry.lineage(hardware)
    manuals = {
        document.id: document.title
        for place in lineage
        for document in base.documents.find(hardware=place, category="hardware")
    }
    with base.catalog.read() as connection:
        listed = list_recipes(connection, lineage, statuses=("proposed", "accepted"))
    snapshot = base.snapshots.current()
    cards = own_symbols(snapshot, lineage, language, ALL_ACCESS)
    kernels = snapshot.kernels(lineage)
    recipes = [recipe.name for recipe in listed if recipe.language == language]
    upload = f"kernlore ingest MANUAL --hardware {hardware} --category hardware"
    sampled = f"{upload}, of a manual with a code sample in {language}"
    return [
        _counted("manual documents", list(manuals.values()), upload),
        _counted("names with cards", [c.name for c in cards if c.kind != "error"], upload),
        _counted("error codes with cards", [c.name for c in cards if c.kind == "error"], upload),
        _counted("names with limits", [card.name for card in cards if card.limits], upload),
        _counted("whole kernels", [kernel.title for kernel in kernels], sampled),
        _counted("recipes", recipes, _RECIPE_HINT),
    ]


def _counted(name: str, titles: Sequence[str], fix: str) -> Part:
    if not titles:
        return Part(name, "missing", "none", fix)
    more = f" and {len(titles) - 3} more" if len(titles) > 3 else ""
    return Part(name, "present", f"{len(titles)}: {', '.join(titles[:3])}{more}")
