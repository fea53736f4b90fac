"""`kernlore doctor`: checks of the data directory and of the installation.

Runs each check of `api.cli.checks` and reports all of them; with `--exploits`, runs the known ways
to cheat an evaluation against this installation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.backends import read_settings, send_logs_to_stderr
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import show

if TYPE_CHECKING:
    from optimizer.evaluation.exploits.proof import ExploitResult
    from optimizer.evaluation.exploits.table import Defence


def doctor(
    data_dir: DataDir = None,
    url: Url = None,
    exploits: Annotated[
        bool,
        typer.Option(
            "--exploits",
            help="Instead, run the known ways to cheat an evaluation against this one.",
        ),
    ] = False,
    without: Annotated[
        int | None,
        typer.Option(
            "--without",
            metavar="ROW",
            help="With --exploits: switch off the defence of this exploit.",
        ),
    ] = None,
    only: Annotated[
        list[int] | None,
        typer.Option(
            "--only", metavar="ROW", help="With --exploits: run only this exploit; repeat for more."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the data directory and the installation. Exits 1 if something is wrong."""
    send_logs_to_stderr("error")
    if exploits or without is not None or only:
        _exploits(without, only, as_json)
        return
    from api.cli import checks

    results = list(
        checks.of_service(url) if url is not None else checks.of_directory(read_settings(data_dir))
    )
    healthy = all(check.ok for check in results)
    show(
        {"ok": healthy, "checks": results},
        as_json,
        lambda answer: "\n".join(
            f"{'ok' if c['ok'] else 'WRONG':<6}{c['name']}: {c['detail']}"
            + (f"\n      {c['hint']}" if c["hint"] and not c["ok"] else "")
            for c in answer["checks"]
        ),
    )
    if not healthy:
        raise typer.Exit(1)


def _exploits(without: int | None, only: Sequence[int] | None, as_json: bool) -> None:
    """One line for each row as it is known, then the counts."""
    from optimizer.evaluation.exploits.proof import run_exploits

    results = []
    for result in run_exploits(only, without):
        results.append(result)
        if not as_json:
            typer.echo(_line(result, without))
    counted = [result for result in results if result.state != "not run here"]
    caught = sum(result.state == "caught" for result in counted)
    rows = [
        {"row": r.row.number, "title": r.row.title, "kind": r.row.kind, "state": r.state}
        | {"detail": r.detail, "defence": r.row.defence, "shows": _shown(r.row)}
        for r in results
    ]
    show(
        {"caught": caught, "of": len(counted), "without": without, "exploits": rows},
        as_json,
        lambda _: (
            f"candidates {_share(counted, 'candidate')}, properties {_share(counted, 'property')}\n"
            f"caught {caught} of {len(counted)}"
        ),
    )
    if caught < len(counted):
        raise typer.Exit(1)


def _line(result: ExploitResult, without: int | None) -> str:
    off = " (defence off)" if result.row.number == without else ""
    state = "GOT THROUGH" if result.state == "won" else result.state
    line = f"{result.row.number:>2}  {state:<13}{result.row.title}{off}: {result.detail}"
    return f"{line}\n    shows: {_shown(result.row)}"


def _shown(row: Defence) -> str:
    """What a row proves: the defence that holds, and what is open without it."""
    if not row.without:
        return row.defence
    return f"{row.defence}; without it {row.without} and the exploit wins"


def _share(results: Sequence[ExploitResult], kind: str) -> str:
    of_kind = [result for result in results if result.row.kind == kind]
    return f"{sum(result.state == 'caught' for result in of_kind)} of {len(of_kind)}"
