"""Latency of answers in process compared with other retrievers on the same store, by kind of
request.

    python -m benchmarks.retrieval.peers --data-dir DIR --gold GOLD.jsonl

The peers get the passages and vectors of the store and the same requests: llama-index's fusion of
its BM25 and vector retrievers, a query of a Chroma collection, and tantivy. They return twenty
passages about the chip of the request; Kernlore diagnoses, ranks and composes a whole context. All
encode a request with the same model, and no two requests are equal. One thread, one process each
time; each kind is measured with every retriever before the next, so that they share the variations
of the machine.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from llama_index.core import QueryBundle, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode
from pydantic import PrivateAttr

from api.cli.target import read_settings
from api.services import Services, open_services
from benchmarks.report import ended, say, table, write_result
from benchmarks.retrieval.baselines import bm25_of, fusion_of, has_bm25
from benchmarks.retrieval.latency import DEPTHS, request_of
from benchmarks.retrieval.scoring import Request, Scorer, scorer_beside
from kb.catalog import tables as t
from kb.embedding import Vectors
from kb.errors import InvalidRequest
from kb.scope import ANY
from retrieval.diagnose.signals import load_signals

TITLE = "Retrieval beside other retrievers"
TOP = 20
CHIPS = 4  # that the requests are about: a peer may need an index for each
WARM_UP = 10
KINDS = ("signal", "question", "log")
HEADER = ("kind", "retriever", "n", "p50 ms", "p99 ms", "mean ms of CPU")
Send = Callable[[Request], object]


@dataclass(frozen=True)
class Passage:
    """`hardware` is empty for a passage about any chip."""

    text: str
    hardware: tuple[str, ...]


@dataclass(frozen=True)
class Store:
    """The passages of a data directory as the peers get them."""

    services: Services
    passages: Sequence[Passage]
    vectors: Vectors  # (n, dimension), normalised

    def about(self, chip: str) -> list[int]:
        """Positions of the passages that a request about this chip may show."""
        lineage = {*self.services.registry.lineage(chip), ANY}
        return [n for n, p in enumerate(self.passages) if not p.hardware or lineage & {*p.hardware}]

    def encode(self, text: str) -> Vectors:
        return self.services.embedder.encode_query(text)


def read_store(services: Services) -> Store:
    """Every passage that answers may show, with its vector."""
    model, scopes = services.embedder.fingerprint, t.passage_hardware.c
    with services.catalog.read() as connection:
        hardware: dict[str, list[str]] = {}
        for passage_id, chip in connection.execute(
            sa.select(scopes.passage_id, scopes.hardware_id)
        ):
            hardware.setdefault(passage_id, []).append(chip)
        rows = connection.execute(
            sa.select(t.passages.c.id, t.passages.c.lead, t.passages.c.text, t.embeddings.c.vector)
            .join(t.embeddings, t.embeddings.c.text_sha256 == t.passages.c.embed_sha256)
            .where(t.passages.c.active, t.embeddings.c.model_fingerprint == model)
            .order_by(t.passages.c.seq)
        ).all()
    passages = [Passage(f"{r.lead}\n{r.text}", tuple(hardware.get(r.id, ()))) for r in rows]
    vectors = np.stack([np.frombuffer(row.vector, "<f4") for row in rows])
    return Store(services, passages, vectors)


def text_of(body: Request) -> str:
    """The query of a peer: the question, the start of the log, or the phrases of the signal."""
    if body.get("signal"):
        return " ".join(signal_phrases()[str(body["signal"])])
    return str(body.get("query") or body.get("log"))[:600]


def signal_phrases() -> dict[str, Sequence[str]]:
    return {signal.id: signal.phrases for signal in load_signals()}


# -- the retrievers


class Tantivy:
    """Words of a passage and the chips that it is about, in an index on disk."""

    def __init__(self, store: Store, folder: Path) -> None:
        import tantivy

        builder = tantivy.SchemaBuilder()
        builder.add_text_field("text", stored=True, tokenizer_name="en_stem")
        builder.add_text_field("hardware", tokenizer_name="raw")
        self._store, self._schema = store, builder.build()
        index = tantivy.Index(self._schema, str(folder))
        writer = index.writer(200_000_000, 1)
        for passage in store.passages:
            hardware = list(passage.hardware) or [ANY]
            writer.add_document(tantivy.Document(text=passage.text, hardware=hardware))
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        self._index, self._searcher = index, index.searcher()

    def __call__(self, body: Request) -> list[str]:
        import tantivy
        from tantivy import Occur, Query

        words, _ = self._index.parse_query_lenient(text_of(body), ["text"])
        chips = [*self._store.services.registry.lineage(str(body["hardware"])), ANY]
        about = Query.term_set_query(self._schema, "hardware", chips)
        query = tantivy.Query.boolean_query([(Occur.Must, words), (Occur.Must, about)])
        hits = self._searcher.search(query, TOP).hits
        return [self._searcher.doc(address)["text"][0] for _, address in hits]


class Chroma:
    """One collection of all passages, filtered by the chip's lineage."""

    def __init__(self, store: Store, folder: Path) -> None:
        import chromadb  # noqa: TID251  (a directory of this benchmark alone)
        from chromadb.config import Settings  # noqa: TID251

        self._store = store
        client = chromadb.PersistentClient(str(folder), Settings(anonymized_telemetry=False))
        self._collection = client.create_collection(
            "passages", embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )
        for start in range(0, len(store.passages), 4_000):
            part = range(start, min(start + 4_000, len(store.passages)))
            self._collection.add(
                ids=[str(n) for n in part],
                embeddings=[store.vectors[n] for n in part],
                documents=[store.passages[n].text for n in part],
                metadatas=[{"hardware": (*store.passages[n].hardware, ANY)[0]} for n in part],
            )

    def __call__(self, body: Request) -> Any:
        lineage = [*self._store.services.registry.lineage(str(body["hardware"])), ANY]
        where: Any = {"hardware": {"$in": lineage}}
        return self._collection.query(
            query_embeddings=[self._store.encode(text_of(body)).tolist()],
            n_results=TOP,
            where=where,
        )["documents"]


class _Encoder(BaseEmbedding):
    """The store's model as llama-index sees one."""

    _store: Store = PrivateAttr()

    def __init__(self, store: Store) -> None:
        super().__init__(model_name="benchmark")
        self._store = store

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._store.encode(query).tolist()
        return vector

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_query_embedding(text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class LlamaIndexFusion:
    """Reciprocal rank fusion of BM25 and vectors, with one pair of indexes for each chip."""

    def __init__(self, store: Store, chips: Sequence[str]) -> None:
        self._retrievers = {chip: self._retriever(store, chip) for chip in chips}

    def _retriever(self, store: Store, chip: str) -> Any:
        nodes = [
            TextNode(text=store.passages[n].text, embedding=store.vectors[n].tolist())
            for n in store.about(chip)
        ]
        index = VectorStoreIndex(nodes, embed_model=_Encoder(store))
        return fusion_of([index.as_retriever(similarity_top_k=TOP), bm25_of(index)])

    def __call__(self, body: Request) -> list[str]:
        found = self._retrievers[str(body["hardware"])].retrieve(QueryBundle(text_of(body)))
        return [hit.node.get_content() for hit in found]


# -- the requests


@dataclass(frozen=True)
class Requests:
    """Different requests of each kind about a few chips."""

    rows: Sequence[Request]
    chips: Sequence[str]
    seed: int = 0

    @cached_property
    def _rng(self) -> random.Random:
        return random.Random(self.seed)

    def of(self, kind: str, count: int) -> list[dict[str, Any]]:
        """Distinct requests, each with a chip; a word of each text is left out."""
        bodies: dict[str, dict[str, Any]] = {}
        for _ in range(100 * count):
            body = self._signal() if kind == "signal" else self._worded(kind)
            bodies.setdefault(repr(sorted(body.items())), body)
            if len(bodies) == count:
                return list(bodies.values())
        raise InvalidRequest(
            f"only {len(bodies)} different requests of kind {kind}", hint="Give fewer --requests."
        )

    def _signal(self) -> dict[str, Any]:
        signal = self._rng.choice(sorted(signal_phrases()))
        return {
            "signal": signal,
            "hardware": self._rng.choice(self.chips),
            "k": self._rng.choice(DEPTHS),
        }

    def _worded(self, kind: str) -> dict[str, Any]:
        field = {"question": "query", "log": "log"}[kind]
        row = self._rng.choice([row for row in self.rows if row.get(field)])
        words = str(row[field]).split(" ")
        if len(words) > 3:
            del words[self._rng.randrange(len(words))]
        return {field: " ".join(words), "hardware": self._rng.choice(self.chips)}


# -- the run


def run(given: argparse.Namespace) -> None:
    write_result(given.results, TITLE, compared(given))


def gold_rows(given: argparse.Namespace) -> list[Request]:
    return list(Scorer(given.scorer or scorer_beside(given.gold), given.gold).requests().values())


def compared(given: argparse.Namespace) -> list[str]:
    """The parts of the result, in Markdown."""
    rows = gold_rows(given)
    services = open_services(read_settings(given.data_dir))
    with ExitStack() as stack:
        stack.callback(services.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = read_store(services)
        chips = [c.id for c in services.registry.all().values() if c.kind == "accelerator"]
        chosen = random.Random(0).sample(sorted(chips), CHIPS)
        requests = Requests(rows, chosen)
        retrievers: dict[str, Send] = {
            "Kernlore": lambda body: services.retriever.retrieve(request_of(body))
        }
        makers: Mapping[str, Callable[[], Send]] = {
            "Chroma query": lambda: Chroma(store, folder / "chroma"),
            "tantivy": lambda: Tantivy(store, _made(folder / "tantivy")),
        }
        if has_bm25():
            makers = {**makers, "llama-index fusion": lambda: LlamaIndexFusion(store, chosen)}
        for name, make in makers.items():
            started = time.perf_counter()
            retrievers[name] = make()
            say(f"{name}: index made in {time.perf_counter() - started:.0f} s")
        timed = []
        for kind in KINDS:
            for name, send in retrievers.items():
                bodies = requests.of(kind, given.requests + WARM_UP)
                timed.append([kind, name, *_measured(send, bodies)])
                say("  ".join(timed[-1]))
    return [
        f"{len(store.passages):,} passages; requests about {', '.join(chosen)}; one thread.",
        table(HEADER, timed),
    ]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _measured(send: Send, bodies: Sequence[Request]) -> list[str]:
    milliseconds, processor = [], 0.0
    for n, body in enumerate(bodies):
        started, cpu = time.perf_counter(), time.process_time()
        send(body)
        if n >= WARM_UP:
            milliseconds.append((time.perf_counter() - started) * 1000)
            processor += time.process_time() - cpu
    p50, p99 = np.percentile(milliseconds, (50, 99))
    mean = processor * 1000 / len(milliseconds)
    return [str(len(milliseconds)), f"{p50:.1f}", f"{p99:.1f}", f"{mean:.1f}"]


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval.peers")
    parser.add_argument("--data-dir", type=Path, required=True, help="A loaded store.")
    parser.add_argument("--gold", type=Path, required=True, help="Gold rows, JSON lines.")
    parser.add_argument("--scorer", type=Path, help="Default: score.py beside the gold rows.")
    parser.add_argument("--requests", type=int, default=100, help="Of each kind and retriever.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
