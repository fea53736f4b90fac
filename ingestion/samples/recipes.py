"""Recipes proposed from the code samples of a manual: a template whose sizes follow the problem and
whose constants have domains, with the limits that the manual states.

A sample in a language that the hardware's own toolchain compiles is lifted without knowing the
language (see `code`, `limits`); one that cannot be is reported with the reason.
Proposals are data for a person to accept or reject. They are tried on the manual's own hardware
only, where the compiler and the correctness check decide whether they were understood.

No sample fails its manual, and no manual holds up the others: samples are as many and as long as
the limits here say, and the rest is reported as left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingestion.findings.facts import propose_facts
from ingestion.passages import ParsedSection
from ingestion.samples.code import PAD, Constant, NotLiftable, Sample, read_sample
from ingestion.samples.limits import (
    Claim,
    Manual,
    SectionText,
    claims_in,
    constraints_of,
    read_manual,
)
from kb.catalog.knowledge.samples import ProposedRecipe

FORMAT = 1
MAX_SAMPLE = 20_000  # characters
MAX_SAMPLES = 50  # of a manual
MAX_TEXT = 200_000  # characters of all its samples
STEPS = 3  # powers of two to either side of the sample's value
LARGEST_DOMAIN = 4096


@dataclass(frozen=True)
class LeftOut:
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
) -> tuple[list[ProposedRecipe], list[LeftOut]]:
    """Recipes from the sections of one manual, and the samples that are none. `scope` takes a
    heading path and gives the languages of the hardware that it is about, each with the chips that
    compile it; a block without a language counts where there is only one."""
    samples = [
        block
        for n, section in enumerate(sections)
        for block in _samples(n, section, scope(section.path))
    ]
    if not samples:
        return [], []
    kept, refused = _within_bounds(samples)
    left_out = [LeftOut(sections[block.section].path, reason) for block, reason in refused]
    texts = [_section_text(section) for section in sections]
    manual = read_manual(
        texts, (fact for section in sections for fact in propose_facts(section.elements))
    )
    claims = {n: claims_in(texts[n].text) for n in {block.section for block in kept}}
    recipes: list[ProposedRecipe] = []
    for block in kept:
        section = sections[block.section]
        try:
            sample = read_sample(block.code)
            body = body_of(sample, texts[block.section].section, claims[block.section], manual)
        except NotLiftable as problem:
            left_out.append(LeftOut(section.path, str(problem)))
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
    kept: list[_Block] = []
    refused: list[tuple[_Block, str]] = []
    text = 0
    for block in samples:
        if len(block.code) > MAX_SAMPLE:
            reason = f"it is longer than {MAX_SAMPLE} characters"
        elif len(kept) == MAX_SAMPLES:
            reason = f"{MAX_SAMPLES} samples of the manual are read, and it comes after them"
        elif text + len(block.code) > MAX_TEXT:
            reason = f"with it, the manual's samples are longer than {MAX_TEXT} characters"
        else:
            kept.append(block)
            text += len(block.code)
            continue
        refused.append((block, reason))
    return kept, refused


def _section_text(section: ParsedSection) -> SectionText:
    prose = "\n".join(element.text for element in section.elements if element.kind != "code")
    return SectionText(" > ".join(section.path[-2:]), prose)


def _name(title: str, entry: str, used: set[str]) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or entry.lower()
    name, number = words[:60].strip("-"), 2
    while name in used:
        name, number = f"{words[:57]}-{number}", number + 1
    return name


def body_of(
    sample: Sample, section: str, claims: Sequence[Claim], manual: Manual
) -> dict[str, Any]:
    """What is stored. `@{name}` in template and constraints stands for a size of the problem or for
    a constant; tensors name the sizes of their dimensions. Raises NotLiftable."""
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


def _parameter(constant: Constant) -> dict[str, Any]:
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
