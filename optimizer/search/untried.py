"""Why a search tried nothing: no proposer has a candidate, or its time was over before the first.

Says what the reader can change: which proposers were asked and why they had nothing, which of those
that the goal leaves out would have one, or what the time went to. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from optimizer.search.confirm import UNTRIED
from optimizer.search.goal import minutes_are_over
from optimizer.search.loop import Search
from optimizer.search.propose import NOTHING_LEFT
from optimizer.search.synthesizers.base import Context, ProposalFailed, SaysWhy, Synthesizer

SHORTEST = 1.0  # seconds: what took less is not mentioned


@dataclass
class Stages:
    """Seconds of each stage of getting ready, in the order in which they ended."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    def __post_init__(self) -> None:
        self._last = self.clock()

    def ended(self, stage: str) -> None:
        """What was done since the last stage ended was this one."""
        now = self.clock()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds of all of them."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class LeftOut:
    """A proposer that the goal leaves out, and what would bring it in."""

    synthesizer: Synthesizer
    remedy: str


def why_untried(
    search: Search,
    ended: str,
    stages: Mapping[str, float],
    left_out: Callable[[], Sequence[LeftOut]] = tuple,
) -> str:
    """The reason to give for a search that ended, for the reason `ended`, without a candidate.

    `stages` are seconds of getting ready. `left_out` is called, and its proposers are asked, only
    where no candidate exists.
    """
    if minutes_are_over(search.goal, ended):
        return f"{UNTRIED}: {_no_time(search, stages)}"
    if ended != NOTHING_LEFT:
        return UNTRIED
    asked = "; ".join(_nothing_of(synthesizer) for synthesizer in search.synthesizers)
    context = search.first_context()
    others = [other for other in left_out() if _has_one(other.synthesizer, context)]
    brings = [f"{o.synthesizer.name}, which was not asked, has one: {o.remedy}" for o in others]
    brings.append(
        "a language model (--models) or a proposer of your own (POST /runs) can write one"
    )
    return f"{UNTRIED}: no candidate exists. Asked: {asked or 'nobody'}. " + "; ".join(brings)


def _no_time(search: Search, stages: Mapping[str, float]) -> str:
    spent = dict(stages) or {"getting ready": search.spent}
    reference = search.tree.root.at if len(search.tree) else 0.0
    spent["the reference"] = spent.get("the reference", 0.0) + reference
    spent["looking for a candidate"] = search.seconds - reference
    parts = sorted(spent.items(), key=lambda part: -part[1])
    long = [f"{stage} ({seconds:.0f} s)" for stage, seconds in parts if seconds >= SHORTEST]
    went = f"; it went to {', '.join(long)}" if long else ""
    return f"the time was over before the first candidate{went}; give more (--minutes)"


def _nothing_of(synthesizer: Synthesizer) -> str:
    why = synthesizer.nothing_because if isinstance(synthesizer, SaysWhy) else ""
    return f"{synthesizer.name} ({why})" if why else synthesizer.name


def _has_one(synthesizer: Synthesizer, context: Context) -> bool:
    try:
        return synthesizer.propose(context) is not None
    except ProposalFailed:
        return False
