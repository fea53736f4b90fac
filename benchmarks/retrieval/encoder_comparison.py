"""One set of weights run in several ways: how fast each encodes the same passages, and what its
vectors do to the answers.

Vectors go into the catalog under a fingerprint of their own, so ranking, passages and gold rows are
the same for all. Queries are encoded the same way as the passages.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from api.services import Services
from benchmarks.report import say, table
from benchmarks.retrieval.encoders import (
    Encoder,
    has_bf16,
    model_folder,
    onnx_encoder,
    torch_encoder,
)
from benchmarks.retrieval.latency import request_of
from benchmarks.retrieval.scoring import Scorer, Scores
from kb.catalog import tables as t
from kb.catalog.knowledge import embeddings
from kb.embedding import Embedder, Vectors, embedding_text
from kb.index.exact import ExactIndex
from retrieval.service import Retriever

QUERIES = 40  # single texts timed
WRITTEN = 2000  # vectors a transaction


@dataclass(frozen=True)
class Measured:
    """`cosine` is the mean to full precision; `scores` None without gold rows."""

    name: str
    texts: int
    seconds: float
    query_ms: float
    cosine: float
    scores: Scores | None


class Swapped:
    """The product's embedder with the vectors of another encoder."""

    def __init__(self, base: Embedder, encoder: Encoder) -> None:
        self._base = base
        self._encoder = encoder
        self.fingerprint = encoder.key
        self.dimension = base.dimension
        self.window = base.window

    def count_tokens(self, text: str) -> int:
        return self._base.count_tokens(text)

    def encode(self, texts: Sequence[str]) -> Vectors:
        return self._encoder.encode(texts)

    def encode_query(self, text: str) -> Vectors:
        return np.asarray(self._encoder.encode([text])[0])


def compare(
    services: Services, hardware: Collection[str], scorer: Scorer | None, cache: Path
) -> list[Measured]:
    """hardware: whose passages are encoded; all when none is given."""
    texts = passage_texts(services, hardware)
    exact: Vectors | None = None
    measured = []
    for encoder in encoders(cache):
        vectors, seconds = _encoded(encoder, list(texts.values()))
        exact = vectors if exact is None else exact
        _store(services, encoder, dict(zip(texts, vectors, strict=True)))
        scores = _scores(services, encoder, scorer) if scorer is not None else None
        cosine = float((vectors * exact).sum(axis=1).mean())
        query_ms = _query_ms(encoder, list(texts.values()))
        measured.append(Measured(encoder.name, len(texts), seconds, query_ms, cosine, scores))
        say(f"{encoder.name}: {len(texts) / seconds:.0f} passages/s, cosine {cosine:.4f}")
    return measured


def encoders(cache: Path) -> list[Encoder]:
    """Full precision first: the others are compared with it."""
    folder = model_folder()
    compared = [torch_encoder(folder)]
    if has_bf16():
        compared.append(torch_encoder(folder, bf16=True))
    return [*compared, onnx_encoder(folder, cache), onnx_encoder(folder, cache, int8=True)]


def passage_texts(services: Services, hardware: Collection[str]) -> dict[str, str]:
    """What the embedder reads for each live passage, by the text's hash."""
    query = (
        sa.select(
            t.passages.c.embed_sha256, t.sections.c.path, t.passages.c.lead, t.passages.c.text
        )
        .join(t.sections, t.sections.c.id == t.passages.c.section_id)
        .where(t.passages.c.active.is_(True))
    )
    if hardware:
        scoped = sa.select(t.passage_hardware.c.passage_id).where(
            t.passage_hardware.c.hardware_id.in_(sorted(hardware))
        )
        query = query.where(t.passages.c.id.in_(scoped))
    with services.catalog.read() as connection:
        rows = connection.execute(query).all()
    return {sha: embedding_text(path, lead, text) for sha, path, lead, text in rows}


def _encoded(encoder: Encoder, texts: Sequence[str]) -> tuple[Vectors, float]:
    encoder.encode(texts[:16])  # the first batch pays for lazy set-up
    started = time.perf_counter()
    vectors = encoder.encode(texts)
    return vectors, time.perf_counter() - started


def _query_ms(encoder: Encoder, texts: Sequence[str]) -> float:
    """The median time of one short text alone."""
    milliseconds = []
    for text in texts[:QUERIES]:
        started = time.perf_counter()
        encoder.encode([text[:80]])
        milliseconds.append((time.perf_counter() - started) * 1000)
    return float(np.median(milliseconds))


def _store(services: Services, encoder: Encoder, vectors: dict[str, Vectors]) -> None:
    items = list(vectors.items())
    for start in range(0, len(items), WRITTEN):
        with services.catalog.write() as connection:
            embeddings.put(connection, encoder.key, dict(items[start : start + WRITTEN]))


def _scores(services: Services, encoder: Encoder, scorer: Scorer) -> Scores:
    index = ExactIndex(services.catalog, encoder.key)
    embedder = Swapped(services.embedder, encoder)
    retriever = Retriever(services.catalog, services.registry, embedder, lambda: index)
    try:
        return scorer.scores(
            {
                row: [asdict(e) for e in retriever.retrieve(request_of(body)).excerpts]
                for row, body in scorer.requests().items()
            }
        )
    finally:
        retriever.close()


def encoder_table(measured: Sequence[Measured]) -> str:
    header = ["encoder", "passages/s", "one query, ms", "cosine to torch fp32"]
    first = measured[0].scores
    if first is not None:
        header += [f"ndcg@10 (n={len(first.kinds)})", "recall@5", "ndcg@10 minus torch fp32"]
    rows = []
    for one in measured:
        row = [one.name, f"{one.texts / one.seconds:.0f}", f"{one.query_ms:.1f}"]
        row.append(f"{one.cosine:.4f}")
        if one.scores is not None and first is not None:
            row += [f"{one.scores.mean(metric):.3f}" for metric in ("ndcg@10", "recall@5")]
            row.append(str(one.scores.minus(first, "ndcg@10")))
        rows.append(row)
    return table(header, rows)
