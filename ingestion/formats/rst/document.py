"""reStructuredText, with docutils as the parser of its blocks.

Three departures make docutils fit for the documents of a Sphinx site, of which it knows little:

* Every directive is read by `directives`, whatever docutils knows of it, so an unknown one is a
  container whose content counts, and nothing includes a file or executes.
* Inline markup is not parsed: text stays as it is written, roles included, so that it can be
  quoted, and an unknown role is no error.
* Errors do not stop it. What stood in a block with an error is kept as text.

Lists and drawn tables keep their source lines; only indentation goes.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product, takewhile
from typing import Any

from docutils import frontend, nodes
from docutils.parsers import rst
from docutils.parsers.rst import directives, states
from docutils.statemachine import StringList
from docutils.utils import new_document

from ingestion.elements import Element, ParsedDocument
from ingestion.formats.rst.directives import Directive, read_directive
from ingestion.formats.tables import make_table, table_element

_DIRECTIVE_NAME = re.compile(r"\.\.\s+(?:\|[^|]*\|\s+)?([A-Za-z][\w+.:-]*?)\s?::(?:\s|$)", re.M)
_SUBSTITUTION = re.compile(r"\s*\.\.\s+\|")
_LABEL = re.compile(r"\.\.\s+(\[[^]]*\])")
_LITERAL_MARK = "::"


def parse_rst(text: str) -> ParsedDocument:
    """Read reStructuredText. Heading levels are by order of appearance of their adornments."""
    text = text.expandtabs(8)
    for name in set(_DIRECTIVE_NAME.findall(text)):
        directives.register_directive(name.lower(), _AnyDirective)
    settings = frontend.get_default_settings(rst.Parser)
    settings.report_level = settings.halt_level = 5
    settings.file_insertion_enabled = settings.raw_enabled = False
    settings.warning_stream = False
    settings.line_length_limit = len(text) + 1
    inliner = states.Inliner()
    inliner.parse = _unparsed
    document = new_document("0", settings)
    reader = document.kernlore_reader = _Reader(text)
    rst.Parser(inliner=inliner).parse(text, document)
    elements = tuple(reader.children(document))
    title = next((e.text for e in elements if e.kind == "title" and e.level == 1), None)
    return ParsedDocument(elements, title=title, warnings=tuple(dict.fromkeys(reader.warnings)))


def _unparsed(text: str, *_: Any) -> tuple[list[nodes.Node], list[nodes.Node]]:
    return [nodes.Text(text)], []


class _Read(nodes.Element):  # type: ignore[misc]
    """The elements of a directive, in the tree where the directive stood."""

    def __init__(self, elements: list[Element]) -> None:
        super().__init__()
        self.elements = elements


class _AnyDirective(rst.Directive):  # type: ignore[misc]
    """Hands the lines of any directive to `read_directive`."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        reader: _Reader = self.state.document.kernlore_reader
        first = self.block_text.split("\n", 1)[0].partition("::")[2].strip()
        body = list(self.content)
        argument = body.pop(0).strip() if first and body else ""

        def blocks(lines: Sequence[str]) -> list[Element]:
            node = nodes.container()
            self.state.nested_parse(reader.source(lines), 0, node)
            return list(reader.children(node))

        directive = Directive(self.name.lower(), argument, body, blocks, reader.warnings)
        return [_Read(list(read_directive(directive)))]


class _Reader:
    """The nodes of one document as elements. `_sources` holds the lines of the document and of the
    content of each directive, by the name that their nodes carry as `source`.
    """

    def __init__(self, text: str) -> None:
        self.warnings: list[str] = []
        self._sources = [[line.rstrip() for line in text.split("\n")]]
        self._readers: dict[type, Callable[[Any, int], Iterable[Element]]] = {
            _Read: lambda node, level: node.elements,
            nodes.section: lambda node, level: self.children(node, level + 1),
            nodes.title: _title,
            nodes.paragraph: _paragraph,
            nodes.bullet_list: self._items,
            nodes.enumerated_list: self._items,
            nodes.definition_list: self.children,
            nodes.definition_list_item: self._definition,
            nodes.field_list: _fields,
            nodes.option_list: self._verbatim,
            nodes.line_block: self._verbatim,
            nodes.literal_block: lambda node, level: [Element("code", node.astext().strip("\n"))],
            nodes.doctest_block: lambda node, level: [
                Element("code", node.astext(), language="python")
            ],
            nodes.table: self._table,
            nodes.footnote: self._note,
            nodes.citation: self._note,
            nodes.system_message: _unreadable,
            nodes.block_quote: self.children,
            nodes.attribution: lambda node, level: [Element("text", f"-- {node.astext()}")],
        }

    def source(self, lines: Sequence[str]) -> StringList:
        """Lines to be parsed, under a name by which `_lines` gets them back."""
        self._sources.append([line.rstrip() for line in lines])
        return StringList(list(lines), str(len(self._sources) - 1))

    def children(self, node: Any, level: int = 0) -> Iterator[Element]:
        """The elements of what a node holds, in order; targets and comments hold none."""
        for child in node.children:
            read = self._readers.get(type(child))
            if read is not None:
                yield from read(child, level)

    def _lines(self, node: Any) -> list[str]:
        """The source lines of a node, dedented: as many as its `rawsource` has. Of a table, which
        has none, all that follow until the indentation ends.
        """
        lines = self._sources[int(node.source)][node.line - 1 :]
        if isinstance(node, nodes.table):
            indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
            lines = list(takewhile(lambda line: not line or line.startswith(indent), lines))
        else:
            lines = lines[: node.rawsource.count("\n") + 1]
        return textwrap.dedent("\n".join(lines)).split("\n")

    def _items(self, node: Any, level: int) -> Iterator[Element]:
        """A list; items that hold code, tables or directives are taken apart."""
        run: list[str] = []
        for item in node.children:
            if type(item) is nodes.list_item and not _complex(item):
                run += self._lines(item)
                continue
            if run:
                yield _list(run)
                run = []
            if type(item) is nodes.list_item:
                yield from self._complex_item(item)
        if run:
            yield _list(run)

    def _complex_item(self, item: Any) -> Iterator[Element]:
        inner = list(self.children(item))
        mark = self._lines(item)[0].partition(" ")[0]
        if inner and inner[0].kind == "text":
            inner[0] = Element("list", f"{mark} {inner[0].text}")
        yield from inner

    def _definition(self, item: Any, level: int) -> Iterator[Element]:
        """A term and the text under it."""
        body = next(child for child in item.children if isinstance(child, nodes.definition))
        if not _complex(body):
            yield Element("text", "\n".join(self._lines(item)).strip("\n"))
            return
        term = item.rawsource.split("\n", 1)[0]
        inner = list(self.children(body))
        if inner and inner[0].kind == "text":
            inner[0] = replace(inner[0], text=f"{term}\n{inner[0].text}")
        else:
            inner.insert(0, Element("text", term))
        yield from inner

    def _verbatim(self, node: Any, level: int) -> Iterator[Element]:
        text = textwrap.dedent(node.rawsource) or node.astext()
        yield Element("text", text)

    def _note(self, node: Any, level: int) -> Iterator[Element]:
        label = _LABEL.match(self._lines(node)[0])
        inner = list(self.children(node))
        if inner and label:
            inner[0] = replace(inner[0], text=f"{label[1]} {inner[0].text}")
        yield from inner

    def _table(self, node: Any, level: int) -> Iterator[Element]:
        drawn = "\n".join(_drawn(self._lines(node)))
        table = make_table(self._rows(node, nodes.thead), self._rows(node, nodes.tbody))
        element = table_element(table, drawn)
        if element:
            yield element

    def _rows(self, table: Any, part: type) -> Iterator[list[str]]:
        """The cells of a table's head or body. A cell over several columns or rows stands in its
        first place; the others are empty, so that columns stay columns.
        """
        covered: set[tuple[int, int]] = set()
        rows = [row for group in table.findall(part) for row in group.children]
        for number, row in enumerate(rows):
            cells: list[str] = []
            for entry in row.children:
                while (number, len(cells)) in covered:
                    cells.append("")
                width, height = 1 + entry.get("morecols", 0), 1 + entry.get("morerows", 0)
                places = product(range(number + 1, number + height), range(width))
                covered |= {(line, len(cells) + column) for line, column in places}
                text = " ".join(element.text for element in self.children(entry))
                cells += [text, *[""] * (width - 1)]
            yield cells


def _title(node: Any, level: int) -> Iterator[Element]:
    yield Element("title", node.astext(), level=level)


def _paragraph(node: Any, level: int) -> Iterator[Element]:
    text = node.rawsource or node.astext()
    # docutils takes half of the mark of a literal block.
    siblings = node.parent.children
    after = siblings[node.parent.index(node) + 1 :][:1]
    if after and isinstance(after[0], nodes.literal_block) and not text.endswith(_LITERAL_MARK):
        text = text.removesuffix(":") + _LITERAL_MARK
    # Stray rules hold no words.
    if any(character.isalnum() for character in text):
        yield Element("text", text)


def _fields(node: Any, level: int) -> Iterator[Element]:
    lines = [
        f":{field[0].astext()}: {field[1].rawsource}"
        for field in node.children
        if field[1].rawsource.strip()
    ]
    if lines:
        yield Element("text", "\n".join(lines))


def _unreadable(node: Any, level: int) -> Iterator[Element]:
    """What stood where docutils reports an error."""
    for block in node.children:
        if isinstance(block, nodes.literal_block) and not _SUBSTITUTION.match(block.astext()):
            yield Element("text", block.astext())


def _drawn(lines: Sequence[str]) -> Iterable[str]:
    """The lines of the table that the first line begins: a simple one ends at a border with nothing
    under it, a grid at its last line.
    """
    if lines[0].startswith("+"):
        return takewhile(lambda line: line.startswith(("+", "|")), lines)
    borders = (n for n, line in enumerate(lines[1:], 2) if line and not line.strip("= \t"))
    end = next((n for n in borders if not "".join(lines[n : n + 1])), len(lines))
    return lines[:end]


def _complex(node: Any) -> bool:
    inner = nodes.literal_block, nodes.table, nodes.doctest_block, _Read
    return any(isinstance(child, inner) for child in node.findall())


def _list(lines: list[str]) -> Element:
    return Element("list", "\n".join(lines).strip("\n"))
