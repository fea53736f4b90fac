"""Order for a question about a quantity: passages with a sentence or table row that states the
value of the thing that is asked for come first.

"How large is the SBUF?" is as near to each passage about the SBUF as to the one with its size; the
difference is a size beside the name. Knows units of measure and no chip.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kb.tokens import tokenize
from retrieval.search.plan import load_thesaurus
from retrieval.search.ranking import Ranked
from retrieval.snapshot.snapshot import Snapshot

POOL = 60  # passages of a ranking that are read
STATED = 0.6  # added to the score of a passage that states all, as a share of the best score
NEAR_AFTER, NEAR_BEFORE = 4, 8  # words between a value and the thing after it, before it
FAMILY, UNNAMED = 0.6, 0.9  # factors for a text about the family, or that does not name the chip
LEAST = 0.5  # share of the words of the question without which a value is of something else
MOST_ROW = 400  # characters of a table's row

_NUMBER = r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_COUNT = rf"(?:{_NUMBER}|\b(?:two|three|four|five|six|seven|eight|nine|ten|twelve|sixteen)\b)"
_BYTES = r"(?:[KMGTP]i?B|[kmgt]b|(?:kilo|mega|giga|tera)?bytes?)"
# What a question asks for, and the unit of such a value. The first that matches counts.
_MEASURES = (
    (
        r"bandwidth|throughput|how fast|\brates?\b|performance|flops|\bpeaks?\b",
        rf"{_BYTES}(?:/(?:s\w*|cycle|clock|clk)|ps| per \w+)|[KMGTPE]?(?:FL)?OPS?(?:/\w+)*"
        r"|(?:elements?|values?|instructions?|operations?)(?:/| per )\w+",
    ),
    (r"\bclocks?\b|frequency", r"[KMG]Hz"),
    (r"latency|how long|how slow|\bdelay\b", r"(?:clock )?cycles?|clocks?|[nmuµ]s|\w+seconds"),
    (r"power|how hot|\btdp\b", r"k?W|watts?"),
    (r"how wide|\bwidth\b", rf"{_BYTES}|bits?|lanes|elements?"),
    (
        r"how (?:large|big|small|deep)|\bsizes?\b|capacit(?:y|ies)|how much (?:\w+ ){0,3}"
        r"(?:memory|sram|dram|hbm|lds|scratch-?pad|cache|storage)|how many (?:kilo|mega)?bytes",
        rf"{_BYTES}|bits?",
    ),
)
_HOW_MANY = re.compile(r"how many ((?:[\w-]+ ){0,2}?[\w-]+)", re.IGNORECASE)
_NUMBER_OF = re.compile(r"(?:number|count) of ((?:[\w-]+ )?[\w-]+)", re.IGNORECASE)
_NO_VALUE = re.compile(  # words before a number that make it a bound or a condition of something
    r"(?:than|exceeds?|multiples? of|every|stride(?: of| is)?|aligned to|at least|each|offset|per"
    r"|first|last|between|from|by)\s*$",
    re.IGNORECASE,
)
_PLAIN = frozenset(
    re.findall(
        r"\w+",
        "a an and are at be by can could do does each for from had has have how i if in into"
        " is it its many may most much must my no not of on one or our per so than that the"
        " their then there they this to two up used was we what when which who why will with"
        " would you large big small wide fast long deep size sizes capacity capacities total"
        " maximum max number count value values width exactly run fit hold resident contain"
        " computed chip gpu device accelerator available",
    )
)
_TERM = re.compile(r"[A-Za-z][\w-]*|\d+-?[A-Za-z][\w-]*")
_SENTENCE = re.compile(
    r"(?<=[.!?;])\s+(?=[A-Z*`(|])|\n\s*\n|\n(?=[ \t]*(?:\||(?:[-*+•]|\d+[.)])\s))"
)
# What follows the thing itself, where "LDS accesses" is another thing.
_HEAD = (
    r"(?=\W*$|\s*[^\w\s]|\s+(?:is|are|has|have|of|in|on|per|for|with|and|or|as|at|to|that|which"
    r"|holds?|provides?|offers?|contains?|supports?|can|may|each|memory|space|sizes?|capacity|cache"
    r"|s?ram|storage|buffers?|files?|bandwidth|rate|throughput|performance|clocks?|frequency"
    r"|latency|power|width|units?|cores?)\b)"
)


@dataclass(frozen=True)
class Asked:
    """The value that a question asks for: patterns of it (a unit or a counted noun), one for each
    part of the question, and the words of what it belongs to."""

    values: tuple[re.Pattern[str], ...]
    terms: frozenset[str]


@lru_cache(maxsize=256)
def asked_value(question: str, leave_out: frozenset[str] = frozenset()) -> Asked | None:
    """The quantity that a question is about, or None. `leave_out` are the names of the chip."""
    fitting = (row for row in _MEASURES if re.search(row[0], question, re.IGNORECASE))
    measure, unit = next(fitting, (None, ""))
    values = []
    if measure:
        values.append(re.compile(rf"(?:{_NUMBER})[ -]?(?:{unit})(?![\w/])", re.IGNORECASE))
    for match in (*_HOW_MANY.finditer(question), *_NUMBER_OF.finditer(question)):
        noun = re.sub(r"(?<=[^s])s$", "", match[1].split()[-1])
        if not re.fullmatch(_BYTES, match[1], re.IGNORECASE):
            pattern = rf"{_COUNT}[ -](?:[\w-]+ ){{0,2}}{re.escape(noun)}(?:e?s)?\b"
            values.append(re.compile(pattern, re.IGNORECASE))
    if not values or (measure and re.search(r"\bhow (?:to|do i|can)\b", question, re.IGNORECASE)):
        return None
    bare = re.sub(measure, " ", question, flags=re.IGNORECASE) if measure else question
    words = set(_TERM.findall(bare.lower())) - _PLAIN - leave_out
    terms = set(tokenize(" ".join(sorted(words))))
    return Asked(tuple(values), frozenset(terms)) if terms else None


def by_values(
    snapshot: Snapshot, ranked: Sequence[Ranked], question: str, chip: Sequence[str]
) -> list[Ranked]:
    """The ranked passages, starting with those that state the value that a question asks for.
    `chip` are the id and the names of the requested chip."""
    asked = asked_value(question, frozenset(name.lower() for name in chip))
    if asked is None or not ranked:
        return list(ranked)
    pool = ranked[:POOL]
    live = snapshot.load([entry.seq for entry in pool])
    best = pool[0].score
    named = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in chip), re.IGNORECASE)
    scored = []
    for entry in pool:
        passage = live.get(entry.seq)
        share = 0.0
        if passage is not None:
            share = stated_share(passage.shown, asked, " ".join(passage.path[-2:]))
            if chip and not named.search(passage.shown):
                share *= UNNAMED if chip[0] in passage.hardware else FAMILY
        scored.append(entry._replace(score=entry.score + STATED * share * best))
    return sorted([*scored, *ranked[POOL:]], key=lambda e: (-e.score, e.seq))


def stated_share(text: str, asked: Asked, heading: str = "") -> float:
    """The share of the asked values that a text states, from 0 to 1: the parts of the question with
    a value beside a word of it, times the share of these words in the text. Words of the heading
    count as half of one."""
    present = set(tokenize(text))
    present |= {
        token
        for concept in load_thesaurus()
        if concept.named_in(present)
        for name in concept.names
        if name <= asked.terms
        for token in name
    }
    above = set(tokenize(heading)) - present
    covered = len(asked.terms & present) + len(asked.terms & above) / 2
    if covered < LEAST * len(asked.terms):
        return 0.0
    clauses = _clauses(text)
    stated = sum(any(_states(c, value, asked.terms) for c in clauses) for value in asked.values)
    return stated / len(asked.values) * covered / len(asked.terms)


def _clauses(text: str) -> list[str]:
    """Sentences, and rows of tables with the header of each cell beside it."""
    clauses: list[str] = []
    header: list[str] = []
    for part in _SENTENCE.split(text):
        if not part.lstrip().startswith("|"):
            clauses.append(" ".join(part.split()))
            header = []
            continue
        cells = [cell.strip() for cell in part.strip().strip("|").split("|")]
        if not header:
            header = cells
        elif len(part) <= MOST_ROW and any(cell.strip("-: ") for cell in cells):
            clauses += _row(header, cells)
    return clauses


def _row(header: Sequence[str], cells: Sequence[str]) -> Iterator[str]:
    """A row as statements "row, column: 64 KiB", with the unit that the column has."""
    for name, cell in zip(header[1:], cells[1:], strict=False):
        unit = re.search(r"[(\[]([^()\[\]]{1,20})[)\]]", name)
        measure = unit[1] if unit else name.rpartition(" ")[2]
        bare = re.fullmatch(_NUMBER, cell)
        yield f"{name} {cells[0]}: {cell}{f' {measure}' if bare else ''}"


def _states(clause: str, value: re.Pattern[str], terms: frozenset[str]) -> bool:
    """Whether a value in the clause is that of one of the words: "24 MiB of SBUF", "the SBUF has 24
    MiB", but not "an SBUF access of 24 bytes"."""
    for match in value.finditer(clause):
        before, after = clause[: match.start()], clause[match.end() :]
        if terms.intersection(tokenize(re.sub(r"^\W*\S+", "", match[0]))):  # "128 partitions"
            return True
        if _NO_VALUE.search(before):
            continue
        if not re.match(r"[\s)]*[,;.]", after) and _names(_words(after, NEAR_AFTER), terms):
            return True
        attributive = re.search(r"\d-\w+$", match[0]) is not None  # "a 64-bit address"
        if not attributive and _names(_words(before, -NEAR_BEFORE), terms):
            return True
    return False


def _words(text: str, count: int) -> str:
    """The first words of a text, or the last ones for a negative count."""
    words = text.split()
    return " ".join(words[:count] if count > 0 else words[count:])


def _names(text: str, terms: frozenset[str]) -> bool:
    """Whether one of the words is the thing that a text is about, not a part of its name."""
    return any(
        re.match(_HEAD, text[word.end() :]) and terms.intersection(tokenize(word[0]))
        for word in _TERM.finditer(text)
    )
