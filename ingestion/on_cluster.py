"""Files are read and texts embedded on the nodes of a cluster, many side by side; what comes back
is stored here, as if it had been made here.

Plain tasks, one for each file and for some dozens of texts: a document is searchable as soon as it
is read, one that fails fails alone, and uploads of people come first. docs/adr/029 says why not
Ray Data. A node that dies costs the files and texts that it was at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingestion.on_node import File, NotRead, Reading, ReadsOtherwise, embed, read_file
from ingestion.read import ReadDocument
from kb.cluster import NODE_ID, Cluster, Sent, WorkLost
from kb.errors import Unavailable
from kb.hardware.spec import HardwareSpec

TEXTS = 64  # of one task: about two seconds of a processor
TRIES = 3  # of one piece of work whose node is lost
LOOK_SECONDS = 2.0
LONGEST_SECONDS = 1800.0  # of one piece of work; the parser has limits of its own
NO_NODE_SECONDS = 60.0
MOST = 32  # files at once: each is stored by a thread here


class ClusterReading:
    """Reads and embeds on the nodes. Its methods may be called by any thread."""

    def __init__(self, cluster: Cluster, reading: Reading, log: Callable[[str], None]) -> None:
        """`log` gets remarks, from any thread."""
        self._cluster = cluster
        self._reading = cluster.put(reading)
        self._log = log
        self._changing = threading.Lock()  # protects _without and _specs
        self._without: set[str] = set()
        self._specs: tuple[Mapping[str, HardwareSpec], Any] | None = None
        if not self.at_once:
            raise Unavailable(
                "no node of the cluster has a processor to read with",
                hint="Start one with `ray start --address=HOST:PORT`.",
            )

    @property
    def at_once(self) -> int:
        """Files that are worth reading side by side: one for each processor of the nodes."""
        return min(MOST, sum(int(n.resources.get("CPU", 0)) for n in self._cluster.nodes()))

    def read(self, file: File, specs: Mapping[str, HardwareSpec]) -> ReadDocument:
        """What a file yields. Raises what its parser raised, and Unavailable."""
        known = self._known(specs)

        def send() -> Sent:
            return self._send(read_file, known, file, name=f"read {file.name[:60]}")

        answer = self._answered(send, send())
        if isinstance(answer, NotRead):
            answer.raise_it()
        assert isinstance(answer, ReadDocument)
        return answer

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """One vector for each text, whatever its length. Raises Unavailable."""
        parts = [texts[start : start + TEXTS] for start in range(0, len(texts), TEXTS)]
        senders = [self._embedding(part) for part in parts]
        sent = [send() for send in senders]
        vectors: list[NDArray[np.float32]] = []
        try:
            for send, first in zip(senders, sent, strict=True):
                vectors += self._answered(send, first)
        finally:
            for first in sent:
                self._cluster.forget(first)
        return vectors

    def _embedding(self, texts: Sequence[str]) -> Callable[[], Sent]:
        return lambda: self._send(embed, list(texts), name=f"embed {len(texts)} texts")

    def _known(self, specs: Mapping[str, HardwareSpec]) -> Any:
        """A reference to the chips, which are sent once as long as they stay the same."""
        with self._changing:
            if self._specs is None or self._specs[0] != specs:
                self._specs = specs, self._cluster.put(dict(specs))
            return self._specs[1]

    def _send(self, work: Callable[..., Any], *arguments: Any, name: str) -> Sent:
        options: dict[str, Any] = {"num_cpus": 1}
        with self._changing:
            if self._without:
                excluded = ",".join(sorted(self._without))
                options["label_selector"] = {NODE_ID: f"!in({excluded})"}
        return self._cluster.send(work, self._reading, *arguments, name=name, options=options)

    def _answered(self, send: Callable[[], Sent], sent: Sent) -> Any:
        """The answer, of another node where one is lost or is none of those that read alike."""
        lost = 0
        while True:
            try:
                self._wait(sent)
                answer = sent.next()
            except WorkLost as error:
                lost += 1
                if lost == TRIES:
                    raise
                self._log(f"{error.message}; what it was at begins again")
            else:
                if not isinstance(answer, ReadsOtherwise):
                    return answer
                self._leave_out(answer)
            finally:
                self._cluster.forget(sent)
            sent = send()

    def _wait(self, sent: Sent) -> None:
        waited = without_node = 0.0
        while not sent.answered(LOOK_SECONDS):
            waited += LOOK_SECONDS
            without_node = 0.0 if self._living() else without_node + LOOK_SECONDS
            if self._cluster.closed or without_node > NO_NODE_SECONDS or waited > LONGEST_SECONDS:
                raise Unavailable(
                    "the cluster does not read any more",
                    hint="Run the same command again to go on; `ray status` shows the nodes.",
                )

    def _living(self) -> bool:
        with self._changing:
            without = set(self._without)
        nodes = self._cluster.nodes()
        return any(n.id not in without and n.resources.get("CPU", 0) >= 1 for n in nodes)

    def _leave_out(self, node: ReadsOtherwise) -> None:
        with self._changing:
            known = node.node in self._without
            self._without.add(node.node)
        if not known:
            self._log(f"{node.host} is left out: {node.difference}")
