"""The options that many commands share, spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Data directory [env KERNLORE_DATA_DIR, default ./data]."),
]
Url = Annotated[
    str | None,
    typer.Option("--url", help="Use the service at this URL; default is the one on the data dir."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="One JSON document on the last line of standard output.")
]


def switched_on(word: str) -> bool:
    """What `--knowledge` says. Raises InvalidRequest."""
    from kb.errors import InvalidRequest

    if word not in ("on", "off"):
        raise InvalidRequest(f"--knowledge is {word!r}", hint="Give on or off.")
    return word == "on"
