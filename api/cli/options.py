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
