"""Messages of the real compilers match the signature index."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.cpp import CppToolchain
from optimizer.evaluation.toolchains.cuda import Nvcc, find_nvcc
from retrieval.diagnose.signatures import SignatureIndex, load_signatures

pytestmark = pytest.mark.slow(seconds=8)

INDEX = SignatureIndex(load_signatures())
X86 = EvaluationTarget("x86-64", ("x86-64",), "native", "cpu")
HOPPER = EvaluationTarget("h100", ("h100", "hopper", "nvidia"), "90")
HEAD = """
#include "kernlore_abi.h"
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {
"""
CPP = {
    "undeclared": ("foo(1); return 0; }", "compile_error"),
    "missing header": ('return 0; }\n#include "nowhere.h"\n', "compile_error"),
    "syntax": ("return 0 }", "compile_error"),
    "wrong type": ("float *p = 1.0f; return p; }", "compile_error"),
    "no member": ("return t->size; }", "compile_error"),
    "no function": ("float f = sin(t); return 0; }\n#include <cmath>\n", "compile_error"),
    "no template": ("return std::max(1, 2.0); }\n", "compile_error"),
    "unresolved": ("extern int helper(); return helper(); }\n", "link_error"),
    "inline assembly": ('asm("vfoo %ymm0"); return 0; }', "compile_error"),
    "static assertion": ('static_assert(sizeof(int) == 8, "no"); return 0; }', "compile_error"),
    "intrinsic of another target": (
        'return 0; }\n#include <immintrin.h>\n#pragma GCC target("no-avx512f")\n'
        "__m512 z(__m512 a) { return _mm512_add_ps(a, a); }\n",
        "compile_error",
    ),
    "not exported": ("return 0; }\n", "link_error"),
}
CUDA = {
    "undeclared": ("foo(1); return 0; }", "compile_error"),
    "shared memory": (
        "return 0; }\n__global__ void k(float *o) { __shared__ float s[65536]; "
        "s[threadIdx.x] = o[0]; __syncthreads(); o[threadIdx.x] = s[threadIdx.x ^ 1]; }\n",
        "shared_memory_limit",
    ),
    "unresolved on the device": (
        "return 0; }\n__device__ float f(float);\n"
        "__global__ void k(float *o) { o[0] = f(o[1]); }\n",
        "link_error",
    ),
    "instruction of another target": (
        "return 0; }\n__global__ void k() "
        '{ asm volatile("tcgen05.fence::before_thread_sync;"); }\n',
        "compile_error",
    ),
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 messages")
@pytest.mark.parametrize("case", CPP)
def test_cpp_errors_have_signals(tmp_path: Path, case: str) -> None:
    body, signal = CPP[case]
    source = HEAD + body
    entry = "another_entry" if case == "not exported" else "kernlore_run"
    bundle = Bundle({"k.cpp": source}, "k.cpp", "cpp", entry)
    done = CppToolchain().compile(bundle, X86, tmp_path, ())
    assert not done.ok
    assert _first(done.log) == signal, done.log


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
@pytest.mark.parametrize("case", CUDA)
def test_cuda_errors_have_signals(tmp_path: Path, case: str) -> None:
    body, signal = CUDA[case]
    bundle = Bundle({"k.cu": HEAD + body}, "k.cu", "cuda", "kernlore_run")
    done = Nvcc().compile(bundle, HOPPER, tmp_path, ())
    assert not done.ok
    assert _first(done.log) == signal, done.log


def test_clean_log_has_no_signature(tmp_path: Path) -> None:
    bundle = Bundle({"k.cpp": HEAD + "return 0; }"}, "k.cpp", "cpp", "kernlore_run")
    done = CppToolchain().compile(bundle, X86, tmp_path, ())
    assert done.ok
    assert INDEX.match(done.log) == []


def _first(log: str) -> str:
    found = INDEX.match(log)
    return found[0].signature.signal if found else "nothing known"
