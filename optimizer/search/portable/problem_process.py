"""The search of one packed problem in a process that was started or forked for it.

Importing this module imports all that a search needs. Nothing here looks for a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optimizer.search.portable.session import search_alone
from retrieval.diagnose.linear_patterns import trust_patterns

trust_patterns()


def search(arguments: Sequence[str]) -> int:
    """Search the problem that the arguments name, after the folder of the unpacked session; the
    exit code.
    """
    folder, *options = arguments
    return search_alone(Path(folder), options)
