"""Limits on the sizes of packages, and journeys through the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import source_shape
from benchmarks.source_shape import Journey, Room, room_limits, shape_rows
from kb.errors import nearest


def test_rise_adds_to_recorded_size_and_needs_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = tmp_path / "rooms.toml"
    monkeypatch.setattr(source_shape, "ROOMS_FILE", rooms)
    rooms.write_text(
        '[kb]\nfiles = 2\nlines = 100\nraised = [{ lines = 20, why = "leases" }]\n'
        "[api]\nfiles = 1\nlines = 10\n"
    )
    assert room_limits() == {"kb": Room(2, 120), "api": Room(1, 10)}
    rooms.write_text("[kb]\nfiles = 2\nlines = 100\nraised = [{ lines = 20 }]\n")
    with pytest.raises(ValueError, match="a rise of kb has no `why`"):
        room_limits()


def test_journey_counts_calls_and_files_of_product() -> None:
    journey = Journey()
    with journey.recording():
        nearest("h10", ["h100", "h200"], count=1)
    assert journey.calls >= 1 and journey.climbs == set()
    assert all(path.startswith("kb/") for path in journey.files)


@pytest.mark.slow(seconds=4)
def test_table_names_every_figure() -> None:
    names = [name for name, _ in shape_rows()]
    assert len(names) == len(set(names)) == 7
