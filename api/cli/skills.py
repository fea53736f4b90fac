"""`kernlore skills`: the library of measured transformations."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli import skills_curation
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, pairs, shortened, show, table
from api.cli.target import open_target

app = typer.Typer(help="The skill library.")
app.add_typer(skills_curation.app)


@app.command("list")
def list_(
    tier: Annotated[str | None, typer.Option(help="curated or learned.")] = None,
    state: Annotated[str | None, typer.Option(help="Like active.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Every skill with its state."""
    with open_target(data_dir, url) as target:
        found = [
            skill
            for skill in target.skills()
            if tier in (None, skill["tier"]) and state in (None, skill["state"])
        ]
    show(
        found,
        as_json,
        lambda rows: table(
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


def _one(skill: Json) -> str:
    head = {**skill["summary"], "origin": skill["origin"], "predicate": skill["predicate"]}
    return f"{pairs(head)}\n\n{skill['body']}".rstrip()
