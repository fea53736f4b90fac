"""Samples of manuals become proposed recipes: lifted without knowing their language, bound by what
the manual says, kept with the document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING

import pytest

from ingestion.formats import parse
from ingestion.recipes import ProposedRecipe, domain, propose_recipes
from ingestion.sample_code import NotLiftable, read_sample
from ingestion.sections import split_sections
from kb.catalog import proposed_recipes as stored
from kb.errors import NotFound
from kb.hardware.schema import parse_hardware
from kb.predicates import Bindings, compile_predicate
from tests.ingestion.drawn_chips import CHIPS, SEEDS, legal

if TYPE_CHECKING:
    from tests.conftest import Store

# Nobody's language: constants before the kernel, commas in brackets, a literal without a name.
QUILL = """\
#define STEP 16
routine blend(float x[128, 48], float y[128, 48], float out z[128, 48])
{
  local buf[STEP, 48];
  local sum[6, 8];
  for (int i = 0; i < 128; i += STEP) {  // 512 is no constant
    take(buf, x[i, 0]); more(buf, y[i, 0], 0.5);
    give(z[i, 0], buf, 6);
  }
}
"""


def lifted(manual: str, language: str = "novac") -> ProposedRecipe:
    parsed = parse(manual.encode(), "manual.md")
    found, left_out = propose_recipes(split_sections(parsed.elements), {language})
    assert left_out == []
    [recipe] = found
    return recipe


def sized(text: str, sizes: Mapping[str, int]) -> str:
    return re.sub(r"@\{(\w+)\}", lambda m: str(sizes.get(m[1], m[0])), text)


def space(recipe: ProposedRecipe) -> Iterator[tuple[dict[str, int], bool]]:
    """Every choice of values, and whether the constraints allow it."""
    told = recipe.body
    tests = [compile_predicate(sized(c["predicate"], told["sizes"])) for c in told["constraints"]]
    names = [parameter["name"] for parameter in told["parameters"]]
    for chosen in product(*(parameter["values"] for parameter in told["parameters"])):
        values = dict(zip(names, chosen, strict=True))
        bound = Bindings(parameters=values)
        yield values, all(test.evaluate(bound).value is not False for test in tests)


@pytest.mark.parametrize("seed", (*SEEDS, 5, 6))
def test_the_manual_alone_allows_what_the_chip_allows(seed: int) -> None:
    """Neither a candidate beyond a drawn limit nor one within them left out."""
    chip = CHIPS.draw(seed)
    found = list(space(lifted(CHIPS.manual(chip))))
    assert [values for values, allowed in found if allowed != legal(values, chip)] == []
    assert 10 < sum(allowed for _, allowed in found) < len(found) / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_half_the_scratchpad_in_the_manual_allows_less(seed: int) -> None:
    chip = CHIPS.draw(seed)
    half = {**chip, "scratchpad_bytes": chip["scratchpad_bytes"] // 2}
    told = list(space(lifted(CHIPS.manual(half))))
    assert [values for values, allowed in told if allowed != legal(values, half)] == []
    before = sum(allowed for _, allowed in space(lifted(CHIPS.manual(chip))))
    assert sum(allowed for _, allowed in told) < before


def test_sizes_are_told_apart_by_the_loops_that_run_over_them() -> None:
    """All are 64 in the sample; the product is still one of three sizes."""
    recipe = lifted(CHIPS.manual(CHIPS.draw(7)))
    dims = [tensor["dims"] for tensor in recipe.body["tensors"]]
    (m, k), (k_again, n), (m_again, n_again) = dims
    assert (k, m, n) == (k_again, m_again, n_again) and len({m, n, k}) == 3
    template = recipe.body["template"]
    assert f"in A[@{{{m}}}][@{{{k}}}], in B[@{{{k}}}][@{{{n}}}]" in template
    assert (
        f"for k in 0..@{{{k}}} step TILE_K" in template and "const TILE_M = @{TILE_M};" in template
    )
    assert [tensor["role"] for tensor in recipe.body["tensors"]] == ["input", "input", "output"]
    assert (
        sized(
            template,
            {
                **recipe.body["sizes"],
                **{p["name"]: p["default"] for p in recipe.body["parameters"]},
            },
        )
        == recipe.code
    )


def test_constants_have_roles_and_domains_around_the_sample() -> None:
    recipe = lifted(CHIPS.manual(CHIPS.draw(7)))
    told = {p["name"]: p for p in recipe.body["parameters"]}
    assert {name: p["role"] for name, p in told.items()} == {
        "TILE_M": "tile_m",
        "TILE_N": "tile_n",
        "TILE_K": "tile_k",
        "PAD": "pad",
    }
    assert told["TILE_M"]["values"] == [4, 8, 16, 32, 64, 128, 256]
    assert told["PAD"]["values"] == [0, 1, 2, 4, 8]
    assert domain(12, "unroll") == [3, 6, 12, 24, 48, 96]


def test_a_constraint_says_where_the_manual_says_so() -> None:
    recipe = lifted(CHIPS.manual(CHIPS.draw(7)))
    why = {c["predicate"]: c["why"] for c in recipe.body["constraints"]}
    assert "2.3 Worked sample" in next(w for p, w in why.items() if p.endswith("<= 40960"))
    assert "multiple of 32" in why["(TILE_K) % 32 == 0"] and "3 Limits" in why["(TILE_K) % 32 == 0"]
    assert any(p.endswith("<= facts.shared_memory_per_block") for p in why)


def test_a_language_of_nobody_is_lifted_by_its_brackets() -> None:
    sample = read_sample(QUILL)
    assert (sample.entry, [t.role for t in sample.tensors]) == ("blend", ["input"] * 2 + ["output"])
    assert {c.name: c.value for c in sample.constants} == {"STEP": 16, "size_6": 6, "size_8": 8}
    rows, columns = sample.dims[0]
    assert set(sample.dims) == {(rows, columns)} and sample.sizes[columns] == 48
    assert f"local buf[STEP, @{{{columns}}}];" in sample.template
    assert "give(z[i, 0], buf, @{size_6});" in sample.template and "512 is" in sample.template
    assert (rows, "STEP") in sample.steps
    buf, total = (array.elements for array in sample.arrays)
    assert (buf, total) == (f"(STEP) * (@{{{columns}}})", "(size_6) * (size_8)")


def test_without_a_word_about_it_all_arrays_share_the_scratchpad() -> None:
    table = "| Property | Value |\n|---|---|\n| Shared memory per block | 4 KiB |\n"
    recipe = lifted(f"# Q1\n\n{table}\n## Blend\n\n```quill\n{QUILL}```\n", "quill")
    allowed = [values for values, fits in space(recipe) if fits]
    assert {v["STEP"] for v in allowed} == {2, 4, 8, 16}  # 32 * 48 * 4 is more than 4096
    assert all(v["STEP"] * 48 + v["size_6"] * v["size_8"] <= 1024 for v in allowed)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("kernel k(in A, out B) { const T = 8; use T; }", "state their sizes"),
        ("kernel k(in A[64], x, out B[64]) { const T = 8; use T; }", "states no size"),
        ("print('hello')", "state their sizes"),
    ],
)
def test_what_is_no_whole_kernel_is_refused(code: str, says: str) -> None:
    with pytest.raises(NotLiftable, match=says):
        read_sample(code)


def test_only_samples_of_the_hardware_s_languages_are_read() -> None:
    text = (
        f"# Q1\n\n```sh\nrun k(a[4])\n```\n\n```quill\nk(in A[4], out B[4]) {{ }}\n```\n\n{QUILL}"
    )
    parsed = parse(text.encode(), "manual.md")
    found, left_out = propose_recipes(split_sections(parsed.elements), {"quill"})
    assert found == []
    assert [one.reason for one in left_out] == ["it has no constant that could be another"]


# ---------------------------------------------------------------- in the catalog

CHIP = """id = "q1"
name = "Q1"
vendor = "quill"
aliases = []
languages = ["quill"]
kind = "accelerator"
summary = "A chip for tests."

[toolchains.quill]
run = "true {source} {input}"
timing = "simulator"
"""
MANUAL = f"# Q1 manual\n\n## Blend\n\nA sample.\n\n```quill\n{QUILL}```\n"


def listed(store: Store, hardware: str = "q1") -> list[stored.StoredRecipe]:
    with store.catalog.read() as connection:
        return stored.listed(connection, (hardware,))


@pytest.fixture
def chip_store(store: Store) -> Store:
    store.registry.put(parse_hardware(CHIP, "q1"), "api")
    return store


def test_an_upload_proposes_its_samples_with_their_source(chip_store: Store) -> None:
    submitted = chip_store.ingest("q1.md", MANUAL, hardware=("q1",))
    [recipe] = listed(chip_store)
    assert (recipe.status, recipe.language, recipe.hardware) == ("proposed", "quill", ("q1",))
    assert recipe.section == ("Q1 manual", "Blend") and recipe.body["entry"] == "blend"
    passages = {p.id: p for p in chip_store.passages_of(submitted.document_id)}
    assert recipe.passage_id is not None and "routine blend" in passages[recipe.passage_id].text
    assert (chip_store.job(submitted).result or {})["recipes_proposed"] == 1
    assert listed(chip_store, "h100") == [] and chip_store.rows("skills") == 0


def test_a_decision_outlives_a_revision_that_keeps_the_sample(chip_store: Store) -> None:
    submitted = chip_store.ingest("q1.md", MANUAL, hardware=("q1",))
    [before] = listed(chip_store)
    with chip_store.catalog.write() as connection:
        stored.decide(connection, before.id, "rejected")
    chip_store.ingest("q1.md", MANUAL.replace("A sample.", "The sample."), hardware=("q1",))
    assert [(r.id, r.status) for r in listed(chip_store)] == [(before.id, "rejected")]
    chip_store.ingest("q1.md", MANUAL.replace("STEP 16", "STEP 32"), hardware=("q1",))
    [after] = listed(chip_store)
    assert after.id != before.id and after.status == "proposed"
    chip_store.documents.delete(submitted.document_id)
    assert listed(chip_store) == []
    with chip_store.catalog.write() as connection, pytest.raises(NotFound, match="no proposed"):
        stored.decide(connection, before.id, "accepted")


def test_a_manual_of_a_chip_without_command_templates_proposes_nothing(store: Store) -> None:
    store.ingest("h100.md", MANUAL, hardware=("h100",))
    assert listed(store, "h100") == []
