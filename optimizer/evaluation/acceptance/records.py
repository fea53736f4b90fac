"""The records of an acceptance test, and its last result for a chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from kb.catalog import meta
from kb.errors import NotFound
from kb.plain import plain
from retrieval.knowledge_base import KnowledgeBase

Outcome = Literal["right", "wrong", "missing", "contradicted", "unchecked"]
FAULTS: tuple[Outcome, ...] = ("wrong", "missing", "contradicted")
KEY = "acceptance:"  # of the catalog's named values, with the id of the chip


@dataclass(frozen=True)
class Finding:
    """One claim and what became of it.

    `check` is its kind, `subject` the name, code or number, `section` the headings that state it,
    within `document`. `evidence` is the statement that was tried, or the tool's message.
    """

    check: str
    outcome: Outcome
    subject: str
    document: str
    section: str
    message: str
    evidence: str = ""


@dataclass(frozen=True)
class SectionMark:
    """The findings of one section, counted."""

    document: str
    section: str
    right: int
    faults: int
    unchecked: int


@dataclass(frozen=True)
class Covered:
    """How many of something the manuals cover: names with a signature, with limits, ..."""

    what: str
    covered: int
    of: int


@dataclass(frozen=True)
class ManualAcceptance:
    """The result for one language of a chip.

    `mark` is 0 to 100, None where nothing could be decided; `counts` are findings by outcome,
    `documents` names each manual with its version, to distinguish two results. `tool` is the
    version of the toolchain, and `compilations` the number that the test needed.
    """

    hardware: str
    language: str
    tool: str
    mark: float | None
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]
    sections: tuple[SectionMark, ...]
    coverage: tuple[Covered, ...]
    documents: tuple[str, ...]
    kernels: tuple[str, ...]
    compilations: int


@dataclass(frozen=True)
class WrittenKernels:
    """A problem that a model wrote kernels for: at which attempt the first was right (None: none
    was), of how many; the cost of the best in words, and its run."""

    problem: str
    language: str
    model: str
    first_right: int | None
    attempts: int
    cost: str
    run_id: str


@dataclass(frozen=True)
class Acceptance:
    """The results by language; `mark` is the least of their marks, None without one. `made_at` is
    in UTC. `problems` are those for which models wrote kernels from the manuals alone, if any
    did."""

    hardware: str
    mark: float | None
    made_at: str
    languages: tuple[ManualAcceptance, ...] = ()
    problems: tuple[WrittenKernels, ...] = ()


def store(base: KnowledgeBase, result: Acceptance) -> None:
    """Keep the result as the chip's last one."""
    with base.catalog.write() as connection:
        meta.put(connection, f"{KEY}{result.hardware}", plain(result))


def show_acceptance(base: KnowledgeBase, hardware_id: str) -> Acceptance:
    """The last result of a chip's acceptance test. Raises NotFound without one."""
    hardware = base.registry.resolve(hardware_id)
    with base.catalog.read() as connection:
        stored = meta.get(connection, f"{KEY}{hardware}")
    if stored is None:
        raise NotFound(
            f"the manuals of {hardware} were not tested",
            hint=f"Run `kernlore hardware accept {hardware}`.",
        )
    return TypeAdapter(Acceptance).validate_python(stored)
