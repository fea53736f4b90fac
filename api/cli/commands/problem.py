"""`kernlore problem`, `kernlore evaluate` and `kernlore judge`: problems, their checks, the
evaluation of a candidate kernel, and a signed result for a submission to a task of a benchmark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.command import AsJson, DeviceHardware, ProblemPath, Wait, command, wait_for_processors
from api.cli.output import Json, columns, note, pairs, shortened, show
from kb import telemetry
from kb.errors import InvalidRequest, KernloreError, NotFound, nearest
from kb.plain import Doc, plain
from kb.problem_terms import canonical_op

if TYPE_CHECKING:
    from api.services import Services
    from optimizer.evaluation.problem.spec import Case, Problem


app = typer.Typer(help="Problems: the computations that kernels are written for.")


@command(app, text=pairs)
def new(
    name: Annotated[str, typer.Argument(help="Name: lower case, digits and underscores.")],
    op: Annotated[str, Doc("Operator that it computes, like softmax.")] = ("elementwise"),
    folder: Annotated[Path, typer.Option("--dir", help="Folder to create it in.")] = Path(),
) -> Json:
    """Write a commented problem to start from."""
    from optimizer.evaluation.problem.template import known_ops, write_problem

    path = write_problem(name, folder, op)
    if canonical_op(op) not in known_ops():
        near = ", ".join(nearest(op, known_ops())) or ", ".join(known_ops())
        note(f"{op!r} is not a known operator (similar: {near}); it is stored unchanged")
    return {"path": str(path), "next": f"edit {path}, then `kernlore problem check {path}`"}


@command(app)
def aten(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Operators, such as softmax or nn.functional.gelu."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every operator that torch has samples of.")
    ] = False,
    names_only: Annotated[
        bool, typer.Option("--list", help="List the operators; write nothing.")
    ] = False,
    folder: Annotated[Path, typer.Option("--dir", help="Folder to write to.")] = Path("aten"),
    as_json: AsJson = False,
) -> int:
    """Write problems for torch's own operators.

    They come from the sample inputs of torch's tests. Each has the sample's own size and, where
    the operator accepts them, larger ones for CPU and GPU. Exits 1 if an operator that was
    named gets no problem.
    """
    from optimizer.evaluation.problem.aten import operator_names, write_problems

    if names_only:
        show(operator_names(), as_json, "\n".join)
        return 0
    if every == bool(names):
        raise InvalidRequest(
            "no operator is named" if not every else "operators and --all exclude each other",
            hint="Name operators, or give --all; --list lists them.",
        )
    written = write_problems(names or operator_names(), folder, note)
    rows = [
        {"operator": w.operator, "path": str(w.path or ""), "reason": w.reason} for w in written
    ]
    show(rows, as_json, columns("operator", "path", "reason"))
    return 1 if not every and any(w.path is None for w in written) else 0


@command(app, "list", text=columns("name", "op", "cases", "timed", "summary"))
def list_problems() -> list[Json]:
    """List the built-in problems."""
    from api.operations.evaluations import listed_problem
    from optimizer.evaluation.problem.load import problem_named, shipped_problems

    return [asdict(listed_problem(problem_named(name))) for name in shipped_problems()]


def _problem_text(problem: Json) -> str:
    cases = [
        {**case, "constants": " ".join(f"{n}={value}" for n, value in case["constants"].items())}
        for case in problem["cases"]
    ]
    head = {key: v for key, v in problem.items() if key not in ("cases", "policy", "timed")}
    fields = ("name", "constants", "dtype", "distribution", "timed", "held_out", "devices")
    return f"{pairs({**head, **problem['policy']})}\n\n{columns(*fields)(cases)}"


@command(app, "show", text=_problem_text)
def show_problem(problem: ProblemPath) -> Json:
    """Show one problem with its cases. Runs nothing of it."""
    from api.operations.evaluations import listed_problem
    from optimizer.evaluation.problem.load import load_problem

    loaded = load_problem(Path(problem))
    return {
        **asdict(listed_problem(loaded)),
        "path": str(loaded.path),
        "sha256": loaded.sha256,
        "declared": loaded.declared,
        "policy": plain(loaded.policy),
        "cases": plain(loaded.cases),
    }


def _findings_text(answer: Json) -> str:
    """Findings and whether the problem can be trusted; of several, those with findings and then a
    line for each in a table."""
    if "problems" not in answer:
        return "\n".join([*_finding_lines(answer), _trust(answer)])
    rows = answer["problems"]
    lines = [
        line
        for row in rows
        if row["findings"] or row["error"]
        for line in (*_finding_lines(row), _trust(row), "")
    ]
    failed = sum(not row["ok"] for row in rows)
    summary = columns("problem", "result", "cases", "findings")(map(_check_row, rows))
    return "\n".join([*lines, summary, "", f"{len(rows)} problems, {failed} of them fail"])


def _finding_lines(answer: Json) -> list[str]:
    return [
        f"{row['severity']}: case {row['case']}: {row['message']}\n    {row['hint']}"
        for row in answer["findings"]
    ]


def _trust(answer: Json) -> str:
    if error := answer.get("error"):
        return f"error: {answer['problem']}: {error['message']}\n    {error['hint']}"
    verdict = "can be trusted" if answer["ok"] else "cannot be trusted"
    return f"{answer['problem']} {verdict} on {', '.join(answer['cases'])}"


def _check_row(answer: Json) -> Json:
    result = "error" if answer["error"] else "ok" if answer["ok"] else "invalid"
    counts = {name: len(answer[name]) for name in ("cases", "findings")}
    return {"problem": answer["problem"], "result": result, **counts}


@command(app, text=_findings_text, failed=lambda answer: not answer["ok"])
def check(
    problem: Annotated[
        str,
        typer.Argument(
            metavar="PROBLEM",
            help="A problem file, the name of a built-in problem, or a folder, of which every"
            " problem is checked.",
        ),
    ],
    case: Annotated[list[str] | None, Doc("Check only this case; repeat for more.")] = None,
    device: Annotated[
        str, Doc("Device of the reference: cpu or cuda. Cases for other devices are left out.")
    ] = "cpu",
) -> Json:
    """Check that a problem tells correct kernels from wrong ones. Exits 1 if a case does not.

    Runs the problem file. Trivial outputs must fail the error bound, the result must depend on
    every input and weight, and timed cases must be large enough to time. Of a folder, a problem
    that cannot be loaded or run fails, and the others are checked.
    """
    from optimizer.evaluation.problem.load import problems_to_check

    paths = problems_to_check(Path(problem))
    if len(paths) == 1:
        return _checked(paths[0], case or [], device)
    if case:
        raise InvalidRequest(
            f"--case with {problem}, which holds {len(paths)} problems",
            hint=f"Name the problem whose case it is, such as {paths[0]}.",
        )
    rows = [_checked_or_error(path, device) for path in paths]
    return {"folder": problem, "ok": all(row["ok"] for row in rows), "problems": rows}


def _checked(path: Path, names: list[str], device: str) -> Json:
    from optimizer.evaluation.problem.check import check_problem
    from optimizer.evaluation.problem.load import load_problem

    problem = load_problem(path)
    cases = _chosen(problem, names, device)
    findings = check_problem(problem, cases=cases, device=device)
    return {
        "problem": problem.name,
        "ok": not any(finding.severity == "invalid" for finding in findings),
        "cases": [chosen.name for chosen in cases],
        "findings": [asdict(finding) for finding in findings],
    }


def _checked_or_error(path: Path, device: str) -> Json:
    """The check of one problem of a folder; `error` is why it could not be loaded or run."""
    note(f"check {path}")
    try:
        return {**_checked(path, [], device), "error": None}
    except KernloreError as error:
        name = path.stem if path.suffix else path.name
        return {"problem": name, "ok": False, "cases": [], "findings": [], "error": error.as_json()}


def _chosen(problem: Problem, names: list[str], device: str) -> list[Case]:
    known = {case.name: case for case in problem.cases}
    for name in names:
        if name not in known:
            raise NotFound(
                f"{problem.name} has no case {name!r}", hint=f"It has {', '.join(known)}."
            )
    if names:
        return [known[name] for name in names]
    return [case for case in problem.cases if case.fits(device)]


# -- evaluate

SHOWN_METRICS = 12


def _evaluation_text(result: Json) -> str:
    """The verdict first, then timings, flags, metrics and knowledge about the result."""
    lines = [
        f"{result['validity']}: {result['message'] or result['problem']} ({result['hardware']})"
    ]
    lines += _time_lines(result, "eager")
    lines += _flag_lines(result)
    if result["metrics"]:
        metrics = list(result["metrics"].items())[:SHOWN_METRICS]
        shown = (f"{name}={v if isinstance(v, str) else f'{v:.4g}'}" for name, v in metrics)
        lines.append("  metrics: " + ", ".join(shown))
    lines += [f"  note: {note}" for note in result["notes"]]
    lines += knowledge_lines(result["knowledge"])
    if result["validity"] == "not_compiled" and result["log"]:
        lines += ["", result["log"][:2000]]
    return "\n".join(lines)


def _time_lines(evaluation: Json, over: str) -> Iterator[str]:
    """The time of each case, and the speed-up over all of them."""
    for timing in evaluation["timings"]:
        yield f"  {timing_text(timing)}"
    if ratio := evaluation["speedup"]:
        yield f"speed-up {ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] over {over}"


def _flag_lines(evaluation: Json) -> Iterator[str]:
    for flag in evaluation["flags"]:
        yield f"  {flag['severity']}: row {flag['defence']}, {flag['message']}"


def timing_text(timing: Json) -> str:
    """The time of one case, or the reason why it is missing."""
    from optimizer.evaluation.records import rough_ratio, rough_times

    if timing["state"] == "simulator":
        cost = f"{timing['cycles']} cycles"
        if timing["count"] is not None:
            cost = f"{timing['count']} {timing['counted']}"
        return f"{timing['case']}: {cost} (simulator)"
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


def knowledge_lines(known: Json) -> list[str]:
    """Moves and places to read about the result of an evaluation."""
    if not known:
        return []
    lines = ["", f"known about {', '.join(known['signals']) or 'it'}:"]
    # A hand-written kernel has none of the parameters that a move's change is about.
    for move in known["moves"]:
        lines.append(f"  move {move['name']}: {move['why']} ({move['source']['section']})")
    places = dict.fromkeys(map(_place, known["excerpts"]))
    lines += [f"  read {place}" for place in places if place]
    return lines if len(lines) > 2 else []


def _place(excerpt: Json) -> str:
    """The document and the section, which a document without headings lacks."""
    title, section = str(excerpt["document"]["title"]).strip(), str(excerpt["section"]).strip()
    if section == title or section.startswith(f"{title} > "):
        return section
    return " > ".join(part for part in (title, section) if part)


@command(text=_evaluation_text, failed=lambda result: result["validity"] != "correct")
def evaluate(
    services: Services,
    problem: ProblemPath,
    candidate: Annotated[
        Path, typer.Argument(help="A kernel file, or a folder with several files.")
    ],
    hardware: DeviceHardware = "auto",
    language: Annotated[
        str | None, Doc("Language of the kernel. Default: by its file name.")
    ] = None,
    entry: Annotated[str | None, Doc("Class or function of the kernel to call.")] = None,
    case: Annotated[list[str] | None, Doc("Evaluate only this case; repeat for more.")] = None,
    isolation: Annotated[
        str,
        Doc(
            "How the kernel is isolated: auto, namespaces, container (podman or docker) or"
            " process. `kernlore doctor` lists those of this machine."
        ),
    ] = "auto",
    knowledge: Annotated[
        bool, typer.Option(help="Also retrieve knowledge about the result.")
    ] = True,
    wait: Wait = 0.0,
) -> Json:
    """Compile, check and time one candidate kernel. Exits 1 unless it is correct."""
    from optimizer.evaluation.evaluate import evaluate_files, knowledge_about

    wait_for_processors(wait)
    with telemetry.watched(_note_stage):
        evaluation = evaluate_files(
            services,
            Path(problem),
            candidate,
            hardware=hardware,
            language=language,
            entry=entry,
            cases=tuple(case or ()),
            isolation=isolation,
        )
    known = knowledge_about(services, evaluation) if knowledge else {}
    return {**evaluation.as_json(), "knowledge": known}


def _note_stage(span: str, _: object) -> None:
    """Note a stage of an evaluation, and work that disturbs its timing."""
    from optimizer.evaluation.isolation.machine import MIN_SECONDS, other_work, usable_processors
    from optimizer.evaluation.records import EVALUATION_STAGES

    if stage := EVALUATION_STAGES.get(span):
        timed = span == "evaluate: benchmark"
        busy = other_work(usable_processors(), MIN_SECONDS) if timed else ""
        note(f"{stage}; {busy}" if busy else stage)


# -- judge: one submission to a task of a benchmark, with a signed result


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
    lines += _time_lines(found, "the reference")
    if (share := record["roofline"]["percent"]) is not None:
        lines.append(f"roofline: {share:.3g} % (case {record['roofline']['case']})")
    shapes = ", ".join(hidden["shapes"]) or "none"
    checked = f": {hidden['validity']}" if hidden["shapes"] else ""
    lines.append(f"hidden shapes ({hidden['origin']}) {shapes}{checked}")
    lines += _flag_lines(found)
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
        Doc("The task: a file or folder, a built-in problem, or a folder of KernelBench tasks."),
    ] = None,
    format: Annotated[
        str,
        Doc(
            "Convention of task and submission: kernelbench, gpu-mode, flashinfer-bench,"
            " sol-execbench, robust-kbench, jax, openevolve, agent-kernel-arena, pytest, or auto:"
            " the one that recognises the task."
        ),
    ] = "auto",
    hardware: DeviceHardware = "auto",
    isolation: Annotated[
        str, Doc("How the submission is isolated: auto, namespaces, container or process.")
    ] = "auto",
    strict_shapes: Annotated[
        bool,
        Doc(
            "A submission that is wrong on derived shapes is incorrect; otherwise it is only"
            " reported."
        ),
    ] = False,
    output: Annotated[Path | None, Doc("Write the signed judgement (JSON) to this file.")] = None,
    report: Annotated[
        Path | None, Doc("Write the result in the convention of the task to this file.")
    ] = None,
    sign_key: Annotated[
        Path | None, Doc("File with the secret key of the signature (HMAC-SHA256).")
    ] = None,
    verify: Annotated[bool, Doc("Check the signature of a judgement; judge nothing.")] = False,
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
