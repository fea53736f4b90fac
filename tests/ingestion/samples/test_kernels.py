"""Whole kernels are distinguished from fragments, commands and configuration."""

from __future__ import annotations

import time
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestion.formats import parse
from ingestion.passages import split_sections
from ingestion.samples.kernels import MAX_KERNELS, entry_of, fragments_of, kernels_of, operator_of
from ingestion.symbols.cards import cards_of
from kb.catalog.knowledge.samples import KernelSample
from tests.ingestion.samples.drawn_chips import CHIPS

TRITON = """\
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x_ptr + at, mask=at < n) + tl.load(y_ptr + at, mask=at < n)
    tl.store(out_ptr + at, total, mask=at < n)
"""
CUDA = """\
__global__ void rms_norm(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float scale = rsqrtf(x[i] * x[i] / n);
  y[i] = x[i] * scale;
}
"""
ASSEMBLY = """\
.kernel softmax
    ldt t0, [x0]
loop:
    mulacc a0, t0, t0   // square
    stt [x1], t0
    halt
"""
OPCODES = """\
## Opcodes

| Opcode | Effect |
|---|---|
| ldt | load a tile |
| stt | store a tile |
| mulacc | multiply and add |
"""


def kernels_in(text: str, languages: Collection[str] = ()) -> list[KernelSample]:
    """The kernels of a Markdown text, with the cards of that text."""
    sections = split_sections(parse(text.encode(), "a.md").elements)
    return kernels_of(sections, cards_of(sections), languages)


def fenced(code: str, language: str = "", title: str = "Sample") -> str:
    return f"## {title}\n\n```{language}\n{code}\n```\n"


def test_sample_of_a_drawn_manual() -> None:
    chip = CHIPS.draw(7)
    [kernel] = kernels_in(CHIPS.manual(chip), ["novac"])
    assert kernel.operator == "matmul" and kernel.language == "novac"
    assert kernel.shapes == ("A[64][64]", "B[64][64]", "C[64][64]")
    assert kernel.title == "2.3 Worked sample: a tiled matrix product"
    assert kernel.code.startswith("kernel kernlore_run(") and kernel.code.endswith("}")
    assert kernel.symbols[:2] == ("const", "tile")
    assert {chip["opcodes"][name] for name in ("load", "store", "mac")} <= set(kernel.symbols)


@pytest.mark.parametrize(
    ("code", "language", "title", "operator"),
    [
        (TRITON, "python", "First steps", "elementwise"),
        (CUDA, "cpp", "Norms", "rmsnorm"),
        (ASSEMBLY, "", "Example", "softmax"),
    ],
)
def test_kernels_of_other_languages(code: str, language: str, title: str, operator: str) -> None:
    [kernel] = kernels_in(OPCODES + fenced(code, language, title))
    assert kernel.code == code.rstrip("\n") and kernel.language == language
    assert kernel.operator == operator


def test_symbols_are_in_order_of_first_use() -> None:
    [kernel] = kernels_in(OPCODES + fenced(ASSEMBLY))
    assert kernel.symbols == ("ldt", "mulacc", "stt")


def test_fence_without_language_has_only_declared_one() -> None:
    assert [k.language for k in kernels_in(fenced(CUDA), ["quill"])] == ["quill"]
    assert [k.language for k in kernels_in(fenced(CUDA), ["quill", "cpp"])] == [""]
    assert [k.language for k in kernels_in(fenced(CUDA, "text"), ["quill"])] == ["quill"]


def test_kernel_in_a_host_language_is_in_the_chips() -> None:
    code = """
def from_torch(tensor):
    return lib.wrap(tensor)

@lib.kernel(
    grid="auto",
)
def matmul(a, b, out):
    @lib.compute()
    def work():
        out.store(a.wait() @ b.wait())
"""
    [kernel] = kernels_in(fenced(code, "python"), ["quill"])
    assert (kernel.language, kernel.operator) == ("quill", "matmul")
    [other] = kernels_in(fenced(TRITON, "python"), ["quill"])
    assert other.language == "python"
    threads = code[code.index("    @lib.compute") :].replace("\n    ", "\n")
    assert kernels_in(fenced(threads * 3, "python"), ["quill"]) == []


def test_kernel_over_two_blocks_is_joined_if_bracket_is_open() -> None:
    head, tail = CUDA[: CUDA.index("  float")], CUDA[CUDA.index("  float") :]
    text = f"{fenced(head, 'cpp')}\nThen scale and store:\n\n```cpp\n{tail}```\n"
    [kernel] = kernels_in(text)
    assert kernel.code.startswith("__global__") and "y[i] = x[i] * scale" in kernel.code
    assert len(kernels_in(f"{fenced(CUDA, 'cpp')}\n```cpp\n{CUDA.replace('x', 'v')}```\n")) == 2


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("cd build\ncmake ..\nmake -j\nstore x[1]", "bash"),
        ('{"kernel": {\n"load": 1,\n"store": 2,\n"end": 3}}', "json"),
        ("$ ./run kernel\nload x\nstore x\nend\ndone", ""),
        ("ldt t0, [x0]\nstt [x1], t0", ""),
        ("__global__ void f(float* x);\nfloat a;\nfloat b;\nfloat c;", "cpp"),
        ("@triton.jit\ndef f(x_ptr):\n    a = tl.load(x_ptr)\n    ...\n    tl.store(x_ptr, a)", ""),
        ("def main():\n    args = parse()\n    print(args)\n    return run(args)", "python"),
        ("error: kernel f: load x[3] is out of range\n note: here\n note: there\n ^", ""),
    ],
)
def test_fragments_are_not_kernels(code: str, language: str) -> None:
    assert kernels_in(fenced(code, language)) == []


DRIVER = """\
#ifndef QX_DRIVER_H_
#define QX_DRIVER_H_
#ifdef __cplusplus
extern "C" {
#endif
/*! \\brief Kernels and their memory */
#define QX_CACHED 1
typedef struct { int opcode; int size; } QxInsn;
void* qx_alloc(int size);
void qx_load(void* to, const void* from);
void qx_store(void* to, const void* from);
int qx_run(const QxInsn* kernel, int count);
ACCESSORS
#ifdef __cplusplus
}
#endif
#endif
"""
ACCESSORS = """\
static inline int qx_read(volatile int* registers) { return registers[QX_CACHED]; }
static inline void qx_write(volatile int* registers, int value) { registers[QX_CACHED] = value; }
static inline void qx_show(const int* x) {
  for (int i = 0; i < 4; i++) qx_printf("%d", x[i]);
}
"""
SCALE = """\
static inline void scale(float* y, const float* x, int n) {
  for (int i = 0; i < n; i++) {
    y[i] = 2 * x[i];
  }
}
"""


@pytest.mark.parametrize("language", ["c", "quill"])
@pytest.mark.parametrize("functions", ["", ACCESSORS])
def test_headers_of_declarations_are_no_kernels(functions: str, language: str) -> None:
    header = DRIVER.replace("ACCESSORS", functions)
    sections = split_sections(parse(header.encode(), "driver.h").elements)
    cards = cards_of(sections, (language,))
    kernels = kernels_of(sections, cards, (language,), (language,))
    assert kernels == [] and len(cards) > 4
    assert list(fragments_of(sections, cards, kernels, (language,))) == []


@pytest.mark.parametrize("functions", [SCALE, SCALE.replace("static inline", "__global__")])
def test_header_with_a_function_that_computes_is_a_kernel(functions: str) -> None:
    header = DRIVER.replace("ACCESSORS", functions)
    sections = split_sections(parse(header.encode(), "driver.h").elements)
    assert len(kernels_of(sections, cards_of(sections, ("c",)), ("c",), ("c",))) == 1


CHISEL = """\
kernel halve(in0: tensor, out: tensor) {
  let here = tray.reserve(4096);
  for (b = core.id; b < in0.bytes; b += 4096) {
    porter.issue(here, in0.base + b, 4096);
    porter.fence(0);
    lanes.scale(here, 0.5);
  }
}
"""
LATHE = """\
kernel turn (a, b)
  pull r0, a
  spin(r0)
  push(b, r0)
  turn_back(r0)
end
"""


@pytest.mark.parametrize(("code", "language"), [(CHISEL, "chisel"), (LATHE, "lathe")])
def test_kernel_keyword_with_body_of_calls_suffices(code: str, language: str) -> None:
    """No table lists the names, and none of them is shared by many languages."""
    [kernel] = kernels_in(f"# A first kernel\n\n```{language}\n{code}```\n")
    assert (kernel.language, kernel.code.strip()) == (language, code.strip())


@pytest.mark.parametrize(
    ("code", "lack"),
    [
        ("kernel halve(x) {\n  porter.issue(x);\n}\n", "fewer than 4 lines"),
        (CHISEL.replace("    porter.fence(0);", "    ..."), "left out"),
        ("kernel halve(x) {\n  y = x;\n  y = y;\n  z = y;\n}\n", "names that the manual defines"),
    ],
)
def test_reason_why_block_is_not_a_kernel(code: str, lack: str) -> None:
    text = f"# A first kernel\n\n```chisel\n{code}```\n"
    sections = split_sections(parse(text.encode(), "a.md").elements)
    assert kernels_in(text) == []
    [(section, reason)] = fragments_of(sections, [], [])
    assert section == 0 and lack in reason and reason.startswith("halve is no whole kernel: ")


@pytest.mark.parametrize(
    ("entry", "path", "operator"),
    [
        ("fused_softmax_kernel", (), "softmax"),
        ("run", ("Guide", "Layer normalization"), "layernorm"),
        ("run", ("Flash Attention", "Forward"), "attention"),
        ("matmulTiled", (), "matmul"),
        ("conv2d_fwd", (), "conv"),
        ("row_max", (), "reduction"),
        ("run", ("Copy the results",), ""),
        ("run", ("Overview",), ""),
    ],
)
def test_operator_from_name_and_heading(entry: str, path: tuple[str, ...], operator: str) -> None:
    assert operator_of(entry, path) == operator


def test_kernel_length_is_bounded() -> None:
    many = "\n".join(fenced(CUDA.replace("rms_norm", f"norm_{n}"), "cpp") for n in range(80))
    assert len(kernels_in(many)) == MAX_KERNELS
    assert kernels_in(fenced(CUDA.replace("y[i]", "y[i] = 0;\n" * 3_000 + "y[i]"), "cpp")) == []


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet='ab_.:(){}[]@=;,<>" \ndefkrnl', max_size=300))
def test_arbitrary_code_raises_nothing(code: str) -> None:
    kernels_in(fenced(code.replace("`", "")))


@pytest.mark.parametrize(
    "piece", ["a()", "a(", "a(\n", "def a(", "a b ", ".a ", "a:\n", "<a(", "a[", "a()\n"]
)
def test_arbitrary_code_is_read_in_bounded_time(piece: str) -> None:
    start = time.process_time()
    entry_of(piece * (20_000 // len(piece)))
    assert time.process_time() - start < 3


ABI = """# Orbis ABI

```orbasm
.kernel scale2
.well 8192
  dget [0], [A0], 4096
  dwait
  vld V0, [0]
  vadd V0, V0, V0
  vst [0], V0
  dput [A1], [0], 4096
  dwait
.end
```
"""


def test_own_language_kernel_needs_no_names_of_this_manual() -> None:
    """The instructions may be in another manual of the chip."""

    def found(text: str, own: Collection[str] = ("orbasm",)) -> list[KernelSample]:
        return kernels_of(split_sections(parse(text.encode(), "abi.md").elements), (), (), own)

    [kernel] = found(ABI)
    assert kernel.language == "orbasm" and kernel.code.startswith(".kernel scale2")
    for fragment in (
        ABI.replace(".end\n", ""),
        ABI.replace("  vld V0, [0]\n", "  ...\n"),
        ABI.replace(".kernel scale2\n", ""),
        ABI.replace("orbasm", "toml"),
        ".kernel a\n  nop\n  nop\n  nop\n.end".join(("```orbasm\n", "\n```\n")),
    ):
        assert found(fragment) == []
    assert found(ABI, own=()) == []
