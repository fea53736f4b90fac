"""Error signatures: a known line of a log, its signal and its remedy.

Reads `data/signatures.toml`; signatures of a chip come from its hardware.toml through
`signature_from_mapping`. Does not know the source of logs. Patterns are untrusted and are matched
in linear time (see `linear_patterns`).

Order of matches: failures before reports; then by level, so that a named cause precedes the kind of
failure, and both precede what only wraps a failure or ends a process; then the first line. On one
line: the chip's own signature or one that names a cause of its signal, then one that knows the
raising frame, then a signal other than the two that any failure has (compile_error, launch_error),
then the longer match. A line labelled as a warning, a note or a remark can only be a report.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from kb.errors import InvalidKnowledge, InvalidPredicate
from kb.predicates import Bindings, Predicate, Value, compile_predicate
from kb.problem_terms import ROLES
from retrieval.diagnose.comparisons import NO_COMPARISON, Comparison, comparison_at
from retrieval.diagnose.linear_patterns import UnsafePattern, compile_linear, compile_pattern
from retrieval.diagnose.log_lines import (
    Line,
    LogIndex,
    is_advisory,
    is_excerpt,
    normalise_error,
    query_lines,
    without_prefix,
)
from retrieval.diagnose.message import (
    UNKNOWN_TYPE,
    Advice,
    advice_in,
    arguments_in,
    broken_rule,
    cause_below,
    choice_in,
    devices_in,
    excess_in,
    first_report,
    hint_below,
    in_dialect,
    launch_in,
    meaning_of,
    message_at,
    message_words,
    name_of_code,
    origin_of,
    pass_in,
    provider_of,
    settings_in,
)
from retrieval.diagnose.metrics import load_metrics, parse_quantity
from retrieval.diagnose.signals import DATA, load_signals

__all__ = [
    "FAILURE_CLASSES",
    "ErrorSignature",
    "SignatureIndex",
    "SignatureMatch",
    "load_signatures",
    "normalise_error",
    "query_lines",
    "signature_from_mapping",
    "vendor_of_log",
]

BUILTIN = "builtin"
# Origins of heuristic signatures: cards of error codes, and symptoms in prose.
OF_CARDS, OF_WORDS = "card", "words"
# What a line says of a failure: the name of its cause, a condition that does not hold, the kind of
# failure alone, or only that something failed. Below a condition, the advice of the message
# replaces the remedy.
CAUSE, CONDITION, KIND, WRAPPER = LEVELS = ("cause", "condition", "kind", "wrapper")
KIND_OF_FAILURE = LEVELS.index(KIND)
ANY_FAILURE = ("compile_error", "launch_error")  # signals that a more specific one precedes
NEAR_LINES = 4  # between a leading line and its amounts
MAX_MATCHES = 20
MAX_OF_ONE = 3
MAX_WORDS = 600
_PATTERN_HINT = (
    "Patterns are in RE2's syntax. Add words that every such message contains: 'E12' matches"
    " too much, 'E12: no such register' does not."
)
# Length of a captured text; a mangled name has thousands of characters.
MAX_CAPTURE = 160

WARNING_ONLY = "warning_only"
# Kinds of failure, as named in answers.
FAILURE_CLASSES = {
    "compiler_crash": "the compiler failed, not the source that it was given",
    "limit": "a limit of the hardware, the compiler or the system is exceeded",
    "run_time_fault": "the program was built and failed when it ran",
    "host_error": "code on the host raised an exception outside of a kernel",
    "broken_environment": "an installation, a driver, a version or a path is wrong",
    "user_mistake": "the source or the call is wrong",
    WARNING_ONLY: "a report or a warning; nothing failed",
}

_PLACE = re.compile(r"\{(\w+)\}")
_OPTIONAL_PART = re.compile(r"\[([^\[\]]*\{\w+\}[^\[\]]*)\]")  # left out without its values
# After a name of failures: there were none. An exception's name has a message instead.
_NONE_OF_THEM = re.compile(
    r"(?:s|es|ed|(?<!error)(?<!exception))(?:[ _](?:events|counts?|steps)[\s:=]{1,3}"
    r"|(?:[ _](?:errors|values|elements))?\s?[:=]\s*)"
    r"(?:0(?:\.0+)?%?|false|none)\s*(?:$|[,;)\]])",
    re.IGNORECASE,
)
_TEXTS = ("pattern", "signal", "title", "remedy")
_OPTIONAL = (
    *("id", "toolchain", "level", "extract", "when", "class", "frames"),
    *("cause", "roles", "unit", "limit_fact", "remedies"),
    "priority",  # of descriptions for release 0.1.0; without effect
)
# Groups of a pattern that hold the requested and the largest allowed amount.
NEEDED, LIMIT = "needed", "limit"
UNITS = ("bytes", "bits", "columns", "elements", "groups", "partitions", "registers", "threads")
# Default roles by class: a smaller tile does not fix a wrong driver or target.
_ROLES_OF_CLASS: Mapping[str, tuple[str, ...]] = {"broken_environment": ("library",)}
# Roles for a source that a compiler rejects. Its message names the place, so no bisection; only
# messages about the length of a block (their signatures name the role) need another block.
_OF_REJECTED = tuple(role for role in ROLES if role not in ("fuse", "block"))


@dataclass(frozen=True)
class ErrorSignature:
    """The meaning of one kind of log line.

    `extract` pairs named groups of the pattern with canonical metrics. `when` is a predicate over
    the extracted metrics, for reports that only count above a number. `origin` is "builtin" or the
    supplier of the signature. `level` is one of LEVELS. `failure_class` is a key of
    FAILURE_CLASSES, or None. `frames` is a pattern over the Python frame that raised, for
    exceptions whose meaning depends on the raiser. `{name}` in `title` and `remedy` is replaced by
    the match of the pattern's group of that name; a part in brackets is left out if none of its
    groups matched. `cause` is a signal whose moves are the remedy instead of those of `signal`, and
    `roles` are those of the moves of `signal` that can fix this error; None for any.

    The groups `needed` and `limit` of the pattern are amounts in `unit`; `limit_fact` is the fact
    of the chip that holds the largest amount that any setting allows. `remedies` replace `remedy`:
    the first whose predicate over `needed`, `limit` and facts is true applies.
    """

    id: str
    toolchain: str
    pattern: str
    signal: str
    title: str
    remedy: str
    extract: tuple[tuple[str, str], ...] = ()
    level: str = CAUSE
    when: Predicate | None = None
    origin: str = BUILTIN
    failure_class: str | None = None
    frames: str | None = None
    cause: str | None = None
    roles: tuple[str, ...] | None = None
    unit: str = "bytes"
    limit_fact: str | None = None
    remedies: tuple[tuple[Predicate, str], ...] = ()

    @property
    def is_general(self) -> bool:
        """Whether it names neither a cause nor a condition."""
        return self.level in (KIND, WRAPPER)

    @property
    def heading(self) -> str:
        """The title without the names and numbers of a line."""
        return " ".join(re.sub(r"(?:\{\w+\})+", "...", self.title).split())


@dataclass(frozen=True)
class SignatureMatch:
    """A signature that matches a line of a log; lines count from 1. `extracted` holds canonical
    metrics in canonical units, `captured` the texts of the pattern's named groups. `also` is
    another signature of the line with the same signal, which supplies fields that the leading one
    lacks. `amounts` are the numbers of the groups `needed` and `limit` of the signature `sized`,
    and `facts` those of the chip. `advice` is that of the message itself. `comparison` has the
    numbers that a failed test compared, `meaning` is what to do about a message of a usual form,
    `launch` about the dimension of a refused launch that exceeds its limit, and `more` has the
    settings, devices and arguments that the log names for it. `width` is the number of characters
    that the pattern matched."""

    signature: ErrorSignature
    line_number: int
    line: str
    extracted: Mapping[str, float]
    captured: Mapping[str, str] = field(default_factory=dict)
    also: ErrorSignature | None = None
    amounts: Mapping[str, float] = field(default_factory=dict)
    sized: ErrorSignature | None = None
    facts: Mapping[str, Value | None] = field(default_factory=dict)
    advice: Advice | None = None
    comparison: Comparison = NO_COMPARISON
    meaning: str = ""
    launch: str = ""
    more: str = ""
    width: int = MAX_WORDS

    @property
    def quantities(self) -> dict[str, Any] | None:
        """{needed, limit, unit, excess, factor, source} where the line needs more than is allowed;
        `source` of the limit is "log" or the name of a fact. None if the numbers are not known."""
        if self.sized is None:
            return None
        needed = self.amounts.get(NEEDED)
        limit, source = self.amounts.get(LIMIT), "log"
        most = self.facts.get(self.sized.limit_fact or "")
        if isinstance(most, (int, float)) and (limit is None or most > limit):
            limit, source = float(most), str(self.sized.limit_fact)
        if needed is None or not limit or needed <= limit:
            return None
        return {
            "needed": needed,
            "limit": limit,
            "unit": self.sized.unit,
            "excess": needed - limit,
            "factor": round(needed / limit, 3),
            "source": source,
        }

    @property
    def failure_class(self) -> str | None:
        """The kind of failure; None if neither signature has one."""
        return next((s.failure_class for s in self._both if s.failure_class), None)

    @property
    def cause(self) -> str | None:
        """The signal whose moves are the remedy, if it differs from the signature's own."""
        return next((s.cause for s in self._both if s.cause), None)

    @property
    def roles(self) -> tuple[str, ...] | None:
        """The roles of moves that can fix this; None for any. A wrapper states no cause."""
        if self.signature.level == WRAPPER:
            return ()
        rejected = (self.failure_class, self.signature.signal) == ("user_mistake", "compile_error")
        of_class = _OF_REJECTED if rejected else _ROLES_OF_CLASS.get(self.failure_class or "")
        return next((s.roles for s in self._both if s.roles is not None), of_class)

    @property
    def _both(self) -> tuple[ErrorSignature, ...]:
        return (self.signature,) if self.also is None else (self.signature, self.also)

    @property
    def title(self) -> str:
        """The signature's title with the names and numbers of this line."""
        return self.comparison.title or self._filled(self.signature.title)

    @property
    def remedy(self) -> str:
        """The advice of the message, its excess over a limit, and a suitable remedy."""
        parts = (self._said, self._excess, self._known, self.more)
        return in_dialect(self.line, self._filled(" ".join(filter(None, parts))))

    @property
    def _said(self) -> str:
        if self.advice is None or (self.advice.is_condition and not self._is_general):
            return ""
        verb = "states a condition" if self.advice.is_condition else "says what to do"
        return f'The message {verb}: "{self.advice.text}".'

    @property
    def _known(self) -> str:
        """The remedy of the signature or of its case; none of a general one if the message has
        advice."""
        if self.launch:
            return self.launch
        known = Bindings(parameters=self.amounts, facts=self.facts)
        cases = self.sized.remedies if self.sized else ()
        case = next((t for when, t in cases if when.evaluate(known).value), "")
        is_source = self.signature.id in message_words()["source_signatures"]
        typed = self.meaning and UNKNOWN_TYPE.search(self.line)
        if is_source and not typed and (foreign := origin_of(self.line)):
            return foreign
        provided = self.signature.id in _more_of()["symbols"] and provider_of(self._symbol)
        if self.signature.id not in _more_of()["own_remedy"]:
            case = provided or case or self.comparison.remedy
        case = case or (self.meaning if self._is_general and self._has_a_rule else "")
        if not case and self.meaning and self.signature.id in _more_of()["meaning"]:
            return f"{self.meaning} {self.signature.remedy}"
        if self.signature.id in _more_of()["meaning_alone"]:
            case = case or self.meaning
        return case or ("" if self.advice and self._is_general else self.signature.remedy)

    @property
    def _symbol(self) -> str:
        names = (self.captured.get("symbol", ""), self.captured.get("name", ""))
        return re.sub(r"[('\"@].*", "", "".join(names))

    @property
    def _has_a_rule(self) -> bool:
        """Whether the failure breaks a rule that the words of a message can state."""
        group = load_signals().get(self.signature.signal).group
        return group == "does not build" or self.signature.signal in ANY_FAILURE

    @property
    def _is_general(self) -> bool:
        return self.signature.is_general

    @property
    def _excess(self) -> str:
        over = self.quantities
        if over is None:
            return ""
        if self.signature.signal == "out_of_memory":
            return f"{over['excess']:,.0f} {over['unit']} more than is free."
        of_chip = "" if over["source"] == "log" else f" of the {over['limit']:,.0f} of this chip"
        least = math.ceil(100 * over["needed"] / over["limit"]) / 100
        return (
            f"{over['excess']:,.0f} {over['unit']} too much{of_chip}: shrink by a factor of"
            f" {least:.2f} or more."
        )

    def _filled(self, text: str) -> str:
        names = dict(self.captured)
        if over := self.quantities:
            # S equal stages fit after one is removed if needed * (S - 1) / S <= limit.
            names["stages"] = str(int(over["needed"] // over["excess"]))
        names |= {name: f"{amount:,.0f}" for name, amount in self.amounts.items()}
        text = _OPTIONAL_PART.sub(
            lambda part: part[1] if any(names.get(n) for n in _PLACE.findall(part[1])) else "", text
        )
        filled = _PLACE.sub(lambda place: names.get(place[1], place[0]), text)
        return " ".join(filled.split()).rstrip(" :")

    @property
    def order(self) -> tuple[Any, ...]:
        """The place among the lines of a log: wrong values follow from a call that failed."""
        advisory, level, *others = self._order
        if self.signature.signal == "correctness_mismatch" and level < KIND_OF_FAILURE:
            return (advisory, KIND_OF_FAILURE - 0.5, *others)
        return self._order

    @property
    def _order(self) -> tuple[Any, ...]:
        of = self.signature
        advisory = of.failure_class == WARNING_ONLY or is_advisory(self.line)
        between = (advisory, LEVELS.index(of.level), self.line_number)
        own = of.origin != BUILTIN or of.cause is not None
        special = (not own, of.frames is None, of.signal in ANY_FAILURE)
        return (*between, *special, -self.width, of.id)


def signature_from_mapping(data: Mapping[str, Any], origin: str) -> ErrorSignature:
    """Parse a signature from TOML or JSON. Raises InvalidKnowledge, which names the error."""
    _check_keys(data, origin)
    for signal in (data["signal"], data.get("cause", data["signal"])):
        if signal not in load_signals():
            raise _broken(origin, f"names unknown signal {signal!r}")
    if unknown := sorted(set(data.get("roles", ())) - ROLES.keys()):
        raise _broken(origin, f"names unknown roles {unknown}")
    try:
        compiled = compile_linear(data["pattern"])
        if "frames" in data:
            compile_linear(data["frames"])
        when = compile_predicate(data["when"]) if "when" in data else None
        remedies = tuple(
            (compile_predicate(r["when"]), r["text"]) for r in data.get("remedies", ())
        )
    except (UnsafePattern, InvalidPredicate) as problem:
        message = f"pattern {data['pattern'][:80]!r}: {problem}"
        hint = None if isinstance(problem, InvalidPredicate) else _PATTERN_HINT
        raise _broken(origin, message, hint) from problem
    extract = tuple(sorted(dict(data.get("extract", {})).items()))
    for group, metric in extract:
        if group not in compiled.groups or metric not in load_metrics():
            raise _broken(origin, f"extract {group!r} -> {metric!r}: no such group or metric")
    digest = hashlib.sha256(data["pattern"].encode()).hexdigest()[:8]
    return ErrorSignature(
        id=data.get("id", f"{origin}-{digest}"),
        toolchain=data.get("toolchain", origin),
        pattern=data["pattern"],
        signal=data["signal"],
        title=data["title"],
        remedy=data["remedy"],
        extract=extract,
        level=data.get("level", CAUSE),
        when=when,
        origin=origin,
        failure_class=data.get("class") or _class_of(data["signal"]),
        frames=data.get("frames"),
        cause=data.get("cause"),
        roles=tuple(data["roles"]) if "roles" in data else None,
        unit=data.get("unit", "bytes"),
        limit_fact=data.get("limit_fact"),
        remedies=remedies,
    )


def _class_of(signal: str) -> str | None:
    """The default class: a condition that only makes a kernel slow is not a failure."""
    return WARNING_ONLY if load_signals().get(signal).group.startswith("slow") else None


def _check_keys(data: Mapping[str, Any], origin: str) -> None:
    missing = [key for key in _TEXTS if not isinstance(data.get(key), str) or not data[key].strip()]
    unknown = sorted(data.keys() - {*_TEXTS, *_OPTIONAL})
    if missing or unknown:
        raise _broken(origin, f"lacks {missing}, has unknown {unknown}")
    if any(len(data[key]) > MAX_WORDS for key in _TEXTS):
        raise _broken(origin, f"has a text longer than {MAX_WORDS} characters")
    if data.get("level", CAUSE) not in LEVELS:
        raise _broken(origin, f"has a level other than {', '.join(LEVELS)}")
    if not isinstance(data.get("extract", {}), Mapping):
        raise _broken(origin, "has an extract that is no table")
    if any(not isinstance(data.get(key, ""), str) for key in ("id", "toolchain", "when", "frames")):
        raise _broken(origin, "has an id, toolchain, when or frames that is no text")
    if data.get("class") is not None and data["class"] not in FAILURE_CLASSES:
        raise _broken(origin, f"has a class other than {', '.join(FAILURE_CLASSES)}")
    if data.get("unit", "bytes") not in UNITS:
        raise _broken(origin, f"has a unit other than {', '.join(UNITS)}")
    remedies = data.get("remedies", [])
    if not isinstance(remedies, list) or any(
        not isinstance(remedy, Mapping)
        or remedy.keys() != {"when", "text"}
        or not all(isinstance(text, str) and len(text) <= MAX_WORDS for text in remedy.values())
        for remedy in remedies
    ):
        raise _broken(origin, "has remedies that are not tables of a when and a text")


def _broken(origin: str, message: str, hint: str | None = None) -> InvalidKnowledge:
    fields = "A signature has pattern, signal, title and remedy; GET /signals lists the signals."
    return InvalidKnowledge(f"signature of {origin}: {message}", hint=hint or fields)


class SignatureIndex:
    """Signatures prepared for scanning logs; cheap literals first, then the expressions."""

    def __init__(self, signatures: Iterable[ErrorSignature]) -> None:
        self.signatures = tuple(signatures)
        self._by_keyword: dict[str, list[ErrorSignature]] = {}
        for signature in self.signatures:
            for keyword in compile_linear(signature.pattern).literals:
                self._by_keyword.setdefault(keyword, []).append(signature)

    def match(self, log: str, limit: int = MAX_MATCHES) -> list[SignatureMatch]:
        """The known lines of a log, best first: at most `limit` matches, one for each line and
        three for each signature."""
        best: list[SignatureMatch] = []
        index = LogIndex(log)
        of_amounts = frozenset(message_words()["keywords"])
        of_codes = message_words()["code_keywords"]
        for line, keywords in index.lines({*self._by_keyword, *of_amounts, *of_codes}):
            if is_excerpt(without_prefix(line.text)) or index.is_quoted_source(line.number):
                continue
            matches = self._of_line(line, keywords, index)
            if not keywords.isdisjoint(of_amounts) and (over := _over_limit(line)) is not None:
                matches.append(_beside(matches, over))
            if matches:
                best.append(_leading(matches))
        chosen = _deduplicated(sorted(best, key=lambda match: match.order), limit)
        chosen = _rule_first(chosen, index)[:limit]
        chosen = [_compared(_completed(match, best), index) for match in chosen]
        named = [m.line_number for m in chosen if not m.signature.is_general]
        advised = [m if _wraps(m, named) else _advised(m, index) for m in chosen]
        advised = [replace(m, line_number=index.printed_at(m.line_number)) for m in advised]
        return [_sized(advised[0], advised[1:]), *advised[1:]] if advised else []

    def in_log(self, log: str) -> set[str]:
        """The ids of all signatures that match a line of the log, leading or not."""
        index = LogIndex(log)
        keywords = {*self._by_keyword, *message_words()["code_keywords"]}
        lines = [pair for pair in index.lines(keywords) if not is_excerpt(pair[0].text)]
        return {m.signature.id for line, words in lines for m in self._of_line(line, words, index)}

    def _of_line(
        self, line: Line, keywords: frozenset[str], index: LogIndex
    ) -> list[SignatureMatch]:
        coded = not keywords.isdisjoint(message_words()["code_keywords"])
        numbered = (line.text, index.with_number_below(line)) if coded else ()
        name = next(filter(None, map(name_of_code, numbered)), "")
        known = keywords | self._keywords_in(name)
        candidates = {s.id: s for k in known for s in self._by_keyword.get(k, ())}
        matches = (_match(s, line.number, line.text, name) for s in candidates.values())
        return [match for match in matches if match is not None and _counts(match, index)]

    def _keywords_in(self, name: str) -> frozenset[str]:
        name = name.lower()
        return frozenset(k for k in self._by_keyword if k in name) if name else frozenset()


def _rule_first(matches: list[SignatureMatch], index: LogIndex) -> list[SignatureMatch]:
    """The matches, with a rule about the source that the log states before the internal error of a
    compiler that leads."""
    first = matches[0] if matches else None
    if first is None or first.signature.signal != "compile_error":
        return matches
    if first.failure_class != "compiler_crash":
        return matches
    rule = broken_rule(index.all_lines, first.line_number)
    if rule is None:
        return matches
    number, text, part = rule
    known = next((m for m in matches if m.line_number == number and m is not first), None)
    if known is not None and known.signature.level in (CAUSE, CONDITION):
        return [known, *(m for m in matches if m is not known)]
    signature = ErrorSignature(
        id="broken-rule",
        toolchain="any",
        pattern="",
        signal="compile_error",
        title=f"The source breaks a rule of the compiler: {_shown(text)}",
        remedy=_RULE.format(part=part),
        level=CONDITION,
        failure_class="user_mistake",
    )
    line = index.all_lines[number - 1].strip()
    return [SignatureMatch(signature, number, line, {}), *matches]


_RULE = (
    "Change {part} so that it holds: allocate or copy it in that memory space, or convert its type,"
    " shape, layout or alignment before the operation. The internal error follows from it; if the"
    " source keeps the rule, report that error."
)


def _completed(match: SignatureMatch, others: Sequence[SignatureMatch]) -> SignatureMatch:
    """A match with the texts of optional parts that its line lacks and a line near it of the same
    signature has."""
    texts = match.signature.title + match.signature.remedy
    lacking = {name for part in _OPTIONAL_PART.findall(texts) for name in _PLACE.findall(part)}
    captured = dict(match.captured)
    if not lacking or any(captured.get(name) for name in lacking):
        return match
    for other in others:
        if (
            other.signature.id == match.signature.id
            and abs(other.line_number - match.line_number) <= NEAR_LINES
        ):
            near = {k: v for k, v in other.captured.items() if k in lacking and v}
            captured |= {k: v for k, v in near.items() if not captured.get(k)}
    return replace(match, captured=captured)


def _compared(match: SignatureMatch, index: LogIndex) -> SignatureMatch:
    """A failed test with the numbers that it compared."""
    if match.signature.signal != "correctness_mismatch":
        return match
    return replace(match, comparison=comparison_at(index.all_lines, match.line_number))


def _more_of() -> Mapping[str, Sequence[str]]:
    """The ids of signatures whose remedies are extended by the log, by what extends them."""
    ids: Mapping[str, Sequence[str]] = message_words()["more_of_signatures"]
    return ids


def _wraps(match: SignatureMatch, named: Sequence[int]) -> bool:
    """Whether the match only announces a failure that one of the `named` lines below it states."""
    below = range(match.line_number + 1, match.line_number + 1 + NEAR_LINES)
    return match.signature.level == WRAPPER and any(number in below for number in named)


def _advised(match: SignatureMatch, index: LogIndex) -> SignatureMatch:
    """A match with what its message says."""
    message = message_at(index.all_lines, match.line_number)
    advice = advice_in(message)
    if advice is None and match.signature.level != CAUSE:
        advice = hint_below(index.all_lines, match.line_number)
    if choice := choice_in(message):
        advice = None  # "make sure that it is one of these" names none
    action = advice is not None and not advice.is_condition
    meaning = choice or ("" if action else meaning_of(message))
    general = match.signature.is_general
    ids = _more_of()
    general &= match.signature.id not in ids["own_cause"] or not any(match.captured.values())
    cause = cause_below(index.all_lines, match.line_number) if general and not meaning else ""
    if not cause and not meaning and match.failure_class in ("user_mistake", "compiler_crash"):
        cause = first_report(index.all_lines, match.line_number) if general else ""
    if cause and not action:
        meaning = f"The cause is: {cause}. {meaning_of([cause]) or match.signature.remedy}"
    more = [
        settings_in(message) if advice is None else "",
        devices_in(index.all_lines) if match.signature.id in ids["devices"] else "",
        arguments_in(index.all_lines, match.line_number)
        if match.signature.id in ids["arguments"]
        else "",
        pass_in(index.all_lines) if match.failure_class == "compiler_crash" else "",
    ]
    launched = match.signature.id in ids["launches"]
    launch = launch_in(index.all_lines, match.line_number) if launched else ""
    more_said = " ".join(filter(None, more))
    return replace(match, advice=advice, meaning=meaning, launch=launch, more=more_said)


def _leading(matches: Sequence[SignatureMatch]) -> SignatureMatch:
    """The best match of a line, combined with the next one that has the same signal, with the
    amounts of the first one that has any, and with the metrics that all of them extract."""
    first, *others = sorted(matches, key=lambda match: match._order)
    alike = [m for m in others if m.signature.signal == first.signature.signal]
    sized = next((m for m in (first, *alike) if m.sized), first)
    also = alike[0].signature if alike else None
    extracted = {k: v for match in (*reversed(alike), first) for k, v in match.extracted.items()}
    return replace(first, also=also, amounts=sized.amounts, sized=sized.sized, extracted=extracted)


def _match(
    signature: ErrorSignature, number: int, line: str, name: str = ""
) -> SignatureMatch | None:
    """The match of a signature on a line, or on the `name` of the error whose number it has."""
    pattern = compile_linear(signature.pattern)
    found = pattern.search(without_prefix(line)) or (pattern.search(name) if name else None)
    if found is None or _NONE_OF_THEM.match(found.string, found.end()):
        return None
    groups = found.groupdict()
    extracted: dict[str, float] = {}
    for group, name in signature.extract:
        value = parse_quantity(groups[group], load_metrics().get(name).unit)
        if value is not None:
            extracted[name] = value
    if signature.when and not signature.when.evaluate(Bindings(metrics=extracted)).value:
        return None
    captured = {name: _shown(text) for name, text in groups.items()}
    unit = "B" if signature.unit == "bytes" else "1"
    amounts = {
        name: amount
        for name in (NEEDED, LIMIT)
        if (amount := parse_quantity(_with_unit(groups.get(name), unit), unit)) is not None
    }
    return SignatureMatch(
        signature,
        number,
        line.strip(),
        extracted,
        captured,
        amounts=amounts,
        sized=signature if amounts else None,
        width=found.end() - found.start(),
    )


def _with_unit(text: str | None, unit: str) -> str | None:
    """Bytes with the letter alone ("65.05M") are binary multiples."""
    return f"{text}iB" if unit == "B" and text and text[-1] in "KMG" else text


def _over_limit(line: Line) -> SignatureMatch | None:
    """The match of a line with an amount over a limit, by a signature of its resource."""
    over = None if is_advisory(line.text) else excess_in(without_prefix(line.text))
    if over is None:
        return None
    signature = ErrorSignature(
        id=f"limit-{over.resource.id}",
        toolchain="amounts",
        pattern="",
        signal=over.resource.signal,
        title=over.title,
        remedy=over.resource.remedy,
        level=KIND if over.needed is None else over.resource.level,
        failure_class="limit",
        unit=over.resource.unit,
    )
    amounts = {LIMIT: over.limit} | ({} if over.needed is None else {NEEDED: over.needed})
    text = line.text.strip()
    return SignatureMatch(signature, line.number, text, {}, amounts=amounts, sized=signature)


def _sized(first: SignatureMatch, others: Sequence[SignatureMatch]) -> SignatureMatch:
    """The leading match, with the amounts of a line near it that has the same signal."""
    near = (
        m
        for m in others
        if m.sized is not None
        and m.signature.signal == first.signature.signal
        and abs(m.line_number - first.line_number) <= NEAR_LINES
    )
    other = None if first.sized is not None else next(near, None)
    return first if other is None else replace(first, amounts=other.amounts, sized=other.sized)


def _beside(matches: Sequence[SignatureMatch], over: SignatureMatch) -> SignatureMatch:
    """An excess next to other matches of its line: it supplies only its amounts if one of them
    knows the cause."""
    signal = over.signature.signal
    known = any(m.signature.signal == signal and not m.signature.is_general for m in matches)
    return replace(over, signature=replace(over.signature, level=WRAPPER)) if known else over


def _counts(match: SignatureMatch, index: LogIndex) -> bool:
    """Whether a match holds in its context: a line labelled as a warning is no failure, and the
    meaning of an exception may depend on the raiser."""
    signature = match.signature
    if signature.failure_class not in (None, WARNING_ONLY) and is_advisory(match.line):
        return False
    if signature.frames is None:
        return True
    return compile_linear(signature.frames).search(index.frame_of(match.line_number)) is not None


def _shown(text: str | None) -> str:
    """A captured text for a title; empty for a group that did not participate."""
    text = (text or "").strip()
    return text if len(text) <= MAX_CAPTURE else f"{text[:MAX_CAPTURE]}..."


def _deduplicated(matches: Sequence[SignatureMatch], limit: int) -> list[SignatureMatch]:
    """The first of equal messages, compared without numbers, paths and names."""
    chosen: list[SignatureMatch] = []
    seen: set[tuple[str, str]] = set()
    counts: dict[str, int] = {}
    for match in matches:
        key = match.signature.id, normalise_error(match.line)
        if key in seen or counts.get(match.signature.id, 0) >= MAX_OF_ONE:
            continue
        seen.add(key)
        counts[match.signature.id] = counts.get(match.signature.id, 0) + 1
        chosen.append(match)
    return chosen[:limit]


_OF_CLANG = re.compile(r"^[^\s:]+:\d+:\d+: (?:fatal )?error:")  # a form that nvcc does not print


def vendor_of_log(log: str) -> tuple[str, str] | None:
    """The hardware family and the tool that a log names; the family is empty for a tool of several
    vendors. None if known lines name none, or tools of several families."""
    own = [(vendor, tool) for tool, words, vendor in _named_tools() if words.search(log)]
    named = [(vendor, tool) for vendor, tool in own if vendor] or own
    if not named:
        known = _builtin_index().match(log)
        tools = [m.signature.toolchain for m in known if not _OF_CLANG.search(m.line)]
        vendors = _tables()["vendors"]
        named = [(vendor, tool) for tool in tools for vendor in vendors if tool in vendors[vendor]]
    return named[0] if len({vendor for vendor, _ in named}) == 1 else None


def hardware_of_tool(toolchain: str) -> str:
    """The hardware family of a toolchain's lines; `any` for a tool of several vendors."""
    vendors = _tables()["vendors"]
    return next((vendor for vendor, tools in vendors.items() if toolchain in tools), "any")


@lru_cache(maxsize=1)
def _named_tools() -> tuple[tuple[str, Any, str], ...]:
    rows = _tables()["names"]
    return tuple(
        (row["tool"], compile_pattern(f"(?-i:{row['words']})"), row["vendor"]) for row in rows
    )


@lru_cache(maxsize=1)
def _builtin_index() -> SignatureIndex:
    return SignatureIndex(load_signatures())


@lru_cache(maxsize=1)
def _tables() -> Mapping[str, Any]:
    return tomllib.loads((DATA / "signatures.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def load_signatures() -> tuple[ErrorSignature, ...]:
    """The built-in signatures."""
    signatures = tuple(signature_from_mapping(row, BUILTIN) for row in _tables()["signatures"])
    if len({signature.id for signature in signatures}) != len(signatures):
        raise _broken(BUILTIN, "two signatures have the same id")
    return signatures
