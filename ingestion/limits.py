"""Limits on the content of one document: not on the size of its file, which is another limit, but
on its parsed content. A small archive may hold gigabytes of text, and a few bytes of a table may
state a million cells.

Each error is a ParseFailed that names the limit and the setting that raises it. Knows no format.
"""

from __future__ import annotations

import io
import struct
import time
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass

from ingestion.elements import ParsedDocument
from kb.errors import ParseFailed
from kb.settings import MIB, Settings

LINE_CHARS = 40_000  # longer lines are cut: about 100 passages; prose has ten pages without an end
PASSAGE_CHARS = 800  # of the longest passage, a code block
_BLOCK = 1 << 20
# Exceptions of zipfile and zlib for damaged archives.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, LookupError),
    *(NotImplementedError, RuntimeError, AttributeError, struct.error),
)


@dataclass(frozen=True)
class DocumentLimits:
    """What one document may become: `unpacked_bytes` of its archive, `parts` (elements and table
    cells), `passages` (and as many sections), and `seconds` for cutting it into passages."""

    unpacked_bytes: int = 256 * MIB
    parts: int = 1_000_000
    passages: int = 100_000
    seconds: float = 300.0

    @classmethod
    def of(cls, settings: Settings) -> DocumentLimits:
        return cls(
            settings.max_unpacked_bytes,
            settings.max_document_parts,
            settings.max_passages,
            settings.parse_seconds,
        )

    @property
    def characters(self) -> int:
        """Characters of text, which make `passages` passages at least."""
        return self.passages * PASSAGE_CHARS

    def check_archive(self, data: bytes) -> None:
        """Refuse a zip archive (DOCX, XLSX, PPTX, EPUB, ODT) that unpacks to more bytes. The
        members are unpacked, because the sizes in the archive may be wrong, but not stored."""
        if not data.startswith(b"PK\x03\x04"):
            return
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                size = sum(entry.file_size for entry in archive.infolist())
                if size <= self.unpacked_bytes:
                    size = _unpacked(archive, self.unpacked_bytes)
        except _DAMAGED:
            return  # the reader reports the error
        if size > self.unpacked_bytes:
            raise _too_large(
                f"its archive unpacks to more than {self.unpacked_bytes // MIB:,} MiB",
                "KERNLORE_MAX_UNPACKED_BYTES",
            )

    def check_parts(self, parts: int) -> None:
        """Refuse a document with more elements and table cells."""
        if parts > self.parts:
            raise _too_large(
                f"it has more than {self.parts:,} paragraphs and table cells",
                "KERNLORE_MAX_DOCUMENT_PARTS",
            )

    def check_document(self, document: ParsedDocument) -> None:
        """Refuse a document with more elements, table cells or text."""
        parts = characters = 0
        for element in document.elements:
            table = element.table
            cells = sum(map(len, (*table.header, *table.rows))) if table is not None else 0
            parts += 1 + cells
            characters += len(element.text)
        self.check_parts(parts)
        if characters > self.characters:
            lines = (line for e in document.elements for line in e.text.split("\n"))
            self.check_characters(sum(min(len(line), LINE_CHARS) for line in lines))

    def check_characters(self, characters: int) -> None:
        """Refuse a document with more text."""
        if characters > self.characters:
            raise _too_large(
                f"it has more than {self.characters:,} characters of text", "KERNLORE_MAX_PASSAGES"
            )

    def check_passages(self, passages: int, what: str = "passages") -> None:
        """Refuse a document with more passages, or sections."""
        if passages > self.passages:
            raise _too_large(f"it has more than {self.passages:,} {what}", "KERNLORE_MAX_PASSAGES")

    def clock(self) -> ReadClock:
        """Start the time for cutting a document into passages."""
        return ReadClock(self.seconds)


class ReadClock:
    """The time that one document may take in this process."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise ParseFailed once the time is over."""
        if time.monotonic() > self._end:
            raise _too_large(
                f"cutting it into passages took longer than {self._seconds:g} s",
                "KERNLORE_PARSE_SECONDS",
            )


def _unpacked(archive: zipfile.ZipFile, limit: int) -> int:
    """The bytes of all members, counted up to a little more than `limit`. Damaged and encrypted
    members end where they cannot be read."""
    size = 0
    for entry in archive.infolist():
        entry.file_size = limit + 1  # else reading ends at the stated size
        del entry.CRC
        with suppress(*_DAMAGED), archive.open(entry) as member:
            while size <= limit and (block := member.read(_BLOCK)):
                size += len(block)
    return size


def _too_large(reason: str, setting: str) -> ParseFailed:
    return ParseFailed(
        f"this document is too large: {reason}",
        hint="Split it into several files and upload those; upload extracts of tables and logs."
        f" {setting} raises the limit.",
    )
