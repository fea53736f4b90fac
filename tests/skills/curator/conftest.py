from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kb.catalog import Catalog
from tests.skills.curator.planted import catalog_in


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = catalog_in(tmp_path / "data")
    yield opened
    opened.close()
