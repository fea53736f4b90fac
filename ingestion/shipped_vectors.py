"""Vectors that ship with the built-in knowledge, so that a new data directory answers by meaning as
soon as its documents are read: embedding them takes minutes on two cores.

The file is derived from the documents; `kernlore knowledge vectors` writes it anew. A passage that
has no vector in it is embedded as any other is.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import structlog

from kb.catalog.engine import Catalog
from kb.catalog.knowledge import embeddings
from kb.catalog.knowledge.embeddings import Vector
from kb.catalog.meta import get, put
from kb.ids import sha256

FILE = "vectors.npz"
_LOADED = "shipped_vectors"  # meta key: the digest of the file whose vectors the catalog has

log = structlog.get_logger(__name__)


def read_vectors(path: Path, model: str) -> dict[str, Vector]:
    """The vectors of a file by the SHA-256 of their text; none where it was made with another model
    or cannot be read.
    """
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
    """Write vectors, by the SHA-256 of their text, in half precision: cosines change by 1e-4."""
    names = sorted(vectors)
    digests = np.frombuffer(bytes.fromhex("".join(names)), np.uint8).reshape(len(names), 32)
    rows = np.stack([vectors[name] for name in names]).astype(np.float16)
    np.savez(path, model=np.array(model), sha256=digests, vectors=rows)


def put_shipped(catalog: Catalog, folder: Path, model: str) -> int:
    """Store the vectors that ship in `folder`, unless the catalog has them; how many were read."""
    path = folder / FILE
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


def embed_folder(catalog: Catalog, folder: Path, model: str) -> Path:
    """Write the vectors of all passages of a catalog that has read nothing but this folder of
    knowledge, and every one of them embedded. Returns the file.
    """
    path = folder / FILE
    with catalog.read() as connection:
        vectors = embeddings.of_active(connection, model)
    write_vectors(path, model, vectors)
    return path
