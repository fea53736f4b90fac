"""Search for a text in all files of a data directory in use, and of its stores on servers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests import chroma_server, seaweed


def files_with(data_dir: Path, text: str) -> list[str]:
    """Names of the files that contain the text in any case: those in the data directory, in its
    bucket, and all of a Chroma server.
    """
    names = _on_disk(data_dir, text)
    if chroma_server.EVERYWHERE:
        names += _on_disk(chroma_server.server().folder, text)
    if seaweed.EVERYWHERE:
        stored = seaweed.server().contents(data_dir)
        names += [name for name, data in stored.items() if text.lower().encode() in data.lower()]
    return sorted(names)


def _on_disk(folder: Path, text: str) -> list[str]:
    """Another process reads them: closing a file of SQLite here would drop the locks of this
    process on it, and damage the catalog.
    """
    command = ["grep", "-rlaiF", "-e", text, str(folder)]
    search = subprocess.run(command, capture_output=True, text=True, check=False)
    assert search.returncode in (0, 1), search.stderr
    return [Path(line).name for line in search.stdout.splitlines()]
