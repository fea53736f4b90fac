"""Ceilings of a device, measured rather than read from a data sheet.

* copy: bytes read plus bytes written, over the time of torch's `copy_` between two buffers; read:
  `sum` of one buffer; write: `fill_`. Each at several footprints, the largest beyond the last-level
  cache if memory suffices. A CPU that reads a line before overwriting it copies more slowly than
  it reads, so the ceiling of a case depends on its mix of reads and writes.
* clone: a copy into newly allocated memory, like the outputs of every call. On a CPU large arrays
  are mapped page by page unless the allocator retains freed memory, which it does here and in
  runners.
* matmul: flop/s of one large product by torch's library, for each dtype; on a CPU those of
  independent multiply-adds if they are faster, as a library may not use the widest vectors.
* launch: one empty kernel in a queue of a hundred on a GPU, one empty OpenMP region on a CPU.
* dispatch: one torch operator on one element, called from Python.

Each rate is the best of its repeats; `spread` is the relative distance of the median. Measured in a
child process, because the supervisor must not compute with torch. Standard library only.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kb.data_dir import private_file, private_folder
from kb.errors import Unavailable
from kb.plain import from_json
from optimizer.evaluation.collectors.probe import DeviceIdentity, DeviceKind, identify
from optimizer.evaluation.isolation.launch import threads_and_memory
from optimizer.evaluation.isolation.machine import DeviceLock
from optimizer.evaluation.toolchains.processes import CommandLimits, clean_env, run

CHILD = Path(__file__).with_name("ceilings_child.py")
SECONDS = 120.0
MIB = 1 << 20
MAX_WAITED = 0.05  # share of time without a processor in a trusted measurement
UNTRUSTED_SECONDS = 1800.0  # until an untrusted measurement is repeated
FORM = 4  # version of the stored JSON; increased when a rate changes its meaning


@dataclass(frozen=True)
class MeasuredRate:
    """`value` is in bytes/s, flop/s or s; `spread` is median over best minus 1; `n` counts
    repeats."""

    value: float
    spread: float
    n: int


@dataclass(frozen=True)
class BandwidthPoint:
    """Bandwidth in bytes/s at a footprint of `bytes`."""

    bytes: int
    value: float
    spread: float
    n: int


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of a device for one number of threads. `cache_bytes` is the size of its last
    level cache.

    `waited` is the share of the time in which threads waited for a processor. Above MAX_WAITED the
    machine was busy, and the ceilings do not make a time impossible.
    """

    device: str
    kind: DeviceKind
    threads: int
    cache_bytes: int
    copy: tuple[BandwidthPoint, ...]
    read: tuple[BandwidthPoint, ...] = ()
    write: tuple[BandwidthPoint, ...] = ()
    clone: tuple[BandwidthPoint, ...] = ()
    matmul: Mapping[str, MeasuredRate] = field(default_factory=dict)
    launch: MeasuredRate | None = None
    dispatch: MeasuredRate | None = None
    measured_at: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0

    @property
    def trusted(self) -> bool:
        """Whether the machine was idle enough."""
        return self.waited <= MAX_WAITED

    @property
    def copy_bandwidth(self) -> float:
        """Bandwidth at the largest footprint, in bytes/s."""
        return self.copy[-1].value

    @property
    def cached_bytes(self) -> float:
        """An upper bound of the bytes that stay in cache between calls: the footprint from which
        bandwidth stops falling, or the size of the last level if that is smaller."""
        slowest = 1.25 * self.fastest_bandwidth(self.copy[-1].bytes)
        flat = [p.bytes for p in self.copy if self.fastest_bandwidth(p.bytes) <= slowest]
        beyond = min(flat, default=self.copy[-1].bytes)
        return min(beyond, self.cache_bytes) if self.cache_bytes else beyond

    def stream_seconds(self, read_bytes: float, written_bytes: float) -> float:
        """The time to move these bytes once at the measured rates: equal amounts as a copy, the
        rest as reads or writes, plus the allocation of the outputs."""
        footprint = read_bytes + written_bytes
        paired = min(read_bytes, written_bytes)
        copy = interpolated(self.copy, footprint)
        rest = read_bytes - paired
        points = self.read if rest > 0 else self.write
        single = max(copy, interpolated(points, footprint)) if points else copy
        return (
            2 * paired / copy + (footprint - 2 * paired) / single + self._new_memory(written_bytes)
        )

    def _new_memory(self, size: float) -> float:
        """Seconds to allocate and first touch an output. Not interpolated: it is a step at the size
        from which the allocator returns memory to the system."""
        known = {point.bytes: point.value for point in self.copy}
        below = [point for point in self.clone if point.bytes <= 2 * size and point.bytes in known]
        if not below:
            return 0.0
        point = max(below, key=lambda point: point.bytes)
        return max(0.0, 2 * size / point.value - 2 * size / known[point.bytes])

    def fastest_bandwidth(self, footprint: float) -> float:
        """The highest measured bandwidth of any access, at footprints from the nearest smaller one
        upwards."""
        return max(_fastest(points, footprint) for points in (self.copy, self.read, self.write))

    def peak(self, dtype: str, *, relaxed: bool = False) -> float | None:
        """Flop/s of matrix products in this dtype, None if not measured; with `relaxed` those of
        the fastest dtype, because computing in lower precision is allowed."""
        if relaxed and self.matmul:
            return self.fastest_peak
        figure = self.matmul.get(dtype)
        return figure.value if figure else None

    @property
    def fastest_peak(self) -> float | None:
        """Flop/s of the fastest dtype."""
        return max((figure.value for figure in self.matmul.values()), default=None)

    def as_json(self) -> dict[str, Any]:
        """The stored form."""
        return {"form": FORM, **asdict(self)}


def ceilings_from_json(record: Mapping[str, Any]) -> Ceilings:
    """The inverse of `Ceilings.as_json`. Raises KeyError or TypeError on another form."""
    if record["form"] != FORM:
        raise KeyError("form")
    return from_json(Ceilings, record)


def measure_ceilings(kind: DeviceKind = "cpu", threads: int = 1) -> Ceilings:
    """Measure the ceilings of this machine's device. Takes about ten seconds, twice that on a busy
    machine, and locks the device, whose lock the caller must not hold. Raises Unavailable."""
    first = _measure(kind, threads)
    return first if first.trusted else joined(first, _measure(kind, threads))


def _measure(kind: DeviceKind, threads: int) -> Ceilings:
    identity = identify(kind)
    command = [sys.executable, "-I", str(CHILD), kind, str(threads), str(_largest(identity))]
    env = clean_env(Path.cwd(), **threads_and_memory(threads))
    env.pop("HOME")
    env.pop("TMPDIR")
    limits = CommandLimits(seconds=SECONDS, memory_bytes=None)
    with DeviceLock(kind) as lock:
        lock.alone()
        done = run(command, cwd=Path.cwd(), limits=limits, env=env)
    if not done.ok:
        raise Unavailable(
            f"the ceilings of {identity.name} could not be measured: {done.log[-300:]}",
            hint="Free its memory, check that torch works on it, and try again.",
        )
    figures = json.loads(done.stdout.splitlines()[-1])
    return _ceilings(identity, threads, figures)


def _ceilings(identity: DeviceIdentity, threads: int, figures: Mapping[str, Any]) -> Ceilings:
    common = {
        "form": FORM,
        "device": identity.id,
        "kind": identity.kind,
        "threads": threads,
        "cache_bytes": identity.cache_bytes,
        "measured_at": time.time(),
    }
    return ceilings_from_json({**figures, **common})


def _largest(identity: DeviceIdentity) -> int:
    """The largest footprint: twice the last-level cache, at least 256 MiB, at most an eighth of
    memory."""
    wanted = max(256 * MIB, 2 * identity.cache_bytes)
    if identity.kind == "cuda":
        wanted = max(wanted, 2048 * MIB)
    most = (identity.memory_bytes or 2048 * MIB) // 8
    return max(16 * MIB, min(wanted, most))


def interpolated(points: Sequence[BandwidthPoint], footprint: float) -> float:
    """Bandwidth at a footprint, interpolated on logarithmic axes."""
    ordered = sorted(points, key=lambda point: point.bytes)
    after = next((n for n, point in enumerate(ordered) if point.bytes >= footprint), len(ordered))
    if after in (0, len(ordered)):
        return ordered[min(after, len(ordered) - 1)].value
    low, high = ordered[after - 1], ordered[after]
    share = math.log(footprint / low.bytes) / math.log(high.bytes / low.bytes)
    return float(low.value ** (1 - share) * high.value**share)


def _fastest(points: Sequence[BandwidthPoint], footprint: float) -> float:
    """The highest bandwidth of the nearest point below the footprint and of all above it."""
    if not points:
        return 0.0
    smallest = min(p.bytes for p in points)
    below = max((p.bytes for p in points if p.bytes <= footprint), default=smallest)
    return max(point.value for point in points if point.bytes >= below)


def joined(before: Ceilings, after: Ceilings) -> Ceilings:
    """The better value of each rate; as trusted as the better measurement."""
    matmul = {
        dtype: max((f for f in (before.matmul.get(dtype), figure) if f), key=lambda f: f.value)
        for dtype, figure in after.matmul.items()
    }
    return replace(
        after,
        copy=_better(before.copy, after.copy),
        read=_better(before.read, after.read),
        write=_better(before.write, after.write),
        clone=_better(before.clone, after.clone),
        matmul=matmul,
        launch=_shorter(before.launch, after.launch),
        dispatch=_shorter(before.dispatch, after.dispatch),
        waited=min(before.waited, after.waited),
    )


def _better(
    before: Sequence[BandwidthPoint], after: Sequence[BandwidthPoint]
) -> tuple[BandwidthPoint, ...]:
    known = {point.bytes: point for point in before}
    return tuple(max(known.get(p.bytes, p), p, key=lambda q: q.value) for p in after)


def _shorter(before: MeasuredRate | None, after: MeasuredRate | None) -> MeasuredRate | None:
    known = [figure for figure in (before, after) if figure is not None]
    return min(known, key=lambda figure: figure.value) if known else None


def _outdated(stored: Ceilings) -> bool:
    age = time.time() - stored.measured_at
    return not stored.trusted and not 0 <= age < UNTRUSTED_SECONDS


def from_file(path: Path) -> Ceilings | None:
    """The ceilings in a file; None if it has another format."""
    try:
        return ceilings_from_json(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return None


class DeviceStore:
    """Stores ceilings in one JSON file per device, `DATA_DIR/devices/<id>.json`."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "devices"

    def load(self, identity: DeviceIdentity, threads: int) -> Ceilings | None:
        """The stored ceilings; None without any in this format."""
        stored = self._read(identity)
        try:
            return ceilings_from_json(stored["ceilings"][str(threads)])
        except (KeyError, TypeError):
            return None

    def save(self, identity: DeviceIdentity, ceilings: Ceilings) -> Path:
        """Store the ceilings, joined with the stored ones for the same number of threads, and
        return the path of the file, which is replaced atomically."""
        stored = self._read(identity).get("ceilings", {})
        before = self.load(identity, ceilings.threads)
        best = ceilings if before is None else joined(before, ceilings)
        stored[str(ceilings.threads)] = best.as_json()
        private_folder(self._folder)
        path = self._path(identity)
        draft = path.with_suffix(".part")
        record = {"identity": identity.as_json(), "ceilings": stored}
        private_file(draft)
        draft.write_text(json.dumps(record, indent=1), encoding="utf-8")
        draft.replace(path)
        return path

    def ensure(self, kind: DeviceKind, threads: int) -> Ceilings:
        """The ceilings of this machine's device, measured if none are stored. Untrusted ones are
        measured again after UNTRUSTED_SECONDS, not each time: that takes half a minute, and a busy
        machine tends to stay busy."""
        identity = identify(kind)
        stored = self.load(identity, threads)
        if stored is None or _outdated(stored):
            self.save(identity, _measure(kind, threads))
            stored = self.load(identity, threads)
            assert stored is not None
        return stored

    def _path(self, identity: DeviceIdentity) -> Path:
        return self._folder / f"{identity.id}.json"

    def _read(self, identity: DeviceIdentity) -> dict[str, Any]:
        try:
            record = json.loads(self._path(identity).read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return record if isinstance(record, dict) else {}
