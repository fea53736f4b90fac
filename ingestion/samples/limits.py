"""What a manual's prose and tables say that binds the constants of a code sample, as predicates.

Two kinds of sentence are read, in any language that the sample may be in: what the sample takes of
a resource ("take 12544 of the 40960 bytes"), which shows how the resource is counted, and what has
to be a multiple of a number. A reading counts only if the sample itself obeys it; what a manual
does not say this way bounds nothing here, and the compiler has the last word.

The prose of a manual is read once for all its samples (`read_manual`), and the work for a sample is
bounded, however long the manual is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from ingestion.findings.facts import ProposedFact
from ingestion.samples.code import NotLiftable, Sample
from kb.errors import InvalidPredicate
from kb.predicates import Bindings, compile_expression, compile_predicate

ELEMENT_BYTES = (1, 2, 4, 8)
USUAL_BYTES = 4  # an element of float32, where no claim tells
SCRATCHPAD = "shared_memory_per_block"
BYTES = "bytes?"
MAX_COUNTED = 2**63  # elements
MAX_KINDS = 8  # of arrays, of which every choice is tried; with more of them only all at once
MAX_CLAIMS = 32  # of a section
MAX_MULTIPLES = 400  # of a manual
MAX_SENTENCE = 1_000  # characters of a sentence up to its number

_NUMBER = r"[0-9][0-9,]{0,17}(?![0-9])"
_CLAIM = re.compile(
    rf"\b(?P<used>{_NUMBER}) of (?:the |its |all )?(?P<limit>{_NUMBER})"
    r" (?P<what>[A-Za-z][\w -]{2,60})"
)
_MULTIPLE = re.compile(
    rf"(?:multiples?|whole number) of (?:the )?(?:[a-z]+ ){{0,4}}?(?P<number>{_NUMBER})"
    rf"(?: (?P<bytes>{BYTES}\b))?"
)
_SENTENCE = re.compile(r"(?<=[.;])\s+|\n[^\S\n]*(?:[-*+]|[0-9]{1,9}[.)])\s+")
_STATED = re.compile(r"(?<![\w.])[0-9]{1,15}(?![\w.])")


@dataclass(frozen=True)
class SectionText:
    """Text of a section, without code. `section` is its heading path in one line."""

    section: str
    text: str


@dataclass(frozen=True)
class Constraint:
    """`predicate` is over the sample's constants, facts, and sizes as `@{name}`; `why` is the
    sentence or the fact behind it."""

    predicate: str
    why: str


@dataclass(frozen=True)
class Claim:
    """What a sample takes of a resource, as its section says."""

    used: int
    limit: int
    what: str

    @property
    def in_bytes(self) -> bool:
        """Whether the resource is counted in bytes."""
        return bool(re.match(rf"{BYTES}\b", self.what))


@dataclass(frozen=True)
class Multiple:
    """A sentence that asks for a multiple of `number`. `words` are those up to the number, in lower
    case; `pads` says that it is about padding."""

    number: int
    in_bytes: bool
    words: frozenset[str]
    pads: bool
    why: str


@dataclass(frozen=True)
class Manual:
    """What the whole of a manual states. `numbers` are those in its prose."""

    multiples: tuple[Multiple, ...]
    numbers: frozenset[int]
    facts: tuple[ProposedFact, ...]


def read_manual(passages: Sequence[SectionText], facts: Iterable[ProposedFact]) -> Manual:
    """Read the prose of a manual once for all its samples. Sentences beyond MAX_MULTIPLES bind
    nothing: the compiler says what they would have."""
    listed = (multiple for passage in passages for multiple in _multiples_in(passage))
    multiples = dict.fromkeys(islice(listed, MAX_MULTIPLES))
    numbers = {int(number) for p in passages for number in _STATED.findall(p.text)}
    return Manual(tuple(multiples), frozenset(numbers), tuple(facts))


def constraints_of(
    sample: Sample, section: str, claims: Sequence[Claim], manual: Manual
) -> list[Constraint]:
    """The limits of a sample's constants. `section` is the heading path of the sample, in one line;
    `claims` are what that section says. Raises NotLiftable for a limit that no predicate can
    express."""
    try:
        return _constraints(sample, section, claims, manual)
    except InvalidPredicate as problem:
        raise NotLiftable(f"a limit of it is no predicate: {problem.message[:200]}") from problem


def _constraints(
    sample: Sample, section: str, claims: Sequence[Claim], manual: Manual
) -> list[Constraint]:
    element = USUAL_BYTES
    constraints: list[Constraint] = []
    claimed = False
    totals = _totals(sample) if claims else {}
    for claim in claims:
        counted = _counted(sample, totals, claim, manual)
        if counted is None:
            continue
        formula, size = counted
        if claim.in_bytes:
            element, claimed = size, True
        constraints += _within(formula, claim, section, manual.facts)
    if not claimed and sample.arrays:
        constraints += _all_in_scratchpad(sample, manual.facts)
    constraints += _multiples(sample, manual, element)
    constraints += [
        Constraint(f"@{{{size}}} % {constant} == 0", f"{constant} divides the size in the sample")
        for size, constant in sample.steps
    ]
    values = defaults(sample)
    unique = {constraint.predicate: constraint for constraint in constraints}
    return [c for c in unique.values() if _obeyed(c, sample, values)]


def defaults(sample: Sample) -> dict[str, int]:
    """The values of the constants in the sample itself, by name."""
    return {constant.name: constant.value for constant in sample.constants}


def _obeyed(constraint: Constraint, sample: Sample, values: Mapping[str, int]) -> bool:
    """What the sample breaks was misread; what depends on a fact is open until it is known."""
    text = _sized(constraint.predicate, sample)
    return compile_predicate(text).evaluate(Bindings(parameters=values)).value is not False


def _sized(text: str, sample: Sample) -> str:
    """With the sample's own sizes."""
    for name, size in sample.sizes.items():
        text = text.replace(f"@{{{name}}}", str(size))
    return text


def _value(formula: str, sample: Sample) -> float | None:
    bound = Bindings(parameters=defaults(sample))
    value = compile_expression(_sized(formula, sample)).compute(bound).value
    return value if isinstance(value, int | float) else None


# -- resources


def claims_in(text: str) -> list[Claim]:
    """What a section says that its sample uses, at most MAX_CLAIMS claims."""
    claims = (
        Claim(_number(match["used"]), _number(match["limit"]), match["what"])
        for match in _CLAIM.finditer(" ".join(text.split()))
    )
    return list(islice((claim for claim in claims if 0 < claim.used <= claim.limit), MAX_CLAIMS))


def _totals(sample: Sample) -> dict[str, float]:
    """Elements of the arrays of each kind, of those that can be counted."""
    kinds = dict.fromkeys(array.kind for array in sample.arrays)
    totals = {kind: _value(_elements_of(sample, (kind,)), sample) for kind in kinds}
    return {
        kind: total
        for kind, total in totals.items()
        if total is not None and 0 < total <= MAX_COUNTED
    }


def _choices(kinds: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Few of them first."""
    if len(kinds) > MAX_KINDS:
        yield tuple(kinds)
        return
    for length in range(1, len(kinds) + 1):
        yield from combinations(kinds, length)


def _counted(
    sample: Sample, totals: Mapping[str, float], claim: Claim, manual: Manual
) -> tuple[str, int] | None:
    """The formula whose value in the sample is what the claim says: elements of the arrays of some
    kinds, times bytes of an element or over a number that the manual states."""
    for chosen in _choices(list(totals)):
        total = sum(totals[kind] for kind in chosen)
        size = claim.used / total
        if size == 1 or (claim.in_bytes and size in ELEMENT_BYTES):
            return f"({_elements_of(sample, chosen)}) * {int(size)}", int(size)
        share = total / claim.used
        if not claim.in_bytes and share == int(share) and int(share) in manual.numbers:
            return f"({_elements_of(sample, chosen)}) / {int(share)}", 1
    return None


def _elements_of(sample: Sample, kinds: Collection[str]) -> str:
    return " + ".join(array.elements for array in sample.arrays if array.kind in kinds)


def _within(
    formula: str, claim: Claim, section: str, facts: Sequence[ProposedFact]
) -> Iterator[Constraint]:
    """The number that the manual states, and the fact that it is where a table names it."""
    why = f"{claim.limit} {claim.what.strip()} ({section})"
    yield Constraint(f"{formula} <= {claim.limit}", why)
    keys = {f.key for f in facts if f.value == claim.limit and (f.unit == "B") == claim.in_bytes}
    if len(keys) == 1 and claim.in_bytes:
        (key,) = keys
        yield Constraint(f"{formula} <= facts.{key}", f"the fact {key}")


def _all_in_scratchpad(sample: Sample, facts: Sequence[ProposedFact]) -> Iterator[Constraint]:
    """Where the manual does not say otherwise, every array lies in the scratchpad at once."""
    elements = " + ".join(array.elements for array in sample.arrays)
    formula = f"({elements}) * {USUAL_BYTES}"
    for fact in facts:
        if fact.key == SCRATCHPAD and not isinstance(fact.value, str):
            yield Constraint(f"{formula} <= {fact.value}", fact.locator)
    yield Constraint(f"{formula} <= facts.{SCRATCHPAD}", f"the fact {SCRATCHPAD}")


# -- multiples


def _multiples_in(passage: SectionText) -> Iterator[Multiple]:
    for sentence in _SENTENCE.split(passage.text):
        plain = " ".join(sentence.split())
        for match in _MULTIPLE.finditer(plain):
            number = _number(match["number"])
            if number == 0:
                continue
            sentence_part = plain[max(0, match.end() - MAX_SENTENCE) : match.end()]
            words = sentence_part.lower()
            why = f"{sentence_part[-100:]} ({passage.section})"
            yield Multiple(
                number, bool(match["bytes"]), frozenset(words.split()), "pad" in words, why
            )


def _multiples(sample: Sample, manual: Manual, element: int) -> Iterator[Constraint]:
    for multiple in manual.multiples:
        for text in _as_multiples(sample, multiple, element):
            yield Constraint(text, multiple.why)


def _as_multiples(sample: Sample, multiple: Multiple, element: int) -> Iterator[str]:
    """The dimensions that a sentence is about: columns are the last one, rows the first, a pitch is
    the last one with its pad. Of the kinds of array that it names, or of all."""
    kinds = {array.kind for array in sample.arrays}
    about = {
        kind for kind in kinds if any(_same_word(kind, word) for word in multiple.words)
    } or kinds
    scale = element if multiple.in_bytes else 1
    for array in (array for array in sample.arrays if array.kind in about):
        if "pitch" in multiple.words or (multiple.in_bytes and multiple.pads):
            yield f"{array.pitch} * {scale} % {multiple.number} == 0"
        elif not multiple.in_bytes and any(word.startswith("column") for word in multiple.words):
            if array.dims[-1] != "1":
                yield f"({array.dims[-1]}) % {multiple.number} == 0"
        elif not multiple.in_bytes and any(word.startswith("row") for word in multiple.words):
            yield f"({array.dims[0]}) % {multiple.number} == 0"


def _same_word(kind: str, word: str) -> bool:
    """`acc` is short for accumulators, `tile` the singular of tiles."""
    return len(kind) > 2 and word.strip(".,;:()").startswith(kind.lower().strip("_"))


def _number(text: str) -> int:
    return int(text.replace(",", ""))
