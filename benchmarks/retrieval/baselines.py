"""What a team has without Kernlore: BM25, dense and their fusion over chunks of a fixed size.

The texts are those of Kernlore's own parsers, the hardware filter is on (chunks of another chip are
not searched), and answers are scored like every other. Knows nothing about the product's ranking.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import say
from benchmarks.retrieval.corpus import Corpus, CorpusFile
from benchmarks.retrieval.encoders import VectorCache
from benchmarks.retrieval.scoring import Answers, Request
from ingestion.parse_process import ParserPool
from ingestion.read import PIPELINE
from kb.errors import KernloreError, Unavailable
from retrieval.diagnose.signals import load_signals

CHUNK_CHARS = 1024
TOP = 20  # chunks in an answer; the scorer reads the first 10,240 characters
POOL = 100  # chunks of each list that are fused
RRF_K = 60
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
    with ParserPool() as parsers:
        for number, file in enumerate(corpus.files, 1):
            try:
                texts.append(Text(file.hardware, _read(parsers, file, cache)))
            except KernloreError as error:
                unread.append(f"{file.name}: {error.message}")
            if number % 100 == 0:
                say(f"texts of {number} of {len(corpus.files)} documents")
    return Texts(tuple(texts), tuple(unread))


def _read(parsers: ParserPool, file: CorpusFile, cache: Path) -> str:
    digest = hashlib.sha256(f"{PIPELINE} {file.name}\n".encode() + file.path.read_bytes())
    kept = cache / f"{digest.hexdigest()}.txt"
    if not kept.exists():
        parsed = parsers.parse(file.path, file.name)
        text = "\n\n".join(element.text for element in parsed.elements)
        kept.write_text(text, encoding="utf-8", errors="replace")
    return kept.read_text(encoding="utf-8")


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
