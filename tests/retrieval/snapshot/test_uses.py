"""The signals that passages help with, and the terms that a manual defines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kb.scope import ALL_ACCESS
from retrieval.snapshot.lexicon import SectionTexts, terms_of
from retrieval.snapshot.ontology import REASONS, load_ontology
from retrieval.snapshot.segment import SegmentPart, merge_segments
from retrieval.snapshot.uses import FULL
from tests.fixtures import Store

MANUAL = """\
# Slab core

## Ports

The Fast Store (FST) is the local memory of a core. Two reads of one FST bank in the same cycle
conflict, and the second one must wait: pad rows, because a bank serves one read per cycle.

## Installation

Run the installer twice, then restart the machine.
"""


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The Slab (SLB) is the scratchpad of a core.", {"SLB": "on_chip_memory"}),
        ("Unified buffers are small. The tensor engine (TE) reads them.", {"TE": "matrix_unit"}),
        ("Each core has 2 MB of SRAM. This RAM is called L1.", {"L1": "on_chip_memory"}),
        ("The installer (see below) is a program for the scratchpad.", {}),
        ("Each PCBuf is a FIFO queue of 32-bit values.", {"PCBuf": "queue"}),
        ("A Widget is a queue.", {}),  # a common word would match everywhere
    ],
)
def test_terms_are_read_from_definitions(text: str, terms: dict[str, str]) -> None:
    found = terms_of([SectionTexts("sec_1", ("Core",), [text])], load_ontology())
    assert {term.term: term.concept for term in found} == terms
    assert all(term.quote and term.section_id == "sec_1" for term in found)


@pytest.mark.slow(seconds=3)
def test_passage_with_own_terms_is_useful_for_its_signal(store: Store) -> None:
    store.submit("slab.md", MANUAL, hardware=("h100",))
    store.worker().drain()
    snapshot = store.snapshots.current()
    passages = snapshot.load(range(100))
    ports = [seq for seq, p in passages.items() if p.path[-1] == "Ports"]
    other = [seq for seq, p in passages.items() if p.path[-1] == "Installation"]
    assert snapshot.uses(ports, "bank_conflict").max() > 0.7
    assert snapshot.uses(other, "bank_conflict").max() < 0.1
    section = passages[ports[0]].section_id
    assert snapshot.reasons([section], "bank_conflict")[section] in REASONS
    treating = snapshot.treating(("h100",), ALL_ACCESS)["bank_conflict"]
    assert set(treating.tolist()) <= set(ports) and len(treating)
    lexicon = {term.term: term.concept for _, term in snapshot.lexicon(("h100",), ALL_ACCESS)}
    assert lexicon["FST"] == "on_chip_memory"


@pytest.mark.slow(seconds=3)
def test_uses_stay_with_their_passages_in_merged_segments(store: Store) -> None:
    store.submit("slab.md", MANUAL, hardware=("h100",))
    store.worker().drain()
    segment = store.snapshots.current().segments[0].segment
    merged = merge_segments([SegmentPart(segment)])
    for name in ("uses", "section_uses", "section_reasons"):
        assert np.array_equal(np.sort(merged.arrays[name], 0), np.sort(segment.arrays[name], 0))
    assert merged.arrays["uses"].max() <= FULL
    by_seq: Sequence[int] = merged.seqs.tolist()
    rows = [segment.seqs.tolist().index(seq) for seq in by_seq]
    assert np.array_equal(merged.arrays["uses"], segment.arrays["uses"][rows])
