"""Equal code and texts are recognised, and shown texts are removed from a model's sentences."""

from __future__ import annotations

import random

import pytest

from skills.curator.comparison import (
    body_key,
    code,
    copied_from,
    kernel_key,
    prose,
    without_comments,
    without_copies,
)
from tests.skills.curator.planted import SEEDS, free

CPP = 'int f(int a) { return a + 1; } // add\n/* more\n lines */ const char *s = "// kept";\n'
PYTHON = 'def f(x):\n    """Say."""\n    # why\n    return x + 1  # add\n'


def test_comments_are_removed_and_strings_are_not() -> None:
    assert "add" not in code(CPP, python=False) and '"//kept"' in code(CPP, python=False)
    assert " ".join(without_comments(PYTHON, python=True).split()) == "def f(x): return x + 1"
    remaining = 'source = """\n__global__ void k() {}  // inside\n"""\ncall(\n    """text"""\n)\n'
    assert without_comments(remaining, python=True) == remaining


@pytest.mark.parametrize("seed", SEEDS)
def test_kernel_key_ignores_spacing_comments_and_generated_numbers(seed: int) -> None:
    chance = random.Random(seed)
    lines = ["tmp0 = load(in_ptr0)", "tmp1 = tmp0 * 2", "buf0 = tmp1 + tmp0", "store(buf0)"]
    other = [line.replace("tmp", f"tmp{seed}") for line in lines]
    other = [line.replace("=", " = ").replace("*", " * " if chance.random() < 0.5 else "*")
             + chance.choice(("", "  # note", "   ")) for line in other]  # fmt: skip
    first, second = (free(text, "triton").bundle for text in ("\n".join(lines), "\n\n".join(other)))
    assert kernel_key(first) == kernel_key(second)
    swapped = "\n".join(lines).replace("tmp1 + tmp0", "tmp1 + tmp1")
    assert kernel_key(first) != kernel_key(free(swapped, "triton").bundle)
    assert kernel_key(first) != kernel_key(
        free("\n".join(lines).replace("2", "3"), "triton").bundle
    )


def test_indentation_counts_in_python_but_not_in_c() -> None:
    assert code("if a:\n    b()\nc()", python=True) != code("if a:\n    b()\n    c()", python=True)
    assert code("if (a) {\n  b();\n}", python=False) == code("if (a) { b(); }", python=False)


def test_prose_key_ignores_figures_and_sources() -> None:
    first = "## Steps\n\nTwo  words, {{ev:1.speedup}} times.\n\n## Sources\n\n- run a\n"
    second = "## steps\n\nTwo words, 1.52 times.\n\n## Sources\n\n- run b\n"
    assert body_key(first) == body_key(second) != body_key(first.replace("words", "other words"))
    assert prose("A\n\n```c\nint x;\n```\n\n9.5 b") == "a # b"


WORDS = [f"word{n}" for n in range(200)]


@pytest.mark.parametrize("seed", SEEDS)
def test_only_copied_spans_of_eight_words_are_dropped(seed: int) -> None:
    chance = random.Random(seed)
    stored = chance.sample(WORDS, 60)
    own = [f"own{n}" for n in range(30)]
    start, length = chance.randrange(40), chance.randrange(8, 20)
    echo, short = stored[start : start + length], stored[:7]
    mixed = " ".join([*own[:10], *echo, *own[10:20], *short, *own[20:]])
    text, share = without_copies(mixed, [" ".join(stored)])
    assert text.split() == [*own[:20], *short, *own[20:]]
    assert share == pytest.approx(len(echo) / (30 + len(echo) + 7))


def test_copies_are_found_despite_case_and_punctuation() -> None:
    stored = ["Load a row once, keep it on the chip, then write."]
    assert without_copies("load A row once keep it ON the chip then write", stored)[0] == ""
    assert without_copies("Something else entirely, in other words than those.", stored)[1] == 0


def test_code_is_attributed_to_text_that_shares_most() -> None:
    code = "for (int i = 0; i < n; i++) y[i] = a * x[i] + y[i];"
    shown = {"one": f"## Before\n{code}\nmore();", "two": "nothing of the kind at all here"}
    assert copied_from(code, shown) == ("one", 1.0)
    assert copied_from("int other(void) { return strange(thing, with, names); }", shown) == (
        "",
        0.0,
    )
