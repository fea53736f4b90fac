"""Commits and texts of a git repository, read in place. Changes nothing in it, and runs
no program that its settings name."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kb.errors import InvalidRequest, Unavailable

MAX_TEXT = 1024 * 1024  # bytes of a file that is read
SECONDS = 120.0
# The repository may be a stranger's: no monitor, hook or verifier of signatures that its settings
# name is run, and nothing is fetched that a partial clone lacks.
_SETTINGS = (
    "safe.directory=*",
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.quotePath=false",
    "log.showSignature=false",
)
_ENVIRONMENT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
MAX_COMMITS = 2_000
_TIMES = r"\b(\d{1,4}(?:\.\d+)?)\s?[x\u00d7](?!\w)"
# Words and figures with which a message claims speed.
CLAIM = re.compile(
    r"\b(?:fast(?:er)?|speed(?:[ -]?ups?|s|ed)?|optimi[sz]\w*|perf(?:ormance)?|accelerat\w*"
    r"|vectori[sz]\w*|simd|sse\d*|avx\w*|neon|openmp|parallel\w*|unroll\w*|prefetch\w*|slow(?:er)?"
    r"|til(?:e|ed|ing)|block(?:ed|ing)|g?flops?/s|gflops|tok(?:ens)?/s|latency|throughput)\b"
    rf"|{_TIMES}",
    re.IGNORECASE,
)
_SPEEDUP = r"speed-?\s?up\W{0,20}(\d{1,4}(?:\.\d{1,30})?)"
_FACTOR = re.compile(rf"{_SPEEDUP}(?![\d.]{{0,30}}\s?%|\d)|{_TIMES}", re.IGNORECASE)
_PERCENT = re.compile(
    rf"{_SPEEDUP}\s?%|\b(\d{{1,3}}(?:\.\d+)?)\s?%\s+(?:fast|speed|improve)", re.IGNORECASE
)


@dataclass(frozen=True)
class Commit:
    """A commit with at most one parent. `paths` are the changed files that were asked for."""

    sha: str
    parent: str
    subject: str
    message: str
    paths: tuple[str, ...]


class Repository:
    """A git directory, bare or with a work tree. Raises InvalidRequest if it is none, Unavailable
    without git."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._texts: dict[tuple[str, str], str | None] = {}
        self._trees: dict[str, frozenset[str]] = {}
        self._git("rev-parse", "--git-dir")
        remote = self._git("config", "--get", "remote.origin.url", missing="")
        name = re.sub(r"^.*?([\w.-]+/[\w.-]+?)(?:\.git)?/?$", r"\1", remote.strip())
        self.name = name if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else _folder_name(place)

    def commits(self, paths: Sequence[str], *, with_first: bool = False) -> list[Commit]:
        """The commits that changed the paths (files or folders), the oldest first; `with_first`:
        also a commit without a parent."""
        form = "--format=%x00%H%x00%P%x00%s%x00%B%x00"  # no message has this character
        limit = f"--max-count={MAX_COMMITS}"
        log = self._git("log", "--no-merges", "--name-only", limit, form, "--", *paths)
        commits, fields = [], log.split("\0")[1:]
        for sha, parents, subject, message, names in zip(
            *(fields[place::5] for place in range(5)), strict=True
        ):
            changed = tuple(name for name in names.splitlines() if name.strip())
            if parents or with_first:
                parent = parents.split()[0] if parents else ""
                commits.append(Commit(sha, parent, subject, message, changed))
        return commits[::-1]

    def head(self) -> str:
        return self._git("rev-parse", "HEAD").strip()

    def text(self, commit: str, path: str) -> str | None:
        """The text of a file in a commit; None if it has none, or it is no text or too large."""
        key = (commit, path)
        if commit not in self._trees:
            listed = run_git(self.place, "ls-tree", "-r", "--name-only", "-z", commit) or b""
            self._trees[commit] = frozenset(listed.decode(errors="replace").split("\0"))
        if path not in self._trees[commit]:
            return None
        if key not in self._texts:
            size = run_git(self.place, "cat-file", "-s", f"{commit}:{path}")
            small = size is not None and int(size) <= MAX_TEXT
            raw = run_git(self.place, "cat-file", "blob", f"{commit}:{path}") if small else None
            try:
                self._texts[key] = None if raw is None else raw.decode()
            except UnicodeDecodeError:
                self._texts[key] = None
        return self._texts[key]

    def _git(self, *arguments: str, missing: str | None = None) -> str:
        raw = run_git(self.place, *arguments)
        if raw is None and missing is None:
            raise InvalidRequest(
                f"git cannot read {self.place}",
                hint="Give a clone or a git directory, and paths that its history has.",
            )
        return missing or "" if raw is None else raw.decode(errors="replace")


def run_git(place: Path, *arguments: str) -> bytes | None:
    """What git prints, run in a folder; None if it fails. Raises Unavailable without git."""
    options = [word for setting in _SETTINGS for word in ("-c", setting)]
    command = ["git", *options, "--no-pager", "-C", str(place), *arguments]
    environment = {**os.environ, **_ENVIRONMENT}
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=SECONDS, env=environment
        )
    except FileNotFoundError as error:
        hint = "Install it, as with apt install git."
        raise Unavailable("git is not installed", hint=hint) from error
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def claimed_speedup(text: str) -> float | None:
    """The largest speed-up that a text states, at most a thousand; None without one."""
    factors = [float(speedup or times) for speedup, times in _FACTOR.findall(text)]
    factors += [1 + float(before or after) / 100 for before, after in _PERCENT.findall(text)]
    return max((factor for factor in factors if 0 < factor <= 1000), default=None)


def _folder_name(place: Path) -> str:
    inner = ("repo", ".git")
    name = place.resolve().parent.name if place.resolve().name in inner else place.resolve().name
    return re.sub(r"[^\w.-]+", "/", name).strip("/") or "repository"
