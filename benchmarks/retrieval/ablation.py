"""The effect of each ingredient of the ranking: the same questions without it, on a loaded store.

In process and without a service: every variant is the product's own ranking and excerpts with one
value changed. Choices made when documents are read (tokens, cuts of passages) cannot be changed.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from api.cli.target import read_settings
from api.services import Services, open_services
from benchmarks.report import ended, say, table, write_result
from benchmarks.retrieval.latency import request_of
from benchmarks.retrieval.scoring import (
    KINDS,
    Answers,
    Request,
    Scorer,
    Scores,
    gold_of,
    listed,
    scorer_beside,
)
from kb.errors import InvalidRequest
from retrieval.answer import conclude, titles
from retrieval.compose.composer import cards_for
from retrieval.compose.excerpts import SHAPE, Shape, make_excerpts
from retrieval.compose.standing import standings_of
from retrieval.diagnose.signals import Signal, load_signals
from retrieval.layout import load_layout
from retrieval.request import RetrieveRequest
from retrieval.scope import resolve_hardware
from retrieval.search.by_names import by_words
from retrieval.search.names import Cards, language_named
from retrieval.search.plan import Plan, other_names, plan_of
from retrieval.search.ranking import WEIGHTS, Ranked, Weights, rank
from retrieval.snapshot.snapshot import Snapshot
from retrieval.snapshot.store import SnapshotStore
from retrieval.snapshot.words import HEADING_WEIGHT

FULL = "all ingredients"
TITLE = "Retrieval ablation"
RRF_K = 60
EVERY_EXCERPT = 1_000  # more than an answer has


def unchanged(plan: Plan) -> Plan:
    return plan


def without_thesaurus(plan: Plan) -> Plan:
    """The group of other names, if any, is the last one."""
    *rest, last = plan.words or (None,)
    known = {token for group in rest if group is not None for token in group.tokens}
    if last is None or not known or last.tokens != other_names(known):
        return plan
    return replace(plan, words=plan.words[:-1])


def as_title(signal: Signal) -> Signal:
    return replace(signal, phrases=(signal.title,))


def same_order(ranked: Sequence[Ranked]) -> Sequence[Ranked]:
    return ranked


def by_rank(ranked: Sequence[Ranked]) -> Sequence[Ranked]:
    """Reciprocal-rank fusion of the two channels in place of the sum of their scores."""
    scores: dict[int, float] = {r.seq: 0.0 for r in ranked}
    channels: Sequence[Callable[[Ranked], float]] = (lambda r: r.lexical, lambda r: r.dense)
    for channel in channels:
        matched = sorted((r for r in ranked if channel(r) > 0), key=lambda r: (-channel(r), r.seq))
        for place, entry in enumerate(matched, 1):
            scores[entry.seq] += 1 / (RRF_K + place)
    rescored = [r._replace(score=scores[r.seq]) for r in ranked]
    return sorted(rescored, key=lambda r: (-r.score, r.seq))


@dataclass(frozen=True)
class Variant:
    """The product's ranking with something changed."""

    name: str
    weights: Weights | None = None
    heading: float = HEADING_WEIGHT
    shape: Shape = SHAPE
    plan: Callable[[Plan], Plan] = unchanged
    signal: Callable[[Signal], Signal] | None = None
    order: Callable[[Sequence[Ranked]], Sequence[Ranked]] = same_order


def variants() -> list[Variant]:
    """The full ranking first, then one change at a time."""

    def weights(**changed: float) -> Weights:
        return replace(WEIGHTS, **changed)

    def shape(**changed: Any) -> Shape:
        return replace(SHAPE, **changed)

    return [
        Variant(FULL),
        Variant("headings not searched", heading=0.0),
        Variant("headings weigh as much as the text", heading=1.0),
        Variant("passages without their section", weights(section=0.0)),
        Variant("sections without their passages", weights(passage=0.0)),
        Variant("no vectors", weights(dense=0.0)),
        Variant("vectors only", weights(passage=0.0, section=0.0)),
        Variant("reciprocal ranks in place of scores", order=by_rank),
        Variant("vectors without their neighbours", weights(neighbour=0.0)),
        Variant("no prior of running text", weights(prose=0.0)),
        Variant("no prior of code", weights(code=1.0)),
        Variant("no thesaurus", plan=without_thesaurus),
        Variant("a signal as its title, not its phrases", signal=as_title),
        Variant("no excerpt is grown", shape=shape(singles=EVERY_EXCERPT)),
        Variant("every excerpt is grown", shape=shape(singles=0)),
        Variant("near duplicates stay", shape=shape(duplicate=2.0)),
    ]


# -- answering with a variant


class Asker:
    """Answers requests as the product does, up to the excerpts, with a variant's values."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._folder = tempfile.TemporaryDirectory(prefix="kernlore-ablation-")
        self._snapshot = functools.lru_cache(maxsize=None)(self._published)
        self._embed = functools.lru_cache(maxsize=None)(services.embedder.encode_query)

    def excerpts(self, body: Request, variant: Variant) -> list[dict[str, Any]]:
        """The excerpts of a request body as JSON, best first."""
        request = request_of(body)
        if not request.in_words:  # answered by whole sections, whose order no variant here changes
            return [asdict(e) for e in self._services.retriever.retrieve(request).excerpts]
        snapshot = self._snapshot(variant.heading)
        place = resolve_hardware(snapshot, request, load_layout())
        request = replace(request, language=place.language)
        standings = standings_of(snapshot, {})
        signals = conclude(standings, request, place, "").verdict.signal_ids
        plan = variant.plan(self._plan(request, signals, variant))
        ranked = rank(snapshot, plan, place.own.filter, self._embed, snapshot.near, variant.weights)
        language = request.language or language_named(request.log or "")
        named = place.own.hardware is not None
        lineage = place.own.lineage
        cards = cards_for(snapshot, lineage, language, request.access_scope) if named else Cards()
        in_order = by_words(snapshot, request, cards, titles(), signals)
        ordered = in_order(list(variant.order(ranked)))
        excerpts = make_excerpts(snapshot, ordered, place.own.filter, request.k, variant.shape)
        return [asdict(excerpt) for excerpt in excerpts]

    def _published(self, heading: float) -> Snapshot:
        """The snapshot of the store with this weight of a word in a heading."""
        folder = Path(self._folder.name) / str(heading)
        model = self._services.embedder.fingerprint
        return SnapshotStore(self._services.catalog, model, heading, folder).current()

    def _plan(self, request: RetrieveRequest, names: Sequence[str], variant: Variant) -> Plan:
        signals = [load_signals().get(name) for name in names]
        changed = [variant.signal(s) for s in signals] if variant.signal else signals
        return plan_of(request, changed, load_layout().is_known)


def answers_of(asker: Asker, requests: Mapping[str, Request], variant: Variant) -> Answers:
    return {row: asker.excerpts(body, variant) for row, body in requests.items()}


def unlike_product(services: Services, requests: Mapping[str, Request], full: Answers) -> int:
    """Rows on which the full variant differs from the product's answer; more than 0 is a defect."""
    differing = 0
    for row, body in requests.items():
        product = services.retriever.retrieve(request_of(body)).excerpts
        differing += [e.id for e in product] != [e["id"] for e in full[row]]
    return differing


# -- the run


def run(options: argparse.Namespace) -> None:
    if not (options.data_dir / "catalog.sqlite").is_file():
        raise InvalidRequest(
            f"no store in {options.data_dir}",
            hint="Load the corpus first: benchmarks.retrieval.quality with the same --data-dir.",
        )
    scores: dict[str, Scores] = {}
    services = open_services(read_settings(options.data_dir))
    try:
        with tempfile.TemporaryDirectory(prefix="kernlore-gold-") as folder:
            gold = gold_of(options.gold, listed(options.hardware), Path(folder) / "gold.jsonl")
            scorer = Scorer(options.scorer or scorer_beside(options.gold), gold)
            requests = scorer.requests()
        asker = Asker(services)
        differing = 0
        for variant in variants():
            answers = answers_of(asker, requests, variant)
            scores[variant.name] = scorer.scores(answers)
            say(f"{variant.name}: ndcg@10 {scores[variant.name].mean('ndcg@10'):.3f}")
            if variant.name == FULL:
                differing = unlike_product(services, requests, answers)
    finally:
        services.close()
    bare = sum(not request_of(body).in_words for body in requests.values())
    same = f"The first row differs from the product's own answers on {differing} rows."
    if bare:
        same += f" {bare} rows without words have the product's answers in every variant."
    write_result(options.results, TITLE, [effect_table(scores), same])


def effect_table(scores: Mapping[str, Scores]) -> str:
    """The loss without the ingredient, with its paired interval."""
    full = scores[FULL]
    header = [f"variant (n={len(full.kinds)})", "ndcg@10", "recall@5"]
    header += ["ndcg@10 lost", "recall@5 lost", *(f"ndcg@10 lost, {kind}" for kind in KINDS[1:])]
    rows = []
    for name, score in scores.items():
        row = [name, f"{score.mean('ndcg@10'):.3f}", f"{score.mean('recall@5'):.3f}"]
        if name != FULL:
            row += [str(full.minus(score, metric)) for metric in ("ndcg@10", "recall@5")]
            row += [f"{full.minus(score, 'ndcg@10', kind).mean:+.3f}" for kind in KINDS[1:]]
        rows.append(row + [""] * (len(header) - len(row)))
    return table(header, rows)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.ablation", description=__doc__
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="A loaded store.")
    parser.add_argument("--gold", type=Path, required=True, help="Gold rows, JSON lines.")
    parser.add_argument(
        "--scorer", type=Path, help="Default: score.py in the folder of the gold rows."
    )
    parser.add_argument("--hardware", default="", help="Only rows of these ids, comma-separated.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
