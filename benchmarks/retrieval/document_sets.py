"""Recall on public sets of questions about documents: ORD-QA and FinanceBench.

The documents are ingested as the manuals of one accelerator, and each question is asked over all of
them. A result is a unit of the set: a chunk of ORD-QA, a page of FinanceBench. An answer counts by
the units of its excerpts, in order, each unit once. Rows whose hash is divisible by three were
looked at while parsing and ranking were changed; the others are the result.

The data are not part of this repository: ORD-QA.jsonl and openroad_documentation.json of
lesliepy99/RAG-EDA in one folder; data/ and pdfs/ of patronus-ai/financebench in another.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from api.cli.target import read_settings
from api.services import Services, open_services
from benchmarks.knowledge.ingestion import Counting, Pass, ingest, register
from benchmarks.report import ended, say, table, write_result
from benchmarks.retrieval.scoring import read_jsonl
from ingestion.uploads import FileUpload
from kb.answers import Excerpt
from kb.embedding import Embedder, Vectors
from kb.errors import InvalidRequest
from retrieval.request import RetrieveRequest

HARDWARE = "document-set"
EXCERPTS = 40  # of an answer, so that there are five different units
CONTEXT = 200  # tokens of the context, which is not judged
DEPTHS = (1, 5, 20)
TUNED = 3  # one row in this many was used for tuning
_MARK = re.compile(r"\Aid:\S+\n")
_PLAIN = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class Question:
    """A question and its relevant units. `kind` groups rows of the result."""

    id: str
    kind: str
    text: str
    units: frozenset[str]

    @property
    def tuned(self) -> bool:
        """Whether the row was used for tuning."""
        return hashlib.sha256(self.id.encode()).digest()[0] % TUNED == 0


@dataclass(frozen=True)
class DocumentSet:
    """A set: its files by name, its questions, and the units of an excerpt from a file."""

    name: str
    unit: str
    files: Mapping[str, bytes]
    questions: Sequence[Question]
    units_of: Callable[[str, Excerpt], Sequence[str]]
    left_out: str


# -- the sets


def ord_qa(folder: Path) -> DocumentSet:
    """ORD-QA: the chunks of each source joined into one Markdown file."""
    sources = json.loads((folder / "openroad_documentation.json").read_text(encoding="utf-8"))
    chunks = {
        f"{source['source']}.md": [
            (chunk["id"], _MARK.sub("", chunk["content"])) for chunk in source["knowledge"]
        ]
        for source in sources
    }
    known = {chunk_id for file in chunks.values() for chunk_id, _ in file}
    plain = {name: [(i, _plain(text)) for i, text in file] for name, file in chunks.items()}
    questions = [
        Question(str(row["id"]), row["type"], row["question"].strip(), frozenset(row["reference"]))
        for row in read_jsonl(folder / "ORD-QA.jsonl")
    ]
    usable = [q for q in questions if q.units <= known]

    def units_of(name: str, excerpt: Excerpt) -> list[str]:
        return _sources(excerpt.text, plain[name])

    files = {name: "\n\n".join(text for _, text in file).encode() for name, file in chunks.items()}
    left_out = _left_out(questions, usable, "name a chunk that the documentation lacks")
    return DocumentSet("ORD-QA", "chunk", files, usable, units_of, left_out)


def _sources(text: str, chunks: Sequence[tuple[str, str]]) -> list[str]:
    """The chunk that an excerpt is from, by the lines that both have."""
    lines = [p for p in map(_plain, text.splitlines()) if p]
    shared = {i: sum(len(line) for line in lines if line in chunk) for i, chunk in chunks}
    best = max(shared, key=lambda i: shared[i], default="")
    return [best] if best and shared[best] else []


def _plain(text: str) -> str:
    return _PLAIN.sub("", text.lower())


def finance_bench(folder: Path) -> DocumentSet:
    """FinanceBench: the filings that are there; a unit is a page of one."""
    pdfs = {path.stem: path for path in (folder / "pdfs").glob("*.pdf")}
    questions, usable = [], []
    for row in read_jsonl(folder / "data" / "financebench_open_source.jsonl"):
        pages = {(e["doc_name"], e["evidence_page_num"]) for e in row["evidence"]}
        units = frozenset(f"{name}.pdf {page}" for name, page in pages)
        question = Question(row["financebench_id"], row["question_type"], row["question"], units)
        questions.append(question)
        if {row["doc_name"], *(name for name, _ in pages)} <= set(pdfs):
            usable.append(question)
    wanted = sorted({unit.rpartition(".pdf ")[0] for q in usable for unit in q.units})

    def units_of(name: str, excerpt: Excerpt) -> list[str]:
        return [f"{name} {excerpt.page['index']}"] if excerpt.page else []

    return DocumentSet(
        "FinanceBench",
        "page",
        {f"{name}.pdf": pdfs[name].read_bytes() for name in wanted},
        usable,
        units_of,
        _left_out(questions, usable, "are about a filing that is not in the folder"),
    )


def _left_out(all_rows: Sequence[Question], usable: Sequence[Question], why: str) -> str:
    return f"{len(all_rows) - len(usable)} of {len(all_rows)} questions are left out: they {why}."


SETS = {"ord-qa": ord_qa, "financebench": finance_bench}


# -- asking


class WordsOnly:
    """An embedder that gives all texts one vector, so that only words rank."""

    def __init__(self, base: Embedder) -> None:
        self._base = base
        self.fingerprint, self.dimension = base.fingerprint, base.dimension
        self.window = base.window

    def count_tokens(self, text: str) -> int:
        return self._base.count_tokens(text)

    def encode(self, texts: Sequence[str]) -> Vectors:
        return np.tile(self.encode_query(""), (len(texts), 1))

    def encode_query(self, text: str) -> Vectors:
        vector: Vectors = np.zeros(self.dimension, np.float32)
        vector[0] = 1.0
        return vector


@dataclass(frozen=True)
class Row:
    """A question with the units of its answer, the best first."""

    question: Question
    units: tuple[str, ...]

    def recall(self, depth: int) -> float:
        """The share of the relevant units among the first ones."""
        return len(self.question.units & set(self.units[:depth])) / len(self.question.units)


def ask(services: Services, documents: DocumentSet, names: Mapping[str, str]) -> Iterator[Row]:
    """The rows of a set; `names` maps ids of documents to names of files."""
    for question in documents.questions:
        request = RetrieveRequest(
            query=question.text,
            hardware=HARDWARE,
            categories=("hardware",),
            k=EXCERPTS,
            max_tokens=CONTEXT,
        )
        units: dict[str, None] = {}
        for excerpt in services.retriever.retrieve(request).excerpts:
            units |= dict.fromkeys(documents.units_of(names[excerpt.document.id], excerpt))
        yield Row(question, tuple(units))


def load(services: Services, documents: DocumentSet) -> tuple[Pass, dict[str, str]]:
    """Ingest the files; the names of the files by id of document."""
    register(services, [HARDWARE])
    uploads = [
        FileUpload(name, data, category="hardware", hardware=(HARDWARE,))
        for name, data in sorted(documents.files.items())
    ]
    done = ingest(services, documents.name, uploads, Counting(services.embedder))
    return done, {services.uploads.submit(u).document_id: u.name for u in uploads}


# -- the result


def figures(documents: DocumentSet, rows: Sequence[Row]) -> str:
    """Mean recall by part and kind of question."""
    parts = {"held out": [r for r in rows if not r.question.tuned]}
    parts["tuned on"] = [r for r in rows if r.question.tuned]
    kinds = sorted({row.question.kind for row in rows})
    parts |= {
        f"held out, {kind}": [r for r in parts["held out"] if r.question.kind == kind]
        for kind in kinds
    }
    cells = [
        [name, len(part), *(f"{sum(r.recall(d) for r in part) / len(part):.3f}" for d in DEPTHS)]
        for name, part in parts.items()
        if part
    ]
    return table(["questions", "n", *(f"{documents.unit} recall@{d}" for d in DEPTHS)], cells)


def run(options: argparse.Namespace) -> None:
    if not options.data.is_dir():
        raise InvalidRequest(f"no folder {options.data}", hint="Give the data with --data FOLDER.")
    documents = SETS[options.set](options.data)
    with tempfile.TemporaryDirectory(prefix="kernlore-documents-") as folder:
        services = open_services(read_settings(options.data_dir or Path(folder)))
        if options.words:
            services.embedder = WordsOnly(services.embedder)  # type: ignore[assignment]
        try:
            loaded, names = load(services, documents)
            rows = list(ask(services, documents, names))
        finally:
            services.close()
    if options.rows is not None:
        options.rows.write_text("".join(json.dumps(line(row)) + "\n" for row in rows))
    say(f"{len(rows)} questions asked")
    parts = [
        f"`python -m benchmarks.retrieval.document_sets {options.set} --data FOLDER"
        f"{' --words' if options.words else ''}`",
        f"{len(documents.files)} documents, {loaded.passages:,} passages. {documents.left_out}",
        figures(documents, rows),
    ]
    write_result(options.results, documents.name, parts)


def line(row: Row) -> dict[str, Any]:
    question = row.question
    return {
        "id": question.id,
        "tuned": question.tuned,
        "question": question.text,
        "relevant": sorted(question.units),
        "found": row.units[: max(DEPTHS)],
    }


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.document_sets", description=__doc__
    )
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--data", type=Path, required=True, help="Folder with the set.")
    parser.add_argument("--data-dir", type=Path, help="A store to use; default a fresh one.")
    parser.add_argument("--words", action="store_true", help="Search without vectors.")
    parser.add_argument("--rows", type=Path, help="Write each row with its units, JSON lines.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
