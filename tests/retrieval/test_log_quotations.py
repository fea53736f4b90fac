"""A passage that quotes the message of a log comes before text that only resembles it."""

from __future__ import annotations

import pytest

from retrieval.knowledge_base import Retriever
from retrieval.request import RetrieveRequest
from retrieval.search import by_names as quoted
from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=5)

GUIDE = """\
# Reading errors

## Triton: types and loops

Loop-carried variable y has initial type fp32 but is re-assigned to fp16 in loop! Cast inside it.

## Dots

`Input shapes should have M >= 1, N >= 1 and K >= 32` names the smallest tile.

## Shuffles

| Text | Cure |
| --- | --- |
| The mask must be a 64-bit integer | Write the mask as 0xffffffffffffffffull. |
"""
CHIP = "\n\n".join(
    f"## Compile error {n} of this chip: variable, type, shape, mask and loop\n\nThe type of a"
    f" variable in a loop, an input shape with M, N and K, and an integer mask of {n} bits must fit"
    " the target; the compiler names the operand, the type and the shape that it refuses."
    for n in range(30)
)


@pytest.fixture(scope="module")
def retriever(module_store: Store) -> Retriever:
    module_store.submit("guide.md", GUIDE, category="guidance")
    module_store.submit("chip.md", f"# The chip\n\n{CHIP}", hardware=("h100",))
    module_store.worker().drain()
    return module_store.retriever()


@pytest.mark.parametrize("hardware", ["h100", None])
@pytest.mark.parametrize(
    ("log", "section"),
    [
        (
            "AssertionError: Loop-carried variable acc has initial type <['64'], fp32> but is"
            " re-assigned to <['64'], fp16> in loop! Please make sure that the type stays the same",
            "Triton: types and loops",
        ),
        ("ValueError: Input shapes should have M >= 1, N >= 1 and K >= 16", "Dots"),
        (
            "k.hip:9: error: static assertion failed: The mask must be a 64-bit integer\n"
            "    9 | v += __shfl_down_sync(0xffffffff, v, 16)",
            "Shuffles",
        ),
    ],
)
def test_passage_that_quotes_message_is_first(
    retriever: Retriever, hardware: str | None, log: str, section: str
) -> None:
    answer = retriever.retrieve(RetrieveRequest(hardware=hardware, log=log))
    assert answer.excerpts[0].section.endswith(section)


def test_scattered_common_words_are_not_a_quotation(retriever: Retriever) -> None:
    log = "error: the type of the operand is not one that the compiler takes in this place"
    answer = retriever.retrieve(RetrieveRequest(hardware="h100", log=log))
    assert answer.excerpts[0].document.title == "The chip"


def test_words_of_a_message_are_searched_in_text() -> None:
    message, text = (
        "the mask must be a 64-bit integer",
        "Text: The mask must be a 32-bit integer, 7 8 9",
    )
    wanted = quoted._runs(message)
    assert quoted._runs_in(wanted, text) == wanted & quoted._runs(text)
    assert ("be", "a", "#") in quoted._runs_in(wanted, text)


OF_LANGUAGES = {
    "cute": "Work-group sizes, pushed constants and shared memory of layouts in CuTe.",
    "vulkan": "Pushed constants of a compute pipeline, work-group sizes and shared memory.",
    "sycl": "Work-group sizes of a SYCL queue, pushed constants and shared memory.",
    "triton": "Shared memory of Triton's stages, pushed constants and work-group sizes.",
}


@pytest.fixture(scope="module")
def of_languages(retriever: Retriever, module_store: Store) -> Retriever:
    for language, text in OF_LANGUAGES.items():
        document, about = f"# {language}\n\n## Sizes\n\n{text}\n", (language,)
        module_store.submit(f"{language}.md", document, category="guidance", languages=about)
    module_store.worker().drain()
    return module_store.retriever()


@pytest.mark.parametrize(
    ("language", "log"),
    [
        ("vulkan", "VUID-VkPushConstantRange-size-00298: pushed constants exceed the limit"),
        ("sycl", "Exception caught: UR_RESULT_ERROR_INVALID_WORK_GROUP_SIZE"),
        (
            "triton",
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required:"
            " 294912, Hardware limit: 232448. Reducing block sizes or `num_stages` may help.",
        ),
    ],
)
def test_log_of_a_language_is_answered_in_it(
    of_languages: Retriever, language: str, log: str
) -> None:
    answer = of_languages.retrieve(RetrieveRequest(log=log, max_tokens=8000))
    titles = {excerpt.document.title for excerpt in answer.excerpts}
    assert titles & OF_LANGUAGES.keys() == {language}
    assert {name for name, text in OF_LANGUAGES.items() if text in answer.context} <= {language}
