"""What a document's facts become in the catalog: proposals with their subject and source.

A value of another chip becomes nothing. Sentences of one document that contradict each other become
nothing either, and repeat a fact only once. Knows the rows of the catalog; stores none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingestion.findings.facts import LocatedFact, ProposedFact
from ingestion.findings.subjects import DocumentSubjects, Subject
from kb.catalog.facts import Fact
from kb.hardware.spec import HardwareSpec
from kb.headings import below_title
from kb.ids import derived_id

_SHOWN_HEADINGS = 2


@dataclass(frozen=True)
class Source:
    """The document that facts were read from. `title` is what its source is called."""

    document_id: str
    version_id: str
    title: str
    file_name: str


def proposals(
    located: Sequence[LocatedFact],
    source: Source,
    hardware: Sequence[str],
    registry: Mapping[str, HardwareSpec],
    texts: Sequence[str],
) -> list[Fact]:
    """Rows for the facts of a document that are about its hardware; none for a document without.

    `texts` are the document's headings and text, in which mentions of chips are counted.
    """
    if not hardware or not located:
        return []
    titles = (source.title, source.file_name)
    subjects = DocumentSubjects(hardware, registry, titles, texts)
    about = [(entry, _subject(entry, subjects)) for entry in _own_rows(located, subjects)]
    kept = [(entry, subject) for entry, subject in about if subject is not None]
    return [_row(entry, subject, source) for entry, subject in _agreeing(kept)]


def _own_rows(located: Sequence[LocatedFact], subjects: DocumentSubjects) -> list[LocatedFact]:
    """Without the other rows (or columns) of tables that have some for the chip itself."""
    own = {_table(entry) for entry in located if subjects.names_own(entry.fact.subject)}
    return [
        entry
        for entry in located
        if not entry.fact.subject
        or _table(entry) not in own
        or subjects.names_own(entry.fact.subject)
    ]


def _table(entry: LocatedFact) -> tuple[tuple[str, ...], int, str | None]:
    return entry.section, entry.fact.element, entry.fact.caption


def _subject(entry: LocatedFact, subjects: DocumentSubjects) -> Subject | None:
    fact = entry.fact
    labels = (fact.row_label, fact.column_label, fact.caption or "")
    return subjects.of(fact.subject, fact.sentence, labels, entry.section)


def _agreeing(
    kept: Sequence[tuple[LocatedFact, Subject]],
) -> list[tuple[LocatedFact, Subject]]:
    """Without sentences that repeat a fact or contradict another sentence of the document."""
    values: dict[tuple[str, str], set[float | int | str]] = {}
    for entry, subject in kept:
        if entry.fact.sentence:
            key = (subject.hardware_id, entry.fact.key)
            values.setdefault(key, set()).add(entry.fact.value)
    chosen = []
    repeated: set[tuple[str, str]] = set()
    for entry, subject in kept:
        key = (subject.hardware_id, entry.fact.key)
        if entry.fact.sentence:
            if len(values[key]) > 1 or key in repeated:
                continue
            repeated.add(key)
        chosen.append((entry, subject))
    return chosen


def _row(entry: LocatedFact, subject: Subject, source: Source) -> Fact:
    fact = entry.fact
    section = " > ".join(below_title(entry.section[-_SHOWN_HEADINGS:], source.title))
    # The subject in the id as catalogs have it since the first release: empty for the chip itself.
    variant = None if subject.kind == "chip" else subject.text or None
    owner = subject.hardware_id
    return Fact(
        id=derived_id(
            "fact", owner, fact.key, fact.text_value, variant, source.document_id, fact.locator
        ),
        hardware_id=owner,
        key=fact.key,
        number=None if isinstance(fact.value, str) else float(fact.value),
        text=fact.text_value,
        unit=fact.unit,
        kind="datasheet",
        status="proposed",
        origin="sentence" if fact.sentence else "table",
        title=source.title,
        publisher="",
        locator=f"{section}: {fact.locator}" if section else fact.locator,
        url=None,
        date=None,
        note=None,
        formula=None,
        subject=subject.text or None,
        document_id=source.document_id,
        version_id=source.version_id,
        page_index=fact.page_index,
        page_label=fact.page_label,
        cell=_cell(fact),
        actor=None,
        subject_kind=subject.kind,
    )


def _cell(fact: ProposedFact) -> dict[str, Any]:
    """Where in its table the value stands, or the whole sentence."""
    if fact.cell is None:
        return {"sentence": fact.sentence}
    return {
        "caption": fact.caption,
        "row": fact.cell[0],
        "column": fact.cell[1],
        "row_label": fact.row_label,
        "column_label": fact.column_label,
    }
