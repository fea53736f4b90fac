"""Cards of the macros, enums, structs and types of a C header."""

from __future__ import annotations

import pytest

from ingestion.formats import parse
from ingestion.passages import split_sections
from ingestion.symbols.cards import cards_of
from ingestion.symbols.headers import MAX_NAMES, is_header, remark_of
from kb.catalog.knowledge.symbols import Card

HEADER = """\
/*
 * Copyright the authors. Licensed under a license.
 */
/*!
 * \\file spec.h
 * \\brief Definitions of the runtime.
 */
#ifndef QX_SPEC_H_
#define QX_SPEC_H_

#include <stdint.h>

#define QX_TRACE
#define QX_INLINE static inline __attribute__((always_inline))
#define USE_QX 1
#define _QX_PRIVATE 3
/* #define QX_OLD 9 */

/*! \\brief Width of an opcode */
#define QX_OPCODE_WIDTH 3
/*! Opcode: multiply */
#define QX_OPCODE_GEMM 2
#define QX_OPCODE_DONE 4  // Opcode: end of the program
/*! Depth of the weight buffer */
#define QX_DEPTH \\
    (QX_SIZE - QX_WIDTH + 3)

/*! Largest transfer in bytes */
#ifndef QX_MAX_TRANSFER
#define QX_MAX_TRANSFER (1 << 25)
#endif

#define qx_min(a, b) ((a) < (b) ? (a) : (b))

/// Events that a counter counts
enum qx_event {
    QX_EVENT_CYCLES,
    /// misses of the instruction cache
    QX_EVENT_MISS,
    QX_EVENT_STALL = 0x10,  // cycles without an instruction
    QX_EVENT_LAST,
};

/*! \\brief Multiplication of tiles
 *   between \\a begin and the end:
 * \\code{.cpp}
 * for (;;) run();
 * \\endcode
 */
typedef struct {
  /*! \\brief The opcode */
  uint64_t opcode : QX_OPCODE_WIDTH;
  uint64_t reset : 1;  // Clears the accumulator
  float scale[4];
} QxGemm;

/*! \\brief Address on the bus */
typedef uint32_t qx_address_t;

/**
 * @brief Starts a transfer
 * @details returns at once
 *
 * @param size bytes to copy
 * @return number of the transfer
 */
int qx_start(const void *from, uint32_t size);

#endif  // QX_SPEC_H_
"""


def _cards(text: str, name: str = "spec.h") -> dict[str, Card]:
    sections = split_sections(parse(text.encode(), name).elements)
    return {card.name: card for card in cards_of(sections, ("x",))}


def test_header_defines_macros_members_of_enums_and_types() -> None:
    cards = _cards(HEADER)
    kinds: dict[str, set[str]] = {}
    for card in cards.values():
        kinds.setdefault(card.kind, set()).add(card.name.removeprefix("QX_"))
    assert kinds == {
        "constant": {
            *("OPCODE_WIDTH", "OPCODE_GEMM", "OPCODE_DONE", "DEPTH", "MAX_TRANSFER"),
            *("EVENT_CYCLES", "EVENT_MISS", "EVENT_STALL", "EVENT_LAST"),
        },
        "type": {"qx_event", "QxGemm", "qx_address_t"},
        "function": {"qx_min", "qx_start"},
    }


@pytest.mark.parametrize(
    ("name", "signature", "meaning"),
    [
        ("QX_OPCODE_WIDTH", "#define QX_OPCODE_WIDTH 3", "Width of an opcode"),
        ("QX_OPCODE_GEMM", "#define QX_OPCODE_GEMM 2", "Opcode: multiply"),
        ("QX_OPCODE_DONE", "#define QX_OPCODE_DONE 4", "Opcode: end of the program"),
        ("QX_DEPTH", "#define QX_DEPTH (QX_SIZE - QX_WIDTH + 3)", "Depth of the weight buffer"),
        ("QX_MAX_TRANSFER", "#define QX_MAX_TRANSFER (1 << 25)", "Largest transfer in bytes"),
        ("QX_EVENT_MISS", "QX_EVENT_MISS = 1", "misses of the instruction cache"),
        ("QX_EVENT_STALL", "QX_EVENT_STALL = 0x10", "cycles without an instruction"),
        ("QX_EVENT_LAST", "QX_EVENT_LAST = 17", ""),
        ("qx_event", "enum qx_event", "Events that a counter counts"),
        ("QxGemm", "typedef struct QxGemm", "Multiplication of tiles between begin and the end:"),
        ("qx_address_t", "typedef uint32_t qx_address_t", "Address on the bus"),
    ],
)
def test_names_have_their_values_and_comments(name: str, signature: str, meaning: str) -> None:
    card = _cards(HEADER)[name]
    assert (card.signature, card.meaning, card.language) == (signature, meaning, "x")


def test_fields_of_a_struct_have_types_and_comments() -> None:
    assert _cards(HEADER)["QxGemm"].operands == (
        ("opcode", "uint64_t : QX_OPCODE_WIDTH; The opcode"),
        ("reset", "uint64_t : 1; Clears the accumulator"),
        ("scale", "float [4]"),
    )
    event = _cards(HEADER)["QX_EVENT_CYCLES"]
    assert event.further == ("of enum qx_event: Events that a counter counts",)


def test_marks_of_doxygen_are_left_out() -> None:
    start = _cards(HEADER)["qx_start"]
    assert start.meaning == "Starts a transfer returns at once"
    assert start.further == ("size: bytes to copy", "returns: number of the transfer")
    assert remark_of("// ! \\brief Depth").meaning == "Depth"
    assert remark_of("/**< a @p size in bytes, mail a@param.org */").meaning == (
        "a size in bytes, mail a@param.org"
    )


def test_block_without_include_guard_defines_names_with_comments() -> None:
    manual = "# Modes\n\n```c\n#define MOD_EC 1 // Inverts the flags\n#define MOD_NONE 0\n```\n"
    assert set(_cards(manual, "m.md")) == {"MOD_EC"}
    example = manual.replace("\n```\n", "\nint f(int *x) {\n  return x[MOD_EC];\n}\n```\n")
    assert _cards(example, "m.md") == {}


def test_cpp_types_and_scoped_members() -> None:
    header = (
        "#pragma once\nnamespace qx {\n/// A mode\nenum class Mode : int { kFast = 1, kSafe };\n"
        "using Handle = void*;\nstatic constexpr int kLanes = 8;  // of one core\n"
        "/// Manages pages\nclass Pages : public Base {\n public:\n  explicit Pages(int size);\n"
        "  int size_;\n};\n}\n"
    )
    cards = _cards(header, "pages.hpp")
    assert {"Mode", "Mode::kFast", "Mode::kSafe", "Handle", "kLanes", "Pages"} <= set(cards)
    assert cards["Mode::kSafe"].signature == "Mode::kSafe = 2"
    assert cards["kLanes"].meaning == "of one core"
    assert cards["Pages"].operands == ()


def test_names_of_one_block_are_bounded() -> None:
    lines = "".join(f"#define QX_REG_{n} {n}\n" for n in range(MAX_NAMES + 50))
    assert len(_cards(f"#pragma once\n{lines}")) == MAX_NAMES


def test_code_with_functions_or_calls_is_no_header() -> None:
    assert is_header("extern int a;\nint f(int x);\n", "c")
    assert not is_header("int f(int x) {\n  return x;\n}\n", "c")
    assert not is_header("f(x);\ng(y);\n", "c")
    assert not is_header("#pragma once\nint x;\n", "python")
