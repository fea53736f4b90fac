"""The readings and vectors of the built-in documents, which ship with them: a new data directory
answers in seconds, where reading and embedding take minutes on two cores.

Both files are derived from the documents; `kernlore knowledge vectors` writes them. A reading is
found by all that it depends on: the bytes, their declared hardware and languages, the hardware
specs and the pipeline. A document that is not found is read like any other, so an outdated file
costs time but never gives a wrong passage.
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

from ingestion.formats import parse
from ingestion.read import DocumentFile, LocalReader, ReadDocument, pipeline_parts
from kb.catalog.engine import Catalog
from kb.catalog.knowledge import embeddings
from kb.catalog.knowledge.embeddings import Vector
from kb.catalog.meta import get, put
from kb.hardware.spec import HardwareSpec
from kb.ids import sha256

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from ingestion.findings.tags import Tagger
    from kb.embedding import Embedder

READINGS_FILE = "readings.zip"
VECTORS_FILE = "vectors.npz"
# The parsers of Markdown: versions of others do not matter here.
_PARSERS = ("beautifulsoup4", "docutils", "lxml", "markdown-it-py")
_WRITTEN = (2026, 1, 1, 0, 0, 0)  # a constant time, so that equal content gives equal files
_LOADED = "shipped_vectors"  # meta key: the digest of the file whose vectors the catalog has

log = structlog.get_logger(__name__)


# -- readings


class ShippedReadings:
    """The readings in a folder of knowledge. `embedder` and `tagger` are those of the pipeline that
    would read its documents."""

    def __init__(self, folder: Path, embedder: Embedder, tagger: Tagger) -> None:
        self._path = folder / READINGS_FILE
        self._embedder = embedder
        self._tagger = tagger
        self._lock = threading.Lock()  # protects the archive and _chips
        self._chips: tuple[object, str] = (None, "")

    def find(
        self,
        digest: str,
        hardware: Sequence[str],
        languages: Sequence[str],
        specs: Mapping[str, HardwareSpec],
    ) -> ReadDocument | None:
        """The reading of bytes with this SHA-256, or None."""
        with self._lock:
            if self._archive is None:
                return None
            name = self._name(digest, hardware, languages, specs)
            try:
                return _adapter().validate_json(self._archive.read(name))
            except KeyError:
                return None
            except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                log.warning("a reading that ships cannot be used", reason=str(error))
                return None

    def name_of(self, file: DocumentFile, specs: Mapping[str, HardwareSpec]) -> str:
        with self._lock:
            return self._name(sha256(file.data), file.hardware, file.languages, specs)

    def _name(
        self,
        digest: str,
        hardware: Sequence[str],
        languages: Sequence[str],
        specs: Mapping[str, HardwareSpec],
    ) -> str:
        if self._chips[0] is not specs:  # the registry returns one mapping until a chip changes
            self._chips = (specs, _digest_of(specs))
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


def _digest_of(specs: Mapping[str, HardwareSpec]) -> str:
    """The digest of all that readers use of hardware specs: names and lineage, for the scopes of
    sections, and the languages with command templates."""
    rows = [
        (
            *(key, spec.name, spec.aliases, spec.parent),
            [(name, chain.builtin) for name, chain in spec.toolchains.items()],
        )
        for key, spec in specs.items()
    ]
    return sha256(repr(sorted(rows)))


class RecordingReader(LocalReader):
    """Reads without a parser process, and records the readings by their names."""

    def __init__(self, shipped: ShippedReadings, embedder: Embedder, tagger: Tagger) -> None:
        super().__init__(embedder, tagger, parse)
        self._shipped = shipped
        self.readings: dict[str, ReadDocument] = {}

    def read(self, file: DocumentFile, specs: Mapping[str, HardwareSpec]) -> ReadDocument:
        """The content of a file. Raises the error of its parser."""
        read = super().read(file, specs)
        self.readings[self._shipped.name_of(file, specs)] = read
        return read


@cache
def _adapter() -> TypeAdapter[ReadDocument]:
    from pydantic import TypeAdapter

    return TypeAdapter(ReadDocument)


def reading_to_json(read: ReadDocument) -> bytes:
    """A reading as it is in the file."""
    return _adapter().dump_json(read)


def write_readings(folder: Path, readings: Mapping[str, ReadDocument]) -> Path:
    """Write readings by name; returns the file."""
    path = folder / READINGS_FILE
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(readings):
            entry = zipfile.ZipInfo(name, _WRITTEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, reading_to_json(readings[name]), compresslevel=9)
    return path


# -- vectors


def put_shipped(catalog: Catalog, folder: Path, model: str) -> int:
    """Store the vectors that ship in `folder`, unless the catalog has them; returns their number.
    A passage without one is embedded like any other."""
    path = folder / VECTORS_FILE
    if not path.is_file():
        return 0
    digest = f"{model} {sha256(path.read_bytes())}"
    with catalog.read() as connection:
        if get(connection, _LOADED) == digest:
            return 0
    vectors = read_vectors(path, model)
    with catalog.write() as connection:
        embeddings.put(connection, model, vectors)
        put(connection, _LOADED, digest)
    return len(vectors)


def read_vectors(path: Path, model: str) -> dict[str, Vector]:
    """The vectors of a file by the SHA-256 of their text; none if it is of another model or cannot
    be read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if str(stored["model"]) != model:
                return {}
            names, rows = stored["sha256"], stored["vectors"].astype(np.float32)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        log.warning("vectors that ship cannot be read; embedding instead", reason=str(error))
        return {}
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return {bytes(name).hex(): row for name, row in zip(names, rows, strict=True)}


def write_vectors(path: Path, model: str, vectors: Mapping[str, Vector]) -> None:
    """Write vectors by the SHA-256 of their text, in half precision: cosines change by 1e-4."""
    names = sorted(vectors)
    digests = np.frombuffer(bytes.fromhex("".join(names)), np.uint8).reshape(len(names), 32)
    rows = np.stack([vectors[name] for name in names]).astype(np.float16)
    np.savez(path, model=np.array(model), sha256=digests, vectors=rows)


def embed_folder(catalog: Catalog, folder: Path, model: str) -> Path:
    """Write the vectors of all passages of a catalog that has read and embedded only this folder;
    returns the file."""
    path = folder / VECTORS_FILE
    with catalog.read() as connection:
        vectors = embeddings.of_active(connection, model)
    write_vectors(path, model, vectors)
    return path
