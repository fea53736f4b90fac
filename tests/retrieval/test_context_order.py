"""A context starts with the log and the first excerpts in any budget, omits what the caller
excludes, and hints name what the answer lacks.
"""

from __future__ import annotations

import pytest

from kb.answers import Answer
from kb.hardware.schema import parse_hardware
from kb.scope import AccessScope
from retrieval.diagnose.log_digest import digest
from retrieval.knowledge_base import Retriever
from retrieval.request import RetrieveRequest
from tests.fixtures import Store, hardware_toml

pytestmark = pytest.mark.slow(seconds=10)

BUDGETS = (300, 400, 600, 800, 1_000, 1_200, 1_500, 1_700, 2_000, 3_000, 4_000, 6_000)
LOG = "kas: scale.ks:11: K2E-0331: tag out of range\n"
QUESTION = "how many transfers can be in flight at once"
ERRORS = """\
KESTREL-2 ERROR CODES

Each message has the form  kas: FILE:LINE: CODE: text

K2E-0101  unknown mnemonic
    The word is not an instruction of kasm. Mnemonics are lower case.

K2E-0305  transfer size is not a multiple of 192
    carry.in and carry.out move whole vectors. Round the number of bytes up to a multiple of 192.

K2E-0331  tag out of range
    Tags are 0, 1 and 2. There is no fourth tag.

K2E-0509  missing land
    A .perch must end with land.
"""
GUIDE = """\
# Kestrel-2 Programming Guide

## Overview

Kestrel-2 is a dataflow accelerator with 24 perches. A perch runs one program written in kasm.

## Transfers in flight

The talon keeps three transfers in flight. A fourth one stalls the perch until one is complete.
Each transfer carries a tag, and the perch waits for the tag before it reads what the transfer has
brought. Long transfers reach a larger share of the bandwidth than short ones do, because the roost
opens a row for each of them.

## Reductions

A sum over a row whose length is no multiple of 48 is wrong unless the rest is masked.

```kasm
.perch sum
    carry.in a, arg0, 0, 6144, 0
    perch.wait 0
    vsum sr0, vr0
land
```
"""
INSTRUCTIONS = (
    "# kasm instructions\n\n| Instruction | Syntax | Meaning |\n|---|---|---|\n"
    + "".join(
        f"| `v{name}` | `v{name} VR, VA, VB` | Computes the {name} of 48 lanes of VA and VB. |\n"
        for name in ("add", "sub", "mul", "div", "max", "min", "abs", "exp", "log", "sqrt", "tanh")
    )
)
RULES = "# Rules\n\n" + "\n".join(
    f"## Rule {n} of tags\n\nA kernel that is out of range in step {n} of a stage is refused. The"
    f" grid of stage {n} must come from the shape, and no tag of a tile may depend on its values.\n"
    for n in range(8)
)
LIMITS = """\
# Limits

## Static arrays end at 48 KB

ptxas rejects more: "Entry function 'big' uses too much shared data (0xea60 bytes, 0xc000 max)"
means that 60,000 bytes were asked of 49,152. Larger buffers must be dynamic.
"""
CHIP = "# H100\n\n" + "\n".join(
    f"## Shared data of unit {n}\n\nUnit {n} of the chip has shared data of its own: too much,"
    f" in bytes, and a function of {n} entries is slow. Memory is what bounds it.\n"
    for n in range(12)
)
MEMORY = """\
# Memory

## Memory bound kernels

A `memory_bound` kernel of the H100 waits for memory.
"""
WRONG = """\
# Wrong results

## The pattern of wrong elements names the cause

For a `correctness_mismatch`, look which elements are wrong: an error in only the last columns of
each row, right at N=1024 and wrong at N=1000, means that the tail has no mask.
"""
UNSTABLE = """\
# FP8

## Numerical instability: sums of 14 bits

A product in FP8 has a max abs error of 64 with N=1000, since the sums of a row have 14 bits.
"""
PTXAS = "ptxas error   : Entry function 'f' uses too much shared data (0x12000 bytes, 0xc000 max)\n"
UNEQUAL = "max abs error 0.5 only in last 7 columns of each row; N=1000 wrong, N=1024 right"


@pytest.fixture(scope="module")
def retriever(module_store: Store) -> Retriever:
    store = module_store
    toml = hardware_toml("kestrel-2", "Kestrel-2", None, "accelerator").replace("triton", "kasm")
    store.registry.put(parse_hardware(toml, "kestrel-2"), "user")
    for name, text in (("rules.md", RULES), ("limits.md", LIMITS), ("wrong.md", WRONG)):
        category = "constraint" if name == "rules.md" else "guidance"
        store.submit(name, text, category=category)
    own = (("errors.txt", ERRORS), ("guide.md", GUIDE), ("instructions.md", INSTRUCTIONS))
    for name, text in own:
        store.submit(name, text, category="hardware", hardware=("kestrel-2",))
    for name, text in (("chip.md", CHIP), ("memory.md", MEMORY), ("fp8.md", UNSTABLE)):
        store.submit(name, text, category="hardware", hardware=("h100",), languages=("triton",))
    store.worker().drain()
    return store.retriever()


def answer_to(retriever: Retriever, **given: object) -> Answer:
    return retriever.retrieve(RetrieveRequest(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", BUDGETS)
def test_meaning_of_an_error_code_is_in_every_budget(retriever: Retriever, budget: int) -> None:
    answer = answer_to(retriever, hardware="kestrel-2", log=LOG, max_tokens=budget)
    assert "There is no fourth tag" in answer.excerpts[0].text
    assert "There is no fourth tag" in answer.context, answer.context
    assert answer.context_tokens <= budget


@pytest.mark.parametrize("budget", [300, 400, 600, 1_000, 1_500])
def test_meaning_precedes_unrelated_text(retriever: Retriever, budget: int) -> None:
    context = answer_to(retriever, hardware="kestrel-2", log=LOG, max_tokens=budget).context
    place = context.index("There is no fourth tag")
    assert context.index("K2E-0331: tag out of range") < place
    for other in ("must come from the shape", "Computes the", "`vadd"):
        assert other not in context[:place]


@pytest.mark.parametrize("budget", BUDGETS)
def test_first_excerpt_is_in_every_budget_on_known_chip(retriever: Retriever, budget: int) -> None:
    answer = answer_to(retriever, hardware="h100", log=PTXAS, max_tokens=budget)
    assert "60,000 bytes" in answer.excerpts[0].text
    assert answer.excerpts[0].id in answer.context or "60,000 bytes" in answer.context


@pytest.mark.parametrize("budget", [*range(150, 200, 3), 300, 600, 2_000, 8_000])
def test_question_is_answered_in_small_budget(retriever: Retriever, budget: int) -> None:
    answer = answer_to(retriever, hardware="kestrel-2", query=QUESTION, max_tokens=budget)
    assert "three transfers in flight." in answer.context


def test_long_list_of_names_starts_with_card_of_name(retriever: Retriever) -> None:
    question = "what does `vtanh` do"
    context = answer_to(retriever, hardware="kestrel-2", query=question, max_tokens=400).context
    assert "the tanh of 48 lanes" in context and "the sqrt of 48 lanes" not in context


def test_leading_card_appears_once_with_others(retriever: Retriever) -> None:
    question = "what do `vtanh` and `vland.wait` and `perch.wait` do, and `vexp`"
    context = answer_to(retriever, hardware="kestrel-2", query=question, max_tokens=2_000).context
    assert context.count("the tanh of 48 lanes") == context.count("the exp of 48 lanes") == 1


@pytest.mark.parametrize(("hardware", "log"), [("kestrel-2", LOG), ("h100", PTXAS)])
@pytest.mark.parametrize("budget", [300, 400, 600])
def test_small_budget_holds_first_message(
    retriever: Retriever, hardware: str, log: str, budget: int
) -> None:
    context = answer_to(retriever, hardware=hardware, log=log * 3, max_tokens=budget).context
    assert log[:40] in context


def test_first_message_is_cut_to_budget() -> None:
    first = "a.cu(3): error: " + "identifier undefined " * 20
    text = digest(f"{first}\nnote: more", 80)
    assert text.startswith("a.cu(3): error: identifier") and " ...\n" in text
    assert "(1 further message left out)" in text


def test_excluded_passage_is_in_no_excerpt_or_document(retriever: Retriever) -> None:
    given = {"hardware": "kestrel-2", "log": LOG, "max_tokens": 8_000}
    first = answer_to(retriever, **given)
    assert "whole" in first.context and "There is no fourth tag" in first.context
    # The explanation of a code is a passage and a card with separate ids.
    cards = [part.id for part in first.parts if part.kind == "symbols"]
    second = answer_to(retriever, exclude=(first.excerpts[0].id, *cards), **given)
    assert first.excerpts[0].id not in {excerpt.id for excerpt in second.excerpts}
    assert "There is no fourth tag" not in second.context
    assert second.excerpts and "three transfers in flight" in second.context


def test_signal_alone_omits_excluded_passages(retriever: Retriever) -> None:
    given = {"hardware": "h100", "signal": "memory_bound"}
    first = answer_to(retriever, **given)
    # The explanation of a code is a passage and a card with separate ids.
    cards = [part.id for part in first.parts if part.kind == "symbols"]
    second = answer_to(retriever, exclude=(first.excerpts[0].id, *cards), **given)
    assert first.excerpts[0].id not in {excerpt.id for excerpt in second.excerpts}


def test_run_is_not_given_unhelpful_excerpts_again(retriever: Retriever) -> None:
    given = {"hardware": "h100", "log": PTXAS, "run_id": "run_1"}
    first = answer_to(retriever, **given)
    vain = first.excerpts[0].id
    retriever.journal.report(first.retrieval_id, used=(vain,), correct=False)
    second = answer_to(retriever, **given)
    assert second.excerpts and vain not in {excerpt.id for excerpt in second.excerpts}
    assert first.excerpts[1].id in {excerpt.id for excerpt in second.excerpts}
    retriever.journal.report(second.retrieval_id, correct=False)
    third = answer_to(retriever, **given)
    assert not {e.id for e in second.excerpts} & {e.id for e in third.excerpts}


def test_unknown_excluded_ids_are_named(retriever: Retriever) -> None:
    given = {"hardware": "kestrel-2", "log": LOG}
    known = answer_to(retriever, **given)
    ids = (*(e.id for e in known.excerpts), *(part.id for part in known.parts))
    assert not any("`exclude`" in hint for hint in answer_to(retriever, exclude=ids, **given).hints)
    hints = answer_to(retriever, exclude=("psg_none", known.excerpts[0].id), **given).hints
    [hint] = [hint for hint in hints if "`exclude`" in hint]
    assert "'psg_none'" in hint and known.excerpts[0].id not in hint


def test_unknown_language_gives_one_hint(retriever: Retriever) -> None:
    given = {"hardware": "h100", "signal": "memory_bound"}
    assert answer_to(retriever, **given).hints == ()
    [hint] = answer_to(retriever, language="klingon", **given).hints
    assert "klingon" in hint


def test_section_about_another_signal_comes_later(retriever: Retriever) -> None:
    answer = answer_to(
        retriever, hardware="h100", language="triton", signal="correctness_mismatch", log=UNEQUAL
    )
    assert "the tail has no mask" in answer.excerpts[0].text
    assert any("sums of 14 bits" in excerpt.section for excerpt in answer.excerpts[1:])


@pytest.mark.parametrize("hardware", [None, "h100"])
def test_code_defined_by_one_chip_names_it(retriever: Retriever, hardware: str | None) -> None:
    answer = answer_to(retriever, hardware=hardware, log=LOG)
    [hint] = [hint for hint in answer.hints if "K2E-0331" in hint]
    assert "hardware=kestrel-2" in hint and "KESTREL-2 ERROR CODES" in hint
    assert "There is no fourth tag" not in answer.context
    own = answer_to(retriever, hardware="kestrel-2", log=LOG)
    assert not any("K2E-0331" in hint for hint in own.hints)


def test_code_of_an_invisible_chip_is_not_named(retriever: Retriever) -> None:
    access = AccessScope(hardware=frozenset({"h100", "hopper", "nvidia", "any"}))
    answer = answer_to(retriever, hardware="h100", log=LOG, access_scope=access)
    assert not any("kestrel" in hint for hint in answer.hints)
