"""What a request searches for, and in what order its words put what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from kb.catalog.knowledge import passages
from kb.catalog.knowledge.symbols import Symbol
from retrieval.diagnose.boilerplate import without_boilerplate
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import Signal
from retrieval.missing_names import missing_names, sections_of
from retrieval.named_sections import by_names
from retrieval.plan import Plan, make_plan, writing_plan, writing_words
from retrieval.quoted import by_quotations
from retrieval.ranking import Ranked
from retrieval.request import RetrieveRequest
from retrieval.titles import Titles

POOL = 60  # passages of a ranking whose headings are read
ANOTHER = 0.2  # of its score that a section loses which is titled for another signal


def plan_of(
    request: RetrieveRequest, signals: Sequence[Signal], is_known: Callable[[str], bool]
) -> Plan:
    """What to search for. `signals` are those of the verdict, `is_known` tells the languages that
    models know.
    """
    happened = signals or request.log or request.metrics
    words = request.query
    if request.op and request.task in (None, "write") and not words and not happened:
        if request.language and is_known(request.language):
            return writing_plan(request.language, request.op, load_metrics())
        words = writing_words(request.language, request.op)
    return make_plan(
        query=words,
        log=request.log,
        metrics=request.metrics or {},
        registry=load_metrics(),
        signals=signals,
        op=request.op,
    )


def by_words(
    connection: Connection,
    request: RetrieveRequest,
    cards: Sequence[Symbol],
    titles: Titles,
    signals: Sequence[str],
) -> Callable[[list[Ranked]], list[Ranked]]:
    """The order for a request in words: first what defines the names in its log or question, or
    the name that was meant, and what quotes its message. `cards` are what it can name. What is
    titled for another signal than the verdict's `signals` comes a little later.
    """
    log = without_boilerplate(request.log or "")
    text = "\n".join(filter(None, (request.query, log)))
    if not text:
        return list
    meant = sections_of(missing_names(log, cards), cards)

    def order(ranked: list[Ranked]) -> list[Ranked]:
        fitting = _others_later(connection, ranked, titles, signals)
        quoted = by_quotations(connection, fitting, log)
        return by_names(connection, quoted, text, cards, meant=meant)

    return order


def _others_later(
    connection: Connection, ranked: list[Ranked], titles: Titles, signals: Sequence[str]
) -> list[Ranked]:
    """The ranked passages; sections that a heading names for another signal have a lower score.
    Nearby failures are told in nearly the same words, and then a chip's own section about another
    one would come before the guide to this one.
    """
    if not signals:
        return ranked
    live = passages.live(connection, [entry.seq for entry in ranked[:POOL]])
    lowered = []
    for entry in ranked[:POOL]:
        passage = live.get(entry.seq)
        heading = passage.path[-1] if passage is not None and passage.path else ""
        away = min(titles.of_another(heading, signal) for signal in signals) if heading else 0.0
        lowered.append(entry._replace(score=entry.score * (1 - ANOTHER * away)))
    return sorted([*lowered, *ranked[POOL:]], key=lambda e: (-e.score, e.seq))
