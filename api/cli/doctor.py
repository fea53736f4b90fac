"""`kernlore doctor`: whether everything that has to fit together does.

Runs each check of `api.cli.checks` and reports all of them.
"""

from __future__ import annotations

import typer

from api.cli.options import AsJson, DataDir, Url
from api.cli.output import show
from api.cli.target import read_settings, send_logs_to_stderr


def doctor(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """Check the store, the model, the parsers and the index; exit code 1 if something is wrong."""
    from api.cli import checks

    send_logs_to_stderr("error")
    found = list(
        checks.of_service(url) if url is not None else checks.of_directory(read_settings(data_dir))
    )
    healthy = all(check.ok for check in found)
    show(
        {"ok": healthy, "checks": found},
        as_json,
        lambda answer: "\n".join(
            f"{'ok' if c['ok'] else 'WRONG':<6}{c['name']}: {c['detail']}"
            + (f"\n      {c['hint']}" if c["hint"] and not c["ok"] else "")
            for c in answer["checks"]
        ),
    )
    if not healthy:
        raise typer.Exit(1)
