"""OpenEvolve: a folder with an initial program and `evaluator.py`, whose `evaluate(program_path)`
returns metrics by name. Stages of a cascade are not run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kb.errors import InvalidRequest, Unavailable
from kb.yaml_loaders import safe_loader
from optimizer.evaluation.formats.own_evaluators import SECONDS, EvaluatorFormat, defines

# Metrics of public evaluators that say whether a program is right. 1 or true means yes.
CORRECTNESS = (
    *("correct", "is_correct", "correctness", "correctness_score"),
    *("valid", "is_valid", "validity", "passed", "all_passed"),
)


def _is_openevolve(task: Path) -> bool:
    evaluates = defines(task / "evaluator.py", lambda name: name == "evaluate")
    return evaluates and any(task.glob("initial_program.*"))


def _configured_seconds(task: Path) -> float:
    """`evaluator.timeout` of config.yaml, in seconds."""
    import yaml

    try:
        text = (task / "config.yaml").read_text(encoding="utf-8")
        return float(yaml.load(text, safe_loader(text))["evaluator"]["timeout"])
    except (OSError, KeyError, TypeError):  # no file, no such setting, or null
        return SECONDS
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidRequest(
            f"{task / 'config.yaml'} cannot be read: {error}",
            hint="Correct it: `evaluator.timeout` is in seconds.",
        ) from error


def _by_metrics(report: Mapping[str, Any]) -> tuple[str, str]:
    if "unusable" in report:
        raise Unavailable(
            str(report["unusable"]),
            hint=f"Install what it imports for {sys.executable}, or correct the evaluator.",
        )
    if "metrics" not in report:
        return "incorrect", f"the evaluator failed: {report.get('raised')}"
    metrics = report["metrics"]
    found = {name: metrics[name] for name in CORRECTNESS if name in metrics}
    wrong = [f"{name} is {value}" for name, value in found.items() if value not in (True, 1)]
    if wrong:
        return "incorrect", f"by the evaluator's metrics: {', '.join(wrong)}"
    if found:
        return "correct", ""
    if isinstance(error := metrics.get("error"), str) and error:
        return "incorrect", f"the evaluator reports an error: {error}"
    names = ", ".join(map(str, metrics)) or "none"
    return "none", (
        f"no metric says whether the submission is right (metrics: {names}); known names:"
        f" {', '.join(CORRECTNESS)}"
    )


FORMAT = EvaluatorFormat(
    "openevolve",
    task="a folder with initial_program.py and evaluator.py, which defines evaluate",
    recognises=_is_openevolve,
    evaluator=lambda task: task / "evaluator.py",
    place=lambda evaluator, submission: submission.name,
    decide=_by_metrics,
    seconds=_configured_seconds,
)
