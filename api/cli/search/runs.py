"""`kernlore runs`: what was searched, how, and what came of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backends import opened
from api.cli.options import AsJson, DataDir, switched_on
from api.cli.output import note, pairs, show, table
from api.cli.search import run_reviews

if TYPE_CHECKING:
    from optimizer.search.records import Node
    from optimizer.search.store import RunRow
    from optimizer.search.tree import Tree

app = typer.Typer(help="Runs of the optimizer.")
app.add_typer(run_reviews.app)
RunId = Annotated[str, typer.Argument(metavar="RUN", help="An id of `kernlore runs list`.")]


@app.callback()
def group() -> None:
    """Runs of the optimizer."""


@app.command("list")
def list_runs(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """The newest first."""
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import run_store

        rows = [_summary(run) for run in run_store(local.services).latest()]
    headers = ("run", "problem", "hardware", "state", "gain", "ended")
    show(rows, as_json, lambda found: table(headers, [[r[h] for h in headers] for r in found]))


@app.command("show")
def show_run(
    run: RunId,
    attribution: Annotated[
        bool,
        typer.Option("--attribution", help="What of the shown knowledge made each candidate."),
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Goal, result, verdict counts and what each origin brought."""
    if attribution:
        _show_attribution(run, data_dir, as_json)
        return
    with opened(data_dir) as local:
        from optimizer.search.output.account import model_costs
        from optimizer.search.runs.run_store import run_store

        store = run_store(local.services)
        row, tree = _loaded(store, run)
    told = {
        **_summary(row),
        "goal": {
            name: value for name, value in row.goal.as_json().items() if value not in (None, ())
        },
        "candidates": len(tree) - 1,
        "verdicts": dict(Counter(node.verdict for node in tree.nodes[1:])),
        "origins": dict(Counter(n.proposal.origin for n in tree if n.proposal is not None)),
        "models": model_costs(tree),
        "best in the search": str(tree.best.speedup) if tree.best else "none",
        "seconds": row.seconds,
        **{f"{name} version": version for name, version in row.environment.items()},
    }
    show(told, as_json, pairs)


def _show_attribution(run: str, data_dir: Path | None, as_json: bool) -> None:
    """Its proposers are asked again, with all that was shown and without each item of it."""
    with opened(data_dir) as local:
        from optimizer.search.runs.optimize import attributed

        found = [one.as_json() for one in attributed(local.services, run)]
    headers = ("node", "shown", "claimed", "attributed", "note")

    def rendered(rows: Any) -> str:
        if not rows:
            return "no candidate was shown knowledge"
        told = [
            [row["node"], len(row["shown"]), _ids(row["claimed"]), _ids(row["attributed"])]
            for row in rows
        ]
        return table(headers, [[*line, row["note"]] for line, row in zip(told, rows, strict=True)])

    show(found, as_json, rendered)


def _ids(ids: Any) -> str:
    return ", ".join(ids) or "-"


@app.command("tree")
def tree_of(run: RunId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Every candidate under the one that it changes."""
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import run_store

        _, tree = _loaded(run_store(local.services), run)
    rows = [_node_row(node) for node in tree]
    show(rows, as_json, lambda _: "\n".join(_drawn(tree, 0, 0)))


@app.command("compare")
def compare(one: RunId, other: RunId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Two runs beside each other."""
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import run_store

        store = run_store(local.services)
        found = {run: _loaded(store, run) for run in (one, other)}
    told = {run: _compared(row, tree) for run, (row, tree) in found.items()}

    def rendered(_: Any) -> str:
        names = list(next(iter(told.values())))
        return table(["", *told], [[n, *(told[run][n] for run in told)] for n in names])

    show(told, as_json, rendered)


@app.command("resume")
def resume(
    run: RunId,
    models: Annotated[
        str, typer.Option(help="Language models to ask too, as litellm names them: a=2,b.")
    ] = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was killed or cancelled, from its last candidate."""
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import run_store

        row = run_store(local.services).run(run)
        from api.cli.search.progress import progress
        from optimizer.search.runs.optimize import optimize
        from skills.lifecycle import prepare_library

        with progress(row.goal, as_json) as listener:
            prepare_library(local.services, row.hardware, row.goal.language, listener.said)
            finished = optimize(
                local.services,
                Path(row.problem),
                row.goal,
                row.hardware,
                listener,
                models=models,
                resume=run,
            )
    show(_summary(finished.run), as_json, pairs)


@app.command("cancel")
def cancel(run: RunId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """End a run after the candidate that it is measuring."""
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import run_store

        run_store(local.services).cancel(run)
    show({"run": run, "cancel": "requested"}, as_json, pairs)


@app.command("export")
def export(
    run: RunId,
    output: Annotated[Path, typer.Option("--output", "-o", help="A new or empty folder.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Module, report, plots, trajectory, and the rows themselves."""
    with opened(data_dir) as local:
        from optimizer.search.runs.export import export_run

        told = export_run(local.services, run, output)
    show(told, as_json, pairs)


@app.command("pack")
def pack(
    problems: Annotated[list[str], typer.Argument(help="Problem files, folders or names.")],
    hardware: Annotated[str, typer.Option(help="Where it is to run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The zip to write.")],
    candidates: Annotated[int, typer.Option(help="For each problem.")] = 30,
    minutes: Annotated[float | None, typer.Option(help="For each problem.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything drawn by chance.")] = 0,
    knowledge: Annotated[str, typer.Option(help="on or off.")] = "on",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """A search for a machine that has only torch and triton."""
    from optimizer.search.goal import Goal

    goal = Goal(candidates=candidates, minutes=minutes, seed=seed, knowledge=switched_on(knowledge))
    with opened(data_dir) as local:
        from optimizer.evaluation.problem.load import load_problem

        for name in problems:  # what is misspelled is said before anything is read
            load_problem(Path(name))
        local.services.registry.resolve(hardware)
        if goal.knowledge:
            local.load_knowledge(note)
        from optimizer.search.runs.portable import pack_session

        written = pack_session(
            local.services, [Path(name) for name in problems], hardware, goal, output
        )
    told = {"session": str(written), "run it with": f"python {written.name} --out results"}
    show(told, as_json, pairs)


@app.command("import")
def import_runs(
    results: Annotated[Path, typer.Argument(help="results.zip of a session, or its folder.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Bring tree, evaluations and evidence of a portable session home."""
    with opened(data_dir) as local:
        from optimizer.search.runs.portable import import_results

        rows = [_summary(run) for run in import_results(local.services, results)]
    headers = ("run", "problem", "hardware", "state", "gain", "ended")
    show(rows, as_json, lambda found: table(headers, [[r[h] for h in headers] for r in found]))


def _loaded(store: Any, run_id: str) -> tuple[RunRow, Tree]:
    from optimizer.search.tree import Tree

    return store.run(run_id), Tree(store.nodes(run_id))


def _summary(run: RunRow) -> dict[str, Any]:
    gain = run.result.get("gain")
    told = f"{gain['value']:.2f} [{gain['low']:.2f}, {gain['high']:.2f}]" if gain else ""
    return {
        "run": run.id,
        "problem": _problem_name(Path(run.problem)),
        "hardware": run.hardware,
        "state": run.state,
        "gain": told or run.result.get("reason", ""),
        "ended": run.ended,
    }


def _problem_name(path: Path) -> str:
    """As a problem without a name of its own is called: by its folder or its file."""
    return path.parent.name if path.name == "problem.py" else path.stem


def _node_row(node: Node) -> dict[str, Any]:
    proposal = node.proposal
    return {
        "number": node.number,
        "parent": node.parent,
        "verdict": node.verdict,
        "speedup": str(node.speedup) if node.speedup is not None else "",
        "signals": list(node.signals),
        "plan": proposal.plan if proposal is not None else _root(node),
        "synthesizer": proposal.synthesizer if proposal is not None else "",
        "attributed": list(proposal.attributed) if proposal is not None else [],
    }


def _root(node: Node) -> str:
    """A chip that is simulated has no reference: its root is what the others are compared with."""
    found = node.evaluation
    simulated = found is not None and found.timing == "simulator"
    return "what the others are compared with" if simulated else "the reference"


def _drawn(tree: Tree, number: int, depth: int) -> list[str]:
    node = tree[number]
    row = _node_row(node)
    said = f"{'  ' * depth}{number} {row['verdict']} {row['speedup']}".rstrip()
    lines = [f"{said}  {row['plan'][:90]}"]
    for child in tree.children(number):
        lines += _drawn(tree, child.number, depth + 1)
    return lines


def _compared(run: RunRow, tree: Tree) -> dict[str, str]:
    best = tree.best
    to_best = str(best.number) if best is not None else ""
    counts = Counter(node.verdict for node in tree.nodes[1:])
    return {
        "problem": run.problem,
        "hardware": run.hardware,
        "policy": run.goal.policy,
        "knowledge": "on" if run.goal.knowledge else "off",
        "gain": _summary(run)["gain"],
        "candidates": str(len(tree) - 1),
        "candidates to the best": to_best,
        "verdicts": json.dumps(dict(counts)),
        "seconds": f"{run.seconds:.0f}",
    }
