"""Bulk reading on a Ray cluster: plain tasks, as `kernlore ingest --ray` sends them, and the same
functions through Ray Data.

`python -m benchmarks.cluster.reading --copies 10 --nodes 2` starts a cluster of so many nodes with
one processor each on this machine, reads copies of built-in documents and embeds their passages,
both ways in turn, and prints a table. What it measures is the way that work is sent: nodes of one
machine share its processors.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingestion.builtin import builtin_hardware
from ingestion.findings.tags import SignalWords, Tagger
from ingestion.on_cluster import TEXTS, ClusterReading
from ingestion.on_node import File, Reading, embed, read_file
from ingestion.parse_process import ParseLimits
from ingestion.read import pipeline_parts
from kb.cluster.connection import connected
from kb.embedding import DEFAULT_MODEL, embedding_text, open_embedder
from kb.settings import Settings
from retrieval.diagnose.signals import load_signals

STORE_BYTES = 200_000_000


@dataclass(frozen=True)
class Took:
    """Seconds until the first document was read, all of them were, and all passages embedded."""

    first: float
    read: float
    embedded: float
    passages: int


@contextmanager
def local_cluster(nodes: int) -> Iterator[str]:
    """The address of a cluster of nodes with one processor each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="kr", dir="/tmp")
    (Path(os.environ["RAY_TMPDIR"]) / "ray").mkdir()
    from ray.cluster_utils import Cluster

    given: dict[str, Any] = {"object_store_memory": STORE_BYTES}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **given}
    )
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, **given)
    yield str(cluster.address)
    cluster.shutdown()


def by_tasks(reading: ClusterReading, files: Sequence[File], specs: Any) -> Took:
    """As the workers of `ingest --ray` send it, without a catalog."""
    began = time.monotonic()
    first = 0.0
    texts: list[str] = []
    with ThreadPoolExecutor(reading.at_once) as pool:
        for done in as_completed([pool.submit(reading.read, file, specs) for file in files]):
            texts += _texts(done.result())
            first = first or time.monotonic() - began
    read = time.monotonic() - began
    reading.encode(texts)
    return Took(first, read, time.monotonic() - began, len(texts))


def by_data(common: Reading, files: Sequence[File], specs: Any, at_once: int) -> Took:
    """The same functions in a dataset: rows are files, then batches of texts."""
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    began = time.monotonic()
    first = 0.0
    texts: list[str] = []
    rows = ray.data.from_items([{"file": file} for file in files], override_num_blocks=len(files))
    for row in rows.map(_Read(common, specs), num_cpus=1).iter_rows():
        texts += row["texts"]
        first = first or time.monotonic() - began
    read = time.monotonic() - began
    batches = ray.data.from_items([{"text": text} for text in texts]).map_batches(
        _Embed(common), batch_size=TEXTS, num_cpus=1, concurrency=at_once
    )
    count = sum(1 for _ in batches.iter_rows())
    assert count == len(texts)
    return Took(first, read, time.monotonic() - began, count)


@dataclass
class _Read:
    common: Reading
    specs: Any

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        (answer,) = read_file(self.common, self.specs, row["file"])
        return {"texts": _texts(answer)}


@dataclass
class _Embed:
    common: Reading

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        (vectors,) = embed(self.common, list(batch["text"]))
        return {"vector": list(vectors)}  # type: ignore[arg-type]


def _texts(read: Any) -> list[str]:
    paths = [section.path for section in read.content.sections]
    return [embedding_text(paths[p.section], p.lead, p.text) for p in read.content.passages]


def main() -> None:
    """Read both ways in turn, and print what each took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=10, help="of each document")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    settings = Settings()
    specs = {spec.id: spec for spec in builtin_hardware(settings.knowledge_dir)}
    documents = sorted((settings.knowledge_dir / "hardware" / "h100").glob("*.md"))
    files = [
        File(f"{path.read_text()}\nCopy {n}.\n".encode(), path.name, ("h100",), (), True)
        for n in range(options.copies)
        for path in documents
    ]
    tagger = Tagger({s.id: SignalWords(s.topics, s.phrases) for s in load_signals()})
    embedder = open_embedder(DEFAULT_MODEL, settings.models_dir)
    common = Reading(
        ParseLimits(),
        DEFAULT_MODEL,
        embedder.fingerprint,
        pipeline_parts(embedder, tagger),
        tagger,
    )
    print("| way | round | files | passages | first file s | all read s | all embedded s |")
    print("|---|---|---|---|---|---|---|")
    with local_cluster(options.nodes) as address, connected(address, ("kb", "ingestion")) as to:
        reading = ClusterReading(to, common, print)
        by_tasks(reading, files[:2], specs)  # processes start
        for number in range(1, options.rounds + 1):
            for way, took in (
                ("tasks", by_tasks(reading, files, specs)),
                ("Ray Data", by_data(common, files, specs, reading.at_once)),
            ):
                print(
                    f"| {way} | {number} | {len(files)} | {took.passages} | {took.first:.1f} |"
                    f" {took.read:.1f} | {took.embedded:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
