"""What waits for a person in a run or a told trajectory, and the person's answer.

An answer is of an evaluation, so it holds wherever that evaluation is read: other runs that met the
same candidate under the same conditions are answered with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kb.catalog.search.evaluations import Evaluations
from kb.catalog.search.reviews import Review, Reviews
from kb.catalog.search.trajectories import Trajectories
from kb.errors import Conflict, NotFound
from kb.scope import ALL_ACCESS
from optimizer.evaluation.records import Evaluation, Interval, evaluation_from_json
from optimizer.search.runs.run_store import run_store
from retrieval.knowledge_base import KnowledgeBase
from skills.trajectories.reviewed import flagged, words


@dataclass(frozen=True)
class Flagged:
    """A node with flags that a person decides on. evaluation: its key. review: the answer that
    counts, None while it waits."""

    node: int
    speedup: Interval | None
    flags: tuple[str, ...]
    evaluation: str
    review: Review | None

    def as_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "speedup": None if self.speedup is None else asdict(self.speedup),
            "flags": list(self.flags),
            "evaluation": self.evaluation,
            "decision": None if self.review is None else self.review.decision,
            "review": None if self.review is None else self.review.as_json(),
            "told": "waits for a person" if self.review is None else words(self.review),
        }


def flagged_nodes(
    base: KnowledgeBase, identity: str, access_scope: str = ALL_ACCESS
) -> list[Flagged]:
    """In their order; answered ones too, as an answer can be changed. Raises NotFound, and Conflict
    for a told trajectory that was not measured here."""
    waiting = {
        number: found for number, found in _evaluated(base, identity).items() if flagged(found)
    }
    reviews = Reviews(base.catalog, access_scope).latest(one.key for one in waiting.values())
    return [_flagged(number, found, reviews) for number, found in waiting.items()]


def review_node(
    base: KnowledgeBase,
    identity: str,
    number: int,
    decision: str,
    actor: str,
    reason: str,
    access_scope: str = ALL_ACCESS,
) -> Flagged:
    """Answer the flags of a node. Raises NotFound, InvalidRequest, and Conflict where nothing of it
    waits for a person."""
    found = _evaluated(base, identity).get(number)
    if found is None:
        raise NotFound(
            f"{identity} has no node {number} that was evaluated",
            hint=f"`kernlore runs flagged {identity}` shows what waits for a person.",
        )
    reviews = Reviews(base.catalog, access_scope)
    answer = reviews.add(found.key, decision, actor, reason)
    return _flagged(number, found, {found.key: answer})


def _flagged(number: int, found: Evaluation, reviews: Mapping[str, Review]) -> Flagged:
    return Flagged(number, found.speedup, flagged(found), found.key, reviews.get(found.key))


def _evaluated(base: KnowledgeBase, identity: str) -> dict[int, Evaluation]:
    """By number. A node that repeats another one is answered with that one."""
    if not identity.startswith("run_"):
        return dict(_told(base, identity))
    store = run_store(base)
    store.run(identity)
    nodes = store.nodes(identity)
    return {node.number: node.evaluation for node in nodes if node.evaluation is not None}


def _told(base: KnowledgeBase, identity: str) -> Iterator[tuple[int, Evaluation]]:
    store = Trajectories(base.catalog, base.blobs)
    row = store.find(identity)
    measured = store.results(row)
    if row.state != "ready" or measured is None:
        raise Conflict(
            f"{row.id} is {row.state}: nothing of it was measured here",
            hint="Wait until it is ready, or verify it where its hardware is.",
        )
    rows = Evaluations(base.catalog)
    for number, key in measured["evaluations"].items():
        stored = rows.find(key)
        if stored is not None and stored.record is not None:
            yield int(number), evaluation_from_json(stored.record)
