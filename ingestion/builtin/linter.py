"""All mistakes in a folder of knowledge (hw_manuals, or that of a team): front matter, sections,
moves, facts, samples.

The caller gives the known signals and metrics. Numbers are not checked, only that they name their
source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from ingestion.builtin import builtin_hardware, front_matter
from ingestion.builtin.samples import ROWS, sample_problems, shipped_samples
from ingestion.findings.front_matter import moves_of, stated_validities
from kb.catalog.knowledge.moves import DocumentMove
from kb.errors import KernloreError
from kb.hardware.facts import fact_keys, formula_problem
from kb.hardware.spec import HardwareSpec
from kb.predicates import compile_predicate
from kb.problem_terms import problem_terms

SECTION_WORDS = (50, 260)  # without code blocks
SECTIONS = (4, 14)
TOKEN = re.compile(r"[a-z0-9_.+-]{1,40}")
_KEYS = ("title", "hardware", "languages", "signals", "topics", "sources", "moves")
_SOURCE_KEYS = ("title", "publisher", "locator", "url", "read")
_FENCE = re.compile(r"```.*?```", re.DOTALL)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Vocabulary:
    """The names that knowledge may refer to. `signature_problem` returns the mistake in a pattern,
    or None."""

    signals: Collection[str]
    metrics: Collection[str]
    signature_problem: Callable[[str], str | None]


@dataclass(frozen=True)
class LintFinding:
    """A mistake: its file relative to the folder, and a message with the correction."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def lint_folder(folder: Path, vocabulary: Vocabulary) -> list[LintFinding]:
    """All mistakes in `folder`, in the order of its files."""
    try:
        specs = {spec.id: spec for spec in builtin_hardware(folder)}
    except KernloreError as error:
        return [LintFinding("hardware", error.message)]
    findings = [
        LintFinding(f"hardware/{spec.id}/hardware.toml", message)
        for spec in specs.values()
        for message in _hardware(spec, specs, vocabulary)
    ]
    for pattern in ("constraints/*.md", "guidance/*.md", "hardware/*/*.md"):
        for path in folder.glob(pattern):
            relative = path.relative_to(folder).as_posix()
            text = path.read_text(encoding="utf-8")
            try:
                messages = list(_document(text, relative, specs, vocabulary))
            except KernloreError as error:
                messages = [f"{error.message}. {error.hint}"]
            findings += (LintFinding(relative, message) for message in messages)
    findings += _samples(folder, specs)
    return sorted(findings, key=lambda finding: finding.path)


def _samples(folder: Path, specs: Mapping[str, HardwareSpec]) -> Iterator[LintFinding]:
    try:
        samples = shipped_samples(folder)
    except KernloreError as error:
        yield LintFinding("samples", f"{error.message}. {error.hint}")
        return
    titles = [sample.title for sample in samples]
    for sample in samples:
        for message in sample_problems(sample, specs):
            yield LintFinding(sample.path, message)
        if titles.count(sample.title) > 1:
            yield LintFinding(sample.path, f"the title {sample.title!r} is used twice")
    rows = {folder / sample.path for sample in samples}
    for path in (folder / "samples").glob("*/*"):
        if path.is_file() and path.name != ROWS and path not in rows:
            relative = path.relative_to(folder).as_posix()
            yield LintFinding(relative, "no row of samples.toml names this file")


def _document(
    text: str, relative: str, specs: Mapping[str, HardwareSpec], vocabulary: Vocabulary
) -> Iterator[str]:
    front = front_matter(text, relative)
    body = _FENCE.sub("", text.split("\n---\n", 1)[1])
    for key in _KEYS:
        if key not in front:
            yield f"front matter lacks {key}; an empty list says any"
    yield from _unknown("signal", front.get("signals"), vocabulary.signals)
    yield from _scope(front, relative, specs)
    if not front.get("topics"):
        yield "names no topics"
    yield from _sources(front.get("sources"))
    yield from _sections(front, body)
    yield from _signals_named(front, relative, body)
    headings = _HEADING.findall(body)
    stated_validities(front, headings)
    yield from _moves(moves_of(front), headings, vocabulary)


def _scope(
    front: Mapping[str, Any], relative: str, specs: Mapping[str, HardwareSpec]
) -> Iterator[str]:
    stated = front.get("hardware") or []
    yield from _unknown("hardware", stated, specs)
    parts = relative.split("/")
    if parts[0] == "hardware" and stated != [parts[1]]:
        yield f"hardware is {stated}; in this folder write [{parts[1]}]"


def _signals_named(front: Mapping[str, Any], relative: str, body: str) -> Iterator[str]:
    """A guide is found by its signals, so its text has to contain each."""
    if not relative.startswith("guidance/"):
        return
    for signal in front.get("signals") or []:
        if f"`{signal}`" not in body:
            yield f"signal {signal} is listed but never named in the text"


def _sources(sources: Any) -> Iterator[str]:
    if not isinstance(sources, list) or not sources:
        yield "names no sources"
        return
    for number, source in enumerate(sources):
        missing = [key for key in _SOURCE_KEYS if not source.get(key)]
        if missing:
            yield f"sources[{number}] lacks {', '.join(missing)}"
        elif not isinstance(source["read"], date):
            yield f"sources[{number}].read is not a date; write it like 2026-11-21"


def _sections(front: Mapping[str, Any], body: str) -> Iterator[str]:
    if not re.search(rf"^# {re.escape(str(front.get('title')))}$", body, re.MULTILINE):
        yield "the first heading is not the title"
    pieces = _HEADING.split(body)
    headings, texts = pieces[1::2], pieces[2::2]
    if not SECTIONS[0] <= len(headings) <= SECTIONS[1]:
        yield f"{len(headings)} sections; {SECTIONS[0]} to {SECTIONS[1]} read well"
    for heading in {h for h in headings if headings.count(h) > 1}:
        yield f"heading {heading!r} is used twice"
    low, high = SECTION_WORDS
    for heading, text in zip(headings, texts, strict=True):
        words = len(text.split())
        if not low <= words <= high:
            yield f"section {heading!r} has {words} words; write {low} to {high}"


def _moves(
    moves: list[DocumentMove], headings: Collection[str], vocabulary: Vocabulary
) -> Iterator[str]:
    names = [move.name for move in moves]
    for name in {n for n in names if names.count(n) > 1}:
        yield f"move {name} is used twice"
    for move in moves:
        for message in _move(move, headings, vocabulary):
            yield f"move {move.name}: {message}"


def _move(move: DocumentMove, headings: Collection[str], vocabulary: Vocabulary) -> Iterator[str]:
    names = compile_predicate(move.when).names()
    yield from _unknown("signal", names.signals, vocabulary.signals)
    yield from _unknown("metric", names.metrics, vocabulary.metrics)
    yield from _unknown("fact", (n for n in names.facts if not n.startswith("x_")), fact_keys())
    yield from _unknown("problem word", names.problem, problem_terms().names)
    yield from _terms(move.when)
    if not names.signals and not names.metrics:
        yield "neither signal nor metric in `when`; it would be offered for what does not compile"
    if move.limit and not move.limit.startswith("x_") and move.limit not in fact_keys():
        yield f"limit {move.limit} is not a fact key"
    if move.section not in headings:
        yield f"section {move.section!r} is not a heading of the document"
    yield from _change(move.change)


def _change(change: Mapping[str, Any]) -> Iterator[str]:
    target = change.get("to")
    if change["direction"] == "set" and target is None:
        yield "direction set needs `to`"
    if isinstance(target, str) and not TOKEN.fullmatch(target):
        yield f"`to` is {target!r}; write a number or one word of a-z 0-9 _ . + -"
    if not isinstance(change.get("factor", 2), int | float):
        yield "factor is not a number"
    odd = set(change) - {"role", "direction", "to", "factor"}
    if odd:
        yield f"change has unknown keys {', '.join(sorted(odd))}"


def _terms(predicate: str) -> Iterator[str]:
    """Operators and dtypes in a comparison that are not canonical ids, so that it never holds."""
    terms = problem_terms()
    known: Mapping[str, Collection[str]] = {"op": terms.ops, "dtype": terms.dtypes}
    for node in ast.walk(ast.parse(predicate, mode="eval")):
        if not isinstance(node, ast.Compare) or not isinstance(node.left, ast.Attribute):
            continue
        base = node.left.value
        if not isinstance(base, ast.Name) or base.id != "problem" or node.left.attr not in known:
            continue
        for leaf in (leaf for part in node.comparators for leaf in ast.walk(part)):
            if isinstance(leaf, ast.Constant) and leaf.value not in known[node.left.attr]:
                yield f"problem.{node.left.attr} is never {leaf.value!r}; see kb/problem_terms.toml"


def _hardware(
    spec: HardwareSpec, specs: Mapping[str, HardwareSpec], vocabulary: Vocabulary
) -> Iterator[str]:
    if spec.parent is not None and spec.parent not in specs:
        yield f"parent {spec.parent} has no folder"
    yield from _formulas(spec, specs)
    for fact in spec.facts:
        if fact.key not in fact_keys() and not fact.key.startswith("x_"):
            yield f"fact {fact.key} is not a key of FORMAT.md; write x_{fact.key}"
        source = {"title": fact.title, "publisher": fact.publisher, "locator": fact.locator}
        missing = [name for name, text in {**source, "date": fact.date}.items() if not text]
        if missing:
            yield f"fact {fact.key} lacks {', '.join(missing)}"
    for signature in spec.signatures:
        yield from _unknown("signal", [signature.signal], vocabulary.signals)
        problem = vocabulary.signature_problem(signature.pattern)
        if problem:
            yield f"signature {signature.title!r}: {problem}"


def _formulas(spec: HardwareSpec, specs: Mapping[str, HardwareSpec]) -> Iterator[str]:
    """Derived facts that differ from their formula, or whose formula cannot be computed."""
    numbers = _numbers(spec, specs)
    for fact in spec.facts:
        if fact.kind == "derived":
            problem = formula_problem(fact, numbers)
            if problem:
                yield f"derived fact {fact.key}: {problem}"


def _numbers(spec: HardwareSpec, specs: Mapping[str, HardwareSpec]) -> dict[str, float]:
    """The names of a formula: the numbers of the chip, and of the hardware above it."""
    above = specs.get(spec.parent or "")
    numbers = _numbers(above, specs) if above else {}
    return numbers | {f.key: float(f.value) for f in spec.facts if isinstance(f.value, int | float)}


def _unknown(kind: str, names: Any, known: Collection[str]) -> Iterator[str]:
    for name in names or ():
        if name not in known:
            yield f"unknown {kind} {name!r}"
