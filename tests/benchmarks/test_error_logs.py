"""Labelled logs counted as right, wrong or without signal, by tool and by class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.knowledge.error_logs import load_logs, read_logs, report
from kb.errors import InvalidRequest

ROWS: list[dict[str, object]] = [
    {"id": "a", "tool": "ld", "signal": "link_error", "class": "user_mistake"},
    {"id": "b", "tool": "ld", "signal": "timeout", "also": ["unknown"], "class": "run_time_fault"},
    {"id": "c", "tool": "run", "signal": "out_of_memory", "what": "Nothing is printed."},
]
LOGS = {"a": "undefined reference to `f'", "b": "a.cc:3:1: internal compiler error", "c": ""}


def write(folder: Path, rows: list[dict[str, object]]) -> Path:
    (folder / "logs").mkdir()
    for name, text in LOGS.items():
        (folder / "logs" / f"{name}.log").write_text(text)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_each_log_is_right_wrong_or_without_signal(tmp_path: Path) -> None:
    readings = read_logs(load_logs(write(tmp_path, ROWS)))
    assert [reading.outcome for reading in readings] == ["right", "wrong", "nothing"]
    assert [reading.class_is_right for reading in readings][:2] == [True, False]
    assert readings[0].signature == "ld-undefined" and "f'" in readings[0].line
    text = "\n".join(report(readings))
    assert "| ld | 2 | 1 (50 %) | 1 (50 %) | 0 (0 %) | 1 (50 %) |" in text
    assert "c (run): out_of_memory, read as unknown. Nothing is printed." in text
    assert "a (ld)" not in text


@pytest.mark.parametrize("change", [{"signal": "no_such"}, {"id": "absent"}, {"also": ["odd"]}])
def test_invalid_row_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    folder = write(tmp_path, [*ROWS, ROWS[0] | change])
    with pytest.raises(InvalidRequest, match="line 4"):
        load_logs(folder)
