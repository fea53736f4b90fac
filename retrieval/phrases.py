"""Cached vectors of the signals' phrases.

They are the same in every process and take a second to encode, so the first process of a data
directory writes them to a file. The file is derived: if it cannot be read or written, the phrases
are encoded again.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import structlog

from kb.data_dir import private_folder
from kb.embedding import Embedder, Vectors

log = structlog.get_logger(__name__)


def phrase_vectors(embedder: Embedder, phrases: Sequence[str], folder: Path) -> dict[str, Vectors]:
    """The `encode_query` vector of each phrase."""
    path = folder / f"{embedder.fingerprint}.phrases.npz"
    cached = _read(path)
    if cached.keys() >= set(phrases):
        return {phrase: cached[phrase] for phrase in phrases}
    vectors = {phrase: embedder.encode_query(phrase) for phrase in phrases}
    _write(path, vectors)
    return vectors


def _read(path: Path) -> dict[str, Vectors]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return dict(zip(stored["phrases"].tolist(), stored["vectors"], strict=True))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        log.warning("cached phrase vectors cannot be read; encoding again", reason=str(error))
        return {}


def _write(path: Path, vectors: dict[str, Vectors]) -> None:
    """Write atomically: another process may read or write the file."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        private_folder(path.parent)
        with partial.open("wb") as file:
            np.savez(file, phrases=np.array(list(vectors)), vectors=np.stack([*vectors.values()]))
        partial.replace(path)
    except OSError as error:
        log.warning("phrase vectors cannot be cached", reason=str(error))
        with suppress(OSError):
            partial.unlink()
