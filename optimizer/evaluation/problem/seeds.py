"""Random numbers that a problem file draws: from generators whose seed is ours, and from those that
it seeds itself.

A file that seeds a generator of its own (`torch.Generator().manual_seed(3)`, `torch.manual_seed(0)`
in get_inputs) would make the same inputs for every seed of ours, and a kernel that never reads them
would pass. So its seeds are moved by ours.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

# What the drivers of NVIDIA, AMD and WSL make.
_DEVICES = tuple(map(Path, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))
_NUMPY_SEEDS = 2**32  # of the seeds that numpy's global generator takes


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Every generator that a problem file may draw from starts at `seed`, and is restored
    afterwards."""
    ours = random.getstate()
    with torch.random.fork_rng(devices=[]), _numpy_seeded(seed):
        _seed_torch(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(ours)


def _seed_torch(seed: int) -> None:
    """As torch.manual_seed, which formats a stack for each kind of device that is not in use, a
    millisecond in all; an evaluation asks a hundred times. Where there is no such device, nothing
    can draw from its generators.
    """
    if _may_have_devices():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _may_have_devices() -> bool:
    # Asking a driver would make it unusable in forks.
    if torch.cuda._is_compiled() and any(place.exists() for place in _DEVICES):
        return True
    return torch.backends.mps.is_built() or torch.xpu._is_compiled()


@contextmanager
def _numpy_seeded(seed: int) -> Iterator[None]:
    """Numpy's global generator, where there is numpy: torch does without it."""
    try:
        from numpy import random as numpys
    except ModuleNotFoundError:
        yield
        return
    before = numpys.get_state()
    numpys.seed(seed % 2**32)
    try:
        yield
    finally:
        numpys.set_state(before)


@contextmanager
def drawn_apart(draw: int, module: ModuleType) -> Iterator[None]:
    """Seeds that the file of `module` sets are moved by `draw`; for 0 they are what the file says.
    Not seen are generators that it has made before.
    """
    if draw == 0:
        yield
        return
    moved = _moved(draw)
    places: list[tuple[dict[str, Any], str, Any]] = []
    owners = [torch, torch.random, random, sys.modules.get("numpy.random"), module]
    for owner in owners:
        names = {} if owner is None else vars(owner)
        places += [(names, name, value) for name, value in names.items() if id(value) in moved]
    for names, name, value in places:
        names[name] = moved[id(value)]
    try:
        yield
    finally:
        for names, name, value in places:
            names[name] = value


def _moved(draw: int) -> Mapping[int, Any]:
    """What takes the place of what takes a seed, by the identity of that."""

    def by(seed: Any, below: int = 2**63) -> Any:
        return (seed + draw) % below if isinstance(seed, int) else seed

    class Generator(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            return super().manual_seed(by(seed))

    class Random(random.Random):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(by(seed))

    real_torch, real_python = torch.manual_seed, random.seed
    moved: dict[int, Any] = {
        id(torch.Generator): Generator,
        id(real_torch): lambda seed: real_torch(by(seed)),
        id(random.Random): Random,
        id(real_python): lambda a=None, version=2: real_python(by(a), version),
    }
    numpys = sys.modules.get("numpy.random")
    if numpys is not None:
        moved |= _moved_of_numpy(numpys, lambda seed: by(seed, _NUMPY_SEEDS))
    return moved


def _moved_of_numpy(numpys: Any, by: Callable[[Any], Any]) -> dict[int, Any]:
    seed, generator, state = numpys.seed, numpys.default_rng, numpys.RandomState

    class RandomState(state):  # type: ignore[misc, valid-type]
        def __init__(self, seed: Any = None) -> None:
            super().__init__(by(seed))

    return {
        id(seed): lambda value=None: seed(by(value)),
        id(generator): lambda value=None: generator(by(value)),
        id(state): RandomState,
    }
