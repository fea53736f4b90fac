"""Evidence that ships with skills: read from the folder, separate from measurements made here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kb.catalog import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills.shipped import Figure, ShippedTrial, effect_of, read_trials, trial_from_json
from kb.errors import Conflict, InvalidRequest
from kb.hardware.table_reader import Problems
from skills.importing import sync_shipped
from skills.lifecycle import merge, narrow_by_hand
from skills.skill_library import SkillLibrary
from skills.uses import ScopePart

LIBRARY = Path(__file__).resolve().parents[2] / "skills" / "library"
NAME, OTHER = "cpp-fused-row-softmax", "cpp-row-resident-layernorm"


def trial(low: float, high: float, **changed: object) -> ShippedTrial:
    value = (low * high) ** 0.5
    fields = {
        "hardware": "x86-64",
        "date": "2026-11-29",
        "device": "a processor",
        "problem": "softmax",
        "case": "main",
        "made": 1,
        "dtype": "float32",
        "gain": Figure(value, low, high, 12),
        "sizes": {"row_length": 64},
    }
    return ShippedTrial(**{**fields, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trials", "state"),
    [
        ((), "untested"),
        ((trial(1.2, 1.5), trial(1.1, 1.3)), "helps"),
        ((trial(1.2, 1.5),), "helps"),
        ((trial(1.2, 1.5, placebo=Figure(1.0, 0.9, 1.1, 6)),), "helps"),
        ((trial(1.2, 1.5, placebo=Figure(1.3, 1.2, 1.4, 6)),), "no effect"),
        ((trial(1.2, 1.5), trial(0.95, 1.1)), "helps"),
        ((trial(1.4, 1.5), trial(0.95, 1.1), trial(0.95, 1.1)), "no effect"),
        ((trial(0.95, 1.1), trial(0.97, 1.2)), "no effect"),
        ((trial(1.2, 1.5), trial(1.1, 1.3), trial(0.7, 0.9, place="edge")), "helps"),
        ((trial(0.7, 0.9), trial(0.97, 1.2)), "harms"),
        ((trial(1.2, 1.5, wrong=1), trial(0.97, 1.1)), "harms"),
        ((trial(1.2, 1.5, place="outside", made=0),), "untested"),
        ((trial(1.2, 1.5, made=0), trial(1.2, 1.5, made=0)), "untested"),
        # Drafts of a model differ by more than the timing.
        ((trial(1.2, 1.25, model="m", budget=2),), "no effect"),
        ((trial(0.8, 0.85, model="m", budget=2),), "no effect"),
        ((trial(1.6, 1.7, model="m", budget=2),), "helps"),
        ((trial(0.5, 0.6, model="m", budget=2),), "harms"),
        ((trial(1.0, 1.1, model="m", budget=2, wrong=1),), "no effect"),
        ((trial(1.0, 1.1, model="m", budget=2, wrong=2),), "harms"),
    ],
)
def test_effect_as_text(trials: tuple[ShippedTrial, ...], state: str) -> None:
    effect = effect_of(trials)
    assert effect.state == state and str(effect).startswith(state)
    assert ("measured by Kernlore on a processor" in str(effect)) == (state != "untested")
    assert ("row_length 64" in str(effect)) == any(t.harms for t in trials)


def test_no_effect_above_one_says_why() -> None:
    effect = effect_of([trial(1.2, 1.5, placebo=Figure(1.3, 1.2, 1.4, 6))])
    assert "n=1; certainly faster in 0 of 1 (with a placebo 1.30 [1.20, 1.40]);" in str(effect)
    effect = effect_of([trial(1.4, 1.5), trial(0.98, 1.1), trial(0.98, 1.1)])
    assert "n=3; certainly faster in 1 of 3;" in str(effect)
    assert "certainly" not in str(effect_of([trial(0.95, 1.1)]))


def test_evidence_line_round_trips_and_invalid_line_is_named() -> None:
    written = trial(1.1, 1.3)
    read = trial_from_json(json.loads(json.dumps(written.as_json())))
    assert read.gain is not None and read.gain.low == pytest.approx(1.1, abs=1e-4)
    problems = Problems("a skill")
    broken = {**written.as_json(), "gain": {"value": 2.0, "low": 3.0, "high": 4.0, "n": 1}}
    assert read_trials(f"\n{json.dumps(broken)}\n[]\n", problems) == ()
    assert [entry.path for entry in problems.entries] == ["evidence.jsonl:2", "evidence.jsonl:3"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (NAME, OTHER):
        shutil.copytree(LIBRARY / name, tmp_path / "library" / name)
        (tmp_path / "library" / name / "evidence.jsonl").unlink(missing_ok=True)
    return tmp_path / "library"


def test_shipped_evidence_changes_no_version(catalog: Catalog, folder: Path) -> None:
    registry, library = HardwareRegistry(catalog), SkillLibrary(catalog)
    sync_shipped(catalog, registry, folder)
    assert library.show(NAME).summary.effect.state == "untested"
    lines = [json.dumps(t.as_json()) for t in (trial(1.2, 1.5), trial(1.1, 1.3))]
    (folder / NAME / "evidence.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert sync_shipped(catalog, registry, folder).changed == 1
    detail = library.show(NAME)
    assert (detail.summary.effect.state, detail.summary.version) == ("helps", 1)
    assert detail.summary.evidence == "not measured here" and detail.evidence == ()
    assert [(g.by, g.hardware, g.cases) for g in detail.gains] == [("Kernlore", "x86-64", 2)]
    assert sync_shipped(catalog, registry, folder).changed == 0
    assert [s.name for s in library.list(effect="helps")] == [NAME]
    assert [s.name for s in library.list(effect="untested,harms")] == [OTHER]
    assert [s.name for s in library.list(order="effect")] == [NAME, OTHER]
    with pytest.raises(InvalidRequest, match="no such effect"):
        library.list(effect="good")


def test_person_narrows_and_merges_skills(catalog: Catalog, folder: Path) -> None:
    sync_shipped(catalog, HardwareRegistry(catalog), folder)
    library = SkillLibrary(catalog)
    signed: dict[str, Any] = {"actor": "ann", "reason": "seen"}
    narrow_by_hand(catalog, NAME, ScopePart("row_length", below=64), **signed)
    assert library.show(NAME).predicate == "problem.row_length >= 64"
    with pytest.raises(InvalidRequest, match="no part of a scope"):
        narrow_by_hand(catalog, NAME, ScopePart("row_length"), **signed)
    merge(catalog, OTHER, NAME, **signed)
    assert library.show(OTHER).summary.state == "retired"
    assert library.show(NAME).events[-1].details["merged"] == OTHER
    with pytest.raises(Conflict, match="retired"):
        merge(catalog, OTHER, NAME, **signed)
