"""Every toolchain named in a built-in hardware file resolves, or has a reason."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from kb.errors import InvalidRequest, Unavailable
from kb.hardware.schema import parse_hardware
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.targets import target_for
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.python import TorchPython
from optimizer.evaluation.toolchains.registry import (
    BUILTIN,
    NOT_BUILT,
    installed,
    toolchain_for,
    usable_toolchain,
)

ROOT = Path(__file__).resolve().parents[4]
HOPPER = EvaluationTarget("h100", ("h100", "hopper", "nvidia"), "90")


def named() -> list[tuple[str, str, str]]:
    found = []
    for path in sorted((ROOT / "hw_manuals" / "hardware").glob("*/hardware.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        for language, chain in table.get("toolchains", {}).items():
            if "builtin" in chain:
                found.append((table["id"], language, chain["builtin"]))
    return found


@pytest.mark.parametrize("hardware, language, builtin", named())
def test_built_in_toolchain_names_of_hardware_files(
    hardware: str, language: str, builtin: str
) -> None:
    target = EvaluationTarget(hardware, (hardware,))
    if builtin in NOT_BUILT:
        with pytest.raises(Unavailable, match="not supported"):
            toolchain_for(language, target, builtin)
        return
    chain = toolchain_for(language, target, builtin)
    assert (chain.name, language in chain.languages) == (builtin, True)


def test_language_without_toolchain_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no toolchain") as raised:
        toolchain_for("sycl", HOPPER)
    assert "[toolchains.sycl]" in raised.value.hint
    with pytest.raises(InvalidRequest, match="does not compile 'cpp'"):
        toolchain_for("cpp", HOPPER, "triton-nvidia")
    with pytest.raises(InvalidRequest, match="unknown built-in"):
        toolchain_for("cpp", HOPPER, "tcc")


def test_language_of_other_chips_has_hint() -> None:
    files = sorted((ROOT / "hw_manuals" / "hardware").glob("*/hardware.toml"))
    specs = {p.parent.name: parse_hardware(p.read_text(encoding="utf-8"), p.name) for p in files}
    chips = {"h100": "It has cuda (.cu) and triton (.py):", "x86-64": "It has cpp (.cpp):"}
    for chip, words in chips.items():
        lineage = (*HOPPER.lineage,) if chip == "h100" else (chip,)
        chosen = target_for(chip, lineage, specs, {}, "sycl", (), lambda: False)
        with pytest.raises(InvalidRequest, match="no toolchain") as raised:
            toolchain_for("sycl", chosen.target, chosen.builtin)
        assert raised.value.hint.startswith(words)
        assert "[toolchains.sycl]" in raised.value.hint


def test_unavailable_toolchain_lists_installed_ones() -> None:
    with pytest.raises(Unavailable, match="no h100 to run on") as raised:
        usable_toolchain("torch", HOPPER)
    assert set(raised.value.details["installed"]) == set(BUILTIN)
    assert installed(HOPPER)["g++"].startswith("unavailable")


def test_command_templates() -> None:
    templates = {"compile": "cc {source} {output}", "run": "cc {output} {input}"}
    chain = toolchain_for("mylang", EvaluationTarget("chip", ("chip",), templates=templates))
    assert chain.languages == ("mylang",)


def test_torch_needs_only_valid_syntax(tmp_path: Path) -> None:
    target = EvaluationTarget("x86-64", ("x86-64",), None, "cpu")
    chain = usable_toolchain("torch", target)
    assert isinstance(chain, TorchPython)
    good = Bundle({"m.py": "class ModelNew:\n    pass\n"}, "m.py", "torch", "ModelNew")
    done = chain.compile(good, target, tmp_path, ())
    assert done.ok and done.loader is not None and done.loader.kind == "python"
    bad = Bundle({"m.py": "class ModelNew(:\n"}, "m.py", "torch", "ModelNew")
    done = chain.compile(bad, target, tmp_path, ())
    assert not done.ok and "SyntaxError" in done.log and 'File "src/m.py", line 1' in done.log
    assert "torch 2." in chain.version()
