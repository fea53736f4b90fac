"""`kernlore skills`: the library of measured transformations, learning, and trials."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from annotated_types import Ge

from api.cli.command import Actor, ApiBase, ModelSeconds, Reader, command, operation_command
from api.cli.output import Json, columns, interval, note, pairs, shortened, table
from api.cli.target import CommandTarget, login
from api.operations import Incoming, skills
from kb.errors import InvalidKnowledge, InvalidRequest, Unavailable
from kb.plain import Doc, plain

if TYPE_CHECKING:
    from api.services import Services
    from skills.format.schema import SkillFile
    from skills.trials.proof import Proof

app = typer.Typer(help="Skills: measured transformations of kernels.")
Name = Annotated[str, typer.Argument(help="Name of a skill.")]
Words = Annotated[
    str, typer.Argument(metavar="TEXT", help="Words of the name, text, operators or signals.")
]
Hardware = Annotated[str | None, Doc("Only skills that hold for this hardware.")]
Language = Annotated[str | None, Doc("Only skills for kernels in this language, or in any.")]
Reason = Annotated[str, Doc("Reason for the history.")]
Force = Annotated[bool, Doc("Approve although no trial supports it; its history records that.")]
Budget = Annotated[int, Doc("Candidates of each search, with and without the skill."), Ge(1)]
Problems = Annotated[
    Path | None, Doc("Folder of problems for the trials. Default: the built-in problems.")
]
FILTERS = ("tier", "state", "hardware", "signal", "language", "effect", "order")


def _skills_table(rows: Any) -> str:
    short = [
        {"effect_text": "untested", **row, "description": shortened(row["description"], 90)}
        for row in rows
    ]
    return columns("name", "tier", "state", "effect_text", "evidence", "description")(short)


operation_command(
    app,
    "list",
    skills.list_skills,
    help="List skills with their states.",
    options=FILTERS,
    pick="skills",
    text=_skills_table,
)
operation_command(
    app,
    "search",
    skills.list_skills,
    help="Search skills, best match first.",
    parameters={"q": Words},
    options=FILTERS,
    pick="skills",
    text=_skills_table,
)


def _skill_text(skill: Json) -> str:
    """A skill with its text; a revision also shows its changes."""
    conflicts = [f"{c['name']} ({c['state']}, {c['polarity']})" for c in skill.get("conflicts", ())]
    head = {
        **{key: value for key, value in skill["summary"].items() if key != "effect"},
        "origin": skill["origin"],
        "transformation": skill.get("transformation"),
        "predicate": skill["predicate"],
        "conflicts with": ", ".join(conflicts),
        "revises": skill.get("revises"),
        "revision": skill.get("revision"),
    }
    changes = f"\n\n{skill['changes']}" if skill.get("changes") else ""
    gains = f"\n\n{_gains(skill['gains'])}" if skill.get("gains") else ""
    return f"{pairs(head)}{gains}\n\n{skill['body']}".rstrip() + changes.rstrip()


def _gains(rows: Any) -> str:
    names = ("measured by=by", "hardware", "device", "dtype", "gain", "cases", "harmed")
    return columns(*names)({**row, "gain": interval(row["gain"])} for row in rows)


operation_command(
    app,
    "show",
    skills.show_skill,
    help="Show one skill with its text and evidence.",
    parameters={"name": Name},
    text=_skill_text,
)
operation_command(
    app,
    "history",
    skills.show_history,
    help="Show the history of a skill: when, who and why.",
    parameters={"name": Name},
    pick="events",
    text=columns("created_at", "event", "from_state", "to_state", "actor", "reason"),
)


# -- decisions


def _warn(skill: Json) -> None:
    """Print warnings about the scopes of a skill, and which skill it revises. An older service
    sends neither."""
    if skill.get("revises"):
        note(
            f"{skill['name']} revises {skill['revises']}, which stays in use as it is until"
            f" `kernlore skills verify {skill['name']}` or `kernlore skills approve"
            f" {skill['name']} --reason TEXT` puts it in that one's place"
        )
    for warning in skill.get("warnings", ()):
        note(f"Warning: {skill['name']}: {warning}")


def _changed_text(changed: Json) -> str:
    details = changed["event"]["details"]
    if "revision" in details:
        place = f"version {details['version']} of {details['skill']}"
        return f"{changed['name']} is in use now, as {place}"
    return f"{changed['name']} is {changed['state']}"


def _decision(name: str, state: str, help: str, **more: Any) -> None:
    """A command that changes the state of a skill."""
    operation_command(
        app,
        name,
        skills.change_skill,
        help=help,
        parameters={"name": Name, "reason": Reason, **more, "actor": Actor},
        fixed={"state": state},
        text=_changed_text,
        after=_warn,
    )


_decision(
    "approve",
    "active",
    "Make a candidate or suspect skill active. A learned one needs trials that support it.",
    force=Force,
)
_decision(
    "quarantine",
    "quarantined",
    "Keep a skill out of every answer until it is restored. It is not learned again meanwhile.",
)
_decision("retire", "retired", "Take a skill out of use. It can still be shown.")
_decision(
    "restore",
    "restored",
    "Restore a retired or quarantined skill. Its measurements decide its state.",
)


operation_command(
    app,
    "narrow",
    skills.narrow_skill,
    help="Leave a part out of a skill's scope, by the value of KEY.",
    parameters={
        "name": Name,
        "key": Annotated[str, typer.Argument(metavar="KEY", help="Such as row_length or dtype.")],
        "reason": Reason,
        "actor": Actor,
    },
    options=("value", "below", "at_least"),
    text=_changed_text,
)
operation_command(
    app,
    "merge",
    skills.merge_skill,
    help="Retire a skill in favour of another one.",
    parameters={
        "name": Name,
        "into": Annotated[str, typer.Argument(metavar="INTO", help="The skill that remains.")],
        "reason": Reason,
        "actor": Actor,
    },
    text=_changed_text,
)


@command(app, text=lambda revised: f"{revised['name']} is {revised['state']}", after=_warn)
def revise(
    target: CommandTarget,
    name: Name,
    reason: Reason,
    description: Annotated[str | None, Doc("What it does, and when to use it.")] = None,
    predicate: Annotated[str | None, Doc("Its precondition; '' for none.")] = None,
    text_file: Annotated[Path | None, Doc("A file with its text, below the front matter.")] = None,
    actor: Actor = None,
) -> Json:
    """Change the text or precondition of a skill.

    An active skill stays unchanged: the change is stored as a candidate, which replaces it once it
    is verified or approved. To change other parts, import the changed folder.
    """
    body = None if text_file is None else text_file.read_text(encoding="utf-8")
    return target.call(
        skills.revise_skill,
        name,
        description=description,
        predicate=predicate,
        body=body,
        actor=actor or login(),
        reason=reason,
    )


# -- export and import


@command(app, text="\n".join)
def export(
    target: CommandTarget,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A folder, which gets a folder for each skill.")
    ],
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of skills. Default: all that are active.")
    ] = None,
    hardware: Hardware = None,
    language: Language = None,
) -> list[str]:
    """Write skills as folders. The format is the open SKILL.md format, without scripts.

    Skills of an earlier export that are no longer active are removed; other files stay.
    """
    from skills.format.skillfile import write_export

    known = target.call(skills.list_skills)["skills"]
    if names and (hardware or language):
        raise InvalidRequest(
            "names and filters exclude each other",
            hint="Give names, or --hardware and --language for all that are active and fit.",
        )
    if not names:
        active = target.call(
            skills.list_skills, state="active", hardware=hardware, language=language
        )
        names = [skill["name"] for skill in active["skills"]]
    files = [_exported(target, name) for name in names]
    exported = write_export(files, output, {skill["name"]: skill["state"] for skill in known})
    for name, state in exported.removed.items():
        note(f"Removed {output / name}: the skill is {state} now")
    for name, state in exported.kept.items():
        note(f"Warning: {output / name} is left, because it was changed by hand; it is {state} now")
    return [str(path) for path in exported.folders]


def _exported(target: CommandTarget, name: str) -> SkillFile:
    from skills.format.skillfile import read_skill, unpacked

    data = target.download(skills.export_skill, name)
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise Unavailable(
            f"the service did not answer with a zip of {name}",
            hint="Check that the URL is Kernlore's and that both are of one version.",
        )
    with unpacked(data) as folder:
        return read_skill(folder)


def _imported_table(rows: Any) -> str:
    listed = ({**row, "dropped": ", ".join(row["dropped"]) or "nothing"} for row in rows)
    return columns("name", "outcome", "state", "dropped")(listed)


def _warn_all(skills: list[Json]) -> None:
    for skill in skills:
        _warn(skill)


@command(app, "import", text=_imported_table, after=_warn_all)
def import_skills(
    target: CommandTarget,
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folder of a skill, or a folder of such folders."),
    ],
    actor: Actor = None,
) -> list[Json]:
    """Import skill folders as candidates. What they claim about their state is ignored."""
    from skills.format.skillfile import packed, parse_skill

    paths = [path.resolve() for folder in folders for path in _skill_folders(folder)]
    # A broken folder is sent alone, so that nothing is imported: its import is refused with all of
    # its errors, also those about ids, which only the store knows.
    broken = [path for path in paths if parse_skill(path)[1].entries][:1]
    imported = []
    for path in broken or paths:
        incoming = Incoming(f"{path.name}.zip", io.BytesIO(packed(path)))
        imported.append(target.call(skills.import_zip, file=(incoming,), actor=actor or login()))
    return imported


def _skill_folders(folder: Path) -> list[Path]:
    """The folder itself, or every skill right below it. Raises InvalidKnowledge without any."""
    from skills.format.skillfile import SKILL_MD, skill_folders

    folders = [folder] if (folder / SKILL_MD).is_file() else skill_folders(folder)
    if not folders:
        raise InvalidKnowledge(
            f"there is no {SKILL_MD} in {folder} or right below it",
            hint=f"A skill is a folder with {SKILL_MD}.",
        )
    return folders


# -- learning: in this process over the data directory, because it measures here


def _distilled_text(distilled: Json) -> str:
    """Decisions about a run, or about the errors of all runs, then the stored skills."""
    if "short" in distilled:
        return _errors_text(distilled)
    return distilled_text(distilled)


def distilled_text(distilled: Json) -> str:
    """Every decision in one line, then the stored skills."""
    lines = [
        f"{'composed step to ' if d['composed'] else ''}node {d['node']} {d['stage']}:"
        f" {'' if d['passed'] else 'refused: '}{d['reason']}"
        for d in distilled["decisions"]
    ]
    lines += _stored(distilled)
    return "\n".join(
        [*lines, f"tuned recipe: {distilled['tuned']}", f"record: {distilled['record']}"]
    )


def _errors_text(mended: Json) -> str:
    lines = [
        f"{d['run']} node {d['node']} {d['stage']}: {'' if d['passed'] else 'refused: '}"
        f"{d['reason']}"
        for d in mended["decisions"]
    ]
    lines += [f"no lesson yet: {reason}" for reason in mended["short"]]
    lines += [f"not read: {reason}" for reason in mended["skipped"]]
    lines.append(f"runs and trajectories read: {mended['runs']}")
    return "\n".join([*lines, *_stored(mended)])


def _stored(distilled: Json) -> list[str]:
    stored = [
        f"{s['operation']} {s['skill']}: {s['outcome']}, version {s['version']},"
        f" {s['evidence']} measurements"
        for s in distilled["stored"]
    ]
    return stored or ["nothing new was stored"]


@command(app, text=_distilled_text)
def distill(
    services: Services,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Id of a run; see `kernlore runs list`.")
    ] = None,
    trajectory: Annotated[
        str | None, Doc("Instead of a run: id of an external trajectory.")
    ] = None,
    model: Annotated[
        str, Doc("Language model that drafts the sentences, by its litellm name.")
    ] = "",
    errors: Annotated[
        bool,
        Doc(
            "Instead of a run: look over all stored runs for errors that were mended on two"
            " different kernels."
        ),
    ] = False,
) -> Json:
    """Learn from a run. Adds evidence to known skills, and new skills as candidates."""
    if (run is not None) + (trajectory is not None) + errors != 1:
        raise InvalidRequest(
            "distill needs a run or a trajectory, or --errors",
            hint="Give exactly one of RUN, --trajectory ID and --errors.",
        )
    if errors and model:
        raise InvalidRequest(
            "no model drafts what --errors learns", hint="Leave --model out: it needs none."
        )
    if errors:
        from skills.curator.debugging_skills import distil_errors

        return distil_errors(services).as_json()
    from skills.curator.distil import distil_source

    return distil_source(services, run or trajectory or "", model).as_json()


def _history_text(answer: Json) -> str:
    """A row for each change, learned from or refused."""
    names = ("commit", "file=path", "function", "claimed", "measured", "steps", "outcome", "reason")
    changes = columns(*names)(map(_history_row, answer["changes"]))
    return f"{answer['repository']} on {answer['hardware']}\n\n{changes}"


def _history_row(change: Json) -> Json:
    claimed = change["claimed"]
    return {
        **change,
        "commit": change["commit"][:10],
        "claimed": "-" if claimed is None else f"{claimed:g}x",
        "measured": interval(change["gain"]),
        "steps": len(change["steps"]) or "-",
    }


@command(app, "from-history", text=_history_text)
def from_history(
    services: Services,
    place: Annotated[
        list[Path],
        typer.Argument(
            metavar="REPO PATH... | PATCH...",
            help="A clone or git directory with kernel files or folders of it, or a series of"
            " patches (*.patch, *.diff), in order.",
        ),
    ],
    as_steps: Annotated[
        bool, Doc("PATHs are versions of one kernel, in order: files, or functions PATH:FUNCTION.")
    ] = False,
    every_change: Annotated[bool, Doc("Also changes whose message does not claim speed.")] = False,
    hardware: Annotated[
        str, Doc("A CPU or GPU of this machine, or an emulated chip that is here.")
    ] = "auto",
    function: Annotated[list[str] | None, Doc("Only this function; repeat for more.")] = None,
    problem: Annotated[
        Path | None, Doc("Problem that the function solves, where no reference fits; with --call.")
    ] = None,
    call: Annotated[
        str,
        Doc(
            "C statements that call it over the problem's arrays t, such as"
            " `f((float *)t[1].data, (float *)t[0].data, t[0].shape[0]);`, or for Triton a Python"
            " expression such as `f(*t)`. {function} is the function's name."
        ),
    ] = "",
    size: Annotated[
        list[str] | None, Doc("Size of the timed case, such as inner=4096; repeat for more.")
    ] = None,
    limit: Annotated[int, Doc("Changes to measure, the newest first."), Ge(1)] = 50,
    licence: Annotated[str | None, Doc("SPDX id of the licence of the repository.")] = None,
) -> Json:
    """Learn from changes of kernels in a git history. Each change is compiled before and after,
    checked and timed here; what holds becomes a candidate skill, and a table says why the rest was
    refused."""
    from skills.lineage.from_history import HistoryRequest, learn_from_history

    if (problem is None) != (not call):
        raise InvalidRequest(
            "--problem and --call go together", hint="Give both, or neither for the references."
        )
    patches = all(path.suffix in (".patch", ".diff") for path in place)
    request = HistoryRequest(
        place=place[0],
        paths=() if patches else tuple(str(path) for path in place[1:]),
        patches=tuple(place) if patches else (),
        files_are_steps=as_steps,
        every_change=every_change,
        hardware=hardware,
        problem=problem,
        call=call,
        sizes=_sizes_of(size or []),
        functions=tuple(function or ()),
        limit=limit,
        licence=licence,
    )
    answer: Json = plain(learn_from_history(services, request, note))
    return answer


def _sizes_of(given: list[str]) -> dict[str, int]:
    sizes = {}
    for text in given:
        name, _, number = text.partition("=")
        if not number.isdigit() or int(number) < 1:
            raise InvalidRequest(
                f"--size {text!r} is no size", hint="Write NAME=NUMBER, such as inner=4096."
            )
        sizes[name] = int(number)
    return sizes


@command(app, text=pairs, failed=lambda answer: not answer["same"])
def replay(
    services: Services,
    record: Annotated[
        str,
        typer.Argument(metavar="ID", help="The `record` that `kernlore skills distill` printed."),
    ],
) -> Json:
    """Repeat the decisions of a stored distillation. Exits 1 if any differs."""
    from skills.curator.distil import replayed

    differences = replayed(services, record)
    return {"record": record, "same": not differences, "differs": differences}


def _verified_text(results: Any) -> str:
    def one(result: Json) -> str:
        head = f"{result['skill']} is {result['state']}: {result['reason']}"
        return f"{head}\n{_trials(result['trials'])}" if result["trials"] else head

    return "\n\n".join(map(one, results)) or "nothing waits"


def _trials(trials: Any) -> str:
    headers = ("problem", "case", "unseen", "gain", "with", "without", "wrong", "note")
    return table(headers, [_trial_row(trial) for trial in trials])


def _trial_row(trial: Json) -> list[Any]:
    arms = [trial["with_skill"], trial["without"]]
    figures = [f"{interval(a['best'])} ({a['correct']} of {a['tried']} correct)" for a in arms]
    place = [trial["problem"], trial["case"], trial["unseen"]]
    return [*place, interval(trial["gain"]), *figures, trial["wrong"], trial["note"]]


@command(app, text=_verified_text)
def verify(
    local: CommandTarget,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of a skill.")] = None,
    queued: Annotated[bool, Doc("Verify all suspect skills, the longest waiting first.")] = False,
    candidates: Annotated[bool, Doc("Verify all learned candidates.")] = False,
    budget: Budget = 4,
    problems: Problems = None,
) -> Any:
    """Test a skill by searches with and without it. It becomes active where it certainly helps.

    The problems and cases are others than those that the skill was learned from.
    """
    if (name is not None) + queued + candidates != 1:
        raise InvalidRequest(
            "verify needs one of NAME, --queued and --candidates", hint="Give exactly one of them."
        )
    from skills.trials.verification import Verifier, waiting

    services = local.services
    if name is not None:
        services.skills.show(name)  # an unknown name is refused before anything is read
    local.load_knowledge(note)
    names = [name] if name is not None else waiting(services, queued=queued)
    verifier = Verifier(services, problems)
    return [verifier.verify(skill, budget, login()) for skill in names]


@command(app, text=lambda tried: f"{_trials(tried['trials'])}\n{tried['reason']}")
def ablate(local: CommandTarget, name: Name, budget: Budget = 4, problems: Problems = None) -> Any:
    """Run the trials of `verify` without changing the skill."""
    from skills.trials.verification import Verifier

    local.services.skills.show(name)  # an unknown name is refused before anything is read
    local.load_knowledge(note)
    return Verifier(local.services, problems).try_out(name, budget)


def _proved_text(proved: Any) -> str:
    if "session" in proved:
        left = [f"left out: {name}: {why}" for name, why in proved["left out"].items()]
        return "\n".join([f"{proved['session']}: {proved['trials']} trials", *left])
    names = ("skill", "place", "problem", "case", "gain", "end", "placebo", "wrong", "note")
    shown = [
        {**row, **{figure: interval(row.get(figure)) for figure in ("gain", "end", "placebo")}}
        | {"skill": name, "note": row.get("untried") or row.get("note")}
        for name, rows in proved["trials"].items()
        for row in rows
    ]
    effects = [f"{name}: {effect}" for name, effect in proved["effects"].items()]
    return "\n".join([columns(*names)(shown), *effects])


@command(app, text=_proved_text)
def prove(
    local: CommandTarget,
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of skills. Default: all that ship.")
    ] = None,
    budget: Budget = 3,
    problems: Annotated[
        Path | None, Doc("Folder of further problems, which no skill was made from.")
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option(metavar="ZIP", help="Pack the trials for another machine instead."),
    ] = None,
    hardware: Annotated[str | None, Doc("With --pack: id of that machine's hardware.")] = None,
    results: Annotated[
        Path | None,
        typer.Option("--import", metavar="RESULTS", help="Read the results of a packed session."),
    ] = None,
    library: Annotated[
        Path | None, Doc("Folder of the shipped skills, whose evidence.jsonl is written.")
    ] = None,
    models: Annotated[
        str, Doc("Models that write kernels with and without the skills that are text.")
    ] = "",
    api_base: ApiBase = None,
    model_seconds: ModelSeconds = 300.0,
    reader: Reader = "auto",
) -> Json:
    """Measure searches with and without skills.

    Each recipe is tried on cases that it was not made from: two inside its preconditions, one at
    their edge, one outside. A skill that is text needs --models and is tried on problems of its
    operators, those in a subfolder of --problems with its name first. With --library, the results
    are written into the skills' folders.
    """
    from api.cli.search import remarks
    from optimizer.search.synthesizers.llm.settings import ModelOptions
    from skills.trials.proof import Prover, proofs_of, write_evidence

    if (pack is None) != (hardware is None) or (pack is not None and results is not None):
        raise InvalidRequest(
            "--pack needs --hardware, and excludes --import",
            hint="Give --pack ZIP --hardware ID, or --import RESULTS, or neither.",
        )
    command = "kernlore skills prove"
    if results is not None:
        proofs: Iterable[Proof] = proofs_of(results, f"{command} --pack, --import")
    else:
        local.load_knowledge(note)
        options = ModelOptions(models, api_base, timeout_s=model_seconds, reader=reader)
        prover = Prover(local.services, problems, options, remarks())
        chosen = prover.names(names or [])
        if pack is not None and hardware is not None:
            return prover.pack(chosen, hardware, budget, pack, note)
        proofs = prover.prove(chosen, budget, f"{command} --budget {budget}", note)
    trials: dict[str, Any] = {}
    effects: dict[str, str] = {}
    for proof in proofs:
        if library is not None:
            write_evidence(library, proof)
        trials[proof.skill] = [row.as_json() for row in proof.trials]
        effects[proof.skill] = str(proof.effect)
    return {"trials": trials, "effects": effects}


@command(app, text=pairs)
def lift(services: Services, name: Name) -> Any:
    """Show how much a skill helps. Compares runs that were shown it with runs that were not."""
    from skills.uses import lift_report

    return lift_report(services, name)
