"""Results of an acceptance test and of probes as Markdown, to print or to send to authors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from optimizer.evaluation.acceptance.probes import ProbeReport
from optimizer.evaluation.acceptance.records import (
    FAULTS,
    Acceptance,
    Finding,
    ManualAcceptance,
    WrittenKernels,
)

TITLES = {
    "wrong": "Wrong: measured otherwise",
    "contradicted": "Contradicted by the toolchain",
    "missing": "Missing",
}
MOST_UNCHECKED = 60


def acceptance_page(result: Acceptance) -> str:
    """The page: marks, what to correct, marks by section, what could not be tried."""
    lines = [f"# Acceptance of the manuals of {result.hardware}", ""]
    for language in result.languages:
        lines += [*_language(language)]
    lines += [*_problems(result.problems)] if result.problems else []
    return "\n".join(lines).rstrip() + "\n"


def mark_text(mark: float | None) -> str:
    """The mark in words."""
    return "nothing could be decided" if mark is None else f"{mark:g} of 100"


def _language(result: ManualAcceptance) -> Iterator[str]:
    counts = ", ".join(f"{count} {outcome}" for outcome, count in result.counts.items())
    yield from (
        f"## {result.language}: {mark_text(result.mark)}",
        "",
        f"{counts}. The mark is the share of right claims among those that were decided.",
        f"{result.compilations} compilations with {result.tool}.",
        "",
        f"Documents: {'; '.join(result.documents) or 'none'}.",
        f"Kernels that compile: {'; '.join(result.kernels) or 'none'}.",
        "",
        *_table(
            ("covered", "names"), [(c.what, f"{c.covered} of {c.of}") for c in result.coverage]
        ),
        "",
    )
    for outcome in FAULTS:
        faults = [finding for finding in result.findings if finding.outcome == outcome]
        if faults:
            yield from (f"### {TITLES[outcome]}", "", *_findings(faults), "")
    unchecked = [finding for finding in result.findings if finding.outcome == "unchecked"]
    checks = Counter((f.document, f.section, f.check) for f in unchecked)
    yield from ("### Sections", "")
    marks = [s for s in result.sections if s.section or s.document]
    rows = [
        (
            s.document,
            s.section or "the document",
            str(s.right),
            str(s.faults),
            ", ".join(
                f"{count} {check}"
                for (document, section, check), count in checks.items()
                if (document, section) == (s.document, s.section)
            ),
        )
        for s in sorted(marks, key=lambda s: (-s.faults, s.document, s.section))
    ]
    yield from (*_table(("document", "section", "right", "faults", "not decided"), rows), "")
    reasons = Counter((f.check, f.message) for f in unchecked)
    if reasons:
        examples = {(f.check, f.message): f"`{f.subject}`" for f in reversed(unchecked)}
        listed = [
            (check, str(count), message, examples[check, message])
            for (check, message), count in reasons.most_common(MOST_UNCHECKED)
        ]
        yield from (
            "### Not decided",
            "",
            *_table(("check", "claims", "reason", "such as"), listed),
            "",
        )


def _problems(problems: Sequence[WrittenKernels]) -> Iterator[str]:
    right = [p.first_right for p in problems if p.first_right is not None]
    yield from (
        "## Kernels written from the manuals alone",
        "",
        f"Right at the first attempt: {sum(n == 1 for n in right)} of {len(problems)};"
        f" within the attempts: {len(right)} of {len(problems)}.",
        "",
    )
    rows = [
        (p.problem, p.model, str(p.first_right or "none"), str(p.attempts), p.cost, p.run_id)
        for p in problems
    ]
    yield from (*_table(("problem", "model", "first right", "attempts", "cost", "run"), rows), "")


def probe_page(report: ProbeReport) -> str:
    """What probes of a chip decided: contradictions with both sources, then every probe."""
    counts = ", ".join(f"{count} {state}" for state, count in report.counts.items())
    lines = [f"# Probes of {report.hardware}", "", f"{counts or 'nothing was measured'}.", ""]
    lines += [f"Device: {device}." for device in report.devices]
    lines += [f"Not run, {language}: {why}." for language, why in report.missing.items()]
    ran = [result for result in report.results if result.state != "not run"]
    findings = [finding for result in ran for finding in result.findings]
    refuted = [finding for finding in findings if finding.outcome == "contradicted"]
    if refuted:
        lines += ["", "## Contradicted", "", *_findings(refuted)]
    rows = [
        (
            result.probe,
            result.state,
            result.text,
            str(result.repeats),
            result.measures,
            result.source,
        )
        for result in ran
    ]
    head = ("probe", "result", "measured", "repeats", "what", "source")
    lines += ["", "## Probes", "", *_table(head, rows)] if rows else []
    undecided = [finding for finding in findings if finding.outcome == "unchecked"]
    if undecided:
        lines += ["", "## Not decided", "", *_findings(undecided)]
    return "\n".join(lines).rstrip() + "\n"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    rows = [
        (
            finding.check,
            f"`{finding.subject}`",
            " > ".join(filter(None, (finding.document, finding.section))),
            finding.message,
            f"`{finding.evidence}`" if finding.evidence else "",
        )
        for finding in findings
    ]
    yield from _table(("check", "subject", "section", "finding", "tried"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
        yield f"| {' | '.join(cells)} |"
