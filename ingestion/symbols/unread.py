"""Sections that name things in code and gave no card: what there is to ask a model about.

Reads passages as the catalog holds them, so it works on documents that were ingested long ago. A
name counts where the source sets it as code, where code calls it or begins a statement with it, and
where its shape says so; a name that any card has does not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingestion.elements import Element
from ingestion.passages import ParsedSection
from ingestion.symbols.context import FOREIGN_FENCES
from ingestion.symbols.names import CODE, EMPTY_WORDS, is_name, looks_coded, mention_of
from ingestion.symbols.usage import CodeLines
from kb.catalog.knowledge.passages import Passage
from kb.catalog.knowledge.section_texts import WholeSection
from kb.catalog.knowledge.symbols import proposal_source_text

MAX_NAMES = 40  # shown of one section
_WORD = re.compile(r"[\w.@%$#:]+")
_PROSE = re.compile(r"(?:\b[A-Za-z]{1,20}+,? ){3}[A-Za-z]|[.:]\s*$")
_FENCED = re.compile(r"^```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CALLED = re.compile(r"(?<![\w.:])[A-Za-z_][\w.:]*+(?=\()")


@dataclass(frozen=True)
class UnreadSection:
    """A section that gave no card. `names` are those in it that no card has, in order; `code` are
    its code blocks with their languages.
    """

    id: str
    path: tuple[str, ...]
    text: str
    names: tuple[str, ...]
    code: tuple[tuple[str, str], ...]

    def language_of(self, example: str) -> str:
        """The language of the block that an example stands in; empty where no block states it."""
        words = " ".join(example.split())
        holding = (lang for lang, text in self.code if words and words in " ".join(text.split()))
        return next(holding, "")


def unread_sections(
    sections: Sequence[WholeSection], defining: Collection[str], named: Collection[str]
) -> list[UnreadSection]:
    """Sections that define no card (`defining` are the ids of those that do) and name something in
    code that no card has (`named`): first those that a model is most worth being asked about, of
    equal worth in their order.
    """
    names = {section.id: tuple(dict.fromkeys(_names(section.passages))) for section in sections}
    # In how many sections each name stands: what one section alone names is often its own variable.
    uses = Counter(name for of_section in names.values() for name in of_section)
    unread: list[tuple[int, UnreadSection]] = []
    for section in sections:
        missing = [name for name in names[section.id] if name not in named]
        if missing and section.id not in defining:
            unread.append((_worth(section, missing, uses), _unread(section, missing)))
    return [section for _, section in sorted(unread, key=lambda pair: -pair[0])]


def _worth(section: WholeSection, names: Sequence[str], uses: Mapping[str, int]) -> int:
    """How much of the language a section may explain: the names in its headings, and those that
    its sentences have and other sections use. Code alone explains nothing.
    """
    headings = set(_WORD.findall(" ".join(section.path[-2:])))
    prose = {n for p in section.passages for n in _prose_names(p, CodeLines([]))}
    titled = sum(name in headings or name.rpartition(".")[2] in headings for name in names)
    return 3 * titled + sum(name in prose and uses[name] > 1 for name in names)


def _unread(section: WholeSection, names: Sequence[str]) -> UnreadSection:
    return UnreadSection(
        section.id,
        section.path,
        proposal_source_text(section.path, ((p.lead, p.text) for p in section.passages)),
        tuple(names[:MAX_NAMES]),
        tuple((p.language, p.text) for p in section.passages if p.language),
    )


def _names(passages: Sequence[Passage]) -> Iterator[str]:
    blocks = {p.id: Element("code", _code(p), language=p.language) for p in passages}
    code = CodeLines([ParsedSection((), 1, None, tuple(blocks.values()))])
    used = code.called | code.leading
    for passage in passages:
        if (passage.language or "").lower() not in FOREIGN_FENCES:
            words = _WORD.findall(blocks[passage.id].text)
            yield from (word for word in words if word in used and _is_named(word, code))
        yield from _prose_names(passage, code)


def _prose_names(passage: Passage, code: CodeLines) -> Iterator[str]:
    """The names that its sentences set as code or call."""
    if passage.kind == "code":
        return
    prose = _FENCED.sub("", passage.text)
    for span in CODE.findall(prose):
        mention = None if _is_phrase(span) else mention_of(span, marked=True)
        if mention is not None and _is_named(mention.name, code):
            yield mention.name
    for name in _CALLED.findall(prose):
        if looks_coded(name) and _is_named(name, code):
            yield name


def _is_phrase(span: str) -> bool:
    """`Show Max Memory`: the label of a button rather than a name with operands."""
    words = span.split()
    return len(words) > 1 and all(word.istitle() for word in words)


def _code(passage: Passage) -> str:
    """The code of a passage. A short block shares one with the sentence that introduces it: in a
    fence, or, in what was read by an earlier version, with its language alone.
    """
    if passage.kind == "code":
        return passage.text
    if fenced := _FENCED.findall(passage.text):
        return "\n".join(fenced)
    lines = passage.text.split("\n") if passage.language else []
    return "\n".join(line for line in lines if not _PROSE.search(line))


def _is_named(name: str, code: CodeLines) -> bool:
    return is_name(name) and name not in code.settings and name.lower() not in EMPTY_WORDS
