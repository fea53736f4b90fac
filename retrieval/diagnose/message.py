"""Advice in an error message itself, and the amount that exceeds a limit.

A message is a known line of a log with its continuation: wrapped text, list items, and lines
labelled `note:`, `help:` or `hint:`. Other messages of the log are not read. Of its sentences the
first that names an action is the advice, else the first that states a condition ("must be a
multiple of 16"). Sentences on debugging, reporting and documentation do not count.

Two amounts surround a comparison ("41492 exceeds 32768", "1025 must be <= 1024") or after words
for the required and the available amount ("requested: 2048, allowed: 1024"). The words near them
tell which resource it is; the table `resources` of signatures.toml has these words.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from retrieval.diagnose.log_lines import is_excerpt, without_boilerplate, without_prefix
from retrieval.diagnose.metrics import parse_quantity
from retrieval.diagnose.signals import DATA

MAX_LINES = 12  # lines of a message
MAX_LINE = 1_500
MAX_SENTENCE = 220

_NOTE = re.compile(r"(?:^|\W)(?:note|help|hint|suggestion|tip)\s{0,2}[:=]", re.IGNORECASE)
_ITEM = re.compile(r"^\s*(?:[-*\u2022]|\(?\d{1,2}[.)])\s")
_FIELD = re.compile(r"\s*[a-z][\w ]{2,24}: ")
_CARET = re.compile(r"^\s*(?:\d*\s*\|)?\s*[~^][\s~^-]*$")
_LOCATION = re.compile(
    r"^\s*[\w./\\+<>-]{1,200}(?:(?::\d{1,7}){1,2}|\(\d{1,7}(?:,\d{1,5})?\))\s*:?\s*"
)
_SENTENCE = re.compile(
    r"(?<![ (][ei]\.[ge]\.)(?<=[.!?])[\"'`]?\s+(?=[\"'`(\[]?[A-Z0-9-])|\s+\|\s+|;\s+|\n|\s+\[Hint: "
)
_LINK = re.compile(r"\(?https?://\S+\)?")


@lru_cache(maxsize=1)
def message_words() -> Mapping[str, Any]:
    """The tables of messages.toml."""
    return tomllib.loads((DATA / "messages.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=20)
def _words(name: str) -> re.Pattern[str]:
    """A list of messages.toml as one pattern."""
    return re.compile("|".join(message_words()[name]), re.IGNORECASE)


@lru_cache(maxsize=1)
def _actions() -> re.Pattern[str]:
    """Instructions: verbs at the beginning of a clause or after "you can", and fixed phrases."""
    words = {
        name: "|".join(alternatives)
        for name, alternatives in message_words().items()
        if name in ("verbs", "noun_verbs", "objects", "clauses", "actions")
    }
    verb = rf"(?:{words['verbs']})"
    noun = rf"(?:{words['noun_verbs']})"
    begun = rf"(?:{verb} (?!of\b|is\b|was\b|failed)\S|{noun} (?:{words['objects']}))"
    asked = (
        r"\b(?:you|users?|applications?|callers?)"
        r" (?:can|could|may|might|should|must|(?:need|have|want) to)"
    )
    return re.compile(
        rf"(?:{words['clauses']})[\"'`]?(?:please )?{begun}"
        rf"|{asked} (?:also |either |first |explicitly )?(?:{verb}|{noun})\b|{words['actions']}",
        re.IGNORECASE,
    )


@dataclass(frozen=True)
class Advice:
    """A sentence of a message: an action that it names, or a condition that it states."""

    text: str
    is_condition: bool


def origin_of(line: str) -> str:
    """What to do about an error in generated or installed source; empty for other source."""
    origins = message_words()["origins"]
    return next((o["text"] for o in origins if re.search(o["pattern"], line)), "")


def advice_in(message: Sequence[str]) -> Advice | None:
    """The first action that a message names, else the first condition that it states."""
    sentences = [s for s in _sentences(message) if not _words("elsewhere").search(s)]
    for is_condition, pattern in ((False, _actions()), (True, _words("conditions"))):
        for sentence in sentences:
            if pattern.search(sentence):
                return Advice(_shortened(sentence), is_condition)
    return None


def message_at(lines: Sequence[str], number: int) -> list[str]:
    """The lines of the message that line `number` (from 1) begins: its text without excerpts of
    source and without lines of other messages.
    """
    message = [without_prefix(lines[number - 1])[:MAX_LINE]]
    after = [without_prefix(line)[:MAX_LINE] for line in lines[number : number + 2 * MAX_LINES]]
    for i, line in enumerate(after):
        following = after[i + 1] if i + 1 < len(after) else ""
        if len(message) == MAX_LINES:
            break
        if not line.strip():
            if not _words("resumed").match(following):
                break
            continue
        if (
            _CARET.match(line)
            or is_excerpt(line)
            or _CARET.match(following)
            or _words("code").search(line)
        ):
            continue
        if _words("other").search(line) and not _NOTE.search(line):
            break
        message.append(line)
    return message


def _sentences(message: Sequence[str]) -> Iterator[str]:
    """The sentences, without place and label; a wrapped line continues the one before."""
    text = ""
    for line in message:
        wrapped = text and not _ITEM.match(line) and not _NOTE.search(line)
        wrapped = wrapped and not re.search(r"[.:!?]\s*$", text) and not _FIELD.match(line)
        text += (" " if wrapped else "\n") + _bare(line)
    for sentence in _SENTENCE.split(without_boilerplate(text)):
        sentence = " ".join(_LINK.sub("", sentence or "").split()).strip(" |,-")
        if len(sentence) >= 8 and not sentence.endswith(":"):
            yield sentence


def _bare(line: str) -> str:
    line = _ITEM.sub("", _LOCATION.sub("", line, count=1), count=1)
    for _ in range(3):
        label = re.match(
            rf"(?:E\s+)?(?:[\w.-]{{1,60}}: )?(?:{_words('labels').pattern})\s*", line, re.I
        )
        line = line[label.end() :] if label is not None else line
    return line.strip()


def _shortened(sentence: str) -> str:
    sentence = sentence.rstrip(" .:,;")
    for quote in "'\"`":
        if sentence.count(quote) % 2:
            sentence = sentence.strip(quote).rstrip(" .:,;")
    if len(sentence) <= MAX_SENTENCE:
        return sentence
    start = _actions().search(sentence) or _words("conditions").search(sentence)
    first = max(0, start.start() - 40) if start is not None and start.end() > MAX_SENTENCE else 0
    cut = sentence[first : first + MAX_SENTENCE].rsplit(" ", 1)[0]
    return f"{'... ' if first else ''}{cut} ..."


# -- amounts over a limit

AROUND = 120  # characters around two amounts in which the resource is named
MOST = 1e16

_NUMBER = r"(?:0x[0-9a-f]+|\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)"
_UNIT = r"(?:[KMGT]i?B\b|[KMGT]\b|(?:kilo|mega|giga|[KMG])?bytes?\b|B\b)"
_AMOUNT = re.compile(
    rf"(?<![\w.#/@%:-])(?P<number>{_NUMBER})\s?(?P<unit>{_UNIT})?(?!\.?\d|[\w%])"
    r"|[\[(](?P<vector>\d+(?:, ?\d+){1,3})[\])]|(?<=\w)\[\d+\]",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(r"\b(?:cannot|can ?not|must not|may not|should not) exceed ", re.IGNORECASE)


@lru_cache(maxsize=1)
def _cues() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Words for the required and the available amount, each with an adjacent number."""
    needed, there = ("|".join(message_words()[name]) for name in ("needed", "there"))
    behind = rf"(?={_NUMBER} ?{_UNIT}? "
    return (
        re.compile(
            rf"\b(?:{needed})\b[^\d\[]{{0,30}}?(?={_NUMBER}|\[)"
            rf"|{behind}(?:required|requested|needed))",
            re.IGNORECASE,
        ),
        re.compile(
            rf"\b(?:{there})[\s:=(]{{1,4}}(?:is |of |at most |only )?(?=0x|\d|\[)"
            rf"|\b{behind}(?:max\b|allowed|available|free))",
            re.IGNORECASE,
        ),
    )


@dataclass(frozen=True)
class Resource:
    """A kind of amount that has a limit: the words that name it near an amount, the noun with its
    unit that a title uses, the remedy, and the priority of a line with both amounts.
    """

    id: str
    words: str
    signal: str
    unit: str
    noun: str
    remedy: str
    priority: int


@dataclass(frozen=True)
class Excess:
    """A resource over its limit; `needed` is None if the line has only the limit."""

    resource: Resource
    needed: float | None
    limit: float

    @property
    def title(self) -> str:
        """The amounts in words."""
        if self.needed is None:
            return f"More {self.resource.noun} than the {self.limit:,.0f} that are allowed"
        return f"{self.needed:,.0f} {self.resource.noun}, {self.limit:,.0f} are allowed"


@lru_cache(maxsize=1)
def load_resources() -> tuple[Resource, ...]:
    """The resources, the more specific first."""
    return tuple(Resource(**row) for row in message_words()["resources"])


def excess_in(line: str) -> Excess | None:
    """The amount of a known resource that exceeds its limit in this line."""
    amounts = [a for a in _AMOUNT.finditer(line) if a["number"] or a["vector"]]
    pairs = [
        (needed, limit, resource)
        for needed, limit in _pairs(line, amounts)
        if (resource := _resource_near(line, needed.start(), limit.end())) is not None
    ]
    for needed, limit, resource in pairs:
        values = _values(needed, limit, resource, line)
        if values is not None:
            return Excess(resource, *values)
    return None if pairs else _limit_alone(line, amounts)


def _pairs(
    line: str, amounts: Sequence[re.Match[str]]
) -> list[tuple[re.Match[str], re.Match[str]]]:
    """Candidates of the needed amount and its limit, the likelier first."""
    pairs = []
    for cue in _words("comparisons").finditer(line):
        before = [a for a in amounts if a.end() <= cue.start() and cue.start() - a.end() < AROUND]
        after = [a for a in amounts if a.start() >= cue.end() and a.start() - cue.end() < AROUND]
        if before and after:
            pairs.append((before[-1], after[0]))
    needed, there = _cues()
    most = {place for cue in there.finditer(line) for place in cue.span()}
    wanted = {cue.end() for cue in needed.finditer(line)}
    limits = [a for a in amounts if a.start() in most]
    return pairs + [
        (a, limit)
        for a in amounts
        for limit in limits
        if a.start() in wanted and limit.start() > a.start()
    ]


def _values(
    needed: re.Match[str], limit: re.Match[str], resource: Resource, line: str
) -> tuple[float, float] | None:
    """Both amounts in the unit of the resource, if the first exceeds the second."""
    wanted, most = _numbers(needed, resource, limit), _numbers(limit, resource, needed)
    if not wanted or not most:
        return None
    pairs = list(zip(wanted, most, strict=True)) if len(wanted) == len(most) else []
    pairs = pairs or [(max(wanted), most[-1]), (prod(wanted), most[-1])]
    total = _AMOUNT.search(line, limit.end())
    if len(most) > 1 and total is not None and (numbers := _numbers(total, resource, total)):
        pairs.append((prod(wanted), numbers[0]))
    return next(((n, m) for n, m in pairs if 0 < m < n <= MOST), None)


def _numbers(amount: re.Match[str], resource: Resource, other: re.Match[str]) -> list[float]:
    if amount["vector"]:
        return [float(n) for n in amount["vector"].split(",")]
    unit = amount["unit"] or ""
    # "33.56M vs 32.00M" and "269 of 67 MB": a letter counts bytes, and one unit may serve both.
    unit = unit or (other["unit"] or "" if other.start() - amount.end() < 6 else "")
    if resource.unit == "bytes" and len(unit) == 1 and unit.upper() != "B":
        unit += "iB"
    value = parse_quantity(amount["number"] + unit, "B" if resource.unit == "bytes" else "1")
    return [] if value is None else [value]


def _resource_near(line: str, start: int, end: int) -> Resource | None:
    """The first resource named around the amounts."""
    window = line[max(0, start - AROUND) : end + AROUND]
    found = (r for r in load_resources() if re.search(r.words, window, re.IGNORECASE))
    return next(found, None)


def _limit_alone(line: str, amounts: Sequence[re.Match[str]]) -> Excess | None:
    """The limit of a line that says it is exceeded and does not have the amount."""
    if not _words("comparisons").search(line):
        return None
    starts = {place for cue in _cues()[1].finditer(line) for place in cue.span()}
    starts |= {cue.end() for cue in _FORBIDDEN.finditer(line)}
    for amount in amounts:
        if amount.start() in starts and amount["number"]:
            resource = _resource_near(line, amount.start(), amount.end())
            if resource is not None and (numbers := _numbers(amount, resource, amount)):
                return Excess(resource, None, numbers[0])
    return None
