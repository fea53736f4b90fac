"""What quotes the very message of a log comes before what only resembles it.

A guide to error messages is about no chip and says little beside its tables, so words and meaning
rank it behind a chip's own text about errors. But a passage that holds most of a message word for
word was written for that message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection

from kb.catalog.knowledge import passages
from retrieval.diagnose.log_lines import query_lines, without_prefix
from retrieval.ranking import Ranked

POOL = 60  # passages of a ranking that are read for quotations
MOST_LINES = 12  # of a log
LEAST_RUNS, LEAST_SHARE = 3, 0.3  # three words in a row, how often, and of all those of the message
QUOTED = 1.0  # added to the score of a whole quotation, as a share of the best score
SHORT = 2_000  # characters of a log whose lines are all read

_WORD = re.compile(r"[A-Za-z_]\w*|\d+")
_BETWEEN = re.compile(r"[:;.]\s")
NUMBER = "#"
Run = tuple[str, str, str]


def by_quotations(connection: Connection, ranked: Sequence[Ranked], log: str) -> list[Ranked]:
    """The ranked passages, those first that quote a message of the log."""
    messages = [runs for part in _parts(log) if len(runs := _runs(part)) >= LEAST_RUNS]
    if not messages or not ranked:
        return list(ranked)
    pool = ranked[:POOL]
    live = passages.live(connection, [entry.seq for entry in pool])
    wanted = frozenset().union(*messages)
    best = pool[0].score
    scored = []
    for entry in pool:
        passage = live.get(entry.seq)
        share = _share(messages, _among(wanted, passage.text)) if passage is not None else 0.0
        scored.append(entry._replace(score=entry.score + QUOTED * share * best))
    return sorted([*scored, *ranked[POOL:]], key=lambda e: (-e.score, e.seq))


def _share(messages: Sequence[frozenset[Run]], text: frozenset[Run]) -> float:
    """How much of the message that a text quotes best; 0 for chance meetings of words."""
    best = 0.0
    for message in messages:
        shared = len(message & text)
        share = shared / len(message)
        if shared >= LEAST_RUNS and share >= LEAST_SHARE:
            best = max(best, share)
    return best


def _parts(log: str) -> Iterator[str]:
    """The pieces of the log's lines: who speaks and where stand before the message."""
    lines = log.splitlines() if len(log) <= SHORT else query_lines(log, MOST_LINES)
    for line in lines[:MOST_LINES]:
        yield from _BETWEEN.split(without_prefix(line))


def _runs(text: str) -> frozenset[Run]:
    """Every three words in a row of which two are no numbers. Numbers are alike, since a text
    quotes a message with numbers of its own.
    """
    words = _words(text)
    runs = zip(words, words[1:], words[2:], strict=False)
    return frozenset(run for run in runs if run.count(NUMBER) < 2)


def _among(wanted: frozenset[Run], text: str) -> frozenset[Run]:
    """Which of these runs a text has."""
    words = _words(text)
    return wanted.intersection(zip(words, words[1:], words[2:], strict=False))


def _words(text: str) -> list[str]:
    return [NUMBER if word[0].isdigit() else word.lower() for word in _WORD.findall(text)]
