"""Reads the JSON lines that `kernlore runs export` writes, as something that somebody tells: its
rewards are claims. The reference's line has no action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kb.errors import InvalidRequest
from optimizer.evaluation.bundle import Bundle
from optimizer.search.output.report import FORMAT
from skills.trajectories.external_trajectory import ExternalStep, about_step

_HINT = "Send the lines of trajectory.jsonl as `kernlore runs export` wrote them, all of one run."


@dataclass(frozen=True)
class ExportedRun:
    """The lines of an exported run. `problem_sha256` says which problem it was; its text is not in
    the lines."""

    run: str
    problem_sha256: str
    hardware: str
    steps: tuple[ExternalStep, ...]


def read_lines(rows: Sequence[Any]) -> ExportedRun:
    """The run of its exported lines. Raises InvalidRequest, naming the line."""
    checked = [_row(number, row) for number, row in enumerate(rows, 1)]
    if not checked:
        raise InvalidRequest("there are no lines", hint=_HINT)
    first = checked[0]
    for number, row in enumerate(checked, 1):
        if row["node"] != number - 1:
            raise _wrong(number, f"node {row['node']!r} where {number - 1} belongs")
        for name in ("run", "problem_sha256", "hardware"):
            if row[name] != first[name]:
                raise _wrong(number, f"another {name} than the first line")
    steps = tuple(_step(number, row) for number, row in enumerate(checked, 1) if row["node"])
    return ExportedRun(first["run"], first["problem_sha256"], first["hardware"], steps)


def _row(number: int, row: Any) -> Mapping[str, Any]:
    if not isinstance(row, dict) or row.get("format") != FORMAT:
        raise _wrong(number, f"no line of format {FORMAT}")
    for name in ("run", "problem_sha256", "hardware"):
        if not isinstance(row.get(name), str):
            raise _wrong(number, f"`{name}` is no text")
    if not isinstance(row.get("node"), int):
        raise _wrong(number, "`node` is no number")
    return row


def _step(number: int, row: Mapping[str, Any]) -> ExternalStep:
    action = row.get("action")
    if not isinstance(action, dict):
        raise _wrong(number, "a candidate without an action")
    parent = row.get("parent")
    if not isinstance(parent, int) or isinstance(parent, bool):
        raise _wrong(number, "`parent` is no number")
    claims = {*_texts(number, action, "claimed"), *_texts(number, action, "attributed")}
    return ExternalStep(
        number=row["node"],
        parent=parent,
        bundle=_bundle(number, action),
        plan=_text(number, action, "plan"),
        claimed=tuple(sorted(claims)),
        claimed_speedup=_claim(row.get("reward")),
        cases=tuple(_texts(number, action, "cases")),
    )


def _bundle(number: int, action: Mapping[str, Any]) -> Bundle:
    """As it was proposed: with the values as parameters where that gives the bundle's hash."""
    files = action.get("source")
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise _wrong(number, "`action.source` is no object from name to text")
    main, language, entry = (_text(number, action, n) for n in ("main", "language", "entry"))
    candidates: list[Any] = [action.get("parameters"), action.get("values"), {}]
    try:
        for parameters in (p for p in candidates if isinstance(p, dict)):
            bundle = Bundle(files, main, language, entry, parameters)
            if bundle.sha256 == action.get("bundle_sha256"):
                return bundle
    except InvalidRequest as error:
        raise about_step(number - 1, error) from None
    raise _wrong(number, "its source and its `bundle_sha256` do not belong together")


def _claim(reward: Any) -> float | None:
    speedup = reward.get("speedup") if isinstance(reward, dict) else None
    value = speedup.get("value") if isinstance(speedup, dict) else None
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if usable and value is not None else None


def _text(number: int, row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise _wrong(number, f"`action.{name}` is no text")
    return value


def _texts(number: int, row: Mapping[str, Any], name: str) -> list[str]:
    value = row.get(name, [])
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise _wrong(number, f"`action.{name}` is no list of texts")
    return value


def _wrong(number: int, what: str) -> InvalidRequest:
    return InvalidRequest(f"line {number}: {what}", hint=_HINT)
