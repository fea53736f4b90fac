"""The text that needs no model: complete, backed by figures, accepted by every checker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from skills_ref import validate

from kb.catalog import Catalog
from kb.errors import InvalidKnowledge
from kb.hardware.lineage import NameIndex
from kb.hardware.table_reader import Problems
from kb.moves_vocabulary import ROLES as KNOBS
from kb.predicates import Bindings, compile_predicate
from skills.curator.contrast import contrast
from skills.curator.draft import DraftedSkill, compose, dangling, render, rows_of, slug
from skills.curator.drafter import DraftTask
from skills.curator.gate import gate
from skills.format.lint import Allowed, lint
from skills.format.schema import advice, check
from skills.skill_library import SkillLibrary
from skills.trajectories.records import Trajectory
from tests.skills.curator.planted import ROLES, SEEDS, VALUES, at_random, catalog_in, distil, tuned
from tests.skills.curator.planted import trajectory as told

PARTS = ("When not", "Steps", "After", "Expected effect", "How to check", "Failure signs",
         "Sources")  # fmt: skip


def drafted(made: Trajectory, roles: dict[str, dict[str, str]] = ROLES) -> DraftedSkill:
    passed, decision = gate(made, made.steps[0], {})
    assert passed is not None, decision.reason
    change, decision = contrast(made.steps[0], passed, roles)
    assert change is not None, decision.reason
    return compose(made, change, rows_of(made, change, passed.evidence))


def test_an_engineer_finds_everything_to_apply_it() -> None:
    draft = drafted(told(tuned()))
    skill = draft.skill()
    assert all(f"## {part}\n" in skill.body for part in ("When to use", "Before", *PARTS))
    assert "unroll = 1" in skill.body and "unroll = 4" in skill.body
    assert "{{" not in skill.body and "from 1.43 to 1.57" in skill.body
    assert "- run run_1, node 2 against node 1" in skill.body
    assert skill.moves[0]["change"] == {"role": "unroll", "direction": "increase"}
    assert skill.scopes.hardware == ("x86-64",) and skill.scopes.dtypes == ("float32",)
    assert (skill.tier, skill.origin, skill.origin_run_id) == ("learned", "run", "run_1")


def test_the_precondition_holds_where_it_was_measured_and_not_far_from_it() -> None:
    predicate = compile_predicate(drafted(told(tuned())).predicate)

    def holds(**problem: object) -> bool | None:
        values = {"op": "layernorm", "compulsory_bytes": 3e7, **problem}
        return predicate.evaluate(Bindings(("memory_bound",), problem=values)).value  # type: ignore[arg-type]

    assert holds() is True
    assert holds(op="softmax") is False
    assert holds(compulsory_bytes=1e3) is False
    assert predicate.evaluate(Bindings((), problem={"op": "layernorm"})).value is False


@pytest.mark.parametrize("role", sorted(KNOBS))
@pytest.mark.parametrize("gain", [1.5, 0.5])
def test_every_knob_gives_a_clean_draft_that_the_schema_takes(role: str, gain: float) -> None:
    roles = {next(iter(ROLES)): {**dict.fromkeys(VALUES, "block"), "unroll": role}}
    draft = drafted(told(tuned(speedups=(1.0, gain))), roles)
    allowed = Allowed(frozenset({"1", "4"}), frozenset({"x86-64"}),
                      NameIndex({"h100": ("h100",), "x86-64": ("x86-64",)}))  # fmt: skip
    texts = {"description": draft.words.description, "body": draft.template()}
    assert lint(texts, allowed) == ()
    problems = Problems(draft.name)
    check(advice(draft.skill()), draft.name, problems)
    assert problems.entries == []
    assert draft.polarity == ("use" if gain > 1 else "avoid")
    assert bool(draft.moves) == (gain > 1)


def test_a_figure_is_only_what_a_row_has() -> None:
    rows = drafted(told(tuned())).evidence
    assert render("{{ev:1.n}} {{ev:all.speedup_low}}", rows) == "12 1.43"
    assert dangling("{{ev:2.n}} {{ev:1.beauty}} {{x}} {{ev:0.n}}", rows) == [
        "{{ev:2.n}}", "{{ev:1.beauty}}", "{{x}}", "{{ev:0.n}}",
    ]  # fmt: skip
    with pytest.raises(InvalidKnowledge, match="no figure"):
        render("{{ev:9.n}}", rows)


def test_bounds_are_rounded_outwards() -> None:
    row = replace(drafted(told(tuned())).evidence[0], speedup_low=1.019, speedup_high=1.021)
    assert render("{{ev:1.speedup_low}} {{ev:1.speedup_high}}", [row]) == "1.01 1.03"


def test_a_model_is_told_how_the_child_did_on_each_case() -> None:
    """What was faster over all cases together may have been slower on one of them."""
    made = told(tuned())
    passed, _ = gate(made, made.steps[0], {})
    assert passed is not None
    change, _ = contrast(made.steps[0], passed, ROLES)
    assert change is not None
    draft = drafted(made)
    row = draft.evidence[0]
    slower = replace(row, case_id="bf16", speedup_low=0.6, speedup_high=0.7)
    nothing = replace(row, case_id="small", speedup_low=0.9, speedup_high=1.1)
    task = DraftTask(change, replace(draft, evidence=(row, slower, nothing)), ())
    sent = json.loads(task.message.removeprefix("<data>\n").removesuffix("\n</data>"))
    assert [one["child_was"] for one in sent["evidence_rows"]] == [
        "faster than its parent", "slower than its parent", "not certainly faster or slower",
    ]  # fmt: skip
    assert "speedup_low" in sent["fields_of_each_row"]
    # Every field that is told is told of.
    unexplained = {"dtype", "op", "language", "hardware", "parameters", "lines", "schema",
                   "nearest_skills"}  # fmt: skip
    assert all(f"`{name}`" in task.system for name in sent.keys() - unexplained)


def test_names_are_those_of_the_format() -> None:
    assert slug("x86-64", "increase-tile_m", "layer_norm") == "x86-64-increase-tile-m-layernorm"
    assert slug("h100", "x" * 90, "matmul").endswith("x") and len(slug("h", "x" * 90, "m")) == 64
    assert slug("h100", "split-k", "GEMM", "avoid") == "h100-avoid-split-k-matmul"


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.slow(seconds=5)
def test_exports_pass_the_reference_validator_and_survive_the_round_trip(
    catalog: Catalog, tmp_path: Path
) -> None:
    for seed in SEEDS:
        distil(at_random(seed), catalog, roles=ROLES)
    first = every_skill(SkillLibrary(catalog), tmp_path / "one")
    assert len(first) >= 4
    assert {folder.name: problems for folder in first if (problems := validate(folder))} == {}
    second = exported(first, tmp_path / "b")
    third = exported(second, tmp_path / "c")
    assert [files(folder) for folder in second] == [files(folder) for folder in third]
    for one, two in zip(first, second, strict=True):
        lost = files(one).keys() - files(two).keys()
        assert lost == {"references/evidence.json"}
        moves = "references/moves.json"
        assert files(one).get(moves) == files(two).get(moves)


def every_skill(library: SkillLibrary, parent: Path) -> list[Path]:
    """Written as folders, candidates too."""
    return [*library.export(parent, [row.name for row in library.list()])]


def exported(folders: object, data: Path) -> list[Path]:
    """The skills of some folders, through another catalog."""
    other = catalog_in(data / "data")
    library = SkillLibrary(other)
    for folder in folders:  # type: ignore[attr-defined]
        library.import_folder(folder, actor="bob")
    folders = every_skill(library, data / "out")
    other.close()
    return folders
