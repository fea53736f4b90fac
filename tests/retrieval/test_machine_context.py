"""Contexts for one kind of machine omit advice for other kinds, and sections and names of
extensions that its processor lacks.
"""

from __future__ import annotations

import pytest

from kb.answers import Answer
from kb.catalog.knowledge.section_texts import WholeSection
from kb.hardware.schema import lacking, parse_hardware
from kb.scope import ANY, ScopeFilter
from kb.tokens import tokenize
from retrieval.compose.sections import section_blocks
from retrieval.knowledge_base import Retriever
from retrieval.request import RetrieveRequest
from retrieval.search.language_words import is_for_others
from retrieval.search.ranking import Ranked
from tests.fixtures import Store, hardware_toml

pytestmark = pytest.mark.slow(seconds=4)

LACKS = lacking(("x86-64",), ("avx", "avx2", "fma"))
ROWS = """\
# Softmax of rows

## Rows on a GPU

A softmax reads each row once: a warp owns a row, and shared memory holds what the block sums.

## Rows anywhere

A softmax reads each row once on any machine, whether a warp or a thread of OpenMP owns the row.

## Rows and caches

A softmax reads each row once while the row is in the cache of its core.

## Rows in OpenMP

A softmax gives each OpenMP thread whole rows, and g++ makes vectors of it.
"""
FAILURES = """\
# Failures of softmax kernels

## Linking of a softmax

A softmax kernel of rows that is loaded by name needs C linkage in g++.

## Wrong results of a softmax

A softmax kernel of rows whose results differ sums in another order.
"""
ATTENTION = """\
# Attention

## Rows of a softmax in attention

Attention gives rows of a softmax to OpenMP threads, and sums rows in g++ vectors.
"""
BACKWARD = """\
# Softmax and norm backward

## Sums of a softmax

The backward of a softmax of rows sums the product of gradient and result once.
"""
CHIP = """\
---
languages: [cpp]
---
# Softmax on x86-64

## AMX and softmax

A softmax of rows finds no use for a tile.

## Masks for rows of a softmax

An AVX-512 mask reads the end of a row: `_mm512_maskz_loadu_ps` under a `__mmask16`.

## Vectors for rows of a softmax

AVX2 reads eight floats of a row, the last ones under `_mm256_maskload_ps`; AVX-512 has masks.
"""
LISTED = ("_mm256_loadu_ps", "_mm256_set1_ps", "_mm256_max_ps", "_mm256_hadd_ps", "_mm_sfence")
ABSENT = ("_mm512_loadu_ps", "_mm512_set1_ps", "_mm512_max_ps", "_tile_zero", "_tile_loadd")
NAMES = """\
---
languages: [cpp]
---
# Intrinsics

## Functions

| Function | Syntax | Operands | Meaning |
|---|---|---|---|
""" + "\n".join(f"| `{n}` | `void {n}(a)` | `a`: lanes | Does it. |" for n in (*LISTED, *ABSENT))


@pytest.fixture(scope="module")
def retriever(module_store: Store) -> Retriever:
    store = module_store
    for name, languages in (("x86-64", "cpp"), ("gpu", 'triton", "cuda')):
        toml = hardware_toml(name, name, None, "accelerator").replace("triton", languages)
        store.registry.put(parse_hardware(toml, name), "builtin")
    for name, text in (
        ("rows", ROWS),
        ("backward", BACKWARD),
        ("failures", FAILURES),
        ("attention", ATTENTION),
    ):
        store.submit(f"{name}.md", text, category="guidance")
    for name, text in (("chip", CHIP), ("names", NAMES)):
        store.submit(f"{name}.md", text, category="hardware", hardware=("x86-64",))
    store.worker().drain()
    return store.retriever()


def answer_to(retriever: Retriever, **given: object) -> Answer:
    about = {"hardware": "x86-64", "language": "cpp", "op": "softmax", "max_tokens": 6_000}
    return retriever.retrieve(RetrieveRequest(**{**about, "task": "write", **given}))  # type: ignore[arg-type]


def test_advice_for_another_kind_of_machine_is_omitted(retriever: Retriever) -> None:
    context = answer_to(retriever).context
    assert "a warp owns a row" not in context
    assert "reads each row once on any machine" in context
    assert "in the cache of its core" in context and "OpenMP thread whole rows" in context


def test_foreign_advice_is_omitted_when_optimising(retriever: Retriever) -> None:
    context = answer_to(retriever, task=None, signal="memory_bound").context
    assert "a warp owns a row" not in context


def test_gpu_gets_advice_for_gpus(retriever: Retriever) -> None:
    context = answer_to(retriever, hardware="gpu", language="cuda").context
    assert "a warp owns a row" in context and "any machine" in context
    assert "OpenMP thread whole rows" not in context


def test_unusual_chip_gets_all_general_advice(retriever: Retriever) -> None:
    context = answer_to(retriever, hardware="mi300x", language="triton").context  # no hip here
    assert "a warp owns a row" in context and "OpenMP thread whole rows" in context


def test_question_may_be_about_any_machine(retriever: Retriever) -> None:
    question = "which rows of a softmax does a warp own"
    assert "a warp owns a row" in answer_to(retriever, task=None, query=question).context


def test_sections_about_missing_extensions_are_omitted(retriever: Retriever) -> None:
    context = answer_to(retriever, lacks=LACKS, max_tokens=20_000).context
    assert "AMX and softmax" not in context and "__mmask16" not in context
    whole = answer_to(retriever, max_tokens=20_000).context
    assert "AMX and softmax" in whole or "__mmask16" in whole


def test_names_of_missing_extensions_are_omitted(retriever: Retriever) -> None:
    context = answer_to(retriever, lacks=LACKS).context
    assert all(f"`void {name}(a)`" in context for name in LISTED)
    assert not any(name + "(" in context for name in ABSENT)
    whole = answer_to(retriever).context
    assert all(f"`void {name}(a)`" in whole for name in (*LISTED, *ABSENT))


def test_other_pass_of_an_operator_is_omitted(retriever: Retriever) -> None:
    message = "sums the product of gradient and result"
    assert message not in answer_to(retriever).context
    assert message in answer_to(retriever, op="softmax_backward").context
    assert message in answer_to(retriever, op="loss").context


def test_repair_omits_sections_of_other_failures(retriever: Retriever) -> None:
    wrong, linking = "whose results differ sums in another order", "needs C linkage in g++"
    log = "case declared: output0 is off by 0.5 where 0.01 is allowed: a softmax of rows"
    context = answer_to(retriever, task=None, log=log, signals=("correctness_mismatch",)).context
    assert wrong in context and linking not in context
    both = ("correctness_mismatch", "link_error")
    assert linking in answer_to(retriever, task=None, log=log, signals=both).context
    assert linking in answer_to(retriever).context  # no failure


def test_guide_to_operator_missing_from_reference_is_omitted(retriever: Retriever) -> None:
    message = "Attention gives rows of a softmax"
    assert message in answer_to(retriever, op="reduction").context  # its operators are unknown
    assert message not in answer_to(retriever, op="reduction", operators=("sum", "amax")).context
    assert message in answer_to(retriever, op="reduction", operators=("_softmax", "sum")).context
    assert message in answer_to(retriever, op="attention", operators=("sum",)).context


def test_refused_section_is_not_replaced_by_low_ranked_ones(retriever: Retriever) -> None:
    scope = ScopeFilter(("x86-64", ANY), ("guidance",), ("cpp",))
    read: list[str] = []

    def admits(section: WholeSection) -> bool:
        read.append(section.path[-1])
        return False

    snapshot = retriever.snapshots.current()
    found = snapshot.search("passage", tokenize("rows of a softmax"), scope, 20)
    assert len({passage.section_id for passage in snapshot.load(found).values()}) > 2
    blocks = section_blocks(
        snapshot,
        [Ranked(seq, score, score, 0.0, "guidance") for seq, score in found.items()],
        scope,
        "guidance",
        own=frozenset(),
        largest=1_000,
        most=2,
        admits=admits,
    )
    assert list(blocks) == [] and len(read) == 2


@pytest.mark.parametrize(
    ("heading", "text", "others"),
    [
        ("Rows", "A warp owns a row.", True),
        ("Rows", "OpenMP threads, other than a warp, own rows.", False),
        ("Rows", "Whatever the device, a warp or a core owns a row.", False),
        ("Triton: wide loads", "A load is wide.", True),
        ("Rows", "A row is read once.", False),
    ],
)
def test_majority_of_words_decides_for_which_machines_text_is(
    heading: str, text: str, others: bool
) -> None:
    assert is_for_others(heading, text, ("cpp",)) is others
    assert not is_for_others(heading, text, ())
