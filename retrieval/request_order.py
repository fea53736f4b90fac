"""What a request searches for, and in what order its words put what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

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
    connection: Connection, request: RetrieveRequest, cards: Sequence[Symbol]
) -> Callable[[list[Ranked]], list[Ranked]]:
    """The order for a request in words: first what defines the names in its log or question, or
    the name that was meant, and what quotes its message. `cards` are what it can name.
    """
    log = without_boilerplate(request.log or "")
    text = "\n".join(filter(None, (request.query, log)))
    if not text:
        return list
    meant = sections_of(missing_names(log, cards), cards)

    def order(ranked: list[Ranked]) -> list[Ranked]:
        quoted = by_quotations(connection, ranked, log)
        return by_names(connection, quoted, text, cards, meant=meant)

    return order
