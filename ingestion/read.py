"""One parsed file into what the catalog stores of it: sections, passages with tags and scope,
moves, proposed facts and recipes, a report.

Pure: the same bytes, vocabulary, registry and pipeline give the same content. The report's
accounting is exact and is
checked here: every page is parsed or failed, every element is in a section, every section's text is
in its passages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ingestion import passages as cutting
from ingestion.bounds import CutLine, bounded
from ingestion.elements import Box, ParsedDocument, Table
from ingestion.findings.facts import LocatedFact, propose_facts, unread_rows
from ingestion.findings.moves import moves_of
from ingestion.findings.own_names import own_names
from ingestion.findings.scopes import SampleScopes, SectionScopes
from ingestion.findings.tags import Tagger
from ingestion.formats.tables import render_table
from ingestion.passages import Passage, Section, cut_passages, split_sections, words_of
from ingestion.samples.kernels import fragments_of, kernels_of
from ingestion.samples.recipes import LeftOut, propose_recipes
from ingestion.symbols.cards import cards_of
from ingestion.symbols.labelled import without_card
from kb.catalog.knowledge.moves import DocumentMove
from kb.catalog.knowledge.samples import KernelSample, ProposedRecipe
from kb.catalog.knowledge.symbols import Card
from kb.catalog.knowledge.versions import PassageDraft, SectionDraft, VersionContent
from kb.embedding import Embedder
from kb.hardware.lineage import lineage
from kb.hardware.spec import HardwareSpec
from kb.ids import sha256

# Raise when a change of parsing, cutting or tagging should re-read documents that are unchanged.
PIPELINE = 12
# The share of prose that passages of a reference page are given, per mille: it halves their place
# among passages that answer a question (retrieval/ranking.py). Who asks for a name gets its card.
REFERENCE = -300
MAX_HEADINGS = 40  # without a card, that a report names
MAX_ROWS = 50  # of data sheets, that a report names as not read
_PARSERS = (
    "beautifulsoup4",
    "docutils",
    "lxml",
    "markdown-it-py",
    "pdfplumber",
    "pypdfium2",
    "python-docx",
    "unstructured",
)
_FUNCTION_WORD = re.compile(
    r"\b(?:the|a|an|of|to|in|is|are|for|and|that|this|with|on|be|it|by|as|or|from|can|not)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ReadDocument:
    """Everything that one document yields: `content` becomes searchable, the rest is proposed to a
    person, except for `moves`, which the document states itself, and for `front_matter`, whose
    verdicts on kernels count for built-in documents. `samples_left_out` are the code
    samples that no recipe could be made of. `complete` is False when any part of the file was not
    read, or was left out because a line is too long.
    """

    content: VersionContent
    facts: tuple[LocatedFact, ...]
    moves: tuple[DocumentMove, ...]
    recipes: tuple[ProposedRecipe, ...]
    samples_left_out: tuple[LeftOut, ...]
    cards: tuple[Card, ...]
    kernels: tuple[KernelSample, ...]
    front_matter: Mapping[str, Any]
    complete: bool


def pipeline_fingerprint(embedder: Embedder, tagger: Tagger) -> str:
    """Changes whenever reading the same bytes again could give something else."""
    return sha256("\n".join(pipeline_parts(embedder, tagger)))[:16]


def pipeline_parts(
    embedder: Embedder, tagger: Tagger, parsers: Sequence[str] = _PARSERS
) -> tuple[str, ...]:
    """What decides how bytes are read, each with its version; `parsers` are packages."""
    return (
        f"pipeline {PIPELINE}",
        f"cut {cutting.MAX_CHARS} {cutting.MAX_CODE_CHARS}",
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
    embedder: Embedder,
    tagger: Tagger,
    hardware: Sequence[str],
    registry: Mapping[str, HardwareSpec],
    languages: Sequence[str] = (),
    *,
    with_facts: bool = True,
) -> ReadDocument:
    """What a parsed document yields. `hardware` are the ids that it is about, empty for no hardware
    in particular, `languages` those that its sender named; `embedder` counts tokens only. Without
    `with_facts` no facts are looked for.
    Raises InvalidKnowledge when its front matter states a move that cannot be used.
    """
    scopes = SectionScopes(hardware, registry)
    elements, cut = bounded(parsed.elements)
    sections = split_sections(elements)
    passages = cut_passages(sections, embedder.count_tokens, embedder.window)
    lost = lost_sections(sections, passages)
    passages = passages or _headings_only(sections)
    document_tags = _front_matter_tags(parsed.front_matter)
    reference = parsed.front_matter.get("reference") is True
    drafts = [
        _passage_draft(p, sections[p.section], tagger, document_tags, reference) for p in passages
    ]
    content = VersionContent(
        sections=[_section_draft(section, scopes) for section in sections],
        passages=drafts,
        report=_report(parsed, sections, passages, lost, cut),
        title=parsed.title,
    )
    facts: tuple[LocatedFact, ...] = ()
    if with_facts:
        facts, unread = facts_in(sections)
        content = replace(content, report={**content.report, "rows_not_read": unread[:MAX_ROWS]})
    samples = SampleScopes(scopes, hardware, registry)
    recipes, left_out = propose_recipes(sections, samples.of)
    stated = stated_languages(parsed.front_matter) or tuple(languages)
    cards = cards_of(sections, stated or own_languages(hardware, registry))
    if headings := without_card(sections, {card.name.lower() for card in cards}):
        report = {**content.report, "headings_without_card": headings[:MAX_HEADINGS]}
        content = replace(content, report=report)
    own = own_languages(hardware, registry) or sole_languages(hardware, registry)
    kernels = kernels_of(sections, cards, languages, own if with_facts else ())
    if with_facts:
        known = {path: samples.of(path) for path in {section.path for section in sections}}
        left_out += _not_tried(sections, cards, kernels, known, own)
    return ReadDocument(
        content,
        facts,
        moves=tuple(moves_of(parsed.front_matter)),
        recipes=tuple(recipes),
        samples_left_out=tuple(left_out),
        cards=tuple(cards),
        kernels=tuple(kernels),
        front_matter=parsed.front_matter,
        complete=parsed.complete and not lost and not cut,
    )


def facts_in(sections: Sequence[Section]) -> tuple[tuple[LocatedFact, ...], list[str]]:
    """The facts of a document, and the rows of its data sheets that gave none."""
    names = own_names(e.text for section in sections for e in section.elements if e.table is None)
    facts: list[LocatedFact] = []
    unread: list[str] = []
    for section in sections:
        proposed = propose_facts(section.elements, names)
        facts += [LocatedFact(fact, section.path) for fact in proposed]
        unread += unread_rows(section.elements, proposed)
    return tuple(facts), unread


def _not_tried(
    sections: Sequence[Section],
    cards: Sequence[Card],
    kernels: Sequence[KernelSample],
    known: Mapping[tuple[str, ...], Mapping[str, tuple[str, ...]]],
    languages: Sequence[str],
) -> list[LeftOut]:
    """Samples that no recipe was tried of. `known` gives the languages that can be compiled, by the
    heading path; `languages` are the chip's own.
    """
    left_out = [
        LeftOut(
            sections[kernel.section].path,
            f"a whole kernel, but no recipe: no toolchain is stated for {kernel.language}",
        )
        for kernel in kernels
        if kernel.language and kernel.language not in known[sections[kernel.section].path]
    ]
    fragments = fragments_of(sections, cards, kernels, languages)
    return left_out + [LeftOut(sections[number].path, lack) for number, lack in fragments]


def stated_languages(front_matter: Mapping[str, Any]) -> tuple[str, ...]:
    """The languages that a document says it is about."""
    stated = front_matter.get("languages")
    return tuple(map(str, stated)) if isinstance(stated, list) else ()


def own_languages(hardware: Sequence[str], registry: Mapping[str, HardwareSpec]) -> tuple[str, ...]:
    """The languages that the toolchains of these chips, and of what stands above them, compile by
    command templates.
    """
    chips = [place for chip in hardware if chip in registry for place in lineage(chip, registry)]
    chains = (registry[chip].toolchains.items() for chip in chips)
    names = [name for rows in chains for name, chain in rows if not chain.builtin]
    return tuple(dict.fromkeys(names))


def sole_languages(
    hardware: Sequence[str], registry: Mapping[str, HardwareSpec]
) -> tuple[str, ...]:
    """The languages of chips whose description names one alone: it is the chip's own."""
    specs = [registry[chip] for chip in hardware if chip in registry]
    return tuple(spec.languages[0] for spec in specs if len(spec.languages) == 1)


def lost_sections(sections: Sequence[Section], passages: Sequence[Passage]) -> list[str]:
    """Headings of sections of which a part is in no passage.

    Empty unless Kernlore has a defect; counted all the same, because a document that is read in
    part must not be called ready.
    """
    kept: dict[int, list[str]] = {}
    for passage in passages:
        kept.setdefault(passage.section, []).append(passage.text)
    return [
        " > ".join(section.path)
        for index, section in enumerate(sections)
        if not _holds(section, "".join(map(words_of, kept.get(index, ()))))
    ]


def _holds(section: Section, kept: str) -> bool:
    """Whether `kept` is the words of the section's elements, in order."""
    position = 0
    for element in section.elements:
        forms = [element.text]
        if element.table is not None:  # a cut table is written anew, its header apart
            forms.append(render_table(Table((), element.table.rows)))
        compact = [words_of(form) for form in forms]
        written = next((form for form in compact if kept.startswith(form, position)), None)
        if written is None:
            return False
        position += len(written)
    return position == len(kept)


def _headings_only(sections: Sequence[Section]) -> list[Passage]:
    """An index page has headings and nothing under them; they are what it says."""
    titles = [section.title for section in sections if section.title]
    if not titles:
        return []
    text = "\n".join(titles)[: cutting.MAX_CHARS]
    return [Passage(section=0, kind="text", text=text)]


def _section_draft(section: Section, scopes: SectionScopes) -> SectionDraft:
    boxes = section.heading.boxes if section.heading else ()
    if not boxes:
        boxes = next((e.boxes for e in section.elements if e.boxes), ())
    first = boxes[0] if boxes else None
    return SectionDraft(
        path=section.path,
        level=section.level,
        parent=section.parent,
        page_index=first.page_index if first else None,
        page_label=first.page_label if first else None,
        hardware=scopes.of(section.path),
    )


def _passage_draft(
    passage: Passage,
    section: Section,
    tagger: Tagger,
    document_tags: Sequence[tuple[str, str]],
    reference: bool,
) -> PassageDraft:
    words = len(passage.text.split())
    prose = round(1000 * len(_FUNCTION_WORD.findall(passage.text)) / words) if words else 0
    if reference:
        prose = REFERENCE
    tags = dict.fromkeys([*document_tags, *tagger.tags(section.path, passage.shown)])
    return PassageDraft(
        section=passage.section,
        kind=passage.kind,
        text=passage.text,
        lead=passage.lead,
        language=passage.language,
        boxes=tuple(_box(box) for box in passage.boxes),
        prose=prose,
        tags=tuple(tags),
    )


def _box(box: Box) -> dict[str, Any]:
    return {name: round(v, 2) if isinstance(v, float) else v for name, v in vars(box).items()}


def _front_matter_tags(front_matter: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Signals and topics that a document's author named for the whole of it."""
    tags = []
    for kind, key in (("signal", "signals"), ("topic", "topics")):
        values = front_matter.get(key)
        if isinstance(values, list):
            tags += [(kind, value) for value in values if isinstance(value, str)]
    return tags


def _report(
    parsed: ParsedDocument,
    sections: Sequence[Section],
    passages: Sequence[Passage],
    lost: Sequence[str],
    cut: Sequence[CutLine],
) -> dict[str, Any]:
    """What became of the file, counted."""
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
