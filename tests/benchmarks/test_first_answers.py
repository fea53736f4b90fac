"""Scoring of an excerpt and of a set of answers in the benchmark of first answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.knowledge.answers import Row, load_targets, report, torn
from kb.answers import DocumentRef, Excerpt
from retrieval.diagnose.signals import load_signals

ROW = Row("memory_bound", "h100", True, True, 5, 5, 0, 3, 3, (), 1, (), 4000)


def excerpt(heading: str, text: str) -> Excerpt:
    document = DocumentRef("doc_1", "Manual", 1)
    return Excerpt("psg_1", "hardware", (), text, document, f"Manual > {heading}", None, 1.0, {})


@pytest.mark.parametrize(
    ("heading", "text", "hit"),
    [
        ("HBM3 needs many bytes in flight", "", True),
        ("Notes", "HBM is fast. DRAM is not.", True),
        ("Notes", "HBM is fast.", False),
        ("Shared memory bandwidth", "HBM, DRAM and global memory", False),
    ],
)
def test_excerpt_is_on_target_by_heading_or_text(heading: str, text: str, hit: bool) -> None:
    targets, _ = load_targets()
    assert targets["memory_bound"].hit(excerpt(heading, text)) is hit


def test_every_signal_but_unknown_has_target() -> None:
    assert set(load_targets()[0]) == set(load_signals().ids) - {"unknown"}


@pytest.mark.parametrize(
    ("text", "begun"), [("The bus", False), ("and so on", True), ("**Bold**", False), ("", False)]
)
def test_text_that_starts_in_mid_sentence(text: str, begun: bool) -> None:
    assert torn(text) is begun


def test_report_names_misses_and_inapplicable_excerpts() -> None:
    foreign = ("mfma",)
    other = replace(ROW, hardware="a100", on_target=False, sections=3, foreign_moves=foreign)
    _, table, missed, cannot = report([ROW, other])
    assert "| all | 2 | 50% | 100% | 4.00 | 0.0% |" in table
    assert missed.endswith("memory_bound/a100.") and "mfma (1)" in cannot
