"""Texts drafted without a model: complete, based on figures, accepted by every checker; and kernels
that cannot become recipes, drafted as text.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from skills_ref import validate

from kb.catalog import Catalog
from kb.catalog.skills.reading import SkillRow, get_skill
from kb.errors import InvalidKnowledge
from kb.hardware.lineage import NameIndex
from kb.hardware.table_reader import Problems
from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import ROLES as KNOBS
from skills.curator.contrast import contrast, gate
from skills.curator.draft import (
    MOST_LINES,
    DraftedSkill,
    compose,
    dangling,
    key_lines,
    render,
    rows_of,
    slug,
)
from skills.curator.drafter import DraftTask
from skills.curator.records import Distillation, KernelChange
from skills.format.lint import Allowed, lint
from skills.format.schema import advice, check
from skills.skill_library import SkillLibrary
from skills.trajectories.records import MeasuredKernel, Trajectory, TrajectoryStep
from tests.skills.curator.planted import (
    ROLES,
    SEEDS,
    VALUES,
    at_random,
    catalog_in,
    distil,
    free,
    measured,
    trajectory,
    tuned,
)
from tests.skills.curator.planted import trajectory as told

PARTS = ("When not", "Steps", "After", "Expected effect", "How to check", "Failure signs",
         "Sources")  # fmt: skip


def drafted(made: Trajectory, roles: dict[str, dict[str, str]] = ROLES) -> DraftedSkill:
    passed, decision = gate(made, made.steps[0], {})
    assert passed is not None, decision.reason
    change, decision = contrast(made.steps[0], passed, roles)
    assert change is not None, decision.reason
    return compose(made, change, rows_of(made, change, passed.evidence))


def test_draft_is_complete() -> None:
    draft = drafted(told(tuned()))
    skill = draft.skill()
    assert all(f"## {part}\n" in skill.body for part in ("When to use", "Before", *PARTS))
    assert "unroll = 1" in skill.body and "unroll = 4" in skill.body
    assert "{{" not in skill.body and "from 1.43 to 1.57" in skill.body
    assert "- run run_1, node 2 against node 1" in skill.body
    assert skill.moves[0]["change"] == {"role": "unroll", "direction": "increase"}
    assert skill.scopes.hardware == ("x86-64",) and skill.scopes.dtypes == ("float32",)
    assert (skill.tier, skill.origin, skill.origin_run_id) == ("learned", "run", "run_1")


def test_precondition_holds_near_measured_sizes_only() -> None:
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
def test_every_parameter_role_gives_valid_draft(role: str, gain: float) -> None:
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


def test_figures_must_be_fields_of_a_row() -> None:
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


def test_prompt_has_result_of_each_case() -> None:
    """A kernel that is faster over all cases together may be slower on one."""
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
    # The prompt explains every field that it has.
    unexplained = {"dtype", "op", "language", "hardware", "parameters", "lines", "schema",
                   "nearest_skills"}  # fmt: skip
    assert all(f"`{name}`" in task.system for name in sent.keys() - unexplained)


def test_names_follow_format() -> None:
    assert slug("x86-64", "increase-tile_m", "layer_norm") == "x86-64-increase-tile-m-layernorm"
    assert slug("h100", "x" * 90, "matmul").endswith("x") and len(slug("h", "x" * 90, "m")) == 64
    assert slug("h100", "split-k", "GEMM", "avoid") == "h100-avoid-split-k-matmul"


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.slow(seconds=5)
def test_exports_pass_reference_validator_and_round_trip(catalog: Catalog, tmp_path: Path) -> None:
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
    """Write all skills as folders, candidates too."""
    return [*library.export(parent, [row.name for row in library.list()])]


def exported(folders: object, data: Path) -> list[Path]:
    """The skills of some folders, imported into another catalog and exported again."""
    other = catalog_in(data / "data")
    library = SkillLibrary(other)
    for folder in folders:  # type: ignore[attr-defined]
        library.import_folder(folder, actor="bob")
    folders = every_skill(library, data / "out")
    other.close()
    return folders


# -- text skills: a correct and faster kernel that cannot be a recipe is drafted as text

REFUSAL = "it is a module of its own"
LOOP = (
    "void kernlore_run(const float *x, float *y, long n) {\n"
    "  #pragma omp parallel for\n"
    "  for (long i = 0; i < n; i++) {\n"
    "    y[i] = x[i] * 2;\n"
    "  }\n"
    "}\n"
)
TWICE = LOOP.replace("y[i] = x[i] * 2;", "float a = x[i];\n    y[i] = a + a;")


def written(
    *kernels: tuple[str, float], origin: str = "llm", parents: tuple[int, ...] = ()
) -> Trajectory:
    """A trajectory of kernels with their speed-ups over the reference; each changes the reference
    unless `parents` names another node.
    """
    root = MeasuredKernel(0, None, measured("ev-0", 1.0, toolchain="torch"))
    sides = [root]
    steps = []
    for number, (text, speedup) in enumerate(kernels, 1):
        proposal = free(text)
        bundle = replace(proposal.bundle, origin=origin)  # type: ignore[arg-type]
        side = MeasuredKernel(
            number, replace(proposal, bundle=bundle), measured(f"ev-{number}", speedup)
        )
        parent = parents[number - 1] if parents else 0
        steps.append(TrajectoryStep(sides[parent], side))
        sides.append(side)
    made: Trajectory = trajectory(*steps)
    return made


def refuses(*_: Any) -> str:
    return REFUSAL


def text_skill(catalog: Catalog, made: Distillation) -> SkillRow:
    [added] = made.stored
    with catalog.read() as connection:
        return get_skill(connection, added.skill)


def test_kernel_that_cannot_be_lifted_becomes_a_text_skill(catalog: Catalog) -> None:
    made = distil(written((LOOP, 3.0)), catalog, lift=refuses)
    skill = text_skill(catalog, made)
    assert (skill.state, skill.tier, skill.recipe) == ("candidate", "learned", None)
    assert skill.metadata["kind"] == "text"
    reasons = [d.reason for d in made.decisions if d.stage == "draft"]
    assert any(REFUSAL in reason and "drafted as a text skill" in reason for reason in reasons)
    for part in (
        "```cpp\n" + LOOP.strip(),  # whole, because it is short
        "Structures of the kernel that the reference has not: `parallelise`.",
        "Right in the cases under Expected effect and in float32 on x86-64",
        "main on x86-64",
        "3.00, from 2.91 to 3.09",
    ):
        assert part in skill.body, part
    assert distil(written((LOOP, 3.0)), catalog, lift=refuses).stored == ()


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (written((LOOP, 3.0), origin="recipe"), REFUSAL),
        (written((LOOP, 1.0)), "no certain difference"),
    ],
)
def test_only_faster_kernels_of_models_become_text_skills(
    catalog: Catalog, made: Trajectory, reason: str
) -> None:
    judged = distil(made, catalog, lift=refuses)
    assert judged.stored == () and any(reason in d.reason for d in judged.decisions)


def test_only_fastest_kernel_of_a_run_becomes_a_text_skill(catalog: Catalog) -> None:
    other = LOOP.replace("* 2", "+ x[i]")
    made = distil(written((other, 2.0), (LOOP, 3.0)), catalog, lift=refuses)
    assert "node 2 against node 0" in text_skill(catalog, made).body
    assert any("this run teaches node 2" in d.reason for d in made.decisions if d.node == 1)


def test_unnamed_change_is_shown_before_and_after(catalog: Catalog) -> None:
    made = distil(written((LOOP, 1.0), (TWICE, 2.0), parents=(0, 1)), catalog)
    skill = text_skill(catalog, made)
    assert f"## Before\n\n```cpp\n{LOOP}```" in skill.body
    assert "float a = x[i];" in skill.body and "its parent" in skill.body


def test_two_kernels_of_one_operator_are_two_text_skills(catalog: Catalog) -> None:
    first = distil(written((LOOP, 3.0)), catalog, lift=refuses)
    second = distil(replace(written((TWICE, 3.0)), id="run_2"), catalog, lift=refuses)
    names = {made.stored[0].skill for made in (first, second)}
    assert len(names) == 2 and second.stored[0].operation == "ADD"


def test_key_lines_are_bounded_with_ellipses() -> None:
    filler = "".join(f"int a{n} = {n};\n" for n in range(60))
    [step] = written((filler + LOOP + filler, 3.0)).steps
    lines = [f"+{line}" for line in step.proposal.bundle.source.splitlines()]
    change = KernelChange(step, "use", "write-kernel", (), (), (), None, tuple(lines))
    shown = key_lines(change)
    assert len([line for line in shown if line != "..."]) == MOST_LINES
    assert "  #pragma omp parallel for" in shown and "    y[i] = x[i] * 2;" in shown
    assert "..." in shown
