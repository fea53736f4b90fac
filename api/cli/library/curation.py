"""`kernlore skills distill|replay|verify|ablate|lift`: what a person has the curator do. Runs in
this process, over the data directory: it measures here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.backends import actor as login
from api.cli.backends import opened
from api.cli.options import AsJson, DataDir
from api.cli.output import note, pairs, show, table
from kb.errors import InvalidRequest

app = typer.Typer()
Name = Annotated[str, typer.Argument(help="The skill's name.")]
Budget = Annotated[int, typer.Option(help="Candidates of each arm of a trial.", min=1)]
Problems = Annotated[
    Path | None, typer.Option(help="Folder of problems to try it on, instead of the shipped ones.")
]
HEADERS = ("problem", "case", "unseen", "gain", "with", "without", "wrong", "note")


@app.command("distill")
def distill(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="An id of `kernlore runs list`.")
    ] = None,
    trajectory: Annotated[
        str | None, typer.Option(help="An id of `kernlore trajectories list`, in place of a run.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Language model that drafts the sentences, as litellm names it.")
    ] = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What a run teaches: evidence for known skills, and candidates."""
    identity = run or trajectory
    if identity is None or (run and trajectory):
        raise InvalidRequest(
            "distill needs one run or one trajectory", hint="Give RUN, or --trajectory ID."
        )
    with opened(data_dir) as local:
        from skills.curator.distil import distil_source

        told = distil_source(local.services, identity, model).as_json()
    show(told, as_json, distilled_text)


def distilled_text(told: Any) -> str:
    """Every decision in one line, then what was stored."""
    lines = [
        f"{'composed step to ' if d['composed'] else ''}node {d['node']} {d['stage']}:"
        f" {'' if d['passed'] else 'refused: '}{d['reason']}"
        for d in told["decisions"]
    ]
    stored = [
        f"{s['operation']} {s['skill']}: {s['outcome']}, version {s['version']},"
        f" {s['evidence']} measurements"
        for s in told["stored"]
    ]
    return "\n".join(
        [
            *lines,
            *(stored or ["nothing new was stored"]),
            f"tuned recipe: {told['tuned']}",
            f"record: {told['record']}",
        ]
    )


@app.command("replay")
def replay(
    record: Annotated[str, typer.Argument(metavar="ID", help="Key that `distill` printed.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Judge a stored distillation again; exit code 1 where it comes out differently."""
    with opened(data_dir) as local:
        from skills.curator.distil import replayed

        found = replayed(local.services, record)
    told = {"record": record, "same": not found, "differs": found}
    show(told, as_json, pairs)
    return 1 if found else 0


@app.command("verify")
def verify(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None,
    queued: Annotated[
        bool, typer.Option("--queued", help="All that are suspect, the longest waiting first.")
    ] = False,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="All learned candidates.")
    ] = False,
    budget: Budget = 4,
    problems: Problems = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Searches with and without a skill, on problems and cases that it was not made of; active
    where it certainly helps."""
    if (name is not None) + queued + candidates != 1:
        raise InvalidRequest(
            "verify needs one of NAME, --queued and --candidates", hint="Give just one of them."
        )
    with opened(data_dir) as local:
        from skills.trials.verification import Verifier, waiting

        services = local.services
        local.load_knowledge(note)
        names = [name] if name is not None else waiting(services, queued=queued)
        verifier = Verifier(services, problems)
        told = [verifier.verify(one, budget, login()) for one in names]
    show(told, as_json, lambda rows: "\n\n".join(map(_verified, rows)) or "nothing waits")


def _verified(told: Any) -> str:
    head = f"{told['skill']} is {told['state']}: {told['reason']}"
    return "\n".join([head, *([_trials(told["trials"])] if told["trials"] else [])])


@app.command("ablate")
def ablate(
    name: Name,
    budget: Budget = 4,
    problems: Problems = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """The trials of `verify`, and nothing is changed."""
    with opened(data_dir) as local:
        from skills.trials.verification import Verifier

        local.load_knowledge(note)
        told = Verifier(local.services, problems).try_out(name, budget)
    show(told, as_json, lambda row: f"{_trials(row['trials'])}\n{row['reason']}")


@app.command("lift")
def lift(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """How often answers that showed it helped, beside those that withheld it."""
    with opened(data_dir) as local:
        from skills.uses import lift_report

        told = lift_report(local.services, name)
    show(told, as_json, pairs)


def _trials(trials: Any) -> str:
    return table(HEADERS, [_row(trial) for trial in trials])


def _row(trial: Any) -> list[Any]:
    arms = [trial["with_skill"], trial["without"]]
    told = [f"{_figure(a['best'])} ({a['correct']} of {a['tried']} correct)" for a in arms]
    gain = _figure(trial["gain"])
    named = [trial["problem"], trial["case"], trial["unseen"]]
    return [*named, gain, *told, trial["wrong"], trial["note"]]


def _figure(ratio: Any) -> str:
    return f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio else "-"
