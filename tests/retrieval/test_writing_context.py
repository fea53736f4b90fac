"""Contexts for the first kernel in a language that models know: names of the language, how the
operator is computed, and how kernels are written.
"""

from __future__ import annotations

import pytest

from kb.answers import Answer
from kb.scope import ALL_ACCESS
from retrieval.compose.target import usable_symbols
from retrieval.diagnose.metrics import load_metrics
from retrieval.knowledge_base import Retriever
from retrieval.request import RetrieveRequest
from retrieval.search.plan import writing_plan
from retrieval.search.ranking import Ranked, mixed
from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=4)

NAMES = ("load", "store", "arange", "sum", "max", "where", "exp", "rsqrt", "dot", "cdiv", "cumsum")
ROWS = "\n".join(f"| `tl.{n}` | `tl.{n}(x{n})` | `x{n}`: a block | Does {n}. |" for n in NAMES)
REFERENCE = f"""\
# Triton language reference

## Functions

| Function | Syntax | Operands | Meaning |
|---|---|---|---|
{ROWS}
"""
ERRORS = """\
---
languages: [triton]
---
# Reading Triton errors

| Function | Syntax | Operands | Meaning |
|---|---|---|---|
| `tl.trans` | `tl.trans(x)` | `x`: a block | A message about it is rare. |
"""
NORMS = """\
# Norms

## Mean and variance of a row

A norm reads each row once: mean and variance of a row are summed while the row is in registers.
"""
SOFTMAX_BACKWARD = """\
# Backward

## Softmax backward

The backward of softmax needs a sum over each row of the product of gradient and result.
"""
WRITING = """\
# Writing Triton kernels

## Masks at the border

Write a Triton kernel with masks at the border, so that its wide loads stay aligned.

## Warps and stages

Warps and stages of a Triton kernel are launch options.

## Many kernels

A Triton kernel is a program of blocks; write a kernel for each tile.
"""


@pytest.fixture(scope="module")
def retriever(module_store: Store) -> Retriever:
    for name, text in (("reference", REFERENCE), ("errors", ERRORS)):
        module_store.submit(f"{name}.md", text, category="guidance", languages=("triton",))
    for name, text in (("norms", NORMS), ("backward", SOFTMAX_BACKWARD), ("writing", WRITING)):
        module_store.submit(f"{name}.md", text, category="guidance")
    module_store.worker().drain()
    return module_store.retriever()


PLACES = {
    "scratchpad": "holds tiles of both operands; its banks are 16 bytes wide, and rows are aligned",
    "register file": "is split between the lanes; a kernel that needs more spills to memory",
    "copy engine": "moves rows between memory and scratchpad; a transfer waits for its semaphore",
    "barrier unit": "counts arrivals of all groups; a group that leaves early blocks the others",
    "launch queue": "takes the entry name and the arguments in order: inputs, then outputs",
}
MANUAL = "# Manual of the chip\n" + "".join(
    f"\n## The {place}\n\n" + " ".join(f"The {place} {text} (rule {n})." for n in range(9)) + "\n"
    for place, text in PLACES.items()
)


@pytest.mark.parametrize("origin", ["upload", "builtin"])
def test_first_kernel_gets_sections_of_uploaded_manual(store: Store, origin: str) -> None:
    """Of a built-in manual, whose chip models know, at most 400 tokens."""
    builtin = {"origin": origin, "source_key": "builtin/hardware/h100/manual.md"}
    about = {"category": "hardware", "hardware": ("h100",)}
    store.ingest("manual.md", MANUAL, **about, **(builtin if origin == "builtin" else {}))
    context = written(store.retriever(), max_tokens=12_000).context
    shown = [f"The {place} {text}" in context for place, text in PLACES.items()]
    assert all(shown) if origin == "upload" else sum(shown) <= 2


def written(retriever: Retriever, **given: object) -> Answer:
    requested = {"hardware": "h100", "language": "triton", "task": "write", "op": "groupnorm"}
    return retriever.retrieve(RetrieveRequest(**{**requested, "max_tokens": 3_000, **given}))  # type: ignore[arg-type]


def test_every_name_of_language_is_listed_with_arguments(retriever: Retriever) -> None:
    context = written(retriever).context
    head, names, guides = context.partition("## Names of the language, with their arguments")
    assert names and "## Guidance" in guides and "## Guidance" not in head
    assert all(f"`tl.{name}(x{name})`" in guides for name in NAMES)
    listed = guides.partition("## Guidance")[0]
    assert "tl.trans" not in listed  # in a document that lists no names


def test_another_language_gets_no_names_of_it(retriever: Retriever) -> None:
    assert "tl.load" not in written(retriever, language="cuda").context


def test_guides_to_operator_and_language_are_both_included(retriever: Retriever) -> None:
    context = written(retriever).context
    norms, masks = context.index("mean and variance of a row"), context.index("masks at the border")
    assert max(norms, masks) < context.index("Warps and stages of")


def test_names_in_log_are_searched_in_language(retriever: Retriever) -> None:
    log = "kernel.py:12: CompilationError: tl.cumsum() got an unexpected argument 'dims'"
    context = written(retriever, task=None, op=None, log=log).context
    assert "tl.cumsum(xcumsum)" in context and "tl.rsqrt" not in context


def test_rankings_of_two_queries_are_interleaved() -> None:
    def ranked(*seqs: int, best: float) -> list[Ranked]:
        return [Ranked(seq, best / n, 0.0, 0.0, "guidance") for n, seq in enumerate(seqs, 1)]

    both = mixed(ranked(1, 2, 3, best=0.1), ranked(9, 2, 8, 1, best=7.0))
    assert [entry.seq for entry in both] == [1, 9, 2, 3, 8]
    assert both[0].score == both[1].score == 1.0 > both[2].score > 0.95


def test_operator_is_searched_in_words_of_guides() -> None:
    plan = writing_plan("triton", "instance_norm", load_metrics())
    assert {"norm", "varianc"} <= set(plan.words[0].tokens)
    assert plan.also is not None and "triton" in plan.also.words[0].tokens
    on_a_cpu = writing_plan("cpp", "softmax", load_metrics())
    assert on_a_cpu.also is not None and "warp" not in on_a_cpu.also.words[0].tokens
    strange = writing_plan("triton", "frobnicate", load_metrics())
    assert strange.words[0].tokens == ("frobnic",)
    unknown = writing_plan("triton", "unknown", load_metrics())
    assert unknown.also is None and "triton" in unknown.words[0].tokens


def test_requested_number_of_excerpts_is_returned(retriever: Retriever) -> None:
    assert len(written(retriever, k=4).excerpts) == 4


def test_names_of_a_language_are_only_for_it(retriever: Retriever) -> None:
    snapshot = retriever.snapshots.current()
    usable = usable_symbols(snapshot, ("h100",), "triton", ALL_ACCESS)
    assert {card.name for card in usable} >= {"tl.load", "tl.trans"}
    assert usable_symbols(snapshot, ("h100",), None, ALL_ACCESS) == []
    assert usable_symbols(snapshot, ("h100",), "own_language", ALL_ACCESS) == []
