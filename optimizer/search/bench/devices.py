"""Devices of one kind on this machine that measure side by side, and runners that see only one.

In this process a seat is torch's current device of the thread that uses it; in a runner it is the
only device there is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from optimizer.evaluation.isolation.device_lock import DeviceLock
from optimizer.evaluation.isolation.launch import Zygote
from optimizer.evaluation.isolation.pool import RunnerPool
from optimizer.evaluation.isolation.runner_process import RunnerProcess, RunnerSettings

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Seat:
    """number: of the device, as torch counts here. visible: its name in CUDA_VISIBLE_DEVICES, None
    where it is the only one."""

    device: str
    number: int = 0
    visible: str | None = None

    @property
    def lock(self) -> DeviceLock:
        return DeviceLock(self.device, number=self.number)

    def pool(self, settings: RunnerSettings) -> RunnerPool:
        return RunnerPool(settings) if self.visible is None else SeatPool(settings, self.visible)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """What this thread puts on the device lies on this one."""
        if self.visible is None:
            yield
            return
        with torch.cuda.device(self.number):
            yield


def seats_here(device: str) -> tuple[Seat, ...]:
    """Every GPU that this process may use; the processors are one device."""
    count = torch.cuda.device_count() if device == "cuda" else 1
    return seats_of(device, count, os.environ.get(VISIBLE))


def seats_of(device: str, count: int, visible: str | None) -> tuple[Seat, ...]:
    """visible: CUDA_VISIBLE_DEVICES of this process."""
    if count < 2:
        return (Seat(device),)
    names = (
        [name.strip() for name in visible.split(",")] if visible else list(map(str, range(count)))
    )
    return tuple(Seat(device, number, name) for number, name in enumerate(names[:count]))


class SeatRunner(RunnerProcess):
    """A runner on one of several devices."""

    def __init__(self, settings: RunnerSettings, zygote: Zygote | None, visible: str) -> None:
        self._visible = visible
        super().__init__(settings, zygote)

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), VISIBLE: self._visible}


class SeatPool(RunnerPool):
    """Runners on one of several devices."""

    def __init__(
        self, settings: RunnerSettings, visible: str, spare: int | None = None, fork: bool = True
    ) -> None:
        self._visible = visible
        super().__init__(settings, spare, fork)

    def _start_missing(self) -> None:
        while len(self._waiting) < self._spare:
            self._waiting.append(SeatRunner(self._settings, self._zygote, self._visible))
