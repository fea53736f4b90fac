"""`kernlore config show`: every setting with its value and where that comes from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.backends import read_settings
from api.cli.options import AsJson, DataDir
from api.cli.output import show, table
from kb.addresses import without_password

app = typer.Typer(help="Settings in effect.")


@app.callback()
def group() -> None:
    """Settings in effect."""


@app.command("show")
def show_(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of settings to show. Default: all of them.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show settings with their values, sources and meaning."""
    settings = read_settings(data_dir)
    environment = {name.upper() for name in os.environ}
    given = {"data_dir"} if data_dir is not None else set()
    rows: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        if names and name not in names:
            continue
        variable = f"KERNLORE_{name.upper()}"
        source = "default"
        if name in given:
            source = f"--{name.replace('_', '-')}"
        elif variable in environment:
            source = f"environment {variable}"
        rows[name] = {
            "value": _plain_value(name, getattr(settings, name)),
            "source": source,
            "help": field.description or "",
        }
    show(
        rows,
        as_json,
        lambda values: table(
            ("setting", "value", "source", "meaning"),
            [(name, v["value"], v["source"], v["help"]) for name, v in values.items()],
        ),
    )


def _plain_value(name: str, value: Any) -> Any:
    if name in ("catalog", "chroma_url", "blob_url") and value is not None:
        return without_password(value)
    return str(value) if isinstance(value, Path) else value
