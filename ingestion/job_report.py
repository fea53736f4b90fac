"""What the job of a document says: how far it is, and why it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ingestion.read import ReadDocument

NAMED = 12  # headings without a card, in the sentence about them


def internal_error(error: Exception) -> dict[str, Any]:
    """The error of a job that failed by a defect of ours."""
    return {
        "code": "internal_error",
        "message": f"{type(error).__name__}: {error}",
        "hint": "This is a defect of Kernlore; please report it with the document.",
        "details": {},
    }


def nothing_read(report: Mapping[str, Any]) -> dict[str, Any]:
    """The error of a job whose file holds no text that could be read."""
    reasons = [*(f["reason"] for f in report["pages_failed"]), *report["warnings"]]
    return {
        "code": "parse_failed",
        "message": f"nothing could be read: {'; '.join(reasons[:5]) or 'no text in it'}",
        "hint": "Scanned pages need OCR first; upload a version with a text layer.",
        "details": dict(report),
    }


def progress_of(read: ReadDocument, remarks: Sequence[str] = (), **counts: int) -> dict[str, Any]:
    """Of a job whose document was read and has to be embedded: its end, and what the report says
    with what was counted here. `remarks` say what the document is to others.
    """
    left_out = [f"{' > '.join(s.section[-2:])}: {s.reason}" for s in read.samples_left_out]
    counted = {
        "recipes_proposed": len(read.recipes),
        "samples_left_out": left_out,
        "symbols": len(read.cards),
        "samples": len(read.kernels),
        "remarks": [*remarks, *_without_card(read)],
        **counts,
    }
    end = "ready" if read.complete else "partial"
    return {"stage": "embedding", "state": end, **_shown({**read.content.report, **counted})}


def _without_card(read: ReadDocument) -> list[str]:
    """That headings look like instructions and gave no card, and what would make one."""
    names = read.content.report.get("headings_without_card", [])
    if not names:
        return []
    shown = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    what = (
        "headings look like instructions and gave"
        if len(names) > 1
        else ("heading looks like an instruction and gave")
    )
    return [
        f"{len(names)} {what} no card: {shown}. A line such as `Syntax: {names[0]} ...` under the"
        " heading, or a table with a column Instruction, gives one; `kernlore knowledge symbols"
        " --propose` asks a language model."
    ]


def _shown(report: dict[str, Any]) -> dict[str, Any]:
    """What a job's result says: counts, and the first of what went wrong."""
    kept = {
        key: report[key]
        for key in ("pages_seen", "pages_parsed", "sections", "passages", "tables", "code_blocks")
    }
    failed = report["pages_failed"]
    return {
        **kept,
        "pages_failed": failed[:20],
        "characters_left_out": report["characters_left_out"],
        "facts_proposed": report["facts_proposed"],
        "rows_not_read": report.get("rows_not_read", [])[:20],
        "recipes_proposed": report["recipes_proposed"],
        "symbols": report["symbols"],
        "samples": report["samples"],
        "samples_left_out": report["samples_left_out"][:20],
        "warnings": report["warnings"][:20],
        "remarks": report["remarks"],
    }
