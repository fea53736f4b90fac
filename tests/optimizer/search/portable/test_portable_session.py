"""Contents of a portable session, and its answers."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import asdict, replace
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
from optimizer.search.portable.launch import (
    CEILINGS,
    NOT_BEGUN,
    OUTCOMES,
    RESULTS,
    SESSION,
    WHY_FAILED,
    _minutes,
    main,
)
from optimizer.search.runs.sessions import write_session
from retrieval.request import RetrieveRequest
from tests.known_device import known_ceilings
from tests.optimizer.search.portable.bare_machine import required, top_level

pytestmark = pytest.mark.slow(seconds=25)

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
    assert json.dumps(asdict(snapshot)).count("Raise the tile.") == 1


def test_moves_are_decided_by_measurements_of_session(snapshot: KnowledgeSnapshot) -> None:
    knowledge = SnapshotKnowledge(json.loads(json.dumps(asdict(snapshot))), "softmax", FACTS)
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


def test_session_search_starts_with_same_skills(snapshot: KnowledgeSnapshot) -> None:
    knowledge = SnapshotKnowledge(json.loads(json.dumps(asdict(snapshot))), "softmax", FACTS)
    (skill,) = knowledge.consult(query()).skills
    assert (skill.name, skill.text) == ("tuned-softmax", "Begin with them.")


@pytest.mark.parametrize(
    ("op", "signals"), [("scan", ("memory_bound",)), ("scan", ()), ("softmax", ("unheard_of",))]
)
def test_missing_answer_gives_facts(
    snapshot: KnowledgeSnapshot, op: str, signals: tuple[str, ...]
) -> None:
    knowledge = SnapshotKnowledge(asdict(snapshot), op, FACTS)
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


# -- any problem of a session ends with a message, and the next one starts


PROBLEM = """\
import os
import sys

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {forward}


def get_inputs():
    return [{input}]
"""
FLOATS = "torch.randn(8, 64)"
# name -> (statement of __init__, of forward, input, message)
PROBLEMS = {
    "aborts": ("pass", "os.abort()", FLOATS, "signal SIGABRT"),
    "leaves": ("pass", "os._exit(0)", FLOATS, "exit code 0 before its search was over"),
    "exits": ("pass", "os._exit(7)", FLOATS, "exit code 7"),
    "quits": ("pass", "sys.exit(7)", FLOATS, "Model.forward ends the process"),
    "raises": ("pass", "raise ValueError('no such thing')", FLOATS, "ValueError: no such thing"),
    "hangs": ("pass", "exec('while True: pass')", FLOATS, "killed after 3 seconds"),
    "bomb": ("pass", "return x.repeat(1 << 34)", "torch.randn(64)", "more memory than there is"),
    "objects": ("pass", "return {'a': object()}", FLOATS, "output 0 is object"),
    "complex": ("pass", "return x * 2", "torch.randn(4, dtype=torch.complex64)", "complex64"),
    "nothing": ("pass", "return x * 2", "torch.randn(0, 64)", "no elements"),
    "random": ("pass", "return x + torch.randn(x.shape)", FLOATS, "next call"),
    "ints": ("pass", "return x // 3", "torch.randint(0, 99, (8, 64))", ""),
    "tuples": ("pass", "return x.exp(), (x.sum(-1) > 0)", FLOATS, ""),
    "dicts": ("pass", "return {'a': x.sin(), 'b': x.argmax(-1)}", FLOATS, ""),
    "scalar": ("pass", "return x.square().mean()", FLOATS, ""),
    "buffers": (
        "self.register_buffer('seen', torch.zeros(()))",
        "self.seen += 1; return x + self.seen",
        FLOATS,
        "",
    ),
    "trains": ("self.norm = torch.nn.BatchNorm1d(64)", "return self.norm.train()(x)", FLOATS, ""),
}
FAILING = {name for name, (*_, words) in PROBLEMS.items() if words}


def _session(folder: Path, names: tuple[str, ...]) -> Path:
    """An unpacked session with the modules of this repository."""
    folder.mkdir()
    entries = []
    for name in names:
        init, forward, value, _ = PROBLEMS[name]
        place = folder / "problems" / name
        place.mkdir(parents=True)
        text = PROBLEM.format(init=init, forward=forward, input=value)
        (place / "problem.py").write_text(text, encoding="utf-8")
        entries.append({"name": name, "path": f"problems/{name}", "known_as": name})
    target = {
        "hardware": "x86-64", "lineage": ["x86-64"], "device": "cpu",
        "arch": {}, "languages": {}, "facts": {},
    }  # fmt: skip
    session: dict[str, object] = {"id": "s1"}
    session |= {"goal": {"candidates": 1, "language": "cpp"}, "target": target}
    knowledge: dict[str, object] = {"excerpts": {}, "answers": {}, "skills": {}, "remedies": {}}
    session |= {"recipes": [], "problems": entries, "knowledge": knowledge}
    (folder / SESSION).write_text(json.dumps(session), encoding="utf-8")
    return folder


def _out(place: Path) -> Path:
    place.mkdir()
    (place / CEILINGS).write_text(json.dumps(known_ceilings().as_json()), encoding="utf-8")
    return place


def test_every_problem_ends_with_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = tuple(name for name in PROBLEMS if name != "hangs")
    folder, out = _session(tmp_path / "session", names), _out(tmp_path / "out")
    assert main(folder, ["--out", str(out), "--memory", "8"]) == 1
    printed = capfd.readouterr().out
    reported = json.loads((out / OUTCOMES).read_text(encoding="utf-8"))
    assert tuple(reported) == names
    for name in names:
        words = PROBLEMS[name][-1]
        assert words in reported[name] and len(reported[name]) > 20, (name, reported[name])
        assert f"{name}: {reported[name]}" in printed
        row = json.loads((out / f"s1_{name}" / "run.json").read_text(encoding="utf-8"))
        assert (row["state"] == "failed") == (name in FAILING), (name, row["ended"])
        assert "None" not in reported[name] and "no gain" not in reported[name], reported[name]
    assert "no such thing" in (out / f"raises{WHY_FAILED}").read_text(encoding="utf-8")
    assert (out / RESULTS).exists()


def test_hanging_problem_is_killed(tmp_path: Path) -> None:
    folder, out = _session(tmp_path / "session", ("hangs",)), _out(tmp_path / "out")
    assert main(folder, ["--out", str(out), "--deadline", "0.05"]) == 1
    reported = json.loads((out / OUTCOMES).read_text(encoding="utf-8"))
    assert PROBLEMS["hangs"][-1] in reported["hangs"]


def test_problem_not_started_is_reported(tmp_path: Path) -> None:
    folder, out = _session(tmp_path / "session", ("ints", "dicts")), _out(tmp_path / "out")
    assert main(folder, ["--out", str(out), "--minutes", "0.0000001"]) == 0
    reported = json.loads((out / OUTCOMES).read_text(encoding="utf-8"))
    assert reported == {"ints": NOT_BEGUN, "dicts": NOT_BEGUN}


def test_unknown_problem_name_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, out = _session(tmp_path / "session", ("ints", "dicts")), tmp_path / "out"
    assert main(folder, ["--out", str(out), "--only", "ints", "floats"]) == 2
    assert "no problem 'floats' in this session; it holds dicts, ints" in capfd.readouterr().err
    assert not out.exists()


# -- allowed imports, enforced by an importer that refuses others

ROOT = Path(__file__).resolve().parents[4]
OWN = {"kb", "retrieval", "skills", "optimizer", "tests"}
REFUSING = """
import json, sys
from importlib.abc import MetaPathFinder

class Refusing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in allowed or top in sys.stdlib_module_names or top.startswith("_"):
            return None
        raise ModuleNotFoundError(f"refused: {name}", name=name)

allowed = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Refusing())
"""
EVERY_MODULE = """
import importlib, pkgutil
import optimizer.search
for module in pkgutil.iter_modules(optimizer.search.__path__, "optimizer.search."):
    if not module.ispkg:
        importlib.import_module(module.name)
"""
SEARCH = """
from pathlib import Path
import optimizer.search.synthesizers.external
import optimizer.search.synthesizers.recipe.synthesizer
from optimizer.search.goal import Goal
from optimizer.search.knowledge import SnapshotKnowledge
from optimizer.search.loop import Search
from optimizer.search.store import FileStore, RunRow
from tests.optimizer.search.landscape import HARDWARE, VIEW, Steps, TableBench

class Silent:
    def node(self, node, tree): ...
    def asking(self, asking): ...
    def log(self, message): ...

store = FileStore(Path(sys.argv[2]))
run = RunRow("run_bare", "hill", "sha", "x86-64", Goal(candidates=9))
store.begin(run)
knowledge = SnapshotKnowledge({}, "softmax", HARDWARE.facts)
search = Search(run, store, TableBench(), [Steps()], knowledge, VIEW, HARDWARE, Silent())
ended = search.run()
print(ended.state, search.tree.best.proposal.values["x"])
"""


def refused(code: str, allowed: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", REFUSING + code, json.dumps(sorted(allowed)), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("code", [EVERY_MODULE, SEARCH], ids=["every module", "a search"])
def test_core_needs_only_standard_library(code: str, tmp_path: Path) -> None:
    done = refused(code, OWN, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("" if code is EVERY_MODULE else "finished 7\n")


def test_session_needs_torch_and_its_requirements() -> None:
    packages = top_level(required())
    assert "torch" in packages and not packages & {
        "numpy",
        "pydantic",
        "sqlalchemy",
        "typer",
        "httpx",
    }
    done = refused("import optimizer.search.portable.session\n", OWN | packages)
    assert done.returncode == 0, done.stderr


def test_session_starter_needs_no_package() -> None:
    """It waits for processes that import torch themselves."""
    done = refused("import optimizer.search.portable.launch\n", {"kb", "optimizer"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module", ["optimizer.search.bench.local", "optimizer.search.runs.run_store"]
)
def test_importer_refuses_other_packages(module: str) -> None:
    """Check of the tests above: imports outside the core fail."""
    done = refused(f"import {module}\n", OWN)
    assert done.returncode != 0 and "refused: " in done.stderr
