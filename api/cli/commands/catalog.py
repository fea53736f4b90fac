"""`kernlore catalog`: moving the catalog between an SQLite file and a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.cli.options import AsJson
from api.cli.output import Json, note, show
from kb.addresses import without_password
from kb.errors import Conflict, InvalidRequest, NotFound

app = typer.Typer(help="The catalog: move it to PostgreSQL, or back.")


@app.callback()
def group() -> None:
    """The catalog: move it to PostgreSQL, or back."""


@app.command("copy")
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="What to copy: see TO.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="A data directory, an SQLite file, or a URL such as"
            " postgresql+psycopg://USER:PASSWORD@HOST/DATABASE. It must hold nothing yet.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Copy every row of a catalog into an empty one. No service may run on either.

    Uploaded files are not in a catalog: keep the data directory's folder blobs, or copy it too.
    """
    from kb.catalog.engine import open_place
    from kb.catalog.moving import copy_catalog
    from kb.data_dir import private_files

    _check(source, target)
    with private_files():
        here = open_place(source)
        try:
            there = open_place(target)
            try:
                counts = copy_catalog(here, there, (lambda _: None) if as_json else note)
            finally:
                there.close()
        finally:
            here.close()
    names = {"from": without_password(source), "to": without_password(target)}
    show({**names, "rows": sum(counts.values()), "tables": counts}, as_json, _text)


def _check(source: str, target: str) -> None:
    from kb.data_dir import running_service

    if source == target:
        raise InvalidRequest("FROM and TO are the same", hint="Give another place to copy to.")
    if "://" not in source and not Path(source).exists():
        raise NotFound(f"there is no catalog in {source}", hint="Give the data directory itself.")
    for place in (source, target):
        folder = Path(place) if Path(place).is_dir() else Path(place).parent
        if "://" not in place and (running := running_service(folder)):
            raise Conflict(
                f"a service runs on {folder} ({running})",
                hint="Stop it: what it writes meanwhile would not be in the copy.",
            )


def _text(answer: Json) -> str:
    return (
        f"copied {answer['rows']:,} rows of {len(answer['tables'])} tables from {answer['from']}"
        f" to {answer['to']}; each table was counted in both"
    )
