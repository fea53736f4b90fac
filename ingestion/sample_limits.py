"""What a manual's prose and tables say that binds the constants of a code sample, as predicates.

Two kinds of sentence are read, in any language that the sample may be in: what the sample takes of
a resource ("take 12544 of the 40960 bytes"), which shows how the resource is counted, and what has
to be a multiple of a number. A reading counts only if the sample itself obeys it; what a manual
does not say this way bounds nothing here, and the compiler has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ingestion.facts import ProposedFact
from ingestion.sample_code import Array, Sample
from kb.predicates import Bindings, compile_expression, compile_predicate

ELEMENT_BYTES = (1, 2, 4, 8)
USUAL_BYTES = 4  # an element of float32, where no claim tells
SCRATCHPAD = "shared_memory_per_block"
BYTES = "bytes?"

_CLAIM = re.compile(
    r"\b(?P<used>\d[\d,]*) of (?:the |its |all )?(?P<limit>\d[\d,]*) (?P<what>[A-Za-z][\w -]{2,60})"
)
_MULTIPLE = re.compile(
    r"(?:multiples?|whole number) of (?:the )?(?:[a-z]+ ){0,4}?(?P<number>\d[\d,]*)"
    rf"(?: (?P<bytes>{BYTES}\b))?"
)
_SENTENCE = re.compile(r"(?<=[.;])\s+|\n\s*(?:[-*+]|\d+[.)])\s+")


@dataclass(frozen=True)
class Passage:
    """Text of a section, without code. section: its heading path in one line."""

    section: str
    text: str


@dataclass(frozen=True)
class Constraint:
    """predicate: over the sample's constants, facts, and sizes as `@{name}`. why: what says so."""

    predicate: str
    why: str


@dataclass(frozen=True)
class _Claim:
    """What the sample takes of a resource, as its section says."""

    used: int
    limit: int
    what: str

    @property
    def in_bytes(self) -> bool:
        return bool(re.match(rf"{BYTES}\b", self.what))


def constraints_of(
    sample: Sample, own: Passage, passages: Sequence[Passage], facts: Sequence[ProposedFact]
) -> list[Constraint]:
    """own: the section that the sample stands in."""
    element = USUAL_BYTES
    found: list[Constraint] = []
    claimed = False
    for claim in _claims(own.text):
        counted = _counted(sample, claim, passages)
        if counted is None:
            continue
        formula, size = counted
        if claim.in_bytes:
            element, claimed = size, True
        found += _within(formula, claim, own.section, facts)
    if not claimed and sample.arrays:
        found += _all_in_scratchpad(sample, facts)
    found += _multiples(sample, passages, element)
    found += [
        Constraint(f"@{{{size}}} % {constant} == 0", f"{constant} divides the size in the sample")
        for size, constant in sample.steps
    ]
    values = defaults(sample)
    unique = {constraint.predicate: constraint for constraint in found}
    return [c for c in unique.values() if _obeyed(c, sample, values)]


def defaults(sample: Sample) -> dict[str, int]:
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
    found = compile_expression(_sized(formula, sample)).compute(bound).value
    return found if isinstance(found, int | float) else None


# -- resources


def _claims(text: str) -> list[_Claim]:
    return [
        _Claim(_number(found["used"]), _number(found["limit"]), found["what"])
        for found in _CLAIM.finditer(" ".join(text.split()))
        if 0 < _number(found["used"]) <= _number(found["limit"])
    ]


def _counted(sample: Sample, claim: _Claim, passages: Sequence[Passage]) -> tuple[str, int] | None:
    """The formula whose value in the sample is what the claim says: elements of the arrays of some
    kinds, times bytes of an element or over a number that the manual states."""
    kinds = list(dict.fromkeys(array.kind for array in sample.arrays))
    for length in range(1, len(kinds) + 1):
        for chosen in combinations(kinds, length):
            elements = _elements(a for a in sample.arrays if a.kind in chosen)
            total = _value(elements, sample)
            if not total:
                continue
            size = claim.used / total
            if size == 1 or (claim.in_bytes and size in ELEMENT_BYTES):
                return f"({elements}) * {int(size)}", int(size)
            share = total / claim.used
            if not claim.in_bytes and share == int(share) and _stated(int(share), passages):
                return f"({elements}) / {int(share)}", 1
    return None


def _elements(arrays: Iterator[Array]) -> str:
    return " + ".join(array.elements for array in arrays)


def _stated(number: int, passages: Sequence[Passage]) -> bool:
    return any(re.search(rf"(?<![\w.]){number}(?![\w.])", p.text) for p in passages)


def _within(
    formula: str, claim: _Claim, section: str, facts: Sequence[ProposedFact]
) -> Iterator[Constraint]:
    """The number that the manual states, and the fact that it is where a table names it."""
    why = f"{claim.limit} {claim.what.strip()} ({section})"
    yield Constraint(f"{formula} <= {claim.limit}", why)
    keys = {f.key for f in facts if f.value == claim.limit and (f.unit == "B") == claim.in_bytes}
    if len(keys) == 1 and claim.in_bytes:
        (key,) = keys
        yield Constraint(f"{formula} <= facts.{key}", f"the fact {key}")


def _all_in_scratchpad(sample: Sample, facts: Sequence[ProposedFact]) -> Iterator[Constraint]:
    """Without a word about it, every array is taken to lie in the scratchpad at once."""
    formula = f"({_elements(iter(sample.arrays))}) * {USUAL_BYTES}"
    for fact in facts:
        if fact.key == SCRATCHPAD:
            yield Constraint(f"{formula} <= {fact.value}", fact.locator)
    yield Constraint(f"{formula} <= facts.{SCRATCHPAD}", f"the fact {SCRATCHPAD}")


# -- multiples


def _multiples(sample: Sample, passages: Sequence[Passage], element: int) -> Iterator[Constraint]:
    for passage in passages:
        for sentence in _SENTENCE.split(passage.text):
            plain = " ".join(sentence.split())
            for found in _MULTIPLE.finditer(plain):
                number = _number(found["number"])
                said = plain[: found.end()]
                why = f"{said[-100:]} ({passage.section})"
                for text in _as_multiples(sample, said, number, bool(found["bytes"]), element):
                    yield Constraint(text, why)


def _as_multiples(
    sample: Sample, said: str, number: int, in_bytes: bool, element: int
) -> Iterator[str]:
    """The dimensions that a sentence is about: columns are the last one, rows the first, a pitch is
    the last one with its pad. Of the kinds of array that it names, or of all."""
    words = said.lower().split()
    named = [a for a in sample.arrays if any(_same_word(a.kind, word) for word in words)]
    scale = element if in_bytes else 1
    for array in named or sample.arrays:
        if "pitch" in words or (in_bytes and "pad" in said.lower()):
            yield f"{array.pitch} * {scale} % {number} == 0"
        elif not in_bytes and any(word.startswith("column") for word in words):
            if array.dims[-1] != "1":
                yield f"({array.dims[-1]}) % {number} == 0"
        elif not in_bytes and any(word.startswith("row") for word in words):
            yield f"({array.dims[0]}) % {number} == 0"


def _same_word(kind: str, word: str) -> bool:
    """`acc` is short for accumulators, `tile` the singular of tiles."""
    return len(kind) > 2 and word.strip(".,;:()").startswith(kind.lower().strip("_"))


def _number(text: str) -> int:
    return int(text.replace(",", ""))
