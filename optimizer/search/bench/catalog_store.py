"""A `RunStore` over the catalog: bundles as blobs, evaluations in their own rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from kb.blobs import Blobs
from kb.catalog.evaluations import Evaluations
from kb.catalog.runs import EVERY_RUN, NodeRow, Runs, RunWhere
from optimizer.search.records import Node, Proposal, node_from_json
from optimizer.search.store import RunRow, run_from_json


class CatalogStore:
    """Rows of runs in the catalog."""

    def __init__(self, runs: Runs, evaluations: Evaluations, blobs: Blobs) -> None:
        self._runs = runs
        self._evaluations = evaluations
        self._blobs = blobs

    def begin(self, run: RunRow) -> None:
        """Insert a new run."""
        goal = run.goal
        self._runs.begin(
            run.id, run.problem_sha256, run.hardware, goal.policy, goal.seed, run.as_json()
        )

    def run(self, run_id: str) -> RunRow:
        """The run with this id. Raises NotFound."""
        return run_from_json(self._runs.find(run_id).settings)

    def latest(self, limit: int = 50, offset: int = 0, where: RunWhere = EVERY_RUN) -> list[RunRow]:
        """At most `limit` of the runs that are meant, newest first, after the first `offset`."""
        return [run_from_json(row.settings) for row in self._runs.latest(limit, offset, where)]

    def count(self, where: RunWhere = EVERY_RUN) -> int:
        """How many runs are meant."""
        return self._runs.count(where)

    def update(self, run: RunRow) -> None:
        """Store the run's row and the cost of its nodes in USD."""
        spent = sum(
            node.proposal.cost.usd or 0.0
            for node in self.nodes(run.id)
            if node.proposal is not None
        )
        self._runs.update(run.id, run.state, run.as_json(), spent)

    def note_cluster(self, run_id: str, cluster: Mapping[str, Any]) -> None:
        """Store what a run does on a cluster, and nothing else of it."""
        self._runs.note(run_id, "cluster", cluster)

    def add(self, run_id: str, node: Node) -> None:
        """Insert a node; its bundle becomes a blob, its evaluation a reference to its own row."""
        record = node.as_json()
        proposal = node.proposal
        if proposal is not None:
            text = json.dumps(asdict(proposal.bundle)).encode()
            record["proposal"]["bundle"] = {"blob": self._blobs.put(text)}
        evaluation = node.evaluation
        # Its own table has it under its key; where nothing was journalled, the node keeps it.
        if evaluation is not None and self._evaluations.find(evaluation.key) is not None:
            record["evaluation"] = {"key": evaluation.key}
        run = self._runs.find(run_id)
        self._runs.add(
            run_id,
            NodeRow(
                number=node.number,
                parent=node.parent,
                island=node.island,
                memory=str((run.settings.get("goal") or {}).get("memory", "")),
                synthesizer=proposal.synthesizer if proposal else "reference",
                state=node.state,
                record=record,
                bundle_sha256=proposal.bundle.sha256 if proposal else None,
                evaluation_key=evaluation.key if evaluation else None,
                retrieval_id=node.shown.retrieval_id,
                usage=asdict(proposal.cost) if proposal else None,
            ),
        )

    def nodes(self, run_id: str) -> list[Node]:
        """The nodes of a run in the order of their numbers, with bundles and evaluations."""
        return [node_from_json(self._whole(record)) for record in self._runs.nodes(run_id)]

    def size(self, run_id: str) -> int:
        """How many nodes a run has."""
        return self._runs.size(run_id)

    def _whole(self, record: Mapping[str, Any]) -> dict[str, Any]:
        row = dict(record)
        if row.get("proposal"):
            bundle = json.loads(self._blobs.get(row["proposal"]["bundle"]["blob"]))
            row["proposal"] = {**row["proposal"], "bundle": bundle}
        if row.get("evaluation") and set(row["evaluation"]) == {"key"}:
            evaluation = self._evaluations.find(row["evaluation"]["key"])
            row["evaluation"] = evaluation.record if evaluation is not None else None
        return row

    def winners(
        self,
        op_family: str,
        dtype: str | None,
        lineage: tuple[str, ...],
        problem_sha256: str,
        limit: int,
    ) -> Iterator[tuple[Proposal, bool]]:
        """Stored candidates with the highest certain speed-up, as they were proposed, and whether
        each won on this very problem; those come first. Each is read only when iterated to."""
        for record, same in self._runs.winners(op_family, dtype, lineage, problem_sha256, limit):
            proposal = node_from_json(self._whole(record)).proposal
            if proposal is not None:
                yield proposal, same

    def untimed(self, lineage: tuple[str, ...], problem_sha256: str, limit: int) -> list[Node]:
        """Right candidates of this very problem that have no figure, the newest first."""
        records = self._runs.untimed(lineage, problem_sha256, limit)
        return [node_from_json(self._whole(record)) for record in records]

    def cancelled(self, run_id: str) -> bool:
        """Whether a user asked for the run to end."""
        return self._runs.find(run_id).cancel_requested

    def cancel(self, run_id: str) -> None:
        """Ask for the run to end. Raises NotFound."""
        self._runs.request_cancel(run_id)
