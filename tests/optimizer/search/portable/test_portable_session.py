"""Contents of a portable session, and its answers."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.runner import fresh_values
from optimizer.search.knowledge import (
    PACKED_EXCERPTS,
    KnowledgeSnapshot,
    ShownExcerpt,
    ShownKnowledge,
    ShownMove,
    ShownSkill,
    SnapshotKnowledge,
    take_snapshot,
)
from optimizer.search.portable.launch import SESSION, _minutes
from optimizer.search.portable.packing import write_session
from retrieval.request import RetrieveRequest

pytestmark = pytest.mark.slow(seconds=10)

FACTS: dict[str, float | str] = {"l1d_size": 32768.0}
TEMPLATE = RetrieveRequest(hardware="x86-64", max_tokens=2_000)
UP = {"role": "tile_m", "direction": "up", "to": None, "factor": 2}


def move(name: str, when: str) -> ShownMove:
    return ShownMove(name, name, UP, None, None, "why", None, when)


class Source:
    """A knowledge base that counts its requests."""

    def __init__(self) -> None:
        self.searched: list[tuple[str | None, str]] = []
        self.acted: list[tuple[str | None, ...]] = []

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        self.searched.append((request.op, request.signals[0]))
        texts = (f"{request.signals[0]} {n}" for n in range(PACKED_EXCERPTS + 2))
        return ShownKnowledge("ret_x", tuple(ShownExcerpt(text, "Manual", text) for text in texts))

    def moves(self, request: RetrieveRequest) -> ShownKnowledge:
        self.acted.append((request.op, *request.signals))
        if not request.signals:
            begun = ShownSkill(f"tuned-{request.op}", "values", "Begin with them.", 0.9)
            return ShownKnowledge("ret_begin", skills=(begun,))
        moves = (
            move("mv_low", "metrics.l2_hit < 0.5"),
            move("mv_softmax", "problem.op == 'softmax'"),
            move("mv_always", ""),
        )
        skill = ShownSkill("wider-tiles", "tiles", "Raise the tile.", 0.5)
        return ShownKnowledge(f"ret_{request.op}", (), moves, (skill,), FACTS)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def snapshot(source: Source) -> KnowledgeSnapshot:
    signals, operators = ("memory_bound", "latency_bound"), ("softmax", "matmul", "softmax")
    return take_snapshot(source.consult, source.moves, signals, operators, TEMPLATE)


def query(*signals: str, **changes: object) -> RetrieveRequest:
    return replace(TEMPLATE, signals=signals, op="softmax", **changes)  # type: ignore[arg-type]


def test_documents_are_searched_once_per_signal(
    source: Source, snapshot: KnowledgeSnapshot
) -> None:
    assert source.searched == [(None, "memory_bound"), (None, "latency_bound")]
    # Two operators, one of two problems: their start, and each signal.
    assert len(source.acted) == 6 and ("softmax",) in source.acted
    assert [len(rows) for rows in snapshot.excerpts.values()] == [PACKED_EXCERPTS, PACKED_EXCERPTS]


def test_skill_is_stored_once(snapshot: KnowledgeSnapshot) -> None:
    assert json.dumps(snapshot.as_json()).count("Raise the tile.") == 1


def test_moves_are_decided_by_measurements_of_session(snapshot: KnowledgeSnapshot) -> None:
    knowledge = SnapshotKnowledge(json.loads(json.dumps(snapshot.as_json())), "softmax", FACTS)
    answer = knowledge.consult(query("unheard_of", "memory_bound", metrics={"l2_hit": 0.9}))
    assert [(move.id, move.applies) for move in answer.moves] == [
        ("mv_softmax", True),
        ("mv_always", None),
    ]
    assert answer.retrieval_id == "ret_softmax" and answer.facts == FACTS
    assert answer.skills[0].text == "Raise the tile."
    assert [excerpt.text for excerpt in answer.excerpts][:1] == ["memory_bound 0"]
    unmeasured = knowledge.consult(query("memory_bound"))
    assert [move.applies for move in unmeasured.moves] == [None, True, None]


def test_session_search_starts_with_same_skills(
    snapshot: KnowledgeSnapshot,
) -> None:
    knowledge = SnapshotKnowledge(json.loads(json.dumps(snapshot.as_json())), "softmax", FACTS)
    (skill,) = knowledge.consult(query()).skills
    assert (skill.name, skill.text) == ("tuned-softmax", "Begin with them.")


@pytest.mark.parametrize(
    ("op", "signals"),
    [("scan", ("memory_bound",)), ("scan", ()), ("softmax", ("unheard_of",))],
)
def test_missing_answer_gives_facts(
    snapshot: KnowledgeSnapshot, op: str, signals: tuple[str, ...]
) -> None:
    knowledge = SnapshotKnowledge(snapshot.as_json(), op, FACTS)
    assert knowledge.consult(query(*signals)) == ShownKnowledge(facts=FACTS)


def test_session_contains_its_code(tmp_path: Path, snapshot: KnowledgeSnapshot) -> None:
    own = tmp_path / "mine.py"
    own.write_text(load_problem(Path("map_id")).source)
    problems = [load_problem(Path("map_id")), load_problem(own)]
    path = write_session(
        tmp_path / "session.zip",
        session_id="session_1",
        goal={},
        target={},
        problems=problems,
        knowledge=snapshot,
        recipes=[],
    )
    with zipfile.ZipFile(path) as packed:
        session = json.loads(packed.read(SESSION))
        names = set(packed.namelist())
    known = {entry["name"]: entry["known_as"] for entry in session["problems"]}
    assert known == {"map_id": "map_id", "mine": str(own)}
    assert {"__main__.py", "problems/map_id/problem.toml", "problems/mine/problem.py"} <= names
    assert "problems/mine/problem.toml" not in names
    assert (
        "optimizer/evaluation/runner/serve.py" in names and "retrieval/data/signals.toml" in names
    )
    assert not [name for name in names if name.startswith(("skills/library", "api/"))]
    kernels = "from optimizer.evaluation.runner import clocks, fresh_values"
    code = f"import sys; sys.path[0] = {str(path)!r}; {kernels}; print(clocks.PTX)"
    code += "; print(*fresh_values.PTX.values())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.count(".visible .entry") == 1 + len(fresh_values.PTX)


@pytest.mark.parametrize(
    ("left", "deadline", "minutes"),
    [(None, None, 1.5), (1.0, None, 1.0), (None, 5.0, 1.5), (None, 1.4, 1.0), (1.2, 0.5, 0.25)],
)
def test_search_ends_before_its_process_is_killed(
    left: float | None, deadline: float | None, minutes: float
) -> None:
    assert _minutes({"goal": {"minutes": 1.5}}, left, deadline) == pytest.approx(minutes)
