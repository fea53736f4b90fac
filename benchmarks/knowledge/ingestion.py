"""How fast documents become searchable, and that nothing is read or embedded twice.

End to end in this process, with the product's own worker and parser child: from handing over the
first file to the last vector. Then the same files again, then with three of them edited.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from api.cli.target import read_settings
from api.services import Services, open_services
from benchmarks.report import ended, say, table, write_result
from benchmarks.retrieval.corpus import Corpus, CorpusFile, load_corpus
from benchmarks.retrieval.scoring import listed
from benchmarks.service import memory_of
from ingestion.uploads import FileUpload
from kb.catalog.knowledge import embeddings
from kb.embedding import Embedder, Vectors
from kb.errors import InvalidRequest, KernloreError
from kb.hardware.schema import parse_hardware

EDITED = 3
EDIT = "\n\nThe benchmark put this one sentence here; nothing around it was changed.\n\n"
_EDITABLE = (".md", ".rst", ".txt")
TITLE = "Ingestion"


class Counting:
    """An embedder that counts its texts."""

    def __init__(self, base: Embedder) -> None:
        self._base = base
        self.fingerprint = base.fingerprint
        self.dimension = base.dimension
        self.window = base.window
        self.texts = 0
        self.seconds = 0.0

    def count_tokens(self, text: str) -> int:
        return self._base.count_tokens(text)

    def encode(self, texts: Sequence[str]) -> Vectors:
        started = time.perf_counter()
        vectors = self._base.encode(texts)
        self.texts += len(texts)
        self.seconds += time.perf_counter() - started
        return vectors

    def encode_query(self, text: str) -> Vectors:
        return self._base.encode_query(text)


@dataclass(frozen=True)
class Pass:
    """One time through a set of files. `passages`: live ones in the store afterwards; `encoded`:
    texts that the embedder was given.
    """

    name: str
    outcomes: Mapping[str, int]
    states: Mapping[str, int]
    passages: int
    encoded: int
    encoding_seconds: float
    seconds: float

    def row(self) -> list[str]:
        def counted(counts: Mapping[str, int]) -> str:
            return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "none"

        return [
            self.name,
            counted(self.outcomes),
            counted(self.states),
            f"{self.passages:,}",
            f"{self.encoded:,}",
            f"{self.seconds:.1f}",
            f"{self.encoding_seconds:.1f}",
            f"{self.encoded / self.seconds:.0f}",
        ]


HEADER = (
    "run",
    "uploads",
    "jobs",
    "passages in the store",
    "passages embedded",
    "seconds",
    "of it encoding",
    "embedded/s end to end",
)


def ingest(
    services: Services, name: str, uploads: Sequence[FileUpload], counting: Counting
) -> Pass:
    """Submit, read, embed; returns when nothing is queued."""
    counting.texts, counting.seconds = 0, 0.0
    outcomes: Counter[str] = Counter()
    jobs = []
    started = time.perf_counter()
    for upload in uploads:
        try:
            submitted = services.uploads.submit(upload)
        except KernloreError as error:
            outcomes["refused"] += 1
            say(f"refused: {upload.name}: {error.message}")
            continue
        outcomes[submitted.outcome] += 1
        jobs += [submitted.job_id] if submitted.job_id is not None else []
    with services.local_reader() as reader:
        services.worker(reader).drain()
    seconds = time.perf_counter() - started
    with services.catalog.read() as connection:
        _, passages = embeddings.counts(connection, counting.fingerprint)
    done = [services.jobs.get(job) for job in jobs]
    for job in done:
        if job.error:
            say(f"{job.state}: {job.subject_id}: {job.error['message']}")
    states = Counter(str(job.state) for job in done)
    say(f"{name}: {passages} passages, {counting.texts} embedded, {seconds:.1f} s")
    return Pass(name, outcomes, states, passages, counting.texts, counting.seconds, seconds)


def register(services: Services, hardware: Sequence[str]) -> None:
    known = services.registry.all()
    for hardware_id in hardware:
        if hardware_id not in known:
            spec = {"id": hardware_id, "name": hardware_id, "vendor": "unknown"}
            services.registry.put(parse_hardware(spec, hardware_id), "api")


def upload_of(file: CorpusFile, data: bytes | None = None) -> FileUpload:
    content = file.path.read_bytes() if data is None else data
    return FileUpload(file.name, content, category="hardware", hardware=file.hardware)


def edited(corpus: Corpus) -> list[FileUpload]:
    """Three documents of middle size with one sentence more in their middle."""
    texts = [f for f in corpus.files if f.path.suffix.lower() in _EDITABLE]
    texts.sort(key=lambda f: (f.path.stat().st_size, f.hardware, f.name))
    middle = len(texts) // 2
    uploads = []
    for file in texts[max(0, middle - EDITED // 2) :][:EDITED]:
        data = file.path.read_bytes()
        place = data.find(b"\n\n", len(data) // 2)
        place = len(data) if place < 0 else place
        uploads.append(upload_of(file, data[:place] + EDIT.encode() + data[place:].lstrip(b"\n")))
    return uploads


class ChildPeak:
    """The most memory that any child of this process held, sampled: a child's own count of it would
    include what its parent held when it was started.
    """

    def __init__(self, every_seconds: float = 0.2) -> None:
        self.mib = 0.0
        self._every = every_seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ChildPeak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(self._every):
            for pid in _children():
                held = memory_of(pid)
                self.mib = max(self.mib, held.peak if held is not None else 0.0)


def _children() -> list[int]:
    result = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        except OSError:
            continue  # it ended meanwhile
        if int(after_name.split()[1]) == os.getpid():
            result.append(int(stat.parent.name))
    return result


def own_peak_mib() -> float:
    scale = 1024 if sys.platform != "darwin" else 1024 * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


# -- the run


def run(given: argparse.Namespace) -> None:
    corpus = load_corpus(given.corpus).only(listed(given.hardware))
    if given.data_dir is not None and (given.data_dir / "catalog.sqlite").exists():
        raise InvalidRequest(
            f"{given.data_dir} already holds a store",
            hint="Ingestion is measured into an empty one: give another --data-dir, or none.",
        )
    with tempfile.TemporaryDirectory(prefix="kernlore-ingestion-") as folder:
        data_dir = given.data_dir or Path(folder) / "data"
        services = open_services(read_settings(data_dir))
        try:
            parts = _measured(services, corpus)
        finally:
            services.close()
    write_result(given.results, TITLE, parts)


def _measured(services: Services, corpus: Corpus) -> list[str]:
    counting = Counting(services.embedder)
    services.__dict__["embedder"] = counting
    counting.encode(["the model is loaded before the clock starts"])
    register(services, corpus.hardware)
    everything = [upload_of(file) for file in corpus.files]
    with ChildPeak() as children:
        passes = [ingest(services, "first run", everything, counting)]
        peak = own_peak_mib()
    passes.append(ingest(services, "the same files again", everything, counting))
    changes = edited(corpus)
    passes.append(ingest(services, f"{len(changes)} files edited", changes, counting))
    return [
        "\n".join(f"* {line}" for line in corpus.lines()),
        table(HEADER, [one.row() for one in passes]),
        f"The edited documents have {_passages_of(services, changes):,} passages together.",
        f"Peak memory of the first run: parent {peak:.0f} MiB (model included), parser child"
        f" {children.mib:.0f} MiB.",
    ]


def _passages_of(services: Services, uploads: Sequence[FileUpload]) -> int:
    keys = {f"{'+'.join(sorted(u.hardware))}/{u.name}" for u in uploads}
    return sum(d.passages for d in services.documents.find() if d.source_key in keys)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.knowledge.ingestion", description=__doc__
    )
    parser.add_argument("--corpus", type=Path, required=True, help="Folder of documents.")
    parser.add_argument("--data-dir", type=Path, help="An empty one to keep; default: temporary.")
    parser.add_argument("--hardware", default="", help="Only these ids, comma-separated.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
