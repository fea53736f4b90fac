"""Cards of manuals of several formats, through the real parsers."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestion.elements import Element, ElementKind
from ingestion.formats import parse
from ingestion.passages import ParsedSection, split_sections
from ingestion.symbols.cards import MAX_CARDS, cards_of
from kb.catalog.knowledge.symbols import Card
from tests.ingestion.samples.drawn_chips import CHIPS, SEEDS

pytestmark = pytest.mark.slow(seconds=6)

# Documents of real chips, where ../shared is present.
CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus"

ASSEMBLER = """\
# Orbit assembler

## Opcodes

| Opcode | Operands | Operation | Restrictions | Cycles |
|---|---|---|---|---|
| ldt | dst, [addr] | load a tile | addr is a multiple of 32 | 20 |
| stt | [addr], src | store a tile | addr is a multiple of 32 | 20 |
| mulacc, addacc | acc, a, b | multiply or add into acc | | 4 |

## Error messages

- `E1042`: scratchpad overflow. Use smaller tiles.
- `E1043`: bad shape.

## tl.load(pointer, mask=None, other=None)

Reads a block of memory. More is said elsewhere. This is a third sentence.

### Parameters

- `pointer`: the first element
- `mask`: lanes that are read

## `vsync` - wait for all lanes

Every lane must reach it.

```orbit
vsync all
```

## Alignment

`ldt` needs 32 bytes. A `mulacc` takes at most 8 accumulators. Nothing is said of `stt`.

## Example

```orbit
.kernel softmax
    ldt t0, [x0]
    mulacc a0, t0, t0
    stt [x1], t0
    halt
```
"""

LISTED = """\
Zeta ISA
========

Directives
----------

.. list-table:: Directives of Zeta
   :header-rows: 1

   * - Directive
     - Meaning
   * - ``.tile``
     - Reserves scratchpad. At most 8 per kernel.
   * - ``.entry``
     - Marks the kernel.

Functions
---------

.. py:function:: zt.load(pointer, mask=None)

   Loads a block.

   :param pointer: where it starts
   :param mask: which lanes

.. c:function:: int zt_open(int device, const char *name)

   Opens the device.

Keywords
--------

``pad``
    Adds unused words to each row.

``acc``
    Reserves vector registers. Must be a multiple of 4.

Restrictions
------------

The pointer of ``zt.load`` must be aligned to 64 bytes.
"""

PAGE = """\
<html><head><title>Quill</title></head><body><h1>Quill API</h1>
<h2>Instructions</h2>
<table><thead><tr><th>Mnemonic</th><th>Syntax</th><th>Description</th><th>Cycles</th></tr></thead>
<tr><td>VADD</td><td>VADD dst, src1, src2</td><td>Adds two vectors.</td><td>4</td></tr>
<tr><td>VLD</td><td>VLD dst, [addr]</td><td>Loads a vector.</td><td>20</td></tr></table>
<h2>Functions</h2>
<dl class="py function"><dt class="sig sig-object py"><span>q.</span><span>dot</span>(<em>a</em>,
<em>b</em>)<a class="headerlink" href="#q.dot">&#182;</a></dt>
<dd><p>Matrix product of two tiles.</p><dl class="field-list"><dt>Parameters</dt><dd><ul>
<li><p><strong>a</strong> &#8211; left tile</p></li><li><p><strong>b</strong> &#8211; right tile</p>
</li></ul></dd></dl></dd></dl>
<div class="memitem"><div class="memproto"><table class="memname"><tr><td>void q_copy
</td><td>(</td><td>float *&#160;</td><td><em>dst</em>, </td></tr><tr><td></td><td></td>
<td>int&#160;</td><td><em>n</em></td></tr><tr><td></td><td>)</td></tr></table></div>
<div class="memdoc"><p>Copies n words.</p></div></div>
<h2>Chip</h2><table><tr><th>Property</th><th>Value</th></tr><tr><td>L1_SIZE</td><td>64 KiB</td></tr>
<tr><td>clock_mhz</td><td>900</td></tr></table></body></html>
"""


def cards_in(text: str, name: str = "a.md", languages: Collection[str] = ()) -> dict[str, Card]:
    """The cards of a text by name."""
    sections = split_sections(parse(text.encode(), name).elements)
    return {card.name: card for card in cards_of(sections, languages)}


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_manual_gives_only_its_language(seed: int) -> None:
    chip = CHIPS.draw(seed)
    manual = CHIPS.manual(chip)
    cards = cards_in(manual, languages=["novac"])
    codes = set(re.findall(r"^\| ([A-Z]+\d+) \|", manual, re.MULTILINE))
    keywords = {"const", "tile", "acc", "for", "pad"}
    assert len(codes) == 14 and len(chip["opcodes"]) == 18
    assert cards.keys() == {*chip["opcodes"].values(), *codes, *keywords}
    assert {cards[code].kind for code in codes} == {"error"}
    assert {cards[name].kind for name in chip["opcodes"].values()} == {"instruction"}
    assert {cards[name].kind for name in keywords} == {"keyword"}


def test_card_of_drawn_manual_is_complete() -> None:
    chip = CHIPS.draw(7)
    cards = cards_in(CHIPS.manual(chip), languages=["novac"])
    mac = cards[chip["opcodes"]["mac"]]
    assert mac.operands == (("acc C", ""), ("tile A", ""), ("tile B", ""))
    assert mac.meaning.startswith("C += A x B as matrices")
    assert mac.example == f"{mac.name} sum, a, b;" and mac.language == "novac"
    assert "Columns of tiles are a multiple of 32, or one." in cards["tile"].limits


def test_assembler_manual_without_code_markup() -> None:
    cards = cards_in(ASSEMBLER)
    load = cards["ldt"]
    assert (load.kind, load.meaning) == ("instruction", "load a tile")
    assert load.operands == (("dst", ""), ("[addr]", ""))
    assert load.limits == ("addr is a multiple of 32", "`ldt` needs 32 bytes.")
    assert load.example == "ldt t0, [x0]" and load.language == "orbit"
    assert load.further == ("Cycles: 20",)
    assert cards["addacc"].meaning == cards["mulacc"].meaning
    assert cards["mulacc"].limits == ("A `mulacc` takes at most 8 accumulators.",)


def test_names_as_headings() -> None:
    cards = cards_in(ASSEMBLER)
    load = cards["tl.load"]
    assert load.signature == "tl.load(pointer, mask=None, other=None)"
    assert load.operands == (("pointer", "the first element"), ("mask", "lanes that are read"))
    assert load.meaning == "Reads a block of memory. More is said elsewhere."
    assert cards["vsync"].example == "vsync all"
    assert cards["vsync"].meaning == "Every lane must reach it."
    assert cards["E1042"].kind == "error" and "smaller tiles" in cards["E1042"].meaning
    assert "pointer" not in cards and "mask" not in cards


@pytest.mark.parametrize(
    ("heading", "head", "codes"),
    [
        ("Run-time fault codes", "Fault", ("TF-0x31", "TF-0x40")),
        ("Compiler error codes", "Code", ("TCC-1042", "TCC-2001")),
        ("When it stops", "Error", ("E_0x1F", "E_0x20")),
        ("Traps", "Trap", ("XT17", "TRAP-0xA0")),
    ],
)
def test_codes_of_an_error_table(heading: str, head: str, codes: tuple[str, str]) -> None:
    first, second = codes
    table = f"| {head} | Cause | Remedy |\n|---|---|---|\n| {first} | A slab | Wait. |\n"
    cards = cards_in(f"# Manual\n\n## {heading}\n\n{table}| {second} | A tile | Shrink it. |\n")
    assert {name: card.kind for name, card in cards.items()} == dict.fromkeys(codes, "error")


def test_restructured_text() -> None:
    cards = cards_in(LISTED, "a.rst")
    assert cards.keys() == {".tile", ".entry", "zt.load", "zt_open", "pad", "acc"}
    assert cards[".tile"].kind == "directive"
    assert cards[".tile"].limits == ("At most 8 per kernel.",)
    assert cards["zt.load"].operands == (("pointer", "where it starts"), ("mask", "which lanes"))
    assert cards["zt.load"].limits == ("The pointer of ``zt.load`` must be aligned to 64 bytes.",)
    assert cards["zt_open"].signature == "int zt_open(int device, const char *name)"
    assert cards["pad"].kind == "keyword"
    assert cards["pad"].meaning == "Adds unused words to each row."


def test_sphinx_and_doxygen_pages() -> None:
    cards = cards_in(PAGE, "a.html")
    assert cards.keys() == {"VADD", "VLD", "q.dot", "q_copy"}
    assert cards["VADD"].signature == "VADD dst, src1, src2"
    assert cards["q.dot"].operands == (("a", "left tile"), ("b", "right tile"))
    assert cards["q.dot"].meaning == "Matrix product of two tiles."
    assert cards["q_copy"].signature == "void q_copy ( float * dst, int n )"
    assert cards["q_copy"].meaning == "Copies n words."


def test_mentions_of_one_name_make_one_card() -> None:
    text = """# Reference

## Instructions

| Instruction | Effect |
|---|---|
| `vadd` | adds tiles |

## `vadd`

### Syntax

```
vadd dst, src1, imm
```
"""
    [card] = cards_in(text).values()
    assert (card.meaning, card.signature) == ("adds tiles", "vadd dst, src1, imm")


def test_prototypes_stubs_and_listings() -> None:
    text = """# Runtime functions

```c
// Opens the device.
int zt_open(int device, const char *name);
void zt_copy(float *to,
             const float *from, int n);
```

```python
def load(pointer: Pointer, mask: Mask = None) -> Tile:
    \"\"\"Load a block.\"\"\"
    ...
```

## Vector instructions

```
vle8.v   vd, (rs1), vm  # 8-bit load
vle16.v  vd, (rs1), vm  # 16-bit load
vse8.v   vd, (rs1), vm  # 8-bit store
```

## A program

```c
int total = zt_sum(a, b);
Grid grid(x, y);
return zt_close(total);
```
"""
    cards = cards_in(text)
    assert cards.keys() == {"zt_open", "zt_copy", "load", "vle8.v", "vle16.v", "vse8.v"}
    assert cards["zt_open"].meaning == "Opens the device."
    assert "const float *from, int n)" in cards["zt_copy"].signature
    assert cards["load"].meaning == "Load a block."
    assert cards["vle8.v"].signature == "vle8.v   vd, (rs1), vm"
    assert cards["vle8.v"].operands[1] == ("(rs1)", "")


@pytest.mark.parametrize(
    "text",
    [
        "## Core\n\n| Property | Value |\n|---|---|\n| `L1_SIZE` | 64 |\n| `lanes` | 32 |",
        "## Chips\n\n| GPU | Name | Memory |\n|---|---|---|\n| H1 | `gfx90a` | 64 |",
        "## Environment variables\n\n| Name | Meaning |\n|---|---|\n| `Q_HOME` | its folder |",
        "## Parameters\n\n- `alpha`: the scale\n- `beta`: the shift",
        "## Installation\n\n- `cmake`: builds it\n- `setup.py`: installs it",
        "## Quick start\n\nUse `pip` and read `README.md`.\n\n```bash\npip install quill\n```",
        "## Speed\n\n| Operation | Cycles |\n|---|---|\n| Matrix product | 4 |\n| Sum | 2 |",
        "## DeepMind\n\nA company.\n\n## Node.js\n\nA program.\n\n## v1.2\n\nA release.",
        "## Files\n\n| Name | Purpose |\n|---|---|\n| `main.cpp` | entry |\n| `lib/` | code |",
    ],
)
def test_text_outside_language_gives_no_cards(text: str) -> None:
    assert cards_in(text) == {}


@pytest.mark.parametrize(
    "table",
    [
        "| | Pattern 0 | Pattern 1 |\n|---|---|---|\n| **`Cfg[0]`** | Not used | `OuterCount` |\n"
        "| **`Cfg[1]`** | `Flags` | `InnerCount` |",
        "| Syntax | Shorthand for |\n|---|---|\n| `LaneFlags` | `LaneFlags[Lane]` |\n"
        "| `step` | `step(Lane)` |",
        "| | value |\n|---|---|\n| `abs(SrcA) \u2264 31` | one phase |\n"
        "| `abs(SrcA) \u2264 255` | two phases |",
    ],
    ids=["elements of an array", "shorthands", "conditions"],
)
def test_table_of_a_model_defines_no_names(table: str) -> None:
    text = f"# Instructions\n\n{table}\n\n```c\nif (LaneFlags && OuterCount) step(1);\n```\n"
    assert cards_in(text) == {}


def test_element_of_an_array_among_names_leaves_the_table() -> None:
    rows = "| `vadd` | Adds two vectors. |\n| `acc[0]` | The first accumulator. |"
    text = f"# Instructions\n\n| Name | Meaning |\n|---|---|\n{rows}\n\n```c\nvadd(1);\n```\n"
    assert "vadd" in cards_in(text)


def test_macro_with_value_in_brackets_is_no_function() -> None:
    text = (
        "# Debugging\n\n## `DBG_CNTL_0`\n\nControls the debugger.\n\n"
        "```c\n#define DBG_CNTL_0 (BASE + 4)\n#define WAIT(x) (x)\n```\n"
    )
    assert cards_in(text)["DBG_CNTL_0"].kind != "function"


def test_names_and_signatures_have_no_backticks() -> None:
    text = (
        "## Functions\n\n| Function | Meaning |\n|---|---|\n| [`__dot(a, b)`](x.md) | `a` by `b` |"
    )
    [card] = cards_in(text).values()
    assert (card.name, card.signature, card.meaning) == ("__dot", "__dot(a, b)", "`a` by `b`")


def test_card_sizes_are_bounded() -> None:
    rows = "\n".join(f"| op_{n} | {'long ' * 90} |" for n in range(900))
    parts = [f"## Part {part}\n\n| Instruction | Effect |\n|---|---|\n" for part in range(3)]
    text = "\n\n".join(head + rows.replace("op_", f"op{n}_") for n, head in enumerate(parts))
    cards = cards_in(text)
    assert len(cards) == MAX_CARDS
    assert max(len(card.meaning) for card in cards.values()) <= 400


KINDS: tuple[ElementKind, ...] = ("text", "list", "code", "table")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS), st.text(alphabet="ab_.`*:-|()<>[]{}#;,= \n1A", max_size=120)
        ),
        max_size=8,
    )
)
def test_arbitrary_text_raises_nothing(parts: list[tuple[ElementKind, str]]) -> None:
    elements = tuple(Element(kind, text) for kind, text in parts)
    titles = [text for _, text in parts if text.strip()][:2]
    title = Element("title", titles[0] if titles else "Instructions", level=1)
    cards_of([ParsedSection((title.text,), 1, None, elements, title)])


@pytest.mark.parametrize(
    "piece",
    ["`", "a(", "a_b ", "* ", "()", "[a](", "a.", "a::", "<a", "#a ", "x = ", ":a:`", "a, ", "__"],
)
def test_arbitrary_text_is_read_in_bounded_time(piece: str) -> None:
    long = piece * (100_000 // len(piece))
    elements = [Element(kind, long) for kind in ("text", "list", "code")]
    elements.append(
        parse(f"| Instruction |\n|---|\n| {long[:5_000]} |".encode(), "a.md").elements[0]
    )
    start = time.process_time()
    cards_of([ParsedSection(("Instructions",), 1, None, tuple(elements), None)])
    assert time.process_time() - start < 5


# name of a document, least number of cards, some of them
REAL = [
    ("amd_instinct/HIP/docs/reference/kernel_language.rst", 200, "__shared__ atomicAdd __ballot"),
    ("nvidia_gpu/cutlass/media/docs/cutlass_compiler/cute_dialect.rst", 60, "cute.make_layout"),
    (
        "riscv_vector/riscv-matrix-extension-spec/spec/riscv_matrix_extension_proposal.pdf",
        80,
        "mfmacc.d mmaccu.w.b",
    ),
    (
        "tenstorrent_wormhole/tt-isa-documentation/WormholeB0/TensixTile/TensixCoprocessor/"
        "VectorUnit.md",
        38,  # its instructions; the shorthands of its models are none
        "SFPADDI SFPADD SFPMAD SFPMUL SFPMULI SFPLUT SFPLUTFP32 SFPSWAP SFPMOV SFPSETSGN "
        "SFPABS SFPLZ SFPSETCC SFPDIVP2 SFPSETEXP SFPSETMAN SFPEXMAN SFPEXEXP SFPIADD "
        "SFPSTOCHRND SFPAND SFPOR SFPXOR SFPNOT SFPSHFT SFPSHFT2 SFPCAST SFPLOADI SFPLOAD "
        "SFPSTORE SFPLOADMACRO SFPCONFIG SFPTRANSP SFPENCC SFPPUSHC SFPCOMPC SFPPOPC SFPNOP",
    ),
    ("aws_trainium/aws-neuron-sdk/compiler/error-codes/index.rst", 50, "NCC_EVRF007"),
    ("aws_trainium/aws-neuron-sdk/nki/api/nki.api.shared.rst", 20, "nki.language.invert"),
    (
        "huawei_ascend/triton-ascend/docs/en/architecture_design_and_core_features.md",
        3,
        "tl.extract_slice",
    ),
    (
        "intel_xe/intel-xpu-backend-for-triton/claude/reference/operations-reference.md",
        10,
        "triton_gen.sub_group_block_read",
    ),
]


@pytest.mark.parametrize(("name", "least", "some"), REAL)
def test_real_documents_give_many_cards(name: str, least: int, some: str) -> None:
    path = CORPUS / name
    if not path.is_file():
        pytest.skip("../shared/corpus is absent")
    sections = split_sections(parse(path.read_bytes(), path.name).elements)
    cards = {card.name for card in cards_of(sections)}
    assert len(cards) >= least and set(some.split()) <= cards


def test_fields_of_an_entry_are_not_limits() -> None:
    text = """Instructions
============

``vadd ~d, ~a``
---------------

``~d`` becomes ``~d`` + ``~a``. Only ``vadd`` takes an odd register.

:Operands: ``~d`` vector register (written); ``~a`` at most 16
:Cycles: 1 to issue, at least 3 until ``vadd`` ends
:Errors: E12
"""
    sections = split_sections(parse(text.encode(), "isa.rst").elements)
    card = next(card for card in cards_of(sections) if card.name == "vadd")
    assert all("Cycles" not in limit and "to issue" not in limit for limit in card.limits)
    assert any("odd register" in limit for limit in card.limits)


def test_host_code_has_language_of_its_document() -> None:
    text = "# Loads\n\n| Function | Syntax |\n| --- | --- |\n| `tl.load` | `tl.load(pointer)` |\n"
    text += "| `tl.log` | `tl.log(x)` |\n\n```python\nx = tl.log(tl.load(p))\n```\n"
    alone = cards_in(text, languages=["triton"])
    assert {name: card.language for name, card in alone.items()} == {
        "tl.load": "triton",
        "tl.log": "triton",  # not a file with that ending
    }
    assert cards_in(text, languages=["triton", "cuda"])["tl.load"].language == "python"


def test_types_generic_methods_defaults_and_decorators() -> None:
    text = """# Net

A kernel is annotated by `lib.kernel` or `lib.compute` decorators.

| Type alias/Function | Description |
| --- | --- |
| `lib.Size = Annotated[int, Gt(0)]` | A size. |
| `lib.Range = Tuple[lib.Size, ...]` | A range of cores. |
| `lib.Net[T].send(self, to: T, hops: int = 1, wait: bool = True) -> None` | Send a block. |
| `lib.math.log(x: lib.Block) -> lib.Block` | Natural logarithm. |
"""
    cards = cards_in(text)
    assert set(cards) == {
        *("lib.kernel", "lib.compute", "lib.Size", "lib.Range", "lib.Net.send", "lib.math.log")
    }
    assert "wait: bool = True" in cards["lib.Net.send"].signature
    assert cards["lib.kernel"].kind == "directive"


def test_marks_of_a_matrix_are_one_remark_with_the_sentence_before_the_table() -> None:
    table = (
        "# Instructions\n\nThe mask blocks these instructions, by its bits:\n\n"
        "| Instruction | B0 | B1 | B2 |\n|---|---|---|---|\n"
        "| `ADDX` | ❌ | | ❌ |\n| `MULX` | | ❌ | |\n| `SUBX` | ❌ | | |\n"
    )
    cards = cards_in(table)
    assert cards["ADDX"].further == ("The mask blocks these instructions, by its bits: ❌ B0, B2",)


FORMS = """\
# Packed instructions

| **Mnemonic** | **Description** |
|---|---|
| **px.extract rd, rs1, Is3, Is2** | The bits of rs1 from Is2 on, extended |
| **px.lw rd, rs2(rs1)** | Loads a word from rs1 + rs2 |
| **px.sh rs2, (rs1), rs3** | Stores a half, then adds rs3 to the address |
| **px.dot[.sc,.sci].b rd, rs1, [rs2, Imm6]** | Four products of 8 bits, added |
| **px.dot[.sc,.sci].h rd, rs1, [rs2, Imm6]** | Two products of 16 bits, added |
| **px.abs{.h,.b} rd, rs1** | Absolute values |
| **px.cmul{/,.div2}** | A complex product |
| **px.add{.sat} rd, rs1, rs2** | A sum |
| **px.nop, px.fence** | Nothing |
"""


def test_each_form_of_an_instruction_has_its_row() -> None:
    document = parse(FORMS.encode(), "forms.md")
    cards = {card.name: card for card in cards_of(split_sections(document.elements), ("px",))}
    dots = {f"px.dot{form}.{width}" for form in ("", ".sc", ".sci") for width in "bh"}
    others = {"extract", "lw", "sh", "abs.h", "abs.b", "cmul", "cmul.div2", "add", "add.sat"}
    assert cards.keys() == {*dots, *(f"px.{name}" for name in (*others, "nop", "fence"))}
    assert cards["px.dot.sc.b"].meaning.startswith("Four")
    assert cards["px.dot.sc.h"].meaning.startswith("Two")
    assert cards["px.sh"].signature == "px.sh rs2, (rs1), rs3"
