"""`kernlore skills`: the library of measured transformations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.backends import actor as login
from api.cli.backends import open_target
from api.cli.library import curation as skills_curation
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, pairs, shortened, show, table

app = typer.Typer(help="The skill library.")
app.add_typer(skills_curation.app)
Name = Annotated[str, typer.Argument(help="The skill's name.")]
State = Annotated[str | None, typer.Option(help="Like active; several with commas.")]
Tier = Annotated[str | None, typer.Option(help="curated or learned.")]
Hardware = Annotated[str | None, typer.Option(help="That hold for it, and so of any.")]
Signal = Annotated[str | None, typer.Option(help="That are about it.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept in the history.")]
Actor = Annotated[str | None, typer.Option(help="Who says so; default: the login name.")]


@app.command("list")
def list_(
    tier: Tier = None,
    state: State = None,
    hardware: Hardware = None,
    signal: Signal = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Every skill with its state, or those that fit."""
    with open_target(data_dir, url) as target:
        from api.cli.backends.skills import found

        rows = found(target, tier=tier, state=state, hardware=hardware, signal=signal)
    show(rows, as_json, _listed)


@app.command("search")
def search(
    text: Annotated[str, typer.Argument(help="Words of name, text, operators or signals.")],
    tier: Tier = None,
    state: State = None,
    hardware: Hardware = None,
    signal: Signal = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Skills that hold the most of the words first."""
    with open_target(data_dir, url) as target:
        from api.cli.backends.skills import found

        rows = found(target, q=text, tier=tier, state=state, hardware=hardware, signal=signal)
    show(rows, as_json, _listed)


@app.command("show")
def show_(name: Name, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """One skill with its text and evidence."""
    with open_target(data_dir, url) as target:
        found = target.skill(name)
    show(found, as_json, _one)


@app.command("history")
def history(name: Name, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """Everything that became of a skill: when, who, why."""
    with open_target(data_dir, url) as target:
        from api.cli.backends.skills import history as events

        found = events(target, name)
    headers = ("created_at", "event", "from_state", "to_state", "actor", "reason")
    show(found, as_json, lambda rows: table(headers, [[r[h] for h in headers] for r in rows]))


# -- a person's word


@app.command("approve")
def approve(
    name: Name,
    reason: Reason,
    force: Annotated[
        bool, typer.Option("--force", help="Although no trial bears it out; its history says so.")
    ] = False,
    actor: Actor = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """A candidate or suspect skill becomes active; a learned one once trials bear it out."""
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
    """Out of every answer until a person restores it; it is not learned again."""
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
    """Out of use; it stays addressable."""
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
    """Bring back what was retired or quarantined, in the state that its measurements allow."""
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
        from api.cli.backends.skills import changed

        patch = {"state": state, "actor": actor or login(), "reason": reason, "force": force}
        found = changed(target, name, patch)
    show(found, as_json, lambda told: f"{told['name']} is {told['state']}")


# -- in and out


@app.command("export")
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Skills become folders in it.")],
    names: Annotated[
        list[str] | None, typer.Argument(help="Which ones; default: all that are in use.")
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Skills as folders in the open SKILL.md format, without scripts."""
    with open_target(data_dir, url) as target:
        from api.cli.backends.skills import exported

        found = [str(path) for path in exported(target, names or [], folder)]
    show(found, as_json, "\n".join)


@app.command("import")
def import_(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="A skill's folder, or one of several.")
    ],
    actor: Actor = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Take skill folders in as candidates, whatever they claim of their state."""
    with open_target(data_dir, url) as target:
        from api.cli.backends.skills import taken_in

        found = [one for folder in folders for one in taken_in(target, folder, actor or login())]
    headers = ("name", "outcome", "state", "dropped")
    show(found, as_json, lambda rows: table(headers, [_imported(row) for row in rows]))


def _imported(row: Json) -> list[Any]:
    return [row["name"], row["outcome"], row["state"], ", ".join(row["dropped"]) or "nothing"]


def _listed(rows: Any) -> str:
    return table(
        ("name", "tier", "state", "evidence", "description"),
        [
            (
                row["name"],
                row["tier"],
                row["state"],
                row["evidence"],
                shortened(row["description"], 90),
            )
            for row in rows
        ],
    )


def _one(skill: Json) -> str:
    head = {**skill["summary"], "origin": skill["origin"], "predicate": skill["predicate"]}
    return f"{pairs(head)}\n\n{skill['body']}".rstrip()
