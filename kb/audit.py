"""The audit log: who changed what, when and with which result, one JSON object per line.

It is a file in the data directory, not a table, so that it can be written while the catalog is
busy. An entry is appended before the response is sent and never changed. It contains ids, no texts
or secrets. Several processes may append to it.
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
MAX_TEXT = 200  # characters of one value, so that a line is appended by a single write
MAX_SUBJECTS = 20


@dataclass(frozen=True)
class AuditEntry:
    """`who` is the id of a key, an address, or `local:` and a login name; `subjects` are the ids of
    the changed objects; `outcome` is the status of the response, or `done`."""

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

    def append(self, entry: AuditEntry) -> None:
        """Append an entry. Raises OSError."""
        values = {k: _short(v) for k, v in asdict(entry).items() if v}
        line = json.dumps(values, ensure_ascii=True) + "\n"
        private_file(self.path)
        # A single write in append mode: lines of two processes are not mixed.
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def read(self, limit: int = 100, *, who: str = "", subject: str = "") -> list[dict[str, Any]]:
        """The entries of `who` and about `subject` (all, where empty), newest first."""
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
                except ValueError:  # a line truncated by a full disk
                    continue
                if isinstance(entry, dict):
                    yield entry


def _short(value: str | Sequence[str]) -> str | list[str]:
    if isinstance(value, str):
        return value[:MAX_TEXT]
    return [part[:MAX_TEXT] for part in value][:MAX_SUBJECTS]
