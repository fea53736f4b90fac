"""Which skills an answer shows, in which order, and with which summary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kb.catalog import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills.evidence import RateInterval, wilson
from kb.catalog.skills.reading import SkillDraft, SkillHead, SkillScopes
from kb.catalog.skills.writing import add_evidence, record_toolchain, set_state, store_skill
from kb.hardware.schema import parse_hardware
from kb.ids import SkillId
from kb.scope import ANY, ScopeFilter
from retrieval.answer import traits_of
from retrieval.compose.skill_choice import SkillSelection, choose_skills, evidence_part
from retrieval.request import RetrieveRequest
from retrieval.snapshot.knowledge import Knowledge
from tests.kb.catalog.stored_skills import ablation, put_curated
from tests.retrieval.test_tree import snapshots_of

pytestmark = pytest.mark.slow(seconds=4)

SCOPE = ScopeFilter(("h100", "hopper", ANY))
REQUEST = RetrieveRequest(signal="memory_bound", hardware="h100", op="softmax")
HEAD = SkillHead(
    id=SkillId("sk_1"),
    name="a",
    version=1,
    tier="learned",
    state="active",
    polarity="use",
    transformation="t",
    description="d",
    predicate=None,
    structured_key="k",
    origin="run",
    toolchain_id=None,
    trials=0,
    wins=0,
    last_used_at=None,
    written_at="",
    created_at="",
    updated_at="",
    scopes=SkillScopes(),
)


def put(catalog: Catalog, name: str, **given: Any) -> None:
    scopes = SkillScopes(signals=("memory_bound",), **given.pop("scopes", {}))
    put_curated(catalog, name, scopes, **given)


def measure(catalog: Catalog, name: str, toolchain: str | None = None, low: float = 1.1) -> None:
    with catalog.write() as connection:
        row = ablation(low, toolchain_id=toolchain)
        add_evidence(connection, name, row, actor="ann", reason="test")


def known(catalog: Catalog) -> Knowledge:
    return snapshots_of(catalog).current().knowledge


def choose(
    catalog: Catalog, request: RetrieveRequest = REQUEST, share: float = 0.1
) -> SkillSelection:
    return choose_skills(known(catalog), request, ["memory_bound"], SCOPE, {}, {}, share)


def names(choice: SkillSelection) -> list[str]:
    return [answer.name for answer in choice.answers]


# -- the score


def test_wilson_equals_published_interval() -> None:
    assert wilson(8, 10).low == pytest.approx(0.4902, abs=1e-4)
    assert wilson(20, 20).low == pytest.approx(0.8389, abs=1e-4)
    assert wilson(0, 5).low == 0.0 and wilson(5, 5).high == 1.0
    assert wilson(0, 0) == RateInterval(0.0, 1.0)


def test_evidence_factor_starts_at_half_and_follows_record() -> None:
    def part(trials: int, wins: int) -> float:
        return evidence_part(replace(HEAD, trials=trials, wins=wins))

    assert part(0, 0) == 0.5
    assert part(1, 1) == 0.5  # one win is weak evidence
    for trials in range(1, 40):
        scores = [part(trials, wins) for wins in range(trials + 1)]
        assert scores == sorted(scores)
        assert part(trials, trials) <= max(0.5, wilson(trials, trials).low)
    assert part(8, 0) == 0.25 and part(40, 40) > 0.8
    assert evidence_part(HEAD, (4, 4)) == evidence_part(replace(HEAD, trials=4, wins=4))


def test_score_is_the_product_of_its_factors(catalog: Catalog) -> None:
    put(catalog, "exact", scopes={"hardware": ("h100",)})
    put(catalog, "family", scopes={"hardware": ("hopper",)})
    put(catalog, "anywhere")
    choice = choose(catalog)
    assert names(choice) == ["exact", "family", "anywhere"]
    assert [answer.score["scope"] for answer in choice.answers] == [1.0, 0.8, 0.6]
    for answer in choice.answers:
        score = dict(answer.score)
        total = score.pop("total")
        assert set(score) == {"relevance", "evidence", "scope", "freshness"}
        product = score["relevance"] * score["evidence"] * score["scope"] * score["freshness"]
        assert product == pytest.approx(total)


def test_skill_of_another_chip_or_operator_is_not_shown(catalog: Catalog) -> None:
    put(catalog, "on-amd", scopes={"hardware": ("mi300x",)})
    put(catalog, "for-conv", scopes={"ops": ("conv",)})
    put(catalog, "not-softmax", predicate='problem.op != "softmax"')
    assert choose(catalog) == SkillSelection()


def test_evidence_raises_skill_and_is_shown(catalog: Catalog) -> None:
    put(catalog, "a-unmeasured")
    put(catalog, "b-measured")
    for _ in range(6):
        measure(catalog, "b-measured")
    first, second = choose(catalog).answers
    assert (first.name, second.name) == ("b-measured", "a-unmeasured")
    assert second.evidence is None and second.score["evidence"] == 0.5
    assert first.evidence is not None
    assert first.evidence["line"].startswith("n=72;speedup_lcb=1.10")
    assert len(first.evidence["rows"]) == 5
    assert first.evidence["rows"][0]["speedup_low"] == 1.1
    assert first.evidence["rows"][0]["hardware_id"] == "h100"


def test_slower_skill_ranks_lower(catalog: Catalog) -> None:
    put(catalog, "a-slower")
    put(catalog, "b-unmeasured")
    for _ in range(4):
        measure(catalog, "a-slower", low=0.8)
    assert names(choose(catalog)) == ["b-unmeasured", "a-slower"]


def test_significantly_slower_trials_raise_avoid_skills(catalog: Catalog) -> None:
    put(catalog, "a-unmeasured")
    put(catalog, "b-slow", polarity="avoid")
    for _ in range(6):
        measure(catalog, "b-slow", low=0.5)
    first, second = choose(catalog).answers
    assert (first.name, second.score["evidence"]) == ("b-slow", 0.5)


def test_evidence_of_another_toolchain_counts_less(catalog: Catalog) -> None:
    put(catalog, "measured")
    measure(catalog, "measured", toolchain="triton-nvidia triton 3.4.0")
    with catalog.write() as connection:
        record_toolchain(connection, "a100", "triton-nvidia triton 3.4.0")
        record_toolchain(connection, "h100", "cpp g++ 14")
    assert choose(catalog).answers[0].score["freshness"] == 1.0
    with catalog.write() as connection:
        record_toolchain(connection, "h100", "triton-nvidia triton 3.5.0")
    assert choose(catalog).answers[0].score["freshness"] == 0.8
    with catalog.write() as connection:
        set_state(connection, "measured", "suspect", actor="ann", reason="old")
    changed = replace(REQUEST, skill_states=("suspect",))
    assert choose(catalog, changed).answers[0].score["freshness"] == 0.5
    assert choose(catalog).answers == ()


def test_avoid_skill_is_marked(catalog: Catalog) -> None:
    put(catalog, "no-atomics", polarity="avoid")
    (answer,) = choose(catalog).answers
    assert answer.summary == "Avoid: Use no-atomics for no-atomics."


# -- selection


def test_equal_claims_are_shown_once(catalog: Catalog) -> None:
    put(catalog, "first", transformation="vectorise")
    put(catalog, "second", transformation="vectorise")
    assert len(choose(catalog).answers) == 1


def test_warning_does_not_hide_contradicted_skills(catalog: Catalog) -> None:
    put(catalog, "first", transformation="vectorise", description="Widen the loads.")
    put(catalog, "other")
    put(catalog, "third")
    warns = {"polarity": "avoid", "description": "Widen the loads."}
    put(catalog, "warning", transformation="vectorise", **warns)
    for _ in range(6):
        measure(catalog, "first")
    by_name = {answer.name: answer.summary for answer in choose(catalog).answers}
    assert by_name["first"] == "Widen the loads. (Warned of by warning.)"
    assert by_name["warning"] == "Avoid: Widen the loads. (Advised by first.)"
    assert len(by_name) == 3


def test_different_skill_precedes_slightly_better_duplicate(catalog: Catalog) -> None:
    text = "Use when loads of a row are narrow and the kernel waits for memory."
    for name, dtypes in (("widen-a", ("float32",)), ("widen-b", ("float16",))):
        put(
            catalog,
            name,
            transformation="vectorise",
            description=text,
            scopes={"dtypes": dtypes, "ops": ("softmax",), "hardware": ("h100",)},
        )
    put(catalog, "fuse-passes", description="Read once.", scopes={"hardware": ("hopper",)})
    assert names(choose(catalog)) == ["widen-a", "fuse-passes", "widen-b"]


def test_at_most_three_skills_within_budget(catalog: Catalog) -> None:
    for number in range(6):
        put(catalog, f"skill-{number}")
    assert len(choose(catalog).answers) == 3
    assert len(choose(catalog, replace(REQUEST, max_tokens=60)).answers) == 1
    assert choose(catalog, replace(REQUEST, max_tokens=10)) == SkillSelection()


# -- withholding


def test_skills_are_withheld_from_share_of_run_requests(catalog: Catalog) -> None:
    put(catalog, "widen")
    put(catalog, "fuse")
    withheld = 0
    for node in range(400):
        changed = replace(REQUEST, run_id="run_1", node_id=str(node))
        choice = choose(catalog, changed)
        if node < 40:
            assert choice == choose(catalog, changed)
        assert sorted([*names(choice), *choice.withheld]) == ["fuse", "widen"]
        withheld += len(choice.withheld)
    assert 50 < withheld < 110  # of 800; a tenth is 80, its standard deviation 8.5


def test_runs_that_repeat_each_other_withhold_the_same_skills(catalog: Catalog) -> None:
    put(catalog, "widen")
    put(catalog, "fuse")
    withheld: list[str] = []
    for seed in range(60):
        first, second = (
            choose(catalog, replace(REQUEST, run_id=run, node_id="0", draw=f"{seed} rows"))
            for run in ("run_1", "run_2")
        )
        assert first == second
        withheld += first.withheld
    assert {*withheld} == {"widen", "fuse"}


def test_skill_whose_recipe_computes_another_operator_is_left_out(catalog: Catalog) -> None:
    recipe: dict[str, Any] = {"format": 1, "template": "references/kernel.py"}
    put(catalog, "triton-online-softmax", recipe=recipe, scopes={"ops": ("attention",)})
    put(catalog, "widen", scopes={"ops": ("attention",)})
    whole = replace(REQUEST, op="attention")
    step = replace(whole, about="paged ; a step of decoding over a paged cache")
    chosen = [
        choose_skills(known(catalog), r, ["memory_bound"], SCOPE, {}, {}, kinds=traits_of(r).kinds)
        for r in (whole, step)
    ]
    assert sorted(names(chosen[0])) == ["triton-online-softmax", "widen"]
    assert names(chosen[1]) == ["widen"]


def test_recipe_for_a_special_case_of_the_operator_is_shown(catalog: Catalog) -> None:
    recipe: dict[str, Any] = {"format": 1, "template": "references/kernel.py"}
    put(catalog, "triton-split-k-skinny-matmul", recipe=recipe, scopes={"ops": ("matmul",)})
    request = replace(REQUEST, op="matmul")
    kinds = traits_of(request).kinds
    chosen = choose_skills(known(catalog), request, ["memory_bound"], SCOPE, {}, {}, kinds=kinds)
    assert names(chosen) == ["triton-split-k-skinny-matmul"]


def test_no_skill_is_withheld_outside_runs(catalog: Catalog) -> None:
    put(catalog, "widen")
    assert choose(catalog, share=1.0).withheld == ()
    assert choose(catalog, replace(REQUEST, node_id="3"), share=1.0).withheld == ()
    assert choose(catalog, replace(REQUEST, run_id="run_1"), share=1.0).withheld == ("widen",)
    assert choose(catalog, replace(REQUEST, run_id="run_1"), share=0.0).withheld == ()


# -- the start of a search


def test_search_starts_with_recipes_of_its_operator(catalog: Catalog) -> None:
    recipe: dict[str, Any] = {"format": 1, "template": "references/kernel.cpp"}
    softmax = {"ops": ("softmax",)}
    put(catalog, "general", recipe=recipe, scopes=softmax)
    put(catalog, "measured", recipe=recipe, scopes={**softmax, "hardware": ("h100",)})
    put(catalog, "another", recipe=recipe, scopes={"ops": ("layernorm",)})
    put(catalog, "of-any", recipe=recipe)  # of no operator: not a start for this one
    put(catalog, "advice", scopes=softmax)  # a remedy, without a known problem
    put(catalog, "elsewhere", recipe=recipe, scopes=softmax, predicate='problem.dtype == "int8"')

    def initial_skills(op: str | None) -> list[str]:
        request = RetrieveRequest(query="faster", hardware="h100", op=op, dtype="float32")
        return names(choose_skills(known(catalog), request, [], SCOPE, {}, {}))

    assert initial_skills("log_softmax") == ["measured", "general"]  # an alias of the operator
    assert initial_skills(None) == []


# -- conditions on the text of a skill


def choose_for(catalog: Catalog, scope: ScopeFilter, **requested: Any) -> list[str]:
    request = RetrieveRequest(signal="memory_bound", **requested)
    return names(choose_skills(known(catalog), request, ["memory_bound"], scope, {}, {}))


def test_skill_without_scope_is_shown_for_its_words(catalog: Catalog) -> None:
    draft = SkillDraft(
        name="talon-wait",
        tier="curated",
        transformation="talon-wait",
        description="Use when a Kestrel-2 kernel waits for its talon.",
        body="Steps.",
        scopes=SkillScopes(),
        content_sha256="talon",
        origin="person",
    )
    with catalog.write() as connection:
        store_skill(connection, draft, state="active", actor="ann", reason="test")
    assert choose_for(catalog, SCOPE) == []
    assert choose_for(catalog, SCOPE, query="the kernel is slow, how do I make it run faster") == []
    assert choose_for(catalog, SCOPE, query="why does it wait for the talon?") == ["talon-wait"]
    assert choose_for(catalog, SCOPE, log="talon 3: waiting") == ["talon-wait"]


def test_skill_of_a_vendor_language_does_not_apply_to_any_chip(catalog: Catalog) -> None:
    registry = HardwareRegistry(catalog)
    for chip, vendor, languages in (
        ("kes-1", "kes", ["triton", "kes-c"]),
        ("fal-1", "fal", ["triton"]),
    ):
        spec = {"id": chip, "name": chip, "vendor": vendor, "languages": languages}
        registry.put(parse_hardware(spec, chip), "user")
    for name in ("triton", "kes-c", "never-registered"):
        put(catalog, f"in-{name}", scopes={"languages": (name,)})
    put(catalog, "in-none")
    anywhere = ScopeFilter((ANY,))
    assert choose_for(catalog, anywhere) == ["in-none", "in-triton"]
    named = ScopeFilter((ANY,), languages=("kes-c",))
    assert choose_for(catalog, named) == ["in-kes-c", "in-none"]
