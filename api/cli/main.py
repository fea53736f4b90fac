"""`kernlore`: the commands put together, and the one place where an error becomes an exit code.

Exit codes: 0 done; 1 something went wrong, or part of the work was refused or failed; 2 the request
itself is wrong; 130 interrupted.

The module of a command is imported when that command is used, so that `kernlore --help` takes
little time; until then its line in the list comes from `COMMANDS`.
"""

from __future__ import annotations

import atexit
import errno
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command, get_group

from api.cli.output import report_error
from kb import telemetry
from kb.errors import InvalidRequest, KernloreError, Unavailable
from kb.memory import collect_rarely

# Threads of a command and of a service that read and embed.
ENCODING_THREADS = ("reading", "ingestion", "vectors")


# By name: the `module:name` of its function or `typer.Typer` below `api.cli.commands`, and the
# first sentence of its help.
COMMANDS = {
    "serve": ("serve:serve", "Run the HTTP service, which also reads uploads."),
    "mcp": ("serve:mcp", "Answer a coding agent through MCP tools."),
    "ingest": ("ingest:ingest", "Read files and folders into the knowledge base."),
    "retrieve": ("retrieve:retrieve", "Ask about a log, a profile, code, a question or a signal."),
    "outcome": ("retrieve:outcome", "Report whether an answer led to a correct and faster kernel."),
    "signals": ("knowledge:signals", "List the run-time signals."),
    "evaluate": ("problem:evaluate", "Compile, check and time one candidate kernel."),
    "judge": ("problem:judge", "Judge a submission to a task of a benchmark or leaderboard."),
    "optimize": ("optimize:optimize", "Search for a faster kernel."),
    "problem": ("problem:app", "Problems: the computations that kernels are written for."),
    "runs": ("runs:app", "Runs: searches for a faster kernel."),
    "trajectories": ("trajectories:app", "Searches of other optimizers, and training data."),
    "skills": ("skills:app", "Skills: measured transformations of kernels."),
    "knowledge": ("knowledge:app", "Browse and check the knowledge base."),
    "documents": ("documents:app", "Documents: list, show, correct, delete."),
    "hardware": ("hardware:app", "Hardware: descriptions, facts, coverage."),
    "jobs": ("jobs:app", "Jobs: the progress of reading documents."),
    "keys": ("keys:app", "Keys of the service, and the log of changes."),
    "reindex": ("data_directory:reindex", "Rebuild the search indexes from the catalog."),
    "backup": ("data_directory:backup", "Copy the data directory into one file."),
    "restore": ("data_directory:restore", "Make a new data directory from a backup."),
    "catalog": ("data_directory:catalog", "The catalog: move it to PostgreSQL, or back."),
    "doctor": ("doctor:doctor", "Check the data directory and the installation."),
    "config": ("data_directory:config", "Settings in effect."),
}


class LazyCommand(TyperCommand):
    """A line in the list of commands; the command itself is imported when it is used."""

    def __init__(self, name: str) -> None:
        self._place, text = COMMANDS[name]
        super().__init__(name, help=text, rich_markup_mode=None)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """The context of the command itself, which is then invoked in place of this line."""
        return self.load().make_context(*arguments, **options)

    def load(self) -> TyperCommand | TyperGroup:
        """The command or group itself."""
        module, _, attribute = self._place.partition(":")
        loaded = getattr(import_module(f"api.cli.commands.{module}"), attribute)
        app = loaded if isinstance(loaded, typer.Typer) else typer.Typer(add_completion=False)
        app.rich_markup_mode = None  # help is plain text: `[...]` stays, and rich is not loaded
        command: Any
        if app is loaded:
            command = get_group(app)
        else:
            app.command(self.name)(loaded)
            command = get_command(app)
        command.name = self.name
        return command  # type: ignore[no-any-return]


def kernlore() -> TyperGroup:
    """The whole command line."""
    app = typer.Typer(
        name="kernlore",
        help="Knowledge for optimizing kernels of GPUs and other accelerators: reads the manuals of"
        " chips, explains run-time problems with cited passages, and searches for faster kernels.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    group = get_group(app)
    for name in COMMANDS:
        group.add_command(LazyCommand(name))
    return group


def main(arguments: Sequence[str]) -> int:
    """Carry out one command line; the exit code."""
    as_json = "--json" in arguments
    try:
        telemetry.start()
        return int(
            kernlore().main(
                list(arguments) or ["--help"], prog_name="kernlore", standalone_mode=False
            )
            or 0
        )
    except KernloreError as error:
        report_error(error, as_json)
        return 2 if 400 <= error.status < 500 else 1
    except TyperException as error:
        return _misspelled(error, as_json)
    except typer.Abort:  # the input ended before a question was answered
        report_error(
            InvalidRequest("the input ended too early", hint="Give the answer as an option."),
            as_json,
        )
        return 1
    except _store_errors() as error:
        from kb.catalog.database import store_fault

        fault = store_fault(error)
        if fault is None:
            raise
        report_error(fault, as_json)
        return 1
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of standard output has ended
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


def _store_errors() -> tuple[type[Exception], ...]:
    """Errors of SQLAlchemy, if a command has imported it, which takes a quarter of a second."""
    loaded = sys.modules.get("sqlalchemy.exc")
    return (loaded.DBAPIError,) if loaded is not None else ()


def _misspelled(error: TyperException, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "kernlore"
    message = getattr(error, "format_message", lambda: str(error))()
    report_error(InvalidRequest(message, hint=f"See `{path} --help`."), as_json)
    return 2


def run() -> None:
    """The entry point of the `kernlore` command."""
    collect_rarely()
    code = main(sys.argv[1:])
    if any(thread.name in ENCODING_THREADS for thread in threading.enumerate()):
        # The command has waited for it already. An interpreter that ends unwinds it within
        # onnxruntime, which aborts the process: "terminate called without an active exception".
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
