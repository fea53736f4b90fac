"""What reading the built-in documents gives, shipped beside them: a new data directory stores it
without parsing, cutting and tagging them, which takes longer than all else of a first start.

The file is derived from the documents; `kernlore knowledge vectors` writes it anew. A reading is
found by everything that it depends on: the bytes, what they were declared to be about, the chips
and how documents are read. What is not found is read as any other document is, so an old file costs
time and never a wrong passage. Knows nothing about the catalog.
"""

from __future__ import annotations

import threading
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import structlog
from numpy.typing import NDArray

from ingestion.formats import parse
from ingestion.on_node import File
from ingestion.passages import encode_whole
from ingestion.read import ReadDocument, pipeline_parts, read_document
from kb.hardware.spec import HardwareSpec
from kb.ids import sha256

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from ingestion.findings.tags import Tagger
    from kb.embedding import Embedder

FILE = "readings.zip"
# Those that take part in reading Markdown; other extras of an installation change nothing here.
_PARSERS = ("beautifulsoup4", "docutils", "lxml", "markdown-it-py")
_WRITTEN = (2026, 1, 1, 0, 0, 0)  # the same content is the same file

log = structlog.get_logger(__name__)


class ShippedReadings:
    """The readings in a folder of knowledge. `embedder` and `tagger` are those that would read its
    documents anew.
    """

    def __init__(self, folder: Path, embedder: Embedder, tagger: Tagger) -> None:
        self._path = folder / FILE
        self._embedder = embedder
        self._tagger = tagger
        self._lock = threading.Lock()  # protects the archive, which has one place in its file
        self._chips: tuple[object, str] = (None, "")

    def find(
        self,
        digest: str,
        hardware: Sequence[str],
        languages: Sequence[str],
        specs: Mapping[str, HardwareSpec],
    ) -> ReadDocument | None:
        """What reading bytes with this SHA-256 would give; None where that does not ship."""
        with self._lock:
            archive = self._archive
            if archive is None:
                return None
            name = self._name(digest, hardware, languages, specs)
            try:
                return _adapter().validate_json(archive.read(name))
            except KeyError:
                return None
            except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                log.warning("a reading that ships cannot be used", reason=str(error))
                return None

    def find_file(self, file: File, specs: Mapping[str, HardwareSpec]) -> ReadDocument | None:
        """As `find`, of a file."""
        return self.find(sha256(file.data), file.hardware, file.languages, specs)

    def name_of(self, file: File, specs: Mapping[str, HardwareSpec]) -> str:
        """What the reading of a file is found by."""
        with self._lock:
            return self._name(sha256(file.data), file.hardware, file.languages, specs)

    def _name(
        self,
        digest: str,
        hardware: Sequence[str],
        languages: Sequence[str],
        specs: Mapping[str, HardwareSpec],
    ) -> str:
        if self._chips[0] is not specs:  # the registry gives the same mapping until a chip changes
            self._chips = (specs, _chips(specs))
        about = repr((digest, sorted(hardware), sorted(languages)))
        return sha256("\n".join((about, self._pipeline, self._chips[1])))

    @cached_property
    def _pipeline(self) -> str:
        return "\n".join(pipeline_parts(self._embedder, self._tagger, _PARSERS))

    @cached_property
    def _archive(self) -> zipfile.ZipFile | None:
        try:
            return zipfile.ZipFile(self._path)
        except FileNotFoundError:
            return None
        except (OSError, zipfile.BadZipFile) as error:
            log.warning("readings that ship cannot be read; reading anew", reason=str(error))
            return None


class Recorder:
    """Reads and embeds as a worker does, in its place, and keeps what was read."""

    def __init__(self, shipped: ShippedReadings, embedder: Embedder, tagger: Tagger) -> None:
        self._shipped = shipped
        self._embedder = embedder
        self._tagger = tagger
        self.readings: dict[str, ReadDocument] = {}

    def read(self, file: File, specs: Mapping[str, HardwareSpec]) -> ReadDocument:
        """What a file of the folder yields; raises what its parser raises."""
        read = read_document(
            parse(file.data, file.name),
            self._embedder,
            self._tagger,
            file.hardware,
            specs,
            file.languages,
            with_facts=file.with_facts,
        )
        self.readings[self._shipped.name_of(file, specs)] = read
        return read

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """One vector for each text."""
        return encode_whole(self._embedder, texts)


def _chips(specs: Mapping[str, HardwareSpec]) -> str:
    """What reading looks at in the descriptions of chips: names and lineage, for the scope of a
    section, and which languages have command templates.
    """
    rows = [
        (key, spec.name, spec.aliases, spec.parent, _languages(spec)) for key, spec in specs.items()
    ]
    return sha256(repr(sorted(rows)))


def _languages(spec: HardwareSpec) -> list[tuple[str, str]]:
    return [(name, chain.builtin) for name, chain in spec.toolchains.items()]


@cache
def _adapter() -> TypeAdapter[ReadDocument]:
    from pydantic import TypeAdapter

    return TypeAdapter(ReadDocument)


def as_stored(read: ReadDocument) -> bytes:
    """A reading as the file holds it."""
    return _adapter().dump_json(read)


def write_readings(folder: Path, readings: Mapping[str, ReadDocument]) -> Path:
    """Write readings by the names that they are found by; the file."""
    path = folder / FILE
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(readings):
            entry = zipfile.ZipInfo(name, _WRITTEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, as_stored(readings[name]), compresslevel=9)
    return path
