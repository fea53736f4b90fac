"""Shared benches of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.skills.trials.curated import ReusedDevice


@pytest.fixture(scope="session", autouse=True)
def _end_kept_processes() -> Iterator[None]:
    yield
    ReusedDevice.end()
