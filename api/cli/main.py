"""`kernlore`: the commands put together, and the one place where an error becomes an exit code.

Exit codes: 0 done; 1 something went wrong, or part of the work was refused or failed; 2 the request
itself cannot be carried out as it stands; 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from api.cli.knowledge import hardware, knowledge, retrieve
from api.cli.library import skills
from api.cli.output import report_error
from api.cli.search import evaluate, optimize, problem, runs, trajectories
from api.cli.store import config, doctor, documents, ingest, jobs, reindex, serve
from kb.errors import InvalidRequest, KernloreError, Unavailable

app = typer.Typer(
    name="kernlore",
    help="Knowledge for kernel optimizers: chip manuals in, cited answers to run-time signals out.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("ingest")(ingest.ingest)
app.command("retrieve")(retrieve.retrieve)
app.command("outcome")(retrieve.outcome)
app.command("signals")(knowledge.signals)
app.command("reindex")(reindex.reindex)
app.command("doctor")(doctor.doctor)
app.command("evaluate")(evaluate.evaluate)
app.command("optimize")(optimize.optimize)
app.add_typer(knowledge.app, name="knowledge")
app.add_typer(documents.app, name="documents")
app.add_typer(hardware.app, name="hardware")
app.add_typer(skills.app, name="skills")
app.add_typer(problem.app, name="problem")
app.add_typer(runs.app, name="runs")
app.add_typer(trajectories.app, name="trajectories")
app.add_typer(jobs.app, name="jobs")
app.add_typer(config.app, name="config")


def main(arguments: Sequence[str]) -> int:
    """Carry out one command line; the exit code."""
    as_json = "--json" in arguments
    try:
        return int(
            app(list(arguments) or ["--help"], prog_name="kernlore", standalone_mode=False) or 0
        )
    except KernloreError as error:
        report_error(error, as_json)
        return 2 if 400 <= error.status < 500 else 1
    except TyperException as error:
        return _misspelled(error, as_json)
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of our output has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        where = f"{error.filename}: " if error.filename else ""
        report_error(
            Unavailable(
                f"{where}{error.strerror or error}",
                hint="Check that the path exists and that you may read and write it.",
            ),
            as_json,
        )
        return 1


def _misspelled(error: TyperException, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "kernlore"
    message = getattr(error, "format_message", lambda: str(error))()
    report_error(InvalidRequest(message, hint=f"See `{path} --help`."), as_json)
    return 2


def run() -> None:
    """The entry point of the `kernlore` command."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
