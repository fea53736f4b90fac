"""LaTeX and manual pages (roff with the macros `man` or `mdoc`), with pandoc as their parser.

pandoc expands macros and reads tables; its HTML goes through the reader of HTML. It runs without
access to files, within limits on memory and time. It reads a file whole or not at all: a LaTeX
file that it refuses is read in pieces, and a piece that it refuses as plain text, with a warning.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ingestion.elements import Element, ParsedDocument, make_table, not_included, table_element
from ingestion.formats.html import parse_html
from ingestion.formats.text import parse_text
from kb.errors import ParseFailed, UnsupportedFormat

SECONDS = 200  # for all runs over one file
HEAP_MIB = 1_500
NUMBERED_LEVELS = 3  # LaTeX numbers chapters, sections and subsections; without chapters, one more

_FILTER = Path(__file__).with_name("pandoc.lua")
_TEMPLATE = (
    "<html><head><title>$pagetitle$$if(section)$($section$)$endif$</title></head><body>\n"
    "$if(abstract)$<h1>Abstract</h1>\n$abstract$$endif$\n$body$</body></html>\n"
)
_COMMENT = re.compile(r"(?<!\\)%[^\n]*")
_VERBATIM = re.compile(
    r"\\begin\{(verbatim\*?|lstlisting|minted|Verbatim|comment)\}.*?\\end\{\1\}", re.S
)
_INPUT = re.compile(
    r"\\(?:input|include|subfile|lstinputlisting|verbatiminput)\b\s*(?:\[[^\]]*\])?\s*\{([^{}#\\]+)\}"
    r"|\\(?:sub)?import\*?\s*\{([^{}#\\]*)\}\s*\{([^{}#\\]+)\}"
)
_PIECE = re.compile(r"^[ \t]*\\(?:part|chapter|section|subsection)\b", re.M)
_BYTEFIELD = re.compile(r"\\begin\{bytefield\}.*?\\end\{bytefield\}", re.S)
_BITBOX = re.compile(
    r"\\bitbox(?:\[[^\]]*\])?\*?\{(\d{1,4})\}(?:\[[^\]]*\])?\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_INCLUDED_PAGE = re.compile(r"^\.so[ \t]+(\S+)", re.M)
_CONVERT = "Upload the manual as PDF or HTML."


def parse_latex(text: str) -> ParsedDocument:
    """Read LaTeX. Sections of a whole document have the numbers that LaTeX gives them."""
    plain = _COMMENT.sub("", _VERBATIM.sub("", text))
    missing = (match[1] or f"{match[2]}{match[3]}" for match in _INPUT.finditer(plain))
    names = dict.fromkeys(name.strip() for name in missing)
    warnings = [not_included(f"\\input{{{name}}}") for name in names]
    levels = NUMBERED_LEVELS if "\\documentclass" in plain else 0
    pandoc = _Pandoc("latex+raw_tex", levels)
    document = _Latex(pandoc, _BYTEFIELD.sub(_bit_table, text)).read()
    return replace(document, warnings=(*warnings, *document.warnings))


def parse_roff(text: str) -> ParsedDocument:
    """Read a manual page. Its sections are under its name, as in `ls(1)`."""
    text = re.sub(r"\\\n", "", text)  # a line that continues
    is_mdoc = re.search(r"^\.Dd\b|^\.Sh\b", text, re.M) is not None
    document = _Pandoc("mdoc" if is_mdoc else "man", 0).read(text)
    warnings = [not_included(f".so {name}") for name in _INCLUDED_PAGE.findall(text)]
    elements = [_below_title(element) for element in document.elements]
    if document.title:
        elements.insert(0, Element("title", document.title, level=1))
    return replace(document, elements=tuple(elements), warnings=tuple(warnings))


def _below_title(element: Element) -> Element:
    """The element under the page's title. `tbl` marks no header: it is a table's first row."""
    if element.level is not None:
        return replace(element, level=min(element.level + 1, 6))
    table = element.table
    if table is None or table.header or len(table.rows) < 2:
        return element
    return table_element(make_table(table.rows[:1], table.rows[1:], table.caption)) or element


class _Refused(Exception):
    """pandoc cannot read a text."""


@dataclass
class _Pandoc:
    """Runs pandoc on texts of one file. `levels` is the number of levels of numbered headings."""

    format: str
    levels: int

    def __post_init__(self) -> None:
        self._program = _program()
        self._end = time.monotonic() + SECONDS

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self._end

    def read(self, text: str) -> ParsedDocument:
        """The document of a text. Raises ParseFailed."""
        try:
            return self.converted(text)
        except _Refused as error:
            raise ParseFailed(f"pandoc cannot read this file: {error}", hint=_CONVERT) from error

    def converted(self, text: str) -> ParsedDocument:
        """The document of a text. Raises _Refused."""
        with tempfile.TemporaryDirectory(prefix="kernlore-") as folder:
            template = Path(folder, "page.html")
            template.write_text(_TEMPLATE, encoding="utf-8")
            command = [self._program, "+RTS", f"-M{HEAP_MIB}m", "-RTS", "--sandbox", "--quiet"]
            command += ["--from", self.format, "--to", "html", "--syntax-highlighting=none"]
            command += ["--wrap=none", "--template", str(template), "--lua-filter", str(_FILTER)]
            try:
                done = subprocess.run(
                    command,
                    input=text.encode("utf-8", "replace"),
                    capture_output=True,
                    timeout=max(self._end - time.monotonic(), 0.1),
                    env={**os.environ, "KERNLORE_NUMBERED": str(self.levels), "LC_ALL": "C.UTF-8"},
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise _Refused(f"it took more than {SECONDS} s") from error
        if done.returncode:
            log = done.stderr.decode("utf-8", "replace").split()
            raise _Refused(" ".join(log)[:200] or f"it ended with status {done.returncode}")
        page = done.stdout.decode("utf-8", "replace")
        document = parse_html(page)
        stated = html.unescape(page.partition("<title>")[2].partition("</title>")[0]).strip()
        if stated in ("", "-"):  # pandoc's sign for none
            return document
        return replace(document, title=stated)


def _program() -> str:
    try:
        import pypandoc

        return str(pypandoc.get_pandoc_path())
    except (ImportError, OSError) as error:
        raise UnsupportedFormat(
            "reading LaTeX and manual pages needs the program pandoc, which is not installed",
            hint="Install pypandoc_binary, which contains it: pip install 'kernlore[pandoc]'."
            f" Or: {_CONVERT}",
        ) from error


# -- LaTeX


class _Latex:
    """A LaTeX file, whole or in pieces."""

    def __init__(self, pandoc: _Pandoc, text: str) -> None:
        self._pandoc = pandoc
        self._text = text
        self._warnings: list[str] = []

    def read(self) -> ParsedDocument:
        before, begin, body = self._text.partition("\\begin{document}")
        try:
            document = self._pandoc.converted(self._text)
            return replace(document, title=self._title(before) or document.title)
        except _Refused as error:
            self._warnings.append(f"pandoc cannot read the whole file ({error}): read in pieces")
        if not begin:
            before, body = "", before
        body = body.partition("\\end{document}")[0]
        self._pandoc.levels = 0  # a piece does not know its number
        preamble = self._preamble(before)
        starts = [0, *(match.start() for match in _PIECE.finditer(body)), len(body)]
        pieces = [body[a:b] for a, b in pairwise(starts) if body[a:b].strip()]
        elements = tuple(self._elements(preamble, pieces))
        return ParsedDocument(elements, self._title(before), warnings=tuple(self._warnings))

    def _preamble(self, text: str) -> str:
        """The macros before the document, if pandoc can read them."""
        try:
            self._pandoc.converted(f"{text}\n\\begin{{document}}x\\end{{document}}")
        except _Refused as error:
            if text.strip():
                self._warnings.append(f"macros before the document were not read: {error}")
            return ""
        return text

    def _elements(self, preamble: str, pieces: Sequence[str]) -> Iterator[Element]:
        """The elements of pieces: together, else of each half."""
        if not pieces:
            return
        text = "".join(pieces)
        whole = f"{preamble}\n\\begin{{document}}\n{text}\n\\end{{document}}" if preamble else text
        try:
            if self._pandoc.is_late:
                raise _Refused("no time is left")
            yield from self._pandoc.converted(whole).elements
        except _Refused as error:
            if len(pieces) == 1 and not self._pandoc.is_late:
                pieces = list(_paragraphs(text))
            if len(pieces) > 1 and not self._pandoc.is_late:
                middle = len(pieces) // 2
                yield from self._elements(preamble, pieces[:middle])
                yield from self._elements(preamble, pieces[middle:])
                return
            first = text.strip().partition("\n")[0][:80]
            self._warnings.append(f"read as plain text: the part that begins {first!r} ({error})")
            yield from _as_plain(text)

    def _title(self, before: str) -> str | None:
        match = re.search(r"\\title\{((?:[^{}]|\{[^{}]*\})*)\}", before)
        return " ".join(re.sub(r"\\[a-zA-Z]+|[{}\\]", " ", match[1]).split()) if match else None


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a piece; environments stay whole."""
    depth, lines = 0, list[str]()
    for line in text.splitlines(keepends=True):
        lines.append(line)
        depth += line.count("\\begin{") - line.count("\\end{")
        if depth <= 0 and not line.strip():
            yield "".join(lines)
            lines = []
    if lines:
        yield "".join(lines)


def _as_plain(text: str) -> Iterator[Element]:
    """A piece as plain text, its own headings as titles."""
    levels = {"part": 1, "chapter": 1, "section": 2, "subsection": 3}
    heading = re.match(
        r"\s*\\(part|chapter|section|subsection)\*?(?:\[[^\]]*\])?\{([^\n]*)\}", text
    )
    if heading:
        shown = re.sub(r"\\[a-zA-Z]+\*?|[{}]", " ", heading[2])
        yield Element("title", " ".join(shown.split()), level=levels[heading[1]])
        text = text[heading.end() :]
    for element in parse_text(_COMMENT.sub("", text)).elements:
        yield replace(element, kind="text", level=None) if element.kind == "title" else element


def _bit_table(match: re.Match[str]) -> str:
    """A bytefield as a table: bits above names, each row with its own."""
    tables = []
    for row in match[0].split("\\\\"):
        boxes = _BITBOX.findall(row)
        at, bits = 0, []
        for width, _ in boxes:
            last = at + int(width) - 1
            bits.append(f"{at}-{last}" if last > at else str(at))
            at = last + 1
        if boxes:
            names = [name for _, name in boxes]
            head, line = " & ".join(bits), " & ".join(names)
            columns = "l" * len(boxes)
            tables.append(
                f"\\begin{{tabular}}{{{columns}}}\\hline {head} \\\\ \\hline {line} \\\\"
                "\\end{tabular}"
            )
    return "\n\n" + "\n\n".join(tables) + "\n\n" if tables else match[0]
