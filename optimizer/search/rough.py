"""What is known of right candidates that could not be timed: for readers, never to rank by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from optimizer.evaluation.rough import rough_ratio, rough_times
from optimizer.search.records import Node


def rough_of(node: Node) -> str:
    """The rough ratio of a right candidate without a figure, marked as one; else empty."""
    if node.speedup is not None or node.evaluation is None or not node.correct:
        return ""
    return rough_ratio(node.evaluation.timings)


def rough_cases(node: Node) -> dict[str, str]:
    """The fastest disturbed calls in words, by case, of a candidate with a rough ratio."""
    if not rough_of(node) or node.evaluation is None:
        return {}
    rows = {timing.case: rough_times(asdict(timing)) for timing in node.evaluation.timings}
    return {case: text for case, text in rows.items() if text}


def rough_best(nodes: Sequence[Node]) -> str:
    """That of the candidate of which it is highest, with its number; empty where there is none."""
    known = [(text, node.number) for node in nodes if (text := rough_of(node))]
    if not known:
        return ""
    text, number = max(known, key=lambda entry: float(entry[0].split()[1].rstrip("x")))
    return f"{text}, node {number}"
