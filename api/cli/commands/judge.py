"""`kernlore judge`: one submission to a task of a benchmark, with a signed result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.command import DeviceHardware, command
from api.cli.commands.problem import timing_text
from api.cli.output import Json, shortened
from kb.errors import InvalidRequest

if TYPE_CHECKING:
    from api.services import Services


def _text(record: Json) -> str:
    """The verdict, its subject and the signature."""
    signed = record["signature"]
    signature = f"signature: {signed['algorithm']} {signed['value']}"
    if "judgements" not in record:
        return f"{_judgement_text(record)}\n{signature}"
    parts = [f"{record['verdict']}: {record['message']}"]
    parts += [f"no submission: {name}" for name in record["without_submission"]]
    return "\n".join([*parts, *map(_judgement_text, record["judgements"]), signature])


def _judgement_text(record: Json) -> str:
    """The verdict, times, hidden shapes, findings and isolation."""
    if "evaluation" not in record:
        return _own_text(record)
    found, task, hidden = record["evaluation"], record["task"], record["hidden"]
    reason = f": {record['message']}" if record["message"] else ""
    lines = [f"{record['verdict']}{reason} ({task['name']}, {task['format']}, {found['hardware']})"]
    lines += [f"  {timing_text(timing)}" for timing in found["timings"]]
    if ratio := found["speedup"]:
        lines.append(
            f"speed-up {ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] over the"
            " reference"
        )
    if (share := record["roofline"]["percent"]) is not None:
        lines.append(f"roofline: {share:.3g} % (case {record['roofline']['case']})")
    shapes = ", ".join(hidden["shapes"]) or "none"
    checked = f": {hidden['validity']}" if hidden["shapes"] else ""
    lines.append(f"hidden shapes ({hidden['origin']}) {shapes}{checked}")
    lines += [
        f"  {flag['severity']}: row {flag['defence']}, {flag['message']}" for flag in found["flags"]
    ]
    isolation = found["isolation"]
    lines.append(f"isolation: {isolation['level'] if isolation else 'nothing ran'}")
    return "\n".join(lines)


def _own_text(record: Json) -> str:
    """The judgement of a task's own evaluator: verdict, its figures, and the omitted checks."""
    task, report = record["task"], record["report"]
    reason = f": {record['message']}" if record["message"] else ""
    lines = [f"{record['verdict']}{reason} ({task['name']}, {task['format']})"]
    for section in ("metrics", "tests", "benchmarks"):
        for name, value in report.get(section, {}).items():
            shown = value if isinstance(value, str) else json.dumps(value)
            lines.append(f"  {shortened(name, 200)}: {shortened(shown, 400)}")
    lines += [f"isolation: {record['isolation']['level']}", f"note: {record['note']}"]
    if record["verdict"] != "correct" and record["log"]:
        lines += ["", record["log"][-2000:]]
    return "\n".join(lines)


def _code(record: Json) -> int:
    from optimizer.evaluation.judge import exit_code

    return exit_code(record)


@command(text=_text, failed=_code)
def judge(
    services: Services,
    submission: Annotated[
        Path,
        typer.Argument(
            help="The submission, or a folder of them; with --verify, a file that --output wrote."
        ),
    ],
    task: Annotated[
        Path | None,
        typer.Option(
            help="The task: a file or folder, a built-in problem, or a folder of KernelBench tasks."
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            help="Convention of task and submission: kernelbench, gpu-mode, flashinfer-bench,"
            " sol-execbench, robust-kbench, jax, openevolve, agent-kernel-arena, pytest, or auto:"
            " the one that recognises the task."
        ),
    ] = "auto",
    hardware: DeviceHardware = "auto",
    isolation: Annotated[
        str,
        typer.Option(
            help="How the submission is isolated: auto, namespaces, container or process."
        ),
    ] = "auto",
    strict_shapes: Annotated[
        bool,
        typer.Option(
            "--strict-shapes",
            help="A submission that is wrong on derived shapes is incorrect; otherwise it is only"
            " reported.",
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write the signed judgement (JSON) to this file.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write the result in the convention of the task to this file."),
    ] = None,
    sign_key: Annotated[
        Path | None,
        typer.Option(help="File with the secret key of the signature (HMAC-SHA256)."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the signature of a judgement; judge nothing.")
    ] = False,
) -> Json:
    """Judge a submission to a task of a benchmark or leaderboard.

    Exits 0 if it is correct, 3 if it is incorrect, crashes, hangs or does not compile, 4 if it is
    rejected (it cheats or breaks a rule), 5 without a verdict; 1 and 2 mean that it could not be
    judged.
    """
    from optimizer.evaluation import judge as judges
    from optimizer.evaluation.formats import is_folder

    key = judges.read_key(sign_key) if sign_key is not None else None
    if verify:
        return judges.verify(submission, key)
    if task is None:
        raise InvalidRequest("no task is named", hint="Give it as --task.")
    options = {"hardware": hardware, "isolation": isolation}
    if is_folder(task, format):
        record, text = judges.judge_folder(
            services, submission, task, **options, strict_shapes=strict_shapes, key=key
        )
    else:
        record, text = judges.judge(
            services,
            submission,
            task,
            format=format,
            **options,
            strict_shapes=strict_shapes,
            key=key,
        )
    if output is not None:
        output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if report is not None:
        report.write_text(text, encoding="utf-8")
    return record
