"""`kernlore problem`: write one, see whether it can be trusted, list and show those there are."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import AsJson
from api.cli.output import note, pairs, show, table
from kb.errors import NotFound, nearest
from kb.problem_terms import canonical_op

if TYPE_CHECKING:
    from optimizer.evaluation.problem.spec import Case, Problem

app = typer.Typer(help="What is to be optimized.")
Which = Annotated[
    str, typer.Argument(metavar="PROBLEM", help="A file, a folder or the name of a built-in one.")
]


@app.callback()
def group() -> None:
    """What is to be optimized."""


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Lower case, digits and underscores.")],
    op: Annotated[str, typer.Option("--op", help="What it computes, like softmax.")] = (
        "elementwise"
    ),
    folder: Annotated[Path, typer.Option("--dir", help="Where its folder is made.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write a problem to start from, with comments."""
    from optimizer.evaluation.problem.template import known_ops, write_problem

    where = write_problem(name, folder, op)
    if canonical_op(op) not in known_ops():
        near = ", ".join(nearest(op, known_ops())) or ", ".join(known_ops())
        note(f"{op!r} is no known operator (near: {near}); it is kept as written")
    told = {"path": where, "next": f"edit {where}, then `kernlore problem check {where}`"}
    show({k: str(v) for k, v in told.items()}, as_json, pairs)


@app.command("list")
def list_problems(as_json: AsJson = False) -> None:
    """The built-in problems."""
    from optimizer.evaluation.problem.load import load_problem, shipped_problems

    rows = [_summary(load_problem(Path(name))) for name in shipped_problems()]
    headers = ("name", "op", "cases", "timed", "summary")
    show(rows, as_json, lambda found: table(headers, [[r[h] for h in headers] for r in found]))


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
    """One problem with its cases. Runs nothing of it."""
    from optimizer.evaluation.problem.load import load_problem

    found = load_problem(Path(problem))
    told = {
        **_summary(found),
        "path": str(found.path),
        "sha256": found.sha256,
        "declared": found.declared,
        "policy": asdict(found.policy),
        "cases": [{**asdict(case), "constants": dict(case.constants)} for case in found.cases],
    }
    show(told, as_json, _shown)


def _shown(told: dict[str, Any]) -> str:
    headers = ("name", "constants", "dtype", "distribution", "timed", "held_out", "devices")
    rows = [
        [_sizes(case[h]) if h == "constants" else case[h] for h in headers]
        for case in told["cases"]
    ]
    head = {key: value for key, value in told.items() if key not in ("cases", "policy", "timed")}
    return f"{pairs({**head, **told['policy']})}\n\n{table(headers, rows)}"


def _sizes(constants: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in constants.items())


@app.command("check")
def check(
    problem: Which,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="Where the reference runs: cpu or cuda; cases for others are left out."),
    ] = "cpu",
    as_json: AsJson = False,
) -> int:
    """Whether it can tell a right kernel from a wrong one; exit code 1 when a case cannot.

    Runs the problem file. Trivial outputs must fail the error bound, the result must depend on
    every input and weight, and timed cases must be large enough to time.
    """
    from optimizer.evaluation.problem.check import check_problem
    from optimizer.evaluation.problem.load import load_problem

    found = load_problem(Path(problem))
    chosen = _chosen(found, case or [], device)
    findings = check_problem(found, cases=chosen, device=device)
    invalid = [f for f in findings if f.severity == "invalid"]
    told = {
        "problem": found.name,
        "ok": not invalid,
        "cases": [c.name for c in chosen],
        "findings": [asdict(finding) for finding in findings],
    }
    show(told, as_json, _findings)
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


def _findings(told: dict[str, Any]) -> str:
    lines = [
        f"{row['severity']}: case {row['case']}: {row['message']}\n    {row['hint']}"
        for row in told["findings"]
    ]
    verdict = "can be trusted" if told["ok"] else "cannot be trusted"
    return "\n".join([*lines, f"{told['problem']} {verdict} on {', '.join(told['cases'])}"])
