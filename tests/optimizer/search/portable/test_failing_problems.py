"""Any problem of a session ends with a message, and the next one starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optimizer.search.portable.launch import (
    CEILINGS,
    NOT_BEGUN,
    OUTCOMES,
    RESULTS,
    SESSION,
    WHY_FAILED,
    main,
)
from tests.known_device import known_ceilings

pytestmark = pytest.mark.slow(seconds=10)

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
    "trains": (
        "self.norm = torch.nn.BatchNorm1d(64)",
        "return self.norm.train()(x)",
        FLOATS,
        "",
    ),
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
