"""Candidates that were proposed on another machine are evaluated here, and the best so far is
measured again: one round of a run whose models and whose device cannot see each other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from optimizer.search.bench.local import LocalBench
from optimizer.search.confirm import confirm
from optimizer.search.evaluate import evaluate_all
from optimizer.search.loop import Listener
from optimizer.search.records import IN_FLIGHT, REFERENCE, Node, node_from_json
from optimizer.search.store import FileStore, RunRow
from optimizer.search.tree import Tree

MEASURED = "the drafts were measured"


def evaluate_drafts(
    store: FileStore,
    run: RunRow,
    rows: Sequence[Mapping[str, Any]],
    bench: LocalBench,
    listener: Listener,
    most: int,
) -> None:
    """Evaluate the nodes of `rows` that are in flight, and the reference where that was not done;
    each is stored when it is done, and those that are stored already are not evaluated again. At
    most `most` finalists are measured again in the end.
    """
    if not (store.folder / run.id / "run.json").exists():
        store.begin(run)
    tree = Tree(store.nodes(run.id))
    began = time.monotonic()
    waiting = [node_from_json(row) for row in rows[len(tree) :]]

    def clock() -> float:
        return run.seconds + time.monotonic() - began

    def add(node: Node) -> None:
        store.add(run.id, node)
        tree.add(node)
        listener.node(node, tree)

    while waiting:
        if _in_flight(waiting[0]):
            batch = list(takewhile(_in_flight, waiting[: bench.at_once]))
            nodes = evaluate_all(bench, batch, listener.log, clock)
        else:
            nodes = [_with_reference(waiting[0], bench)]
        for node in nodes:
            add(node)
        del waiting[: len(nodes)]
    outcome = confirm(tree, bench, most=most)
    ended = replace(run, state="finished", ended=MEASURED, seconds=round(clock(), 3))
    store.update(replace(ended, result=outcome.as_json()))
    listener.log(f"{outcome.gain or outcome.reason} ({MEASURED})")


def _in_flight(node: Node) -> bool:
    return node.state == IN_FLIGHT


def _with_reference(node: Node, bench: LocalBench) -> Node:
    """The node; the reference with its evaluation where it had none."""
    if node.number != REFERENCE or node.evaluation is not None:
        return node
    return replace(node, evaluation=bench.reference(), problem="")
