"""One parsed file into the content that the catalog stores: sections, passages with tags and scope,
moves, proposed facts and recipes, cards, kernels, a report.

Pure: equal bytes, vocabulary, registry and pipeline give equal content. The report is checked
against the content: every page is parsed or failed, every element is in a section, the text of
every section is in its passages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ingestion.elements import ParsedDocument, Table, render_table
from ingestion.findings.facts import (
    UNCLEAR,
    ProposedFact,
    propose_facts,
    scratchpad_names,
    unread_rows,
    unread_sentences,
)
from ingestion.findings.front_matter import moves_of, stated_languages, stated_tags, validities_of
from ingestion.findings.scopes import (
    SampleScopes,
    SectionScopes,
    host_labels,
    sole_languages,
    template_languages,
)
from ingestion.findings.subjects import contradicting
from ingestion.findings.tags import Tagger
from ingestion.limits import DocumentLimits
from ingestion.passages import (
    MAX_CHARS,
    MAX_CODE_CHARS,
    CutLine,
    ParsedSection,
    bounded,
    cut_passages,
    encode_whole,
    split_sections,
    with_captions,
    words_of,
)
from ingestion.samples.kernels import fragments_of, kernels_of
from ingestion.samples.recipes import UnusedSample, propose_recipes
from ingestion.symbols.cards import cards_of
from ingestion.symbols.definitions import HOSTS
from ingestion.symbols.headings import headings_without_card
from kb.catalog.knowledge.moves import DocumentMove
from kb.catalog.knowledge.samples import KernelSample, ProposedRecipe
from kb.catalog.knowledge.symbols import Card
from kb.catalog.knowledge.validities import StatedValidity
from kb.catalog.knowledge.versions import PassageDraft, SectionDraft, VersionContent
from kb.embedding import Embedder
from kb.hardware.spec import HardwareSpec
from kb.ids import sha256

# Raise it if a change of parsing, cutting or tagging should read unchanged documents again.
PIPELINE = 20
# The prose of passages of a reference page, in per mille: it halves their rank among passages that
# answer a question (retrieval/search/ranking.py). A question that contains a name gets its card.
REFERENCE = -300
MAX_HEADINGS = 40  # without a card, in a report
MAX_ROWS = 50  # of data sheets that were not read, in a report
MAX_SENTENCES = 8  # that name a fact and were not read, in a report
_PARSERS = (
    *("beautifulsoup4", "docutils", "lxml", "markdown-it-py", "pdfplumber", "pypdfium2"),
    *("python-docx", "rapidocr", "unstructured"),
)
_FUNCTION_WORD = re.compile(
    r"\b(?:the|a|an|of|to|in|is|are|for|and|that|this|with|on|be|it|by|as|or|from|can|not)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class DocumentFile:
    """A file to read. `hardware` are the ids that it is about, empty for no hardware in particular,
    `languages` those that its sender named. Facts are read only `with_facts`."""

    data: bytes
    name: str
    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    with_facts: bool


@dataclass(frozen=True)
class ReadDocument:
    """Everything in one document: `content` becomes searchable, facts and recipes are proposed to
    a person. `samples_left_out` are code samples without a recipe, `front_matter` has the checks of
    built-in kernels. `complete` is False if a part of the file was not read, or a line was cut."""

    content: VersionContent
    facts: tuple[ProposedFact, ...]
    moves: tuple[DocumentMove, ...]
    recipes: tuple[ProposedRecipe, ...]
    samples_left_out: tuple[UnusedSample, ...]
    cards: tuple[Card, ...]
    kernels: tuple[KernelSample, ...]
    validities: tuple[StatedValidity, ...]
    front_matter: Mapping[str, Any]
    complete: bool


class DocumentReader(Protocol):
    """Reads documents and embeds texts, here or on other machines."""

    def read(self, file: DocumentFile, specs: Mapping[str, HardwareSpec]) -> ReadDocument:
        """The content of a file. Raises the error of its parser, a KernloreError."""
        ...

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """One vector for each text, of any length."""
        ...


class LocalReader:
    """Reads and embeds in this process. `parse` reads bytes of a name."""

    def __init__(
        self,
        embedder: Embedder,
        tagger: Tagger,
        parse: Callable[[bytes, str], ParsedDocument],
        limits: DocumentLimits | None = None,
    ) -> None:
        self._embedder = embedder
        self._tagger = tagger
        self._parse = parse
        self._limits = limits

    def read(self, file: DocumentFile, specs: Mapping[str, HardwareSpec]) -> ReadDocument:
        """The content of a file. Raises the error of its parser."""
        parsed = self._parse(file.data, file.name)
        return read_document(parsed, file, self._embedder, self._tagger, specs, limits=self._limits)

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """One vector for each text, of any length."""
        return encode_whole(self._embedder, texts)


def pipeline_fingerprint(embedder: Embedder, tagger: Tagger) -> str:
    """A hash that changes if reading the same bytes again could give other content."""
    return sha256("\n".join(pipeline_parts(embedder, tagger)))[:16]


def pipeline_parts(
    embedder: Embedder, tagger: Tagger, parsers: Sequence[str] = _PARSERS
) -> tuple[str, ...]:
    """The parts of the pipeline with their versions; `parsers` are packages."""
    return (
        f"pipeline {PIPELINE}",
        f"cut {MAX_CHARS} {MAX_CODE_CHARS}",
        f"tags {tagger.fingerprint}",
        f"window {embedder.window} {embedder.fingerprint}",
        *(f"{name} {_installed_version(name)}" for name in parsers),
    )


def _installed_version(package: str) -> str:
    """Empty for a package of an extra that is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def read_document(
    parsed: ParsedDocument,
    file: DocumentFile,
    embedder: Embedder,
    tagger: Tagger,
    registry: Mapping[str, HardwareSpec],
    limits: DocumentLimits | None = None,
) -> ReadDocument:
    """The content of a parsed document; `embedder` only counts tokens. Raises InvalidKnowledge if
    the front matter has a move that cannot be used, and ParseFailed for a document that is larger
    than `limits`."""
    limits = limits or DocumentLimits()
    front = parsed.front_matter
    elements, cut = bounded(parsed.elements)
    sections = split_sections(elements)
    limits.check_passages(len(sections), "sections")
    # Cards are read from paragraphs as they are: many name the symbol of the table below.
    captioned = split_sections(with_captions(elements))
    passages = cut_passages(captioned, embedder.count_tokens, embedder.window, limits)
    lost = lost_sections(captioned, passages)
    passages = passages or _headings_only(sections)
    report = _report(parsed, sections, passages, lost, cut)
    facts: tuple[ProposedFact, ...] = ()
    if file.with_facts:
        facts, unread = facts_in(captioned)
        titles = [title for title in (parsed.title, file.name) if title]
        texts = [" > ".join(section.path) for section in sections]
        texts += [passage.text for passage in passages]
        unread += contradicting(facts, titles, file.hardware, registry, texts)
        unread.sort(key=lambda row: not row.endswith(UNCLEAR))
        report["rows_not_read"] = unread[:MAX_ROWS]
    scopes = SectionScopes(file.hardware, registry)
    samples = SampleScopes(scopes, file.hardware, registry)
    recipes, left_out = propose_recipes(sections, samples.of)
    compiled = template_languages(file.hardware, registry)
    cards = cards_of(sections, stated_languages(front) or file.languages or compiled)
    if headings := headings_without_card(sections, {card.name.lower() for card in cards}):
        report["headings_without_card"] = headings[:MAX_HEADINGS]
    own = compiled or sole_languages(file.hardware, registry)
    kernels = kernels_of(
        sections,
        cards,
        file.languages,
        own if file.with_facts else (),
        host_labels(file.hardware, registry) or HOSTS,
    )
    if file.with_facts:
        left_out += _without_recipe(sections, kernels, samples)
        fragments = fragments_of(sections, cards, kernels, own)
        left_out += (UnusedSample(sections[number].path, lack) for number, lack in fragments)
    content = VersionContent(
        sections=[_section_draft(section, scopes) for section in sections],
        passages=[_tagged(p, sections[p.section], tagger, front) for p in passages],
        report=report,
        title=parsed.title,
    )
    return ReadDocument(
        content,
        facts,
        moves=tuple(moves_of(front)),
        recipes=tuple(recipes),
        samples_left_out=tuple(left_out),
        cards=tuple(cards),
        kernels=tuple(kernels),
        validities=tuple(validities_of(front, content)),
        front_matter=front,
        complete=not (parsed.failures or lost or cut),
    )


def facts_in(sections: Sequence[ParsedSection]) -> tuple[tuple[ProposedFact, ...], list[str]]:
    """The facts of a document, and the rows of its data sheets and sentences without a fact."""
    prose = (e.text for section in sections for e in section.elements if e.table is None)
    names = scratchpad_names(prose)
    facts: list[ProposedFact] = []
    unread: list[str] = []
    sentences: list[str] = []
    for section in sections:
        proposed = propose_facts(section.elements, names, section.path)
        facts += proposed
        unread += unread_rows(section.elements, proposed, section.path)
        sentences += unread_sentences(section.elements, proposed)
    return tuple(facts), [*unread, *[s for s in sentences if s not in unread][:MAX_SENTENCES]]


def _without_recipe(
    sections: Sequence[ParsedSection], kernels: Sequence[KernelSample], samples: SampleScopes
) -> list[UnusedSample]:
    """Kernels in languages that the hardware of their section has no command templates for."""
    placed = [(kernel, sections[kernel.section].path) for kernel in kernels if kernel.language]
    reason = "a whole kernel, but no recipe: no toolchain is stated for"
    return [
        UnusedSample(path, f"{reason} {kernel.language}")
        for kernel, path in placed
        if kernel.language not in samples.of(path)
    ]


def lost_sections(sections: Sequence[ParsedSection], passages: Sequence[PassageDraft]) -> list[str]:
    """Headings of sections with text that is in no passage. Empty unless Kernlore has a defect, but
    a document that is read in part must not be `ready`."""
    texts: dict[int, list[str]] = {}
    for passage in passages:
        texts.setdefault(passage.section, []).append(words_of(passage.text))
    return [
        " > ".join(section.path)
        for index, section in enumerate(sections)
        if not _is_whole(section, "".join(texts.get(index, ())))
    ]


def _is_whole(section: ParsedSection, words: str) -> bool:
    """Whether `words` are those of the section's elements, in order."""
    position = 0
    for element in section.elements:
        forms = [element.text]
        if element.table is not None:  # a cut table is rendered again, without its header
            forms.append(render_table(Table((), element.table.rows)))
        compact = next((w for w in map(words_of, forms) if words.startswith(w, position)), None)
        if compact is None:
            return False
        position += len(compact)
    return position == len(words)


def _headings_only(sections: Sequence[ParsedSection]) -> list[PassageDraft]:
    """The headings as one passage, for an index page that has only headings."""
    text = "\n".join(section.title for section in sections if section.title)
    return [PassageDraft(0, "text", text[:MAX_CHARS])] if text else []


def _section_draft(section: ParsedSection, scopes: SectionScopes) -> SectionDraft:
    candidates = [section.heading, *section.elements]
    first = next((e.boxes[0] for e in candidates if e is not None and e.boxes), None)
    return SectionDraft(
        path=section.path,
        level=section.level,
        parent=section.parent,
        page_index=first.page_index if first else None,
        page_label=first.page_label if first else None,
        hardware=scopes.of(section.path),
    )


def _tagged(
    passage: PassageDraft, section: ParsedSection, tagger: Tagger, front_matter: Mapping[str, Any]
) -> PassageDraft:
    """The passage with its prose and tags."""
    words = len(passage.text.split())
    prose = round(1000 * len(_FUNCTION_WORD.findall(passage.text)) / words) if words else 0
    if front_matter.get("reference") is True:
        prose = REFERENCE
    tags = [*stated_tags(front_matter), *tagger.tags(section.path, passage.shown)]
    return replace(passage, prose=prose, tags=tuple(dict.fromkeys(tags)))


def _report(
    parsed: ParsedDocument,
    sections: Sequence[ParsedSection],
    passages: Sequence[PassageDraft],
    lost: Sequence[str],
    cut: Sequence[CutLine],
) -> dict[str, Any]:
    """Counts of the file's pages and content, and the parts that were not read."""
    elements = [element for section in sections for element in section.elements]
    return {
        "pages_seen": parsed.pages_seen,
        "pages_parsed": parsed.pages_parsed,
        "pages_failed": [
            {"page_index": f.page_index, "page_label": f.page_label, "reason": f.reason}
            for f in parsed.failures
        ],
        "elements": len(elements),
        "sections": len(sections),
        "passages": len(passages),
        "tables": sum(element.table is not None for element in elements),
        "code_blocks": sum(element.kind == "code" for element in elements),
        "characters": sum(len("".join(e.text.split())) for e in elements),
        "characters_left_out": sum(line.characters - line.kept for line in cut),
        "warnings": [
            *parsed.warnings,
            *map(str, cut),
            *(f"part of section {path or '(before the first heading)'} was lost" for path in lost),
        ],
    }
