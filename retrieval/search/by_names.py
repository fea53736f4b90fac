"""Order for requests in words: sections that define a name in the text, or quote a message of the
log, come before similar ones.

An error code, an instruction or a directive is defined in one place of a manual; a ranking by words
and meaning sees it as one rare word among many. A name counts if it cannot be an ordinary word and
few sections define it.

For a question about a quantity, passages with a sentence or table row that states the value of the
thing that is asked for come first: "How large is the SBUF?" is as near to each passage about the
SBUF as to the one with its size, and the difference is a size beside the name.

`code_matches` finds the error codes that the documents of a chip define in a log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from kb.catalog.knowledge.symbols import Symbol
from kb.tokens import tokenize
from retrieval.diagnose.log_lines import query_lines, without_boilerplate, without_prefix
from retrieval.diagnose.signatures import OF_CARDS, ErrorSignature, SignatureMatch
from retrieval.request import RetrieveRequest
from retrieval.search.names import MAX_DRAFT, Cards, missing_names, names_in, sections_of_names
from retrieval.search.plan import load_thesaurus
from retrieval.search.ranking import Ranked
from retrieval.search.titles import Titles
from retrieval.snapshot.snapshot import Snapshot

# -- the value that a question asks for

VALUE_POOL = 60  # passages of a ranking that are read
STATED = 0.6  # added to the score of a passage that states all, as a share of the best score
NEAR_AFTER, NEAR_BEFORE = 4, 8  # words between a value and the thing after it, before it
FAMILY, UNNAMED = 0.6, 0.9  # factors for a text about the family, or that does not name the chip
LEAST = 0.5  # share of the words of the question without which a value is of something else
MOST_ROW = 400  # characters of a table's row

_NUMBER = r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_COUNT = rf"(?:{_NUMBER}|\b(?:two|three|four|five|six|seven|eight|nine|ten|twelve|sixteen)\b)"
_BYTES = r"(?:[KMGTP]i?B|[kmgt]b|(?:kilo|mega|giga|tera)?bytes?)"
_OPERATIONS = (
    r"(?:[KMGTPE]|(?:giga|tera|peta|exa)-?)?(?:FL)?OPS?(?:/\w+| per \w+)*|[GTPE]F(?:/s)?"
    r"|(?:operations?|flops?)(?:/| per )\w+"
)
# The throughput of a data type is a number of operations, which may stand behind its name: "47.5
# FP32 TFLOPS", "190 FP16/BF16 TFLOPS".
_DTYPE = (
    r"(?:[bct]?fp?-?\d{1,2}(?:_?e\dm\d)?|(?:b|t)?float-?\d{1,2}|u?int-?\d{1,2}|half|single|double"
    r"|(?:half|single|double)[ -]precision)"
)
_OF_DTYPE = re.compile(rf"\b{_DTYPE}\b", re.IGNORECASE)
_BEFORE_UNIT = rf"(?:(?:dense|sparse|peak|{_DTYPE}(?:/{_DTYPE}){{0,6}}) ){{0,3}}"
# What a question asks for, and the unit of such a value. The first that matches counts.
_MEASURES = (
    (
        r"bandwidth|throughput|how fast|\brates?\b|performance|flops|\bpeaks?\b",
        rf"{_BYTES}(?:/(?:s\w*|cycle|clock|clk)|ps| per \w+)|{_OPERATIONS}"
        r"|(?:elements?|values?|instructions?)(?:/| per )\w+",
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
    measure, values = value_patterns(question)
    if not values or (measure and re.search(r"\bhow (?:to|do i|can)\b", question, re.IGNORECASE)):
        return None
    bare = re.sub(measure, " ", question, flags=re.IGNORECASE) if measure else question
    words = set(_TERM.findall(bare.lower())) - _PLAIN - leave_out
    terms = set(tokenize(" ".join(sorted(words))))
    return Asked(values, frozenset(terms)) if terms else None


def value_patterns(question: str) -> tuple[str, tuple[re.Pattern[str], ...]]:
    """The pattern of the words in a question that ask for a quantity, if any, and the patterns of
    values that answer it: numbers with a fitting unit, or with the noun that it counts."""
    fitting = (row for row in _MEASURES if re.search(row[0], question, re.IGNORECASE))
    measure, unit = next(fitting, ("", ""))
    values = []
    if measure:
        of_dtype = measure == _MEASURES[0][0] and _OF_DTYPE.search(question)
        if of_dtype and not re.search("bandwidth", question, re.IGNORECASE):
            unit = rf"{_BEFORE_UNIT}(?:{_OPERATIONS})"
        values.append(re.compile(rf"(?:{_NUMBER})[ -]?(?:{unit})(?![\w/])", re.IGNORECASE))
    for match in (*_HOW_MANY.finditer(question), *_NUMBER_OF.finditer(question)):
        noun = re.sub(r"(?<=[^s])s$", "", match[1].split()[-1])
        if not re.fullmatch(_BYTES, match[1], re.IGNORECASE):
            pattern = rf"{_COUNT}[ -](?:[\w-]+ ){{0,2}}{re.escape(noun)}(?:e?s)?\b"
            values.append(re.compile(pattern, re.IGNORECASE))
    return measure, tuple(values)


def by_values(
    snapshot: Snapshot, ranked: Sequence[Ranked], question: str, chip: Sequence[str]
) -> list[Ranked]:
    """The ranked passages, starting with those that state the value that a question asks for.
    `chip` are the id and the names of the requested chip."""
    asked = asked_value(question, frozenset(name.lower() for name in chip))
    if asked is None or not ranked:
        return list(ranked)
    pool = ranked[:VALUE_POOL]
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
    return sorted([*scored, *ranked[VALUE_POOL:]], key=lambda e: (-e.score, e.seq))


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


_SIZE = re.compile(rf"(?:{_NUMBER})[ -]?(?:[KMGT]i?B|kilobytes|megabytes)(?![\w/])")


def states_bytes(text: str, terms: frozenset[str]) -> bool:
    """Whether a text states the size of one of the things that these tokens name."""
    return any(_states(clause, _SIZE, terms) for clause in _clauses(text))


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
        if not re.match(r"[\s)]*[,;.]", after) and _names(_value_words(after, NEAR_AFTER), terms):
            return True
        attributive = re.search(r"\d-\w+$", match[0]) is not None  # "a 64-bit address"
        if not attributive and _names(_value_words(before, -NEAR_BEFORE), terms):
            return True
    return False


def _value_words(text: str, count: int) -> str:
    """The first words of a text, or the last ones for a negative count."""
    words = text.split()
    return " ".join(words[:count] if count > 0 else words[count:])


def _names(text: str, terms: frozenset[str]) -> bool:
    """Whether one of the words is the thing that a text is about, not a part of its name."""
    return any(
        re.match(_HEAD, text[word.end() :]) and terms.intersection(tokenize(word[0]))
        for word in _TERM.finditer(text)
    )


# -- names and messages

MOST_NAMES = 8  # names of a text, the first ones
MOST_SECTIONS = 3  # sections that define a name; a name with more is too general
ERROR = "error"  # kind of the cards of error codes
NOTHING: Mapping[str, str] = MappingProxyType({})


# Added to the score of a passage that defines a name, as a share of the best score.
ERROR_SHARE, OTHER_SHARE = 1.0, 0.3  # for error codes, for other names


def by_names(
    snapshot: Snapshot,
    ranked: Sequence[Ranked],
    text: str,
    cards: Cards,
    meant: Mapping[str, str] = NOTHING,
) -> list[Ranked]:
    """The ranked passages, starting with those that define names in the text; defining passages
    that were not ranked are added. The scope is checked when excerpts are made. `meant` maps ids of
    sections to a name in them that resembles one in the text; they weigh as much as those of an
    error code."""
    sections = _defining(text, cards) | {place: (name, ERROR) for place, name in meant.items()}
    if not sections:
        return list(ranked)
    best = max((entry.score for entry in ranked), default=0.0) or 1.0
    by_seq = {entry.seq: entry for entry in ranked}
    for passage in snapshot.passages_of_sections(sections):
        name, kind = sections[passage.section_id]
        if not names_in(passage.text, (name,)):
            continue
        share = ERROR_SHARE if kind == ERROR else OTHER_SHARE
        entry = by_seq.get(passage.seq) or Ranked(passage.seq, 0.0, 0.0, 0.0, passage.category)
        by_seq[passage.seq] = entry._replace(score=entry.score + share * best)
    return sorted(by_seq.values(), key=lambda e: (-e.score, e.seq))


def _defining(text: str, cards: Cards) -> dict[str, tuple[str, str]]:
    """The sections that define names of the text: their ids, with the name and its kind. If a
    section is titled with the name, lists that contain it are left out."""
    by_name = cards.uncommon
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
    """Whether the name cannot be an ordinary word: it has several parts, a digit or capitals, or is
    an error code."""
    if any(card.kind == ERROR for card in cards) and any(c.isdigit() for c in name):
        return True
    bare = name.lstrip(".@%$#")
    marked = bare != name or any(c.isdigit() or c in "_." for c in bare)
    return (
        len(bare) >= 3 and (marked or (bare.isupper() and len(bare) >= 4)) and bool(tokenize(name))
    )


# -- parts of names: a library writes XE_BDPAS_TT where the documents describe BDPAS

POOL = 60  # passages of a ranking that are read
_JOINED = re.compile(r"[A-Za-z0-9]+(?:_+[A-Za-z0-9]+)+")
_TITLED = re.compile(r"\b(?=\w{4,})(?:[A-Z]\w*[A-Z]|[A-Za-z]+\d\w*)\b")


def by_parts(snapshot: Snapshot, ranked: Sequence[Ranked], question: str) -> list[Ranked]:
    """The ranked passages, starting with those of sections titled with a part of a joined name of
    the question that no passage contains as a whole. A part in more sections is too general."""
    live = snapshot.load([entry.seq for entry in ranked[:POOL]])
    text = " ".join(passage.text for passage in live.values())
    absent = [name for name in _JOINED.findall(question) if name not in text]
    parts = {part for name in absent for part in name.lower().split("_")}
    titled = {
        p.seq: p.section_id
        for p in live.values()
        if p.path and parts.intersection(map(str.lower, _TITLED.findall(p.path[-1])))
    }
    if not 0 < len(set(titled.values())) <= MOST_SECTIONS:
        return list(ranked)
    raised = ERROR_SHARE * ranked[0].score
    return sorted(
        (e._replace(score=e.score + raised * (e.seq in titled)) for e in ranked),
        key=lambda e: (-e.score, e.seq),
    )


# -- headings: a question for a name has the heading of a table of names

NAMED_WORDS = 3  # least number of words of a heading that the question has in the same order
NAMED_SHARE = 1.0  # added to the score of such a table, as a share of the best score
_NAME_ASKED = re.compile(
    r"\b(?:which|what|is there|are there|list)\b.*\b(?:instruction|intrinsic|function|built-?in"
    r"|macro|opcode|mnemonic|directive|pragma|register|option|flag|command|call)s?\b",
    re.IGNORECASE | re.DOTALL,
)


def by_headings(snapshot: Snapshot, ranked: Sequence[Ranked], question: str) -> list[Ranked]:
    """The ranked passages; for a question that asks for a name, with higher scores for tables of
    sections whose heading it has, but for one word at most. Running text about the subject
    otherwise precedes the table with the name."""
    if not _NAME_ASKED.search(question):
        return list(ranked)
    words = f" {' '.join(tokenize(question))} "
    titled = set()
    for passage in snapshot.load([entry.seq for entry in ranked[:POOL]]).values():
        heading = tokenize(passage.path[-1]) if passage.path and "|" in passage.text else []
        least = max(NAMED_WORDS, len(heading) - 1)
        parts = (heading[n : n + least] for n in range(len(heading) - least + 1))
        if any(f" {' '.join(part)} " in words for part in parts):
            titled.add(passage.seq)
    raised = NAMED_SHARE * ranked[0].score if titled else 0.0
    return sorted(
        (e._replace(score=e.score + raised * (e.seq in titled)) for e in ranked),
        key=lambda e: (-e.score, e.seq),
    )


# -- quotations: sections that quote a message of the log come first

ANOTHER = 0.2  # share of its score that a section titled for another signal loses
MOST_LINES = 12  # lines of a log
# least number of three-word sequences in common, and their least share of the message's
LEAST_RUNS, LEAST_SHARE = 3, 0.3
QUOTED = 1.0  # added to the score of a complete quotation, as a share of the best score
SHORT = 2_000  # characters of a log that is read in full

_WORD = re.compile(r"[A-Za-z_]\w*|\d+")
_BETWEEN = re.compile(r"[:;.]\s")
NUMBER = "#"
Run = tuple[str, str, str]


def by_quotations(snapshot: Snapshot, ranked: Sequence[Ranked], log: str) -> list[Ranked]:
    """The ranked passages, starting with those that quote a message of the log."""
    messages = [runs for part in _parts(log) if len(runs := _runs(part)) >= LEAST_RUNS]
    if not messages or not ranked:
        return list(ranked)
    pool = ranked[:POOL]
    live = snapshot.load([entry.seq for entry in pool])
    all_runs = frozenset().union(*messages)
    best = pool[0].score
    scored = []
    for entry in pool:
        passage = live.get(entry.seq)
        share = _share(messages, _runs_in(all_runs, passage.text)) if passage is not None else 0.0
        scored.append(entry._replace(score=entry.score + QUOTED * share * best))
    return sorted([*scored, *ranked[POOL:]], key=lambda e: (-e.score, e.seq))


def _share(messages: Sequence[frozenset[Run]], text: frozenset[Run]) -> float:
    """The largest share of a message that the text quotes; 0 for chance matches."""
    best = 0.0
    for message in messages:
        shared = len(message & text)
        share = shared / len(message)
        if shared >= LEAST_RUNS and share >= LEAST_SHARE:
            best = max(best, share)
    return best


def _parts(log: str) -> Iterator[str]:
    """The pieces of the log's lines: a message follows its source and position."""
    lines = log.splitlines() if len(log) <= SHORT else query_lines(log, MOST_LINES)
    for line in lines[:MOST_LINES]:
        yield from _BETWEEN.split(without_prefix(line))


def _runs(text: str) -> frozenset[Run]:
    """All sequences of three words with at most one number. Numbers are equal, since a quoted
    message may contain other numbers."""
    words = _words(text)
    runs = zip(words, words[1:], words[2:], strict=False)
    return frozenset(run for run in runs if run.count(NUMBER) < 2)


def _runs_in(runs: frozenset[Run], text: str) -> frozenset[Run]:
    """The runs in `wanted` that the text contains."""
    words = _words(text)
    return runs.intersection(zip(words, words[1:], words[2:], strict=False))


def _words(text: str) -> list[str]:
    return [NUMBER if word[0].isdigit() else word.lower() for word in _WORD.findall(text)]


def by_words(
    snapshot: Snapshot,
    request: RetrieveRequest,
    cards: Cards,
    titles: Titles,
    signals: Sequence[str],
    chip: Sequence[str] = (),
) -> Callable[[list[Ranked]], list[Ranked]]:
    """The order for a request in words: first sections that define a name in its log or question,
    or the most similar known name, those that quote its message, and those that state the value
    that a question asks for. `cards` are the candidates for names, `chip` the id and the names of
    the requested chip. Sections titled for a signal other than `signals` of the diagnosis are
    lowered a little.
    """
    log = without_boilerplate(request.log or "")
    text = "\n".join(filter(None, (request.query, log)))
    if not text:
        return list
    meant = sections_of_names(missing_names(log, cards), cards)

    def order(ranked: list[Ranked]) -> list[Ranked]:
        fitting = _others_later(snapshot, ranked, titles, signals)
        quoted = by_quotations(snapshot, fitting, log)
        stated = by_values(snapshot, quoted, request.query or "", chip)
        titled = by_headings(snapshot, stated, request.query or "")
        parted = by_parts(snapshot, titled, request.query or "")
        return by_names(snapshot, parted, text, cards, meant=meant)

    return order


def _others_later(
    snapshot: Snapshot, ranked: list[Ranked], titles: Titles, signals: Sequence[str]
) -> list[Ranked]:
    """The ranked passages, with lower scores for sections titled for another signal. Related
    failures are described in similar words, so a chip's section about another one would otherwise
    precede the guide to this one."""
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


MOST_CODES = 4  # codes of one log
# Signals of cards by words in their text, then by words in their heading.
_WORDS = (
    ("misaligned_access", r"mis-?aligned|un-?aligned|not aligned"),
    (
        "illegal_memory_access",
        r"out[ -]of[ -]bounds|(?:invalid|illegal|unmapped|bad) (?:memory )?(?:address|access)",
    ),
    ("timeout", r"\btime[ds]?[ -]?out\b|deadlock|\bhangs?\b|watchdog"),
    ("out_of_memory", r"\bout of (?:device |global )?memory"),
    (
        "register_limit",
        r"(?:too many|out of|not enough|insufficient) (?:\w+ )?registers"
        r"|registers? (?:file )?(?:overflow|exhausted|exceed)",
    ),
    (
        "shared_memory_limit",
        r"(?:shared|local|on-chip) memory (?:is )?(?:overflow|exceed|exhausted|full|too small)"
        r"|(?:scratchpad|SRAM) (?:is )?(?:overflow|exceed|exhausted|full|too small)",
    ),
    (
        "unsupported_dtype",
        r"(?:data ?type|dtype|precision)[^.]{0,40}not supported|unsupported (?:data ?type|dtype)",
    ),
)
_HEADINGS = (
    ("link_error", r"\blink"),
    ("compile_error", r"compil|assembl|\bbuild|syntax|translat|diagnostic"),
    ("launch_error", r"run-?\s?time|launch|fault|\btraps?\b|driver|exception|device"),
)


def code_matches(log: str, cards: Sequence[Symbol]) -> list[SignatureMatch]:
    """A match for each error code of the cards that a log contains, in the order of the log, at
    most MOST_CODES. A bare number is not matched: it may be an address."""
    codes = {c.name: c for c in cards if c.kind == ERROR and _is_code(c.name)}
    matches = []
    for name in names_in(log, codes)[:MOST_CODES]:
        signal = _signal_of(codes[name])
        number, line = _line_of(name, log)
        if signal:
            matches.append(SignatureMatch(_signature(codes[name], signal), number, line, {}))
    return matches


def _is_code(name: str) -> bool:
    """Letters and a number, more than the name of a register or a type has."""
    return len(name) >= 4 and name[0].isalpha() and any(c.isdigit() for c in name)


def _signature(card: Symbol, signal: str) -> ErrorSignature:
    return ErrorSignature(
        id=f"code-{card.name}",
        toolchain=card.language,
        pattern=re.escape(card.name),
        signal=signal,
        title=f"{card.name} is an error code of {card.document_title}",
        remedy=_words_of_card(card),
        origin=OF_CARDS,
        roles=(),
    )


def _words_of_card(card: Symbol) -> str:
    return " ".join(f"{part.rstrip('. ')}." for part in (*card.further, card.meaning) if part)


def _signal_of(card: Symbol) -> str:
    """The signal of a card; empty if neither its words nor its heading determine one."""
    above = (_signal_in(text, _HEADINGS) for text in (*reversed(card.path), card.document_title))
    return _signal_in(_words_of_card(card), _WORDS) or next(filter(None, above), "")


def _signal_in(text: str, patterns: Sequence[tuple[str, str]]) -> str:
    return next((signal for signal, words in patterns if re.search(words, text, re.I)), "")


def _line_of(name: str, log: str) -> tuple[int, str]:
    """The first line that contains a code: its number, from 1, and its text."""
    lines = log[:MAX_DRAFT].splitlines()
    return next(((n, line.strip()) for n, line in enumerate(lines, 1) if name in line), (1, name))
