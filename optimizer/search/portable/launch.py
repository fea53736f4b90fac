"""What `python session.zip` runs on the machine with the device.

`[--out FOLDER] [--minutes M] [--candidates N] [--finalists N] [--language NAME] [--only NAME ...]`
searches every packed problem on that machine's device and writes rows and results into a folder
that `kernlore runs import` reads.

Every problem has a process of its own: whatever its reference does to memory, to the device or to
the process ends with a sentence about that problem, and the next one begins. This process imports
nothing heavy: it only waits.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

_ALONE = """\
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from optimizer.search.portable.session import search_alone
from retrieval.diagnose.linear_patterns import trust_patterns

trust_patterns()
raise SystemExit(search_alone(Path(sys.argv[1]), sys.argv[2:]))
"""
SEARCHED, FAILED = 0, 1  # exit codes of a problem's process; any other is a crash
WHY_FAILED = ".failed.txt"
HANG_MINUTES = 30.0  # beyond twice its time, after which a problem's process is killed
SESSION = "session.json"
RESULTS = "results.zip"
CEILINGS = "ceilings.json"
DESCRIPTION = (
    "Search every packed problem on this machine's device and write the results to a folder."
)


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Search every problem of the session unpacked in `folder`, each in a process of its own;
    returns the exit code, 1 where a problem failed.
    """
    options = read_arguments(arguments)
    session = json.loads((folder / SESSION).read_text(encoding="utf-8"))
    until = time.monotonic() + 60 * options.minutes if options.minutes else None
    failed = 0
    for entry in session["problems"]:
        if options.only and entry["name"] not in options.only:
            continue
        left = None if until is None else (until - time.monotonic()) / 60
        if left is not None and left <= 0:
            print(f"{entry['name']}: not begun, the time is over", flush=True)
            continue
        ended = _in_own_process(folder, options, entry["name"], _minutes(session, left))
        if ended:
            failed += 1
            print(f"{entry['name']}: {ended}", flush=True)
            _store_failure(options.out, run_id(session, entry), ended)
        _zip(options.out)
    return 1 if failed else 0


def run_id(session: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Of an entry's run: its own where it was begun elsewhere."""
    return str(entry["run"]["id"]) if "run" in entry else f"{session['id']}_{entry['name']}"


def _minutes(session: Mapping[str, Any], left: float | None) -> float | None:
    """What a search may take: what its goal says, and what is left."""
    limits = [m for m in (session["goal"].get("minutes"), left) if m is not None]
    return min(limits, default=None)


def _in_own_process(
    folder: Path, options: argparse.Namespace, name: str, minutes: float | None
) -> str | None:
    """Search one problem in a process of its own; returns why it failed, or None."""
    command = [sys.executable, "-c", _ALONE, str(folder), "--out", str(options.out.resolve())]
    command += ["--only", name]
    for option, value in (
        ("--minutes", minutes),
        ("--candidates", options.candidates),
        ("--finalists", options.finalists),
        ("--language", options.language),
    ):
        if value is not None:
            command += [option, str(value)]
    limit = None if minutes is None else 60 * (2 * minutes + HANG_MINUTES)
    reason: Path = options.out / f"{name}{WHY_FAILED}"
    reason.unlink(missing_ok=True)
    try:
        code = subprocess.run(command, timeout=limit, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"its process was killed after {limit or 0:.0f} seconds: it did not end by itself"
    if code == SEARCHED:
        return None
    if code == FAILED and reason.exists():
        return reason.read_text(encoding="utf-8").splitlines()[0]
    by = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    memory = "; the usual cause is a lack of memory" if code == -signal.SIGKILL else ""
    return f"its process ended by {by}{memory}"


def _store_failure(out: Path, run_id: str, reason: str) -> None:
    """The row of a run that ended before its search did."""
    from optimizer.search.store import FileStore  # imports torch

    store = FileStore(out)
    if (store.folder / run_id / "run.json").exists():
        row = store.run(run_id)
        seconds = time.time() - row.started_at
        store.update(replace(row, state="failed", ended=reason, seconds=seconds))


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="session.zip", description=DESCRIPTION)
    parser.add_argument("--out", type=Path, default=Path("kernlore-results"))
    parser.add_argument("--minutes", type=float, help="start no problem after this many minutes")
    parser.add_argument("--candidates", type=int, help="at most this many for each problem")
    parser.add_argument("--finalists", type=int, help="number measured again in the end")
    parser.add_argument("--language", help="language of the candidates")
    parser.add_argument("--only", nargs="*", help="names of the problems to search, all by default")
    return parser.parse_args(arguments)


def _zip(out: Path) -> None:
    """Pack all rows and results so far into one file."""
    scratch = out / f"{RESULTS}.new"
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted([*out.rglob("*.json*"), *out.glob(f"*{WHY_FAILED}")]):
            packed.write(path, path.relative_to(out))
    scratch.replace(out / RESULTS)
