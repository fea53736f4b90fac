"""Check the shipped knowledge with the tools of this machine: compile and run whole kernels, make
tools print the texts of error signatures, and compile the recipes of skills.

Each result is recorded for the version of its tool. What the newest version refuses has expired: no
answer shows it to callers of that version.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import sqlalchemy as sa

from ingestion.builtin import builtin_hardware
from kb import clock
from kb.catalog import tables as t
from kb.catalog.knowledge.validities import (
    SIGNATURE,
    SKILL,
    CheckedValidity,
    checks_of,
    record_checks,
)
from kb.hardware.lineage import effective_facts, lineage
from kb.hardware.spec import HardwareSpec
from kb.ids import derived_id
from kb.scope import ALL_ACCESS
from kb.validity import Checked, Validity, load_tools, numbers_of, read_versions
from optimizer.evaluation.problem.load import SHIPPED, load_problem, shipped_problems
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.sample_checks import LIMITS, MAX_DETAIL, ToolPlace, banner, check_samples
from optimizer.evaluation.targets import target_for
from optimizer.evaluation.toolchains.base import CompileCase, Toolchain
from optimizer.evaluation.toolchains.cpp import CppToolchain
from optimizer.evaluation.toolchains.processes import run
from optimizer.evaluation.toolchains.python import TritonNvidia
from optimizer.evaluation.toolchains.python import versions as triton_versions
from optimizer.search.bench.local import problem_view
from optimizer.search.runs.knowledge import library_recipes
from optimizer.search.synthesizers.base import ProblemView
from optimizer.search.synthesizers.recipe.recipe import Recipe, instantiate
from optimizer.search.synthesizers.recipe.synthesizer import fit, start
from retrieval.diagnose.error_programs import ErrorProgram, ErrorTool, load_error_evidence
from retrieval.diagnose.signatures import (
    ErrorSignature,
    SignatureIndex,
    load_signatures,
    signature_from_mapping,
)
from retrieval.knowledge_base import KnowledgeBase

Kind = Literal["kernel", "signature", "recipe"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RECIPE_CHIPS = {"cpp": "x86-64", "triton": "h100"}  # for which recipes are compiled
RECIPE_TOOLS = {"cpp": "gcc", "triton": "triton"}
_HELD: Mapping[str, Checked] = {"compiles": "compiled", "right": "ran"}


@dataclass(frozen=True)
class KnowledgeChange:
    """One check of a kernel, a signature or a recipe with one version of a tool. `change` is
    `confirmed`; `expired` if the newest version refuses it; `refused` if an older one does;
    `unchanged` if the same version was checked before with this result."""

    subject: str
    kind: Kind
    hardware: str
    tool: str
    version: str
    change: str
    date: str
    detail: str


@dataclass(frozen=True)
class KnowledgeCheck:
    """The changes of one check of the knowledge, the entries that could not be checked with the
    reason, and remarks about toolchains that refuse everything, whose results are not recorded."""

    changes: tuple[KnowledgeChange, ...]
    not_checked: Mapping[str, str]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _CheckedEntry:
    """What one check found: `holds` is None with the reason in `detail` if it was not made."""

    kind: Kind
    subject: str
    title: str
    hardware: str
    holds: bool | None
    detail: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    checked: Checked = "ran"
    target: str = ""
    document_id: str | None = None

    @property
    def tool(self) -> str:
        return next(iter(self.versions))

    def row(self, holds: bool) -> CheckedValidity:
        version = load_tools().by_id[self.tool].release(self.versions[self.tool])
        day = clock.now()[:10]
        validity = Validity(self.tool, version, version, self.target, "", self.checked, day, holds)
        detail = "" if holds else self.detail
        return CheckedValidity(self.subject, self.title, validity, detail, self.document_id)


def check_knowledge(
    base: KnowledgeBase,
    toolchains: Sequence[Path] = (),
    hardware: str | None = None,
    kinds: Sequence[Kind] = KINDS,
    tools: Collection[str] = (),
    note: Callable[[str], None] = lambda text: None,
) -> KnowledgeCheck:
    """Check the knowledge with the installed tools, or with those of each toolchain; record what
    holds for which version. With `hardware`, only its kernels and those of its ancestors; with
    `tools`, by id, only what depends on one of them; `note` gets a line for each entry. Raises
    NotFound for a hardware id without samples, and InvalidRequest for an unknown tool."""
    wanted = {load_tools().get(tool).id for tool in tools}
    recorded: dict[tuple[str, str, str], CheckedValidity] = {}
    about: dict[str, _CheckedEntry] = {}
    skipped: dict[str, str] = {}
    remarks: list[str] = []
    for toolchain in toolchains or (None,):
        results = []
        for result in _results(base, toolchain, hardware, kinds, wanted):
            note(f"{result.title}: {_outcome(result)}")
            if result.holds is None or not result.versions:
                skipped.setdefault(result.title, result.detail)
            else:
                results.append(result)
        groups: dict[tuple[str, Kind], list[_CheckedEntry]] = {}
        for result in results:
            groups.setdefault((result.tool, result.kind), []).append(result)
        for (tool, kind), own in sorted(groups.items()):
            if not any(result.holds for result in own):
                version = own[0].versions[tool]
                remarks.append(f"{tool} {version} refuses every {kind}, so nothing is recorded")
                continue
            for result in sorted(own, key=lambda result: bool(result.holds)):
                row = result.row(bool(result.holds))  # of several programs, one that holds counts
                recorded[row.subject, tool, row.validity.max] = row
                about[row.subject] = result
    with base.catalog.write() as connection:
        stored = set(connection.scalars(sa.select(t.documents.c.id)))
        rows = [r for r in recorded.values() if r.document_id is None or r.document_id in stored]
        known = checks_of(connection)
        record_checks(connection, rows)
    every = [row.validity for row in (*known, *rows)]
    every += [v for own in load_error_evidence().validities.values() for v in own]
    changes = tuple(_change(row, about[row.subject], known, every) for row in rows)
    return KnowledgeCheck(changes, skipped, tuple(remarks))


def _outcome(result: _CheckedEntry) -> str:
    if result.holds is None:
        return f"not checked, {result.detail}"
    tools = ", ".join(f"{tool} {version}" for tool, version in result.versions.items())
    where = f" for {result.target}" if result.target else ""
    return f"{'holds' if result.holds else 'does not hold'} with {tools}{where}"


def _change(
    row: CheckedValidity,
    result: _CheckedEntry,
    known: Sequence[CheckedValidity],
    every: Sequence[Validity],
) -> KnowledgeChange:
    own, tool = row.validity, row.validity.tool
    same = [k.validity for k in known if (k.subject, k.validity.max) == (row.subject, own.max)]
    newest = max(numbers_of(validity.max) for validity in every if validity.tool == tool)
    refused = "expired" if numbers_of(own.max) >= newest else "refused"
    change = "confirmed" if own.holds else refused
    if any((v.tool, v.holds) == (tool, own.holds) for v in same):
        change = "unchanged"
    detail = row.detail.strip().split("\n")[-1]
    return KnowledgeChange(
        row.title, result.kind, result.hardware, tool, own.max, change, own.date, detail
    )


# -- the checks


def _results(
    base: KnowledgeBase,
    toolchain: Path | None,
    hardware: str | None,
    kinds: Sequence[Kind],
    tools: Collection[str],
) -> Iterator[_CheckedEntry]:
    folder = base.settings.knowledge_dir
    specs = {spec.id: spec for spec in builtin_hardware(folder)}
    if "kernel" in kinds:
        yield from _kernels(folder, hardware, toolchain, tools)
    if hardware is None and "signature" in kinds:
        yield from _signatures(specs, toolchain, tools)
    if hardware is None and "recipe" in kinds:
        yield from _recipes(base, specs, toolchain, tools)


def _kernels(
    folder: Path, hardware: str | None, toolchain: Path | None, tools: Collection[str]
) -> Iterator[_CheckedEntry]:
    for result in check_samples(folder, hardware, toolchain, tools):
        document = str(derived_id("doc", ALL_ACCESS.owner, f"builtin/{result.sample}"))
        yield _CheckedEntry(
            "kernel",
            document,
            result.sample,
            result.sample.split("/")[1],
            None if result.outcome == "not checked" else result.outcome in _HELD,
            result.detail,
            result.versions,
            _HELD.get(result.outcome, "compiled"),
            result.target,
            document,
        )


def _signatures(
    specs: Mapping[str, HardwareSpec], toolchain: Path | None, tools: Collection[str]
) -> Iterator[_CheckedEntry]:
    for check in check_signatures(specs, toolchain, tools):
        yield _CheckedEntry(
            "signature",
            f"{SIGNATURE}{check.signature}",
            check.title,
            check.hardware,
            check.printed,
            check.reason or check.log[-MAX_DETAIL:],
            check.versions,
        )


def _recipes(
    base: KnowledgeBase,
    specs: Mapping[str, HardwareSpec],
    toolchain: Path | None,
    tools: Collection[str],
) -> Iterator[_CheckedEntry]:
    """Recipes as they begin on a built-in problem that they fit."""
    views: dict[str, ProblemView] = {}
    for recipe in library_recipes(base):
        if tools and RECIPE_TOOLS.get(recipe.language) not in tools:
            continue
        subject = f"{SKILL}{recipe.name}"
        holds, detail, versions = _compiled(recipe, specs, toolchain, views)
        chip = RECIPE_CHIPS.get(recipe.language, "any")
        yield _CheckedEntry(
            "recipe", subject, recipe.name, chip, holds, detail, versions, "compiled", chip
        )


def _compiled(
    recipe: Recipe,
    specs: Mapping[str, HardwareSpec],
    toolchain: Path | None,
    views: dict[str, ProblemView],
) -> tuple[bool | None, str, Mapping[str, str]]:
    """Whether the recipe compiles, what the tool says, and the tool's version."""
    chip = RECIPE_CHIPS.get(recipe.language)
    if chip is None:
        return None, f"nothing here compiles recipes in {recipe.language}", {}
    with tempfile.TemporaryDirectory(prefix="kernlore-recipe-") as scratch:
        place = ToolPlace(Path(scratch), toolchain)
        chain: Toolchain
        if recipe.language == "triton":
            if toolchain is not None:
                return None, "recipes are compiled with the installed Triton", {}
            chain, versions = TritonNvidia(), read_versions(triton_versions().replace(" ", "=="))
        else:
            compiler = place.which("g++") or "g++"
            chain = CppToolchain(compiler)
            versions = read_versions(banner((compiler, "--version"), toolchain))
        line = lineage(chip, specs)
        facts = {key: f.fact.value for key, f in effective_facts(chip, specs).items()}
        target = target_for(chip, line, specs, facts, recipe.language, (), lambda: False).target
        available = chain.available(target)
        if not available.ok:
            return None, available.reason, {}
        for name in shipped_problems():
            problem = load_problem(SHIPPED / name)
            if recipe.ops and problem.op not in recipe.ops:
                continue
            if name not in views:
                views[name] = problem_view(problem, "cuda", remote=True)
            view = views[name]
            fitting = fit(recipe, view, facts)
            values = start(fitting, facts) if fitting is not None else None
            if fitting is None or values is None:
                continue
            bundle = instantiate(recipe, values, fitting.binding, view.source)
            opened = OpenCase(problem, problem.searched[0], shapes_only=True, device="cpu")
            case = CompileCase(opened.signature, opened.init_args, view.main.dtype)
            compiled = chain.compile(bundle, target, Path(scratch), (case,))
            return compiled.ok, compiled.log[-MAX_DETAIL:], versions
    return None, "no built-in problem fits it", {}


@dataclass(frozen=True)
class SignatureCheck:
    """Whether a program made the tool print the text of a signature; None with a `reason` if it
    could not be run. `versions` are those of the tool, `log` is its output."""

    signature: str
    title: str
    hardware: str
    program: str
    printed: bool | None
    reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    log: str = ""


def check_signatures(
    specs: Mapping[str, HardwareSpec] | None = None,
    toolchain: Path | None = None,
    tools: Collection[str] = (),
) -> Iterator[SignatureCheck]:
    """Run every program, or those whose result depends on some tools, by id. `specs` are chips
    whose signatures are known too; the programs and packages of `toolchain` precede the installed
    ones."""
    known = signatures_by_id(specs or {})
    for program in load_error_evidence().programs:
        with tempfile.TemporaryDirectory(prefix="kernlore-error-") as scratch:
            place = ToolPlace(Path(scratch), toolchain)
            versions, reason = _versions(program.tool, place)
            if tools and not versions.keys() & set(tools):
                continue
            log, reason = ("", reason) if reason else _run(program, place)
        for identity in program.signatures:
            signature = known.get(identity)
            if signature is None:  # of a chip that the folder of knowledge lacks
                continue
            printed = None if reason else identity in SignatureIndex([signature]).in_log(log)
            if printed is False and _lacks_target(log):
                printed, reason = None, "the tool does not know the program's target or options"
            chip = signature.origin if signature.origin in (specs or {}) else "any"
            name = f"{program.tool.id}/{program.name}"
            yield SignatureCheck(
                identity, signature.heading, chip, name, printed, reason, versions, log
            )


def signatures_by_id(specs: Mapping[str, HardwareSpec]) -> dict[str, ErrorSignature]:
    """The built-in signatures and those of chips, by id."""
    own = [
        signature_from_mapping(vars(row), spec.id)
        for spec in specs.values()
        for row in spec.signatures
    ]
    return {signature.id: signature for signature in (*load_signatures(), *own)}


# Signatures of a tool that does not know a target or an option: it says nothing about a text.
_NO_TARGET = ("amd-offload-arch", "cc-march", "cc-option", "clang-target", "nvcc-arch")


def _lacks_target(log: str) -> bool:
    found = SignatureIndex([s for s in load_signatures() if s.id in _NO_TARGET]).in_log(log)
    return bool(found)


def _versions(tool: ErrorTool, place: ToolPlace) -> tuple[Mapping[str, str], str]:
    """The versions that decide what a tool prints, and why they are not known."""
    version = _resolved(tool.version, place)
    if version is None:
        return {}, f"{tool.version.split()[0]} is not installed"
    versions = read_versions(banner(tuple(version), place.toolchain))
    return versions, "" if versions else f"`{tool.version}` prints no version"


def _run(program: ErrorProgram, place: ToolPlace) -> tuple[str, str]:
    """The output of the tool, and why it could not be run."""
    tool = program.tool
    path = place.scratch / f"program.{tool.suffix}"
    path.write_text(f"{tool.before}{program.code}", encoding="utf-8")
    places = {"file": path.name, "folder": str(place.scratch), "options": program.options}
    command = _resolved(tool.command.format(**places), place)
    if command is None:
        return "", f"{tool.command.split()[0]} is not installed"
    return run(command, cwd=place.scratch, limits=LIMITS, env=place.env).log, ""


def _resolved(command: str, place: ToolPlace) -> list[str] | None:
    """The command with the path of its program; None if it is not installed. `python` is the
    interpreter of this process. Of clang, numbered programs are used where there is no other."""
    name, *arguments = shlex.split(command)
    found = sys.executable if name == "python" else place.which(name)
    return None if found is None else [found, *arguments]
