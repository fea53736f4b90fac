"""Hardware as it is registered and read back: descriptions, facts with their sources, conflicts.

Every function takes the registry and plain values, and returns what JSON can carry, so that HTTP
routes and commands answer alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from ingestion.findings.facts import FactConflict, SourcedFact, find_conflicts
from kb.catalog.hardware import Fact, HardwareRegistry
from kb.hardware.lineage import find
from kb.hardware.schema import parse_hardware
from kb.hardware.spec import HardwareSpec
from kb.plain import plain

Json = dict[str, Any]
FactStatus = Literal["accepted", "proposed", "rejected"]
# effective: what holds, inherited facts included; the others choose among the hardware's own facts.
FactFilter = Literal["effective", "accepted", "proposed", "rejected", "all"]


def list_hardware(registry: HardwareRegistry) -> list[Json]:
    """Every registered hardware with its lineage."""
    return [
        {
            "id": spec.id,
            "name": spec.name,
            "vendor": spec.vendor,
            "kind": spec.kind,
            "parent": spec.parent,
            "lineage": list(registry.lineage(spec.id)),
            "aliases": list(spec.aliases),
            "languages": list(spec.languages),
            "summary": spec.summary,
        }
        for spec in registry.all().values()
    ]


def show_hardware(registry: HardwareRegistry, name: str) -> Json:
    """One hardware with everything that its description states. `name` is an id, name or alias.
    Raises UnknownHardware.
    """
    spec = registry.get(name)
    description: Json = plain(spec)
    return description | {"lineage": list(registry.lineage(spec.id))}


def register_hardware(
    registry: HardwareRegistry,
    description: Mapping[str, Any],
    origin: str,
    *,
    knowledge_dir: Path,
    check_signature: Callable[[Mapping[str, Any], str], object],
) -> Json:
    """Register or replace a hardware; `description` is the structure of a hardware.toml.

    Only `id` is required. `origin` names the description in errors. `check_signature` refuses an
    error signature that retrieval could not use. Raises InvalidKnowledge.
    """
    spec = parse_hardware(_completed(description, registry), origin)
    for signature in spec.signatures:  # one that retrieval refuses would fail every posted log
        check_signature(asdict(signature), spec.id)
    outcome = registry.put(spec, "api")
    answer: Json = {
        "id": spec.id,
        "outcome": outcome,
        "lineage": list(registry.lineage(spec.id)),
    }
    if outcome == "updated" and _is_shipped(spec, knowledge_dir):
        answer["note"] = (
            f"{spec.id} is built in: the next start restores the shipped description."
            " Register a child of it, or correct single facts, to keep a change."
        )
    return answer


def facts_of(registry: HardwareRegistry, name: str, status: FactFilter = "effective") -> Json:
    """The facts of a hardware with their sources, and where sources disagree.

    `other_kinds` lists what is stated beside an effective fact, such as a measured bandwidth beside
    the datasheet's. Raises UnknownHardware.
    """
    hardware = registry.resolve(name)
    own = registry.facts(hardware)
    if status == "effective":
        facts = list(registry.effective_facts(hardware).values())
    else:
        facts = [fact for fact in own if status in ("all", fact.status)]
    listed = {fact.id for fact in facts}
    return {
        "hardware": hardware,
        "lineage": list(registry.lineage(hardware)),
        "facts": [_fact(fact, hardware) for fact in facts],
        "other_kinds": [
            _fact(fact, hardware)
            for fact in own
            if status == "effective" and fact.status == "accepted" and fact.id not in listed
        ],
        "conflicts": plain(_conflicts(own)),
    }


def decide_fact(
    registry: HardwareRegistry,
    fact_id: str,
    *,
    status: FactStatus | None = None,
    number: float | None = None,
    text: str | None = None,
    note: str | None = None,
    actor: str,
) -> Json:
    """Accept or reject a fact, or correct its value (`number` in the fact's own unit, or `text`).
    A corrected value counts as accepted. Raises NotFound and InvalidRequest.
    """
    fact = registry.patch_fact(
        fact_id, status=status, number=number, text=text, note=note, actor=actor
    )
    return _fact(fact, fact.hardware_id)


def _completed(description: Mapping[str, Any], registry: HardwareRegistry) -> Json:
    """With a name and a vendor, which a newcomer may leave out."""
    completed = {key: value for key, value in description.items() if value is not None}
    known = registry.all()
    parent = completed.get("parent")
    if isinstance(parent, str) and (resolved := find(parent, known)) is not None:
        completed["parent"] = resolved
        completed.setdefault("vendor", known[resolved].vendor)
    identity = completed.get("id")
    if isinstance(identity, str) and identity:
        completed.setdefault("name", identity)
        is_vendor = completed.get("kind") == "vendor"  # which is its own vendor
        completed.setdefault("vendor", identity if is_vendor else "unknown")
    return completed


def _is_shipped(spec: HardwareSpec, knowledge_dir: Path) -> bool:
    return (knowledge_dir / "hardware" / spec.id / "hardware.toml").is_file()


def _fact(fact: Fact, hardware: str) -> Json:
    fields: Json = plain(fact)
    return fields | {"value": plain(fact.value), "inherited": fact.hardware_id != hardware}


def _conflicts(facts: Sequence[Fact]) -> list[FactConflict]:
    """Within one kind: a measured bandwidth below the datasheet's contradicts nothing."""
    conflicts: list[FactConflict] = []
    for kind in ("datasheet", "measured", "derived"):
        conflicts += find_conflicts(
            SourcedFact(f.key, f.subject or "", f.value, f.unit, f"{f.title}, {f.locator}")
            for f in facts
            if f.kind == kind and f.status != "rejected"
        )
    return conflicts
