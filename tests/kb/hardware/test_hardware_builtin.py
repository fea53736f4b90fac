"""The hardware descriptions that ship with the product keep their own rules."""

from __future__ import annotations

from pathlib import Path

from kb.hardware.facts import formula_warnings
from kb.hardware.lineage import effective_facts, registry_problems
from kb.hardware.schema import parse_hardware
from kb.hardware.spec import HardwareSpec
from kb.hardware.writer import dump_hardware

FOLDER = Path(__file__).parents[3] / "hw_manuals" / "hardware"


def shipped() -> dict[str, HardwareSpec]:
    files = sorted(FOLDER.glob("*/hardware.toml"))
    assert files
    specs = {f.parent.name: parse_hardware(f.read_text("utf-8"), f.parent.name) for f in files}
    assert {name: spec.id for name, spec in specs.items()} == {name: name for name in specs}
    return specs


def test_shipped_descriptions_are_valid_and_hold_together() -> None:
    specs = shipped()
    assert registry_problems(specs) == []
    for name, spec in specs.items():
        assert parse_hardware(dump_hardware(spec), name) == spec


def test_shipped_formulas_give_the_stated_values() -> None:
    specs = shipped()
    for name, spec in specs.items():
        effective = effective_facts(name, specs)
        numbers = {
            key: float(found.fact.value)
            for key, found in effective.items()
            if not isinstance(found.fact.value, str)
        }
        assert formula_warnings(spec, numbers) == (), name
