"""Recipes proposed from the code samples of a manual: a template whose sizes follow the problem and
whose constants have domains, with the limits that the manual states.

A sample in a language that the hardware's own toolchain compiles is lifted without knowing the
language (see `code`); one that cannot be is reported with the reason. Proposals are data for a
person to accept or reject. They are tried on the manual's own hardware only, where the compiler and
the correctness check decide whether they were understood.

No sample fails its manual, and no manual delays the others: the number and length of samples are
bounded, and the rest is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from ingestion.findings.facts import ProposedFact, propose_facts
from ingestion.passages import ParsedSection
from ingestion.samples.code import PAD, CodeSample, NotLiftable, SampleConstant, read_sample
from kb.catalog.knowledge.samples import ProposedRecipe
from kb.errors import InvalidPredicate
from kb.predicates import Bindings, compile_expression, compile_predicate

FORMAT = 1
MAX_SAMPLE = 20_000  # characters
MAX_SAMPLES = 50  # of a manual
MAX_TEXT = 200_000  # characters of all its samples
STEPS = 3  # powers of two to either side of the sample's value
LARGEST_DOMAIN = 4096


@dataclass(frozen=True)
class UnusedSample:
    """A sample that did not become a recipe, and why."""

    section: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class _Block:
    """A code block in a language of its section's hardware. `section` is the section's index."""

    section: int
    language: str
    hardware: tuple[str, ...]
    code: str


def propose_recipes(
    sections: Sequence[ParsedSection],
    scope: Callable[[tuple[str, ...]], Mapping[str, tuple[str, ...]]],
) -> tuple[list[ProposedRecipe], list[UnusedSample]]:
    """Recipes from the sections of one manual, and the unused samples. `scope` takes a heading
    path and gives the languages of its hardware, each with the chips that compile it; a block
    without a language counts if there is only one."""
    samples = [
        block
        for n, section in enumerate(sections)
        for block in _samples(n, section, scope(section.path))
    ]
    if not samples:
        return [], []
    selected, refused = _within_bounds(samples)
    left_out = [UnusedSample(sections[block.section].path, reason) for block, reason in refused]
    texts = [_section_text(section) for section in sections]
    manual = read_manual(
        texts, (fact for section in sections for fact in propose_facts(section.elements))
    )
    claims = {n: claims_in(texts[n].text) for n in {block.section for block in selected}}
    recipes: list[ProposedRecipe] = []
    for block in selected:
        section = sections[block.section]
        try:
            sample = read_sample(block.code)
            body = body_of(sample, texts[block.section].section, claims[block.section], manual)
        except NotLiftable as problem:
            left_out.append(UnusedSample(section.path, str(problem)))
            continue
        name = _name(section.title, sample.entry, {recipe.name for recipe in recipes})
        recipes.append(
            ProposedRecipe(name, block.language, block.hardware, section.path, block.code, body)
        )
    return recipes, left_out


def _samples(
    number: int, section: ParsedSection, languages: Mapping[str, tuple[str, ...]]
) -> Iterator[_Block]:
    for element in section.elements:
        if element.kind != "code":
            continue
        language = (element.language or "").lower()
        if not language and len(languages) == 1:
            (language,) = languages
        if language in languages:
            yield _Block(number, language, languages[language], element.text)


def _within_bounds(samples: Sequence[_Block]) -> tuple[list[_Block], list[tuple[_Block, str]]]:
    """Those that are read, in their order; the others with the reason."""
    selected: list[_Block] = []
    refused: list[tuple[_Block, str]] = []
    text = 0
    for block in samples:
        if len(block.code) > MAX_SAMPLE:
            reason = f"it is longer than {MAX_SAMPLE} characters"
        elif len(selected) == MAX_SAMPLES:
            reason = f"{MAX_SAMPLES} samples of the manual are read, and it comes after them"
        elif text + len(block.code) > MAX_TEXT:
            reason = f"with it, the manual's samples are longer than {MAX_TEXT} characters"
        else:
            selected.append(block)
            text += len(block.code)
            continue
        refused.append((block, reason))
    return selected, refused


def _section_text(section: ParsedSection) -> SectionProse:
    prose = "\n".join(element.text for element in section.elements if element.kind != "code")
    return SectionProse(" > ".join(section.path[-2:]), prose)


def _name(title: str, entry: str, used: set[str]) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or entry.lower()
    name, number = words[:60].strip("-"), 2
    while name in used:
        name, number = f"{words[:57]}-{number}", number + 1
    return name


def body_of(
    sample: CodeSample, section: str, claims: Sequence[Claim], manual: Manual
) -> dict[str, Any]:
    """The stored form. `@{name}` in template and constraints is a size of the problem or a
    constant; tensors name the sizes of their dimensions. Raises NotLiftable."""
    if not sample.constants:
        raise NotLiftable("it has no constant that could be another")
    return {
        "format": FORMAT,
        "entry": sample.entry,
        "template": sample.template,
        "tensors": [
            {"name": tensor.name, "role": tensor.role, "dims": list(dims)}
            for tensor, dims in zip(sample.tensors, sample.dims, strict=True)
        ],
        "sizes": dict(sample.sizes),
        "parameters": [_parameter(constant) for constant in sample.constants],
        "constraints": [
            {"predicate": constraint.predicate, "why": constraint.why}
            for constraint in constraints_of(sample, section, claims, manual)
        ],
    }


def _parameter(constant: SampleConstant) -> dict[str, Any]:
    return {
        "name": constant.name,
        "role": constant.role,
        "values": domain(constant.value, constant.role),
        "default": constant.value,
        "about": f"{constant.value} in the sample",
    }


def domain(value: int, role: str) -> list[int]:
    """Powers of two times the sample's value, in order; a pad may also be none."""
    values = {value * 2**step for step in range(STEPS + 1)}
    values |= {value // 2**step for step in range(STEPS + 1) if value % 2**step == 0}
    if role == PAD:
        values = {0, 1, *(v for v in values if v <= 4 * max(value, 1))}
    return sorted(v for v in values if v <= max(LARGEST_DOMAIN, value))


# -- limits of the constants, from two kinds of sentences: a sample's use of a resource ("take 12544
# of the 40960 bytes") and multiples of a number. A limit that the sample itself violates does not
# count; the compiler decides.

ELEMENT_BYTES = (1, 2, 4, 8)
USUAL_BYTES = 4  # an element of float32, without a claim
SCRATCHPAD = "shared_memory_per_block"
BYTES = "bytes?"
MAX_COUNTED = 2**63  # elements
MAX_KINDS = 8  # of arrays, for which every choice is tried; with more, only all at once
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
class SectionProse:
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
    """How much of a resource a sample takes, by its section."""

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
    case; `pads`: it is about padding."""

    number: int
    in_bytes: bool
    words: frozenset[str]
    pads: bool
    why: str


@dataclass(frozen=True)
class Manual:
    """The statements of a whole manual. `numbers` are those in its prose."""

    multiples: tuple[Multiple, ...]
    numbers: frozenset[int]
    facts: tuple[ProposedFact, ...]


def read_manual(passages: Sequence[SectionProse], facts: Iterable[ProposedFact]) -> Manual:
    """Read the prose of a manual once for all its samples. Sentences beyond MAX_MULTIPLES bind
    nothing: the compiler decides."""
    listed = (multiple for passage in passages for multiple in _multiples_in(passage))
    multiples = dict.fromkeys(islice(listed, MAX_MULTIPLES))
    numbers = {int(number) for p in passages for number in _STATED.findall(p.text)}
    return Manual(tuple(multiples), frozenset(numbers), tuple(facts))


def constraints_of(
    sample: CodeSample, section: str, claims: Sequence[Claim], manual: Manual
) -> list[Constraint]:
    """The limits of a sample's constants. `section` is the heading path of the sample, in one line;
    `claims` are those of that section. Raises NotLiftable for a limit that no predicate can
    express."""
    try:
        return _constraints(sample, section, claims, manual)
    except InvalidPredicate as problem:
        raise NotLiftable(f"a limit of it is no predicate: {problem.message[:200]}") from problem


def _constraints(
    sample: CodeSample, section: str, claims: Sequence[Claim], manual: Manual
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


def defaults(sample: CodeSample) -> dict[str, int]:
    """The values of the constants in the sample itself, by name."""
    return {constant.name: constant.value for constant in sample.constants}


def _obeyed(constraint: Constraint, sample: CodeSample, values: Mapping[str, int]) -> bool:
    """A constraint that the sample breaks was misread; one with an unknown fact is open."""
    text = _sized(constraint.predicate, sample)
    return compile_predicate(text).evaluate(Bindings(parameters=values)).value is not False


def _sized(text: str, sample: CodeSample) -> str:
    """With the sample's own sizes."""
    for name, size in sample.sizes.items():
        text = text.replace(f"@{{{name}}}", str(size))
    return text


def _value(formula: str, sample: CodeSample) -> float | None:
    bound = Bindings(parameters=defaults(sample))
    value = compile_expression(_sized(formula, sample)).compute(bound).value
    return value if isinstance(value, int | float) else None


# -- resources


def claims_in(text: str) -> list[Claim]:
    """The claims of a section about its sample, at most MAX_CLAIMS."""
    claims = (
        Claim(_number(match["used"]), _number(match["limit"]), match["what"])
        for match in _CLAIM.finditer(" ".join(text.split()))
    )
    return list(islice((claim for claim in claims if 0 < claim.used <= claim.limit), MAX_CLAIMS))


def _totals(sample: CodeSample) -> dict[str, float]:
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
    sample: CodeSample, totals: Mapping[str, float], claim: Claim, manual: Manual
) -> tuple[str, int] | None:
    """The formula whose value in the sample is that of the claim: elements of the arrays of some
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


def _elements_of(sample: CodeSample, kinds: Collection[str]) -> str:
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


def _all_in_scratchpad(sample: CodeSample, facts: Sequence[ProposedFact]) -> Iterator[Constraint]:
    """Without a claim, all arrays are in the scratchpad at once."""
    elements = " + ".join(array.elements for array in sample.arrays)
    formula = f"({elements}) * {USUAL_BYTES}"
    for fact in facts:
        if fact.key == SCRATCHPAD and not isinstance(fact.value, str):
            yield Constraint(f"{formula} <= {fact.value}", fact.locator)
    yield Constraint(f"{formula} <= facts.{SCRATCHPAD}", f"the fact {SCRATCHPAD}")


# -- multiples


def _multiples_in(passage: SectionProse) -> Iterator[Multiple]:
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


def _multiples(sample: CodeSample, manual: Manual, element: int) -> Iterator[Constraint]:
    for multiple in manual.multiples:
        for text in _as_multiples(sample, multiple, element):
            yield Constraint(text, multiple.why)


def _as_multiples(sample: CodeSample, multiple: Multiple, element: int) -> Iterator[str]:
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
