"""`kernlore skills`: the library of measured transformations, and learning new ones from runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.backends import Filters, open_target, opened
from api.cli.backends import actor as login
from api.cli.options import Actor, AsJson, DataDir, Url
from api.cli.output import Json, note, pairs, show, table
from api.cli.skill_texts import changed_text, listed, skill_text, warn
from kb.errors import InvalidKnowledge, InvalidRequest

app = typer.Typer(help="Skills: measured transformations of kernels.")
Name = Annotated[str, typer.Argument(help="Name of a skill.")]
State = Annotated[
    str | None,
    typer.Option(help="Only skills in this state, like active; several separated by commas."),
]
Tier = Annotated[str | None, typer.Option(help="Only skills of this tier: curated or learned.")]
Hardware = Annotated[str | None, typer.Option(help="Only skills that hold for this hardware.")]
Signal = Annotated[str | None, typer.Option(help="Only skills about this signal.")]
Language = Annotated[
    str | None, typer.Option(help="Only skills for kernels in this language, or in any.")
]
Reason = Annotated[str, typer.Option(help="Why. It is kept in the history.")]
Budget = Annotated[
    int, typer.Option(help="Candidates of each search, with and without the skill.", min=1)
]
Problems = Annotated[
    Path | None,
    typer.Option(help="Folder of problems for the trials. Default: the built-in problems."),
]
HEADERS = ("problem", "case", "unseen", "gain", "with", "without", "wrong", "note")


@app.command("list")
def list_(
    tier: Tier = None,
    state: State = None,
    hardware: Hardware = None,
    signal: Signal = None,
    language: Language = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List skills with their states."""
    with open_target(data_dir, url) as target:
        rows = target.skills(Filters(state, tier, hardware, signal, language))
    show(rows, as_json, listed)


@app.command("search")
def search(
    text: Annotated[str, typer.Argument(help="Words of the name, text, operators or signals.")],
    tier: Tier = None,
    state: State = None,
    hardware: Hardware = None,
    signal: Signal = None,
    language: Language = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Search skills, best match first."""
    with open_target(data_dir, url) as target:
        rows = target.skills(Filters(state, tier, hardware, signal, language, words=text))
    show(rows, as_json, listed)


@app.command("show")
def show_(name: Name, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """Show one skill with its text and evidence."""
    with open_target(data_dir, url) as target:
        skill = target.skill(name)
    show(skill, as_json, skill_text)


@app.command("history")
def history(name: Name, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """Show the history of a skill: when, who and why."""
    with open_target(data_dir, url) as target:
        events = target.skill_history(name)
    headers = ("created_at", "event", "from_state", "to_state", "actor", "reason")
    show(events, as_json, lambda rows: table(headers, [[r[h] for h in headers] for r in rows]))


# -- a person's decision


@app.command("approve")
def approve(
    name: Name,
    reason: Reason,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Approve although no trial supports it; its history records that."
        ),
    ] = False,
    actor: Actor = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a candidate or suspect skill active. A learned one needs trials that support it."""
    _change(name, "active", reason, actor, data_dir, url, as_json, force=force)


@app.command("quarantine")
def quarantine(
    name: Name,
    reason: Reason,
    actor: Actor = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Keep a skill out of every answer until it is restored. It is not learned again meanwhile."""
    _change(name, "quarantined", reason, actor, data_dir, url, as_json)


@app.command("retire")
def retire(
    name: Name,
    reason: Reason,
    actor: Actor = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Take a skill out of use. It can still be shown."""
    _change(name, "retired", reason, actor, data_dir, url, as_json)


@app.command("restore")
def restore(
    name: Name,
    reason: Reason,
    actor: Actor = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Restore a retired or quarantined skill. Its measurements decide its state."""
    _change(name, "restored", reason, actor, data_dir, url, as_json)


def _change(
    name: str,
    state: str,
    reason: str,
    actor: str | None,
    data_dir: Path | None,
    url: str | None,
    as_json: bool,
    *,
    force: bool = False,
) -> None:
    with open_target(data_dir, url) as target:
        patch = {"state": state, "actor": actor or login(), "reason": reason, "force": force}
        changed = target.change_skill(name, patch)
    show(changed, as_json, changed_text)
    warn(changed)


@app.command("revise")
def revise(
    name: Name,
    reason: Reason,
    description: Annotated[
        str | None, typer.Option(help="What it does, and when to use it.")
    ] = None,
    predicate: Annotated[str | None, typer.Option(help="Its precondition; '' for none.")] = None,
    text_file: Annotated[
        Path | None, typer.Option(help="A file with its text, below the front matter.")
    ] = None,
    actor: Actor = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change the text or precondition of a skill.

    One in use stays as it is: the change is a candidate beside it, which takes its place once it is
    verified or approved. Import the changed folder to change more than this.
    """
    texts = {"description": description, "predicate": predicate}
    if text_file is not None:
        texts["body"] = text_file.read_text(encoding="utf-8")
    change = {key: text for key, text in texts.items() if text is not None}
    with open_target(data_dir, url) as target:
        stored = target.revise_skill(name, {**change, "actor": actor or login(), "reason": reason})
    show(stored, as_json, lambda row: f"{row['name']} is {row['state']}")
    warn(stored)


# -- export and import


@app.command("export")
def export(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that gets a folder for each skill.")
    ],
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of skills. Default: all that are active.")
    ] = None,
    hardware: Hardware = None,
    language: Language = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Write skills as folders. The format is the open SKILL.md format, without scripts.

    What an earlier export wrote there and is no longer active is removed; other files stay.
    """
    if names and (hardware or language):
        raise InvalidRequest(
            "names and filters exclude each other",
            hint="Give names, or --hardware and --language for all that are active and fit.",
        )
    active = Filters(state="active", hardware=hardware, language=language)
    with open_target(data_dir, url) as target:
        exported = target.export_skills(names or [], folder, active)
    show([str(path) for path in exported.folders], as_json, "\n".join)
    for name, state in exported.removed.items():
        note(f"Removed {folder / name}: the skill is {state} now")
    for name, state in exported.kept.items():
        note(f"Warning: {folder / name} is left, because it was changed by hand; it is {state} now")


@app.command("import")
def import_(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folder of a skill, or a folder of such folders."),
    ],
    actor: Actor = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Import skill folders as candidates. What they claim about their state is ignored."""
    with open_target(data_dir, url) as target:
        paths = [path for folder in folders for path in _skill_folders(folder)]
        broken = next((path for path in paths if not _is_valid(path)), None)
        # Nothing is imported where a folder is broken: it comes first, and is refused with all that
        # is wrong with it, of which only the store knows the ids.
        ordered = paths if broken is None else [broken]
        imported = [target.import_skill(path, actor or login()) for path in ordered]
    headers = ("name", "outcome", "state", "dropped")
    show(imported, as_json, lambda rows: table(headers, [_imported(row) for row in rows]))
    for row in imported:
        warn(row)


def _skill_folders(folder: Path) -> list[Path]:
    """The folder itself, or every skill right below it. Raises InvalidKnowledge where there is
    none.
    """
    from skills.format.skillfile import SKILL_MD, skill_folders

    folders = [folder] if (folder / SKILL_MD).is_file() else skill_folders(folder)
    if not folders:
        raise InvalidKnowledge(
            f"there is no {SKILL_MD} in {folder} or right below it",
            hint=f"A skill is a folder with {SKILL_MD}.",
        )
    return folders


def _is_valid(folder: Path) -> bool:
    """Whether nothing is wrong with its form. Raises what only this machine can say of it."""
    from skills.format.skillfile import parse_skill

    return not parse_skill(folder)[1].entries


def _imported(row: Json) -> list[Any]:
    return [row["name"], row["outcome"], row["state"], ", ".join(row["dropped"]) or "nothing"]


# -- learning: runs in this process over the data directory, because it measures here


@app.command("distill")
def distill(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Id of a run; see `kernlore runs list`."),
    ] = None,
    trajectory: Annotated[
        str | None, typer.Option(help="Instead of a run: id of an external trajectory.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="Language model that drafts the sentences, by its litellm name."),
    ] = "",
    errors: Annotated[
        bool,
        typer.Option(
            "--errors",
            help="Instead of a run: look over all stored runs for errors that were mended on two"
            " different kernels.",
        ),
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Learn from a run. Adds evidence to known skills, and new skills as candidates."""
    identity = run or trajectory
    if (run is not None) + (trajectory is not None) + errors != 1:
        raise InvalidRequest(
            "distill needs a run or a trajectory, or --errors",
            hint="Give exactly one of RUN, --trajectory ID and --errors.",
        )
    if errors and model:
        raise InvalidRequest(
            "no model drafts what --errors learns", hint="Leave --model out: it needs none."
        )
    with opened(data_dir) as local:
        if errors:
            from skills.curator.debugging_skills import distil_errors

            show(distil_errors(local.services).as_json(), as_json, _errors_text)
            return
        from skills.curator.distil import distil_source

        distilled = distil_source(local.services, identity or "", model).as_json()
    show(distilled, as_json, distilled_text)


def distilled_text(distilled: Any) -> str:
    """Every decision in one line, then what was stored."""
    lines = [
        f"{'composed step to ' if d['composed'] else ''}node {d['node']} {d['stage']}:"
        f" {'' if d['passed'] else 'refused: '}{d['reason']}"
        for d in distilled["decisions"]
    ]
    return "\n".join(
        [
            *lines,
            *_stored(distilled),
            f"tuned recipe: {distilled['tuned']}",
            f"record: {distilled['record']}",
        ]
    )


def _stored(distilled: Any) -> list[str]:
    stored = [
        f"{s['operation']} {s['skill']}: {s['outcome']}, version {s['version']},"
        f" {s['evidence']} measurements"
        for s in distilled["stored"]
    ]
    return stored or ["nothing new was stored"]


def _errors_text(mended: Any) -> str:
    """Every decision in one line, what is no lesson yet, then what was stored."""
    lines = [
        f"{d['run']} node {d['node']} {d['stage']}: {'' if d['passed'] else 'refused: '}"
        f"{d['reason']}"
        for d in mended["decisions"]
    ]
    short = [f"no lesson yet: {reason}" for reason in mended["short"]]
    skipped = [f"not read: {reason}" for reason in mended["skipped"]]
    read = f"runs and trajectories read: {mended['runs']}"
    return "\n".join([*lines, *short, *skipped, read, *_stored(mended)])


@app.command("replay")
def replay(
    record: Annotated[
        str,
        typer.Argument(metavar="ID", help="The `record` that `kernlore skills distill` printed."),
    ],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Repeat the decisions of a stored distillation. Exits 1 if any comes out differently."""
    with opened(data_dir) as local:
        from skills.curator.distil import replayed

        differences = replayed(local.services, record)
    answer = {"record": record, "same": not differences, "differs": differences}
    show(answer, as_json, pairs)
    return 1 if differences else 0


@app.command("verify")
def verify(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of a skill.")] = None,
    queued: Annotated[
        bool, typer.Option("--queued", help="Verify all suspect skills, the longest waiting first.")
    ] = False,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="Verify all learned candidates.")
    ] = False,
    budget: Budget = 4,
    problems: Problems = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Test a skill by searches with and without it. It becomes active where it certainly helps.

    The problems and cases are others than those that the skill was learned from.
    """
    if (name is not None) + queued + candidates != 1:
        raise InvalidRequest(
            "verify needs one of NAME, --queued and --candidates", hint="Give exactly one of them."
        )
    with opened(data_dir) as local:
        from skills.trials.verification import Verifier, waiting

        services = local.services
        if name is not None:
            services.skills.show(name)  # refuses an unknown name before anything is read
        local.load_knowledge(note)
        names = [name] if name is not None else waiting(services, queued=queued)
        verifier = Verifier(services, problems)
        results = [verifier.verify(skill, budget, login()) for skill in names]
    show(results, as_json, lambda rows: "\n\n".join(map(_verified, rows)) or "nothing waits")


def _verified(result: Any) -> str:
    head = f"{result['skill']} is {result['state']}: {result['reason']}"
    return "\n".join([head, *([_trials(result["trials"])] if result["trials"] else [])])


@app.command("ablate")
def ablate(
    name: Name,
    budget: Budget = 4,
    problems: Problems = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Run the trials of `verify` without changing the skill."""
    with opened(data_dir) as local:
        from skills.trials.verification import Verifier

        local.services.skills.show(name)  # refuses an unknown name before anything is read
        local.load_knowledge(note)
        result = Verifier(local.services, problems).try_out(name, budget)
    show(result, as_json, lambda row: f"{_trials(row['trials'])}\n{row['reason']}")


@app.command("lift")
def lift(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show how much a skill helps. Compares runs that were shown it with runs that were not."""
    with opened(data_dir) as local:
        from skills.uses import lift_report

        lift_of_skill = lift_report(local.services, name)
    show(lift_of_skill, as_json, pairs)


def _trials(trials: Any) -> str:
    return table(HEADERS, [_row(trial) for trial in trials])


def _row(trial: Any) -> list[Any]:
    arms = [trial["with_skill"], trial["without"]]
    figures = [f"{_figure(a['best'])} ({a['correct']} of {a['tried']} correct)" for a in arms]
    gain = _figure(trial["gain"])
    place = [trial["problem"], trial["case"], trial["unseen"]]
    return [*place, gain, *figures, trial["wrong"], trial["note"]]


def _figure(ratio: Any) -> str:
    return f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio else "-"
