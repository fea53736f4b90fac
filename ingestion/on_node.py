"""What runs on a node of a cluster: one file is read, or some texts are embedded, as a single
machine does it. Nothing is stored there; the catalog is where the work was sent from.

A process of the cluster keeps its parser and its model for the next piece of work.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import kb.errors
from ingestion.findings.tags import Tagger
from ingestion.parse_process import ParseLimits, ParserPool
from ingestion.passages import encode_whole
from ingestion.read import ReadDocument, pipeline_parts, read_document
from kb.embedding import LocalEmbedder, open_embedder
from kb.errors import KernloreError
from kb.hardware.spec import HardwareSpec


@dataclass(frozen=True)
class Reading:
    """What all files have in common. `pipeline` is how they are read where they are stored: a node
    that would read them otherwise has no part in it."""

    limits: ParseLimits
    model: str
    fingerprint: str
    pipeline: tuple[str, ...]
    tagger: Tagger


@dataclass(frozen=True)
class File:
    """A file to be read, and what its sender says of it."""

    data: bytes
    name: str
    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    with_facts: bool


@dataclass(frozen=True)
class ReadsOtherwise:
    """A node that would read or embed otherwise, and in what."""

    node: str
    host: str
    difference: str


@dataclass(frozen=True)
class NotRead:
    """Why a file could not be read, as the parser says it."""

    kind: str
    message: str
    hint: str
    details: Mapping[str, object]

    def raise_it(self) -> None:
        """Raise it where the file is waited for."""
        kind = getattr(kb.errors, self.kind, kb.errors.ParseFailed)
        if "__init__" in vars(kind):
            kind = kb.errors.ParseFailed
        raise kind(self.message, hint=self.hint, details=self.details)


def read_file(
    reading: Reading, specs: Mapping[str, HardwareSpec], file: File
) -> Iterator[ReadDocument | ReadsOtherwise | NotRead]:
    """What a file yields."""
    embedder = _embedder(reading.model)
    difference = _difference(reading, pipeline_parts(embedder, reading.tagger))
    if difference:
        yield ReadsOtherwise(*_where(), difference)
        return
    try:
        with tempfile.TemporaryDirectory(prefix="kernlore-") as folder:
            path = Path(folder) / "document"
            path.write_bytes(file.data)
            parsed = _parsers(reading.limits).parse(path, file.name)
        yield read_document(
            parsed,
            embedder,
            reading.tagger,
            file.hardware,
            specs,
            file.languages,
            with_facts=file.with_facts,
        )
    except KernloreError as error:
        yield NotRead(type(error).__name__, error.message, error.hint, error.details)


def embed(
    reading: Reading, texts: Sequence[str]
) -> Iterator[list[NDArray[np.float32]] | ReadsOtherwise]:
    """One vector for each text."""
    embedder = _embedder(reading.model)
    if embedder.fingerprint != reading.fingerprint:
        difference = f"model {embedder.fingerprint} instead of {reading.fingerprint}"
        yield ReadsOtherwise(*_where(), difference)
        return
    yield encode_whole(embedder, texts)


def _difference(reading: Reading, here: tuple[str, ...]) -> str:
    """In what this node reads otherwise, in words; empty where it does not."""
    pairs = zip(here, reading.pipeline, strict=False)
    return ", ".join(f"{own} instead of {wanted}" for own, wanted in pairs if own != wanted)


@cache
def _parsers(limits: ParseLimits) -> ParserPool:
    return ParserPool(limits)


@cache
def _embedder(model: str) -> LocalEmbedder:
    return open_embedder(model, Path(tempfile.gettempdir()) / f"kernlore-node-{os.getuid()}")


def _where() -> tuple[str, str]:
    import ray

    node = ray.get_runtime_context().get_node_id()
    return node, f"{socket.gethostname()}/{node[:6]}"
