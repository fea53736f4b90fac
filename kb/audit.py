"""The audit log: who changed what, when, and how that ended, one JSON object a line.

A file of the data directory beside the catalog: a line is written before the answer leaves, also
while the catalog is busy, and is never changed. It holds ids, never texts or secrets. Several
processes may append to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kb import clock
from kb.data_dir import private_file

NAME = "audit.jsonl"
MAX_TEXT = 200  # characters of one value; lines of this length are appended whole
MAX_SUBJECTS = 20


@dataclass(frozen=True)
class Entry:
    """`who` is the id of a key, an address, or `local:` and a login name; `subjects` are ids of
    what was changed; `outcome` is the status of the answer, or `done`.
    """

    who: str
    action: str
    outcome: str
    subjects: tuple[str, ...] = ()
    role: str = ""
    request_id: str = ""
    at: str = field(default_factory=clock.now)


class AuditLog:
    """The log of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / NAME

    def append(self, entry: Entry) -> None:
        """Write one line. Raises OSError where that is not possible."""
        values = {k: _short(v) for k, v in asdict(entry).items() if v}
        line = json.dumps(values, ensure_ascii=True) + "\n"
        private_file(self.path)
        # One write to a file opened for appending: lines of two processes do not mix.
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def read(self, limit: int = 100, *, who: str = "", subject: str = "") -> list[dict[str, Any]]:
        """The newest entries first; with `who` or `subject`, those of it alone."""
        entries = [
            entry
            for entry in self._all()
            if (not who or entry.get("who") == who)
            and (not subject or subject in entry.get("subjects", ()))
        ]
        return entries[::-1][:limit]

    def _all(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8") as lines:
            for line in lines:
                try:
                    entry = json.loads(line)
                except ValueError:  # the end of a line that a full disk has cut
                    continue
                if isinstance(entry, dict):
                    yield entry


def _short(value: str | Sequence[str]) -> str | list[str]:
    if isinstance(value, str):
        return value[:MAX_TEXT]
    return [part[:MAX_TEXT] for part in value][:MAX_SUBJECTS]
