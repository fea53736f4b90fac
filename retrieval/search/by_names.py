"""What a text names comes before what only resembles it: sections that define the names in a log or
a question, by the chip's own cards.

An error code, an instruction or a directive is defined in one place of a manual; a ranking by words
and meaning sees it as one rare word among many. A name counts where it cannot be a word of running
text and where few sections define it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kb.catalog.knowledge.symbols import Symbol
from kb.tokens import tokenize
from retrieval.diagnose.boilerplate import without_boilerplate
from retrieval.diagnose.log_lines import query_lines, without_prefix
from retrieval.request import RetrieveRequest
from retrieval.search.names import missing_names, names_in, sections_of_names
from retrieval.search.ranking import Ranked
from retrieval.search.titles import Titles
from retrieval.snapshot.snapshot import Snapshot

MOST_NAMES = 8  # of a text, the first ones
MOST_SECTIONS = 3  # that define a name; one that more define names nothing in particular
ERROR = "error"  # kind of the cards of error codes
NOTHING: Mapping[str, str] = MappingProxyType({})
COMMON_KINDS = ("type", "keyword")  # whose names stand in all kinds of text


@dataclass(frozen=True)
class NameWeights:
    """Added to the score of a passage that defines a name, as a share of the best score: of an
    error code, of another name.
    """

    error: float = 1.0
    other: float = 0.3


WEIGHTS = NameWeights()


def by_names(
    snapshot: Snapshot,
    ranked: Sequence[Ranked],
    text: str,
    cards: Sequence[Symbol],
    weights: NameWeights = WEIGHTS,
    meant: Mapping[str, str] = NOTHING,
) -> list[Ranked]:
    """The ranked passages, those first that define what the text names; passages that the ranking
    did not hold are added. Whether they are within the scope is checked when excerpts are made.
    `meant` are sections by id with a name that stands in them and that the text nearly names; they
    count as an error code's do.
    """
    sections = _defining(text, cards) | {place: (name, ERROR) for place, name in meant.items()}
    if not sections:
        return list(ranked)
    best = max((entry.score for entry in ranked), default=0.0) or 1.0
    by_seq = {entry.seq: entry for entry in ranked}
    for passage in snapshot.passages_of_sections(sections):
        name, kind = sections[passage.section_id]
        if not names_in(passage.text, (name,)):
            continue
        share = weights.error if kind == ERROR else weights.other
        entry = by_seq.get(passage.seq) or Ranked(passage.seq, 0.0, 0.0, 0.0, passage.category)
        by_seq[passage.seq] = entry._replace(score=entry.score + share * best)
    return sorted(by_seq.values(), key=lambda e: (-e.score, e.seq))


def _defining(text: str, cards: Sequence[Symbol]) -> dict[str, tuple[str, str]]:
    """The sections that define names of the text: their ids, with the name and its kind. Where one
    is titled with the name, a list that has it among others is left out.
    """
    by_name: dict[str, list[Symbol]] = {}
    for card in cards:
        if card.kind not in COMMON_KINDS:
            by_name.setdefault(card.name, []).append(card)
    sections: dict[str, tuple[str, str]] = {}
    for name in [n for n in names_in(text, by_name) if is_distinct(n, by_name[n])][:MOST_NAMES]:
        defining = by_name[name]
        titled = [card for card in defining if card.path and names_in(card.path[-1], (name,))]
        places = {card.section_id: card.kind for card in titled or defining}
        if len(places) <= MOST_SECTIONS:
            for section_id, kind in places.items():
                sections.setdefault(section_id, (name, kind))
    return sections


def is_distinct(name: str, cards: Sequence[Symbol]) -> bool:
    """Whether the name cannot be a word of running text: it has several parts, a digit or capitals,
    or is an error code.
    """
    if any(card.kind == ERROR for card in cards) and any(c.isdigit() for c in name):
        return True
    bare = name.lstrip(".@%$#")
    marked = bare != name or any(c.isdigit() or c in "_." for c in bare)
    return (
        len(bare) >= 3 and (marked or (bare.isupper() and len(bare) >= 4)) and bool(tokenize(name))
    )


# -- quoted: What quotes the very message of a log comes before what only resembles it.

POOL = 60  # passages of a ranking that are read
ANOTHER = 0.2  # of its score that a section loses which is titled for another signal
MOST_LINES = 12  # of a log
LEAST_RUNS, LEAST_SHARE = 3, 0.3  # three words in a row, how often, and of all those of the message
QUOTED = 1.0  # added to the score of a whole quotation, as a share of the best score
SHORT = 2_000  # characters of a log whose lines are all read

_WORD = re.compile(r"[A-Za-z_]\w*|\d+")
_BETWEEN = re.compile(r"[:;.]\s")
NUMBER = "#"
Run = tuple[str, str, str]


def by_quotations(snapshot: Snapshot, ranked: Sequence[Ranked], log: str) -> list[Ranked]:
    """The ranked passages, those first that quote a message of the log."""
    messages = [runs for part in _parts(log) if len(runs := _runs(part)) >= LEAST_RUNS]
    if not messages or not ranked:
        return list(ranked)
    pool = ranked[:POOL]
    live = snapshot.load([entry.seq for entry in pool])
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


def by_words(
    snapshot: Snapshot,
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
    meant = sections_of_names(missing_names(log, cards), cards)

    def order(ranked: list[Ranked]) -> list[Ranked]:
        fitting = _others_later(snapshot, ranked, titles, signals)
        quoted = by_quotations(snapshot, fitting, log)
        return by_names(snapshot, quoted, text, cards, meant=meant)

    return order


def _others_later(
    snapshot: Snapshot, ranked: list[Ranked], titles: Titles, signals: Sequence[str]
) -> list[Ranked]:
    """The ranked passages; sections that a heading names for another signal have a lower score.
    Nearby failures are told in nearly the same words, and then a chip's own section about another
    one would come before the guide to this one.
    """
    if not signals:
        return ranked
    live = snapshot.load([entry.seq for entry in ranked[:POOL]])
    lowered = []
    for entry in ranked[:POOL]:
        passage = live.get(entry.seq)
        heading = passage.path[-1] if passage is not None and passage.path else ""
        away = min(titles.of_another(heading, signal) for signal in signals) if heading else 0.0
        lowered.append(entry._replace(score=entry.score * (1 - ANOTHER * away)))
    return sorted([*lowered, *ranked[POOL:]], key=lambda e: (-e.score, e.seq))
