"""`kernlore keys`: who may use the service, and what they changed. On the machine itself, never
over HTTP.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.backends import actor, opened
from api.cli.options import AsJson, DataDir
from api.cli.output import Json, note, pairs, show, table
from kb.plain import plain

app = typer.Typer(help="Keys: who may use the service, and what was changed.")

SHOWN_ONCE = "This is the only time that the key is shown; only its hash is stored."


@app.command()
def create(
    role: Annotated[
        str,
        typer.Option(
            help="What it may do: reader asks; writer also uploads, corrects and describes chips;"
            " curator also decides about facts and skills; admin also deletes and has code run."
        ),
    ],
    hardware: Annotated[
        list[str] | None,
        typer.Option(
            help="Restrict it to this hardware, with the families above it and what is about no"
            " chip in particular; repeat for several."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Whose it is, or what for.")] = "",
    expires: Annotated[
        float | None, typer.Option(help="Days after which it ends. Default: never.", min=0.001)
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, and show it once.

    From the first key on the service answers nobody without one.
    """
    with opened(data_dir) as local:
        services = local.services
        first = not services.keys.any()
        chips = [services.registry.resolve(chip) for chip in hardware or ()]
        made = services.keys.create(role, name=name, hardware=chips, days=expires)
        _audit(services, "keys create", made.key.id)
    shown = _described(made.key) | {"key": made.secret}
    show(shown, as_json, pairs)
    if first:
        note("It is the first: from now on every request needs a key.")
    note(SHOWN_ONCE)


@app.command("list")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List keys, newest first, without their secrets."""
    with opened(data_dir) as local:
        keys = local.services.keys.list()
    show({"keys": [_described(key) for key in keys]}, as_json, _table)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The id of the key, as `keys list` shows it.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """End a key at once, with the sessions that were opened with it.

    Revoking the last one does not open the service again.
    """
    with opened(data_dir) as local:
        key = local.services.keys.revoke(key_id)
        _audit(local.services, "keys revoke", key.id)
    show(_described(key), as_json, pairs)


@app.command()
def audit(
    limit: Annotated[int, typer.Option(help="Changes to show.", min=1, max=100_000)] = 50,
    key: Annotated[str, typer.Option(help="Only changes by this key, by its id.")] = "",
    subject: Annotated[str, typer.Option(help="Only changes of what has this id.")] = "",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show who changed what, newest first. It is read from audit.jsonl of the data directory."""
    from api.cli.backends import read_settings
    from kb.audit import AuditLog

    folder: Path = read_settings(data_dir).data_dir
    entries = AuditLog(folder).read(limit, who=key, subject=subject)
    show({"changes": entries}, as_json, _changes)


def _audit(services: Any, action: str, key_id: str) -> None:
    from kb.audit import AuditEntry

    services.audit.append(AuditEntry(f"local:{actor()}", action, "done", (key_id,)))


def _described(key: Any) -> dict[str, Any]:
    fields: dict[str, Any] = plain(key)
    return fields | {"state": key.state}


def _table(answer: Json) -> str:
    if not answer["keys"]:
        return "There are no keys: whoever reaches the service may do everything."
    names = ("id", "name", "role", "hardware", "state", "created_at", "expires_at", "last_used_at")
    return table(names, ([_cell(key[name]) for name in names] for key in answer["keys"]))


def _changes(answer: Json) -> str:
    if not answer["changes"]:
        return "Nothing was changed yet."
    names = ("at", "who", "role", "action", "outcome", "subjects")
    return table(
        names, ([_cell(entry.get(name, "")) for name in names] for entry in answer["changes"])
    )


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value or "")
