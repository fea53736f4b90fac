"""The record of answers, which shows whether a change of the code changed an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.retrieval.same_answers import (
    BUILTIN_GOLD,
    COUNTS,
    REPEATED,
    differences,
    main,
    requests_for,
)

CHIPS = [
    {"id": "h100", "languages": ["triton", "cuda"]},
    {"id": "trainium2", "languages": ["nki"]},
    {"id": "riscv_vector", "languages": []},
]
SIGNALS = ["memory_bound", "bank_conflict", "compile_error", "tail_effect"]


def test_requests_are_deterministic_and_of_every_kind() -> None:
    requests = requests_for(CHIPS, SIGNALS, BUILTIN_GOLD)
    assert requests == requests_for(CHIPS, SIGNALS, BUILTIN_GOLD)
    kinds = [kind for kind, _ in requests]
    assert {*COUNTS, "repeated"} == set(kinds)
    assert kinds.count("repeated") == REPEATED
    distinct = [json.dumps(body) for kind, body in requests if kind != "repeated"]
    assert len(distinct) == len(set(distinct))


def test_difference_has_its_path_and_first_differing_text() -> None:
    left = {"excerpts": [{"text": "x" * 60 + "one", "score": 1.0}], "hints": []}
    right = {"excerpts": [{"text": "x" * 60 + "two", "score": 1.0}], "hints": ["new"]}
    assert list(differences(left, right)) == [
        ("excerpts[0].text", "x" * 40 + "one", "x" * 40 + "two"),
        ("hints.length", "0", "1"),
    ]


def test_compare_exits_with_1_if_answer_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"kind": "signal", "body": {"signal": signal}, "status": 200, "answer": {"context": "a"}}
        for signal in SIGNALS
    ]
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    before.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["compare", str(before), str(before)])
    assert "4 of 4 answers are the same." in capsys.readouterr().out
    rows[2]["answer"] = {"context": "b"}
    after.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(before), str(after)])
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert "3 of 4 answers are the same." in printed
    assert "line 3, signal" in printed and "differs in 1: answer.context" in printed


def test_records_of_different_requests_are_refused(tmp_path: Path) -> None:
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    row = {"kind": "signal", "status": 200, "answer": {}}
    before.write_text(json.dumps(row | {"body": {"signal": "memory_bound"}}) + "\n")
    after.write_text(json.dumps(row | {"body": {"signal": "tail_effect"}}) + "\n")
    with pytest.raises(SystemExit, match="different requests"):
        main(["compare", str(before), str(after)])
