"""`kernlore skills`: the library of measured transformations."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, pairs, shortened, show, table
from api.cli.target import open_target

app = typer.Typer(help="The skill library.")


@app.command("list")
def list_(
    tier: Annotated[str | None, typer.Option(help="curated or learned.")] = None,
    state: Annotated[str | None, typer.Option(help="Like active.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Every skill with its state."""
    filters = {name: value for name, value in (("tier", tier), ("state", state)) if value}
    with open_target(data_dir, url) as target:
        found = target.skills(filters)
    show(
        found,
        as_json,
        lambda rows: table(
            ("name", "tier", "state", "summary"),
            [
                (row["name"], row.get("tier"), row.get("state"), shortened(_summary(row), 90))
                for row in rows
            ],
        ),
    )


@app.command("show")
def show_(
    name: Annotated[str, typer.Argument(help="The skill's name.")],
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """One skill with its text and evidence."""
    with open_target(data_dir, url) as target:
        found = target.skill(name)
    show(found, as_json, _one)


def _summary(skill: Json) -> str:
    return str(skill.get("summary") or skill.get("description") or "")


def _one(skill: Json) -> str:
    body = skill.get("body") or skill.get("text") or ""
    head = pairs({key: value for key, value in skill.items() if key not in ("body", "text")})
    return f"{head}\n\n{body}".rstrip()
