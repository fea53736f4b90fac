"""Files and requests that are small to send and large to read, one at a time, while clients ask.

For each: whether it was read, refused or failed and with which message, after how many seconds, the
highest memory of the service and of its parsers, and the 99th percentile of the clients' answers
beside it over that of the quiet time just before and after. Linux only.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import random
import re
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from benchmarks.processes import descendants
from benchmarks.report import ended, say, table, write_result
from benchmarks.service import Service, memory_of, service_at, wait_until_ready

TITLE = "Small files that become large, while clients ask"
MILLION = 1_000_000
READ_SECONDS = 420.0  # the limit of a parser, and time to store what it read
Made = Callable[[], bytes]


# -- containers


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    """A ZIP archive of these members."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target.getvalue()


def nested_zips(depth: int) -> bytes:
    """A ZIP archive of 16 copies of another, and so on, down to a megabyte of zeros."""
    data = zipped({"zeros.txt": bytes(1 << 20)})
    for _ in range(depth):
        data = zipped({f"{n}.zip": data for n in range(16)})
    return data


def overlapping(entries: int) -> bytes:
    """A ZIP archive whose entries all name the same 16 MiB."""
    target = io.BytesIO(zipped({"0.txt": bytes(16 << 20)}))
    with zipfile.ZipFile(target, "a") as archive:
        first = archive.getinfo("0.txt")
        for n in range(1, entries):
            other = zipfile.ZipInfo(f"{n:05}.txt")
            for name in ("compress_type", "CRC", "compress_size", "file_size", "header_offset"):
                setattr(other, name, getattr(first, name))
            archive.filelist.append(other)
            archive.NameToInfo[other.filename] = other
        archive._didModify = True  # type: ignore[attr-defined]
    return target.getvalue()


_TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OOXML = "application/vnd.openxmlformats-officedocument"


def _package(main: str, kind: str, parts: Mapping[str, str], relations: str = "") -> bytes:
    """An Office file of one main part."""
    defaults = (
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package'
        '.relationships+xml"/><Default Extension="xml" ContentType="application/xml"/>'
    )
    overrides = f'<Override PartName="/{main}" ContentType="{_OOXML}.{kind}+xml"/>'
    if "xl/worksheets/sheet1.xml" in parts:
        for name, of in (("worksheets/sheet1", "worksheet"), ("sharedStrings", "sharedStrings")):
            overrides += (
                f'<Override PartName="/xl/{name}.xml"'
                f' ContentType="{_OOXML}.spreadsheetml.{of}+xml"/>'
            )
    folder, _, name = main.rpartition("/")
    members = {
        "[Content_Types].xml": f'<Types xmlns="{_TYPES}">{defaults}{overrides}</Types>',
        "_rels/.rels": f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="r1"'
        f' Type="{_OFFICE}/officeDocument" Target="{main}"/></Relationships>',
        f"{folder}/_rels/{name}.rels": f'<Relationships xmlns="{_RELATIONS}">{relations}'
        "</Relationships>",
        **parts,
    }
    return zipped(members)


def docx(body: str, before: str = "") -> bytes:
    text = f'{before}<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>'
    kind = "wordprocessingml.document.main"
    return _package("word/document.xml", kind, {"word/document.xml": text})


def xlsx(rows: str, strings: str = "", before: str = "", after: str = "") -> bytes:
    book = (
        f'<workbook xmlns="{_SHEET}" xmlns:r="{_OFFICE}"><sheets>'
        '<sheet name="S" sheetId="1" r:id="r1"/></sheets></workbook>'
    )
    sheet = f'<worksheet xmlns="{_SHEET}"><sheetData>{rows}</sheetData>{after}</worksheet>'
    shared = f'{before}<sst xmlns="{_SHEET}">{strings}</sst>'
    relations = "".join(
        f'<Relationship Id="r{n}" Type="{_OFFICE}/{kind}" Target="{target}.xml"/>'
        for n, (kind, target) in enumerate(
            (("worksheet", "worksheets/sheet1"), ("sharedStrings", "sharedStrings")), 1
        )
    )
    parts = {"xl/workbook.xml": book, "xl/worksheets/sheet1.xml": sheet}
    parts["xl/sharedStrings.xml"] = shared
    return _package("xl/workbook.xml", "spreadsheetml.sheet.main", parts, relations)


def _laughs(root: str) -> str:
    """A document type whose entity `z` has 10**9 characters."""
    entities = _tenfold('<!ENTITY %s "%s">', "&%s;")
    return f'<!DOCTYPE {root} [<!ENTITY a "ha">{entities}]>'


def _tenfold(line: str, use: str) -> str:
    """Nine definitions, from `b` to `z`, of which each uses the one before ten times."""
    pairs = zip("abcdefghi", "bcdefghiz", strict=True)
    return "".join(line % (defined, use % used * 10) for used, defined in pairs)


def epub(chapters: Mapping[str, str]) -> bytes:
    items = "".join(
        f'<item id="i{n}" href="{name}" media-type="application/xhtml+xml"/>'
        for n, name in enumerate(chapters)
    )
    spine = "".join(f'<itemref idref="i{n}"/>' for n in range(len(chapters)))
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container version="1.0" xmlns="urn:oasis:names:tc:open'
            'document:xmlns:container"><rootfiles><rootfile full-path="c.opf" media-type='
            '"application/oebps-package+xml"/></rootfiles></container>',
            "c.opf": '<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata '
            'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>B</dc:title></metadata>'
            f"<manifest>{items}</manifest><spine>{spine}</spine></package>",
            **chapters,
        }
    )


def pdf(objects: Sequence[bytes]) -> bytes:
    """A PDF file of these objects, numbered from 1."""
    target, offsets = io.BytesIO(), []
    target.write(b"%PDF-1.7\n")
    for number, body in enumerate(objects, 1):
        offsets.append(target.tell())
        target.write(b"%d 0 obj\n%b\nendobj\n" % (number, body))
    start = target.tell()
    target.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    target.write(b"".join(b"%010d 00000 n \n" % offset for offset in offsets))
    target.write(b"trailer\n<</Size %d/Root 1 0 R>>\n" % (len(objects) + 1))
    target.write(b"startxref\n%d\n%%%%EOF\n" % start)
    return target.getvalue()


def _stream(data: bytes) -> bytes:
    packed = zlib.compress(data, 1)
    head = b"<</Length %d/Filter/FlateDecode>>stream\n" % len(packed)
    return head + packed + b"\nendstream"


def pdf_page(content: bytes, box: bytes = b"0 0 612 792", more: Sequence[bytes] = ()) -> bytes:
    """A PDF file of one page. `more` are objects from number 6; object 6 is the image `I`."""
    image = b"/XObject<</I 6 0 R>>" if more else b""
    page = (
        b"<</Type/Page/Parent 2 0 R/MediaBox[%b]/Contents 4 0 R/Resources<<%b/Font<</F 5 0 R>>>>>>"
    )
    return pdf(
        [
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
            page % (box, image),
            _stream(content),
            b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
            *more,
        ]
    )


def pdf_pages(count: int) -> bytes:
    kids = b" ".join(b"%d 0 R" % (n + 3) for n in range(count))
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>"
    pages = b"<</Type/Pages/Kids[%b]/Count %d>>" % (kids, count)
    return pdf([b"<</Type/Catalog/Pages 2 0 R>>", pages, *[page] * count])


def pdf_cycle() -> bytes:
    """Pages that are their own parent, and an outline that follows itself."""
    return pdf(
        [
            b"<</Type/Catalog/Pages 2 0 R/Outlines 3 0 R>>",
            b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 2/Parent 2 0 R>>",
            b"<</First 4 0 R/Last 4 0 R/Count 1>>",
            b"<</Title(A)/Parent 3 0 R/Next 4 0 R/First 4 0 R/Dest[2 0 R/Fit]>>",
        ]
    )


def _picture() -> bytes:
    """A PDF file with a picture of 30,000 pixels a side."""
    side = 30_000
    row = zlib.compressobj(1)
    data = b"".join(row.compress(bytes(3 * side)) for _ in range(side)) + row.flush()
    about = (
        b"<</Type/XObject/Subtype/Image/Width %d/Height %d/ColorSpace/DeviceRGB/BitsPerComponent 8"
        b"/Filter/FlateDecode/Length %d>>stream\n"
    )
    image = about % (side, side, len(data)) + data + b"\nendstream"
    return pdf_page(b"q 600 0 0 600 0 0 cm /I Do Q", more=[image])


def _png(side: int) -> bytes:
    target = io.BytesIO()
    Image.new("1", (side, side)).save(target, "PNG")
    return target.getvalue()


def _mail(depth: int) -> bytes:
    """A mail in a mail in a mail."""
    lines = []
    for n in range(depth):
        lines.append(f"From: a@example.org\nContent-Type: multipart/mixed; boundary=b{n}\n\n--b{n}")
        lines.append("Content-Type: message/rfc822\n")
    return "\n".join([*lines, "From: b@example.org\n\nEnd.\n"]).encode()


def _notebook(cells: list[Any]) -> bytes:
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


def _code_cell(output: str) -> dict[str, Any]:
    stream = {"output_type": "stream", "name": "stdout", "text": output}
    return {"cell_type": "code", "metadata": {}, "source": "x", "outputs": [stream]}


def _grid(rows: int, columns: int) -> str:
    rule = "+---" * columns + "+\n"
    return rule + ("| a " * columns + "|\n" + rule) * rows


def _includes(name: str, times: int, depth: int, line: str, last: str) -> bytes:
    """Files that each include the next one several times."""
    end = name.rpartition(".")[2]
    files = {f"{n}.{end}": line.format(f"{n + 1}.{end}") * times for n in range(depth)}
    return zipped({**files, f"{depth}.{end}": last})


def _zeros_zip() -> bytes:
    """4 GB of zeros under 4 MB, written in pieces."""
    target = io.BytesIO()
    with (
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open("zeros.txt", "w", force_zip64=True) as member,
    ):
        for _ in range(256):
            member.write(bytes(16 << 20))
    return target.getvalue()


# -- uploads: name -> bytes. The extension is that of the format.

ROW = "<w:p><w:r><w:t>a b</w:t></w:r></w:p>"
DOCUMENTS: dict[str, Made] = {
    "zips of zips.zip": lambda: nested_zips(4),
    "4 GB of zeros.zip": _zeros_zip,
    "100,000 files.zip": lambda: zipped({f"{n}.md": "# A\n\nText.\n" for n in range(100_000)}),
    "2,000 entries of one 16 MiB.zip": lambda: overlapping(2000),
    "200,000 nested.html": lambda: b"<html><body>" + b"<div>" * 200_000 + b"deep",
    "a million cells.html": lambda: b"<html><body><table>" + (b"<tr>" + b"<td>a" * 100) * 10_000,
    "colspan of a thousand million.html": lambda: (
        b"<html><table>" + b"<tr><td colspan=1000000000 rowspan=1000000000>a<td>b" * 2000
    ),
    "a million tags unclosed.html": lambda: b"<html><body>" + b"<b><i><p>x" * 300_000,
    "a million objects.pdf": lambda: pdf(
        [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[]/Count 0>>"]
        + [b"<</A[1 2 3]>>"] * MILLION
    ),
    "stream of 1 GB.pdf": lambda: pdf_page(bytes(1 << 30)),
    "five million letters.pdf": lambda: pdf_page(
        b"BT /F 9 Tf 1 0 0 1 9 9 Tm " + b"(a) Tj 1 0 Td " * 5 * MILLION + b"ET"
    ),
    "two million lines drawn.pdf": lambda: pdf_page(b"1 1 m 9 9 l S\n" * 2 * MILLION),
    "100,000 pages.pdf": lambda: pdf_pages(100_000),
    "pages in a circle.pdf": pdf_cycle,
    "page of 100 km.pdf": lambda: pdf_page(
        b"BT /F 9 Tf 9 9 Td (Wide page of text.) Tj ET", b"0 0 300000000 300000000"
    ),
    "picture of 30,000 pixels a side.pdf": _picture,
    "a million runs.docx": lambda: docx("<w:p>" + "<w:r><w:t>a </w:t></w:r>" * MILLION + "</w:p>"),
    "1.5 million paragraphs.docx": lambda: docx(ROW * 1_500_000),
    "5,000 nested tables.docx": lambda: docx(
        "<w:tbl><w:tr><w:tc>" * 5000 + "<w:p/>" + "</w:tc></w:tr></w:tbl>" * 5000
    ),
    "entities.docx": lambda: docx("<w:p><w:r><w:t>&z;</w:t></w:r></w:p>", _laughs("w:document")),
    "shared strings of 200 MB.xlsx": lambda: xlsx(
        '<row r="1"><c r="A1" t="s"><v>0</v></c></row>',
        ("<si><t>" + "a" * 100 + "</t></si>") * 2 * MILLION,
    ),
    "one string of 10 kB in 100,000 cells.xlsx": lambda: xlsx(
        "".join(f'<row r="{n}"><c r="A{n}" t="s"><v>0</v></c></row>' for n in range(1, 100_001)),
        "<si><t>" + "word " * 2000 + "</t></si>",
    ),
    "last cell alone.xlsx": lambda: xlsx(
        '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>1</v></c>'
        "</row>"
    ),
    "merged over all.xlsx": lambda: xlsx(
        '<row r="1"><c r="A1"><v>1</v></c><c r="B1"><v>2</v></c></row>',
        after='<mergeCells count="1"><mergeCell ref="A1:XFD1048576"/></mergeCells>',
    ),
    "entities.xlsx": lambda: xlsx(
        '<row r="1"><c r="A1" t="s"><v>0</v></c></row>', "<si><t>&z;</t></si>", _laughs("sst")
    ),
    "a line of 100 MB.txt": lambda: b"word " * 20 * MILLION,
    "a word of 100 MB.txt": lambda: b"x" * 100 * MILLION,
    "50 million empty lines.txt": lambda: b"a\n" + b"\n" * 50 * MILLION,
    "spaces.txt": lambda: b"a" + b" " * 60 * MILLION + b"b",
    "two million lines.log": lambda: b"error: a b c 1 2 3\n" * 2 * MILLION,
    "includes in a circle.zip": lambda: zipped(
        {"a.adoc": "= A\n\ninclude::b.adoc[]\n", "b.adoc": "include::a.adoc[]\nText of b.\n" * 9}
    ),
    "2^40 includes.zip": lambda: _includes("a.adoc", 2, 40, "include::{}[]\n", "Text.\n"),
    "2^40 inputs.zip": lambda: _includes("a.tex", 2, 40, "\\input{{{}}}\n", "Text.\n"),
    "attributes.adoc": lambda: (
        "= A\n:a: ha\n" + _tenfold(":%s: %s\n", "{%s}") + "\n\n{z}\n"
    ).encode(),
    "50,000 nested.adoc": lambda: b"= A\n\n" + b"* a\n" * 9 + b"====\n" * 50_000 + b"x\n",
    "macro loop.tex": lambda: (
        b"\\documentclass{article}\\def\\a{\\a\\a x}\\begin{document}\\a\\end{document}"
    ),
    "macros of 10^9 words.tex": lambda: (
        "\\documentclass{article}\\newcommand{\\ha}{word }\n"
        + _tenfold("\\newcommand{\\h%s}{%s}\n", "\\h%s ")
        + "\\begin{document}\\hz\\end{document}"
    ).encode(),
    "100,000 groups.tex": lambda: (
        b"\\documentclass{article}\\begin{document}"
        + b"{" * 100_000
        + b"x"
        + b"}" * 100_000
        + b"\\end{document}"
    ),
    "recursive macro.man": lambda: b".TH A 1\n.de aa\n.aa\n.aa\n..\n.SH NAME\na\n.aa\n" * 3,
    "a loop.man": lambda: b".TH A 1\n.SH NAME\na\n.while 1 .PP\n.nr x 0 1\n" * 20_000,
    "string of strings.man": lambda: (
        ".TH A 1\n.ds a ha\n" + _tenfold(".ds %s %s\n", "\\*%s") + ".SH NAME\n\\*z\n"
    ).encode(),
    "a million cells.md": lambda: (
        "| " + "a | " * 100 + "\n|" + "---|" * 100 + "\n" + ("| " + "1 | " * 100 + "\n") * 10_000
    ).encode(),
    "100,000 quotes.md": lambda: b"# A\n\n" + b">" * 100_000 + b" a\n",
    "brackets.md": lambda: b"# A\n\n" + b"[" * 200_000 + b"a" + b"](" * 200_000,
    "emphasis.md": lambda: b"# A\n\n" + b"*a **b " * 200_000,
    "backticks.md": lambda: b"# A\n\n" + b"".join(b"`" * n + b" " for n in range(1, 3000)),
    "200,000 references.md": lambda: (
        b"# A\n\n"
        + b"".join(b"[r%d]: /a%d\n" % (n, n) for n in range(200_000))
        + b"[r1] " * 200_000
    ),
    "list 5,000 deep.md": lambda: (
        b"# A\n\n" + b"".join(b" " * (2 * n) + b"- a\n" for n in range(5000))
    ),
    "a million headings.md": lambda: b"# A\n\nt\n\n" * MILLION,
    "YAML aliases.md": lambda: (
        "---\nlanguages:\n- &a [x, x]\n" + _tenfold("- &%s [%s]\n", "*%s,") + "---\n# A\n\nText.\n"
    ).encode(),
    "100,000 nested.md": lambda: b"---\na: " + b"[" * 100_000 + b"\n---\n# A\n\nText.\n",
    "substitutions.rst": lambda: (
        "A\n=\n\n.. |a| replace:: ha\n" + _tenfold(".. |%s| replace:: %s\n", "|%s| ") + "\n|z|\n"
    ).encode(),
    "files of the machine.rst": lambda: (
        b"A\n=\n\n.. include:: /etc/passwd\n\n.. csv-table:: T\n   :file: /etc/passwd\n\n"
        b".. raw:: html\n   :file: /etc/passwd\n\nText.\n"
    ),
    "grid of 250,000 cells.rst": lambda: ("A\n=\n\n" + _grid(2500, 100)).encode(),
    "3,000 deep.rst": lambda: b"A\n=\n\n" + b"".join(b" " * n + b"* a\n\n" for n in range(3000)),
    "deep.json": lambda: b"[" * MILLION + b"]" * MILLION,
    "a number of 10 MB.json": lambda: b'[{"a": ' + b"9" * 10 * MILLION + b"}]",
    "a million rows.json": lambda: (
        b"[" + b",".join([b'{"a": 1, "b": "x", "c": [1]}'] * MILLION) + b"]"
    ),
    "picture.svg": lambda: (
        b'<svg xmlns="http://www.w3.org/2000/svg" width="30000" height="30000"/>'
    ),
    "picture.png": lambda: _png(30_000),
    "five million rows.csv": lambda: b"a,b\n" * 5 * MILLION,
    "five million columns.csv": lambda: b"a," * 5 * MILLION + b"\n" + b"1," * 5 * MILLION,
    "an open quote of 50 MB.csv": lambda: b'a,b\n1,"' + b"x,y\n" * 12 * MILLION,
    "outputs of 100 MB.ipynb": lambda: _notebook([_code_cell("line of output\n" * 7 * MILLION)]),
    "500,000 cells.ipynb": lambda: _notebook(
        [{"cell_type": "markdown", "metadata": {}, "source": "a"}] * 500_000
    ),
    "deep metadata.ipynb": lambda: (
        b'{"nbformat": 4, "cells": [], "metadata": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    ),
    "chapter of 250 MB.epub": lambda: epub(
        {"a.xhtml": "<html><body>" + "<p>a b c</p>" * 20 * MILLION}
    ),
    "20,000 chapters.epub": lambda: epub(
        {f"{n}.xhtml": "<html><body><p>a</p></body></html>" for n in range(20_000)}
    ),
    "text of 250 MB.odt": lambda: zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": '<office:document-content xmlns:office="urn:oasis:names:tc:opendocument'
            ':xmlns:office:1.0" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0">'
            "<office:body><office:text>"
            + "<text:p>a b</text:p>" * 12 * MILLION
            + "</office:text></office:body></office:document-content>",
        }
    ),
    "500,000 groups.rtf": lambda: rb"{\rtf1 " + b"{" * 500_000 + b"a" + b"}" * 500_001,
    "picture of 100 MB.rtf": lambda: rb"{\rtf1 {\pict\pngblip " + b"00" * 50 * MILLION + b"} a}",
    "2,000 mails in each other.eml": lambda: _mail(2000),
    "entities.xml": lambda: f"{_laughs('a')}<a><p>&z;</p></a>".encode(),
    "a file of the machine.xml": lambda: (
        b'<!DOCTYPE a [<!ENTITY z SYSTEM "file:///etc/passwd">]><a><p>Text &z; here.</p></a>'
    ),
    "500,000 deep.xml": lambda: b"<a>" * 500_000 + b"x" + b"</a>" * 500_000,
    "20,000 deep.org": lambda: b"".join(b"*" * (n % 500 + 1) + b" a\n" for n in range(20_000)),
    "an archive.tar": lambda: b"a.txt".ljust(257, b"\0") + b"ustar\x0000" + bytes(1 << 20),
    "an archive.gz": lambda: b"\x1f\x8b\x08\0\0\0\0\0\0\3" + zlib.compress(bytes(1 << 28), 1)[2:],
    "a database.sqlite": lambda: b"SQLite format 3\0" + bytes(1 << 20),
    "a line of 30 MB.cu": lambda: b"int a" + b"+a" * 15 * MILLION + b";",
    "macros.h": lambda: b"".join(
        b"#define A%d(x) A%d(A%d(x))\n" % (n, n - 1, n - 1) for n in range(1, 200_000)
    ),
}


# -- posts: name -> path, media type, bytes

MOST = 8 * 1024 * 1024 - 64  # bytes of a log
TEXT, JSON, TOML = "text/plain", "application/json", "text/toml"


def _full(text: str, start: str = "") -> bytes:
    """A log of the largest size: a start, then one text again and again."""
    return (start + text * (MOST // len(text.encode()) + 1)).encode()[:MOST]


def _numbered(text: str) -> bytes:
    """A log of the largest size, with a number in each repetition of a text."""
    size = len(text.encode()) + 6
    return "".join(text.replace("N", str(n)) for n in range(MOST // size)).encode()[:MOST]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


PASTES: dict[str, Made] = {
    "one word": lambda: _full("x"),
    "digits": lambda: _full("1"),
    "spaces": lambda: _full(" ", "error: a"),
    "lines": lambda: _full("\n", "error: a"),
    "brackets": lambda: _full("["),
    "templates": lambda: _full("std::vector<std::pair<", "error: "),
    "equal signs": lambda: _full("a=1 "),
    "one error": lambda: _full('k.cu(1): error: identifier "x" is undefined\n'),
    "200,000 errors": lambda: _numbered('k.cu(N): error: identifier "xN" is undefined\n'),
    "registers": lambda: _numbered("ptxas info : Used N registers, N bytes spill stores\n"),
    "counters": lambda: (
        b'"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        + _numbered('"N","kN","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","N"\n')
    ),
    "a trace": lambda: _json(
        {
            "traceEvents": [
                {"ph": "X", "cat": "kernel", "name": f"k{n}", "ts": n, "dur": 5, "pid": 0, "tid": 7}
                for n in range(90_000)
            ]
        }
    ),
    "names": lambda: _numbered("name_N "),
    "columns": lambda: _full("a,1,"),
    "pipes": lambda: _full("| a | 1 | 2 |\n"),
    "frames": lambda: _full('  File "a.py", line 1, in f\n', "Traceback:\n"),
    "limits": lambda: _numbered("requires N bytes but limit is N bytes\n"),
    "code": lambda: _full(
        "@triton.jit\ndef k(x_ptr, n: tl.constexpr):\n    tl.store(x_ptr, tl.load(x_ptr))\n"
    ),
}
OTHERS: dict[str, tuple[str, str, Made]] = {
    "400,000 metrics": (
        "/retrieve",
        JSON,
        lambda: _json({"metrics": {f"m{n}": n for n in range(400_000)}}),
    ),
    "16 MB of brackets": ("/retrieve", JSON, lambda: b"[" * 16_000_000),
    "a step of 16 MB": (
        "/trajectories",
        JSON,
        lambda: _json(
            {
                "problem": "map_id",
                "hardware": "h100",
                "language": "cpp",
                "steps": [{"parent": 0, "source": "x" * 16_000_000}],
            }
        ),
    ),
    "a transcript of 100,000 lines": (
        "/trajectories",
        JSON,
        lambda: _json(
            {"problem": "map_id", "hardware": "h100", "lines": [{"a": "x" * 99}] * 100_000}
        ),
    ),
    "a million facts": (
        "/hardware",
        TOML,
        lambda: b'id = "x1"\nname = "X"\nvendor = "x"\n' + b'[[facts]]\nkey = "a"\n' * 500_000,
    ),
    "a dotted key": ("/hardware", TOML, lambda: b"a." * 2_000_000 + b"b = 1\n"),
}


# -- clients, and what the service does meanwhile

CLIENTS = 8
PAUSE_SECONDS = 0.2  # of a client between an answer and its next question
QUESTIONS = (
    {"signal": "memory_bound", "hardware": "h100"},
    {"query": "how does the scheduler hide latency", "hardware": "mi300x"},
    {"log": "ptxas info : 8 bytes spill stores, 8 bytes spill loads", "hardware": "h100"},
    {"query": "which swizzle avoids bank conflicts", "hardware": "b200"},
)


@dataclass(frozen=True)
class Answered:
    """When a client asked, the milliseconds to its answer, and the status."""

    at: float
    ms: float
    status: int

    def overlaps(self, began: float, end: float) -> bool:
        return began <= self.at + self.ms / 1000 and self.at <= end


class Asking(threading.Thread):
    """A client that asks until `stop` is set."""

    def __init__(self, url: str, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._url, self._chance, self._stopped = url, random.Random(seed), stop
        self.answers: list[Answered] = []

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=300) as client:
            while not self._stopped.wait(PAUSE_SECONDS * self._chance.uniform(0.5, 1.5)):
                body = self._chance.choice(QUESTIONS)
                began = time.monotonic()
                try:
                    status = client.post("/retrieve", json=body).status_code
                except httpx.HTTPError:
                    status = 0
                took = (time.monotonic() - began) * 1000
                self.answers.append(Answered(began, took, status))


class Watching(threading.Thread):
    """Samples the memory of the service and of its children, in MiB."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.service = self.children = 0.0

    def run(self) -> None:
        while (own := memory_of(self._pid)) is not None:
            children = [memory_of(pid) for pid in descendants(self._pid)]
            self.service = max(self.service, own.now)
            self.children = max(self.children, sum(c.now for c in children if c is not None))
            time.sleep(0.2)

    def begin(self) -> None:
        """Forget earlier samples."""
        self.service = self.children = 0.0


@dataclass(frozen=True)
class Bomb:
    """The outcome of one: the bytes sent in MB, the seconds until it had ended, memory in MiB at
    the most, answers of clients meanwhile and their 99th percentile in ms, that of the quiet time
    around it, and the answers that were no 200."""

    name: str
    size: float
    outcome: str
    seconds: float
    service: float
    parsers: float
    answers: int
    p99: float
    quiet: float
    refused: int

    @property
    def ratio(self) -> float | None:
        """None for less than a second of answers."""
        return self.p99 / self.quiet if self.answers >= 20 and self.quiet else None


@cache
def _sender() -> ProcessPoolExecutor:
    """Another process: sending a large body from this one would delay its clients."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _sent(url: str, name: str, path: str) -> tuple[int, Any]:
    with Path(path).open("rb") as file:
        files, fields = [("file", (name, file))], {"hardware": "h100"}
        answer = httpx.post(f"{url.rstrip('/')}/documents", files=files, data=fields, timeout=600)
    return answer.status_code, answer.json()


def _upload(name: str, most: float, client: httpx.Client, data: bytes) -> str:
    """Upload a file, wait for its jobs, and remove its documents; what became of it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        status, body = _sender().submit(_sent, str(client.base_url), name, file.name).result()
    if status != 202:
        return f"{status}: {body['message']}"
    rows = body.get("documents", [body])
    jobs = [row["job_id"] for row in rows if row.get("job_id")]
    deadline = time.monotonic() + most
    states: list[str] = []
    for job_id in jobs:
        while True:
            job = client.get(f"/jobs/{job_id}").json()
            if job["state"] in ("ready", "partial", "failed") or time.monotonic() > deadline:
                break
            time.sleep(0.3)
        states.append(job["error"]["message"] if job["state"] == "failed" else job["state"])
    for row in rows:
        if row.get("document_id"):
            client.delete(f"/documents/{row['document_id']}")
    refused = [row["error"]["message"] for row in rows if "error" in row]
    counts = {text: (states + refused).count(text) for text in dict.fromkeys(states + refused)}
    return "; ".join(text if n == 1 else f"{n} times {text}" for text, n in counts.items())[:240]


def _post(path: str, kind: str, client: httpx.Client, data: bytes) -> str:
    sent = client.post(path, content=data, headers={"content-type": kind})
    return f"{sent.status_code}" + (f": {sent.json()['message'][:200]}" if sent.is_error else "")


def measured(service: Service, only: re.Pattern[str], quiet: float, most: float) -> list[Bomb]:
    """Send each, with a quiet time before and after it."""
    assert service.pid is not None
    _sender().submit(abs, 1).result()  # its imports are done
    stop, watching = threading.Event(), Watching(service.pid)
    watching.start()
    clients = [Asking(service.http.url, n, stop) for n in range(CLIENTS)]
    for asking in clients:
        asking.start()
    bombs: list[Bomb] = []
    with httpx.Client(base_url=service.http.url, timeout=600) as client:
        for name, make, send in _chosen(only, most):
            data = make()
            time.sleep(quiet)
            watching.begin()
            began = time.monotonic()
            outcome = send(client, data)
            end = time.monotonic()
            time.sleep(quiet)
            answers = [a for asking in clients for a in list(asking.answers)]
            during = [a for a in answers if a.overlaps(began, end)]
            around = [a for a in answers if began - quiet <= a.at <= end + quiet]
            beside = [a for a in around if not a.overlaps(began, end)]
            bombs.append(
                Bomb(
                    name,
                    round(len(data) / 1e6, 2),
                    outcome,
                    round(end - began, 1),
                    round(watching.service),
                    round(watching.children),
                    len(during),
                    _p99(during),
                    _p99(beside),
                    sum(a.status != 200 for a in during),
                )
            )
            say(str(bombs[-1]))
    stop.set()
    for asking in clients:
        asking.join()
    return bombs


def _p99(answers: Sequence[Answered]) -> float:
    return round(float(np.percentile([a.ms for a in answers], 99)), 1) if answers else 0.0


Send = Callable[[httpx.Client, bytes], str]


def _chosen(only: re.Pattern[str], most: float) -> Iterator[tuple[str, Made, Send]]:
    """The name of each, and the functions that make and send it."""
    log = ("/retrieve?hardware=h100", TEXT)
    posts = {f"log of {name}": (*log, make) for name, make in PASTES.items()} | OTHERS
    sends: dict[str, tuple[Made, Send]] = {
        name: (make, partial(_upload, name, most)) for name, make in DOCUMENTS.items()
    }
    sends |= {
        name: (make, partial(_post, path, kind)) for name, (path, kind, make) in posts.items()
    }
    return ((name, *how) for name, how in sends.items() if only.search(name))


def report(bombs: Sequence[Bomb], quiet: float) -> list[str]:
    rows = [
        [
            bomb.name,
            bomb.size,
            bomb.outcome,
            bomb.seconds,
            f"{bomb.service:.0f}, {bomb.parsers:.0f}",
            "" if bomb.ratio is None else f"{bomb.ratio:.1f}",
            bomb.answers,
        ]
        for bomb in bombs
    ]
    head = ("sent", "MB", "outcome", "s", "service, parsers, MiB", "p99 ratio", "answers")
    about = (
        f"{CLIENTS} clients ask with pauses of {PAUSE_SECONDS} s; the ratio is the 99th percentile"
        f" of their answers while one is read over that of the {quiet:g} s before and after."
    )
    return [about, table(head, rows)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.knowledge.bombs", description=__doc__
    )
    parser.add_argument("--only", default=".", help="Only those whose name has this pattern.")
    parser.add_argument("--quiet", type=float, default=8.0, help="Seconds before and after each.")
    parser.add_argument("--most", type=float, default=READ_SECONDS, help="Seconds to wait for one.")
    parser.add_argument("--data-dir", type=Path, help="Default: a new one.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="kernlore-bombs-") as folder,
        service_at(None, given.data_dir or Path(folder) / "data") as service,
    ):
        wait_until_ready(service)
        bombs = measured(service, re.compile(given.only), given.quiet, given.most)
    write_result(given.results, TITLE, report(bombs, given.quiet))


if __name__ == "__main__":
    ended(main)
