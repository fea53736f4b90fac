"""`python session.zip`: search every packed problem on this machine's device and write rows and
results into a folder that `kernlore runs import` reads.

Every problem is searched in a separate process, so that a reference that crashes, hangs or takes
too much memory only fails its own problem. This process imports nothing heavy. While a problem is
searched on a GPU, the next process does its imports; on a CPU that would disturb measurements, so
there every process is forked from one with the imports done (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from optimizer.evaluation.isolation.launch import AVAILABLE, PreparedProcesses

# Does the imports, then waits for its arguments, one line of JSON; exits without them.
_ALONE = """\
import json, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from kb.memory import collect_rarely

collect_rarely()
from optimizer.search.portable.session import prepare, search

prepare(sys.argv[2])
line = sys.stdin.readline()
raise SystemExit(search([sys.argv[1], *json.loads(line)]) if line else 0)
"""
_FORKED = "optimizer.search.portable.session:search"
SEARCHED, FAILED = 0, 1  # exit codes of a problem's process; any other is a crash
WHY_FAILED = ".failed.txt"
TRIAL = ".trial.json"  # the result of a trial of a recipe
GRACE_SECONDS = 5.0  # for an interrupted search to store its last row
START_MINUTES = 0.4  # of a problem's process until its search begins
HANG_MINUTES = 10.0  # that a problem's process may exceed its time
LONGEST_MINUTES = 120.0  # of a problem's process without a time limit
NOT_BEGUN = "not begun: the time is over; run the session again with more --minutes"
OUTCOMES = "outcomes.json"  # the outcome of each problem in a sentence
SESSION = "session.json"
RESULTS = "results.zip"
CEILINGS = "ceilings.json"
DESCRIPTION = (
    "Search every packed problem on this machine's device and write the results to a folder."
)


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Search every problem of the session unpacked in `folder`; returns the exit code: 1 if a
    problem failed, 2 if `--only` names one that is not packed."""
    options = read_arguments(arguments)
    session = json.loads((folder / SESSION).read_text(encoding="utf-8"))
    try:
        chosen = _chosen(session["problems"], options.only)
    except ValueError as unknown:
        print(f"error: {unknown}", file=sys.stderr)
        return 2
    until = time.monotonic() + 60 * options.minutes if options.minutes else None
    failed = 0
    options.out.mkdir(parents=True, exist_ok=True)
    before = signal.signal(signal.SIGTERM, _interrupted)
    processes = _processes(folder, session["target"]["device"])
    try:
        for number, entry in enumerate(chosen, start=1):
            left = None if until is None else (until - time.monotonic()) / 60
            name, run = entry["name"], run_id(session, entry)
            if left is not None and left <= 0:
                sentence = NOT_BEGUN
            else:
                minutes = _minutes(session, left, options.deadline)
                more = number < len(chosen)
                error = _search(processes, options, entry, run, minutes, more)
                sentence = error or _outcome(options.out, run, name)
                if error:
                    failed += 1
                    _store_failure(options.out, run, error)
            print(f"{name}: {sentence}", flush=True)
            _store_outcome(options.out, name, sentence)
            _zip(options.out)
    finally:
        processes.close()
        signal.signal(signal.SIGTERM, before)
    return 1 if failed else 0


class _Interpreters:
    """New interpreters; on a GPU the next one is started while a problem is searched."""

    def __init__(self, folder: Path, device: str) -> None:
        self._command = [sys.executable, "-c", _ALONE, str(folder), device]
        self._starts_next = device != "cpu"
        self._next: subprocess.Popen[bytes] | None = None

    def exit_code(self, arguments: Sequence[str], limit: float, more: bool) -> int | None:
        """Exit code of a process that searches the problem of the arguments, None if it was killed
        after `limit` seconds. `more`: another problem follows. Its process group has ended."""
        process, self._next = self._next, None
        if process is None or process.poll() is not None:  # it may have ended while it waited
            process = self._start()
        if more and self._starts_next:
            self._next = self._start()
        return _exit_code(process, arguments, limit)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """End the process that waits for a problem."""
        if self._next is not None:
            _kill(self._next)


class _Forks:
    """Forks of a process with the imports done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prepared = PreparedProcesses(_FORKED)

    def exit_code(self, arguments: Sequence[str], limit: float, more: bool) -> int | None:
        """As `_Interpreters.exit_code`."""
        given = [str(self._folder), *arguments]
        process = self._prepared.start(given, os.environ, Path.cwd(), (1, 2))
        grace = 0.0
        try:
            _prefer_for_oom(process.pid)
            return process.wait(limit)
        except (KeyboardInterrupt, SystemExit):
            grace = GRACE_SECONDS
            raise
        finally:
            process.end(grace)

    def close(self) -> None:
        self._prepared.close()


_Processes = _Forks | _Interpreters


def _processes(folder: Path, device: str) -> _Processes:
    return _Forks(folder) if device == "cpu" and AVAILABLE else _Interpreters(folder, device)


def _chosen(
    entries: Sequence[Mapping[str, Any]], only: Sequence[str] | None
) -> list[Mapping[str, Any]]:
    """The problems named by `only`, by their own or their run's name, or all of them. Raises
    ValueError for an unknown name."""
    names = [{entry["name"], _problem_name(entry)} for entry in entries]
    unknown = set(only or ()).difference(*names)
    if unknown:
        held = ", ".join(sorted(map(_problem_name, entries)))
        raise ValueError(f"no problem {min(unknown)!r} in this session; it holds {held}")
    return [e for e, own in zip(entries, names, strict=True) if not only or own & set(only)]


def _problem_name(entry: Mapping[str, Any]) -> str:
    """The name of the problem's folder or file, also if the entry is named after a run."""
    path = Path(entry.get("known_as", entry["name"]))
    return path.parent.name if path.name == "problem.py" else path.stem


def _interrupted(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)  # so that the problem's process is ended too


def run_id(session: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """The id of an entry's run; a run with drafts has one already."""
    return str(entry["run"]["id"]) if "run" in entry else f"{session['id']}_{entry['name']}"


def _minutes(
    session: Mapping[str, Any], left: float | None, deadline: float | None
) -> float | None:
    """The time limit of a search: that of its goal, the remaining time, and the time before its
    process would be killed, so that the last measurement is made."""
    before = None if deadline is None else max(deadline - START_MINUTES, deadline / 2)
    limits = [m for m in (session["goal"].get("minutes"), left, before) if m is not None]
    return min(limits, default=None)


def _search(
    processes: _Processes,
    options: argparse.Namespace,
    entry: Mapping[str, Any],
    run: str,
    minutes: float | None,
    more: bool,
) -> str | None:
    """Search one problem; returns the reason if it failed. `more`: another problem follows."""
    name = entry["name"]
    arguments = ["--out", str(options.out.resolve()), "--only", name]
    for option, value in (
        ("--minutes", minutes),
        ("--candidates", options.candidates),
        ("--finalists", options.finalists),
        ("--language", options.language),
        ("--memory", options.memory),
    ):
        if value is not None:
            arguments += [option, str(value)]
    limit = 60 * (LONGEST_MINUTES if minutes is None else minutes + HANG_MINUTES)
    if options.deadline is not None:
        limit = 60 * options.deadline
    reason: Path = options.out / f"{name}{WHY_FAILED}"
    reason.unlink(missing_ok=True)
    (options.out / f"{name}{TRIAL}").unlink(missing_ok=True)
    try:
        code = processes.exit_code(arguments, limit, more)
    except OSError as problem:
        return f"no process could be started for it: {problem}"
    if code is None:
        return f"its process was killed after {limit:.0f} seconds: it did not end by itself"
    if code == SEARCHED and _is_done(options.out, run, name):
        return None
    if code == FAILED and reason.exists():
        return reason.read_text(encoding="utf-8").splitlines()[0]
    by = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    memory = "; the usual cause is a lack of memory" if code == -signal.SIGKILL else ""
    return f"its process ended by {by}{memory} before its search was over"


def _exit_code(
    process: subprocess.Popen[bytes], arguments: Sequence[str], limit: float
) -> int | None:
    """Exit code of a process, None if it was killed after `limit` seconds. Its process group has
    ended when this returns."""
    assert process.stdin is not None
    try:
        _prefer_for_oom(process.pid)
        with suppress(BrokenPipeError), process.stdin as stdin:  # it has ended already
            stdin.write(json.dumps(arguments).encode() + b"\n")
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    except (KeyboardInterrupt, SystemExit):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        raise
    finally:
        _kill(process)


def _prefer_for_oom(pid: int) -> None:
    """Let the kernel's OOM killer end this process before any other."""
    with suppress(OSError):  # it has ended already, or this is not Linux
        Path(f"/proc/{pid}/oom_score_adj").write_text("900", encoding="ascii")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _row(out: Path, run_id: str) -> dict[str, Any]:
    """The stored row of a run, {} before it is stored."""
    path = out / run_id / "run.json"
    row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return row


def _is_done(out: Path, run_id: str, name: str) -> bool:
    trial: Path = out / f"{name}{TRIAL}"
    return trial.is_file() or _row(out, run_id).get("state", "running") != "running"


def _outcome(out: Path, run_id: str, name: str) -> str:
    """The outcome of a search or a trial in a sentence."""
    trial = out / f"{name}{TRIAL}"
    if trial.is_file():
        result = json.loads(trial.read_text(encoding="utf-8"))
        figure = _figure(result["gain"])
        return f"{figure or result['note']} ({result['place']}, {result['seconds']} s)"
    row = _row(out, run_id)
    result = row.get("result") or {}
    return f"{_figure(result.get('gain')) or result.get('reason')} ({row['ended']})"


def _figure(gain: Mapping[str, float] | None) -> str:
    return f"{gain['value']:.2f} [{gain['low']:.2f}, {gain['high']:.2f}]" if gain else ""


def _store_failure(out: Path, run_id: str, reason: str) -> None:
    """Store the failure in the run's row; its nodes stay."""
    row = _row(out, run_id)
    if row:
        row |= {"state": "failed", "ended": reason, "seconds": time.time() - row["started_at"]}
        _replace(out / run_id / "run.json", json.dumps(row, indent=1))


def _store_outcome(out: Path, name: str, sentence: str) -> None:
    path = out / OUTCOMES
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    _replace(path, json.dumps(known | {name: sentence}, indent=1))


def _replace(path: Path, text: str) -> None:
    scratch = path.with_suffix(".new")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="session.zip", description=DESCRIPTION)
    parser.add_argument("--out", type=Path, default=Path("kernlore-results"))
    parser.add_argument("--minutes", type=float, help="start no problem after this many minutes")
    parser.add_argument("--candidates", type=int, help="at most this many for each problem")
    parser.add_argument("--finalists", type=int, help="number measured again in the end")
    parser.add_argument("--language", help="language of the candidates")
    parser.add_argument(
        "--deadline",
        type=float,
        help="minutes after which a problem's process is killed; its search ends before",
    )
    parser.add_argument(
        "--memory", type=float, help="GiB that a problem may take on a CPU, by default nearly all"
    )
    parser.add_argument("--only", nargs="*", help="names of the problems to search, all by default")
    return parser.parse_args(arguments)


def _zip(out: Path) -> None:
    """Pack all rows and results so far into one file."""
    scratch = out / f"{RESULTS}.new"
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted([*out.rglob("*.json*"), *out.glob(f"*{WHY_FAILED}")]):
            packed.write(path, path.relative_to(out))
    scratch.replace(out / RESULTS)
