"""Recipes proposed from the code samples of a manual: a template whose sizes follow the problem and
whose constants have domains, with the limits that the manual states.

A sample in a language that the hardware's own toolchain compiles is lifted without knowing the
language (see `sample_code`, `sample_limits`); one that cannot be is reported with the reason.
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
from ingestion.passages import Section
from ingestion.samples.code import PAD, Constant, NotLiftable, Sample, read_sample
from ingestion.samples.limits import Claim, Manual, Passage, claims_in, constraints_of, read_manual

FORMAT = 1
MAX_SAMPLE = 20_000  # characters
MAX_SAMPLES = 50  # of a manual
MAX_TEXT = 200_000  # characters of all its samples
STEPS = 3  # powers of two to either side of the sample's value
LARGEST_DOMAIN = 4096


@dataclass(frozen=True)
class ProposedRecipe:
    """name: of the section and the entry. hardware: what it is for. section: heading path. body:
    JSON, see `body_of`."""

    name: str
    language: str
    hardware: tuple[str, ...]
    section: tuple[str, ...]
    code: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class LeftOut:
    """A sample that did not become a recipe, and why."""

    section: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class _Found:
    """A code block in a language of its section's hardware. section: which one it is."""

    section: int
    language: str
    hardware: tuple[str, ...]
    code: str


def propose_recipes(
    sections: Sequence[Section], scope: Callable[[tuple[str, ...]], Mapping[str, tuple[str, ...]]]
) -> tuple[list[ProposedRecipe], list[LeftOut]]:
    """From the sections of one manual. scope: of a heading path, the languages of the hardware that
    it is about, each with the chips that compile it; a block without a language counts where there
    is only one."""
    samples = [
        one
        for n, section in enumerate(sections)
        for one in _samples(n, section, scope(section.path))
    ]
    if not samples:
        return [], []
    taken, refused = _within_bounds(samples)
    left_out = [LeftOut(sections[one.section].path, reason) for one, reason in refused]
    passages = [_passage(section) for section in sections]
    manual = read_manual(
        passages, (fact for section in sections for fact in propose_facts(section.elements))
    )
    claims = {n: claims_in(passages[n].text) for n in {one.section for one in taken}}
    found: list[ProposedRecipe] = []
    for one in taken:
        section = sections[one.section]
        try:
            sample = read_sample(one.code)
            body = body_of(sample, passages[one.section].section, claims[one.section], manual)
        except NotLiftable as problem:
            left_out.append(LeftOut(section.path, str(problem)))
            continue
        name = _name(section.title, sample.entry, {recipe.name for recipe in found})
        found.append(ProposedRecipe(name, one.language, one.hardware, section.path, one.code, body))
    return found, left_out


def _samples(
    number: int, section: Section, languages: Mapping[str, tuple[str, ...]]
) -> Iterator[_Found]:
    for element in section.elements:
        if element.kind != "code":
            continue
        language = (element.language or "").lower()
        if not language and len(languages) == 1:
            (language,) = languages
        if language in languages:
            yield _Found(number, language, languages[language], element.text)


def _within_bounds(samples: Sequence[_Found]) -> tuple[list[_Found], list[tuple[_Found, str]]]:
    """Those that are read, in their order; the others with the reason."""
    taken: list[_Found] = []
    refused: list[tuple[_Found, str]] = []
    text = 0
    for one in samples:
        if len(one.code) > MAX_SAMPLE:
            reason = f"it is longer than {MAX_SAMPLE} characters"
        elif len(taken) == MAX_SAMPLES:
            reason = f"{MAX_SAMPLES} samples of the manual are read, and it comes after them"
        elif text + len(one.code) > MAX_TEXT:
            reason = f"with it, the manual's samples are longer than {MAX_TEXT} characters"
        else:
            taken.append(one)
            text += len(one.code)
            continue
        refused.append((one, reason))
    return taken, refused


def _passage(section: Section) -> Passage:
    prose = "\n".join(element.text for element in section.elements if element.kind != "code")
    return Passage(" > ".join(section.path[-2:]), prose)


def _name(title: str, entry: str, taken: set[str]) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or entry.lower()
    name, number = words[:60].strip("-"), 2
    while name in taken:
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
    found = {value * 2**step for step in range(STEPS + 1)}
    found |= {value // 2**step for step in range(STEPS + 1) if value % 2**step == 0}
    if role == PAD:
        found = {0, 1, *(v for v in found if v <= 4 * max(value, 1))}
    return sorted(v for v in found if v <= max(LARGEST_DOMAIN, value))
