"""The chip that a value is about (the document's own, its family, another, or unclear), and the
facts of a document as proposals for the catalog.

The first of these texts that names a chip decides: the row or column header of the value, the
sentence, the other labels, the caption, the headings from the innermost, the title, the file name.
Names are those of the registry, other models of the same make (MI100 for MI250X, Gaudi3 for
Gaudi2), and a letter with three digits (V100). If none names a chip, it is the declared hardware of
the document, unless that is several chips, or the document mentions other chips more often.

An unregistered name without a digit is not recognised. A value of another chip gives no proposal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingestion.findings.facts import UNCLEAR_SUBJECT, ProposedFact, unclear
from kb.catalog.facts import Fact
from kb.hardware.facts import SubjectKind, fact_keys
from kb.hardware.lineage import (
    NameIndex,
    Registry,
    find,
    joined_name,
    lineage,
    patterns_of_makes,
)
from kb.hardware.spec import HardwareSpec
from kb.ids import derived_id
from kb.tokens import below_title

MAX_SHOWN = 120  # characters of the text of a subject
MAX_COUNTED = 200_000  # characters of a document in which mentions are counted

# Words around a chip's name that do not make it a variant: "AMD Instinct MI250X GPU".
_PLAIN = re.compile(
    r"\b(?:the|gpus?|npus?|tpus?|ipus?|apus?|asics?|chips?|devices?|accelerators?|processors?"
    r"|cards?|boards?|products?|models?|values?|specs?|specifications?|per|on|for|of|in)\b",
    re.IGNORECASE,
)
# Boards of one chip that differ in memory, clock and power.
_FORM = re.compile(
    r"\b(?:SXM\d?|NVL\d*|PCIe?(?= (?:card|board|version|variant|module|model|form)))\b",
    re.IGNORECASE,
)
# Parts that programs may see as devices: a total of them is not that of a device.
_PER_DEVICE = re.compile(r"\bper (?:gcd|die|tile|chiplet)s?\b", re.IGNORECASE)
_ENGINE = re.compile(r"\b(?:engine|processor|interface|link|port)s?\s*$", re.IGNORECASE)
_RANGE = re.compile(r"\b(?:series|family|generation|class|products)\b", re.IGNORECASE)
# "PCIe Gen 4" does not name a chip, even if a registered chip is called Gen 4.
_NO_NAME = re.compile(r"\bPCIe?[ -]*(?:Gen)? ?\d(?:\.\d)?\b|\bGen ?\d\b", re.IGNORECASE)
_MODEL = re.compile(r"(?<![\w.-])(?:([A-Z]{1,3})-?|(?:RTX|GTX|RX) )\d{3,4}[A-Z]{0,2}(?!\w)")
_NO_MODEL = frozenset(
    re.findall(r"\w+", "AES BF CRC CVE DDR FP HBM IEC INT ISO K M N PR Q RC RFC RV SHA TF UTF X Y")
)


@dataclass(frozen=True)
class FactSubject:
    """`hardware_id` is the hardware that gets the proposal, `text` the name of the subject, if any.
    `family` values hold for the chip too; a person has to judge `unclear` ones."""

    hardware_id: str
    text: str
    kind: SubjectKind


@dataclass(frozen=True)
class _Named:
    """The chips in a text: declared ones, families above them, and whether there are others."""

    own: frozenset[str]
    families: frozenset[str]
    others: bool

    def __bool__(self) -> bool:
        return bool(self.own or self.families or self.others)


class DocumentSubjects:
    """The subjects of a document's values. `hardware` are the ids that it is declared to be about,
    `titles` its title and file name, `texts` its headings and passages."""

    def __init__(
        self,
        hardware: Sequence[str],
        registry: Mapping[str, HardwareSpec],
        titles: Sequence[str],
        texts: Iterable[str] = (),
    ) -> None:
        self._registry: Registry = registry
        self._hardware = tuple(hardware)
        self._titles = [re.sub(r"\.\w{1,5}$|_", " ", title) for title in titles if title]
        lines = [lineage(chip, registry) for chip in hardware if chip in registry]
        above = {place for line in lines for place in line} - set(hardware)
        vendors = {place for place in above if registry[place].kind == "vendor"}
        self._families = frozenset(above - vendors)
        self._ignored = frozenset(vendors)
        self._names = NameIndex(
            {i: _spellings((i, hw.name, *hw.aliases)) for i, hw in registry.items()}
        )
        own = [spec for i, spec in registry.items() if i in hardware]
        kin = [*own, *(registry[i] for i in self._families)]
        self._spellings = frozenset(
            joined_name(name) for spec in own for name in (spec.id, spec.name, *spec.aliases)
        )
        models = [name for spec in kin for name in (spec.id, *spec.aliases)]
        self._known = frozenset(joined_name(name) for name in models)
        self._makes = patterns_of_makes(models)
        self._crowded = self._mentions_others_more(texts)

    def of(
        self,
        header: str = "",
        sentence: str = "",
        labels: Sequence[str] = (),
        sections: Sequence[str] = (),
    ) -> FactSubject | None:
        """The subject of a value, None if it is another chip.

        `header` is the header of a table row or column that should name a chip, `labels` are the
        other headers and the caption, `sections` the headings from the outermost.
        """
        header = " ".join(header.split())
        if not _PLAIN.sub(" ", header).strip(" :()"):  # "Chip", "Value"
            header = ""
        in_header = self._named(header)
        if in_header:
            return self._named_by(in_header, header, is_variant=self._is_variant(header))
        variant = header or self._form_in((sentence, *labels))
        for text in (sentence, *labels, *reversed(sections), *self._titles):
            named = self._named(text)
            if not named:
                continue
            if text == sentence and named.own and named.others:
                return None  # no rule can tell which of the chips has the value
            subject = self._named_by(named, self._name_of(named), is_variant=False)
            if subject is not None and variant:  # "Mode 1" of this chip
                return FactSubject(subject.hardware_id, variant, "unclear")
            return subject
        if variant or self._crowded or len(self._hardware) != 1:
            return FactSubject(self._hardware[0], variant, "unclear")
        return FactSubject(self._hardware[0], "", "chip")

    def names_own(self, header: str) -> bool:
        """Whether a header names a chip that the document is declared to be about."""
        return bool(self._named(header).own)

    def _form_in(self, texts: Sequence[str]) -> str:
        """The board form that a text names, unless it is a part of the chip's name."""
        for text in texts:
            for match in _FORM.finditer(text):
                if not any(joined_name(match[0]) in known for known in self._spellings):
                    return match[0]
        return ""

    def _named_by(self, named: _Named, shown: str, *, is_variant: bool) -> FactSubject | None:
        if named.own:
            # A value that several chips share may be that of each.
            shared = named.others or len(named.own) > 1
            kind: SubjectKind = "unclear" if shared or is_variant else "chip"
            return FactSubject(sorted(named.own)[0], shown[:MAX_SHOWN], kind)
        if named.others:
            return None
        kind = "family" if len(self._hardware) == 1 else "unclear"
        return FactSubject(self._hardware[0], shown[:MAX_SHOWN], kind)

    def _name_of(self, named: _Named) -> str:
        names = sorted(named.own or named.families)
        return self._registry[names[0]].name if names else ""

    def _named(self, text: str) -> _Named:
        cleaned = _NO_NAME.sub(" ", text)
        ids = self._names.find(cleaned)
        own = frozenset(ids & set(self._hardware))
        families = frozenset(ids & self._families)
        others = bool(ids - own - families - self._ignored)
        # A short text may be a name that is not searched in running text.
        exact = find(cleaned, self._registry) if len(cleaned) <= MAX_SHOWN else None
        if exact in self._hardware:
            own |= {exact}
        return _Named(own, families, others or self._other_model(cleaned))

    def _other_model(self, text: str) -> bool:
        """Whether a text has a model name, of the same make or usual form, of another chip."""
        for make in self._makes:
            for match in make.finditer(text):
                if not self._is_known(match[0], text[match.end() :]):
                    return True
        for match in _MODEL.finditer(text):
            if match[1] not in _NO_MODEL and not self._is_known(match[0], text[match.end() :]):
                return True
        return False

    def _is_known(self, name: str, after: str) -> bool:
        joined = joined_name(name)
        if any(known in (joined, joined.rstrip("s")) for known in self._known):
            return True
        # "MI200 series" includes the MI250X.
        round_number = re.fullmatch(r"(\D*\d+?)0+", joined)
        if round_number is None or not _RANGE.match(after.lstrip()):
            return False
        return any(known.startswith(round_number[1]) for known in self._known)

    def _is_variant(self, header: str) -> bool:
        """Whether a header says more than the chip's name: "X1 PCIe", "X1 80 GB", "X1, mode 2"."""
        tail = joined_name(_PLAIN.sub(" ", header))
        return not any(tail.endswith(known) for known in self._spellings)

    def _mentions_others_more(self, texts: Iterable[str]) -> bool:
        own = others = counted = 0
        for text in texts:
            counted += len(text)
            if counted > MAX_COUNTED:
                break
            named = self._named(text)
            own += bool(named.own or named.families)
            others += named.others
        return others > own


def _spellings(names: Sequence[str]) -> list[str]:
    """The names, also with a space before their number: `cdna3` is written "CDNA 3" as well."""
    return [*names, *(re.sub(r"(?<=[A-Za-z]{2})(?=\d)", " ", name) for name in names)]


# -- proposals

_SHOWN_HEADINGS = 2


@dataclass(frozen=True)
class FactSource:
    """The document of proposed facts; `title` is the title of their source."""

    document_id: str
    version_id: str
    title: str
    file_name: str


def proposals(
    facts: Sequence[ProposedFact],
    source: FactSource,
    hardware: Sequence[str],
    registry: Mapping[str, HardwareSpec],
    texts: Sequence[str],
) -> list[Fact]:
    """Rows for the facts of a document that are about its hardware. Sentences that contradict each
    other give none. A fact that a sentence repeats is one row, as is one that another table repeats
    under equal labels. `texts` are the headings and passages of the document, in which mentions of
    chips are counted."""
    titles = (source.title, source.file_name)
    agreed, _ = _judged(facts, titles, hardware, registry, texts)
    rows = [_row(fact, subject, source) for fact, subject in reversed(agreed)]
    return [*reversed({row.id: row for row in rows}.values())]


def contradicting(
    facts: Sequence[ProposedFact],
    titles: Sequence[str],
    hardware: Sequence[str],
    registry: Mapping[str, HardwareSpec],
    texts: Sequence[str],
) -> list[str]:
    """The sentences about the hardware that give no fact because they contradict each other, as
    rows of a report."""
    _, left = _judged(facts, titles, hardware, registry, texts)
    return list(dict.fromkeys(unclear(fact.sentence, fact.key, fact.place) for fact, _ in left))


_About = list[tuple[ProposedFact, FactSubject]]


def _judged(
    facts: Sequence[ProposedFact],
    titles: Sequence[str],
    hardware: Sequence[str],
    registry: Mapping[str, HardwareSpec],
    texts: Sequence[str],
) -> tuple[_About, _About]:
    """The facts about the hardware without repeated sentences, and those of contradicting ones."""
    if not hardware or not facts:
        return [], []
    subjects = DocumentSubjects(hardware, registry, titles, texts)
    about = [(fact, _subject(fact, subjects)) for fact in _own_rows(facts, subjects, texts)]
    return _agreeing([(fact, subject) for fact, subject in about if subject is not None])


def _own_rows(
    facts: Sequence[ProposedFact], subjects: DocumentSubjects, texts: Iterable[str] = ()
) -> list[ProposedFact]:
    """Drop rows and columns about other chips from tables that have some for the document's own,
    and rows of products from a document with such a row for its own, read or not."""
    named = [subjects.names_own(fact.subject) for fact in facts]
    own = {_table(fact) for fact, is_own in zip(facts, named, strict=True) if is_own}
    has_row = any(is_own and _is_row(fact) for fact, is_own in zip(facts, named, strict=True))
    if not has_row and any(map(_is_row, facts)):
        rows = {cell[1] for text in texts for cell in _FIRST_CELL.finditer(text)}
        has_row = any(subjects.names_own(row) for row in rows)
    return [
        fact
        for fact, is_own in zip(facts, named, strict=True)
        if is_own
        or not fact.subject
        or (_table(fact) not in own and not (has_row and _is_row(fact)))
    ]


_FIRST_CELL = re.compile(r"^\|[ \t]*([^|\n]{2,60}?)[ \t]*\|", re.MULTILINE)


def _is_row(fact: ProposedFact) -> bool:
    """Whether the fact is of a table with a product per row."""
    return bool(fact.subject) and fact.subject == fact.row_label


def _table(fact: ProposedFact) -> tuple[tuple[str, ...], int, str | None]:
    return fact.section, fact.element, fact.caption


def _subject(fact: ProposedFact, subjects: DocumentSubjects) -> FactSubject | None:
    labels = (fact.row_label, fact.column_label, fact.caption or "")
    subject = subjects.of(fact.subject, fact.sentence, labels, fact.section)
    if subject is None or subject.kind != "chip":
        return subject
    if fact.sentence and fact.confidence <= UNCLEAR_SUBJECT:
        return FactSubject(subject.hardware_id, subject.text, "unclear")
    known = fact_keys().get(fact.key)
    if known and known.per == "chip" and _PER_DEVICE.search(f"{fact.text_value} {fact.sentence}"):
        return FactSubject(subject.hardware_id, f"the whole card: {fact.text_value}", "unclear")
    heading = fact.section[-1] if fact.section else ""
    if fact.sentence and known and known.per != "chip" and _ENGINE.search(heading):
        return FactSubject(subject.hardware_id, heading[:MAX_SHOWN], "unclear")
    return subject


def _agreeing(candidates: _About) -> tuple[_About, _About]:
    """The facts without sentences that repeat or contradict another sentence; those that do the
    latter."""
    values: dict[tuple[str, str], set[float | int | str]] = {}
    for fact, subject in candidates:
        if fact.sentence:
            values.setdefault((subject.hardware_id, fact.key), set()).add(fact.value)
    agreed: _About = []
    left: _About = []
    repeated: set[tuple[str, str]] = set()
    for fact, subject in candidates:
        key = (subject.hardware_id, fact.key)
        if fact.sentence and len(values[key]) > 1:
            left.append((fact, subject))
        elif not fact.sentence or key not in repeated:
            agreed.append((fact, subject))
        if fact.sentence:
            repeated.add(key)
    return agreed, left


def _row(fact: ProposedFact, subject: FactSubject, source: FactSource) -> Fact:
    section = " > ".join(below_title(fact.section[-_SHOWN_HEADINGS:], source.title))
    # In the id, the chip itself has had no subject since the first release.
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
    """The place of a value in its table, or its sentence."""
    if fact.cell is None:
        return {"sentence": fact.sentence}
    return {
        "caption": fact.caption,
        "row": fact.cell[0],
        "column": fact.cell[1],
        "row_label": fact.row_label,
        "column_label": fact.column_label,
    }
