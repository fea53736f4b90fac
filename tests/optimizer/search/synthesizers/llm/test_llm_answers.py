"""Answers in the requested form, and the errors for others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from optimizer.search.synthesizers.llm.conversation import (
    BadAnswer,
    CheckedAnswer,
    LlmSynthesizer,
    answer_from,
)
from tests.optimizer.search.synthesizers.llm.llm_contexts import MOVE_ID, SOURCE, context
from tests.optimizer.search.synthesizers.llm.llm_servers import Answered, ModelServer, good

pytestmark = pytest.mark.slow(seconds=10)

CODE = SOURCE.replace("TILE_ROWS = 8", "TILE_ROWS = 32") + 'const char *name = "a\\tb\\n";\n'
HEAD = {"plan": "larger tiles", "used": [MOVE_ID], "language": "cpp", "main": "kernel.cpp"}


def read(text: str) -> CheckedAnswer:
    return answer_from(text, context(), {MOVE_ID})


def answer_text(*parts: str, **fields: Any) -> str:
    return "\n\n".join([json.dumps({**HEAD, **fields}), *parts])


def block(label: str, code: str = CODE, fence: str = "```", tag: str = "cpp") -> str:
    return f"{label}\n{fence}{tag}\n{code}{fence}\n"


@pytest.mark.parametrize(
    "part",
    [
        block("File: kernel.cpp"),
        block("**File: `kernel.cpp`**"),
        block("### File: kernel.cpp"),
        block("**File:** kernel.cpp\n"),
        block("File: kernel.cpp", fence="~~~", tag=""),
        block("File: kernel.cpp", fence="````"),
        block("Here it is:"),
        block("", tag=""),
    ],
)
def test_source_is_taken_from_code_blocks_unchanged(part: str) -> None:
    answer = read(answer_text(part))
    assert answer.bundle.files == {"kernel.cpp": CODE}
    assert (answer.plan, answer.claimed) == ("larger tiles", (MOVE_ID,))


def test_json_object_may_be_in_block() -> None:
    head = f"```json\n{json.dumps(HEAD, indent=1)}\n```"
    assert read(f"{head}\n\n{block('File: kernel.cpp')}").bundle.source == CODE
    assert read(f"{head}\n\n{block('')}").bundle.source == CODE


@pytest.mark.parametrize("files", [["kernel.cpp"], {}, "kernel.cpp"])
def test_list_of_files_in_object_is_accepted(files: Any) -> None:
    assert read(answer_text(block("File: kernel.cpp"), files=files)).bundle.files == {
        "kernel.cpp": CODE
    }


def test_headers_have_separate_blocks() -> None:
    answer = read(answer_text(block("File: tiles.hpp", "// tiles\n"), block("File: kernel.cpp")))
    assert answer.bundle.files == {"tiles.hpp": "// tiles\n", "kernel.cpp": CODE}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (answer_text(), "put each in a code block under a line `File: NAME`"),
        (answer_text(f"File: kernel.cpp\n```cpp\n{CODE}"), "block of kernel.cpp is not closed"),
        (
            answer_text(block("File: kernel.cpp"), block("File: kernel.cpp")),
            "two code blocks for kernel",
        ),
        (
            answer_text(block("File: other.cpp")),
            "`main` is 'kernel.cpp', which is none of the files",
        ),
        (answer_text(block("File: ../kernel.cpp")), "file name '../kernel.cpp' is not allowed"),
        (answer_text(block(""), block("")), "no file was found"),
    ],
)
def test_errors_in_files_are_reported(text: str, message: str) -> None:
    with pytest.raises(BadAnswer) as caught:
        read(text)
    assert message in str(caught.value)


def test_broken_object_error_has_its_position() -> None:
    """Source text with unescaped quotes inside a JSON string: the most common cause."""
    text = (
        '{"plan": "p", "language": "cpp",\n "files": {"kernel.cpp": "#include "kernlore_abi.h""}}'
    )
    with pytest.raises(BadAnswer, match=r"it breaks at line 2, column \d+: Expecting"):
        read(text)


def test_repair_round_requests_same_form(
    serve: Callable[..., ModelServer], synthesizer: Callable[..., LlmSynthesizer]
) -> None:
    def forgets_the_end(body: dict[str, Any], number: int) -> Answered:
        answer = good(body)
        whole = str(answer.content)
        return Answered(whole.rstrip("`\n")) if number == 0 else answer

    server = serve(forgets_the_end)
    proposal = synthesizer(server).propose(context())
    assert "TILE_ROWS = 16" in proposal.bundle.source
    repair = server.requests[1]["messages"][-1]["content"]
    assert "the code block of kernel.cpp is not closed" in repair
    assert "`File: NAME`" in repair


def test_prompts_of_one_run_share_prefix(
    serve: Callable[..., ModelServer], synthesizer: Callable[..., LlmSynthesizer]
) -> None:
    server = serve(lambda body, number: good(body))
    asker = synthesizer(server)
    for step in (4, 5):
        asker.propose(context(step=step))
    first, second = ([m["content"] for m in body["messages"]] for body in server.requests)
    assert first == second
