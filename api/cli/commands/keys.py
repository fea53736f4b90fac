"""`kernlore keys`: who may use the service, and the audit log. Only on the machine itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from annotated_types import Ge, Le

from api.cli.command import DataDir, command
from api.cli.output import Json, note, pairs, table
from api.cli.target import login, read_settings
from kb.plain import Doc, plain

if TYPE_CHECKING:
    from api.services import Services

app = typer.Typer(help="Keys of the service, and the log of changes.")


@command(app, text=pairs)
def create(
    services: Services,
    role: Annotated[
        str,
        Doc(
            "What it may do: reader asks; writer also uploads, corrects and describes chips;"
            " curator also decides about facts and skills; admin also deletes and has code run."
        ),
    ],
    hardware: Annotated[
        list[str] | None,
        Doc(
            "Restrict it to this hardware, the families above it and general knowledge;"
            " repeat for several."
        ),
    ] = None,
    name: Annotated[str, Doc("Its owner or purpose.")] = "",
    expires: Annotated[
        float | None, Doc("Days after which it ends. Default: never."), Ge(0.001)
    ] = None,
) -> Json:
    """Make a key, and show it once.

    From the first key on the service answers no request without one.
    """
    first = not services.keys.any()
    chips = [services.registry.resolve(chip) for chip in hardware or ()]
    made = services.keys.create(role, name=name, hardware=chips, days=expires)
    _audit(services, "keys create", made.key.id)
    if first:
        note("It is the first: from now on every request needs a key.")
    note("This is the only time that the key is shown; only its hash is stored.")
    return _described(made.key) | {"key": made.secret}


def _keys_table(answer: Json) -> str:
    if not answer["keys"]:
        return "There are no keys: everyone who reaches the service may do everything."
    names = ("id", "name", "role", "hardware", "state", "created_at", "expires_at", "last_used_at")
    return _table(names, answer["keys"])


@command(app, "list", text=_keys_table)
def list_keys(services: Services) -> Json:
    """List keys, newest first, without their secrets."""
    return {"keys": [_described(key) for key in services.keys.list()]}


@command(app, text=pairs)
def revoke(
    services: Services,
    key_id: Annotated[str, typer.Argument(help="The id of the key, as `keys list` shows it.")],
) -> Json:
    """End a key at once, with the sessions that were opened with it.

    Revoking the last one does not open the service again.
    """
    key = services.keys.revoke(key_id)
    _audit(services, "keys revoke", key.id)
    return _described(key)


def _changes_table(answer: Json) -> str:
    if not answer["changes"]:
        return "Nothing was changed yet."
    return _table(("at", "who", "role", "action", "outcome", "subjects"), answer["changes"])


@command(app, text=_changes_table)
def audit(
    limit: Annotated[int, Doc("Changes to show."), Ge(1), Le(100_000)] = 50,
    key: Annotated[str, Doc("Only changes by this key, by its id.")] = "",
    subject: Annotated[str, Doc("Only changes of the object with this id.")] = "",
    data_dir: DataDir = None,
) -> Json:
    """Show who changed what, newest first. It is read from audit.jsonl of the data directory."""
    from kb.audit import AuditLog

    log = AuditLog(read_settings(data_dir).data_dir)
    return {"changes": log.read(limit, who=key, subject=subject)}


def _audit(services: Services, action: str, key_id: str) -> None:
    from kb.audit import AuditEntry

    services.audit.append(AuditEntry(f"local:{login()}", action, "done", (key_id,)))


def _described(key: Any) -> dict[str, Any]:
    return {**plain(key), "state": key.state}


def _table(names: tuple[str, ...], rows: list[Json]) -> str:
    def cell(value: Any) -> str:
        return ", ".join(value) if isinstance(value, list) else str(value or "")

    return table(names, ([cell(row.get(name, "")) for name in names] for row in rows))
