"""The sections of a chip's own manuals that an answer to a signal would quote, for a model that
drafts a section about it. Uses the ranking of answers; logs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kb.catalog.knowledge.drafts import is_drafted
from retrieval.answer import AnswerConfig, answer, titles
from retrieval.diagnose.signals import load_signals
from retrieval.knowledge_base import KnowledgeBase
from retrieval.request import RetrieveRequest
from retrieval.search.titles import BY_ID
from retrieval.snapshot.snapshot import Snapshot

UNKNOWN = "unknown"  # the signal that says nothing about a kernel
LOOKED_AT = 24  # excerpts
MOST = 6  # sections of a signal
# Use or reading of a passage from which on its section is material, and that of the best, below
# which the manuals do not treat the signal. Both are low: a model leaves out what does not help.
USEFUL, TREATED = 0.15, 0.25


@dataclass(frozen=True)
class DraftMaterial:
    """The sections to draft from, by signal, the best first. `written` are signals whose name is
    the heading of a section of the chip, `missing` those that its manuals do not treat."""

    sections: Mapping[str, tuple[str, ...]]
    written: tuple[str, ...]
    missing: tuple[str, ...]


def material_for(base: KnowledgeBase, hardware_id: str, signals: Sequence[str]) -> DraftMaterial:
    """The material for these signals, or for all. Raises UnknownHardware and UnknownSignal."""
    registry = load_signals()
    chip = base.registry.resolve(hardware_id)
    names = [registry.get(name).id for name in signals] or [*registry.ids]
    snapshot = base.snapshots.current()
    config = AnswerConfig(base.embed if base.dense_ready else None, base.near)
    found: dict[str, tuple[str, ...]] = {}
    written: list[str] = []
    missing: list[str] = []
    for name in names:
        if name == UNKNOWN:
            continue
        request = RetrieveRequest(signal=name, hardware=chip, k=LOOKED_AT, access_scope=base.access)
        excerpts = answer(snapshot, request, config).answer.excerpts
        passages = [identity for excerpt in excerpts for identity in excerpt.passages]
        sections, is_written = _sections(snapshot, chip, name, passages)
        if is_written:
            written.append(name)
        elif sections:
            found[name] = sections
        else:
            missing.append(name)
    return DraftMaterial(found, tuple(written), tuple(missing))


def _sections(
    snapshot: Snapshot, chip: str, signal: str, passages: Sequence[str]
) -> tuple[tuple[str, ...], bool]:
    """The useful sections of these passages, and whether the heading of one names the signal."""
    numbers = snapshot.numbers(passages)
    loaded = snapshot.load(numbers.values())
    uses = snapshot.uses(list(loaded), signal)
    reads = snapshot.reads(list(loaded), signal)
    worth = {
        seq: float(use if read < 0 else read)
        for seq, use, read in zip(loaded, uses, reads, strict=True)
    }
    order = [loaded[numbers[i]] for i in passages if numbers.get(i) in loaded]
    own = [
        p
        for p in order
        if chip in p.hardware and not is_drafted(snapshot.documents[p.document_id].source_key)
    ]
    headings = (titles().of(p.path[-1]) for p in own if p.path)
    if any(heading.affinity.get(signal, 0.0) >= BY_ID for heading in headings):
        return (), True
    if max((worth[p.seq] for p in own), default=0.0) < TREATED:
        return (), False
    useful = [p.section_id for p in own if worth[p.seq] >= USEFUL]
    return tuple(dict.fromkeys(useful))[:MOST], False
