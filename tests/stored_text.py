"""Whether a text stands in any file of a data directory that is in use."""

from __future__ import annotations

import subprocess
from pathlib import Path


def files_with(folder: Path, text: str) -> list[str]:
    """Names of the files that have the text, whatever its case.

    Another process reads them: closing a file of SQLite here would drop the locks that this process
    holds on it, and the catalog would be damaged.
    """
    command = ["grep", "-rlaiF", "-e", text, str(folder)]
    search = subprocess.run(command, capture_output=True, text=True, check=False)
    assert search.returncode in (0, 1), search.stderr
    return sorted(Path(line).name for line in search.stdout.splitlines())
