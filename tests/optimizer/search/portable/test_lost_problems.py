"""Whatever a problem of a session does, it ends with a sentence and the next problem begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optimizer.search.portable.launch import CEILINGS, RESULTS, SESSION, WHY_FAILED, main
from tests.known_device import known_ceilings

pytestmark = pytest.mark.slow(seconds=20)

PROBLEM = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        {forward}


def get_inputs():
    return [torch.ones(64)]


def get_init_inputs():
    return []
"""
PROBLEMS = {
    "crashes": "import os; os.abort()",
    "raises": "raise ValueError('no such thing')",
}


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """An unpacked session: the modules are this repository's."""
    folder = tmp_path / "session"
    folder.mkdir()
    entries = []
    for name, forward in PROBLEMS.items():
        place = folder / "problems" / name
        place.mkdir(parents=True)
        (place / "problem.py").write_text(PROBLEM.format(forward=forward), encoding="utf-8")
        entries.append({"name": name, "path": f"problems/{name}", "known_as": name})
    target = {
        "hardware": "x86-64", "lineage": ["x86-64"], "device": "cpu",
        "arch": {}, "languages": {}, "facts": {},
    }  # fmt: skip
    goal = {"candidates": 1}
    session = {"id": "s1", "goal": goal, "target": target, "recipes": [], "problems": entries}
    knowledge: dict[str, object] = {"excerpts": {}, "answers": {}, "skills": {}, "remedies": {}}
    (folder / SESSION).write_text(json.dumps(session | {"knowledge": knowledge}), encoding="utf-8")
    return folder


def test_a_crash_and_an_error_cost_their_own_problem_only(
    unpacked: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / CEILINGS).write_text(json.dumps(known_ceilings().as_json()), encoding="utf-8")
    assert main(unpacked, ["--out", str(out)]) == 1
    printed = capfd.readouterr().out
    assert "crashes: its process ended by signal SIGABRT" in printed
    assert "raises: " in printed and "ValueError: no such thing" in printed
    assert "no such thing" in (out / f"raises{WHY_FAILED}").read_text(encoding="utf-8")
    assert (out / RESULTS).exists()
