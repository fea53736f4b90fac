"""The syntax of a name that a label introduces under its heading: "Syntax: vld VR, SRC, OFFSET".

Manuals written in a word processor or as plain HTML have no code block and no sub-heading for it: a
paragraph begins with a word such as Syntax, in bold or plain, and the line after it is the syntax.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from ingestion.elements import Element
from ingestion.passages import ParsedSection
from ingestion.symbols.context import kind_in
from ingestion.symbols.drafts import MAX_MEANING, MAX_NAME, MAX_SIGNATURE, Draft, cut
from ingestion.symbols.names import EMPTY_WORDS, is_name, without_ticks
from ingestion.symbols.sentences import items_of, opening
from ingestion.symbols.tables import operands_of
from kb.catalog.knowledge.symbols import CardKind

MAX_ELEMENTS = 12  # of a section that are read
_MARK = r"(?:\*{1,3}|_{1,3}|`{1,2})?"
_LABEL = re.compile(
    rf"^\s*{_MARK}(?:assembl(?:y|er)\s|instruction\s)?"
    rf"(?:syntax|format|usage|assembly|assembler|synopsis|mnemonic){_MARK}\s*:{_MARK}[ \t]*",
    re.I,
)
# Labels of what is neither the syntax nor a description.
_OTHER = re.compile(
    rf"^\s*{_MARK}(?:latency|throughput|cycles|encoding|opcode|operands?|arguments?|flags|examples?"
    rf"|see also|since|availability|unit|pipe(?:line)?){_MARK}\s*:",
    re.I,
)
_SAID = re.compile(
    rf"^\s*{_MARK}(?:description|meaning|operation|semantics|effect|summary){_MARK}\s*:{_MARK}\s*",
    re.I,
)
_NUMBER = re.compile(r"^(?:[A-Z]?\d{1,3}\.)*[A-Z]?\d{0,3}[.:)]?\s+")
_NAME = re.compile(r"[.@%$#]?[A-Za-z_][\w.]*")
_SENTENCE = re.compile(r"(?:\b[a-z]{2,}\s+){3}[a-z]{2,}")


def labelled_drafts(section: ParsedSection, number: int) -> Iterator[Draft]:
    """The draft of a section whose heading begins with a name that its labelled syntax writes, or
    nothing."""
    headed = _headed(section.title)
    signature = labelled_syntax(section.elements, headed) if headed else ""
    if not signature:
        return
    written = _token(signature, headed)
    rest = signature[signature.index(written) + len(written) :].strip()
    yield Draft(
        written,
        number,
        kind=_kind(section, rest),
        signature=cut(signature, MAX_SIGNATURE),
        operands=operands_of(_inside(rest)) if rest else (),
        meaning=cut(opening(described(section.elements), MAX_MEANING), MAX_MEANING),
    )


def without_card(sections: Sequence[ParsedSection], named: Collection[str]) -> list[str]:
    """Headings that stand among those of instructions, are one name and gave no card. `named` are
    the names of the document's cards, in lower case.

    They stand among instructions where a heading above says so, or where a half of the headings
    beside them gave cards of themselves. A heading over other headings is a chapter.
    """
    over = {section.parent for section in sections}
    beside: dict[int | None, list[tuple[str, ParsedSection]]] = defaultdict(list)
    for number, section in enumerate(sections):
        name = _headed(section.title)
        alone = name and _NUMBER.sub("", without_ticks(section.title).strip(), count=1) == name
        if number not in over and section.heading is not None and alone:
            beside[section.parent].append((name, section))
    missing: list[str] = []
    for headed in beside.values():
        lost = [(name, section) for name, section in headed if name.lower() not in named]
        if 2 * len(lost) > len(headed):
            lost = [
                pair for pair in lost if kind_in(reversed(pair[1].path[-3:-1])) == "instruction"
            ]
        missing += [name for name, _ in lost if not name.istitle()]
    return list(dict.fromkeys(missing))


def is_labelled(text: str) -> bool:
    """Whether a paragraph begins with the label of a syntax, or of another field of an entry."""
    first = items_of(text)[0]
    return bool(_LABEL.match(first) or _OTHER.match(first))


def labelled_syntax(elements: Sequence[Element], name: str) -> str:
    """What stands behind the label, where it writes `name` and is no sentence; else empty."""
    for line in _behind_labels(elements[:MAX_ELEMENTS]):
        plain = " ".join(without_ticks(line).split()).rstrip(".;").strip("*_ ")
        words = plain.replace(name, "", 1)
        if _token(plain, name) and len(plain) <= MAX_SIGNATURE and not _SENTENCE.search(words):
            return plain
    return ""


def described(elements: Sequence[Element]) -> str:
    """The first paragraph that describes: neither a labelled field nor a lead-in."""
    for number, element in enumerate(elements[:MAX_ELEMENTS]):
        if element.kind not in ("text", "list"):
            continue
        before = elements[number - 1].text if number else ""
        if _LABEL.match(before) and not _LABEL.sub("", before, count=1).strip():
            continue  # the syntax itself, under a label that stands alone
        for item in items_of(element.text):
            text = _after_label(item) if _LABEL.match(item) else item
            text = _SAID.sub("", text, count=1).strip()
            words = len(text.split()) > 1 or text.endswith(".")
            if words and not _OTHER.match(text) and not text.endswith(":"):
                return text
    return ""


def _behind_labels(elements: Sequence[Element]) -> Iterator[str]:
    """The line behind each label: in its paragraph, its cell, or in what follows a bare label."""
    for number, element in enumerate(elements):
        if element.table is not None:
            for row in (*element.table.header, *element.table.rows):
                if len(row) > 1 and _LABEL.match(f"{row[0].rstrip(': ')}:"):
                    yield row[1]
            continue
        if element.kind == "code":
            continue
        for item in [*items_of(element.text), *element.text.split("\n")]:
            match = _LABEL.match(item)
            if match and item[match.end() :].strip(" *_"):
                yield item[match.end() :].strip().partition("\n")[0]
            elif match and number + 1 < len(elements):
                yield elements[number + 1].text.strip().partition("\n")[0]


def _after_label(item: str) -> str:
    """The lines under the labelled one, in the same paragraph."""
    lines = item.strip().split("\n")
    bare = not _LABEL.sub("", lines[0], count=1).strip(" *_")
    return "\n".join(lines[1 + bare :]).strip()


def _headed(title: str) -> str:
    """The name that a heading begins with, empty where it begins with none."""
    text = _NUMBER.sub("", without_ticks(title).strip(), count=1)
    match = _NAME.match(text)
    name = match[0].rstrip(".") if match else ""
    return name if is_name(name) and name.lower() not in EMPTY_WORDS else ""


def _token(line: str, name: str) -> str:
    """The name as a line writes it, in capitals or not; empty where it does not."""
    if len(line) > 4 * MAX_SIGNATURE or len(name) > MAX_NAME:
        return ""
    tokens = (match[0].rstrip(".") for match in _NAME.finditer(line))
    return next((token for token in tokens if token.lower() == name.lower()), "")


def _kind(section: ParsedSection, rest: str) -> CardKind | None:
    """As the headings say; a name with operands and no bracket is an instruction."""
    stated = kind_in((section.title, *reversed(section.path[-3:-1])))
    return stated or (None if rest.startswith("(") else "instruction")


def _inside(rest: str) -> str:
    """The operands between the brackets of a call, or those of an instruction."""
    if rest.startswith("(") and ")" in rest:
        return rest[1 : rest.rindex(")")]
    return rest
