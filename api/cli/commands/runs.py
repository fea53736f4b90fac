"""`kernlore runs`: what was searched, how, and what came of it; reviews of flagged candidates."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backends import actor as login
from api.cli.backends import opened
from api.cli.commands.optimize import (
    INTERRUPTED,
    ended_as_by_ctrl_c,
    named_synthesizers,
)
from api.cli.options import (
    Actor,
    ApiBase,
    AsJson,
    ContextTokensOfRun,
    DataDir,
    Models,
    ModelSecondsOfRun,
    Ray,
    Seed,
    switched_on,
)
from api.cli.output import Json, note, pairs, show, table
from kb.errors import InvalidRequest

if TYPE_CHECKING:
    from api.cli.backends.local import LocalTarget
    from optimizer.search.goal import Goal
    from optimizer.search.store import RunRow

app = typer.Typer(help="Runs: searches for a faster kernel.")
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run; see `kernlore runs list`.")]
ReviewedId = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Id of a run or of an external trajectory; see `kernlore runs list` and"
        " `kernlore trajectories list`.",
    ),
]
HEADERS = ("run", "problem", "hardware", "state", "gain", "ended")


@app.callback()
def group() -> None:
    """Runs: searches for a faster kernel."""


@app.command("list")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List runs, newest first."""
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import list_runs

        rows = list_runs(local.services)
    show(rows, as_json, _runs_table)


@app.command("show")
def show_run(
    run: RunId,
    attribution: Annotated[
        bool,
        typer.Option("--attribution", help="Instead, show which knowledge changed each candidate."),
    ] = False,
    candidate: Annotated[
        int | None,
        typer.Option(help="Instead, show this candidate; its number is in `kernlore runs tree`."),
    ] = None,
    source: Annotated[
        bool, typer.Option("--source", help="With --candidate: show its source and nothing else.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the goal and result of a run. Also its verdicts, and what each proposer contributed."""
    if source and candidate is None:
        raise InvalidRequest(
            "--source shows the source of a candidate", hint="Name it with --candidate NUMBER."
        )
    with opened(data_dir) as local:
        if candidate is not None:
            _show_candidate(local, run, candidate, source, as_json)
        elif attribution:
            from optimizer.search.runs.optimize import attributed

            rows = [row.as_json() for row in attributed(local.services, run)]
            show(rows, as_json, _attribution_text)
        else:
            from optimizer.search.runs.run_store import run_account

            show(run_account(local.services, run), as_json, pairs)


def _show_candidate(local: LocalTarget, run: str, number: int, source: bool, as_json: bool) -> None:
    from optimizer.search.runs.run_store import candidate_row, candidate_source

    if source:
        show(candidate_source(local.services, run, number), as_json, _source_text)
    else:
        show(candidate_row(local.services, run, number), as_json, pairs)


def _source_text(candidate: Any) -> str:
    """One file as it is, so that it can be redirected into a file; several under their names."""
    files = candidate["files"]
    if len(files) == 1:
        return str(files[candidate["main"]]).rstrip("\n")
    return "\n".join(f"File: {name}\n{text}" for name, text in files.items())


def _attribution_text(rows: Any) -> str:
    if not rows:
        return "no candidate was shown knowledge"
    headers = ("node", "shown", "claimed", "attributed", "note")
    cells = [
        [
            row["node"],
            len(row["shown"]),
            ", ".join(row["claimed"]) or "-",
            ", ".join(row["attributed"]) or "-",
            row["note"],
        ]
        for row in rows
    ]
    return table(headers, cells)


@app.command("tree")
def tree(run: RunId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show every candidate under the one that it changes."""
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import candidate_rows

        rows = candidate_rows(local.services, run)
    show(rows, as_json, _tree_text)


def _tree_text(rows: Any) -> str:
    children: dict[int | None, list[Json]] = defaultdict(list)
    for row in rows:
        children[row["parent"]].append(row)

    def lines(row: Json, depth: int) -> list[str]:
        figure = "baseline" if row["baseline"] else row["speedup"] or row.get("rough", "")
        figure = ", ".join(text for text in (figure, row["took"]) if text)
        head = f"{'  ' * depth}{row['number']} {row['verdict']} {figure}".rstrip()
        below = [line for child in children[row["number"]] for line in lines(child, depth + 1)]
        return [f"{head}  {row['plan'][:90]}", *below]

    return "\n".join(line for root in children[None] for line in lines(root, 0))


@app.command("compare")
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="Id of another run.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs side by side."""
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import compare_runs

        comparison = compare_runs(local.services, first, second)

    def rendered(columns: Any) -> str:
        names = list(next(iter(columns.values())))
        return table(["", *columns], [[n, *(columns[run][n] for run in columns)] for n in names])

    show(comparison, as_json, rendered)


@app.command("resume")
def resume(
    run: RunId,
    models: Models = "",
    api_base: ApiBase = None,
    model_seconds: ModelSecondsOfRun = None,
    ray: Ray = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Continue a run that was killed, cancelled or failed.

    It asks the language models that it asked before, at the same address, unless you give others.
    """
    code = 0
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import run_store, summary_of

        row = run_store(local.services).run(run)
        from api.cli.elsewhere import places_on, words_of
        from api.cli.progress import progress
        from optimizer.search.runs.optimize import RunInterrupted, optimize
        from optimizer.search.synthesizers.llm.settings import ModelOptions
        from skills.lifecycle import prepare_library

        options = ModelOptions.to_resume(row.asked, models, api_base, model_seconds)
        services, language = local.services, row.goal.language
        with (
            ended_as_by_ctrl_c(),
            places_on(services, ray, row.hardware, language) as elsewhere,
            progress(row.goal, as_json, words_of(elsewhere)) as listener,
        ):
            places = elsewhere.places if elsewhere is not None else None
            prepare_library(services, row.hardware, language, listener.log, places)
            try:
                finished = optimize(
                    services,
                    Path(row.problem),
                    row.goal,
                    row.hardware,
                    listener,
                    models=options,
                    cluster=elsewhere,
                    resume=run,
                )
            except RunInterrupted as interrupt:
                finished, code = interrupt.finished, INTERRUPTED
    show(summary_of(finished.run), as_json, pairs)
    note(f"to write its files: kernlore runs export {run} -o DIR")
    return code


@app.command("cancel")
def cancel(run: RunId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """End a run after the candidate that it is measuring."""
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import cancel_run

        answer = cancel_run(local.services, run)
    show(answer, as_json, pairs)


@app.command("export")
def export(
    run: RunId,
    output: Annotated[Path, typer.Option("--output", "-o", help="A new or empty folder.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as files: module, report, plots and rows."""
    with opened(data_dir) as local:
        from optimizer.search.runs.export import export_run

        written = export_run(local.services, run, output)
    show(written, as_json, pairs)


@app.command("pack")
def pack(
    problems: Annotated[
        list[str], typer.Argument(help="Problem files, folders or names of built-in problems.")
    ],
    hardware: Annotated[str, typer.Option(help="Id of the hardware that it will run on.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The zip file to write.")],
    candidates: Annotated[
        int, typer.Option(help="Try at most this many candidates for each problem.")
    ] = 30,
    minutes: Annotated[
        float | None, typer.Option(help="Search for at most this many minutes for each problem.")
    ] = None,
    seed: Seed = 0,
    knowledge: Annotated[
        str, typer.Option(help="Whether to pack retrieved knowledge: on or off.")
    ] = "on",
    synthesizers: Annotated[
        str,
        typer.Option(
            help="Only these proposers: recipe, traced, compiler; separate them by commas."
            " Default: all three."
        ),
    ] = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Pack a search for a machine that has only torch and triton."""
    from optimizer.search.goal import Goal

    goal = Goal(
        candidates=candidates,
        minutes=minutes,
        seed=seed,
        knowledge=switched_on(knowledge),
        synthesizers=named_synthesizers(synthesizers),
    )
    with opened(data_dir) as local:
        from optimizer.search.runs.sessions import pack_session, packable

        paths = [Path(name) for name in problems]
        packable(local.services, paths, hardware, goal)
        if goal.knowledge:
            local.load_knowledge(note)
        written = pack_session(local.services, paths, hardware, goal, output)
    answer = {"session": str(written), "run it with": f"python {written.name} --out results"}
    show(answer, as_json, pairs)


@app.command("propose")
def propose(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_PROBLEM...",
            help="Ids of runs to continue, or problem files, folders or names to begin with.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The zip file to write.")],
    models: Annotated[
        str,
        typer.Option(
            help="Language models to ask, by their litellm names: a=2,b. Default: those of the"
            " first run that is continued."
        ),
    ] = "",
    hardware: Annotated[
        str | None, typer.Option(help="Id of the hardware of problems to begin with.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Language of the candidates of new runs.")
    ] = None,
    drafts: Annotated[int, typer.Option(help="Candidates of each run.", min=1)] = 4,
    api_base: ApiBase = None,
    context_tokens: ContextTokensOfRun = None,
    model_seconds: ModelSecondsOfRun = None,
    seed: Seed = 0,
    knowledge: Annotated[
        str, typer.Option(help="Whether models of new runs are shown retrieved knowledge.")
    ] = "on",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Ask models here and pack their candidates for a device.

    They are for a machine that has the device and that models cannot reach. It needs torch and
    triton only: `python batch.zip --out results`. After `kernlore runs import results` the next
    round of the same runs is proposed from what was measured.
    """
    from optimizer.search.goal import Goal

    known = switched_on(knowledge)
    goal = Goal(language=language, seed=seed, knowledge=known, synthesizers=("llm",))
    with opened(data_dir) as local:
        from api.cli.progress import remarks
        from optimizer.search.runs.sessions import propose_round
        from optimizer.search.synthesizers.llm.settings import ModelOptions

        runs = _runs_of(local, targets, hardware, goal)
        asked = next((run.asked for run in runs if run.asked), {})
        options = ModelOptions.to_resume(asked, models, api_base, model_seconds, context_tokens)
        if any(run.goal.knowledge for run in runs):
            local.load_knowledge(note)
        rows = propose_round(local.services, runs, options, drafts, remarks(), output)
    answer = {
        "batch": str(output),
        "run it with": f"python {output.name} --out results",
        "runs": [row.as_json() for row in rows],
    }
    show(answer, as_json, _proposed_text)


def _runs_of(
    local: LocalTarget, targets: list[str], hardware: str | None, goal: Goal
) -> list[RunRow]:
    """The stored runs among the targets, and a new one for each problem."""
    from optimizer.search.runs.sessions import begin_runs, runs_to_continue

    known = [target for target in targets if target.startswith(("run_", "session_"))]
    fresh = [Path(target) for target in targets if target not in known]
    if fresh and hardware is None:
        raise InvalidRequest(
            f"{fresh[0]} is no run, and --hardware is not given",
            hint="Give the id of the hardware that its candidates will run on.",
        )
    runs = runs_to_continue(local.services, known)
    return [*runs, *(begin_runs(local.services, fresh, hardware, goal) if hardware else [])]


def _proposed_text(answer: Any) -> str:
    headers = ("run", "problem", "drafts", "note")
    rows = [[row[name] for name in headers] for row in answer["runs"]]
    return f"{table(headers, rows)}\n{answer['batch']}: {answer['run it with']}"


@app.command("import")
def import_runs(
    results: Annotated[
        Path, typer.Argument(help="results.zip of a packed search, or the folder of its results.")
    ],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Import the runs and evaluations of a packed search."""
    with opened(data_dir) as local:
        from optimizer.search.runs.run_store import summary_of
        from optimizer.search.runs.sessions import import_results

        rows = [summary_of(run) for run in import_results(local.services, results)]
    show(rows, as_json, _runs_table)


def _runs_table(rows: Any) -> str:
    return table(HEADERS, [[row[name] for name in HEADERS] for row in rows])


# -- integrity flags: candidates that wait for a person


@app.command("flagged")
def flagged(run: ReviewedId, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List candidates that wait for a person, and decisions.

    A candidate with integrity flags, such as one that is faster than the hardware should allow, is
    looked at by a person before anything is learned from it.
    """
    with opened(data_dir) as local:
        from skills.trajectories.reading import flagged_nodes

        rows = [node.as_json() for node in flagged_nodes(local.services, run)]
    show(rows, as_json, _flagged_text)


@app.command("review")
def review(
    run: ReviewedId,
    node: Annotated[
        int,
        typer.Argument(
            metavar="NODE", help="Number of the candidate in `kernlore runs flagged RUN`."
        ),
    ],
    reason: Annotated[str, typer.Option(help="What you looked at. It is kept.")],
    accept: Annotated[
        bool,
        typer.Option("--accept", help="The candidate does the whole work; ignore its flags."),
    ] = False,
    refuse: Annotated[
        bool,
        typer.Option(
            "--refuse", help="The candidate does not do the whole work; count it as rejected."
        ),
    ] = False,
    actor: Actor = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Accept or refuse a flagged candidate. Every decision is kept, and the newest counts."""
    if accept == refuse:
        raise InvalidRequest(
            "a review accepts or refuses", hint="Give one of --accept and --refuse."
        )
    decision = "accepted" if accept else "refused"
    with opened(data_dir) as local:
        from skills.trajectories.reading import review_node

        decided = review_node(
            local.services, run, node, decision, login() if actor is None else actor, reason
        )
    show(decided.as_json(), as_json, lambda row: _flagged_text([row]))


def _flagged_text(rows: Any) -> str:
    if not rows:
        return "nothing waits for a person"
    cells = [
        [row["node"], _figure(row["speedup"]), row["told"], "; ".join(row["flags"])] for row in rows
    ]
    return table(("node", "speed-up", "answer", "flagged"), cells)


def _figure(speedup: Any) -> str | None:
    if speedup is None:
        return None
    return f"{speedup['value']:.2f} [{speedup['low']:.2f}, {speedup['high']:.2f}]"
