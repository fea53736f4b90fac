"""`kernlore evaluate PROBLEM CANDIDATE`: is a kernel correct, how fast is it, what to read next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.backends import opened
from api.cli.options import AsJson, DataDir, DeviceHardware, ProblemPath
from api.cli.output import Json, show

SHOWN_METRICS = 12


def evaluate(
    problem: ProblemPath,
    candidate: Annotated[
        Path, typer.Argument(help="A kernel file, or a folder with several files.")
    ],
    hardware: DeviceHardware = "auto",
    language: Annotated[
        str | None, typer.Option(help="Language of the kernel, where it is unclear.")
    ] = None,
    entry: Annotated[
        str | None, typer.Option(help="Class or function of the kernel to call.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Evaluate only this case; repeat for more.")
    ] = None,
    isolation: Annotated[
        str,
        typer.Option(
            help="How the kernel is isolated: auto, namespaces, container (podman or docker) or"
            " process. `kernlore doctor` says what this machine has."
        ),
    ] = "auto",
    knowledge: Annotated[
        bool, typer.Option(help="Also look up what is known about the result.")
    ] = True,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Compile, check and time one candidate kernel. Exits 1 unless it is correct."""
    with opened(data_dir) as local:
        from optimizer.evaluation.evaluate import evaluate_files, knowledge_about

        evaluation = evaluate_files(
            local.services,
            Path(problem),
            candidate,
            hardware=hardware,
            language=language,
            entry=entry,
            cases=tuple(case or ()),
            isolation=isolation,
        )
        known = knowledge_about(local.services, evaluation) if knowledge else {}
    show({**evaluation.as_json(), "knowledge": known}, as_json, _rendered)
    return 0 if evaluation.correct else 1


def _rendered(result: Any) -> str:
    """The verdict first, then timings, flags, metrics and what is known."""
    lines = [
        f"{result['validity']}: {result['message'] or result['problem']} ({result['hardware']})"
    ]
    for timing in result["timings"]:
        lines.append("  " + _timing(timing))
    if result["speedup"]:
        ratio = result["speedup"]
        lines.append(
            f"speed-up {ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] over eager"
        )
    lines += [
        f"  {flag['severity']}: row {flag['defence']}, {flag['message']}"
        for flag in result["flags"]
    ]
    if result["metrics"]:
        shown = (f"{n}={_short(v)}" for n, v in list(result["metrics"].items())[:SHOWN_METRICS])
        lines.append("  metrics: " + ", ".join(shown))
    lines += [f"  note: {note}" for note in result["notes"]]
    lines += _knowledge(result["knowledge"])
    if result["validity"] == "not_compiled" and result["log"]:
        lines += ["", result["log"][:2000]]
    return "\n".join(lines)


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _timing(timing: Json) -> str:
    from optimizer.evaluation.records import rough_ratio, rough_times

    if timing["state"] == "simulator":
        return f"{timing['case']}: {timing['cycles']} cycles (simulator)"
    if timing["speedup"] is None and timing["state"] == "measured":
        calls = timing["calls"]
        return f"{timing['case']}: {timing['candidate_us']:.2f} us by its own report, {calls} runs"
    if timing["speedup"] is None:
        if rough := rough_ratio([timing]):
            return f"{timing['case']}: {rough}; {rough_times(timing)}. {timing['reason']}"
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
    # A kernel that somebody wrote has none of the parameters that a move's change is about.
    for move in known["moves"]:
        lines.append(f"  move {move['name']}: {move['why']} ({move['source']['section']})")
    places = dict.fromkeys(map(_place, known["excerpts"]))
    lines += [f"  read {place}" for place in places if place]
    return lines if len(lines) > 2 else []


def _place(excerpt: Json) -> str:
    """Where to read it: the document and the section, which a document without headings lacks."""
    title, section = str(excerpt["document"]["title"]).strip(), str(excerpt["section"]).strip()
    if section == title or section.startswith(f"{title} > "):
        return section
    return " > ".join(part for part in (title, section) if part)
