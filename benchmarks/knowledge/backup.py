"""What a backup costs: seconds and bytes of `kernlore backup`, `--verify` and `kernlore restore` of
a directory with the built-in knowledge, and what writers notice of it.

Without the time that an interpreter takes to start.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from api.cli.target import CommandTarget, read_settings
from benchmarks.report import ended, say, table, write_result
from kb.backup import Backup, verify_backup, write_backup
from kb.catalog import meta, open_catalog
from kb.restore import restore_backup
from kb.settings import MIB

COMMAND = "python -m benchmarks.knowledge.backup --results benchmarks/results/backup.md"
FORMS = (".tar", ".tar.gz")


@dataclass(frozen=True)
class Seconds:
    """Medians of one form, in seconds, and the last backup of that form."""

    backup: float
    verify: float
    restore: float
    written: Backup


def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="kernlore-backup-") as folder:
        data_dir = options.data_dir or Path(folder) / "data"
        if not (data_dir / "catalog.sqlite").exists():
            say("reading the built-in knowledge")
            read_builtin(data_dir)
        measured = {form: measure(data_dir, Path(folder), form, options.times) for form in FORMS}
        copy = Path(folder) / f"restored-0{FORMS[0]}"
        pauses = {
            "none": longest_pauses(copy, lambda: time.sleep(1.0), options.times),
            "backup": longest_pauses(copy, _once(copy, Path(folder)), options.times),
        }
    parts = [
        f"`{COMMAND}`",
        held(measured[".tar"].written),
        f"Medians of {options.times}, in seconds, without the start of an interpreter:",
        forms_table(measured),
        "A writer beside it commits small transactions one after another. The longest that one"
        f" took, in milliseconds (median and worst of {options.times}):",
        pauses_table(pauses),
    ]
    write_result(options.results, "Backup and restore", parts)


def read_builtin(data_dir: Path) -> None:
    """All that ships, with its vectors."""
    local = CommandTarget(read_settings(data_dir))
    try:
        local.load_knowledge(say)
    finally:
        local.close()


def measure(data_dir: Path, folder: Path, form: str, times: int) -> Seconds:
    settings = read_settings(data_dir)
    taken: dict[str, list[float]] = {"backup": [], "verify": [], "restore": []}
    for number in range(times):
        file = folder / f"{number}{form}"
        with _timed(taken["backup"]):
            written = write_backup(settings, file)
        with _timed(taken["verify"]):
            verify_backup(file)
        with _timed(taken["restore"]):
            restore_backup(file, read_settings(folder / f"restored-{number}{form}"))
    return Seconds(**{name: statistics.median(of) for name, of in taken.items()}, written=written)


@contextmanager
def _timed(seconds: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - began)


def _once(data_dir: Path, folder: Path) -> Callable[[], object]:
    settings, numbers = read_settings(data_dir), iter(range(1000))
    return lambda: write_backup(settings, folder / f"beside-{next(numbers)}.tar")


def longest_pauses(data_dir: Path, beside: Callable[[], object], times: int) -> list[float]:
    """The longest commit, in seconds, of each time that `beside` is called."""
    catalog, pauses = open_catalog(data_dir), []
    for _ in range(times):
        stop, commits = threading.Event(), [0.0]

        def write(stop: threading.Event = stop, commits: list[float] = commits) -> None:
            while not stop.is_set():
                with _timed(commits), catalog.write() as connection:
                    meta.put(connection, "benchmark", {"commits": len(commits)})

        thread = threading.Thread(target=write)
        thread.start()
        beside()
        stop.set()
        thread.join()
        pauses.append(max(commits))
    catalog.close()
    return pauses


def held(written: Backup) -> str:
    contents = written.contents
    counts = ", ".join(f"{n:,} {name}" for name, n in contents.manifest.counts.items() if n)
    return (
        f"The directory: {contents.files:,} files, {contents.bytes / MIB:.1f} MiB ({counts});"
        " the vectors lie in its catalog, the vector index is left out."
    )


def forms_table(measured: Mapping[str, Seconds]) -> str:
    rows = [
        (
            form,
            f"{m.written.bytes / MIB:.1f}",
            f"{m.backup:.2f}",
            f"{m.verify:.2f}",
            f"{m.restore:.2f}",
        )
        for form, m in measured.items()
    ]
    return table(("file", "MiB", "backup", "verify", "restore"), rows)


def pauses_table(pauses: Mapping[str, list[float]]) -> str:
    rows = [
        (beside, f"{1000 * statistics.median(of):.0f}", f"{1000 * max(of):.0f}")
        for beside, of in pauses.items()
    ]
    return table(("beside", "median", "worst"), rows)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.knowledge.backup", description=__doc__
    )
    parser.add_argument(
        "--data-dir", type=Path, help="One to measure; default: built-in knowledge."
    )
    parser.add_argument("--times", type=int, default=9, help="How often each is measured.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
