"""From a hardware id to what a toolchain needs: facts, the compiler's name for the chip, and
whether the chip is in this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kb.errors import Unavailable
from kb.hardware.detection import DetectedDevice
from kb.hardware.spec import HardwareSpec, ToolchainSpec
from optimizer.evaluation.bundle import SUFFIXES
from optimizer.evaluation.collectors.probe import DeviceIdentity
from optimizer.evaluation.toolchains.base import Target
from optimizer.evaluation.toolchains.registry import NOT_BUILT

AUTO = "auto"
# As the operating system names a core's caches, and the fact of each.
CACHES = {"L1d": "l1_size", "L2": "l2_size", "L3": "l3_size"}
# Widest first; flags of /proc/cpuinfo.
VECTORS = (("avx512f", 512), ("avx2", 256), ("avx", 256))


@dataclass(frozen=True)
class Chosen:
    """A target, and the built-in toolchain that its hardware.toml names for the language."""

    target: Target
    builtin: str | None


def here(devices: tuple[DetectedDevice, ...]) -> str:
    """The id of the first registered device of this machine, accelerators first. Raises Unavailable
    where none is registered."""
    for device in devices:
        if device.hardware_id_hint is not None:
            return device.hardware_id_hint
    names = ", ".join(device.name for device in devices) or "nothing"
    raise Unavailable(
        f"none of this machine's devices is a known hardware ({names})",
        hint="Name one with --hardware, or describe it with `kernlore hardware new ID`.",
    )


def target_for(
    hardware: str,
    lineage: tuple[str, ...],
    specs: Mapping[str, HardwareSpec],
    facts: Mapping[str, float | str],
    language: str,
    devices: tuple[DetectedDevice, ...],
    cuda: Callable[[], bool],
) -> Chosen:
    """The target of a hardware id for one language. `cuda` says whether torch can use a GPU here;
    it is only called where that matters."""
    toolchain = _toolchain(lineage, specs, language)
    return Chosen(
        Target(
            hardware=hardware,
            lineage=lineage,
            arch=_arch(facts, lineage),
            device=_device(hardware, lineage, specs, devices, cuda),
            facts=facts,
            templates=_templates(toolchain),
            languages=_languages(lineage, specs),
        ),
        (toolchain.builtin or None) if toolchain else None,
    )


def facts_of(identity: DeviceIdentity) -> dict[str, float | str]:
    """Facts that a CPU of this machine reports about itself, by key: caches in bytes, as one core
    sees them, and the width of its vectors, where an instruction set has several. Empty for a GPU,
    whose facts are those of its data sheet."""
    if identity.kind != "cpu":
        return {}
    known = identity.caches
    facts: dict[str, float | str] = {
        fact: float(known[level]) for level, fact in CACHES.items() if level in known
    }
    bits = next((bits for flag, bits in VECTORS if flag in identity.flags), None)
    if bits is not None:
        facts |= {"vector_bits": float(bits), "vector_load_max": bits / 8}
    return facts


def _toolchain(
    lineage: tuple[str, ...], specs: Mapping[str, HardwareSpec], language: str
) -> ToolchainSpec | None:
    """Of the chip, else of the nearest above it."""
    for place in lineage:
        spec = specs.get(place)
        if spec is not None and language in spec.toolchains:
            return spec.toolchains[language]
    return None


def _languages(lineage: tuple[str, ...], specs: Mapping[str, HardwareSpec]) -> dict[str, str]:
    """The suffix of a kernel's file in each language that something compiles for the hardware."""
    suffixes = {language: suffix for suffix, language in reversed([*SUFFIXES.items()])}
    known: dict[str, str] = {}
    for place in lineage:
        for language, chain in specs[place].toolchains.items() if place in specs else ():
            if chain.builtin not in NOT_BUILT:
                known.setdefault(language, chain.suffix or suffixes.get(language, ".py"))
    return dict(sorted(known.items()))


def _templates(toolchain: ToolchainSpec | None) -> Mapping[str, object]:
    if toolchain is None or toolchain.builtin:
        return {}
    return {name: value for name, value in vars(toolchain).items() if name != "builtin"}


def own_toolchains(
    specs: Mapping[str, HardwareSpec], lineage: Sequence[str]
) -> dict[str, ToolchainSpec]:
    """The command templates of a hardware by language: its own, else of the nearest above it."""
    nearest: dict[str, ToolchainSpec] = {}
    for place in lineage:
        for language, toolchain in specs[place].toolchains.items() if place in specs else ():
            nearest.setdefault(language, toolchain)
    return {name: toolchain for name, toolchain in nearest.items() if not toolchain.builtin}


def own_entry(specs: Mapping[str, HardwareSpec], lineage: Sequence[str], language: str) -> str:
    """What a hardware's own toolchain wants a kernel to be called; empty where it does not say."""
    toolchain = own_toolchains(specs, lineage).get(language)
    return toolchain.entry if toolchain is not None else ""


def _arch(facts: Mapping[str, float | str], lineage: tuple[str, ...]) -> str | None:
    """ "90" for compute capability 9.0, "gfx942" as it is; a CPU is compiled for as "native"."""
    capability = facts.get("compute_capability")
    if isinstance(capability, str):
        return capability.replace(".", "") if capability[0].isdigit() else capability
    return "native" if {"x86-64", "arm"} & set(lineage) else None


def _device(
    hardware: str,
    lineage: tuple[str, ...],
    specs: Mapping[str, HardwareSpec],
    devices: tuple[DetectedDevice, ...],
    cuda: Callable[[], bool],
) -> Literal["cpu", "cuda"] | None:
    present = [device for device in devices if device.hardware_id_hint == hardware]
    if not present:
        return None
    if present[0].kind == "cpu":
        return "cpu"
    return "cuda" if cuda() else None
