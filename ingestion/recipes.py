"""Recipes proposed from the code samples of a manual: a template whose sizes follow the problem and
whose constants have domains, with the limits that the manual states.

A sample in a language that the hardware's own toolchain compiles is lifted without knowing the
language (see `sample_code`, `sample_limits`); one that cannot be is reported with the reason.
Proposals are data for a person to accept or reject. They are tried on the manual's own hardware
only, where the compiler and the correctness check decide whether they were understood.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingestion.elements import Element
from ingestion.facts import ProposedFact, propose_facts
from ingestion.sample_code import PAD, Constant, NotLiftable, Sample, read_sample
from ingestion.sample_limits import Passage, constraints_of
from ingestion.sections import Section

FORMAT = 1
MAX_SAMPLE = 20_000  # characters
STEPS = 3  # powers of two to either side of the sample's value
LARGEST_DOMAIN = 4096


@dataclass(frozen=True)
class ProposedRecipe:
    """name: of the section and the entry. section: heading path. body: JSON, see `body_of`."""

    name: str
    language: str
    section: tuple[str, ...]
    code: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class LeftOut:
    """A sample that did not become a recipe, and why."""

    section: tuple[str, ...]
    reason: str


def propose_recipes(
    sections: Sequence[Section], languages: Collection[str]
) -> tuple[list[ProposedRecipe], list[LeftOut]]:
    """From the sections of one manual. languages: those of the hardware; a block without a language
    counts where there is only one."""
    passages = [Passage(" > ".join(s.path[-2:]), _prose(s.elements)) for s in sections]
    facts = [fact for section in sections for fact in propose_facts(section.elements)]
    found: list[ProposedRecipe] = []
    left_out: list[LeftOut] = []
    for section, own in zip(sections, passages, strict=True):
        for language, code in _samples(section, languages):
            try:
                sample = read_sample(code)
                body = body_of(sample, own, passages, facts)
            except NotLiftable as problem:
                left_out.append(LeftOut(section.path, str(problem)))
                continue
            name = _name(section.title, sample.entry, {recipe.name for recipe in found})
            found.append(ProposedRecipe(name, language, section.path, code, body))
    return found, left_out


def _samples(section: Section, languages: Collection[str]) -> Iterator[tuple[str, str]]:
    for element in section.elements:
        if element.kind != "code" or len(element.text) > MAX_SAMPLE:
            continue
        language = (element.language or "").lower()
        if not language and len(languages) == 1:
            (language,) = languages
        if language in languages:
            yield language, element.text


def _prose(elements: Sequence[Element]) -> str:
    return "\n".join(element.text for element in elements if element.kind != "code")


def _name(title: str, entry: str, taken: set[str]) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or entry.lower()
    name, number = words[:60].strip("-"), 2
    while name in taken:
        name, number = f"{words[:57]}-{number}", number + 1
    return name


def body_of(
    sample: Sample, own: Passage, passages: Sequence[Passage], facts: Sequence[ProposedFact]
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
            for constraint in constraints_of(sample, own, passages, facts)
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
    found = {value * 2**step for step in range(STEPS + 1)}
    found |= {value // 2**step for step in range(STEPS + 1) if value % 2**step == 0}
    if role == PAD:
        found = {0, 1, *(v for v in found if v <= 4 * max(value, 1))}
    return sorted(v for v in found if v <= max(LARGEST_DOMAIN, value))
