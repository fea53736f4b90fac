"""`kernlore problem` as a person or a program uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.cli.main import main


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_new_then_check_then_break(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["problem", "new", "mine", "--dir", str(tmp_path), "--op", "gelu_like"]) == 0
    assert "not a known operator" in capsys.readouterr().err
    folder = tmp_path / "mine"
    assert main(["problem", "check", str(folder), "--case", "odd", "--json"]) == 0
    assert told(capsys) == {"problem": "mine", "ok": True, "cases": ["odd"], "findings": []}
    source = (folder / "problem.py").read_text(encoding="utf-8")
    (folder / "problem.py").write_text(
        source.replace("x * self.scale", "x * 0 * self.scale"), encoding="utf-8"
    )
    assert main(["problem", "check", str(folder), "--case", "odd"]) == 1
    out = capsys.readouterr().out
    assert "all zeros would pass" in out and "cannot be trusted on odd" in out


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["problem", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(rows) == 24 and {"name", "op", "summary"} <= set(rows[0])
    assert main(["problem", "show", "map_id"]) == 0
    assert "first_id=1099511627776" in capsys.readouterr().out


def test_what_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["problem", "show", "softmx", "--json"]) == 2
    assert "softmax" in str(told(capsys)["hint"])
    assert main(["problem", "check", "softmax", "--case", "od", "--json"]) == 2
    assert "odd" in str(told(capsys)["hint"])
