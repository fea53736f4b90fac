"""Samples of manuals become proposed recipes: lifted without a grammar of their language,
constrained by the manual, stored with the document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestion.elements import Element
from ingestion.formats import parse
from ingestion.passages import ParsedSection, split_sections
from ingestion.samples.code import NotLiftable, read_sample
from ingestion.samples.recipes import (
    MAX_SAMPLE,
    MAX_SAMPLES,
    MAX_TEXT,
    UnusedSample,
    domain,
    propose_recipes,
)
from kb.catalog.knowledge.samples import ProposedRecipe, StoredRecipe, decide_recipe, list_recipes
from kb.errors import NotFound
from kb.hardware.schema import parse_hardware
from kb.predicates import Bindings, compile_predicate
from tests.ingestion.samples.drawn_chips import CHIPS, SEEDS, legal

pytestmark = pytest.mark.slow(seconds=11)

if TYPE_CHECKING:
    from tests.fixtures import Store

# An invented language: constants before the kernel, commas in brackets, a literal without a name.
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


Scope = Callable[[tuple[str, ...]], Mapping[str, tuple[str, ...]]]


def of_one_chip(language: str) -> Scope:
    return lambda path: {language: ("q1",)}


def proposed(code: str, prose: str = "") -> tuple[list[ProposedRecipe], list[UnusedSample]]:
    """The proposals from one section with this text and block."""
    elements = (Element("text", prose), Element("code", code, language="quill"))
    section = ParsedSection(("Q1", "Blend"), 2, None, elements)
    return propose_recipes([section], of_one_chip("quill"))


def lifted(manual: str, language: str = "novac") -> ProposedRecipe:
    parsed = parse(manual.encode(), "manual.md")
    found, left_out = propose_recipes(split_sections(parsed.elements), of_one_chip(language))
    assert left_out == []
    [recipe] = found
    return recipe


def sized(text: str, sizes: Mapping[str, int]) -> str:
    return re.sub(r"@\{(\w+)\}", lambda m: str(sizes.get(m[1], m[0])), text)


def space(recipe: ProposedRecipe) -> Iterator[tuple[dict[str, int], bool]]:
    """Every choice of values, and whether the constraints allow it."""
    reported = recipe.body
    tests = [
        compile_predicate(sized(c["predicate"], reported["sizes"])) for c in reported["constraints"]
    ]
    names = [parameter["name"] for parameter in reported["parameters"]]
    for chosen in product(*(parameter["values"] for parameter in reported["parameters"])):
        values = dict(zip(names, chosen, strict=True))
        bound = Bindings(parameters=values)
        yield values, all(test.evaluate(bound).value is not False for test in tests)


@pytest.mark.parametrize("seed", (*SEEDS, 5, 6))
def test_constraints_of_manual_equal_those_of_chip(seed: int) -> None:
    """No candidate beyond a drawn limit is allowed, and none within is missing."""
    chip = CHIPS.draw(seed)
    found = list(space(lifted(CHIPS.manual(chip))))
    assert [values for values, allowed in found if allowed != legal(values, chip)] == []
    assert 10 < sum(allowed for _, allowed in found) < len(found) / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_half_scratchpad_in_manual_allows_less(seed: int) -> None:
    chip = CHIPS.draw(seed)
    half = {**chip, "scratchpad_bytes": chip["scratchpad_bytes"] // 2}
    reported = list(space(lifted(CHIPS.manual(half))))
    assert [values for values, allowed in reported if allowed != legal(values, half)] == []
    before = sum(allowed for _, allowed in space(lifted(CHIPS.manual(chip))))
    assert sum(allowed for _, allowed in reported) < before


def test_equal_sizes_are_distinguished_by_their_loops() -> None:
    """All are 64 in the sample; the product still has three sizes."""
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


def test_constants_have_roles_and_domains_around_sample() -> None:
    recipe = lifted(CHIPS.manual(CHIPS.draw(7)))
    reported = {p["name"]: p for p in recipe.body["parameters"]}
    assert {name: p["role"] for name, p in reported.items()} == {
        "TILE_M": "tile_m",
        "TILE_N": "tile_n",
        "TILE_K": "tile_k",
        "PAD": "pad",
    }
    assert reported["TILE_M"]["values"] == [4, 8, 16, 32, 64, 128, 256]
    assert reported["PAD"]["values"] == [0, 1, 2, 4, 8]
    assert domain(12, "unroll") == [3, 6, 12, 24, 48, 96]


def test_constraint_cites_manual() -> None:
    recipe = lifted(CHIPS.manual(CHIPS.draw(7)))
    why = {c["predicate"]: c["why"] for c in recipe.body["constraints"]}
    assert "2.3 Worked sample" in next(w for p, w in why.items() if p.endswith("<= 40960"))
    assert "multiple of 32" in why["(TILE_K) % 32 == 0"] and "3 Limits" in why["(TILE_K) % 32 == 0"]
    assert any(p.endswith("<= facts.shared_memory_per_block") for p in why)


def test_unknown_language_is_lifted_by_its_brackets() -> None:
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


def test_all_arrays_share_scratchpad_by_default() -> None:
    table = "| Property | Value |\n|---|---|\n| Shared memory per block | 4 KiB |\n"
    recipe = lifted(f"# Q1\n\n{table}\n## Blend\n\n```quill\n{QUILL}```\n", "quill")
    allowed = [values for values, fits in space(recipe) if fits]
    assert {v["STEP"] for v in allowed} == {2, 4, 8, 16}  # 32 * 48 * 4 is more than 4096
    assert all(v["STEP"] * 48 + v["size_6"] * v["size_8"] <= 1024 for v in allowed)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("kernel k(in A, out B) { const T = 8; use T; }", "states sizes"),
        ("kernel k(in A[64], x, out B[64]) { const T = 8; use T; }", "states no size"),
        ("print('hello')", "states sizes"),
    ],
)
def test_incomplete_kernel_is_refused(code: str, message: str) -> None:
    with pytest.raises(NotLiftable, match=message):
        read_sample(code)


def test_only_samples_in_languages_of_hardware_are_read() -> None:
    text = (
        f"# Q1\n\n```sh\nrun k(a[4])\n```\n\n```quill\nk(in A[4], out B[4]) {{ }}\n```\n\n{QUILL}"
    )
    parsed = parse(text.encode(), "manual.md")
    found, left_out = propose_recipes(split_sections(parsed.elements), of_one_chip("quill"))
    assert found == []
    assert [one.reason for one in left_out] == ["it has no constant that could be another"]


# -- odd and long samples


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("1 << 4", r"\[1 < < 4\] of its array buf"),
        ("16 & 3", r"\[16 & 3\] of its array buf"),
        ("~16", r"\[~ 16\] of its array buf"),
        ("0:16", r"\[0 : 16\] of its array buf"),
        ("016", r"\[016\] of its array buf"),
        ("16u", r"\[16u\] of its array buf"),
        ('"16"', "of its array buf"),
        ("16) * (2", "of its array buf"),
        ("9" * 5000, "of its array buf"),
        ("16 + " * 200 + "16", "of its array buf"),
    ],
)
def test_non_arithmetic_size_drops_sample(size: str, message: str) -> None:
    found, [left_out] = proposed(QUILL.replace("buf[STEP, 48];", f"buf[{size}];"))
    assert found == [] and re.search(message, left_out.reason), left_out.reason
    assert left_out.section == ("Q1", "Blend") and len(left_out.reason) < 200


def test_sizes_over_several_lines_are_read_and_unclosed_ones_dropped() -> None:
    broken, none = proposed(QUILL.replace("buf[STEP, 48]", "buf[STEP,  // rows\n      48]"))
    whole, _ = proposed(QUILL)
    assert none == [] and broken[0].body["constraints"] == whole[0].body["constraints"]
    _, [left_out] = proposed(QUILL.replace("buf[STEP, 48]", "buf[STEP,"))
    assert left_out.reason.startswith("a bracket is never closed: local buf [ STEP ,")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("more(", "@{more}(", "stands for sizes"),
        ("float y", "float x", "two arguments of its kernel are called x"),
        ("STEP", "x_0", "two sizes or constants of it would be called x_0"),
    ],
)
def test_indistinguishable_template_parts_drop_sample(old: str, new: str, message: str) -> None:
    _, [left_out] = proposed(QUILL.replace(old, new))
    assert message in left_out.reason


SCRAPS = st.sampled_from(
    [
        *"[](){};,=:#+-*/%<&~x0é²٣ '\n\\\"",
        *("/*", "//", "<<", "local ", "buf", "STEP", "PAD", "16", "048", "1e9", "0x1f", "@{x_0}"),
    ]
)
CODE = st.one_of(
    st.text(),
    st.lists(SCRAPS).map("".join),
    st.builds(
        lambda scraps, place, length: QUILL[:place] + "".join(scraps) + QUILL[place + length :],
        st.lists(SCRAPS, max_size=6),
        st.integers(0, len(QUILL)),
        st.integers(0, 12),
    ),
)
PHRASES = st.sampled_from(
    [
        *("Take 816 of the 4096 bytes", "48 of 4096 words", "a multiple of ", "16 bytes", "0", "7"),
        *("row", "column", "pitch", ". ", "\n- ", ","),
    ]
)
PROSE = st.one_of(st.text(), st.lists(PHRASES).map(" ".join))


@given(CODE, PROSE)
@settings(max_examples=400, deadline=None)
def test_arbitrary_code_and_prose_raise_nothing(code: str, prose: str) -> None:
    found, left_out = proposed(code, prose)
    assert len(found) + len(left_out) == 1
    for recipe in found:
        defaults = {p["name"]: p["default"] for p in recipe.body["parameters"]}
        assert sized(recipe.body["template"], {**recipe.body["sizes"], **defaults}) == code


def test_thirty_kinds_of_array_are_summed() -> None:
    """The sum avoids enumerating all choices of them, about 10**9."""
    arrays = "".join(f"  kind{n} more{n}[STEP, 48];\n" for n in range(29))
    code = QUILL.replace("  local sum[6, 8];\n", arrays)
    elements = 30 * 16 * 48
    [recipe], _ = proposed(code, f"The arrays take {4 * elements} of the 100000 bytes of memory.")
    limits = [c["predicate"] for c in recipe.body["constraints"]]
    [limit] = [one for one in limits if one.endswith("<= 100000")]
    assert limit.count("STEP") == 30
    [recipe], _ = proposed(code, "One takes 768 of the 4096 words of memory.")
    assert not any("4096" in c["predicate"] for c in recipe.body["constraints"])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (QUILL.replace("take(", "take(" + "a " * 3000), "words and marks"),
        (QUILL.replace("[128, 48],", f"[{'128, ' * 70}48],", 1), "sizes of arguments"),
        (
            QUILL.replace("  local sum[6, 8];\n", "".join(f"tile a{n}[8];\n" for n in range(40))),
            "41 arrays",
        ),
        (QUILL + "".join(f"N{n} = 8;\nuse(N{n});\n" for n in range(40)), "4. constants"),
        (QUILL + " " * MAX_SAMPLE, f"longer than {MAX_SAMPLE}"),
    ],
)
def test_sample_of_too_many_parts_is_dropped(code: str, message: str) -> None:
    found, [left_out] = proposed(code)
    assert found == [] and re.search(message, left_out.reason), left_out.reason


def test_first_samples_of_a_manual_of_many_are_read() -> None:
    def of(code: str, count: int) -> tuple[list[ProposedRecipe], list[UnusedSample]]:
        block = Element("code", code, language="quill")
        section = ParsedSection(("Q1",), 1, None, (block,) * count)
        return propose_recipes([section], of_one_chip("quill"))

    found, left_out = of(QUILL, MAX_SAMPLES + 3)
    assert len(found) == MAX_SAMPLES
    assert ["comes after them" in one.reason for one in left_out] == [True] * 3
    long = f"{QUILL}{' ' * (MAX_SAMPLE - len(QUILL))}"
    found, left_out = of(long, MAX_TEXT // MAX_SAMPLE + 1)
    assert len(found) == MAX_TEXT // MAX_SAMPLE and f"{MAX_TEXT} characters" in left_out[0].reason


# -- in the catalog

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


def listed(store: Store, hardware: str = "q1") -> list[StoredRecipe]:
    with store.catalog.read() as connection:
        return list_recipes(connection, (hardware,))


@pytest.fixture
def chip_store(store: Store) -> Store:
    store.registry.put(parse_hardware(CHIP, "q1"), "api")
    return store


def test_upload_proposes_its_samples_with_their_source(chip_store: Store) -> None:
    submitted = chip_store.ingest("q1.md", MANUAL, hardware=("q1",))
    [recipe] = listed(chip_store)
    assert (recipe.status, recipe.language, recipe.hardware) == ("proposed", "quill", ("q1",))
    assert recipe.section == ("Q1 manual", "Blend") and recipe.body["entry"] == "blend"
    passages = {p.id: p for p in chip_store.passages_of(submitted.document_id)}
    assert recipe.passage_id is not None and "routine blend" in passages[recipe.passage_id].text
    assert (chip_store.job(submitted).result or {})["recipes_proposed"] == 1
    assert listed(chip_store, "h100") == [] and chip_store.rows("skills") == 0


def test_decision_survives_revision_that_keeps_sample(chip_store: Store) -> None:
    submitted = chip_store.ingest("q1.md", MANUAL, hardware=("q1",))
    [before] = listed(chip_store)
    with chip_store.catalog.write() as connection:
        decide_recipe(connection, before.id, "rejected")
    chip_store.ingest("q1.md", MANUAL.replace("A sample.", "The sample."), hardware=("q1",))
    assert [(r.id, r.status) for r in listed(chip_store)] == [(before.id, "rejected")]
    chip_store.ingest("q1.md", MANUAL.replace("STEP 16", "STEP 32"), hardware=("q1",))
    [after] = listed(chip_store)
    assert after.id != before.id and after.status == "proposed"
    chip_store.documents.delete(submitted.document_id)
    assert listed(chip_store) == []
    with chip_store.catalog.write() as connection, pytest.raises(NotFound, match="no proposed"):
        decide_recipe(connection, before.id, "accepted")


def test_manual_of_chip_without_command_templates_proposes_nothing(store: Store) -> None:
    store.ingest("h100.md", MANUAL, hardware=("h100",))
    assert listed(store, "h100") == []


def test_decision_survives_new_heading_of_equal_samples(chip_store: Store) -> None:
    twice = f"{MANUAL}\n## Again\n\n```quill\n{QUILL}```\n"
    chip_store.ingest("q1.md", twice, hardware=("q1",))
    first, second = sorted(listed(chip_store), key=lambda r: r.section != ("Q1 manual", "Blend"))
    assert second.section == ("Q1 manual", "Again") and first.id != second.id
    with chip_store.catalog.write() as connection:
        decide_recipe(connection, first.id, "rejected")
    renamed = twice.replace("## Blend", "## Mixing two arrays")
    chip_store.ingest("q1.md", renamed, hardware=("q1",))
    reported = {recipe.section[-1]: (recipe.id, recipe.status) for recipe in listed(chip_store)}
    assert reported == {
        "Mixing two arrays": (first.id, "rejected"),
        "Again": (second.id, "proposed"),
    }


def test_dropped_sample_leaves_its_manual_readable(chip_store: Store) -> None:
    odd = QUILL.replace("buf[STEP, 48];", "buf[1 << 4];")
    text = f"{MANUAL}\n## Odd\n\nRead me too.\n\n```quill\n{odd}```\n"
    submitted = chip_store.ingest("q1.md", text, hardware=("q1",))
    job = chip_store.job(submitted)
    assert (job.state, (job.result or {})["recipes_proposed"]) == ("ready", 1)
    [reason] = (job.result or {})["samples_left_out"]
    assert reason.startswith("Q1 manual > Odd: the size [1 < < 4]")
    assert any("Read me too" in p.text for p in chip_store.passages_of(submitted.document_id))


def test_storing_many_samples_reads_manual_once(chip_store: Store) -> None:
    blocks = "".join(
        f"## Part {n}\n\n```quill\n{QUILL.replace('STEP 16', f'STEP {n}')}```\n\n"
        for n in range(8, 20)
    )
    statements: list[str] = []

    def watch(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", watch)
    try:
        chip_store.ingest("q1.md", f"# Q1\n\n{blocks}", hardware=("q1",))
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", watch)
    recipes = listed(chip_store)
    assert len(recipes) == 12 and all(recipe.passage_id for recipe in recipes)
    assert len({recipe.passage_id for recipe in recipes}) == 12
    texts = [s for s in statements if "sections.path" in s and "passages.text" in s]
    assert len([s for s in texts if "embeddings" not in s]) == 1


OTHER = (
    CHIP.replace('"q1"', '"rill9"')
    .replace('"Q1"', '"Rill 9"')
    .replace('["quill"]', '["quill", "rill"]')
    + '\n[toolchains.rill]\nrun = "true {source} {input}"\ntiming = "simulator"\n'
)
FIRST = CHIP.replace('"q1"', '"quill7"').replace('"Q1"', '"Quill 7"')


@pytest.mark.parametrize(
    ("heading", "language", "hardware"),
    [
        ("Blend", "quill", ("quill7", "rill9")),
        ("Blend", "rill", ("rill9",)),
        ("On Rill 9", "quill", ("rill9",)),
        ("On Rill 9", "rill", ("rill9",)),
        ("On Quill 7", "quill", ("quill7",)),
        ("On Quill 7", "rill", None),
        ("On Rill 9\n\n### Blend", "quill", ("rill9",)),
        ("On Rill 9\n\n### Unlike Quill 7", "quill", ("rill9",)),
        ("Rill 9 compared with Quill 7", "quill", ("quill7", "rill9")),
        ("Rill 9 compared with older chips", "quill", ("quill7", "rill9")),
    ],
)
def test_sample_belongs_to_chips_of_its_section(
    store: Store, heading: str, language: str, hardware: tuple[str, ...] | None
) -> None:
    for chip_id, description in (("quill7", FIRST), ("rill9", OTHER)):
        store.registry.put(parse_hardware(description, chip_id), "api")
    manual = f"# Two chips\n\n## {heading}\n\n```{language}\n{QUILL}```\n"
    store.ingest("two.md", manual, hardware=("quill7", "rill9"))
    with store.catalog.read() as connection:
        found = list_recipes(connection)
    assert [recipe.hardware for recipe in found] == ([] if hardware is None else [hardware])
