"""How far one search stands above another over the whole of the same budget.

After each candidate a search stands at the best it has found so far, or at the reference before it
has any. The advantage is the geometric mean, over the candidates of the budget, of one search's
standing over the other's:

    advantage = product over k = 1..K of (standing with / standing without, after k) ^ (1 / K)

so finding the same kernel sooner counts as finding a better one does: a search that is cut off
anywhere has the better of it. The logarithm of this mean is the normalised area between the two
anytime curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from optimizer.evaluation.records import Interval
from optimizer.search.records import Node, best_of

REFERENCE_KEY = ""
REFERENCE_FIGURE = Interval(1.0, 1.0, 1.0, 1)  # of the reference over itself


@dataclass(frozen=True)
class Advantage:
    """over: the budget; end: at its end alone. Both are 1 without any doubt where the kernels that
    count are the same. None: one of the kernels has no figure, as on a busy machine."""

    over: Interval | None
    end: Interval | None


def standings(nodes: Sequence[Node], budget: int) -> list[Node | None]:
    """The best after each candidate of the budget; None for the reference. nodes: candidates in
    their order. A search that ended early keeps what it had."""
    return [best_of(nodes[: count + 1]) for count in range(budget)]


def advantage(
    ours: Sequence[Node | None],
    theirs: Sequence[Node | None],
    figure: Callable[[Node], Interval | None],
) -> Advantage:
    """figure: of the reference over a kernel, measured anew; asked once for each kernel that
    counts, and not for one that both have for as long."""
    nodes = {_key(node): node for node in (*ours, *theirs) if node is not None}
    over = _weights(ours, theirs)
    end = _weights(ours[-1:], theirs[-1:])
    figures: dict[str, Interval | None] = {REFERENCE_KEY: REFERENCE_FIGURE}
    for key in (*over, *end):
        if key not in figures:
            figures[key] = figure(nodes[key])
    return Advantage(_product(over, figures), _product(end, figures))


def _weights(ours: Sequence[Node | None], theirs: Sequence[Node | None]) -> dict[str, float]:
    """Of each kernel, by which its logarithm counts; without those that cancel."""
    counts: dict[str, int] = {}
    for side, sign in ((ours, 1), (theirs, -1)):
        for node in side:
            counts[_key(node)] = counts.get(_key(node), 0) + sign
    return {key: count / len(ours) for key, count in counts.items() if count}


def _product(
    weights: Mapping[str, float], figures: Mapping[str, Interval | None]
) -> Interval | None:
    """Of powers of independent figures: their errors add as squares on the log scale, for each side
    by itself, as in `statistics.independent_ratio`."""
    centre, down, up, counts = 0.0, 0.0, 0.0, list[int]()
    for key, weight in weights.items():
        found = figures[key]
        if found is None or not 0 < found.low <= found.value <= found.high < math.inf:
            return None
        below, above = math.log(found.value / found.low), math.log(found.high / found.value)
        if weight < 0:
            below, above = above, below
        centre += weight * math.log(found.value)
        down, up = math.hypot(down, weight * below), math.hypot(up, weight * above)
        if key != REFERENCE_KEY:
            counts.append(found.n)
    value, low, high = (math.exp(centre + shift) for shift in (0.0, -down, up))
    return Interval(value, low, high, min(counts, default=1))


def _key(node: Node | None) -> str:
    """Of the kernel: the same text is the same kernel, whichever search wrote it."""
    return REFERENCE_KEY if node is None or node.proposal is None else node.proposal.bundle.sha256
