"""What of the knowledge holds with which tools: counts by chip and tool, and the entries behind
them.

An entry is `expired` if it fails with the versions that this installation checked last, `holds` if
it was compiled or run, `read` if it was taken from a source, else `not_checked`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import sqlalchemy as sa
from annotated_types import Ge, Le, MaxLen

from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.knowledge.validities import SKILL
from kb.hardware.spec import HardwareSpec
from kb.plain import Doc
from kb.scope import ANY
from kb.validity import Validity, load_tools, span_of, standing
from retrieval.compose.standing import Standings, standings_of, validities_of_skill
from retrieval.diagnose.rules import load_rules
from retrieval.diagnose.signatures import (
    ErrorSignature,
    hardware_of_tool,
    load_signatures,
    signature_from_mapping,
)

if TYPE_CHECKING:
    from retrieval.knowledge_base import KnowledgeBase

EntryKind = Literal["fact", "card", "kernel", "signature", "rule", "skill"]
EntryState = Literal["holds", "read", "not_checked", "expired"]
STATES: tuple[EntryState, ...] = get_args(EntryState)
KINDS: tuple[EntryKind, ...] = get_args(EntryKind)
MOST = 1_000
NO_TOOL = "none"  # of entries that depend on no tool


@dataclass(frozen=True)
class KnowledgeEntry:
    """A piece of knowledge. `seen` says in words with what it was checked; `path` is its page."""

    kind: EntryKind
    title: str
    hardware: str
    tool: str
    state: EntryState
    seen: tuple[str, ...]
    path: str


@dataclass(frozen=True)
class ToolCount:
    """The entries of one chip, family or vendor that depend on one tool."""

    hardware: str
    tool: str
    holds: int
    read: int
    not_checked: int
    expired: int


@dataclass(frozen=True)
class KnowledgeValidity:
    """`versions` are those that this installation checked last, by tool."""

    versions: Mapping[str, str]
    counts: tuple[ToolCount, ...]
    entries: tuple[KnowledgeEntry, ...]


def knowledge_validity(
    base: KnowledgeBase,
    hardware: Annotated[str, Doc("Only for this chip, family or vendor."), MaxLen(200)] = "",
    tool: Annotated[
        str, Doc("Only entries that depend on this tool, or on `none`."), MaxLen(100)
    ] = "",
    kind: Annotated[EntryKind | None, Doc("Only entries of this kind.")] = None,
    state: Annotated[EntryState | None, Doc("Only entries in this state.")] = None,
    limit: Annotated[int, Doc("Entries to list."), Ge(0), Le(MOST)] = 100,
) -> KnowledgeValidity:
    """Counts by chip and tool. Entries are listed where `tool`, `kind` or `state` is given."""
    snapshot = base.retriever.snapshots.current()
    chips = snapshot.knowledge.chips(base.access)
    place = chips.resolve(hardware) if hardware and hardware != ANY else hardware
    wanted = NO_TOOL if tool == NO_TOOL else load_tools().get(tool).id if tool else ""
    chosen = [
        entry
        for entry in _entries(base, standings_of(snapshot, {}))
        if base.access.sees(() if entry.hardware == ANY else (entry.hardware,))
        and (not place or entry.hardware == place)
        and (not wanted or entry.tool == wanted)
        and (kind is None or entry.kind == kind)
    ]
    numbers = Counter((entry.hardware, entry.tool, entry.state) for entry in chosen)
    rows = sorted({(entry.hardware, entry.tool) for entry in chosen})
    counts = (ToolCount(*row, *(numbers[*row, name] for name in STATES)) for row in rows)
    listed = [entry for entry in chosen if state is None or entry.state == state]
    shown = listed[:limit] if wanted or kind or state else ()
    versions = snapshot.knowledge.validities.versions
    return KnowledgeValidity(dict(versions), tuple(counts), tuple(shown))


def _entries(base: KnowledgeBase, standings: Standings) -> Iterator[KnowledgeEntry]:
    # Of the whole snapshot: that of an answer lacks expired entries.
    knowledge = base.retriever.snapshots.current().knowledge
    versions = knowledge.validities.versions
    stated = knowledge.validities.by_subject

    def entry(
        kind: EntryKind,
        title: str,
        hardware: str,
        validities: Sequence[Validity],
        path: str = "",
        *,
        expired: bool | None = None,
        tool: str = "",
    ) -> KnowledgeEntry:
        named = [v.tool for v in validities if v.tool]
        failed = standing(validities, versions).stand == "false" if expired is None else expired
        ran = any(v.holds and v.checked != "read" for v in validities)
        state: EntryState = "read" if validities else "not_checked"
        state = "expired" if failed else "holds" if ran else state
        seen = tuple(dict.fromkeys(map(_in_words, validities)))
        return KnowledgeEntry(
            kind, title, hardware, named[-1] if named else tool or NO_TOOL, state, seen, path
        )

    for chip, facts in knowledge.facts.items():
        for fact in facts:
            yield entry("fact", fact.key, chip, fact.validity, f"/facts/{fact.id}")
    for row in _rows(base):
        own = (*stated.get(row.section_id or "", ()), *stated.get(row.document_id or "", ()))
        path = f"/documents/{row.document_id}"
        if row.kind == "card":
            path = f"/symbols/{row.id}"
        yield entry(row.kind, row.title, next(iter(row.hardware or ()), ANY), own, path)
    for kernel in knowledge.kernels:
        chip = next(iter(kernel.sample.hardware), ANY)
        ran = Validity(target=chip, checked="ran")
        yield entry("kernel", kernel.sample.title, chip, (ran,), f"/runs/{kernel.sample.run_id}")
    signatures = [(s, hardware_of_tool(s.toolchain)) for s in load_signatures()]
    signatures += [pair for spec in knowledge.specs.values() for pair in _of_chip(spec)]
    for signature, chip in signatures:
        own = standings.signatures.get(signature.id, ())
        tool = load_tools().ids.get(signature.toolchain, "")
        gone = signature.id in standings.refuted_signatures
        yield entry("signature", signature.heading, chip, own, expired=gone, tool=tool)
    for rule in load_rules():
        yield entry("rule", rule.id, next(iter(rule.vendors), ANY), rule.validity)
    for skill in knowledge.skills:
        name, chips = skill.head.name, skill.head.scopes.hardware
        own = (*validities_of_skill(skill), *stated.get(SKILL + name, ()))
        yield entry("skill", name, next(iter(chips), ANY), own, f"/skills/{name}")


def _of_chip(spec: HardwareSpec) -> Iterator[tuple[ErrorSignature, str]]:
    for row in spec.signatures:
        yield signature_from_mapping(vars(row), spec.id), spec.id


def _rows(base: KnowledgeBase) -> Sequence[sa.Row[tuple[object, ...]]]:
    """Cards and whole kernels of documents."""
    s, k = t.symbols.c, t.samples.c
    cards = sa.select(
        sa.literal("card").label("kind"),
        *(s.id, s.name.label("title"), s.hardware, s.document_id, s.section_id),
    ).where(s.active, s.status == "accepted", visible.read_from(t.symbols, base.access))
    kernels = sa.select(
        sa.literal("kernel").label("kind"),
        *(k.id, k.title, k.hardware, k.document_id, k.section_id),
    ).where(k.active, k.document_id.is_not(None), visible.read_from(t.samples, base.access))
    with base.catalog.read() as connection:
        return [*connection.execute(cards), *connection.execute(kernels)]


def _in_words(validity: Validity) -> str:
    """ "ran with Triton 3.8 on sm_90, 2026-11-29"."""
    parts: list[str] = [validity.checked]
    if validity.tool:
        parts.append(f"with {span_of(validity)}")
    if validity.target:
        parts.append(f"for {validity.target}")
    words = " ".join(parts) + (f", {validity.date}" if validity.date else "")
    return words if validity.holds else f"fails: {words}"
