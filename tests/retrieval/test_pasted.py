"""The kind of a pasted text is recognised."""

from __future__ import annotations

import pytest

from kb.errors import InvalidRequest
from retrieval.pasted import pasted, with_text

TRITON = "@triton.jit\ndef kernel(x_ptr, n):\n    for i in range(4):\n        x = tl.load(x_ptr)\n"
CUDA = "#include <cuda.h>\n__global__ void k(float* a) {\n  a[threadIdx.x] = 1;\n}\n"
TRACE = 'Traceback (most recent call last):\n  File "a.py", line 3\nRuntimeError: CUDA error\n'


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("query", "Why is my kernel slow on an H100?"),
        ("query", "overlap global loads with matrix instructions"),
        ("query", "What does the error C7514 mean?"),
        ("query", "bank conflict"),
        ("signal", " bank_conflict\n"),
        ("metrics", "dram__throughput.avg.pct 91\nsm__throughput.avg.pct = 20 %"),
        ("metrics", '{"dram_throughput_pct": 91}'),
        ("log", "ptxas error : Entry function uses too much shared data (0x41000 bytes)"),
        ("log", "triton.runtime.errors.OutOfResources: out of resource: shared memory"),
        ("log", TRACE),
        ("log", TRITON + TRACE),
        ("log", CUDA + "\nCUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: too many blocks in a launch\n"),
        ("log", "hipErrorOutOfMemory\n\n" + TRITON),
        ("log", "a plain line of a tool\n" * 50),
        ("draft", TRITON),
        ("draft", CUDA),
        ("draft", CUDA + '  if (failed) print("out of memory");\n'),
    ],
)
def test_kind_of_a_pasted_text(field: str, text: str) -> None:
    assert pasted(text)[0] == field


def test_metrics_are_read_from_pairs() -> None:
    for text in ("a.pct 91\nb: 20 %", "a.pct 91, b: 20 %"):
        assert pasted(text) == ("metrics", {"a.pct": "91", "b": "20"})


def test_code_alone_becomes_a_draft() -> None:
    assert with_text({"hardware": "h100"}, CUDA.replace("k(", "row_softmax_kernel(")) == {
        "hardware": "h100",
        "draft": CUDA.replace("k(", "row_softmax_kernel("),
        "task": "speed_up",
        "language": "cuda",
        "op": "softmax",
    }
    assert with_text({}, TRITON)["query"] == "kernel"
    assert with_text({"signal": "memory_bound"}, TRITON).keys() == {"signal", "draft"}


SAXPY = """__global__ void saxpy(float* y, const float* x, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}"""
ROW_SUM = """@triton.jit
def k(x, out, n: tl.constexpr):
    a = tl.load(x + tl.arange(0, n))
    tl.store(out, tl.sum(a, 0))"""


def test_code_without_the_name_of_an_operator_is_known_by_what_it_computes() -> None:
    about = with_text({}, SAXPY)
    assert (about["op"], about["language"], about["draft"]) == ("elementwise", "cuda", SAXPY)
    assert "op" not in with_text({}, ROW_SUM)


def test_pasted_text_that_repeats_given_field_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="log is given too"):
        with_text({"log": "error: a"}, TRACE)


@pytest.mark.parametrize("between", ["\n", " ", "a["])
def test_kind_of_hostile_text_is_found_in_linear_time(between: str) -> None:
    between *= 200_000 // len(between)
    assert with_text({}, f"error: a{between}b") == {"log": f"error: a{between}b"}
    code = with_text({}, f"import triton\nimport torch\ndef a{between}b():\n")
    assert code["draft"]
