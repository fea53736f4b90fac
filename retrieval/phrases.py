"""The vectors of the signals' phrases, kept beside the query model.

They are the same in every process and take a second to encode, so only the first process of a data
directory encodes them. The file is derived: where it cannot be read or written, they are encoded.
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
    """Each phrase's vector, as `encode_query` gives it."""
    path = folder / f"{embedder.fingerprint}.phrases.npz"
    kept = _read(path)
    if kept.keys() >= set(phrases):
        return {phrase: kept[phrase] for phrase in phrases}
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
        log.warning("kept vectors cannot be read; encoding the phrases anew", reason=str(error))
        return {}


def _write(path: Path, vectors: dict[str, Vectors]) -> None:
    """Whole or not at all: another process may read it, or write its own."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        private_folder(path.parent)
        with partial.open("wb") as file:
            np.savez(file, phrases=np.array(list(vectors)), vectors=np.stack([*vectors.values()]))
        partial.replace(path)
    except OSError as error:
        log.warning("vectors of phrases cannot be kept", reason=str(error))
        with suppress(OSError):
            partial.unlink()
