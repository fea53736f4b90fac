"""The options that several commands share, and their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kb.errors import InvalidRequest

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Data directory. Default: KERNLORE_DATA_DIR from the environment, or ./data.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="URL of a service to use. Default: the service that runs on the data directory, or"
        " none.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as one line of JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Actor = Annotated[str | None, typer.Option(help="Who decides. Default: your login name.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="A new or empty folder.")]
ProblemPath = Annotated[
    str,
    typer.Argument(
        metavar="PROBLEM", help="A problem file, folder or the name of a built-in problem."
    ),
]
DeviceHardware = Annotated[
    str, typer.Option("--hardware", help="Hardware id; auto: the hardware of this machine.")
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="HOST:PORT of a Ray cluster whose nodes do the work, or auto for the one on this"
        " machine.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Models = Annotated[
    str,
    typer.Option(
        help="Language models that propose candidates too, by their litellm names, with optional"
        " weights: a=2,b."
    ),
]
ApiBase = Annotated[
    str | None,
    typer.Option(help="Address of an OpenAI-compatible server. Default: that of the provider."),
]
# Of a run that continues: the default is the value that the run had.
ContextTokensOfRun = Annotated[
    int | None,
    typer.Option(
        help="Most tokens of knowledge in a prompt. Default: that of the run, or 48,000.", min=1_000
    ),
]
Reader = Annotated[
    str,
    typer.Option(
        help="Class of the models as readers of knowledge: strong, small, full for everything that"
        " fits, or auto for that of their names."
    ),
]
ModelSecondsOfRun = Annotated[
    float | None,
    typer.Option(
        help="Longest time of one call of a model, in seconds. Default: that of the run, or 300.",
        min=1,
    ),
]


Wait = Annotated[
    float,
    typer.Option(
        "--wait-idle",
        "--wait",
        metavar="MINUTES",
        help="Wait at most this long until other work leaves enough processors to time anything.",
        min=0,
    ),
]


def wait_for_processors(minutes: float) -> None:
    """Wait at most `minutes` until other work leaves enough processors, and print the busy
    processes. Returns at once without other work or minutes.
    """
    from api.cli.output import note
    from optimizer.evaluation.isolation.machine import usable_processors, wait_until_quiet

    if minutes and not wait_until_quiet(usable_processors(), 60 * minutes, note):
        note(f"other work did not end within {minutes:g} minutes")


def switched_on(word: str) -> bool:
    """Whether `--knowledge` is on. Raises InvalidRequest for a word other than on and off."""
    if word not in ("on", "off"):
        raise InvalidRequest(f"--knowledge is {word!r}", hint="Give on or off.")
    return word == "on"
