"""reStructuredText, with docutils as the parser of its blocks.

Documents of Sphinx sites need three changes to docutils:

* `_read_directive` reads every directive: an unknown one is a container, and none includes a file
  or runs code.
* Inline markup is not parsed: text stays as written, roles included, so that it can be quoted.
* Errors do not stop the parser; a block with an error becomes text.

Lists and drawn tables keep their source lines without the indentation.
"""

from __future__ import annotations

import csv
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, takewhile
from typing import Any

from docutils import frontend, nodes
from docutils.parsers import rst
from docutils.parsers.rst import directives, states
from docutils.statemachine import StringList
from docutils.utils import new_document

from ingestion.elements import Element, ParsedDocument, Table, make_table, table_element
from ingestion.formats.html import names, parse_fragment

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
    reader = document.kernlore_reader = _NodeReader(text)
    rst.Parser(inliner=inliner).parse(text, document)
    elements = tuple(reader.children(document))
    title = next((e.text for e in elements if e.kind == "title" and e.level == 1), None)
    return ParsedDocument(elements, title=title, warnings=tuple(dict.fromkeys(reader.warnings)))


def _unparsed(text: str, *_: Any) -> tuple[list[nodes.Node], list[nodes.Node]]:
    return [nodes.Text(text)], []


class _DirectiveElements(nodes.Element):  # type: ignore[misc]
    """The elements of a directive, at its position in the tree."""

    def __init__(self, elements: list[Element]) -> None:
        super().__init__()
        self.elements = elements


class _AnyDirective(rst.Directive):  # type: ignore[misc]
    """Passes the lines of any directive to `_read_directive`."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        reader: _NodeReader = self.state.document.kernlore_reader
        first, _, rest = self.block_text.partition("\n")
        body = list(self.content)
        argument = body.pop(0).strip() if first.partition("::")[2].strip() and body else ""
        if not argument and not rest.partition("\n")[0].strip():
            # Options follow the directive without an empty line; docutils removes that line.
            body.insert(0, "")

        def blocks(lines: Sequence[str]) -> list[Element]:
            node, source = nodes.container(), reader.source(lines)
            if self.name.lower() in _WITH_SECTIONS:
                return self._with_sections(source, node, reader)
            self.state.nested_parse(source, 0, node)
            return list(reader.children(node))

        directive = Directive(self.name.lower(), argument, body, blocks, reader.warnings)
        return [_DirectiveElements(list(_read_directive(directive)))]

    def _with_sections(self, source: StringList, node: Any, reader: _NodeReader) -> list[Element]:
        """The elements of content that has headings, at the levels that the document gives them."""
        memo, outer = self.state.memo, reader.depth
        known, memo.title_styles = memo.title_styles, []
        depth = reader.depth = outer + len(self.state.parent.section_hierarchy())
        self.state.nested_parse(source, 0, node, match_titles=True)
        own, memo.title_styles, reader.depth = memo.title_styles, known, outer
        for section in node.findall(nodes.section):
            level = len(section.section_hierarchy())
            style = own[level - 1]
            section["level"] = outer + known.index(style) + 1 if style in known else depth + level
        return list(reader.children(node))


class _NodeReader:
    """Turns the nodes of one document into elements. `_sources` holds the lines of the document and
    of the content of each directive; the `source` of a node is an index into it."""

    def __init__(self, text: str) -> None:
        self.warnings: list[str] = []
        self.depth = 0  # of the section around the directive that is being read
        self._sources = [[line.rstrip() for line in text.split("\n")]]
        self._readers: dict[type, Callable[[Any, int], Iterable[Element]]] = {
            _DirectiveElements: lambda node, level: node.elements,
            nodes.section: lambda node, level: self.children(node, node.get("level", level + 1)),
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
        """Lines to be parsed, with the index of `_sources` as their name."""
        self._sources.append([line.rstrip() for line in lines])
        return StringList(list(lines), str(len(self._sources) - 1))

    def children(self, node: Any, level: int = 0) -> Iterator[Element]:
        """The elements of a node's children; targets and comments have none."""
        for child in node.children:
            read = self._readers.get(type(child))
            if read is not None:
                yield from read(child, level)

    def _lines(self, node: Any) -> list[str]:
        """The source lines of a node, dedented: as many as its `rawsource` has. For a table, which
        has no `rawsource`, all lines until the indentation ends."""
        lines = self._sources[int(node.source)][node.line - 1 :]
        if isinstance(node, nodes.table):
            indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
            lines = list(takewhile(lambda line: not line or line.startswith(indent), lines))
        else:
            lines = lines[: node.rawsource.count("\n") + 1]
        return textwrap.dedent("\n".join(lines)).split("\n")

    def _items(self, node: Any, level: int) -> Iterator[Element]:
        """A list; items with code, tables or directives are split into elements."""
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
        """The cells of a table's head or body. A cell over several columns or rows is in the first
        of them, and the others are empty, so that columns stay aligned."""
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
    # docutils removes one colon of the mark of a literal block.
    siblings = node.parent.children
    after = siblings[node.parent.index(node) + 1 :][:1]
    if after and isinstance(after[0], nodes.literal_block) and not text.endswith(_LITERAL_MARK):
        text = text.removesuffix(":") + _LITERAL_MARK
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
    """The source of a block in which docutils reports an error."""
    for block in node.children:
        if isinstance(block, nodes.literal_block) and not _SUBSTITUTION.match(block.astext()):
            yield Element("text", block.astext())


def _drawn(lines: Sequence[str]) -> Iterable[str]:
    """The lines of the drawn table at the beginning: a simple table ends at a border with an empty
    line under it, a grid table with its grid."""
    if lines[0].startswith("+"):
        return takewhile(lambda line: line.startswith(("+", "|")), lines)
    borders = (n for n, line in enumerate(lines[1:], 2) if line and not line.strip("= \t"))
    end = next((n for n in borders if not "".join(lines[n : n + 1])), len(lines))
    return lines[:end]


def _complex(node: Any) -> bool:
    inner = nodes.literal_block, nodes.table, nodes.doctest_block, _DirectiveElements
    return any(isinstance(child, inner) for child in node.findall())


def _list(lines: list[str]) -> Element:
    return Element("list", "\n".join(lines).strip("\n"))


# -- directives, by the kind of their content, as docutils, Sphinx and its extensions name them

_OPTION = re.compile(r"^:([\w-]+):(?:\s+(.*)|$)")
_TEMPLATE = re.compile(r"^\s*\{%.*%\}\s*$")
_ALTERNATIVE_WORDS = 2
_ROW = re.compile(r"^\*(?:\s|$)")
_CELL = re.compile(r"^-(?:\s|$)")

_CODE = names(
    "code code-block sourcecode parsed-literal prompt doctest testcode ipython productionlist"
)
# Their text may start on the line of the directive.
_NOTES = names(
    "note warning tip important hint caution danger attention error seealso versionadded"
    " versionchanged deprecated epigraph highlights pull-quote compound container only ifconfig"
    " tab-set tabs grid grid-item version-set math todo"
)
_WITH_SECTIONS = names("only ifconfig")
_TITLED = names(
    "admonition topic sidebar rubric dropdown card grid-item-card tab-item tab group-tab code-tab"
    " details glossary"
)
# They take no content, so an indented block after them is text.
_BODILESS = names("image currentmodule module highlight default-role default-domain")
_DROPPED = names(
    "toctree contents meta include literalinclude role index program bibliography sectnum plot"
    " graphviz mermaid tabularcolumns target-notes nki_example unicode replace date"
)
_DESCRIBED = names(
    "function class method attribute property data exception staticmethod classmethod macro type"
    " struct enum union member var option cmdoption envvar confval describe object automodule"
    " autoclass autofunction automethod autodata doxygenfunction doxygenstruct doxygenclass"
    " doxygenenum doxygendefine doxygentypedef"
)


@dataclass(frozen=True)
class Directive:
    """One directive, its body dedented. `blocks` reads lines as ordinary content; `warnings` is the
    list of the document."""

    name: str
    argument: str
    body: list[str]
    blocks: Callable[[Sequence[str]], Iterable[Element]]
    warnings: list[str]

    def content(self) -> Iterable[Element]:
        """The elements of its body, without the options."""
        return self.blocks(_split_options(self.body)[1])


def _read_directive(directive: Directive) -> Iterator[Element]:
    """The elements of a directive; none for a directive that only controls the build."""
    name = directive.name
    if name in _DROPPED:
        return
    reader = _READERS.get(name)
    if reader is None and (name in _DESCRIBED or name.rpartition(":")[2] in _DESCRIBED):
        reader = _described
    if reader is not None:
        yield from reader(directive)
    elif not name.startswith(("doxygen", "auto")):
        # An unknown directive is a container. Lines of templates inside it are for the generator.
        lines = _split_options(directive.body)[1]
        yield from directive.blocks([line for line in lines if not _TEMPLATE.match(line)])


def _split_options(body: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options at the top of a directive's body, and the rest."""
    options: dict[str, str] = {}
    # Lines between the directive and its options continue the argument, such as a long path.
    first = next((n for n, line in enumerate(body) if not line or _OPTION.match(line)), len(body))
    at = first if first < len(body) and body[first] and first <= 2 else 0
    while at < len(body) and (option := _OPTION.match(body[at])):
        value = option[2] or ""
        at += 1
        while at < len(body) and body[at].startswith(" "):
            value = f"{value} {body[at].strip()}"
            at += 1
        options[option[1]] = value.strip()
    continued = body[:first] if options and first <= 2 else []
    return options, [*continued, *body[at:]]


def _note(directive: Directive) -> Iterable[Element]:
    body, argument = directive.body, directive.argument
    # The argument of a layout directive is numbers or a name ("1 2 2 2", "html"), not words.
    if " " not in argument or not re.search(r"[A-Za-z]{2}", argument):
        return directive.content()
    if body and _OPTION.match(body[0]):
        return directive.blocks([argument, "", *_split_options(body)[1]])
    return directive.blocks([argument, *body])


def _titled(directive: Directive) -> Iterator[Element]:
    if directive.argument:
        yield Element("text", directive.argument)
    yield from directive.content()


def _described(directive: Directive) -> Iterator[Element]:
    """An API entry: its signatures as text, then its description."""
    body = directive.body
    # Further signatures follow without a blank line, as do the lines of one that was broken.
    ends = (n for n, line in enumerate(body) if not line or _OPTION.match(line))
    end = next(ends, len(body))
    text = "\n".join(line.strip() for line in (directive.argument, *body[:end]) if line)
    if text:
        yield Element("text", text)
    yield from directive.blocks(_split_options(body[end:])[1])


def _code(directive: Directive) -> Iterator[Element]:
    options, content = _split_options(directive.body)
    if options.get("caption"):
        yield Element("caption", options["caption"])
    text = textwrap.dedent("\n".join(content)).strip("\n")
    language = next(iter(directive.argument.lower().split()), None)
    if text.strip():
        yield Element("code", text, language=language)


def _raw(directive: Directive) -> Iterable[Element]:
    if directive.argument.lower() != "html":
        return ()
    return parse_fragment("\n".join(_split_options(directive.body)[1]))


def _image(directive: Directive) -> Iterator[Element]:
    alternative = _split_options(directive.body)[0].get("alt", "")
    if len(alternative.split()) >= _ALTERNATIVE_WORDS:
        yield Element("caption", alternative)


def _bodiless(directive: Directive) -> Iterator[Element]:
    if directive.name == "image":
        yield from _image(directive)
    yield from directive.content()


def _figure(directive: Directive) -> Iterator[Element]:
    yield from _image(directive)
    for element in directive.content():
        yield replace(element, kind="caption") if element.kind == "text" else element


def _autosummary(directive: Directive) -> Iterator[Element]:
    listed = [line.strip() for line in _split_options(directive.body)[1] if line.strip()]
    if listed:
        yield Element("list", "\n".join(listed))


def _table(directive: Directive) -> Iterator[Element]:
    """A table inside the directive, whose argument is the caption."""
    caption = directive.argument
    for element in directive.content():
        if caption and element.table:
            table = replace(element.table, caption=caption)
            element = replace(element, table=table, text=f"{caption}\n\n{element.text}")
            caption = ""
        yield element


def _table_of_items(directive: Directive) -> Iterator[Element]:
    options, content = _split_options(directive.body)
    outside = options.get("file") or options.get("url")
    if outside:
        directive.warnings.append(f"a table is in another file and was not read: {outside}")
        return
    build = _list_table if directive.name == "list-table" else _csv_table
    # Rendered: a reader of the page does not see the list marks of the source.
    element = table_element(build(content, options, directive.argument or None))
    if element:
        yield element


def _list_table(lines: Sequence[str], options: Mapping[str, str], caption: str | None) -> Table:
    """A list of lists: `*` starts a row, `-` a cell."""
    rows = [_cells(item) for item in _split(lines, _ROW)]
    heads = _number(options.get("header-rows"))
    return make_table(rows[:heads], rows[heads:], caption)


def _csv_table(lines: Sequence[str], options: Mapping[str, str], caption: str | None) -> Table:
    """Comma-separated rows; the header may be an option."""
    known = {"tab": "\t", "space": " "}
    delimiter = options.get("delim", ",")
    delimiter = known.get(delimiter, delimiter)
    separator = delimiter if len(delimiter) == 1 else ","

    def read(source: Sequence[str]) -> list[list[str]]:
        return list(csv.reader(source, delimiter=separator, skipinitialspace=True))

    rows = read([line for line in lines if line.strip()])
    heads = _number(options.get("header-rows"))
    header = read([options["header"]]) if options.get("header") else []
    return make_table(header + rows[:heads], rows[heads:], caption)


def _split(lines: Sequence[str], mark: re.Pattern[str]) -> list[list[str]]:
    """The items of a list without their marks. Lines before the first mark are dropped."""
    items: list[list[str]] = []
    indent: int | None = None
    for line in lines:
        stripped = line.lstrip()
        depth = len(line) - len(stripped)
        if mark.match(stripped) and (indent is None or depth <= indent):
            indent = depth
            items.append([" " * (depth + 1) + stripped[1:]])
        elif items:
            items[-1].append(line)
    return items


def _cells(row: list[str]) -> list[str]:
    return ["\n".join(cell) for cell in _split(row, _CELL)]


def _number(value: str | None) -> int:
    return int(value) if value and value.strip().isdigit() else 0


_READERS: dict[str, Callable[[Directive], Iterable[Element]]] = {
    **dict.fromkeys(_CODE, _code),
    **dict.fromkeys(_NOTES, _note),
    **dict.fromkeys(_TITLED, _titled),
    **dict.fromkeys(_BODILESS, _bodiless),
    "raw": _raw,
    "figure": _figure,
    "autosummary": _autosummary,
    "table": _table,
    "list-table": _table_of_items,
    "csv-table": _table_of_items,
}
