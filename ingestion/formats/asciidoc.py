"""AsciiDoc: blocks in document order, inline macros as the text that a page shows.

Own code, because no library reads real manuals. Of the 161 files of the RISC-V ISA manual, pandoc
3.9 refuses 56 and needs over two minutes for one of 30 kB; asciidoc 10.2 refuses 46 of 114.

Lists, blocks in lists and admonitions become elements in a row: sections need no deeper tree. A
reference to an undefined attribute, a block that is not closed and an unknown macro stay as text.
"""

from __future__ import annotations

import csv
import html
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ingestion.elements import Element, ParsedDocument, make_table, not_included, table_element
from ingestion.formats.html import names, parse_fragment

MAX_DEPTH = 24  # of blocks in blocks
MAX_VALUE = 2_000  # characters of an attribute
MAX_EXPANDED = 4_000_000  # characters that references to attributes add
MAX_SPAN = 64  # columns or rows of a cell
MAX_COLUMNS = 1_000
MAX_CELLS = 200_000  # of a table with cells over several columns or rows

_HEADING = re.compile(r"^(={1,6}|#{1,6})[ \t]+(\S.*?)(?:[ \t]+\1)?$")
_UNDERLINE = re.compile(r"^([=~^+-])\1{3,}$")
_ENTRY = re.compile(r"^:(!?)(\w[\w-]*)(!?):(?:[ \t]+(.*))?$")
_CONDITION = re.compile(r"^(ifdef|ifndef|ifeval|endif)::([^\[]*)\[(.*)\]$")
_STYLE = re.compile(r"^\[(?!\[)(.*)\]$")
_ANCHOR = re.compile(r"^\[\[([^\],]+)(?:,\s*[^\]]*)?\]\]$")
_ID = re.compile(r"^\[[^\]\[]*?#([\w:.-]+)[^\]]*\]$")
_TITLE = re.compile(r"^\.([^\s.].*)$")
_REMARK = re.compile(r"^//(?!//)")
_FENCE = re.compile(r"^(-{4,}|\.{4,}|\+{4,}|={4,}|\*{4,}|_{4,}|/{4,}|--|```|[|,:!]={3,})(\w*)$")
_BLOCK = re.compile(r"^([a-z][\w-]*)::([^\s\[]*)\[(.*)\]$")
_ITEM = re.compile(r"^[ \t]*(\*{1,6}|-|\.{1,6}|\d{1,3}\.|[a-zA-Z]\.|<\d{1,3}>|<\.>)[ \t]+(\S.*)$")
_TERM = re.compile(r"^[ \t]*(\S.*?)(?:::{1,3}|;;)(?:[ \t]+(.*))?$")
_LABEL = re.compile(r"[A-Z][\w ()/-]{0,60}")
_ADMONITIONS = names("NOTE TIP IMPORTANT WARNING CAUTION")
_SOURCES = names("source listing literal")
_EQUATIONS = names("stem latexmath asciimath verse")
_WRAPPERS = names("abstract partintro quote example sidebar")
_UNNUMBERED = names(
    "preface colophon abstract dedication acknowledgments bibliography glossary index partintro"
)
_DROPPED = names("toc bibliography indexterm indexterm2")
# Columns, rows, `+` or `*`, and the style of a cell precede its mark.
_CELL = re.compile(
    r"(?:^|(?<=\s))(?:(\d{1,3})?(?:\.(\d{1,3}))?([+*]))?(?:[<^>]?(?:\.[<^>])?)([adehlmsv])?$"
)
_COLUMN = re.compile(r"^(?:(\d{1,3})\*)?[<^>]?(?:\.[<^>])?(?:\d+%?|~)?([adehlmsv])?$")
_PARTS = re.compile(r"(?:[^,\"]|\"[^\"]*\")+")


def parse_asciidoc(text: str) -> ParsedDocument:
    """Read AsciiDoc. The title is that of the document, else the first heading."""
    reader = _AsciiDoc()
    elements = tuple(reader.read([line.rstrip() for line in text.expandtabs(4).split("\n")]))
    title = reader.title or next((e.text for e in elements if e.kind == "title"), None)
    return ParsedDocument(elements, title=title, warnings=tuple(dict.fromkeys(reader.warnings)))


@dataclass
class _BlockHead:
    """The attribute lines and the title above a block."""

    style: str = ""
    positional: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    options: set[str] = field(default_factory=set)
    title: str = ""

    def add(self, line: str) -> None:
        for number, part in enumerate(_PARTS.findall(line)):
            key, equals, value = part.partition("=")
            if equals and re.fullmatch(r"\s*[\w-]+\s*", key):
                self.named[key.strip()] = value.strip().strip("\"'")
            elif number == 0:
                self.style = re.split(r"[#.%]", part)[0].strip() or self.style
                self.options.update(re.findall(r"%([\w-]+)", part))
            self.positional.append(part.strip())
        stated = f"{self.named.get('options', '')},{self.named.get('opts', '')}"
        self.options.update(re.split(r"[,\s]+", stated))


class _AsciiDoc:
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.title: str | None = None
        self._inline = _InlineText(self.warnings)
        self._attributes = self._inline.attributes
        self._authors = ""
        self._level = 0
        self._counters = [0] * 7
        self._appendix = 0

    def read(self, lines: Sequence[str]) -> Iterator[Element]:
        lines = self._without_authors(lines)
        self._inline.find_titles(lines)
        yield from self._blocks(list(_kept(lines, self.warnings)), 0)

    def _without_authors(self, lines: Sequence[str]) -> Sequence[str]:
        """The lines without those of authors and revision under the title of the document."""
        first = next((n for n, line in enumerate(lines) if line.startswith("= ")), len(lines))
        end = next((n for n in range(first, len(lines)) if not lines[n]), len(lines))
        header = lines[first + 1 : end]
        stated = [line for line in header if not re.match(r":|//|ifn?def|ifeval|endif|incl", line)]
        if not stated or any(line and line[0] not in ":/[ie" for line in lines[:first]):
            return lines
        self._authors = "\n".join(stated)
        return [*lines[: first + 1], *(line for line in header if line not in stated), *lines[end:]]

    def _blocks(self, lines: Sequence[str], depth: int) -> Iterator[Element]:
        """The elements of lines; headings only in the outermost blocks."""
        block, at = _BlockHead(), 0
        while at < len(lines):
            if taken := self._setting(lines, at, block):
                at += taken
                continue
            elements, taken = self._block(lines, at, block, depth)
            yield from elements
            at += taken
            block = _BlockHead()

    def _setting(self, lines: Sequence[str], at: int, block: _BlockHead) -> int:
        """The number of lines of an attribute entry, or of something above a block; else 0."""
        line = lines[at]
        if entry := _ENTRY.match(line):
            value, taken = entry[4] or "", 1
            while value.endswith((" \\", " +")) and at + taken < len(lines):
                value = f"{value[:-2].rstrip()} {lines[at + taken].strip()}"
                taken += 1
            self._inline.define(entry[2], value, unset=bool(entry[1] or entry[3]))
            return taken
        if style := _STYLE.match(line):
            block.add(self._inline.references(style[1]))
        elif (title := _TITLE.match(line)) and not _FENCE.match(line):
            block.title = self._inline.text(title[1])
        else:
            empty = not line or line in ("+", "<<<", "'''", "---", "***")
            return int(empty or bool(_REMARK.match(line) or _ANCHOR.match(line)))
        return 1

    def _block(
        self, lines: Sequence[str], at: int, block: _BlockHead, depth: int
    ) -> tuple[Iterable[Element], int]:
        """The elements of the block that begins at a line, and how many lines it has."""
        if fence := _FENCE.match(lines[at]):
            mark = fence[1]
            end = next((n for n in range(at + 1, len(lines)) if lines[n] == mark), None)
            if end is None:
                self.warnings.append(f"a block {mark} is not closed; its lines were read as text")
                return (), 1
            body = lines[at + 1 : end]
            read = self._table if mark[0] in "|,:!" else self._delimited
            if fence[2]:
                block.named.setdefault("language", fence[2])
            return read(mark, body, block, depth), end - at + 1
        if heading := _heading(lines, at):
            level, text, taken = heading
            if depth == 0:
                return self._title(level, text, block), taken
            return _words(self._inline.text(text)), taken
        if macro := _BLOCK.match(lines[at]):
            return self._macro(macro, block), 1
        if _starts_item(lines[at]):
            return self._list(lines, at, block)
        return self._paragraph(lines, at, block)

    # -- sections

    def _title(self, level: int, text: str, block: _BlockHead) -> Iterator[Element]:
        shift = self._attributes.get("leveloffset", "").replace("+", "")
        level = min(max(level + (int(shift) if re.fullmatch(r"-?\d", shift) else 0), 1), 6)
        shown = " ".join(self._inline.text(text, plain=True).split())
        if block.style in ("discrete", "float"):
            if level <= self._level:  # it would close the section around it
                yield from _words(shown)
                return
        else:
            shown = self._numbered(level - 1, shown, block.style)
            self._level = level
            self.title = self.title or (shown if level == 1 else None)
        if shown:
            yield Element("title", shown, level=level)
        if level == 1 and self._authors:
            yield from _words(self._authors)
            self._authors = ""

    def _numbered(self, depth: int, text: str, style: str) -> str:
        """The heading with its number, if the document numbers its sections."""
        if style == "appendix":
            self._appendix += 1
            self._counters = [0] * 7
            letter = chr(64 + min(self._appendix, 26))
            return f"{self._attributes.get('appendix-caption', 'Appendix')} {letter}: {text}"
        if depth == 1:
            self._appendix = 0
        limit = self._attributes.get("sectnumlevels", "3")
        numbered = not {"sectnums", "numbered"}.isdisjoint(self._attributes)
        deepest = int(limit) if limit.isdigit() else 3
        if not numbered or not 0 < depth <= deepest or style in _UNNUMBERED:
            return text
        self._counters[depth] += 1
        self._counters[depth + 1 :] = [0] * (6 - depth)
        parts = list(map(str, self._counters[1 : depth + 1]))
        if self._appendix:
            parts[0] = chr(64 + min(self._appendix, 26))
        return f"{'.'.join(parts)}. {text}"

    # -- delimited blocks

    def _delimited(
        self, mark: str, body: Sequence[str], block: _BlockHead, depth: int
    ) -> Iterator[Element]:
        style, text = block.style, "\n".join(body).strip("\n")
        if mark[0] == "/" or style == "comment":
            return
        if style in _ADMONITIONS:
            yield from self._noted(list(self._inner(body, depth)), block)
        elif style in _EQUATIONS:
            yield from (*_caption(block), *_words(text))
        elif mark[0] == "+" and style not in _SOURCES:
            yield from parse_fragment(text)
        elif (mark == "--" and (not style or style in _WRAPPERS)) or (
            mark[0] in "=*_" and style not in _SOURCES
        ):
            yield from (*_caption(block), *self._inner(body, depth))
        else:
            yield from self._code(text, block)

    def _noted(self, elements: list[Element], block: _BlockHead) -> list[Element]:
        """An admonition, which begins with its label."""
        label = f"{block.style}: {block.title}".rstrip(": ") + ":"
        if elements and elements[0].kind == "text":
            return [Element("text", f"{label} {elements[0].text}"), *elements[1:]]
        return [Element("text", label), *elements] if elements else []

    def _inner(self, body: Sequence[str], depth: int) -> Iterable[Element]:
        if depth >= MAX_DEPTH:
            return _words("\n".join(body).strip())
        return self._blocks(body, depth + 1)

    def _code(self, text: str, block: _BlockHead) -> Iterator[Element]:
        """Code under its title. A drawn encoding becomes a table of its fields."""
        style = block.style
        if style in _ENCODINGS and (fields := _ENCODINGS[style](text)):
            bits, shown = zip(*fields, strict=True)
            table = table_element(make_table([bits], [shown], block.title))
            yield from [table] if table else []
            return
        yield from _caption(block)
        language = block.named.get("language", "")
        if style == "source":
            language = block.positional[1] if len(block.positional) > 1 else language
            language = language or self._attributes.get("source-language", "")
        elif style not in _SOURCES:
            language = style or language
        if "attributes" in block.named.get("subs", ""):
            text = self._inline.references(text)
        if text.strip():
            yield Element("code", text, language=language.partition("=")[0].lower() or None)

    def _macro(self, macro: re.Match[str], block: _BlockHead) -> Iterator[Element]:
        name, target, inside = macro[1], self._inline.references(macro[2]), macro[3]
        if name == "include":
            self.warnings.append(not_included(f"include::{target}[]"))
        elif name in ("image", "video", "audio"):
            alternative = re.split(r",\s*(?:[\w-]+=|\d)", inside)[0].strip('" ')
            shown = block.title or self._inline.text(alternative)
            if block.title or len(shown.split()) > 1:
                yield Element("caption", shown)
        elif name in _EQUATIONS:
            yield from _words(inside)
        elif name not in _DROPPED:
            yield from _words(self._inline.text(macro[0]))

    # -- paragraphs and lists

    def _paragraph(
        self, lines: Sequence[str], at: int, block: _BlockHead
    ) -> tuple[Iterable[Element], int]:
        end = next((n for n in range(at + 1, len(lines)) if _is_end(lines[n])), len(lines))
        kept = [line for line in lines[at:end] if not _REMARK.match(line)]
        text, style = "\n".join(kept), block.style
        indented = lines[at].startswith(" ") and style not in ("normal", *_ADMONITIONS)
        if style in _SOURCES or style in _ENCODINGS or indented:
            return self._code(textwrap.dedent(text), block), end - at
        elements = _words(self._inline.text(text))
        if style in _ADMONITIONS:
            return self._noted(elements, block), end - at
        return [*_words(block.title), *elements], end - at

    def _list(
        self, lines: Sequence[str], at: int, block: _BlockHead
    ) -> tuple[Iterable[Element], int]:
        """The items of a list up to a block of another kind: code and tables of an item follow."""
        elements, start = _words(block.title), at
        run: list[str] = []
        marks: list[str] = []  # of the item and those around it
        counts: list[int] = []
        while at < len(lines) and _starts_item(lines[at]):
            item, term = _ITEM.match(lines[at]), _TERM.match(lines[at])
            first = item[2] if item else (term[2] or "" if term else "")
            at, body = _item_lines(lines, at + 1, first)
            text = self._inline.text("\n".join(body))
            if item:
                mark = "1." if item[1][0].isdigit() else item[1]
                depth = marks.index(mark) if mark in marks else len(marks)
                marks, counts = [*marks[:depth], mark], [*counts[: depth + 1], 0][: depth + 1]
                counts[depth] += 1
                shown = {".": f"{counts[depth]}.", "*": "-"}.get(mark[0], item[1])
                run.append(f"{'  ' * depth}{shown} {' '.join(text.split())}")
            elif term:
                name = self._inline.text(term[1])
                # Behind a label ("Description"), under a name.
                joint = ": " if _LABEL.fullmatch(name) else "\n"
                elements += [*_list_of(run), *_words(f"{name}{joint}{text}".strip(" \n"))]
                run, marks, counts = [], [], []
            ahead = next((n for n in range(at, len(lines)) if lines[n]), None)
            at = at if ahead is None or not _starts_item(lines[ahead]) else ahead
        return [*elements, *_list_of(run)], at - start

    # -- tables

    def _table(
        self, mark: str, body: Sequence[str], block: _BlockHead, depth: int
    ) -> Iterator[Element]:
        styles = _columns(block.named.get("cols", ""))
        separator = block.named.get("separator", mark[0])
        separator = {"csv": ",", "dsv": ":", "tsv": "\t"}.get(
            block.named.get("format", ""), separator
        )
        if separator in ",:\t;":
            csv.field_size_limit(max(csv.field_size_limit(), sum(map(len, body)) + len(body)))
            rows = list(csv.reader(filter(None, body), delimiter=separator))
            rows = [[self._inline.text(cell) for cell in row] for row in rows]
        else:
            cells, first = _cells(body, separator)
            styles = styles or [""] * min(max(first, 1), MAX_COLUMNS)
            rows = self._rows(cells, styles, depth)
        # Without options, the first row is the header if it is one line with an empty one after it.
        one_line = len(body) > 2 and bool(body[0].strip()) and not body[1].strip()
        whole = body[0].count(separator) >= max(len(styles), 1) if one_line else False
        heads = "header" in block.options or ("noheader" not in block.options and whole)
        table = table_element(make_table(rows[:heads], rows[heads:], block.title or None))
        yield from [table] if table else []

    def _rows(
        self, cells: Iterable[_TableCell], styles: Sequence[str], depth: int
    ) -> list[list[str]]:
        """Cells in rows. A cell over several rows repeats in each; over several columns it is in
        the first, and the others are empty."""
        grid: dict[tuple[int, int], str] = {}
        row = column = 0
        for cell in cells:
            while (row, column) in grid or column >= len(styles):
                row, column = (row, column + 1) if column < len(styles) else (row + 1, 0)
            if (cell.style or styles[column]) == "a":
                inner = self._inner(cell.text.split("\n"), depth)
                shown = "\n".join(element.text for element in inner)
            else:
                shown = self._inline.text(cell.text)
            spans = len(grid) < MAX_CELLS
            for down in range(cell.down if spans else 1):
                for across in range(min(cell.across if spans else 1, len(styles) - column)):
                    grid[row + down, column + across] = "" if across else shown
        last = max((place[0] for place in grid), default=-1)
        return [[grid.get((n, c), "") for c in range(len(styles))] for n in range(last + 1)]


@dataclass(frozen=True)
class _TableCell:
    text: str
    across: int
    down: int
    style: str


def _columns(stated: str) -> list[str]:
    """The style letter of each column."""
    if stated.isdigit():
        return [""] * min(int(stated), MAX_COLUMNS)
    styles: list[str] = []
    for part in re.split(r"[,;]", stated) if stated else ():
        match = _COLUMN.match(re.sub(r"\s+", "", part))
        styles += [match[2] or ""] * int(match[1] or 1) if match else [""]
    return styles[:MAX_COLUMNS]


def _cells(body: Sequence[str], separator: str) -> tuple[list[_TableCell], int]:
    """The cells of a table, and how many the first line has."""
    text = "\n".join(line for line in body if not _REMARK.match(line))
    pieces = re.split(rf"(?<!\\){re.escape(separator)}", text)
    first = next((n for n, piece in enumerate(pieces[1:], 1) if "\n" in piece), len(pieces) - 1)
    spec = _CELL.search(pieces[0].strip())
    cells: list[_TableCell] = []
    width = 0
    for number, piece in enumerate(pieces[1:], 1):
        across, down = (min(max(int(spec[n] or 1), 1), MAX_SPAN) if spec else 1 for n in (1, 2))
        times, style = (across if spec and spec[3] == "*" else 1), (spec[4] or "" if spec else "")
        spec = _CELL.search(piece) if number < len(pieces) - 1 else None
        text = (piece[: spec.start()] if spec else piece).strip()
        text = text.replace(f"\\{separator}", separator)
        cells += [_TableCell(text, 1 if times > 1 else across, down, style)] * times
        width += across if number <= first else 0
    return cells, width


# -- lines


def _heading(lines: Sequence[str], at: int) -> tuple[int, str, int] | None:
    """The level, text and number of lines of a heading with marks or an underline."""
    if match := _HEADING.match(lines[at]):
        return len(match[1]), match[2], 1
    under = lines[at + 1] if at + 1 < len(lines) else ""
    mark = _UNDERLINE.match(under)
    if mark and abs(len(under) - len(lines[at])) <= 2 and any(c.isalnum() for c in lines[at]):
        return "=-~^+".index(mark[1]) + 1, lines[at], 2
    return None


def _starts_item(line: str) -> bool:
    if _ITEM.match(line):
        return True
    return ("::" in line or ";;" in line) and bool(_TERM.match(line)) and not _BLOCK.match(line)


def _is_end(line: str) -> bool:
    """Whether a line ends the paragraph before it."""
    return not line or line == "+" or any(p.match(line) for p in (_FENCE, _STYLE, _ANCHOR))


def _item_lines(lines: Sequence[str], at: int, first: str) -> tuple[int, list[str]]:
    """The line after an item, and the lines of its text; those of a term may follow a gap."""
    body = [first] if first else []
    start = at
    if not first and at + 1 < len(lines) and not lines[at]:
        at += 1
    if not first and at < len(lines):
        other = any(p.match(lines[at]) for p in (_HEADING, _TITLE, _BLOCK, _ENTRY))
        at = start if other or _is_end(lines[at]) or _starts_item(lines[at]) else at
    while at < len(lines) and not _is_end(lines[at]) and not _starts_item(lines[at]):
        body += [] if _REMARK.match(lines[at]) else [lines[at].strip()]
        at += 1
    return at, body


def _words(text: str) -> list[Element]:
    return [Element("text", text)] if any(c.isalnum() for c in text) else []


def _caption(block: _BlockHead) -> list[Element]:
    return [Element("caption", block.title)] if block.title else []


def _list_of(run: Sequence[str]) -> list[Element]:
    return [Element("list", "\n".join(run))] if run else []


def _kept(lines: Sequence[str], warnings: list[str]) -> Iterator[str]:
    """The lines under conditions (`ifdef`, `ifndef`, `ifeval`) that hold."""
    attributes: dict[str, str] = {}
    holding: list[bool] = []
    left_out = 0
    for line in lines:
        condition = _CONDITION.match(line) if "::" in line else None
        if condition and condition[1] == "endif":
            holding = holding[:-1]
        elif condition and (condition[1] == "ifeval" or not condition[3]):
            holding = [*holding, _holds(condition, attributes)]
        elif not all(holding) or (condition and not _holds(condition, attributes)):
            left_out += bool(line)
        else:
            line = condition[3] if condition else line
            if entry := _ENTRY.match(line):
                attributes[entry[2].lower()] = entry[4] or ""
                if entry[1] or entry[3]:
                    del attributes[entry[2].lower()]
            yield line
    if left_out:
        warnings.append(f"{left_out} lines under a condition that does not hold were left out")


def _holds(condition: re.Match[str], attributes: dict[str, str]) -> bool:
    """Whether attributes are set, or two texts are equal; other comparisons hold, so that nothing
    is lost."""
    if condition[1] != "ifeval":
        found = [name.strip().lower() in attributes for name in re.split(r"[,+]", condition[2])]
        return (all if "+" in condition[2] else any)(found) == (condition[1] == "ifdef")
    sides = re.fullmatch(r"\s*(.+?)\s*(==|!=)\s*(.+?)\s*", condition[3])
    if sides is None:
        return True

    def value(side: str) -> str:
        return _REFERENCE.sub(lambda m: attributes.get(m[1].lower(), ""), side).strip("\"' ")

    return (value(sides[1]) == value(sides[3])) == (sides[2] == "==")


# -- encodings that are drawn

_FIELD = re.compile(r"\{[^{}]{0,400}\}")
_BITS = re.compile(r"\bbits['\"]?\s*:\s*(\d{1,4})")
_NAME = re.compile(r"\bname['\"]?\s*:\s*(?:['\"]([^'\"]*)['\"]|([\w.]+))")
_QUOTED = re.compile(r"['\"]([^'\"]*)['\"]")
_BOX = re.compile(
    r"\(draw-box\s+(\"[^\"]*\"|\([^()]*\"[^\"]*\"[^()]*\)|\S+)\s*(\{[^{}]*\}|\[[^\]]*\])?"
)


def _wavedrom(text: str) -> list[tuple[str, str]]:
    """Bits and name of each field of a register, from the most significant bits down."""
    fields: list[tuple[str, str]] = []
    low = 0
    for drawn in _FIELD.findall(text):
        if bits := _BITS.search(drawn):
            high = low + int(bits[1]) - 1
            name = _NAME.search(drawn)
            words = [(name[1] or name[2] or "") if name else ""]
            words += _QUOTED.findall(drawn.partition("attr")[2])
            shown = " ".join(filter(None, words))
            fields.append((f"{high}:{low}" if high > low else str(low), shown))
            low = high + 1
    return fields[::-1]


def _bytefield(text: str) -> list[tuple[str, str]]:
    """Columns and text of each box of a diagram."""
    boxes: list[tuple[str, str]] = []
    column = 0
    for box in _BOX.finditer(text):
        span = re.search(r":span\s+(\d{1,3})", box[2] or "")
        last = column + (int(span[1]) if span else 1) - 1
        words = re.findall(r"\"([^\"]*)\"", box[1]) or [box[1]]
        boxes.append((f"{column}-{last}" if last > column else str(column), " ".join(words)))
        column = last + 1
    return boxes


_ENCODINGS = {"wavedrom": _wavedrom, "bytefield": _bytefield}


# -- text in a line

_CHARACTERS = {
    **dict.fromkeys(("empty", "blank", "zwsp", "wj"), ""),
    **dict.fromkeys(("sp", "nbsp"), " "),
    **dict.fromkeys(("quot", "ldquo", "rdquo"), '"'),
    **dict.fromkeys(("apos", "lsquo", "rsquo"), "'"),
    **dict(zip(("amp", "lt", "gt", "plus", "asterisk", "vbar"), "&<>+*|", strict=True)),
    **dict(zip(("caret", "tilde", "startsb", "endsb", "backslash"), "^~[]\\", strict=True)),
    **dict(zip(("backtick", "deg", "ge", "le"), "`°≥≤", strict=True)),
    **dict(zip(("two-colons", "two-semicolons", "cpp"), ("::", ";;", "C++"), strict=True)),
}
_REFERENCE = re.compile(r"(?<!\\)\{(\w[\w-]*)\}")
_LITERAL = re.compile(
    r"`\+(.{1,500}?)\+`|\+\+\+(.{1,500}?)\+\+\+|\+\+(.{1,500}?)\+\+"
    r"|(?<![\w+])\+(\S|\S.{0,500}?\S)\+(?![\w+])|pass:[a-z,]*\[(.{0,500}?)\]"
    r"|(?:stem|latexmath|asciimath):\[((?:[^\]\\]|\\.){0,500})\]",
    re.S,
)
_MACRO = re.compile(
    r"(?<![a-zA-Z0-9\\])([a-z][a-z0-9_-]{1,20}):{1,2}([^\s\[\]`,;()]{0,200})\[((?:[^\]\\]|\\.){0,400})\]"
)
_URL = re.compile(
    r"(?<![\w\"])(?:link:)?((?:https?|ftp|mailto)://?[^\s\[\]<>]{1,400})\[([^\]]{0,400})\]"
)
_XREF = re.compile(r"<<([^<>,]{1,200})(?:,\s*([^<>]{1,300}))?>>")
_SPANS = tuple(
    re.compile(pattern, re.S)
    for pattern in (
        r"(?:\[[^\[\]\n]{0,120}\])?##([^#]{1,2000}?)##",
        r"\[[^\[\]\n]{1,120}\]#([^#]{1,2000}?)#(?!\w)",
        r"(?<![\w#&])#([^\s#](?:[^#]{0,400}?[^\s#])?)#(?![\w#])",
        r"\*\*([^*]{1,400}?)\*\*",
        r"(?<![\w*\\])\*([^\s*](?:[^*]{0,400}?[^\s*])?)\*(?![\w*])",
        r"(?<!_)__([^_]{1,400}?)__(?!_)",
        r"(?<![\w_\\`])_([^\s_](?:[^_]{0,400}?[^\s_])?)_(?![\w_])",
    )
)
_DROPPED_TEXT = re.compile(
    r"\[\[[^\[\]]{1,200}\]\]|\(\(\([^()]{1,200}\)\)\)|\[#[^\[\]\s]{1,100}\](?=\s|$)"
)
_INDEXED = re.compile(r"\(\(([^()]{1,200})\)\)")


class _InlineText:
    """The text of a document with its attributes and references."""

    def __init__(self, warnings: list[str]) -> None:
        self.attributes: dict[str, str] = {}
        self._warnings = warnings
        self._titles: dict[str, str] = {}
        self._expanded = 0

    def define(self, name: str, value: str, unset: bool) -> None:
        name = name.lower()
        if unset:
            self.attributes.pop(name, None)
            return
        value = self.references(value)
        if len(value) > MAX_VALUE:
            self._warnings.append(f"the attribute {name} is cut at {MAX_VALUE:,} characters")
        self.attributes[name] = value[:MAX_VALUE]

    def find_titles(self, lines: Sequence[str]) -> None:
        """Note the heading or block title under each anchor."""
        waiting: list[str] = []
        for line in lines:
            if anchor := _ANCHOR.match(line) or _ID.match(line):
                waiting.append(anchor[1])
                continue
            title = _HEADING.match(line)
            shown = title[2] if title else line[1:] if _TITLE.match(line) else ""
            if shown:
                self._titles.update(dict.fromkeys(waiting, shown))
                if title:
                    auto = re.sub(r"[ .-]+", "_", re.sub(r"[^\w .-]", "", shown.lower()))
                    self._titles.setdefault(f"_{auto}", shown)
            if line and not _STYLE.match(line):
                waiting = []

    def references(self, text: str) -> str:
        """The text with the values of attributes; unknown ones stay."""
        if "{" not in text:
            return text
        shown = _REFERENCE.sub(self._value, text)
        self._expanded += max(len(shown) - len(text), 0)
        if self._expanded > MAX_EXPANDED:
            self._warnings.append(
                f"attributes add more than {MAX_EXPANDED:,} characters; further ones stay by name"
            )
            return text
        return shown

    def _value(self, match: re.Match[str]) -> str:
        name = match[1].lower()
        return self.attributes.get(name, _CHARACTERS.get(name, match[0]))

    def text(self, text: str, plain: bool = False) -> str:
        """The text as a page shows it, with code in backticks, `plain` without."""
        kept: list[str] = []

        def keep(match: re.Match[str]) -> str:
            number = match.lastindex or 1
            value = match[number] or ""
            kept.append(f"`{value}`" if number == 1 else f"${value}$" if number == 6 else value)
            return f"\x00{len(kept) - 1}\x00"

        text = re.sub(r"([\"'])`(?=\S)(.{1,400}?\S|\S)`\1", r"\1\2\1", text)
        text = _LITERAL.sub(keep, re.sub(r"[ \t]\+$", "", text, flags=re.M))
        text = self.references(text)
        text = _URL.sub(lambda m: m[2].partition(",")[0].strip('"^') or m[1], text)
        text = _MACRO.sub(self._macro, text)
        text = _XREF.sub(lambda m: m[2] or self._title_of(m[1]), text)
        for span in _SPANS:
            text = span.sub(r"\1", text)
        text = _INDEXED.sub(r"\1", _DROPPED_TEXT.sub("", text))
        text = re.sub(r"\^([^\s^]{1,60})\^", r"^\1", re.sub(r"~([^\s~]{1,60})~", r"_\1", text))
        text = re.sub(r"``([^`]{1,400})``", r"`\1`", text)
        text = re.sub(r"\\(?=[*_`#{<\[\\^~:]|[a-z]+:)", "", text)
        text = re.sub(r"\x00(\d+)\x00", lambda m: kept[int(m[1])], html.unescape(text))
        text = "\n".join(" ".join(line.split()) for line in text.split("\n")).strip()
        return text.replace("`", "") if plain else text

    def _title_of(self, target: str) -> str:
        """The words for a reference: the title of its target, else its id."""
        anchor = target.rpartition("#")[2] or target
        title = self._titles.get(anchor)
        if title is None:
            return anchor
        shown = _XREF.sub("", _MACRO.sub(lambda m: m[2] or m[3], self.references(title)))
        return shown.replace("`", "")

    def _macro(self, match: re.Match[str]) -> str:
        name, target, inside = match[1], match[2], match[3].replace("\\]", "]").strip()
        if name in ("xref", "link"):
            return inside.strip('"') or self._title_of(target)
        if name in ("footnote", "footnoteref"):
            return f" ({inside})" if inside else ""
        if name in ("anchor", "indexterm", "index", "icon"):
            return ""
        if name in ("kbd", "btn", "menu", "indexterm2", "image", "cite"):
            shown = " > ".join(filter(None, (target, inside)))
            return f"[{shown}]" if name == "cite" else inside or target
        if not target or re.fullmatch(r"[-+]?[\d.,_]+", target):
            return f"{target} {inside}".strip()  # qty:2[KiB]
        # A macro of the document's own tools, such as insn:vadd.vv[vd,vs2,vs1]
        return f"`{target} {inside}`".replace(" `", "`") if inside else f"`{target}`"
