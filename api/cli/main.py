"""`kernlore`: the commands put together, and the one place where an error becomes an exit code.

Exit codes: 0 done; 1 something went wrong, or part of the work was refused or failed; 2 the request
itself cannot be carried out as it stands; 130 interrupted.

The module of a command is imported when that command is used, so that `kernlore --help` costs
little; until then its line in the list comes from `COMMANDS`.
"""

from __future__ import annotations

import atexit
import errno
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command, get_group

from api.cli.output import report_error
from kb import telemetry
from kb.errors import InvalidRequest, KernloreError, Unavailable
from kb.memory import collect_rarely

# Of a command and of a service: they read and embed.
ENCODING_THREADS = ("reading", "ingestion", "vectors")


class Entry(NamedTuple):
    """A command or group of commands: where its function or `typer.Typer` is, and its first
    sentence, which a test compares with it.
    """

    name: str
    place: str
    help: str


COMMANDS = (
    Entry(
        "serve",
        "commands.serve:serve",
        "Run the HTTP service, which also reads uploads.",
    ),
    Entry("mcp", "commands.mcp:mcp", "Answer a coding agent through MCP tools."),
    Entry("ingest", "commands.ingest:ingest", "Read files and folders into the knowledge base."),
    Entry(
        "retrieve",
        "commands.retrieve:retrieve",
        "Ask about a signal, a log, metrics, a profile or a question.",
    ),
    Entry(
        "outcome",
        "commands.retrieve:outcome",
        "Report whether an answer led to a correct and faster kernel.",
    ),
    Entry("signals", "commands.knowledge:signals", "List the run-time signals."),
    Entry(
        "evaluate", "commands.evaluate:evaluate", "Compile, check and time one candidate kernel."
    ),
    Entry("optimize", "commands.optimize:optimize", "Search for a faster kernel."),
    Entry("problem", "commands.problem:app", "Problems: what a kernel has to compute."),
    Entry("runs", "commands.runs:app", "Runs: searches for a faster kernel."),
    Entry(
        "trajectories",
        "commands.trajectories:app",
        "Searches of other optimizers, and training data.",
    ),
    Entry("skills", "commands.skills:app", "Skills: measured transformations of kernels."),
    Entry("knowledge", "commands.knowledge:app", "Browse and check what is known."),
    Entry("documents", "commands.documents:app", "Documents: list, show, correct, delete."),
    Entry("hardware", "commands.hardware:app", "Hardware: descriptions, facts, coverage."),
    Entry("jobs", "commands.jobs:app", "Jobs: the progress of reading documents."),
    Entry("keys", "commands.keys:app", "Keys: who may use the service, and what was changed."),
    Entry("reindex", "commands.reindex:reindex", "Rebuild the search indexes from the catalog."),
    Entry(
        "backup",
        "commands.backup:backup",
        "Copy the data directory into one file.",
    ),
    Entry(
        "restore",
        "commands.backup:restore",
        "Make a new data directory from a backup.",
    ),
    Entry("catalog", "commands.catalog:app", "The catalog: move it to PostgreSQL, or back."),
    Entry("doctor", "commands.doctor:doctor", "Check the data directory and the installation."),
    Entry("config", "commands.config:app", "Settings in effect."),
)


class LazyCommand(TyperCommand):
    """A line in the list of commands; the command itself is imported when it is used."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, help=entry.help, rich_markup_mode=None)
        self._place = entry.place

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """That of the command itself, which is then invoked in place of this line."""
        return self.load().make_context(*arguments, **options)

    def load(self) -> TyperCommand | TyperGroup:
        """The command or group itself."""
        module, _, attribute = self._place.partition(":")
        loaded = getattr(import_module(f"api.cli.{module}"), attribute)
        if not isinstance(loaded, typer.Typer):
            function = loaded
            loaded = typer.Typer(add_completion=False)
            loaded.command(self.name)(function)
        loaded.rich_markup_mode = None  # help is plain text: `[...]` stays, and rich is not loaded
        groups = bool(loaded.registered_groups) or len(loaded.registered_commands) > 1
        command: Any = get_group(loaded) if groups or loaded.registered_callback else None
        command = command or get_command(loaded)
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
    for entry in COMMANDS:
        group.add_command(LazyCommand(entry))
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
    except typer.Abort:  # the input ended where a command wanted some
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


def _store_errors() -> tuple[type[Exception], ...]:
    """What SQLAlchemy raises, where a command has imported it: that takes a quarter of a second."""
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
        # It was waited for long enough. An interpreter that ends unwinds it within onnxruntime,
        # which aborts the process: "terminate called without an active exception".
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
