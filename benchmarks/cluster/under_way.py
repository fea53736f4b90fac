"""Searches that are under way while a part is killed: one that a replica carries out, and one that
a command carries out on the Ray cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.cluster.contents import Balancer
from benchmarks.cluster.parts import Installation
from kb.errors import Unavailable

SETTLE_SECONDS = 900.0
LOOK_SECONDS = 0.2
PROBLEM = "map_id"
GOAL = {"language": "cpp", "candidates": 1, "knowledge": False}
ON_RAY = ("--language", "cpp", "--candidates", "3")
RUNNING = ("starting", "running")


class Call:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], str]) -> None:
        self._result: str | BaseException = "never ended"
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # raised again where it is asked for
            self._result = error

    @property
    def over(self) -> bool:
        """Whether it has returned or raised."""
        return not self._thread.is_alive()

    def result(self) -> str:
        """What it returned or raised."""
        self._thread.join()
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def wait_until(done: Callable[[], bool], what: str) -> None:
    """Returns once `done` is true. Raises Unavailable."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise Unavailable(f"waited in vain: {what}", hint="Read the logs of the replicas.")
        time.sleep(LOOK_SECONDS)


class Searches:
    """Begins searches, and says how they ended."""

    def __init__(self, cluster: Installation, balancer: Balancer) -> None:
        self._cluster, self._balancer = cluster, balancer

    def by_replica(self) -> Search:
        """A run of the first replica that measures its first candidate."""
        body = {"problem": PROBLEM, "goal": GOAL}
        sent = self._cluster.replicas[0].client.post("/runs", json=body)
        run_id = str(sent.raise_for_status().json()["id"])
        wait_until(lambda: bool(self.nodes(run_id)), f"{run_id} begins")
        return Search(self, run_id, None)

    def on_ray(self) -> Search:
        """A search by command whose candidates are being evaluated on the nodes."""
        before = self._runs()
        call = Call(lambda: str(self._cluster.optimize(PROBLEM, *ON_RAY)["ended"]))
        new: set[str] = set()

        def evaluates() -> bool:
            if call.over:  # before it was seen: raises where it failed
                call.result()
            new.update(self._runs() - before)
            return any(self._evaluating(run_id) for run_id in new)

        wait_until(evaluates, "a search on the Ray cluster begins")
        return Search(self, new.pop(), call)

    def resume(self, run_id: str, on_ray: bool) -> None:
        """Go on with a run that nobody works on any more."""
        options = ("--ray", self._cluster.ray) if on_ray else ()
        self._cluster.command("runs", "resume", run_id, *options)

    def row(self, run_id: str) -> dict[str, Any]:
        """The run as the service shows it."""
        answer = self._balancer.insist("GET", f"/runs/{run_id}").json()
        return dict(answer)

    def nodes(self, run_id: str) -> list[Any]:
        """The nodes of its tree that are stored."""
        answer = self._balancer.insist("GET", f"/runs/{run_id}/tree")
        return list(answer.json()["nodes"]) if answer.status_code == 200 else []

    def _runs(self) -> set[str]:
        return {run["id"] for run in self._balancer.insist("GET", "/runs").json()["runs"]}

    def _evaluating(self, run_id: str) -> bool:
        """Whether nodes of the cluster are at its candidates; the first node is the reference."""
        at = (self.row(run_id).get("cluster") or {}).get("nodes", {})
        return bool(self.nodes(run_id)) and any(node["evaluating"] for node in at.values())


class Search:
    """One search: what it has stored by now, and the command that carries it out, if one does."""

    def __init__(self, searches: Searches, run_id: str, command: Call | None) -> None:
        self._searches, self._id, self._command = searches, run_id, command
        self._stored = searches.nodes(run_id)

    def end(self, wrong: list[str]) -> str:
        """How it ended, continued where nobody works on it any more. What it has lost is added to
        `wrong`."""
        searches, run_id, how = self._searches, self._id, "went on"
        if self._command is not None:
            try:
                self._command.result()
            except Unavailable:
                how = "the command ended"
        else:
            wait_until(lambda: _is_over(searches.row(run_id)), f"{run_id} ends")
        if searches.row(run_id)["state"] != "finished":
            how = f"resumed at node {len(searches.nodes(run_id))}"
            searches.resume(run_id, self._command is not None)
        row, nodes = searches.row(run_id), searches.nodes(run_id)
        if row["state"] != "finished" or nodes[: len(self._stored)] != self._stored:
            wrong.append(f"{run_id} is {row['state']}, with other nodes than before")
        lost = (row.get("cluster") or {}).get("lost")
        again = "" if lost is None else f", {lost} evaluations begun again"
        return f"{how}{again}, finished with {len(nodes)} nodes"


def _is_over(row: Mapping[str, Any]) -> bool:
    """Whether nobody works on a run any more; its note says so where its process was killed."""
    return row["state"] not in RUNNING or "note" in row
