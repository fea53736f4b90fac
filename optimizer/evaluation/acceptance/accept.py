"""`kernlore hardware accept`: whether a chip's manuals suffice to write kernels, and whether their
claims hold on its toolchain.

Without a model: whole kernels are compiled, examples, names, operands, latencies and ranges tried,
tables and references checked for gaps. The mark is the share of claims that were decided and right,
from 0 to 100; what could not be tried does not count.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from ingestion.elements import ParsedDocument
from ingestion.formats import parse
from ingestion.passages import split_sections
from kb import clock
from kb.catalog.knowledge import samples, symbols
from kb.errors import InvalidRequest, KernloreError
from kb.hardware.spec import ToolchainSpec
from kb.plain import Doc
from optimizer.evaluation.acceptance.claims import (
    ManualSection,
    ManualTrial,
    check_latencies,
    check_names,
    check_operands,
    check_ranges,
    check_references,
    check_tables,
    check_undefined,
    witnesses_of,
)
from optimizer.evaluation.acceptance.records import (
    FAULTS,
    Acceptance,
    Covered,
    Finding,
    ManualAcceptance,
    Outcome,
    SectionMark,
    store,
)
from optimizer.evaluation.acceptance.tool import Host, ProbedTool, host_of
from optimizer.evaluation.evaluate import choose_target
from optimizer.evaluation.targets import command_toolchains
from optimizer.evaluation.toolchains.registry import usable_toolchain
from retrieval.documents import original_file
from retrieval.knowledge_base import KnowledgeBase

MAX_HOSTS = 4


def accept_manuals(
    base: KnowledgeBase,
    hardware_id: str,
    language: Annotated[str, Doc("Only this language of the chip.")] = "",
) -> Acceptance:
    """Test a chip's manuals on its own toolchain: samples, examples, names, operands, latencies,
    ranges, tables and references, with a mark by section and for the whole set.
    """
    hardware = base.registry.resolve(hardware_id)
    lineage = base.registry.lineage(hardware)
    chains = command_toolchains(base.registry.all(), lineage)
    wanted = {name: chain for name, chain in chains.items() if language in ("", name)}
    if not wanted:
        raise InvalidRequest(
            f"{hardware} has no command toolchain" + (f" for {language}" if language else ""),
            hint="Manuals are tested on the chip's own tools: add [toolchains.LANGUAGE] with"
            " compile and run to its hardware.toml.",
        )
    results = tuple(_of_language(base, hardware, name, wanted[name]) for name in sorted(wanted))
    result = Acceptance(hardware, min(r.mark for r in results), clock.now(), results)
    store(base, result)
    return result


def _of_language(
    base: KnowledgeBase, hardware: str, language: str, template: ToolchainSpec
) -> ManualAcceptance:
    chosen = choose_target(base, hardware, language)
    chain = usable_toolchain(language, chosen.target, chosen.builtin)  # raises where tools lack
    lineage = base.registry.lineage(hardware)
    manuals = [
        document
        for place in lineage
        for document in base.documents.find(hardware=place, category="hardware")
    ]
    with base.catalog.read() as connection:
        cards = symbols.listed(connection, lineage, access_scope=base.access)
        kernels = samples.listed(connection, lineage, base.access)
    cards = [card for card in cards if card.language in ("", language)]
    with tempfile.TemporaryDirectory(prefix="kernlore-accept-") as folder:
        tool = ProbedTool(language, template, chosen.target, Path(folder))
        findings, hosts = _kernels(tool, template, kernels, language)
        trial = ManualTrial(tool, hosts, cards, _sections(base, manuals))
        signatures = [s.pattern for place in lineage for s in base.registry.all()[place].signatures]
        findings += _claims(trial, signatures)
        compiled = tool.compiled
    counts = _counts(findings)
    decided = counts["right"] + sum(counts[fault] for fault in FAULTS)
    return ManualAcceptance(
        hardware=hardware,
        language=language,
        tool=chain.version(),
        mark=round(100 * counts["right"] / decided, 1) if decided else 0.0,
        counts=counts,
        findings=tuple(findings),
        sections=tuple(_by_section(findings)),
        coverage=tuple(_coverage(cards)),
        documents=tuple(
            f"{d.title}, version {d.version.number}" for d in manuals if d.version is not None
        ),
        kernels=tuple(host.title for host in hosts),
        compilations=compiled,
    )


def _kernels(
    tool: ProbedTool, template: ToolchainSpec, kernels: Sequence[samples.Sample], language: str
) -> tuple[list[Finding], list[Host]]:
    """Compile every whole kernel; those that compile are hosts, the ones that run first."""
    findings: list[Finding] = []
    hosts: list[Host] = []
    if template.sample.strip():
        host = host_of(tool, "the sample of hardware.toml", template.sample)
        hosts += [host] if host is not None else []
    for kernel in kernels:
        if kernel.language not in ("", language):
            continue
        host = host_of(tool, kernel.title, kernel.code)
        if host is None:
            tried = tool.compile(kernel.code.strip("\n") + "\n")
            outcome: Outcome = "wrong"
            message = f"does not compile: {tried.message}"
        else:
            hosts.append(host)
            outcome = "right"
            message = "compiles and runs" if host.signature is not None else "compiles"
        document = kernel.document_title or f"run {kernel.run_id}"
        findings.append(Finding("whole kernel", outcome, kernel.title, document, "", message))
    hosts.sort(key=lambda host: (host.signature is None, -len(host.places)))
    return findings, hosts[:MAX_HOSTS]


def _claims(trial: ManualTrial, signatures: Sequence[str]) -> list[Finding]:
    findings: list[Finding] = []
    if not trial.hosts:
        message = "no whole kernel compiles, so no statement can be tried"
        findings.append(Finding("whole kernel", "missing", "a kernel", "", "", message))
    witnesses = witnesses_of(trial) if trial.hosts else {}
    findings += check_names(trial, witnesses)
    findings += check_undefined(trial, witnesses)
    findings += check_operands(trial, witnesses)
    findings += check_latencies(trial)
    findings += check_ranges(trial)
    findings += check_tables(trial)
    findings += check_references(trial, signatures)
    return list(dict.fromkeys(findings))


def _sections(base: KnowledgeBase, manuals: Sequence[Any]) -> list[ManualSection]:
    """The sections of the current versions, read again from the originals for their tables."""
    sections: list[ManualSection] = []
    for manual in manuals:
        if manual.version is None:
            continue
        original = original_file(base, manual.id)
        try:
            parsed = parse(original.data, original.name)
        except KernloreError:
            continue  # its job already reports that it cannot be read
        sections += sections_of(manual.title, parsed)
    return sections


def sections_of(title: str, document: ParsedDocument) -> list[ManualSection]:
    """The sections of a document, with the first cells of the rows of their tables."""
    return [
        ManualSection(
            title,
            tuple(section.path),
            "\n".join(element.text for element in section.elements),
            tuple(
                tuple(row[0] for row in element.table.rows)
                for element in section.elements
                if element.table is not None
            ),
        )
        for section in split_sections(document.elements)
    ]


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    counts: dict[str, int] = dict.fromkeys(("right", *FAULTS, "unchecked"), 0)
    for finding in findings:
        counts[finding.outcome] += 1
    return counts


def _by_section(findings: Sequence[Finding]) -> Iterator[SectionMark]:
    grouped: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        grouped[finding.document, finding.section].append(finding)
    for (document, section), entries in grouped.items():
        counts = _counts(entries)
        faults = sum(counts[fault] for fault in FAULTS)
        yield SectionMark(document, section, counts["right"], faults, counts["unchecked"])


def _coverage(cards: Sequence[symbols.Symbol]) -> Iterator[Covered]:
    called = [card for card in cards if card.kind in ("instruction", "function", "directive")]
    names = {card.name for card in called}

    def having(part: str) -> int:
        return len({card.name for card in called if getattr(card, part)})

    yield Covered("names with a signature", having("signature"), len(names))
    yield Covered("names with operands", having("operands"), len(names))
    yield Covered("names with limits", having("limits"), len(names))
    errors = {card.name: card for card in cards if card.kind == "error"}
    explained = sum(bool(card.meaning) for card in errors.values())
    yield Covered("error codes with a meaning", explained, len(errors))
