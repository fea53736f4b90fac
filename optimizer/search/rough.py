"""What is known of right candidates that could not be timed: for readers, and to choose what is
shown or measured first, never to rank results by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from optimizer.evaluation.records import rough_ratio, rough_times
from optimizer.search.records import Node


def rough_of(node: Node) -> str:
    """The rough ratio of a right candidate without a figure, marked as one; else empty."""
    if node.speedup is not None or node.evaluation is None or not node.correct:
        return ""
    return rough_ratio(node.evaluation.timings)


def rough_gain(node: Node) -> float:
    """The reference's time over the kernel's in its first case that could not be timed; 0 where no
    call of it was.
    """
    for timing in node.evaluation.timings if node.evaluation is not None else ():
        if timing.rough_us and timing.rough_baseline_us:
            return timing.rough_baseline_us / timing.rough_us
    return 0.0


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
