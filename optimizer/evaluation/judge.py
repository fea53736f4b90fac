"""Judges a submission to a task in any known format: one evaluation of the declared shapes, one of
hidden shapes, and a signed record of both.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kb.errors import InvalidRequest
from optimizer.evaluation.evaluate import check_request, evaluate_request, isolation_level
from optimizer.evaluation.formats import AUTO as ANY_FORMAT
from optimizer.evaluation.formats import evaluator_format_of, format_of, kernel_bench
from optimizer.evaluation.formats.own_evaluators import NOTE, EvaluatorFormat
from optimizer.evaluation.formats.task import ForeignTask
from optimizer.evaluation.isolation.levels import Wanted
from optimizer.evaluation.problem.derived import DerivedCases, fitting
from optimizer.evaluation.problem.spec import HELD_OUT
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.targets import AUTO
from retrieval.knowledge_base import KnowledgeBase

SCHEMA, FOLDER_SCHEMA = "kernlore-judgement/1", "kernlore-judgements/1"
OWN_SCHEMA = "kernlore-own-judgement/1"
CORRECT, INCORRECT, REJECTED, NO_VERDICT = 0, 3, 4, 5  # exit codes
MIN_KEY = 16  # bytes


def judge(
    base: KnowledgeBase,
    submission: Path,
    task: Path,
    *,
    format: str = ANY_FORMAT,
    hardware: str = AUTO,
    isolation: str = "auto",
    strict_shapes: bool = False,
    key: bytes | None = None,
) -> tuple[dict[str, Any], str]:
    """The judgement as JSON, signed, and the result in the convention of the task.

    Hidden shapes are the held-out cases of the task, which decide the verdict, or, if it declares
    none, shapes derived from its sizes, which decide it only with `strict_shapes`: a task may be
    about its own shapes alone. Raises InvalidRequest, NotFound, UnknownHardware or Unavailable if
    task and submission cannot be judged here.
    """
    level = isolation_level(isolation)
    if (own := evaluator_format_of(task, format)) is not None:
        if hardware != AUTO or strict_shapes:
            raise InvalidRequest(
                f"--hardware or --strict-shapes with a task of {own.name}",
                hint="Leave it out: the task's own evaluator chooses the device and the shapes.",
            )
        return _judge_own(own, submission, task, level, key)
    form = format_of(task, format)
    read = form.read(task, submission)
    settings = EvaluationSettings(isolation=level)
    cases = tuple(case.name for case in read.problem.cases)
    request = check_request(base, read.problem, read.bundle, hardware=hardware, cases=cases)
    evaluation = evaluate_request(base, request, settings)
    hidden = _declared_hidden(read, evaluation)
    if hidden is None:
        derived = _derived(read) if evaluation.correct else DerivedCases((), "")
        hidden = {"shapes": [], "origin": "none", "note": derived.note.removeprefix(HELD_OUT)}
        if derived.cases:
            problem = replace(read.problem, cases=derived.cases)
            other = replace(request, problem=problem, cases=derived.cases)
            found = evaluate_request(base, other, settings)
            hidden |= {
                "shapes": [case.name for case in derived.cases],
                "origin": "derived",
                "validity": found.validity,
                "message": found.message,
            }
    verdict = _verdict(evaluation, hidden, strict_shapes)
    figures = evaluation.verdict.metrics
    record = {
        "schema": SCHEMA,
        "verdict": verdict,
        "message": _message(evaluation, hidden, verdict),
        "measured": evaluation.timing in ("measured", "simulator"),
        "task": {
            "name": read.problem.name,
            "format": form.name,
            "sha256": read.problem.sha256,
            "shapes": [case.name for case in read.problem.searched],
        },
        "submission": {
            "file": submission.name,
            "language": read.bundle.language,
            "sha256": read.bundle.sha256,
        },
        "hidden": hidden,
        "roofline": {"case": evaluation.verdict.case, "percent": figures.get("roofline_pct")},
        "judged_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "evaluation": evaluation.as_json(),
    }
    return signed(record, key), read.write_back(evaluation)


def _judge_own(
    form: EvaluatorFormat, submission: Path, task: Path, isolation: Wanted, key: bytes | None
) -> tuple[dict[str, Any], str]:
    """As `judge`, by the task's own evaluator. The record has no `evaluation`: `report` is the
    report of that evaluator, and `note` lists omitted checks."""
    result = form.evaluate(task, submission, isolation)
    record = {
        "schema": OWN_SCHEMA,
        "verdict": result.verdict,
        "message": result.message,
        "note": NOTE,
        "task": {
            "name": task.resolve().stem,
            "format": form.name,
            "evaluator": result.evaluator.name,
            "sha256": hashlib.sha256(result.evaluator.read_bytes()).hexdigest(),
        },
        "submission": {"file": submission.name, "sha256": result.submitted},
        "judged_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "report": result.report,
        "isolation": {
            "level": result.level,
            "network": result.level == "process",
            "applied": result.applied,
        },
        "seconds": result.seconds,
        "log": result.log,
    }
    return signed(record, key), form.write_back(result.report).rstrip() + "\n"


def judge_folder(
    base: KnowledgeBase,
    submissions: Path,
    tasks: Path,
    *,
    hardware: str = AUTO,
    isolation: str = "auto",
    strict_shapes: bool = False,
    key: bytes | None = None,
) -> tuple[dict[str, Any], str]:
    """As `judge`, for folders of tasks and submissions in the convention of KernelBench. The
    verdict is the worst of all, `incorrect` if a task has no submission."""
    pairs, missing = kernel_bench.pairs_of(tasks, submissions)
    records, texts = [], []
    for pair in pairs:
        record, text = judge(
            base,
            pair.submission,
            pair.task,
            format=kernel_bench.FORMAT.name,
            hardware=hardware,
            isolation=isolation,
            strict_shapes=strict_shapes,
        )
        records.append(record)
        texts.append((pair, text))
    verdicts = {record["verdict"] for record in records} | ({"incorrect"} if missing else set())
    worst = next(v for v in ("rejected", "incorrect", "none", "correct") if v in verdicts)
    correct = sum(record["verdict"] == "correct" for record in records)
    record = {
        "schema": FOLDER_SCHEMA,
        "verdict": worst,
        "message": f"{correct} of {len(records)} submissions are correct",
        "without_submission": missing,
        "judgements": records,
    }
    return signed(record, key), kernel_bench.write_back_all(texts)


def exit_code(record: Mapping[str, Any]) -> int:
    """The exit code of a verdict."""
    codes = {"correct": CORRECT, "incorrect": INCORRECT, "rejected": REJECTED}
    return codes.get(record["verdict"], NO_VERDICT)


def _declared_hidden(read: ForeignTask, evaluation: Evaluation) -> dict[str, Any] | None:
    names = [case.name for case in read.problem.held_out]
    if not names:
        return None
    return {
        "shapes": names,
        "origin": "declared",
        "validity": evaluation.validity,
        "message": "",
        "note": "",
    }


def _derived(read: ForeignTask) -> DerivedCases:
    timed = next((case for case in read.problem.searched if case.timed), None)
    return fitting(read.problem, timed or read.problem.searched[0])


def _verdict(evaluation: Evaluation, hidden: Mapping[str, Any], strict_shapes: bool) -> str:
    """correct, incorrect, rejected or none."""
    if evaluation.validity == "not_run":
        return "none"
    if evaluation.validity == "rejected" or hidden.get("validity") == "rejected":
        return "rejected"
    general = hidden.get("validity", "correct") == "correct"
    return "correct" if evaluation.correct and (general or not strict_shapes) else "incorrect"


def _message(evaluation: Evaluation, hidden: Mapping[str, Any], verdict: str) -> str:
    if evaluation.correct and hidden.get("validity", "correct") != "correct":
        held = f"on shapes that the task does not show: {hidden['message']}"
        return held if verdict != "correct" else f"correct on the shapes of the task, but {held}"
    if evaluation.correct and evaluation.timing in ("repeat", "none"):
        reasons = {timing.reason for timing in evaluation.timings if timing.reason}
        return f"correct, without a speed-up: {'; '.join(sorted(reasons)) or 'nothing was timed'}"
    return evaluation.message


# -- signatures


def signed(record: Mapping[str, Any], key: bytes | None) -> dict[str, Any]:
    stored = json.loads(json.dumps(record))  # as a reader of the file gets its values
    return {**stored, "signature": signature(stored, key)}


def read_key(path: Path) -> bytes:
    """The key in a file, without surrounding white space. Raises InvalidRequest for a short one."""
    key = path.read_bytes().strip()
    if len(key) < MIN_KEY:
        raise InvalidRequest(
            f"the key in {path} has {len(key)} bytes",
            hint=f"Use {MIN_KEY} or more, for example `openssl rand -hex 32 > {path}`.",
        )
    return key


def signature(record: Mapping[str, Any], key: bytes | None) -> dict[str, str]:
    """HMAC-SHA256 of the record without its signature; a plain SHA-256 without a key. Both are of
    its JSON with sorted keys, no white space, and non-ASCII characters escaped."""
    fields = {name: value for name, value in record.items() if name != "signature"}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    if key is None:
        return {"algorithm": "SHA-256", "value": hashlib.sha256(text).hexdigest()}
    return {
        "algorithm": "HMAC-SHA256",
        "key": hashlib.sha256(key).hexdigest()[:16],
        "value": hmac.new(key, text, hashlib.sha256).hexdigest(),
    }


def verify(path: Path, key: bytes | None) -> dict[str, Any]:
    """The judgement in a file, whose signature is by this key. Raises InvalidRequest if it is not
    a judgement, or if it or its signature was changed."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        given = dict(record["signature"])
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"{path} is not a judgement", hint="Give a file that `kernlore judge --output` wrote."
        ) from error
    expected = signature(record, key)
    if given.get("algorithm") != expected["algorithm"]:
        raise InvalidRequest(
            f"{path} is signed with {given.get('algorithm')}, not with {expected['algorithm']}",
            hint="Give the key of the judge as --sign-key.",
        )
    if not hmac.compare_digest(str(given.get("value")), expected["value"]):
        raise InvalidRequest(
            f"the signature of {path} does not match",
            hint="The file was changed, or it was signed with another key.",
        )
    return dict(record)
