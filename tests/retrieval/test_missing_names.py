"""Names unknown to a compiler, and their nearest definitions in the documents."""

from __future__ import annotations

import pytest

from retrieval.compose.hints import names_asked
from retrieval.knowledge_base import Retriever
from retrieval.request import RetrieveRequest
from retrieval.search.names import language_named, missing_in_draft, missing_names
from tests.fixtures import Store

MANUAL = """\
# Programming the chip

## Compile errors of this chip

A compile error names an identifier that is undefined or not declared in its scope: include the
header, and check the target of the build.

## Conversions

| Function | Syntax | Meaning | Limits |
| --- | --- | --- | --- |
| `__float2bfloat16_rn` | `__float2bfloat16_rn(a)` | Rounds to even. | Back: `__bfloat162float`. |
| `__half22float2` | `__half22float2(a)` | Unpacks. | |

## Shuffles

| Function | Syntax | Meaning | Limits |
| --- | --- | --- | --- |
| `__shfl_down_sync` | `__shfl_down_sync(mask, v, delta)` | Reads another lane. | |

## Products

| Function | Syntax | Meaning | Limits |
| --- | --- | --- | --- |
| `tl.dot_scaled` | `tl.dot_scaled(a, sa, b, sb)` | A product with scales. | |
"""


@pytest.fixture(scope="module")
def retriever(module_store: Store) -> Retriever:
    module_store.ingest("manual.md", MANUAL, hardware=("h100",))
    return module_store.retriever()


@pytest.mark.parametrize(
    ("log", "near", "section"),
    [
        (
            'softmax.cu(41): error: identifier "__nv_bfloat162float" is undefined',
            "__bfloat162float",
            "Conversions",
        ),
        (
            "k.hip:3:5: error: use of undeclared identifier '__shfl_down'",
            "__shfl_down_sync",
            "Shuffles",
        ),
        (
            "a.cpp:3:9: error: \u2018__half2float2\u2019 was not declared in this scope",
            "__half22float2",
            "Conversions",
        ),
        ("NameError: name 'dot_scale' is not defined", "tl.dot_scaled", "Products"),
        (
            "AttributeError: module 'triton.language' has no attribute 'dot_scale'",
            "tl.dot_scaled",
            "Products",
        ),
    ],
)
def test_definition_of_nearest_name_is_first(
    retriever: Retriever, log: str, near: str, section: str
) -> None:
    answer = retriever.retrieve(RetrieveRequest(hardware="h100", log=log))
    assert answer.excerpts[0].section.endswith(section)
    assert near in answer.excerpts[0].text and near in answer.context
    (hint,) = answer.hints
    assert "is not a name that the documents about NVIDIA H100 know; near names: " in hint
    assert hint.partition("near names: ")[2].rstrip(".").split(", ")[0] == near


def test_own_name_without_near_names_gives_hint(retriever: Retriever) -> None:
    log = "error: 'nope' was not declared in this scope"
    (hint,) = retriever.retrieve(RetrieveRequest(hardware="h100", log=log)).hints
    assert hint.startswith("`nope` is not a name") and "none is near it" in hint


@pytest.mark.parametrize(
    ("log", "names"),
    [
        ("error: no member named 'foo_bar' in namespace 'cute'", ["foo_bar"]),
        ("error: unknown type name 'bf16x2'", ["bf16x2"]),
        ("error: 'lane' undeclared (first use in this function)", ["lane"]),
        ("ImportError: cannot import name 'libdevice' from 'triton.language'", ["libdevice"]),
        ("k.s:4: unknown instruction: vfma.q", ["vfma.q"]),
        ("error: expected ';' after 'lane'", []),
        ("a.o: undefined reference to `cublasCreate_v2'", []),
        ("AttributeError: 'NoneType' object has no attribute 'shape'", []),
        ("AttributeError: module 'torch' has no attribute 'softmaxx'", []),
    ],
)
def test_unknown_names_of_a_log(log: str, names: list[str]) -> None:
    assert [entry.name for entry in missing_names(log, ())] == names


def test_python_module_names_its_language() -> None:
    assert language_named("module 'triton.language' has no attribute 'foo'") == "triton"
    assert language_named("module 'cutlass.cute' has no attribute 'foo'") == "cute"
    assert language_named("module 'torch' has no attribute 'foo'") is None
    assert language_named('File "/venv/triton/runtime/jit.py", line 345') == "triton"
    assert language_named("remark: VGPRs: 63 [-Rpass-analysis=kernel-resource-usage]") == "hip"


@pytest.mark.parametrize(
    "line",
    [
        'error: identifier "strange_name" is undefined',
        "error: use of undeclared identifier 'strange_name'",
        "error: unknown type name 'strange_name'",
        "error: no template named 'strange_name'",
        "error: no member named 'strange_name' in namespace",
        "error: 'strange_name' was not declared in this scope",
        "error: 'strange_name' undeclared (first use in this function)",
        "error: 'strange_name' is not a member of 'wmma'",
        "NameError: name 'strange_name' is not defined",
        "NameError('strange_name is not defined')\nstrange_name is not defined",
        "AttributeError: module 'triton.language' has no attribute 'strange_name'",
        "ImportError: cannot import name 'strange_name' from 'cutlass'",
        "error: Unknown instruction 'strange_name'",
        "error: UNRECOGNIZED opcode: strange_name",
        "error: undefined function name strange_name",
    ],
)
def test_every_wording_of_an_unknown_name_is_read(line: str) -> None:
    assert [entry.name for entry in missing_names(f"nothing\n{line}", [])] == ["strange_name"]


ORDINARY = """
affected sporadic workaround rewritten AOT GEMM GEMMs DRAM SIMD NaN NaNs GiB KiB MoE RoPE SwiGLU
FP8 BF16 INT4 TF32 MXFP8 NVFP4 FP4 E4M3 E5M2 E2M1 UE8M0 float32 int8 uint8 bfloat16 s8 f16x2 HiF8
L2 K128 N256 x86 HBM4 HBM3E LPDDR5X GDDR7 PCIe5 gen5 log2 exp2 conv2d w4a16 TFLOPs TOPs DVFS GM
e.g. i.e. vs. split-K TMA-based block-scaled row-major weight-only warp-specialised 64-bit 2D
16x16x128 128x64 compute-bound out-of-bounds latency occupancy granularity prefetch saturate OOM
dGPU kernel's 2:4 FIFO ROCm 13.4 v3.12 TFLOP/s
"""
NAMES = """
XE_BDPAS_TT CUTE_ENABLE_XE_BLOCK_2D_ASSERT cublasLtMatmul CUBLASLT_ALGO_CONFIG_ID tcgen05.mma
cp.async.bulk mbarrier.complete_tx v_wmma_i32_16x16x64_iu8 s_wait_tensorcnt global_load_lds
__cluster_dims__ hipLaunchKernelEx pltpu.get_tpu_info jax.sharding use_abstract_mesh
xla_tpu_dvfs_p_state GGML_METAL_TENSOR_ENABLE simdgroup_matrix matmul2d_descriptor asc_vf_call
SetCtrlSpr LnAlgo::INTRINSIC std::max tl.dot_scaled torch.compile sm_107a gfx1250 MI455X H200
TPU7x hipBLASLt FlashInfer TensorRT cuBLASDx KernelScheduleAuto MainloopIntelXeXMX16MixedPrecision
is_matmul_supported NCC_EVRF031 Xe3p CUDAExtension
"""


@pytest.mark.parametrize("word", ORDINARY.split())
def test_ordinary_words_are_no_names(word: str) -> None:
    assert names_asked(f"Is the {word} of it known?") == []


@pytest.mark.parametrize("name", NAMES.split())
def test_identifiers_and_products_are_names(name: str) -> None:
    assert names_asked(f"What does {name} need, and why?") == [name]


@pytest.mark.parametrize(("name", "hinted"), [("dot_product_scales", False), ("dot_frobs", True)])
def test_hint_at_identifier_whose_parts_no_excerpt_has(
    retriever: Retriever, name: str, hinted: bool
) -> None:
    answer = retriever.retrieve(RetrieveRequest(hardware="h100", query=f"What does {name} do?"))
    assert any(f"contains '{name}'" in hint for hint in answer.hints) is hinted


@pytest.mark.parametrize(
    "log",
    [
        "k.cpp:2:21: error: 'expf_fast' is not a member of 'std'; did you mean 'exp2f'?",
        'k.cu(2): error: namespace "std" has no member "expf_fast"',
        "k.cpp:2:8: error: no member named 'expf_fast' in namespace 'std'",
    ],
)
def test_names_of_a_draft_that_its_compiler_reports_have_their_line(log: str) -> None:
    draft = "float f(float x) {\n  return std::expf_fast(x);\n}\n"
    assert [(entry.name, entry.line) for entry in missing_in_draft(draft, log, [])] == [
        ("expf_fast", 2)
    ]
    assert missing_in_draft("float f();", log, []) == []
