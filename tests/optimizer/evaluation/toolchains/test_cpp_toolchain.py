"""C++ candidates with the real compiler: builds, reports and refusals."""

from __future__ import annotations

import ctypes
import platform
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.isolation.machine import processor, signature
from optimizer.evaluation.toolchains.base import Compiled, EvaluationTarget
from optimizer.evaluation.toolchains.cpp import LIMITS, CppToolchain, RefusedFlag, flags_of

HERE = {"x86_64": "x86-64", "aarch64": "arm"}.get(platform.machine(), platform.machine())
TARGET = EvaluationTarget(HERE, (HERE,), "native", "cpu")
BEGIN = """
#include "kernlore_abi.h"
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {
  const float *__restrict a = (const float *)t[0].data;
  float *__restrict o = (float *)t[1].data;
  int64_t n = t[0].shape[0];
"""
VECTOR = BEGIN + "for (int64_t i = 0; i < n; i++) o[i] = a[i] * 2.0f + 1.0f; return 0; }"
CHAIN = (
    BEGIN
    + "float s = 0; for (int64_t i = 0; i < n; i++) { s = s * a[i] + 1; o[i] = s; } return 0; }"
)
SUM = BEGIN + "float s = 0; for (int64_t i = 0; i < n; i++) s += a[i]; o[0] = s; return 0; }"

pytestmark = [
    pytest.mark.slow(seconds=10),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
]


def build(source: str, workdir: Path, seconds: float = 30.0, **parameters: object) -> Compiled:
    bundle = Bundle({"k.cpp": source}, "k.cpp", "cpp", "kernlore_run", parameters)  # type: ignore[arg-type]
    chain = CppToolchain(limits=replace(LIMITS, seconds=seconds))
    return chain.compile(bundle, TARGET, workdir, ())


def test_vectorised_loop(tmp_path: Path) -> None:
    done = build(VECTOR, tmp_path)
    assert done.ok, done.log
    assert done.loader is not None and done.loader.kind == "c_abi"
    assert getattr(ctypes.CDLL(str(done.loader.path)), done.loader.entry)
    assert int(done.metrics["packed_instructions"]) > 0
    assert done.metrics["vec_missed"] == 0
    assert int(done.kernels["kernlore_run"]["vector_bits"]) >= 128
    assert "loops vectorised: 1" in done.notes[0]


def test_loop_with_dependence_is_not_vectorised(tmp_path: Path) -> None:
    done = build(CHAIN, tmp_path)
    assert done.ok, done.log
    assert done.metrics == {"packed_instructions": 0, "vec_missed": 1}


def test_flag_variants_change_code(tmp_path: Path) -> None:
    (tmp_path / "strict").mkdir()
    (tmp_path / "fast").mkdir()
    (tmp_path / "marked").mkdir()
    strict = build(SUM, tmp_path / "strict")
    fast = build(SUM, tmp_path / "fast", fast_math=True, unroll_loops=True, tile_m=64)
    marked = build("// kernlore-flags: fast_math=true\n" + SUM, tmp_path / "marked")
    assert strict.metrics["packed_instructions"] == 0
    assert int(fast.metrics["packed_instructions"]) > 0
    assert int(marked.metrics["packed_instructions"]) > 0
    assert "-ffast-math" in fast.command and "-funroll-loops" in fast.command


@pytest.mark.parametrize("width, bits", [("256", 256), ("512", 512)])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 registers")
def test_vector_width(tmp_path: Path, width: str, bits: int) -> None:
    done = build(VECTOR, tmp_path, march="x86-64-v4", prefer_vector_width=width)
    assert done.kernels["kernlore_run"]["vector_bits"] == bits


def test_unlisted_flags_are_refused(tmp_path: Path) -> None:
    done = build(VECTOR, tmp_path, march="native -fplugin=evil.so")
    assert not done.ok
    assert "not allowed" in done.log
    bundle = Bundle({"k.cpp": "// kernlore-flags: plugin=x\n"}, "k.cpp", "cpp", "f")
    with pytest.raises(RefusedFlag, match="none of"):
        flags_of(bundle)


def test_error_log_has_no_local_paths(tmp_path: Path) -> None:
    done = build(VECTOR.replace("a[i]", "b[i]"), tmp_path)
    assert not done.ok and done.loader is None
    assert "src/k.cpp:7:" in done.log
    assert str(tmp_path) not in done.log


def test_missing_entry_is_an_error(tmp_path: Path) -> None:
    done = build(VECTOR.replace("KERNLORE_EXPORT", ""), tmp_path)
    assert not done.ok
    assert "undefined symbol: kernlore_run" in done.log


def test_endless_file_is_stopped_at_deadline(tmp_path: Path) -> None:
    # A newer compiler refuses the file at once; this one may read it until the deadline.
    done = build('#include "/dev/zero"\n', tmp_path, seconds=1.0)
    assert not done.ok and done.log
    assert done.seconds < 30


def test_template_bomb_is_stopped(tmp_path: Path) -> None:
    bomb = """
    template <int N, long M> struct F {
      static constexpr long v = F<N-1, M*2>::v + F<N-1, M*2+1>::v;
    };
    template <long M> struct F<0, M> { static constexpr long v = M; };
    long x = F<30, 0>::v;
    """
    done = build(bomb, tmp_path, seconds=2.0)
    assert not done.ok and done.timed_out
    assert "timed out after 2 s" in done.log
    assert done.seconds < 30


def test_c_files_and_headers_of_bundle(tmp_path: Path) -> None:
    files = {
        "k.c": VECTOR.replace("2.0f", "FACTOR").replace(
            '#include "kernlore_abi.h"', '#include "kernlore_abi.h"\n#include "sub/factor.h"'
        ),
        "sub/factor.h": "#define FACTOR 3.0f\n",
    }
    bundle = Bundle(files, "k.c", "cpp", "kernlore_run")
    done = CppToolchain().compile(bundle, TARGET, tmp_path, ())
    assert done.ok, done.log


def test_torch_headers_are_refused(tmp_path: Path) -> None:
    done = build("#include <torch/extension.h>\n", tmp_path)
    assert not done.ok
    assert "does not build" in done.log


def test_other_processors_are_not_available() -> None:
    chain = CppToolchain()
    assert chain.available(TARGET).ok
    other = "neoverse-v2" if HERE == "x86-64" else "x86-64"
    lineage = ("neoverse-v2", "arm") if HERE == "x86-64" else ("x86-64",)
    answer = chain.available(EvaluationTarget(other, lineage, "native"))
    assert not answer.ok
    assert other in answer.reason and "command templates" in answer.hint
    assert not CppToolchain("no-such-g++").available(TARGET).ok


def test_version_names_compiler_and_processor() -> None:
    version = CppToolchain().version()
    assert "native=" in version and version.endswith(f" on {processor()}")


@pytest.mark.parametrize(
    ("cpuinfo", "message"),
    [
        (
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"
            "model name\t: AMD EPYC\n\nprocessor\t: 1\nmodel\t\t: 2\n",
            "AuthenticAMD 25 17",
        ),
        ("processor : 0\nCPU implementer : 0x41\nCPU variant : 0x0\nCPU part : 0xd4f\n",
         "0x41 0xd4f 0x0"),
        ("processor : 0\nhart : 2\n", ""),
    ],
)  # fmt: skip
def test_generations_of_one_processor_name_are_distinguished(cpuinfo: str, message: str) -> None:
    assert signature(cpuinfo) == message


def test_equal_candidates_are_compiled_once(tmp_path: Path) -> None:
    """In a new folder each time, after the first is deleted."""
    chain = CppToolchain()
    results = []
    for place, source in enumerate((VECTOR, VECTOR, CHAIN)):
        folder = tmp_path / str(place)
        folder.mkdir()
        bundle = Bundle({"k.cpp": source}, "k.cpp", "cpp", "kernlore_run", {})
        results.append(chain.compile(bundle, TARGET, folder, ()))
        if not place:
            shutil.rmtree(folder)
    first, again, other = results
    assert again.loader is not None and again.loader.path.is_relative_to(tmp_path / "1")
    assert getattr(ctypes.CDLL(str(again.loader.path)), again.loader.entry)
    assert (again.metrics, again.kernels, again.log) == (first.metrics, first.kernels, first.log)
    assert not (tmp_path / "1" / "src").exists() and (tmp_path / "2" / "src").is_dir()
    assert other.metrics != first.metrics


def test_failed_compilation_is_repeated(tmp_path: Path) -> None:
    chain = CppToolchain()
    bundle = Bundle({"k.cpp": "int x = y;"}, "k.cpp", "cpp", "kernlore_run", {})
    for _ in range(2):
        shutil.rmtree(tmp_path / "src", ignore_errors=True)
        assert not chain.compile(bundle, TARGET, tmp_path, ()).ok
        assert (tmp_path / "src").is_dir()
