"""`kernlore evaluate PROBLEM CANDIDATE`: what a kernel is worth here, why, what to read next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backends import read_settings, send_logs_to_stderr
from api.cli.options import AsJson, DataDir
from api.cli.output import Json, show

if TYPE_CHECKING:
    from api.cli.backends.local import LocalTarget
    from optimizer.evaluation.records import Evaluation

SHOWN_METRICS = 12


def evaluate(
    problem: Annotated[str, typer.Argument(help="A problem file, folder or shipped name.")],
    candidate: Annotated[Path, typer.Argument(help="A kernel file or a bundle folder.")],
    hardware: Annotated[str, typer.Option(help="Hardware id, or auto for what is here.")] = "auto",
    language: Annotated[
        str | None, typer.Option(help="Of the kernel, where it is unclear.")
    ] = None,
    entry: Annotated[str | None, typer.Option(help="Class or function to call.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="Only these cases; repeat.")] = None,
    isolation: Annotated[str, typer.Option(help="auto, namespaces or process.")] = "auto",
    knowledge: Annotated[bool, typer.Option(help="Also say what is known about it.")] = True,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Compile, check and time one candidate; exit code 1 unless it is correct."""
    from api.cli.backends.local import LocalTarget
    from optimizer.evaluation.evaluate import known_about

    send_logs_to_stderr("error")
    local = LocalTarget(read_settings(data_dir))
    try:
        found = _evaluated(local, problem, candidate, hardware, language, entry, case, isolation)
        read = known_about(local.services, found) if knowledge else {}
    finally:
        local.close()
    show({**found.as_json(), "knowledge": read}, as_json, _rendered)
    return 0 if found.correct else 1


def _evaluated(
    local: LocalTarget,
    problem: str,
    candidate: Path,
    hardware: str,
    language: str | None,
    entry: str | None,
    cases: list[str] | None,
    isolation: str,
) -> Evaluation:
    from optimizer.evaluation.evaluate import evaluate_files

    return evaluate_files(
        local.services,
        Path(problem),
        candidate,
        hardware=hardware,
        language=language,
        entry=entry,
        cases=tuple(cases or ()),
        isolation=isolation,
    )


def _rendered(told: Any) -> str:
    """For people: the verdict first."""
    lines = [f"{told['validity']}: {told['message'] or told['problem']} ({told['hardware']})"]
    for timing in told["timings"]:
        lines.append("  " + _timing(timing))
    if told["speedup"]:
        ratio = told["speedup"]
        lines.append(
            f"speed-up {ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] over eager"
        )
    lines += [
        f"  {flag['severity']}: row {flag['defence']}, {flag['message']}" for flag in told["flags"]
    ]
    if told["metrics"]:
        shown = (f"{n}={_short(v)}" for n, v in list(told["metrics"].items())[:SHOWN_METRICS])
        lines.append("  metrics: " + ", ".join(shown))
    lines += [f"  note: {note}" for note in told["notes"]]
    lines += _knowledge(told["knowledge"])
    if told["validity"] == "not_compiled" and told["log"]:
        lines += ["", told["log"][:2000]]
    return "\n".join(lines)


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _timing(timing: Json) -> str:
    if timing["state"] == "simulator":
        return f"{timing['case']}: {timing['cycles']} cycles (simulator)"
    if timing["speedup"] is None:
        return f"{timing['case']}: no figure. {timing['reason']}"
    ratio, took, reference = timing["speedup"], timing["candidate_us"], timing["baseline_us"]
    return (
        f"{timing['case']}: {took:.1f} us, reference {reference:.1f} us,"
        f" {ratio['value']:.3f}x [{ratio['low']:.3f}, {ratio['high']:.3f}]"
    )


def _knowledge(known: Json) -> list[str]:
    if not known:
        return []
    lines = ["", f"known about {', '.join(known['signals']) or 'it'}:"]
    for move in known["moves"]:
        change = move["change"]
        lines.append(
            f"  move {move['name']}: {change['direction']} {change['role']}. {move['why']}"
        )
    read = dict.fromkeys(excerpt["section"] for excerpt in known["excerpts"])
    lines += [f"  read {place}" for place in read]
    return lines
