"""Ceilings of this machine's processor for tests that are not about ceilings. Measuring takes ten
seconds of all processors, and during another test the result is never trusted, so that every
evaluation would measure again. These are generous: no time that a machine can reach contradicts
them.
"""

from __future__ import annotations

from pathlib import Path

from optimizer.evaluation.collectors.ceilings import (
    BandwidthPoint,
    Ceilings,
    DeviceStore,
    MeasuredRate,
)
from optimizer.evaluation.collectors.probe import identify
from optimizer.evaluation.isolation.machine import usable_processors

MIB = 1 << 20
# GB/s at MiB: about four times the rates of two cores of a server.
RATES = ((1, 600.0), (32, 240.0), (256, 120.0))
FLOPS = {"float32": 1.5e12, "float64": 0.7e12, "bfloat16": 9e12}


def known_ceilings() -> Ceilings:
    """Ceilings of as many processors as a test may use."""
    points = tuple(BandwidthPoint(size * MIB, rate * 1e9, 0.02, 20) for size, rate in RATES)
    identity = identify("cpu")
    return Ceilings(
        device=identity.id,
        kind="cpu",
        threads=usable_processors(),
        cache_bytes=identity.cache_bytes,
        copy=points,
        read=points,
        write=points,
        matmul={dtype: MeasuredRate(rate, 0.02, 50) for dtype, rate in FLOPS.items()},
        launch=MeasuredRate(2e-7, 0.02, 55),
        dispatch=MeasuredRate(5e-7, 0.02, 50),
        measured_at=1.7e9,
    )


def store_ceilings(data_dir: Path) -> Path:
    """Store them as if measured; returns the directory."""
    DeviceStore(data_dir).save(identify("cpu"), known_ceilings())
    return data_dir
