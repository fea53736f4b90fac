"""Whether llama-index's auto-merging makes better excerpts of ranked passages than our own merging.

Both get the product's ranking of the same store. For llama-index each passage is a leaf node and
its parent is the section, or a run of the section's passages of at most so many characters, as its
HierarchicalNodeParser would cut them; its AutoMergingRetriever puts a parent in place of its
children where more than a share of them are among the first hits.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from llama_index.core import StorageContext
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.retrievers import AutoMergingRetriever
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore
from sqlalchemy import Connection

from api.cli.target import read_settings
from api.services import Services, open_services
from benchmarks.report import ended, say, table, write_result
from benchmarks.retrieval.ablation import FULL, Asker, Variant
from benchmarks.retrieval.latency import request_of
from benchmarks.retrieval.scoring import (
    METRICS,
    Request,
    Scorer,
    Scores,
    gold_of,
    listed,
    scorer_beside,
)
from kb.catalog.knowledge import passages as store
from kb.catalog.knowledge.passages import Passage
from kb.scope import ANY, ScopeFilter
from retrieval.excerpts import make_excerpts
from retrieval.ranking import Ranked

TITLE = "Own merging of passages and llama-index's"
OURS = "our own excerpts"
WHOLE_SECTION = 10**9

Excerpts = list[dict[str, Any]]
Merge = Callable[[Connection, Sequence[Ranked], ScopeFilter, int], Excerpts]


def ours(
    connection: Connection, ranked: Sequence[Ranked], scope: ScopeFilter, count: int
) -> Excerpts:
    """The product's excerpts."""
    excerpts = make_excerpts(connection, ranked, scope, count)
    return [{"text": e.text, "hardware": list(e.hardware)} for e in excerpts]


@dataclass(frozen=True)
class AutoMerging:
    """`hits` leaves go in. A parent holds at most `parent_chars` characters and takes the place of
    its children where more than `share` of them are hits. The first `singles` hits stay as they
    are, as in our own excerpts.
    """

    hits: int
    parent_chars: int
    share: float = 0.5
    singles: int = 0

    def __call__(
        self, connection: Connection, ranked: Sequence[Ranked], scope: ScopeFilter, count: int
    ) -> Excerpts:
        top = ranked[: self.hits]
        leaves = store.load(connection, [entry.seq for entry in top], scope)
        sections = store.sections_of(connection, {p.section_seq for p in leaves.values()})
        around = store.load(connection, [n for seqs in sections.values() for n in seqs], scope)
        nodes, passages_of = _tree(sections.values(), around, self.parent_chars)
        docstore = SimpleDocumentStore()
        docstore.add_documents(list(nodes.values()))
        hits = [
            NodeWithScore(node=nodes[str(entry.seq)], score=entry.score)
            for entry in top
            if str(entry.seq) in nodes
        ]
        first, later = hits[: self.singles], hits[self.singles :]
        retriever = AutoMergingRetriever(
            _Fixed(later),  # type: ignore[arg-type]
            StorageContext.from_defaults(docstore=docstore),
            simple_ratio_thresh=self.share,
        )
        merged = [*first, *retriever.retrieve("-")][:count]
        return [_excerpt(node, passages_of) for node in merged]


class _Fixed(BaseRetriever):
    """Retrieves what was ranked before."""

    def __init__(self, hits: list[NodeWithScore]) -> None:
        super().__init__()
        self._hits = hits

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._hits


def _tree(
    sections: Any, passages: dict[int, Passage], parent_chars: int
) -> tuple[dict[str, TextNode], dict[str, list[Passage]]]:
    """Leaves and parents by id, linked to each other, and the passages that each stands for."""
    nodes: dict[str, TextNode] = {}
    passages_of: dict[str, list[Passage]] = {}
    for seqs in sections:
        for run in _runs([passages[n] for n in seqs if n in passages], parent_chars):
            parent_id = f"parent_{run[0].seq}"
            leaves = [TextNode(id_=str(p.seq), text=p.shown) for p in run]
            for before, after in pairwise(leaves):
                _link(before, NodeRelationship.NEXT, after)
                _link(after, NodeRelationship.PREVIOUS, before)
            if len(run) > 1:
                parent = TextNode(id_=parent_id, text="\n".join(p.shown for p in run))
                parent.relationships[NodeRelationship.CHILD] = [
                    RelatedNodeInfo(node_id=leaf.node_id) for leaf in leaves
                ]
                for leaf in leaves:
                    _link(leaf, NodeRelationship.PARENT, parent)
                nodes[parent_id], passages_of[parent_id] = parent, list(run)
            for leaf, passage in zip(leaves, run, strict=True):
                nodes[leaf.node_id], passages_of[leaf.node_id] = leaf, [passage]
    return nodes, passages_of


def _link(node: TextNode, relation: NodeRelationship, other: TextNode) -> None:
    node.relationships[relation] = RelatedNodeInfo(node_id=other.node_id)


def _runs(passages: Sequence[Passage], chars: int) -> Iterator[list[Passage]]:
    run: list[Passage] = []
    size = 0
    for passage in passages:
        if run and size + len(passage.shown) > chars:
            yield run
            run, size = [], 0
        run.append(passage)
        size += len(passage.shown)
    if run:
        yield run


def _excerpt(node: NodeWithScore, passages_of: dict[str, list[Passage]]) -> dict[str, Any]:
    hardware = {h for p in passages_of[node.node.node_id] for h in p.hardware if h != ANY}
    return {"text": node.node.get_content(), "hardware": sorted(hardware)}


def methods() -> dict[str, Merge]:
    return {
        OURS: ours,
        "llama-index: sections, 20 hits": AutoMerging(20, WHOLE_SECTION),
        "llama-index: sections, 60 hits": AutoMerging(60, WHOLE_SECTION),
        "llama-index: parents of 1,200 characters, 20 hits": AutoMerging(20, 1200),
        "llama-index: parents of 1,200 characters, 60 hits": AutoMerging(60, 1200),
        "llama-index: parents of 800 characters, 20 hits": AutoMerging(20, 800),
        "llama-index: parents of 800 characters, 60 hits": AutoMerging(60, 800),
        "llama-index: parents of 800 characters, 60 hits, all children": AutoMerging(60, 800, 0.99),
        "8 single passages, then llama-index: sections, 60 hits": AutoMerging(
            60, WHOLE_SECTION, singles=8
        ),
        "8 single passages, then llama-index: parents of 800 characters, 60 hits": AutoMerging(
            60, 800, singles=8
        ),
    }


def run(options: argparse.Namespace) -> None:
    services = open_services(read_settings(options.data_dir))
    try:
        with tempfile.TemporaryDirectory(prefix="kernlore-gold-") as folder:
            gold = gold_of(options.gold, listed(options.hardware), Path(folder) / "gold.jsonl")
            scorer = Scorer(options.scorer or scorer_beside(options.gold), gold)
            requests = scorer.requests()
        answers, times = _answers(services, requests)
    finally:
        services.close()
    scores = {name: scorer.scores(answers[name]) for name in answers}
    write_result(options.results, TITLE, [_table(scores, times)])


def _answers(
    services: Services, requests: dict[str, Request]
) -> tuple[dict[str, dict[str, Excerpts]], dict[str, list[float]]]:
    asker = Asker(services)
    answers: dict[str, dict[str, Excerpts]] = {name: {} for name in methods()}
    times: dict[str, list[float]] = {name: [] for name in methods()}
    for number, (row, body) in enumerate(requests.items(), 1):
        request = request_of(body)
        scope = asker.scope(request)
        with services.catalog.read() as connection:
            ranked = asker.ranked(connection, request, scope, Variant(FULL))
            for name, merge in methods().items():
                started = time.perf_counter()
                answers[name][row] = merge(connection, ranked, scope, request.k)
                times[name].append((time.perf_counter() - started) * 1000)
        if number % 20 == 0:
            say(f"asked {number} of {len(requests)}")
    return answers, times


def _table(scores: dict[str, Scores], times: dict[str, list[float]]) -> str:
    own = scores[OURS]
    shown = ("recall@5", "recall@10", "ndcg@10")
    header = [f"method (n={len(own.kinds)})", *shown, *(f"{m}, ours minus it" for m in shown)]
    rows = []
    for name, score in scores.items():
        row = [name, *(f"{score.mean(metric):.3f}" for metric in shown)]
        row += ["" if name == OURS else str(own.minus(score, metric)) for metric in shown]
        row.append(f"{statistics.median(times[name]):.1f} ms")
        rows.append(row)
    assert set(shown) <= set(METRICS)
    return table([*header, "merging, median"], rows)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.auto_merging", description=__doc__
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="A loaded store.")
    parser.add_argument("--gold", type=Path, required=True, help="Gold rows, JSON lines.")
    parser.add_argument("--scorer", type=Path, help="Default: score.py beside the gold rows.")
    parser.add_argument("--hardware", default="", help="Only rows of these ids, comma-separated.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    logging.getLogger("llama_index").setLevel(logging.ERROR)
    ended(lambda: run(options_of()))
