"""Read files and embed texts on the nodes of a cluster, many at once; the results are stored here.

Plain tasks, one for each file and for some dozens of texts: a document is searchable as soon as it
is read, a failure affects one file, and uploads of people come first. docs/adr/029 explains why not
Ray Data. The work of a node that dies begins again on another. A process of the cluster reuses its
parser and model.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingestion.findings.tags import Tagger
from ingestion.parse_process import ParseLimits, ParserProcess, error_from_json, error_to_json
from ingestion.passages import encode_whole
from ingestion.read import DocumentFile, LocalReader, ReadDocument, pipeline_parts
from kb.cluster import NODE_ID, Cluster, SentTask, WorkLost
from kb.embedding import LocalEmbedder, open_embedder
from kb.errors import KernloreError, Unavailable
from kb.hardware.spec import HardwareSpec

TEXTS = 64  # in a task: about two seconds of a processor
TRIES = 3  # of one task whose node is lost
LOOK_SECONDS = 2.0
LONGEST_SECONDS = 1800.0  # of one task; the parser has its own limits
NO_NODE_SECONDS = 60.0
MOST = 32  # files at once: each is stored by a thread here


@dataclass(frozen=True)
class ClusterPipeline:
    """How to read and embed. A node whose `parts` of the pipeline differ is not used."""

    limits: ParseLimits
    model: str
    fingerprint: str
    parts: tuple[str, ...]
    tagger: Tagger


class ClusterReader:
    """A DocumentReader on the nodes. Its methods may be called by any thread."""

    def __init__(
        self, cluster: Cluster, pipeline: ClusterPipeline, log: Callable[[str], None]
    ) -> None:
        """`log` gets remarks, from any thread."""
        self._cluster = cluster
        self._pipeline = cluster.put(pipeline)
        self._log = log
        self._changing = threading.Lock()  # protects _excluded and _specs
        self._excluded: set[str] = set()
        self._specs: tuple[Mapping[str, HardwareSpec], Any] | None = None
        if not self.at_once:
            raise Unavailable(
                "no node of the cluster has a processor to read with",
                hint="Start one with `ray start --address=HOST:PORT`.",
            )

    @property
    def at_once(self) -> int:
        """The useful number of files at once: one for each processor of the nodes."""
        return min(MOST, sum(int(n.resources.get("CPU", 0)) for n in self._cluster.nodes()))

    def read(self, file: DocumentFile, specs: Mapping[str, HardwareSpec]) -> ReadDocument:
        """The content of a file. Raises the error of its parser, and Unavailable."""
        sent_specs = self._sent(specs)

        def send() -> SentTask:
            return self._send(read_file, sent_specs, file, name=f"read {file.name[:60]}")

        result = self._result(send, send())
        if isinstance(result, NotRead):
            raise error_from_json(result.error)
        assert isinstance(result, ReadDocument)
        return result

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """One vector for each text, of any length. Raises Unavailable."""
        parts = [list(texts[start : start + TEXTS]) for start in range(0, len(texts), TEXTS)]
        senders = [self._sender(part) for part in parts]
        sent = [send() for send in senders]
        vectors: list[NDArray[np.float32]] = []
        try:
            for send, first in zip(senders, sent, strict=True):
                vectors += self._result(send, first)
        finally:
            for first in sent:
                self._cluster.finish(first)
        return vectors

    def _sender(self, texts: list[str]) -> Callable[[], SentTask]:
        return lambda: self._send(embed, texts, name=f"embed {len(texts)} texts")

    def _sent(self, specs: Mapping[str, HardwareSpec]) -> Any:
        """A reference to the hardware specs, which are sent again only after a change."""
        with self._changing:
            if self._specs is None or self._specs[0] != specs:
                self._specs = specs, self._cluster.put(dict(specs))
            return self._specs[1]

    def _send(self, work: Callable[..., Any], *arguments: Any, name: str) -> SentTask:
        options: dict[str, Any] = {"num_cpus": 1}
        with self._changing:
            if self._excluded:
                excluded = ",".join(sorted(self._excluded))
                options["label_selector"] = {NODE_ID: f"!in({excluded})"}
        return self._cluster.send(work, self._pipeline, *arguments, name=name, options=options)

    def _result(self, send: Callable[[], SentTask], sent: SentTask) -> Any:
        """The result of a task, which is sent again if its node is lost or reads differently."""
        lost = 0
        while True:
            try:
                self._wait(sent)
                result = sent.next()
            except WorkLost as error:
                lost += 1
                if lost == TRIES:
                    raise
                self._log(f"{error.message}; its work begins again")
            else:
                if not isinstance(result, DifferentPipeline):
                    return result
                self._exclude(result)
            finally:
                self._cluster.finish(sent)
            sent = send()

    def _wait(self, sent: SentTask) -> None:
        waited = without_node = 0.0
        while not sent.wait_for_value(LOOK_SECONDS):
            waited += LOOK_SECONDS
            without_node = 0.0 if self._has_nodes() else without_node + LOOK_SECONDS
            if self._cluster.closed or without_node > NO_NODE_SECONDS or waited > LONGEST_SECONDS:
                raise Unavailable(
                    "the cluster no longer reads",
                    hint="Run the same command again to go on; `ray status` shows the nodes.",
                )

    def _has_nodes(self) -> bool:
        with self._changing:
            excluded = set(self._excluded)
        nodes = self._cluster.nodes()
        return any(n.id not in excluded and n.resources.get("CPU", 0) >= 1 for n in nodes)

    def _exclude(self, node: DifferentPipeline) -> None:
        with self._changing:
            known = node.node in self._excluded
            self._excluded.add(node.node)
        if not known:
            self._log(f"{node.host} is left out: {node.difference}")


# -- tasks on a node


@dataclass(frozen=True)
class DifferentPipeline:
    """A node that would read or embed differently, and the difference."""

    node: str
    host: str
    difference: str


@dataclass(frozen=True)
class NotRead:
    """The error of a parser as JSON."""

    error: Mapping[str, Any]


def read_file(
    pipeline: ClusterPipeline, specs: Mapping[str, HardwareSpec], file: DocumentFile
) -> Iterator[ReadDocument | DifferentPipeline | NotRead]:
    """Yield the content of a file."""
    embedder = _embedder(pipeline.model)
    pairs = zip(pipeline_parts(embedder, pipeline.tagger), pipeline.parts, strict=False)
    differences = [f"{own} instead of {wanted}" for own, wanted in pairs if own != wanted]
    if differences:
        yield DifferentPipeline(*_node(), ", ".join(differences))
        return
    limits = pipeline.limits
    parse = _parsers(limits).parse_bytes
    reader = LocalReader(embedder, pipeline.tagger, parse, limits.document)
    try:
        yield reader.read(file, specs)
    except KernloreError as error:
        yield NotRead(error_to_json(error))


def embed(
    pipeline: ClusterPipeline, texts: Sequence[str]
) -> Iterator[list[NDArray[np.float32]] | DifferentPipeline]:
    """Yield one vector for each text."""
    embedder = _embedder(pipeline.model)
    if embedder.fingerprint != pipeline.fingerprint:
        difference = f"model {embedder.fingerprint} instead of {pipeline.fingerprint}"
        yield DifferentPipeline(*_node(), difference)
        return
    yield encode_whole(embedder, texts)


@cache
def _parsers(limits: ParseLimits) -> ParserProcess:
    return ParserProcess(limits)


@cache
def _embedder(model: str) -> LocalEmbedder:
    return open_embedder(model, Path(tempfile.gettempdir()) / f"kernlore-node-{os.getuid()}")


def _node() -> tuple[str, str]:
    """The id of this node, and a name for people."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    return node, f"{socket.gethostname()}/{node[:6]}"
