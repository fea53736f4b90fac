"""`kernlore runs`: stored searches: show, continue, export, exchange with devices without models,
and review flagged candidates.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from annotated_types import Ge

from api.cli.command import (
    Actor,
    ApiBase,
    AsJson,
    ContextTokensOfRun,
    DataDir,
    Models,
    ModelSecondsOfRun,
    Output,
    Ray,
    Seed,
    Url,
    command,
    switched_on,
)
from api.cli.commands.optimize import named_synthesizers
from api.cli.output import Json, columns, interval, note, pairs, show, table
from api.cli.target import CommandTarget, login, open_target, opened
from kb.errors import InvalidRequest
from kb.plain import Doc

if TYPE_CHECKING:
    from api.services import Services
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
ZipFile = Annotated[Path, typer.Option("--output", "-o", help="The zip file to write.")]
_runs_table = columns("run", "problem", "hardware", "state", "gain", "ended")


@command(app, "list", text=_runs_table)
def list_runs(target: CommandTarget) -> Any:
    """List runs, newest first."""
    from api.operations import runs
    from optimizer.search.runs.run_store import summary_of_shown

    shown = target.call(runs.list_runs)["runs"]
    return [{"id": run["id"], **summary_of_shown(run)} for run in shown]


@command(app, "show")
def show_run(
    run: RunId,
    attribution: Annotated[
        bool, Doc("Instead, show which knowledge changed each candidate.")
    ] = False,
    candidate: Annotated[
        int | None, Doc("Instead, show this candidate; its number is in `kernlore runs tree`.")
    ] = None,
    source: Annotated[bool, Doc("With --candidate: show its source and nothing else.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the goal and result of a run. Also its verdicts, and the share of each proposer, where
    the data directory is."""
    from optimizer.search.runs import run_store

    if url is not None:
        if source or attribution or candidate is not None:
            raise InvalidRequest(
                "--url shows the run alone", hint="Run it where the data directory is."
            )
        from api.operations import runs

        with open_target(data_dir, url) as target:
            show(target.call(runs.show_run, run), as_json, pairs)
        return
    if source and candidate is None:
        raise InvalidRequest(
            "--source shows the source of a candidate", hint="Name it with --candidate NUMBER."
        )
    with opened(data_dir) as local:
        services = local.services
        if candidate is not None and source:
            files = run_store.candidate_source(services, run, candidate)
            show(files, as_json, _source_text)
        elif candidate is not None:
            show(run_store.candidate_row(services, run, candidate), as_json, pairs)
        elif attribution:
            from optimizer.search.runs.optimize import attributed

            show(attributed(services, run), as_json, _attribution_text)
        else:
            show(run_store.run_account(services, run), as_json, pairs)


def _source_text(candidate: Json) -> str:
    """One file unchanged, so that it can be redirected into a file; several under their names."""
    files = candidate["files"]
    if len(files) == 1:
        return str(files[candidate["main"]]).rstrip("\n")
    return "\n".join(f"File: {name}\n{text}" for name, text in files.items())


def _attribution_text(rows: list[Json]) -> str:
    if not rows:
        return "no candidate was shown knowledge"
    listed = (
        {**row, "shown": len(row["shown"])}
        | {name: ", ".join(row[name]) or "-" for name in ("claimed", "attributed")}
        for row in rows
    )
    return columns("node", "shown", "claimed", "attributed", "note")(listed)


def _tree_text(rows: list[Json]) -> str:
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


@command(app, text=_tree_text)
def tree(services: Services, run: RunId) -> Any:
    """Show every candidate under the one that it changes."""
    from optimizer.search.runs.run_store import candidate_rows

    return candidate_rows(services, run)


def _comparison_text(runs: Json) -> str:
    names = list(next(iter(runs.values())))
    return table(["", *runs], [[name, *(runs[run][name] for run in runs)] for name in names])


@command(app, text=_comparison_text)
def compare(
    services: Services,
    first: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="Id of another run.")],
) -> Any:
    """Compare two runs side by side."""
    from optimizer.search.runs.run_store import compare_runs

    return compare_runs(services, first, second)


@command(app)
def resume(
    local: CommandTarget,
    run: RunId,
    models: Models = "",
    api_base: ApiBase = None,
    model_seconds: ModelSecondsOfRun = None,
    ray: Ray = None,
    as_json: AsJson = False,
) -> int:
    """Continue a run that was killed, cancelled or failed.

    It asks the same language models as before, at the same address, unless you give others.
    """
    from api.cli.search import SearchOptions, search
    from optimizer.search.runs.run_store import run_store, summary_of
    from optimizer.search.synthesizers.llm.settings import ModelOptions

    row = run_store(local.services).run(run)
    asked = ModelOptions.to_resume(row.asked, models, api_base, model_seconds)
    options = SearchOptions(row.goal, row.hardware, asked, ray)
    finished, code = search(local.services, Path(row.problem), options, quiet=as_json, resume=run)
    show(summary_of(finished.run), as_json, pairs)
    note(f"to write its files: kernlore runs export {run} -o DIR")
    return code


@command(app, text=pairs)
def cancel(services: Services, run: RunId) -> Any:
    """End a run after the candidate that it is measuring."""
    from optimizer.search.runs.run_store import cancel_run

    return cancel_run(services, run)


@command(app, text=pairs)
def export(services: Services, run: RunId, output: Output) -> Any:
    """Write a run as files: module, report, plots and rows."""
    from optimizer.search.runs.optimize import export_run

    return export_run(services, run, output)


# -- searches on a device that cannot reach this machine or a model


@command(app, text=pairs)
def pack(
    local: CommandTarget,
    problems: Annotated[
        list[str],
        typer.Argument(help="Problem files, folders of them, or names of built-in problems."),
    ],
    hardware: Annotated[str, Doc("Id of the hardware that it will run on.")],
    output: ZipFile,
    candidates: Annotated[int, Doc("Try at most this many candidates for each problem.")] = 30,
    minutes: Annotated[
        float | None, Doc("Search for at most this many minutes for each problem.")
    ] = None,
    seed: Seed = 0,
    knowledge: Annotated[str, Doc("Whether to pack retrieved knowledge: on or off.")] = "on",
    synthesizers: Annotated[
        str,
        Doc(
            "Only these proposers: recipe, traced, compiler; separate them by commas."
            " Default: all three."
        ),
    ] = "",
) -> Json:
    """Pack a search for a machine that has only torch and triton."""
    from optimizer.search.goal import Goal
    from optimizer.search.runs.sessions import pack_session, packable

    goal = Goal(
        candidates=candidates,
        minutes=minutes,
        seed=seed,
        knowledge=switched_on(knowledge),
        synthesizers=named_synthesizers(synthesizers),
    )
    paths = [Path(name) for name in problems]
    packable(local.services, paths, hardware, goal)
    if goal.knowledge:
        local.load_knowledge(note)
    written = pack_session(local.services, paths, hardware, goal, output)
    return {"session": str(written), "run it with": f"python {written.name} --out results"}


def _proposed_text(answer: Json) -> str:
    runs = columns("run", "problem", "drafts", "note")(answer["runs"])
    return f"{runs}\n{answer['batch']}: {answer['run it with']}"


@command(app, text=_proposed_text)
def propose(
    local: CommandTarget,
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_PROBLEM...",
            help="Ids of runs to continue, or problem files, folders of them, or names of built-in"
            " problems to begin with.",
        ),
    ],
    output: ZipFile,
    models: Annotated[
        str,
        Doc(
            "Language models to ask, by their litellm names: a=2,b. Default: those of the"
            " first run that is continued."
        ),
    ] = "",
    hardware: Annotated[str | None, Doc("Id of the hardware of problems to begin with.")] = None,
    language: Annotated[str | None, Doc("Language of the candidates of new runs.")] = None,
    drafts: Annotated[int, Doc("Candidates of each run."), Ge(1)] = 4,
    api_base: ApiBase = None,
    context_tokens: ContextTokensOfRun = None,
    reader: Annotated[
        str | None, Doc("strong, small, full or auto. Default: that of the run.")
    ] = None,
    model_seconds: ModelSecondsOfRun = None,
    seed: Seed = 0,
    knowledge: Annotated[
        str, Doc("Whether models of new runs are shown retrieved knowledge.")
    ] = "on",
) -> Json:
    """Pack candidates of models for a device elsewhere.

    For a machine with the device that cannot reach the models. It needs torch and triton only:
    `python batch.zip --out results`. After `kernlore runs import results`, the next round of the
    same runs is based on the measurements.
    """
    from api.cli.search import remarks
    from optimizer.search.goal import Goal
    from optimizer.search.runs.sessions import propose_round
    from optimizer.search.synthesizers.llm.settings import ModelOptions

    known = switched_on(knowledge)
    goal = Goal(language=language, seed=seed, knowledge=known, synthesizers=("llm",))
    runs = _runs_of(local.services, targets, hardware, goal)
    before = next((run.asked for run in runs if run.asked), {})
    options = ModelOptions.to_resume(
        before, models, api_base, model_seconds, context_tokens, reader
    )
    if any(run.goal.knowledge for run in runs):
        local.load_knowledge(note)
    rows = propose_round(local.services, runs, options, drafts, remarks(), output)
    return {
        "batch": str(output),
        "run it with": f"python {output.name} --out results",
        "runs": [row.as_json() for row in rows],
    }


def _runs_of(
    services: Services, targets: list[str], hardware: str | None, goal: Goal
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
    runs = runs_to_continue(services, known)
    return [*runs, *(begin_runs(services, fresh, hardware, goal) if hardware else [])]


@command(app, "import", text=_runs_table)
def import_runs(
    services: Services,
    results: Annotated[
        Path, typer.Argument(help="results.zip of a packed search, or the folder of its results.")
    ],
) -> Any:
    """Import the runs and evaluations of a packed search."""
    from optimizer.search.runs.run_store import summary_of
    from optimizer.search.runs.sessions import import_results

    return [summary_of(run) for run in import_results(services, results)]


# -- integrity flags: candidates that wait for a person


def _flagged_text(rows: list[Json]) -> str:
    if not rows:
        return "nothing waits for a person"
    listed = (
        {**row, "speedup": interval(row["speedup"], 2), "flags": "; ".join(row["flags"])}
        for row in rows
    )
    return columns("node", "speed-up=speedup", "answer=told", "flagged=flags")(listed)


@command(app, text=_flagged_text)
def flagged(services: Services, run: ReviewedId) -> Any:
    """List candidates that wait for a person, and decisions.

    A person looks at a candidate with integrity flags, such as one that is faster than the hardware
    should allow, before anything is learned from it.
    """
    from skills.trajectories.reading import flagged_nodes

    return flagged_nodes(services, run)


@command(app, text=lambda row: _flagged_text([row]))
def review(
    services: Services,
    run: ReviewedId,
    node: Annotated[
        int,
        typer.Argument(
            metavar="NODE", help="Number of the candidate in `kernlore runs flagged RUN`."
        ),
    ],
    reason: Annotated[str, Doc("Why. It is stored with the decision.")],
    accept: Annotated[bool, Doc("The candidate does the whole work; ignore its flags.")] = False,
    refuse: Annotated[
        bool, Doc("The candidate does not do the whole work; count it as rejected.")
    ] = False,
    actor: Actor = None,
) -> Any:
    """Accept or refuse a flagged candidate. Every decision is stored, and the newest counts."""
    from skills.trajectories.reading import review_node

    if accept == refuse:
        raise InvalidRequest(
            "a review accepts or refuses", hint="Give one of --accept and --refuse."
        )
    decision = "accepted" if accept else "refused"
    signer = login() if actor is None else actor
    return review_node(services, run, node, decision, signer, reason)
