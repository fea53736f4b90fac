"""Cards of functions declared in a header or a code block of a manual."""

from __future__ import annotations

import pytest

from ingestion.formats import parse
from ingestion.passages import split_sections
from ingestion.samples.kernels import kernels_of
from ingestion.symbols.cards import cards_of
from kb.catalog.knowledge.samples import KernelSample
from kb.catalog.knowledge.symbols import Card

HEADER = """\
/* ==========================================================================
   Assembly Syntax:       Vd32.w=vsum4(Vu32.ub,Rt32.b)
   C Intrinsic Prototype: XV_Vector X6_Vw_vsum4_VubRb(XV_Vector Vu, Word32 Rt)
   Instruction Type:      CVI_VX
   Execution Slots:       SLOT23
   ========================================================================== */

#define X6_Vw_vsum4_VubRb(Vu,Rt) __WRAP(__builtin_X_vsum4)(Vu,Rt)

/* Assembly Syntax:       Rd32=abs(Rs32)
   C Intrinsic Prototype: Word32 X6_R_abs_R(Word32 Rs) */
#define X6_R_abs_R __builtin_X_abs

#if __X_ARCH__ >= 68
/* Assembly Syntax:       Vd32.sf=vneg(Vu32.sf)
   C Intrinsic Prototype: XV_Vector X6_Vsf_vneg_Vsf(XV_Vector Vu) */
#define X6_Vsf_vneg_Vsf(Vu) __WRAP(__builtin_X_vneg)(Vu)
#endif /* __X_ARCH__ >= 68 */

// Waits for the transfer with this number.
static inline void x6_wait(unsigned tag);

#define X6_MASK(x) ((x) & 15)

int outside(void) { return helper(a, b); }
"""
LISTING = """\
# Outer products

The functions add an outer product to a tile.

```c
  // Variants are available for _f16 and _s8.
  void svout_za32[_f32]_m(uint64_t tile, svbool_t pn,
                          svfloat32_t zn, svfloat32_t zm)
    __arm_streaming __arm_inout("za");
```
"""


def _cards(text: str, name: str) -> dict[str, Card]:
    return {
        c.name: c for c in cards_of(split_sections(parse(text.encode(), name).elements), ("x",))
    }


def _kernels(code: str, fence: str = "c") -> list[KernelSample]:
    text = f"# A manual\n\nThe block.\n\n```{fence}\n{code}\n```\n"
    sections = split_sections(parse(text.encode(), "manual.md").elements)
    return kernels_of(sections, cards_of(sections, ("x",)), ("x",))


def test_header_macros_have_prototype_of_their_comment() -> None:
    cards = _cards(HEADER, "x_protos.h")
    assert set(cards) == {"X6_Vw_vsum4_VubRb", "X6_R_abs_R", "X6_Vsf_vneg_Vsf", "x6_wait"}
    card = cards["X6_Vw_vsum4_VubRb"]
    assert card.signature == "XV_Vector X6_Vw_vsum4_VubRb(XV_Vector Vu, Word32 Rt)"
    assert card.operands == (("Vu", "XV_Vector"), ("Rt", "Word32"))
    assert card.meaning == "Vd32.w=vsum4(Vu32.ub,Rt32.b)"
    assert "Execution Slots: SLOT23" in card.further
    assert cards["x6_wait"].meaning == "Waits for the transfer with this number."
    assert cards["X6_R_abs_R"].signature == "Word32 X6_R_abs_R(Word32 Rs)"
    limits = {name: card.limits for name, card in cards.items() if card.limits}
    assert limits == {"X6_Vsf_vneg_Vsf": ("only if __X_ARCH__ >= 68",)}
    assert not any(card.example for card in cards.values())


def test_optional_name_parts_give_full_and_short_name() -> None:
    cards = _cards(LISTING, "acle.md")
    assert {"svout_za32_f32_m", "svout_za32_m"} <= set(cards)
    operands = dict(cards["svout_za32_m"].operands)
    assert operands["tile"] == "uint64_t" and operands["zm"] == "svfloat32_t"


@pytest.mark.parametrize(
    ("code", "fence"),
    [
        (
            "int count(int x, unsigned y) {\n  int t[4];\n  t[0] = x;\n  t[1] = y;\n"
            "  return load(t);\n}",
            "c",
        ),
        (
            "void test(float *p) {\n  p[0] = 1;\n  f = g;  // Ill-formed\n  f = h;  // OK\n"
            "  store(p);\n}",
            "c",
        ),
        (
            "async def Expand(queue):\n  mask = 0\n  while True:\n    word = await queue.get()\n"
            "    mask = load(word)\n    yield word\n",
            "py",
        ),
    ],
    ids=["takes no memory", "shows errors", "functional model"],
)
def test_non_kernel_examples_are_not_samples(code: str, fence: str) -> None:
    assert _kernels(code, fence) == []


def test_function_with_memory_arguments_is_a_sample() -> None:
    code = (
        "void scale(float *out, const float *x, int n) {\n  for (int i = 0; i < n; i++) {\n"
        "    float v = load(x + i);\n    v = v * 2;\n    out[i] = v;\n    store(out + i, v);\n"
        "  }\n}"
    )
    named = f"__global__ {code}"
    assert len(_kernels(named)) == 1


@pytest.mark.parametrize(
    "example",
    [
        '\n```c\n  void f_private();\n  void setup() __arm_out("za");\n\n'
        "  void test() {\n    setup();      // active after this call\n    f_private();\n  }\n"
        "```\n",
        # In other examples either.
        "\n```c\n  void callee(void);\n\n  void code() { run = callee; }\n```\n"
        "\n```c\n  void callee(void);\n  int other(void) { return 0; }\n```\n"
        "\n```c\n  vec f2();           // OK, only a declaration\n  vec f3() { return 0; }\n```\n",
    ],
)
def test_functions_that_an_example_declares_have_no_card(example: str) -> None:
    assert set(_cards(LISTING + example, "m.md")) == {"svout_za32_f32_m", "svout_za32_m"}


@pytest.mark.parametrize(
    "code",
    [
        "```hip\n__global__ __attribute__((amdgpu_waves_per_eu(2, 2)))\nvoid kernel(const float *q,"
        " float *out);\n```",
        "```cuda\n__global__ void __launch_bounds__(256) kernel(const float* x, float* y);\n```",
        "```python\n@triton.jit\ndef kernel(x_ptr, N: tl.constexpr): ...\n```",
        "```python\ndef kernel(x_ref, out_ref):\n    @pl.when(first)\n    def _():\n"
        "        out_ref[...] = 0\n```",
    ],
)
def test_kernels_of_examples_have_no_card(code: str) -> None:
    assert _cards(f"# How to write a kernel\n\n{code}\n", "m.md") == {}


def test_fields_of_a_word_have_no_card() -> None:
    table = (
        "# Functions\n\n| {} | Name | Meaning |\n|---|---|---|\n| 0-2 | `src_format` | format |\n"
    )
    table += "| 3-5 | `dst_format` | format of the result |\n| 6 | `lscale` | scale |\n"
    assert _cards(table.format("**Bit range**"), "m.md") == {}
    assert "src_format" in _cards(table.format("Group"), "m.md")


def test_condition_above_a_group_of_declarations_holds_for_all_of_them() -> None:
    group = (
        "# Scale\n\n```c\n  // Only if FEATURE_B != 0\n"
        "  vec sv_a[_b]_m(vec x, int n);\n  vec sv_a[_b]_x(vec x, int n);\n\n"
        "  vec sv_c[_b]_m(vec x, int n);\n```\n"
    )
    cards = _cards(group, "m.md")
    assert cards["sv_a_b_m"].limits == cards["sv_a_b_x"].limits == ("Only if FEATURE_B != 0",)
    assert cards["sv_c_b_m"].limits == ()


def test_condition_with_a_defined_macro_is_a_limit() -> None:
    entry = "/* ====\n   C Prototype: int f_{0}(int Rs)\n   ==== */\n#define f_{0} __builtin_{0}\n"
    guard = "#if ARCH >= 67 && defined AUDIO\n"
    header = entry.format("a") + entry.format("b") + guard + entry.format("c") + "#endif\n"
    cards = _cards(header, "f.h")
    assert cards["f_c"].limits == ("only if ARCH >= 67 && defined AUDIO",)
    assert cards["f_a"].limits == ()
