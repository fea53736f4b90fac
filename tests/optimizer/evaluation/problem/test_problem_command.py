"""`kernlore problem` as a person or a program uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.cli.main import main
from tests.problem_files import model_text


def printed_json(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_new_then_check_then_break(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["problem", "new", "mine", "--dir", str(tmp_path), "--op", "gelu_like"]) == 0
    assert "not a known operator" in capsys.readouterr().err
    folder = tmp_path / "mine"
    assert main(["problem", "check", str(folder), "--case", "odd", "--json"]) == 0
    assert printed_json(capsys) == {"problem": "mine", "ok": True, "cases": ["odd"], "findings": []}
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


def test_unknown_names_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["problem", "show", "softmx", "--json"]) == 2
    assert "softmax" in str(printed_json(capsys)["hint"])
    assert main(["problem", "check", "softmax", "--case", "od", "--json"]) == 2
    assert "odd" in str(printed_json(capsys)["hint"])


PROBLEM = model_text("{body}", "torch.randn(256, 256)")


@pytest.mark.slow
def test_every_problem_of_a_folder_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "right.py": PROBLEM.format(body="2 * x + 1"),
        "zero.py": PROBLEM.format(body="x * 0"),
        "raises.py": PROBLEM.format(body="x.no_such_method()"),
        "broken.py": "def get_inputs(:\n",
        "half.py": "class Model:\n    pass\n",
        "kernel.py": "class ModelNew:\n    pass\n\n\ndef get_inputs():\n    return []\n",
        "helper.py": "WIDTH = 3\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert main(["problem", "check", str(tmp_path), "--json"]) == 1
    answer = printed_json(capsys)
    rows = {row["problem"]: row for row in answer["problems"]}  # type: ignore[attr-defined]
    assert {name: row["ok"] for name, row in rows.items()} == {
        "broken": False,
        "half": False,
        "raises": False,
        "right": True,
        "zero": False,
    }
    assert "does not define get_inputs" in rows["half"]["error"]["message"]
    assert "no_such_method" in rows["raises"]["error"]["message"]
    assert rows["zero"]["error"] is None and rows["zero"]["findings"]

    for name in ("raises", "broken", "half"):
        (tmp_path / f"{name}.py").unlink()
    assert main(["problem", "check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "zero cannot be trusted on declared" in out
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()[-4:-2]}
    assert lines["right"] == ["ok", "1", str(len(rows["right"]["findings"]))]
    assert lines["zero"][:2] == ["invalid", "1"]
    assert out.splitlines()[-1] == "2 problems, 1 of them fail"

    (tmp_path / "zero.py").unlink()  # one problem is checked as if it were named
    assert main(["problem", "check", str(tmp_path), "--case", "declared"]) == 0
    assert "right can be trusted on declared" in capsys.readouterr().out
