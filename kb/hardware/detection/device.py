"""One physical device of this machine, and the names under which its hardware may be registered."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

Resolver = Callable[[str], str | None]


@dataclass(frozen=True)
class DetectedDevice:
    """One physical device. names: what it is called, the most exact first; how: which source told
    so.

    hardware_id_hint: the registered id its names lead to; None without a resolver or when it is not
    registered.
    """

    name: str
    kind: Literal["gpu", "cpu"]
    how: str
    names: tuple[str, ...] = ()
    hardware_id_hint: str | None = None
    uuid: str | None = None
    driver: str | None = None
    memory_bytes: int | None = None
    detail: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def with_hint(device: DetectedDevice, resolver: Resolver | None) -> DetectedDevice:
    """The device with the first registered id that one of its names leads to."""
    if resolver is None:
        return device
    for name in device.names or (device.name,):
        if (hardware_id := resolver(name)) is not None:
            how = f"{device.how}; known as {name!r}"
            return replace(device, hardware_id_hint=hardware_id, how=how)
    return device


def shortened(name: str) -> tuple[str, ...]:
    """A product name and its ever shorter beginnings, with and without the maker.

    "NVIDIA H100 80GB HBM3" is registered as h100: memory size, form factor and memory type vary by
    product.
    """
    words = [word for word in re.split(r"[\s_/-]+", name.strip()) if word]
    bare = words[1:] if words and words[0].lower() in ("nvidia", "amd", "intel", "tesla") else words
    bare = bare[1:] if len(bare) > 1 and bare[0].lower() in ("instinct", "tesla") else bare
    # a lone word without a digit is a product line ("GeForce"), not a product
    cuts = [" ".join(bare[:end]) for end in range(len(bare), 0, -1)]
    named = [cut for cut in cuts if any(char.isdigit() for char in cut)]
    return tuple(dict.fromkeys([name.strip(), *named]))
