"""Ray Data against the tasks of `kernlore ingest --ray`: the same files read and embedded on the
same local cluster by both.

    python -m benchmarks.cluster.ray_data hw_manuals/guidance hw_manuals/constraints

A row of the dataset is a file. Ray Data runs the very functions of a node, each file's texts
embedded beside it; nothing is stored by either.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api.cli.target import read_settings
from api.services import Services, open_services
from benchmarks.cluster.ray_nodes import RayCluster
from benchmarks.processes import descendants, take_orphans
from benchmarks.report import ended, say, table, write_result
from ingestion.on_cluster import TEXTS, ClusterReading
from ingestion.on_node import File, NotRead, Reading, embed, read_file
from ingestion.parse_process import ParseLimits
from ingestion.read import ReadDocument, pipeline_parts
from ingestion.uploads import files_under
from kb.cluster import Cluster, connected
from kb.errors import KernloreError
from kb.hardware.spec import HardwareSpec

TITLE = "Reading on a cluster: own tasks and Ray Data"
PACKAGES = ("kb", "ingestion")

LOOK_SECONDS = 0.5
TICKS = os.sysconf("SC_CLK_TCK")
BROKEN = File(b"%PDF-1.7 nothing follows", "broken.pdf", (), (), True)


@dataclass
class Usage:
    """What the processes below this one took, this one left out: processor seconds and the most
    memory at one time in MiB, with shared pages counted once."""

    processor: float = 0.0
    memory: float = 0.0
    _seen: dict[tuple[int, str], float] = field(default_factory=dict)

    def look(self) -> None:
        """Note what they hold now."""
        memory = 0.0
        for pid in descendants(os.getpid()):
            try:
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue  # ended meanwhile
            self._seen[pid, stat[19]] = (int(stat[11]) + int(stat[12])) / TICKS
            line = next((x for x in rollup.splitlines() if x.startswith("Pss:")), "Pss: 0 kB")
            memory += int(line.split()[1]) / 1024
        self.memory = max(self.memory, memory)
        self.processor = sum(self._seen.values())


@contextmanager
def _watched(usage: Usage) -> Iterator[None]:
    done = threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_SECONDS):
            usage.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        usage.look()


@dataclass(frozen=True)
class Method:
    """One way on its way through all files. `came` are the seconds after which each document was
    here; `failed` those that could not be read, `texts` what has a vector."""

    name: str
    seconds: float
    processor: float
    memory: float
    came: Sequence[float]
    failed: Sequence[str]
    texts: int


@dataclass(frozen=True)
class Work:
    """What both read."""

    files: Sequence[File]
    reading: Reading
    specs: Mapping[str, HardwareSpec]


def texts_of(document: ReadDocument) -> list[str]:
    """What is embedded of a document."""
    return [passage.text for passage in document.content.passages]


def by_tasks(cluster: Cluster, work: Work) -> tuple[list[float], list[str], int]:
    """As `kernlore ingest --ray` does it: a task for each file, and for each 64 texts."""
    nodes = ClusterReading(cluster, work.reading, say)
    began, came, failed, waiting, vectors = time.monotonic(), [], [], [], []
    with ThreadPoolExecutor(2 * nodes.at_once) as threads:
        reads = {threads.submit(nodes.read, file, work.specs): file for file in work.files}
        for read in as_completed(reads):
            try:
                waiting += texts_of(read.result())
                came.append(time.monotonic() - began)
            except KernloreError:
                failed.append(reads[read].name)
            while len(waiting) >= TEXTS:
                part, waiting = waiting[:TEXTS], waiting[TEXTS:]
                vectors.append(threads.submit(nodes.encode, part))
        vectors.append(threads.submit(nodes.encode, waiting))
        return came, failed, sum(len(vector.result()) for vector in vectors)


def by_ray_data(cluster: Cluster, work: Work) -> tuple[list[float], list[str], int]:
    """A dataset of files, mapped to what they yield."""
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    known = ray.put((work.reading, dict(work.specs)))

    def read(row: dict[str, Any]) -> dict[str, Any]:
        reading, specs = ray.get(known)
        (document,) = read_file(reading, specs, row["file"])
        if not isinstance(document, ReadDocument):
            return {"name": row["file"].name, "document": document, "vectors": []}
        texts = texts_of(document)
        vectors: list[Any] = []
        for start in range(0, len(texts), TEXTS):
            (part,) = embed(reading, texts[start : start + TEXTS])
            vectors += part if isinstance(part, list) else []
        return {"name": row["file"].name, "document": document, "vectors": vectors}

    began, came, failed, texts = time.monotonic(), [], [], 0
    rows = [{"file": file} for file in work.files]
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map(read, num_cpus=1)
    for row in dataset.iter_rows():
        if isinstance(row["document"], NotRead):
            failed.append(row["name"])
        else:
            came.append(time.monotonic() - began)
            texts += len(row["vectors"])
    return came, failed, texts


METHODS: Mapping[str, Callable[[Cluster, Work], tuple[list[float], list[str], int]]] = {
    "own tasks": by_tasks,
    "Ray Data": by_ray_data,
}


def measured(name: str, work: Work, nodes: int) -> Method:
    """One method on a cluster of its own, the second time that it goes through the files."""
    cluster = RayCluster(nodes)
    run = METHODS[name]
    try:
        cluster.start()
        with connected(cluster.address, PACKAGES) as connection:
            run(connection, work)  # so that every process has its model
            usage, before = Usage(), Usage()
            before.look()
            began = time.monotonic()
            with _watched(usage):
                came, failed, texts = run(connection, work)
            seconds = time.monotonic() - began
    finally:
        cluster.stop()
    taken = usage.processor - before.processor
    return Method(name, seconds, taken, usage.memory, came, failed, texts)


def work_of(services: Services, paths: Sequence[Path]) -> Work:
    """The files, one of them broken, and how they are read."""
    files = [File(file.path.read_bytes(), file.name, (), (), True) for file in files_under(paths)]
    settings = services.settings
    limits = ParseLimits(
        settings.parse_memory_bytes >> 20, int(settings.parse_seconds), settings.parse_seconds
    )
    embedder = services.embedder
    parts = pipeline_parts(embedder, services.tagger)
    reading = Reading(limits, settings.embedder, embedder.fingerprint, parts, services.tagger)
    return Work([*files, BROKEN], reading, services.registry.all())


def _shown(methods: Sequence[Method]) -> str:
    rows = [
        ["documents", *(str(len(m.came)) for m in methods)],
        ["texts embedded", *(f"{m.texts:,}" for m in methods)],
        ["not read, with their reason", *(", ".join(m.failed) or "-" for m in methods)],
        ["seconds", *(f"{m.seconds:.1f}" for m in methods)],
        ["documents a minute", *(f"{60 * len(m.came) / m.seconds:.0f}" for m in methods)],
        ["processor seconds of the cluster", *(f"{m.processor:.0f}" for m in methods)],
        ["most memory of the cluster, MiB", *(f"{m.memory:,.0f}" for m in methods)],
        ["first document after, s", *(f"{min(m.came):.1f}" for m in methods)],
        ["half of them after, s", *(f"{statistics.median(m.came):.1f}" for m in methods)],
    ]
    return table(["", *(method.name for method in methods)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", type=Path, nargs="+", help="files and folders to read")
    parser.add_argument("--nodes", type=int, default=2, help="of one processor each")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path, help="Markdown file for the result")
    options = parser.parse_args()
    take_orphans()
    methods = []
    with tempfile.TemporaryDirectory(prefix="kernlore-ray-data-") as folder:
        services = open_services(read_settings(Path(folder)))
        work = work_of(services, options.paths)
        for _ in range(options.rounds):
            for name in METHODS:
                methods.append(measured(name, work, options.nodes))
                say(_shown(methods[-1:]))
        services.close()
    write_result(options.output, TITLE, [_shown(methods)])


if __name__ == "__main__":
    ended(main)
