"""`kernlore problem`: write a problem, check whether it can be trusted, list and show problems."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import AsJson
from api.cli.output import note, pairs, show, table
from kb.errors import InvalidRequest, NotFound, nearest
from kb.problem_terms import canonical_op

if TYPE_CHECKING:
    from optimizer.evaluation.problem.spec import Case, Problem

app = typer.Typer(help="Problems: what a kernel has to compute.")
Which = Annotated[
    str,
    typer.Argument(
        metavar="PROBLEM", help="A problem file, folder or the name of a built-in problem."
    ),
]


@app.callback()
def group() -> None:
    """Problems: what a kernel has to compute."""


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Name: lower case, digits and underscores.")],
    op: Annotated[str, typer.Option("--op", help="Operator that it computes, like softmax.")] = (
        "elementwise"
    ),
    folder: Annotated[Path, typer.Option("--dir", help="Folder to create it in.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write a commented problem to start from."""
    from optimizer.evaluation.problem.template import known_ops, write_problem

    where = write_problem(name, folder, op)
    if canonical_op(op) not in known_ops():
        near = ", ".join(nearest(op, known_ops())) or ", ".join(known_ops())
        note(f"{op!r} is not a known operator (similar: {near}); it is kept as written")
    answer = {"path": where, "next": f"edit {where}, then `kernlore problem check {where}`"}
    show({key: str(value) for key, value in answer.items()}, as_json, pairs)


@app.command("aten")
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
        show(operator_names(), as_json, lambda rows: "\n".join(rows))
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
    headers = ("operator", "path", "reason")
    show(rows, as_json, lambda rows: table(headers, [[r[h] for h in headers] for r in rows]))
    return 1 if not every and any(w.path is None for w in written) else 0


@app.command("list")
def list_problems(as_json: AsJson = False) -> None:
    """List the built-in problems."""
    from optimizer.evaluation.problem.load import load_problem, shipped_problems

    rows = [_summary(load_problem(Path(name))) for name in shipped_problems()]
    headers = ("name", "op", "cases", "timed", "summary")
    show(rows, as_json, lambda rows: table(headers, [[r[h] for h in headers] for r in rows]))


def _summary(problem: Problem) -> dict[str, Any]:
    return {
        "name": problem.name,
        "op": problem.op,
        "cases": len(problem.cases),
        "timed": sum(case.timed for case in problem.cases),
        "summary": problem.summary,
    }


@app.command("show")
def show_problem(problem: Which, as_json: AsJson = False) -> None:
    """Show one problem with its cases. Runs nothing of it."""
    from optimizer.evaluation.problem.load import load_problem

    loaded = load_problem(Path(problem))
    description = {
        **_summary(loaded),
        "path": str(loaded.path),
        "sha256": loaded.sha256,
        "declared": loaded.declared,
        "policy": asdict(loaded.policy),
        "cases": [{**asdict(case), "constants": dict(case.constants)} for case in loaded.cases],
    }
    show(description, as_json, _description_text)


def _description_text(description: dict[str, Any]) -> str:
    headers = ("name", "constants", "dtype", "distribution", "timed", "held_out", "devices")
    rows = [
        [_sizes(case[h]) if h == "constants" else case[h] for h in headers]
        for case in description["cases"]
    ]
    apart = ("cases", "policy", "timed")
    head = {key: value for key, value in description.items() if key not in apart}
    return f"{pairs({**head, **description['policy']})}\n\n{table(headers, rows)}"


def _sizes(constants: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in constants.items())


@app.command("check")
def check(
    problem: Which,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="Check only this case; repeat for more.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="Device of the reference: cpu or cuda. Cases for other devices are left out."
        ),
    ] = "cpu",
    as_json: AsJson = False,
) -> int:
    """Check that a problem tells correct kernels from wrong ones. Exits 1 if a case does not.

    Runs the problem file. Trivial outputs must fail the error bound, the result must depend on
    every input and weight, and timed cases must be large enough to time.
    """
    from optimizer.evaluation.problem.check import check_problem
    from optimizer.evaluation.problem.load import load_problem

    loaded = load_problem(Path(problem))
    chosen = _chosen(loaded, case or [], device)
    findings = check_problem(loaded, cases=chosen, device=device)
    invalid = [f for f in findings if f.severity == "invalid"]
    answer = {
        "problem": loaded.name,
        "ok": not invalid,
        "cases": [c.name for c in chosen],
        "findings": [asdict(finding) for finding in findings],
    }
    show(answer, as_json, _findings_text)
    return 1 if invalid else 0


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


def _findings_text(answer: dict[str, Any]) -> str:
    lines = [
        f"{row['severity']}: case {row['case']}: {row['message']}\n    {row['hint']}"
        for row in answer["findings"]
    ]
    verdict = "can be trusted" if answer["ok"] else "cannot be trusted"
    return "\n".join([*lines, f"{answer['problem']} {verdict} on {', '.join(answer['cases'])}"])
