"""Tensors in shared memory: a memory file, a layout, and views on it.

The supervisor writes inputs into one and passes its descriptor; the runner maps it. Offsets are
aligned to a page, as an allocator would give large arrays.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

PAGE = 4096


class Place(NamedTuple):
    """Where one tensor lies in a memory file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


def lay_out(specs: Sequence[tuple[str, Sequence[int]]]) -> tuple[list[Place], int]:
    """Places for (dtype, shape) one after the other, and the size of the file in bytes."""
    places, offset = [], 0
    for dtype, shape in specs:
        size = torch.empty(0, dtype=dtype_of(dtype)).element_size()
        for extent in shape:
            size *= extent
        places.append(Place(dtype, tuple(shape), offset, size))
        offset += -(-size // PAGE) * PAGE
    return places, max(offset, PAGE)


def create(size: int, name: str = "kernlore") -> int:
    """A new memory file of `size` bytes; the descriptor."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


class Arrays:
    """Views on a memory file; they live as long as this does."""

    def __init__(self, fd: int, places: Sequence[Place], size: int) -> None:
        self._map = mmap.mmap(fd, size)
        self.bytes = size
        self.places = list(places)
        self.tensors = [self._view(place) for place in places]

    def _view(self, place: Place) -> torch.Tensor:
        dtype = dtype_of(place.dtype)
        if not place.bytes:
            return torch.empty(place.shape, dtype=dtype)
        count = place.bytes // torch.empty(0, dtype=dtype).element_size()
        flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=place.offset)
        return flat.view(place.shape)

    @property
    def address(self) -> int:
        """Where this process sees it."""
        return int(torch.frombuffer(self._map, dtype=torch.uint8).data_ptr())

    def touch(self) -> None:
        """Fault every page in, so that the first timed call does not."""
        view = (ctypes.c_char * len(self._map)).from_buffer(self._map)
        for offset in range(0, len(self._map), PAGE):
            view[offset]
        del view


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name} is no dtype")
    return found


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def places_json(places: Sequence[Place]) -> list[list[Any]]:
    return [[p.dtype, list(p.shape), p.offset, p.bytes] for p in places]


def places_from(rows: Sequence[Sequence[Any]]) -> list[Place]:
    return [Place(dtype, tuple(shape), offset, size) for dtype, shape, offset, size in rows]
