"""Unknown fields get a suggestion at any depth; `hardware` is optional."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from api.operations.evaluations import evaluate_candidate
from api.operations.runs import propose_candidate, start_run
from api.strict_json import validated
from kb.errors import InvalidRequest

EvaluationBody, RunBody, StepBody = (
    operation.model or BaseModel for operation in (evaluate_candidate, start_run, propose_candidate)
)
KERNEL = {"files": {"k.cpp": "x"}, "main": "k.cpp", "language": "cpp"}


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        (RunBody, {"problem": "softmax", "candidates": 3}, "did you mean goal.candidates?"),
        (RunBody, {"problem": "softmax", "hardwares": "h100"}, "did you mean hardware?"),
        (RunBody, {"problem": "softmax", "goal": {"minuts": 3}}, "goal.minuts: unknown field; did"),
        (RunBody, {"problem": "softmax", "goal": {"minuts": 3}}, "did you mean minutes?"),
        (EvaluationBody, {"problem": "x", "candidate": {**KERNEL, "fils": {}}}, "mean files?"),
        (StepBody, {"step": 1, "candidate": {**KERNEL, "parameter": {}}}, "mean parameters?"),
        (RunBody, {"problem": "softmax", "zzzz": 3}, "zzzz: unknown field"),
    ],
)
def test_unknown_field_has_suggestion(
    model: type[BaseModel], body: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        validated(model, body)
    assert expected in error.value.message


def test_evaluation_hardware_defaults_to_this_machine() -> None:
    body = evaluate_candidate.checked({"problem": "x", "candidate": KERNEL})
    assert body["hardware"] == "auto"
