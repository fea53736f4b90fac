"""Ceilings: measured in a child process on this machine, stored, and read as rates."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kb.catalog import open_catalog
from kb.catalog.tables import devices, hardware
from optimizer.evaluation.catalog_journal import store_device
from optimizer.evaluation.collectors import ceilings
from optimizer.evaluation.collectors.ceilings import (
    CHILD,
    FORM,
    MAX_WAITED,
    UNTRUSTED_SECONDS,
    BandwidthPoint,
    Ceilings,
    DeviceStore,
    MeasuredRate,
    _ceilings,
    ceilings_from_json,
    interpolated,
    joined,
)
from optimizer.evaluation.collectors.probe import identify
from tests.catalogs import fresh_data_dir

pytestmark = pytest.mark.slow(seconds=5)

MIB = 1 << 20


def points(*rows: tuple[int, float]) -> tuple[BandwidthPoint, ...]:
    return tuple(BandwidthPoint(size * MIB, rate * 1e9, 0.02, 20) for size, rate in rows)


# Two cores of an idle virtual machine.
SEEN = Ceilings(
    device="seen",
    kind="cpu",
    threads=2,
    cache_bytes=480 * MIB,
    copy=points((1, 136.5), (8, 58.1), (32, 57.8), (128, 53.2), (960, 25.7)),
    read=points((1, 125.5), (8, 56.0), (32, 54.7), (128, 53.3), (960, 29.6)),
    write=points((1, 90.9), (8, 51.2), (32, 46.8), (128, 25.9), (960, 16.8)),
    matmul={
        "float32": MeasuredRate(335.9e9, 0.02, 50),
        "float64": MeasuredRate(165.0e9, 0.02, 50),
        "bfloat16": MeasuredRate(2233.7e9, 0.02, 50),
    },
    launch=MeasuredRate(8.9e-7, 0.02, 55),
    dispatch=MeasuredRate(1.97e-6, 0.03, 50),
    measured_at=1.7e9,
    waited=0.01,
)


def test_child_process_measures_this_machine() -> None:
    """Wide bounds, because another process may be using the machine."""
    command = [sys.executable, "-I", str(CHILD), "cpu", "1", str(4 * MIB)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = _ceilings(identify("cpu"), 1, json.loads(done.stdout))
    assert [point.bytes for point in found.copy] == [MIB, 4 * MIB]
    for point in (*found.copy, *found.read, *found.write):
        assert 1e6 < point.value < 1e13 and point.spread >= 0 and point.n >= 4
    assert set(found.matmul) == {"float32", "float64", "bfloat16"}
    assert found.dispatch is not None and 1e-8 < found.dispatch.value < 1e-2
    assert ceilings_from_json(json.loads(json.dumps(found.as_json()))) == found


def test_bandwidth_between_measured_footprints() -> None:
    assert interpolated(SEEN.copy, 8 * MIB) == pytest.approx(58.1e9)
    assert 53.2e9 < interpolated(SEEN.copy, 60 * MIB) < 57.8e9
    assert interpolated(SEEN.copy, 1) == pytest.approx(136.5e9)
    assert interpolated(SEEN.copy, 1 << 40) == pytest.approx(25.7e9)


def test_reduction_has_read_ceiling_and_copy_that_of_copies() -> None:
    size = 960 * MIB
    assert SEEN.stream_seconds(size / 2, size / 2) == pytest.approx(size / 25.7e9)
    assert SEEN.stream_seconds(size, 0) == pytest.approx(size / 29.6e9)
    # `fill_` is slower than a copy here, and a ceiling is the faster one.
    assert SEEN.stream_seconds(0, size) == pytest.approx(size / 25.7e9)


def test_new_memory_of_a_large_output_adds_to_floor() -> None:
    remaining = points((1, 136.5), (32, 57.0))
    both = replace(SEEN, clone=(*remaining, *points((128, 7.1))))
    half = 64 * MIB
    assert both.stream_seconds(half, half) == pytest.approx(2 * half / 7.1e9)
    # A reduction writes very little, and small arrays are reused.
    assert both.stream_seconds(2 * half, 64) == pytest.approx(
        SEEN.stream_seconds(2 * half, 64), rel=1e-3
    )
    small = 16 * MIB
    assert both.stream_seconds(small, small) == pytest.approx(2 * small / 57.0e9, rel=0.02)


def test_cached_bytes_are_at_most_last_level_cache() -> None:
    assert SEEN.cached_bytes == 480 * MIB
    assert replace(SEEN, cache_bytes=0).cached_bytes == 960 * MIB
    flat = replace(SEEN, copy=points((1, 50), (64, 12), (256, 11)), read=(), write=())
    assert flat.cached_bytes == 64 * MIB


def test_relaxed_precision_has_peak_of_fastest_dtype() -> None:
    assert SEEN.peak("float32") == pytest.approx(335.9e9)
    assert SEEN.peak("float32", relaxed=True) == pytest.approx(2233.7e9)
    assert SEEN.peak("int8") is None


def test_store_has_best_measurement(tmp_path: Path) -> None:
    store, identity = DeviceStore(tmp_path), identify("cpu")
    assert store.load(identity, 2) is None
    busy = replace(SEEN, copy=points((1, 1), (8, 60), (32, 2), (128, 2), (960, 2)), waited=0.7)
    store.save(identity, busy)
    assert store.load(identity, 2) == busy and not busy.trusted
    path = store.save(identity, SEEN)
    found = store.load(identity, 2)
    assert found is not None and found.trusted and found.waited < MAX_WAITED
    assert [round(p.value / 1e9, 1) for p in found.copy] == [136.5, 60.0, 57.8, 53.2, 25.7]
    assert store.load(identity, 1) is None
    assert store.ensure("cpu", 2) == found
    path.write_text(path.read_text().replace(f'"form": {FORM}', '"form": 0'))
    assert store.load(identity, 2) is None
    path.write_text("{")
    assert store.load(identity, 2) is None


def test_join_takes_better_of_each_figure() -> None:
    slow = replace(SEEN, matmul={"float32": MeasuredRate(1e9, 0.1, 3)}, launch=None)
    both = joined(slow, SEEN)
    assert both.matmul == SEEN.matmul and both.launch == SEEN.launch


def test_measured_device_is_one_row_of_catalog(tmp_path: Path) -> None:
    catalog = open_catalog(fresh_data_dir(tmp_path))
    with catalog.write() as connection:
        connection.execute(
            hardware.insert().values(
                id="x86-64",
                name="x86-64",
                kind="family",
                summary="",
                spec="",
                origin="builtin",
                created_at="2025-01-01",
                updated_at="2025-01-01",
            )
        )
    first = store_device(catalog, "x86-64", identify("cpu"))
    again = store_device(catalog, "x86-64", identify("cpu"), SEEN)
    assert first == again
    with catalog.read() as connection:
        (row,) = connection.execute(devices.select()).all()
    assert row.copy_bandwidth == SEEN.copy_bandwidth
    assert row.matmul_peak["bfloat16"] == pytest.approx(2233.7e9)
    assert row.measured_at.startswith("2023-11-14") and row.environment["kind"] == "cpu"


def test_busy_machine_is_not_measured_before_every_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, now = DeviceStore(tmp_path), time.time()
    busy = replace(SEEN, waited=0.7, measured_at=now)
    monkeypatch.setattr(ceilings, "_measure", lambda kind, threads: busy)
    assert store.ensure("cpu", 2) == busy
    quiet = replace(SEEN, measured_at=now)
    monkeypatch.setattr(ceilings, "_measure", lambda kind, threads: quiet)
    assert store.ensure("cpu", 2) == busy
    monkeypatch.setattr(time, "time", lambda: now + UNTRUSTED_SECONDS)
    assert store.ensure("cpu", 2).trusted
