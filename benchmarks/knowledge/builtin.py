"""The built-in knowledge as a store of its own, for questions in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api.cli.target import read_settings
from api.services import Services, open_services

# The chips that the built-in questions are about.
CHIPS = ("x86-64", "neoverse-v2", "a100", "h100", "h200", "b200", "mi300x", "trainium2", "mtia-v2i")


@contextmanager
def builtin_services(data_dir: Path | None) -> Iterator[Services]:
    """Services over a store with the built-in knowledge, loaded when it is not there yet."""
    with tempfile.TemporaryDirectory(prefix="kernlore-builtin-") as folder:
        services = open_services(read_settings(data_dir or Path(folder)))
        try:
            services.load_builtin()
            with services.parser_pool() as parsers:
                services.worker(parsers).drain()
            yield services
        finally:
            services.close()
