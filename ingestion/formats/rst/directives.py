"""What a reStructuredText directive holds for a reader.

Knows the names that docutils, Sphinx and its design extensions use, by kind of content rather than
one by one: code, a table, words in a box, a described name, machinery. Does not know how the lines
inside are cut into blocks: its caller hands that in.
"""

from __future__ import annotations

import csv
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ingestion.elements import Element, Table
from ingestion.formats.html import names, parse_fragment
from ingestion.formats.tables import make_table, table_element

_OPTION = re.compile(r"^:([\w-]+):(?:\s+(.*)|$)")
_TEMPLATE = re.compile(r"^\s*\{%.*%\}\s*$")
_ALTERNATIVE_WORDS = 2
_ROW = re.compile(r"^\*(?:\s|$)")
_CELL = re.compile(r"^-(?:\s|$)")

_CODE = names(
    "code code-block sourcecode parsed-literal prompt doctest testcode ipython productionlist"
)
# Words may start on the line of the directive itself.
_NOTES = names(
    "note warning tip important hint caution danger attention error seealso versionadded"
    " versionchanged deprecated epigraph highlights pull-quote compound container only ifconfig"
    " tab-set tabs grid grid-item version-set math todo"
)
_TITLED = names(
    "admonition topic sidebar rubric dropdown card grid-item-card tab-item tab group-tab code-tab"
    " details glossary"
)
# These take no content, so an indented block after them was meant as text.
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

Blocks = Callable[[Sequence[str]], Iterable[Element]]


@dataclass(frozen=True)
class Directive:
    """One directive, its body dedented; `blocks` reads lines as ordinary content."""

    name: str
    argument: str
    body: list[str]
    blocks: Blocks
    warnings: list[str]

    def content(self) -> Iterable[Element]:
        """The elements of its body, without the options."""
        return self.blocks(split_options(self.body)[1])


def read_directive(directive: Directive) -> Iterator[Element]:
    """The elements of a directive; nothing for the machinery of a documentation build."""
    name = directive.name
    if name in _DROPPED:
        return
    reader = _READERS.get(name)
    if reader is None and (name in _DESCRIBED or name.rpartition(":")[2] in _DESCRIBED):
        reader = _described
    if reader is not None:
        yield from reader(directive)
    elif not name.startswith(("doxygen", "auto")):
        # An unknown directive is a container. Templates inside it are the generator's, their words
        # the author's.
        lines = split_options(directive.body)[1]
        yield from directive.blocks([line for line in lines if not _TEMPLATE.match(line)])


def split_options(body: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options at the top of a directive's body, and the rest."""
    options: dict[str, str] = {}
    # What stands between the directive and its options continues the argument, as a long path does.
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
    # Layout directives take numbers or names as their argument ("1 2 2 2", "html"), notes take
    # words.
    if " " not in argument or not re.search(r"[A-Za-z]{2}", argument):
        return directive.content()
    if body and _OPTION.match(body[0]):
        return directive.blocks([argument, "", *split_options(body)[1]])
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
    yield from directive.blocks(split_options(body[end:])[1])


def _code(directive: Directive) -> Iterator[Element]:
    options, content = split_options(directive.body)
    if options.get("caption"):
        yield Element("caption", options["caption"])
    text = textwrap.dedent("\n".join(content)).strip("\n")
    language = next(iter(directive.argument.lower().split()), None)
    if text.strip():
        yield Element("code", text, language=language)


def _raw(directive: Directive) -> Iterable[Element]:
    if directive.argument.lower() != "html":
        return ()
    return parse_fragment("\n".join(split_options(directive.body)[1]))


def _image(directive: Directive) -> Iterator[Element]:
    alternative = split_options(directive.body)[0].get("alt", "")
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
    listed = [line.strip() for line in split_options(directive.body)[1] if line.strip()]
    if listed:
        yield Element("list", "\n".join(listed))


def _table(directive: Directive) -> Iterator[Element]:
    """A caption around a table that is drawn or listed inside."""
    caption = directive.argument
    for element in directive.content():
        if caption and element.table:
            table = replace(element.table, caption=caption)
            element = replace(element, table=table, text=f"{caption}\n\n{element.text}")
            caption = ""
        yield element


def _table_of_items(directive: Directive) -> Iterator[Element]:
    options, content = split_options(directive.body)
    outside = options.get("file") or options.get("url")
    if outside:
        directive.warnings.append(f"a table stands in another file and was not read: {outside}")
        return
    build = list_table if directive.name == "list-table" else csv_table
    # Rendered, not as written: nested list marks are markup that no reader of the page sees.
    element = table_element(build(content, options, directive.argument or None))
    if element:
        yield element


def list_table(lines: Sequence[str], options: Mapping[str, str], caption: str | None) -> Table:
    """A list of lists: `*` starts a row, `-` a cell."""
    rows = [_cells(item) for item in _split(lines, _ROW)]
    heads = _number(options.get("header-rows"))
    return make_table(rows[:heads], rows[heads:], caption)


def csv_table(lines: Sequence[str], options: Mapping[str, str], caption: str | None) -> Table:
    """Comma-separated rows; the header may stand in an option."""
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
