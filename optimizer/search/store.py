"""Stored rows of runs, and a store of files. Inserting a node is the checkpoint: a killed run
continues from its last row.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kb.errors import Conflict, NotFound
from kb.plain import from_json
from optimizer.search.goal import Goal
from optimizer.search.records import Node, node_from_json


@dataclass(frozen=True)
class RunRow:
    """A run without its nodes.

    `state` is running, finished, cancelled or failed, and `ended` the reason of the end. Times are
    in seconds. `environment` maps device and toolchains to versions. `asked` holds names, address
    and times of the language models, never an API key. `cluster`, empty for this machine, holds
    address, dashboard and slots of the cluster that measures the candidates, the counts of each
    node, the reasons for excluded nodes, and the number of evaluations that were lost with a node.
    `work` is the present work of a running one: the number of the `candidate`, its `stage`, the
    time `since`, and the other work that keeps the processors `busy`; empty after the end.
    """

    id: str
    problem: str
    problem_sha256: str
    hardware: str
    goal: Goal
    state: str = "running"
    ended: str = ""
    started_at: float = 0.0
    seconds: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    work: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**row, "goal": asdict(self.goal)}


class RunStore(Protocol):
    """Stores runs and their nodes."""

    def begin(self, run: RunRow) -> None:
        """Insert a new run. Raises Conflict if the id is taken."""
        ...

    def run(self, run_id: str) -> RunRow:
        """The run with this id. Raises NotFound."""
        ...

    def add(self, run_id: str, node: Node) -> None:
        """Insert the run's next node; it is durable when this returns."""
        ...

    def nodes(self, run_id: str) -> list[Node]:
        """The nodes of a run in the order of their numbers."""
        ...

    def update(self, run: RunRow) -> None:
        """Store state, ended, seconds and result."""
        ...

    def cancelled(self, run_id: str) -> bool:
        """Whether cancelling the run was requested."""
        ...


class FileStore:
    """A `RunStore` of files, one folder per run: `run.json`, `nodes.jsonl`, and `cancel` once that
    was requested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _of(self, run_id: str) -> Path:
        return self.folder / run_id

    def begin(self, run: RunRow) -> None:
        """Create the run's folder. Raises Conflict if the run exists."""
        folder = self._of(run.id)
        if (folder / "run.json").exists():
            raise Conflict(f"run {run.id} exists", hint="Resume it, or choose another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        self.update(run)

    def run(self, run_id: str) -> RunRow:
        """The run with this id. Raises NotFound."""
        path = self._of(run_id) / "run.json"
        if not path.is_file():
            raise NotFound(f"no run {run_id}", hint="`kernlore runs list` shows those there are.")
        return from_json(RunRow, json.loads(path.read_text(encoding="utf-8")))

    def update(self, run: RunRow) -> None:
        """Replace `run.json` atomically."""
        path = self._of(run.id) / "run.json"
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(run.as_json(), indent=1), encoding="utf-8")
        scratch.replace(path)

    def add(self, run_id: str, node: Node) -> None:
        """Append a node; it is durable when this returns."""
        path = self._of(run_id) / "nodes.jsonl"
        _drop_cut_line(path)
        with path.open("ab") as stream:
            stream.write(json.dumps(node.as_json()).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

    def nodes(self, run_id: str) -> list[Node]:
        """The nodes of a run, without a line that a crash cut short."""
        path = self._of(run_id) / "nodes.jsonl"
        return list(_rows(path)) if path.is_file() else []

    def cancelled(self, run_id: str) -> bool:
        """Whether cancelling the run was requested."""
        return (self._of(run_id) / "cancel").exists()

    def cancel(self, run_id: str) -> None:
        """Request the end of the run. Raises NotFound."""
        self.run(run_id)
        (self._of(run_id) / "cancel").write_text(str(time.time()), encoding="ascii")


def _drop_cut_line(path: Path) -> None:
    """Truncate an incomplete line at the end of the file."""
    if not path.is_file():
        return
    text = path.read_bytes()
    if text and not text.endswith(b"\n"):
        os.truncate(path, text.rfind(b"\n") + 1)


def _rows(path: Path) -> Iterator[Node]:
    lines = path.read_bytes().splitlines(keepends=True)
    for line in lines:
        if line.endswith(b"\n"):
            yield node_from_json(json.loads(line))
