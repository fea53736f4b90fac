"""Office, book and mail files with known content."""

from __future__ import annotations

import io
import struct
import zipfile
from email.message import EmailMessage

Storage = dict[str, "bytes | Storage"]

HTML_BODY = (
    "<h1>Barriers</h1><p>The barrier of revision 1 deadlocks when a warp has left.</p>"
    "<h2>Workaround</h2><ul><li>Use the cluster barrier.</li><li>Leave no warp.</li></ul>"
    "<table><tr><th>Revision</th><th>State</th></tr><tr><td>1</td><td>broken</td></tr></table>"
    "<pre>bar.sync 0;\n  bar.arrive 1;</pre>"
)
RTF = rb"""{\rtf1\ansi\deff0{\fonttbl{\f0 Times;}}
{\pard\outlinelevel0\b\fs36 Memory\par}
{\pard The scratchpad holds 192 KB.\par}
{\pard\outlinelevel1\b\fs28 Banks\par}
{\pard Conflicts of 32 banks serialise.\par}
{\trowd\cellx2000\cellx4000 \pard\intbl Chip\cell Cache\cell\row
\trowd\cellx2000\cellx4000 \pard\intbl Orion 1\cell 50 MB\cell\row
\trowd\cellx2000\cellx4000 \pard\intbl Orion 2\cell 60 MB\cell\row}
{\pard\outlinelevel0\b\fs36 Barriers\par}
{\pard Every warp has to arrive.\par}}"""


def presentation() -> bytes:
    """Three slides: a title, bullets of two levels with notes, a table."""
    from pptx import Presentation
    from pptx.util import Inches

    deck = Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[0])
    slide.shapes.title.text = "Orion accelerator"
    slide.placeholders[1].text = "Programming guide, revision 2"
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Memory hierarchy"
    frame = slide.placeholders[1].text_frame
    frame.text = "The scratchpad holds 192 KB per core."
    for level, text in ((1, "It has 32 banks of four bytes."), (0, "Use tiles of 128.")):
        paragraph = frame.add_paragraph()
        paragraph.text, paragraph.level = text, level
    slide.notes_slide.notes_text_frame.text = "Bank conflicts cost a factor of eight."
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    slide.shapes.title.text = "Peaks"
    inches = [Inches(n) for n in (1, 2, 6, 2)]
    table = slide.shapes.add_table(3, 2, *inches).table
    for r, row in enumerate((("Type", "TFLOPS"), ("fp16", "383"), ("fp8", "766"))):
        for c, text in enumerate(row):
            table.cell(r, c).text = text
    return _saved(deck)


def workbook() -> bytes:
    """Two sheets with a table each, the second with a title and a remark, and an empty sheet."""
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    sheet.title = "Peaks"
    for row in (("Chip", "fp16 TFLOPS"), ("Orion 1", 383), ("Orion 2", 766.5)):
        sheet.append(row)
    limits = book.create_sheet("Limits")
    limits["A1"] = "Limits of one core"
    for row in (("Resource", "Limit"), ("Registers", 65536), ("Threads", 1024)):
        limits.append(row)
    limits.insert_rows(2)
    limits["A8"] = "The production stepping of the chip may change these values."
    book.create_sheet("Empty")
    return _saved(book)


def book() -> bytes:
    """An EPUB of two chapters whose title is in the metadata only."""
    page = (
        '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>-</title></head><body>{}'
        "</body></html>"
    )
    files = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": (
            '<?xml version="1.0"?><container version="1.0"'
            ' xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="content.opf" media-type="application/oebps-package+xml"/>'
            "</rootfiles></container>"
        ),
        "content.opf": (
            '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0"'
            ' unique-identifier="id"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
            '<dc:identifier id="id">x</dc:identifier><dc:title>Orion Guide</dc:title>'
            "<dc:language>en</dc:language></metadata><manifest>"
            '<item id="a" href="a.xhtml" media-type="application/xhtml+xml"/>'
            '<item id="b" href="b.xhtml" media-type="application/xhtml+xml"/>'
            '</manifest><spine><itemref idref="a"/><itemref idref="b"/></spine></package>'
        ),
        "a.xhtml": page.format(
            "<h1>Memory</h1><p>The scratchpad holds 192 KB.</p><h2>Banks</h2>"
            "<ul><li>32 banks<ul><li>of four bytes</li></ul></li><li>one port</li></ul>"
            "<table><tr><th>Chip</th><th>Cache</th></tr>"
            "<tr><td>Orion 1</td><td>50 MB</td></tr></table>"
        ),
        "b.xhtml": page.format(
            "<h1>Barriers</h1><p>Every warp has to arrive.</p>"
            "<pre><code>bar.sync 0;\n  bar.arrive 1;</code></pre>"
        ),
    }
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return target.getvalue()


def open_document() -> bytes:
    """A text in ODT, written by pandoc."""
    import tempfile
    from pathlib import Path

    import pypandoc

    text = "# Memory\n\nThe scratchpad holds 192 KB.\n\n- 32 banks\n- one port\n\n"
    text += "| Chip | Cache |\n|---|---|\n| Orion 1 | 50 MB |\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.odt")
        pypandoc.convert_text(text, "odt", format="markdown", outputfile=str(path))
        return path.read_bytes()


def mail() -> bytes:
    """Plain text and HTML, with a table attached and a picture."""
    message = EmailMessage()
    message["From"], message["To"] = "a@example.org", "b@example.org"
    message["Subject"] = "Errata of Orion"
    message.set_content("The plain form.\n")
    message.add_alternative(HTML_BODY, subtype="html")
    message.add_attachment(b"chip,cache\nH,50\n", maintype="text", subtype="csv", filename="a.csv")
    picture = b"\x89PNG\r\n\x1a\n"
    message.add_attachment(picture, maintype="image", subtype="png", filename="b.png")
    return bytes(message)


def outlook_message() -> bytes:
    """A file of Outlook: a compound file of one stream per property, with a text attached."""
    text, binary = 0x001F, 0x0102
    attached = _properties(
        8, {(0x3707, text): "a.txt".encode("utf-16-le"), (0x3701, binary): b"An attached line.\n"}
    )
    message = _properties(
        32,
        {
            (0x0037, text): "Errata of Orion".encode("utf-16-le"),
            (0x1013, binary): f"<html><body>{HTML_BODY}</body></html>".encode(),
        },
    )
    return compound_file({**message, "__attach_version1.0_#00000000": attached})


def _properties(header: int, values: dict[tuple[int, int], bytes]) -> Storage:
    """Properties by id and type, each in a stream, and the stream that lists them."""
    listed = bytes(header)
    streams: Storage = {}
    for (number, kind), value in values.items():
        listed += struct.pack("<HHIII", kind, number, 6, len(value) + 2 * (kind == 0x001F), 0)
        streams[f"__substg1.0_{number:04X}{kind:04X}"] = value
    return {"__properties_version1.0": listed, **streams}


def old_office(stream: str) -> bytes:
    """A compound file with the one stream that names the application of Office before 2007."""
    return compound_file({stream: bytes(64)})


_FREE, _END, _FAT = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD


def compound_file(root: Storage) -> bytes:
    """A compound file (MS-CFB, version 3) of small streams: all of them in the mini stream, the
    entries of each storage a tree that only branches to the right.
    """
    entries: list[bytes] = [b""]
    mini = bytearray()
    mini_fat: list[int] = []

    def stream(data: bytes) -> tuple[int, int]:
        first, count = len(mini_fat), -(-len(data) // 64)
        mini_fat.extend([*range(first + 1, first + count), _END])
        mini.extend(data.ljust(64 * count, b"\0"))
        return first, len(data)

    def storage(members: Storage) -> int:
        """The first entry of the storage's tree."""
        names = sorted(members, key=lambda name: (len(name), name.upper()))
        first = len(entries)
        entries.extend(b"" for _ in names)
        for n, name in enumerate(names):
            member = members[name]
            right = first + n + 1 if n + 1 < len(names) else _FREE
            if isinstance(member, bytes):
                entries[first + n] = _entry(name, 2, right, _FREE, *stream(member))
            else:
                entries[first + n] = _entry(name, 1, right, storage(member), 0, 0)
        return first

    child = storage(root)
    sectors = [_sectors(b"".join([bytes(128), *entries[1:]])), _sectors(_words(mini_fat))]
    starts = [1, 1 + sectors[0], 1 + sectors[0] + sectors[1]]
    entries[0] = _entry("Root Entry", 5, _FREE, child, starts[2], len(mini))
    parts = [b"".join(entries), _words(mini_fat), bytes(mini)]
    fat = [_FAT]
    for part in parts:
        first = len(fat)
        fat += [*range(first + 1, first + _sectors(part)), _END]
    magic = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16)
    versions = struct.pack("<HHHHH6x", 0x3E, 3, 0xFFFE, 9, 6)
    counts = (0, 1, starts[0], 0, 4096, starts[1], sectors[1], _END, 0)
    header = magic + versions + struct.pack("<9I", *counts) + _words([0])
    padded = [part.ljust(512 * _sectors(part), b"\0") for part in parts]
    return header.ljust(512, b"\xff") + _words(fat).ljust(512, b"\xff") + b"".join(padded)


def _entry(name: str, kind: int, right: int, child: int, start: int, size: int) -> bytes:
    encoded = name.encode("utf-16-le") + b"\0\0"
    head = encoded.ljust(64, b"\0") + struct.pack("<HBB", len(encoded), kind, 1)
    return head + struct.pack("<III36xIQ", _FREE, right, child, start, size)


def _sectors(part: bytes) -> int:
    return -(-len(part) // 512)


def _words(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _saved(document: object) -> bytes:
    target = io.BytesIO()
    document.save(target)  # type: ignore[attr-defined]
    return target.getvalue()
