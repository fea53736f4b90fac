"""PDFs whose pages, labels and positions are known."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Table, TableStyle

WIDTH, HEIGHT = A4
LEFT, TOP = 72, 720

SPLIT_SENTENCE = (
    "The scheduler issues at most one instruction per cycle and warp, which means that a kernel "
    "with too few resident warps leaves the pipe idle whenever it waits for memory"
)
HYPHENATED = "A divergent branch serialises its two paths until they reconverge."
OCCUPANCY_HEADER = (
    ("Chip", "Limits", "Limits", "Limits", "Limits"),
    ("", "Registers", "Registers", "Shared memory", "Shared memory"),
    ("", "per thread", "per unit", "per block", "per unit"),
)


class Page:
    """A page being drawn from top to bottom."""

    def __init__(self, canvas: Canvas, head: str | None = None) -> None:
        self.canvas = canvas
        self.y = float(TOP)
        if head:
            canvas.setFont("Helvetica", 8)
            canvas.drawString(LEFT, HEIGHT - 40, head)
            canvas.drawString(LEFT, 30, "Chip Manual, revision 3")

    def heading(self, text: str, size: float, key: str = "", level: int = 0) -> None:
        self.y -= size
        if key:
            self.canvas.bookmarkPage(key, fit="XYZ", left=0, top=self.y + size)
            self.canvas.addOutlineEntry(text, key, level)
        self.lines([text], font="Helvetica-Bold", size=size)

    def lines(
        self, texts: Sequence[str], font: str = "Helvetica", size: float = 10, x: float = LEFT
    ) -> None:
        self.canvas.setFont(font, size)
        for text in texts:
            self.canvas.drawString(x, self.y, text)
            self.y -= 1.2 * size
        self.y -= 8

    def table(
        self, rows: Sequence[Sequence[str]], style: Sequence[tuple[object, ...]] = ()
    ) -> None:
        table = Table(
            rows,
            colWidths=80,
            style=TableStyle([("GRID", (0, 0), (-1, -1), 0.5, colors.black), *style]),
        )
        _, height = table.wrap(WIDTH - 2 * LEFT, HEIGHT)
        table.drawOn(self.canvas, LEFT, self.y - height + 10)
        self.y -= height + 8


def _drawn(draw: object, encrypt: StandardEncryption | None = None) -> bytes:
    assert callable(draw)
    target = io.BytesIO()
    canvas = Canvas(target, pagesize=A4, encrypt=encrypt, invariant=True)
    draw(canvas)
    canvas.save()
    return target.getvalue()


def manual() -> bytes:
    """Front matter i-ii (title, contents), then pages 1-4 with running heads and an outline."""
    return _drawn(_manual)


def _manual(canvas: Canvas) -> None:
    canvas.setTitle("Chip Manual")
    canvas.addPageLabel(0, style="ROMAN_LOWER", start=1)
    canvas.addPageLabel(2, style="ARABIC", start=1)
    page = Page(canvas)
    page.heading("Chip Manual", 24)
    page.lines(["Revision 3"])
    canvas.showPage()
    page = Page(canvas)
    page.heading("Contents", 16)
    for title, number in [
        ("1 Execution", 1),
        ("1.1 Warps", 1),
        ("1.2 Code", 2),
        ("2 Memory", 3),
        ("2.1 Banks", 4),
    ]:
        page.lines([f"{title} {'. ' * 40} {number}"])
    canvas.showPage()
    _execution(canvas)
    _memory(canvas)


def _execution(canvas: Canvas) -> None:
    page = Page(canvas, "1.1 Warps | Page 1")
    page.heading("1 Execution", 18, "c1")
    page.lines(["Threads run in groups that share one instruction stream."])
    page.heading("1.1 Warps", 14, "c11", 1)
    page.lines(["A divergent branch serial-", "ises its two paths until they reconverge."])
    page.lines(["• one warp has 32 lanes", "• lanes of one warp share", "   a program counter"])
    page.y = 84
    words = SPLIT_SENTENCE.split()
    page.lines([" ".join(words[:15]), " ".join(words[15:24])])
    canvas.showPage()
    page = Page(canvas, "1.2 Code | Page 2")
    page.lines([" ".join(words[24:]) + "."])
    page.heading("1.2 Code", 14, "c12", 1)
    page.lines(["The loop below is unrolled by four."])
    page.lines(["for (int i = 0; i < n; ++i) {", "    acc += a[i];", "}"], font="Courier", size=9)
    page.lines(["It needs efficient office files."])
    canvas.showPage()


def _memory(canvas: Canvas) -> None:
    header = [
        ["Chip", "Limits", "", "", ""],
        ["", "Registers", "", "Shared memory", ""],
        ["", "per thread", "per unit", "per block", "per unit"],
    ]
    style: list[tuple[object, ...]] = [
        ("SPAN", (0, 0), (0, 2)),
        ("SPAN", (1, 0), (4, 0)),
        ("SPAN", (1, 1), (2, 1)),
        ("SPAN", (3, 1), (4, 1)),
        ("FONTNAME", (0, 0), (-1, 2), "Helvetica-Bold"),
    ]
    widths = [f"chip{i:02d}" for i in range(40)]
    page = Page(canvas, "2 Memory | Page 3")
    page.heading("2 Memory", 18, "c2")
    page.lines(["Table 7. Occupancy limits of all chips"], font="Helvetica-Oblique")
    page.table(
        [*header, *([name, "255", "65536", "48 KiB", "164 KiB"] for name in widths[:25])], style
    )
    canvas.showPage()
    page = Page(canvas, "2.1 Banks | Page 4")
    page.table([[name, "255", "65536", "48 KiB", "164 KiB"] for name in widths[25:]])
    page.heading("2.1 Banks", 14, "c21", 1)
    page.lines(["Shared memory has 32 banks of four bytes."])
    canvas.showPage()


def without_outline() -> bytes:
    """Headings marked only by font size and number."""

    def draw(canvas: Canvas) -> None:
        page = Page(canvas)
        page.heading("A Tuning Guide", 22)
        for chapter in (1, 2):
            page.heading(f"{chapter} Chapter number {chapter}", 16)
            page.lines(
                ["Running text of some length stands here,", "and it goes on over two lines."]
            )
            page.heading(f"{chapter}.1 Section below", 12)
            page.lines(["More running text of the section."])
            page.heading("Run-in remark", 10)
            page.lines(["The remark itself is plain."])
        canvas.showPage()

    return _drawn(draw)


def two_columns() -> bytes:
    """A full-width title above two columns of prose, drawn one after the other."""

    def draw(canvas: Canvas) -> None:
        page = Page(canvas)
        page.heading("Two columns of prose under one wide title of a paper", 18)
        top = page.y
        for column, x in (("left", LEFT), ("right", 312)):
            page.y = top
            page.lines(
                [f"the {column} column has line number {i:02d} here" for i in range(20)], x=x
            )
        canvas.showPage()

    return _drawn(draw)


def columns(texts: Sequence[Sequence[str]]) -> bytes:
    """One page with a column of lines for each text, drawn one after the other from the top."""

    def draw(canvas: Canvas) -> None:
        page = Page(canvas)
        width = (WIDTH - 2 * LEFT) / len(texts)
        for number, lines in enumerate(texts):
            page.y = float(HEIGHT - 50)
            page.lines(lines, size=9, x=LEFT + number * width)
        canvas.showPage()

    return _drawn(draw)


def rows(texts: Sequence[Sequence[str]], size: float = 9, page_width: float = WIDTH) -> bytes:
    """One page with a row of short texts for each line, drawn row by row."""

    def draw(canvas: Canvas) -> None:
        canvas.setPageSize((page_width, HEIGHT))
        canvas.setFont("Helvetica", size)
        width = (page_width - 2 * LEFT) / len(texts[0])
        for number, row in enumerate(texts):
            for place, text in enumerate(row):
                canvas.drawString(LEFT + place * width, TOP - 4 / 3 * size * number, text)
        canvas.showPage()

    return _drawn(draw)


def amounts() -> bytes:
    """A table without rules with a currency in cells of the first row, under its title."""
    rows = [
        ("Cash", "$", "1,980", "$", "1,101"),
        ("Receivables, net", "", "1,015", "", "1,049"),
        ("Inventories", "", "5,409", "", "5,209"),
        ("Other assets", "", "(466)", "", "438"),
    ]

    def draw(canvas: Canvas) -> None:
        canvas.setFont("Helvetica", 9)
        canvas.drawString(LEFT, TOP + 14, "Balance of the fabs in millions")
        for number, (name, *cells) in enumerate(rows):
            y = TOP - 12 * number
            canvas.drawString(LEFT, y, name)
            for place, text in enumerate(cells):
                x = LEFT + 200 + 90 * (place // 2)
                if place % 2:
                    canvas.drawRightString(x + 60, y, text)
                else:
                    canvas.drawString(x, y, text)
        canvas.showPage()

    return _drawn(draw)


def encoding() -> bytes:
    """The fields of two instructions without rules, under the numbers of their bits."""
    edges = [(31, 25), (24, 20), (19, 15), (14, 12), (11, 7), (6, 0)]
    rows = ["imm[11:5] rs2 rs1 funct3 imm[4:0] opcode", "offset src base width offset STORE"]

    def draw(canvas: Canvas) -> None:
        canvas.setFont("Times-Roman", 9)

        def left(bit: int) -> float:
            return float(LEFT + (31 - bit) * 13)

        for high, low in edges:
            canvas.drawString(left(high), TOP, str(high))
            canvas.drawRightString(left(low - 1) - 2, TOP, str(low))
        for number, row in enumerate(rows, 1):
            for (high, low), field in zip(edges, row.split(), strict=True):
                middle = (left(high) + left(low - 1)) / 2
                canvas.drawCentredString(middle, TOP - 14 * number, field)
        canvas.showPage()

    return _drawn(draw)


def diagram() -> bytes:
    """A drawing with labels and a turned axis label between two paragraphs, and its caption."""

    def draw(canvas: Canvas) -> None:
        page = Page(canvas)
        page.lines(["The blocks of the chip are shown below with the ports between them."])
        top = page.y - 30
        for number, name in enumerate(["DMA engine", "Scratchpad", "Tensor unit"]):
            x = LEFT + 20 + 130 * number
            canvas.rect(x, top - 60, 90, 50)
            canvas.drawString(x + 10, top - 40, name)
            canvas.line(x + 90, top - 35, x + 130, top - 35)
        canvas.saveState()
        canvas.translate(LEFT + 12, top - 60)
        canvas.rotate(90)
        canvas.drawString(0, 0, "64 B/cycle")
        canvas.restoreState()
        page.y = top - 90
        page.lines(["Figure 3: Data paths of the chip."])
        page.y -= 20
        page.lines(["The tensor unit reads operands only from the scratchpad of its core."])
        canvas.showPage()

    return _drawn(draw)


def code_panels(lines: int = 12) -> bytes:
    """Three listings side by side between two columns of prose, drawn one after the other."""

    def draw(canvas: Canvas) -> None:
        width = (WIDTH - 2 * LEFT) / 3
        for panel in range(3):
            canvas.setFont("Courier", 6)
            for number in range(lines):
                text = f"panel{panel} = load(line{number:02d})"
                canvas.drawString(LEFT + panel * width, TOP - 8 * number, text)
        page = Page(canvas)
        for column in range(2):
            page.y = float(TOP - 8 * lines - 30)
            prose = [f"column {column} of prose has line {n:02d} of the text" for n in range(14)]
            page.lines(prose, size=9, x=LEFT + column * (WIDTH - 2 * LEFT) / 2)
        canvas.showPage()

    return _drawn(draw)


def scanned(texts: Sequence[str]) -> bytes:
    """A picture of a page with a line for each text, as a scanner makes it."""
    page = Image.new("L", (1654, 2339), 255)
    drawing, font = ImageDraw.Draw(page), ImageFont.load_default(34)
    for number, text in enumerate(texts):
        drawing.text((150, 200 + 60 * number), text, fill=0, font=font)
    target = io.BytesIO()
    page.save(target, "PDF", resolution=200)
    return target.getvalue()


def picture() -> bytes:
    """Text above a picture."""

    def draw(canvas: Canvas) -> None:
        Page(canvas).lines(["The floor plan of the chip is shown below."])
        image = ImageReader(Image.new("L", (200, 200), 128))
        canvas.drawImage(image, LEFT, TOP - 300, 200, 200)
        canvas.showPage()

    return _drawn(draw)


def scanned_in_the_middle() -> bytes:
    """Text, a picture of text, a blank page."""

    def draw(canvas: Canvas) -> None:
        Page(canvas).lines(["This page has text."])
        canvas.showPage()
        picture = Image.new("L", (600, 800), 255)
        ImageDraw.Draw(picture).text((50, 50), "only pixels")
        canvas.drawImage(ImageReader(picture), 0, 0, WIDTH, HEIGHT)
        canvas.showPage()
        canvas.showPage()

    return _drawn(draw)


def lost_page() -> bytes:
    """Three pages, of which the second is damaged: its object is missing."""

    def draw(canvas: Canvas) -> None:
        for number in range(3):
            Page(canvas).lines([f"Page {number} of the manual has this text."])
            canvas.showPage()

    data = _drawn(draw)
    pages = re.search(rb"/Kids \[ (\d+) 0 R (\d+) 0 R", data)
    assert pages is not None
    start, end = pages.span(2)
    return data[:start] + b"0" * (end - start) + data[end:]


def encrypted() -> bytes:
    def draw(canvas: Canvas) -> None:
        Page(canvas).lines(["secret"])
        canvas.showPage()

    return _drawn(draw, StandardEncryption("password", "owner"))


def printed_numbers_only() -> bytes:
    """No page labels in the file; numbers printed at the foot start at 11."""

    def draw(canvas: Canvas) -> None:
        for number in range(11, 15):
            page = Page(canvas)
            page.lines([f"Body of the page that prints {number}.", "It has a second line."])
            canvas.drawCentredString(WIDTH / 2, 40, str(number))
            canvas.showPage()

    return _drawn(draw)


def rotated() -> bytes:
    """A landscape page, stored upright with a rotation."""

    def draw(canvas: Canvas) -> None:
        canvas.setPageRotation(90)
        canvas.saveState()
        canvas.translate(WIDTH, 0)
        canvas.rotate(90)
        canvas.setFont("Helvetica", 10)
        canvas.drawString(100, WIDTH - 60, "A wide sheet is read from its long side.")
        canvas.drawString(100, WIDTH - 72, "Its second line is below the first.")
        canvas.restoreState()
        canvas.showPage()

    return _drawn(draw)
