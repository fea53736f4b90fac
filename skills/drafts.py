"""A skill's files as the skill that is to be stored: its ids, predicate, moves and recipe checked
against what is registered here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from ingestion.findings.moves import moves_of
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills import SkillDraft, Tier
from kb.errors import InvalidKnowledge
from kb.predicates import compile_predicate
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import load_signals
from skills.format.schema import (
    MOVES_JSON,
    RECIPE_JSON,
    STRUCTURED,
    SkillFile,
    advice,
    sources_of,
)
from skills.format.skillfile import content_sha256
from skills.format.warning_marks import unmarked


def draft_of(
    skill: SkillFile, tier: Tier, origin: Literal["shipped", "import"], registry: HardwareRegistry
) -> SkillDraft:
    """The skill as it is to be stored, its ids checked against what is registered here. Raises
    UnknownHardware, UnknownSignal and InvalidKnowledge."""
    skill = unmarked(skill)
    signals = load_signals()
    scopes = skill.scopes
    hardware = {registry.resolve(name) for name in scopes.hardware}
    for signal in scopes.signals:
        signals.get(signal)
    _check_predicate(skill)
    draft = SkillDraft(
        name=skill.name,
        tier=tier,
        transformation=skill.transformation,
        description=skill.description,
        body=skill.body,
        scopes=replace(scopes, hardware=tuple(sorted(hardware))),
        content_sha256="",
        origin=origin,
        polarity=skill.metadata.get("kb.polarity", "use"),
        predicate=skill.predicate,
        moves=_moves(skill),
        recipe=_recipe(skill),
        sources=sources_of(skill.body),
        metadata={
            "allowed_tools": skill.allowed_tools,
            "other": {k: v for k, v in skill.metadata.items() if not k.startswith("kb.")},
            "files": _texts(skill),
            **skill.about_error,
        },
        license=skill.license,
        compatibility=skill.compatibility,
        version=int(skill.metadata.get("kb.version", "1")),
    )
    return replace(draft, content_sha256=content_sha256(advice(draft)))


def _check_predicate(skill: SkillFile) -> None:
    if skill.predicate is None:
        return
    names, signals, metrics = (
        compile_predicate(skill.predicate).names(),
        load_signals(),
        load_metrics(),
    )
    for signal in names.signals:
        signals.get(signal)
    unknown = [name for name in names.metrics if name not in metrics]
    if unknown:
        raise InvalidKnowledge(
            f"the predicate of {skill.name} reads unknown metrics: {', '.join(unknown)}",
            hint="Use the names of the metric registry.",
        )


def _moves(skill: SkillFile) -> list[Mapping[str, Any]]:
    moves = _structured(skill, MOVES_JSON, list) or []
    moves_of({"moves": moves})
    return moves


def _recipe(skill: SkillFile) -> Mapping[str, Any] | None:
    recipe: Mapping[str, Any] | None = _structured(skill, RECIPE_JSON, dict)
    return recipe


def _structured(skill: SkillFile, name: str, kind: type) -> Any:
    if name not in skill.files:
        return None
    try:
        value = json.loads(skill.files[name])
    except ValueError as error:
        raise InvalidKnowledge(
            f"{name} of {skill.name} is not JSON: {error}", hint="Correct it at that place."
        ) from error
    if not isinstance(value, kind):
        raise InvalidKnowledge(
            f"{name} of {skill.name} is no JSON {kind.__name__}", hint="Export a skill to see one."
        )
    return value


def _texts(skill: SkillFile) -> dict[str, str]:
    """The reference texts that are kept; scripts and binaries are not."""
    kept = {}
    for name, data in sorted(skill.files.items()):
        if name.startswith("references/") and name not in STRUCTURED:
            try:
                kept[name] = data.decode("utf-8")
            except UnicodeDecodeError:
                continue  # reported among what was dropped
    return kept
