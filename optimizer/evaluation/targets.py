"""From a hardware id to the target of a toolchain: its facts, the compiler's name for the chip, and
whether the chip is in this machine.

Knows neither the catalog nor toolchains: nodes of a search import it without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kb.errors import Unavailable
from kb.hardware.detection import DetectedDevice
from kb.hardware.spec import HardwareSpec, ToolchainSpec
from optimizer.evaluation.bundle import SUFFIXES
from optimizer.evaluation.collectors.probe import DeviceIdentity
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.registry import NOT_BUILT

AUTO = "auto"  # hardware: the first registered device of this machine
# Cache levels by the operating system's name, with the fact of each.
CACHES = {"L1d": "l1_size", "L2": "l2_size", "L3": "l3_size"}
# Flags of /proc/cpuinfo, widest first.
VECTOR_BITS = (("avx512f", 512), ("avx2", 256), ("avx", 256))


@dataclass(frozen=True)
class ChosenTarget:
    """A target, and the built-in toolchain that its hardware.toml names for the language."""

    target: EvaluationTarget
    builtin: str | None


def target_for(
    hardware: str,
    lineage: tuple[str, ...],
    specs: Mapping[str, HardwareSpec],
    facts: Mapping[str, float | str],
    language: str,
    devices: tuple[DetectedDevice, ...],
    cuda: Callable[[], bool],
) -> ChosenTarget:
    """The target of a hardware id for one language. `cuda`, which imports torch, says whether it
    can use a GPU; it is only called if the hardware is a GPU of this machine."""
    toolchain = _toolchain(lineage, specs, language)
    return ChosenTarget(
        EvaluationTarget(
            hardware=hardware,
            lineage=lineage,
            arch=_arch(facts, lineage),
            device=_device(hardware, devices, cuda),
            facts=facts,
            templates=_templates(toolchain),
            languages=_languages(lineage, specs),
        ),
        (toolchain.builtin or None) if toolchain else None,
    )


def detected_hardware(devices: tuple[DetectedDevice, ...]) -> str:
    """The id of the first registered device of this machine, accelerators first. Raises Unavailable
    if none is registered."""
    for device in devices:
        if device.hardware_id_hint is not None:
            return device.hardware_id_hint
    names = ", ".join(device.name for device in devices) or "nothing"
    raise Unavailable(
        f"none of this machine's devices is a known hardware ({names})",
        hint="Name one with --hardware, or describe it with `kernlore hardware new ID`.",
    )


def facts_of(identity: DeviceIdentity) -> dict[str, float | str]:
    """Facts that a CPU of this machine reports: cache sizes in bytes per core, and vector width.
    {} for a GPU, whose facts are those of its data sheet."""
    if identity.kind != "cpu":
        return {}
    known = identity.caches
    facts: dict[str, float | str] = {
        fact: float(known[level]) for level, fact in CACHES.items() if level in known
    }
    bits = next((bits for flag, bits in VECTOR_BITS if flag in identity.flags), None)
    if bits is not None:
        facts |= {"vector_bits": float(bits), "vector_load_max": bits / 8}
    return facts


def command_toolchains(
    specs: Mapping[str, HardwareSpec], lineage: Sequence[str]
) -> dict[str, ToolchainSpec]:
    """By language, the command toolchains of a chip and of its ancestors; the nearest wins."""
    by_language: dict[str, ToolchainSpec] = {}
    for ancestor in lineage:
        for language, chain in specs[ancestor].toolchains.items() if ancestor in specs else ():
            by_language.setdefault(language, chain)
    return {language: chain for language, chain in by_language.items() if not chain.builtin}


def _toolchain(
    lineage: tuple[str, ...], specs: Mapping[str, HardwareSpec], language: str
) -> ToolchainSpec | None:
    """The toolchain of the chip, or of its nearest ancestor that has one."""
    for ancestor in lineage:
        spec = specs.get(ancestor)
        if spec is not None and language in spec.toolchains:
            return spec.toolchains[language]
    return None


def _languages(lineage: tuple[str, ...], specs: Mapping[str, HardwareSpec]) -> dict[str, str]:
    """File suffixes by language, of the languages that can be compiled for the chip."""
    suffixes = {language: suffix for suffix, language in reversed([*SUFFIXES.items()])}
    known: dict[str, str] = {}
    for ancestor in lineage:
        for language, chain in specs[ancestor].toolchains.items() if ancestor in specs else ():
            if chain.builtin not in NOT_BUILT:
                known.setdefault(language, chain.suffix or suffixes.get(language, ".py"))
    return dict(sorted(known.items()))


def _templates(toolchain: ToolchainSpec | None) -> Mapping[str, object]:
    if toolchain is None or toolchain.builtin:
        return {}
    return {name: value for name, value in vars(toolchain).items() if name != "builtin"}


def _arch(facts: Mapping[str, float | str], lineage: tuple[str, ...]) -> str | None:
    """ "90" for compute capability 9.0, "gfx942" unchanged; "native" for a CPU."""
    capability = facts.get("compute_capability")
    if isinstance(capability, str):
        return capability.replace(".", "") if capability[0].isdigit() else capability
    return "native" if {"x86-64", "arm"} & set(lineage) else None


def _device(
    hardware: str, devices: tuple[DetectedDevice, ...], cuda: Callable[[], bool]
) -> Literal["cpu", "cuda"] | None:
    present = [device for device in devices if device.hardware_id_hint == hardware]
    if not present:
        return None
    if present[0].kind == "cpu":
        return "cpu"
    return "cuda" if cuda() else None
