"""Builds the CuTe DSL kernels for Hopper ahead of time, for a GPU machine without the DSL.

    python benchmarks/samples/nvidia/cute_build.py FOLDER [gemm] [paged_decode]

Needs nvidia-cutlass-dsl, g++ and the CUDA headers (CUDA_HOME), and no GPU. Writes FOLDER/gemm.so,
some 50 KB, and FOLDER/paged_decode.so, some 300 KB: the kernels and their launchers, which leave
the CUDA runtime's symbols unresolved. `cute_run.py` provides them.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

SAMPLES = Path(__file__).parents[3] / "hw_manuals/samples/hopper"
DECODE = ((16, 8), (64, 8), (64, 1), (32, 4), (16, 16))  # keys a page, queries a head of keys
# Plain C functions, so that ctypes needs no structure of the generated headers.
GEMM_GLUE = """
#include "gemm.h"
extern "C" {
static gemm_Kernel_Module_t module;
void load() { gemm_Kernel_Module_Load(&module); }
int gemm(void* a, void* b, void* c, int m, int n, int k, int blocks, cudaStream_t stream) {
  gemm_Tensor_a_t ta = {a, {m, k}, {k}};
  gemm_Tensor_b_t tb = {b, {n, k}, {k}};
  gemm_Tensor_c_t tc = {c, {m, n}, {n}};
  return cute_dsl_gemm_wrapper(&module, &ta, &tb, &tc, blocks, stream);
}
}
"""
DECODE_GLUE = """
#include "NAME.h"
static NAME_Kernel_Module_t NAME_module;
extern "C" void NAME_load() { NAME_Kernel_Module_Load(&NAME_module); }
extern "C" int NAME(void* query, void* keys, void* values, void* table, void* lengths, void* sums,
                    void* logs, void* out, int batch, int heads, int pages, int most, int parts,
                    int each, float scale, cudaStream_t stream) {
  int64_t row = int64_t(heads) * 128, queries = row * SHARE, marks = int64_t(heads) * parts * SHARE;
  NAME_Tensor_query_t q = {query, {batch, heads}, {queries}};
  NAME_Tensor_keys_t k = {keys, {pages, heads}, {PAGE * row, row}};
  NAME_Tensor_values_t v = {values, {pages, heads}, {PAGE * row, row}};
  NAME_Tensor_table_t t = {table, {batch, most}, {most}};
  NAME_Tensor_lengths_t l = {lengths, {batch}};
  NAME_Tensor_sums_t s = {sums, {batch, heads, parts}, {marks * 128, queries / heads * parts}};
  NAME_Tensor_logs_t g = {logs, {batch, heads, parts}, {marks, int64_t(parts) * SHARE}};
  NAME_Tensor_out_t o = {out, {batch, heads}, {queries}};
  return cute_dsl_NAME_wrapper(&NAME_module, &q, &k, &v, &t, &l, &s, &g, &o, each, scale, stream);
}
"""


def sample(name: str) -> ModuleType:
    """A file of the samples as a module."""
    spec = importlib.util.spec_from_file_location("sample", SAMPLES / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gemm(folder: Path) -> list[str]:
    """Exports the product; the stems of its files."""
    sample("gemm-cute-tma-wgmma.py").compiled().export_to_c(str(folder), "gemm")
    (folder / "gemm_glue.cpp").write_text(GEMM_GLUE, encoding="utf-8")
    return ["gemm"]


def paged_decode(folder: Path) -> list[str]:
    """Exports decoding for some pages and groups of queries; the stems of its files."""
    module, names = sample("paged-decode-cute.py"), []
    for page, share in DECODE:
        name = f"paged_decode_{page}_{share}"
        module.compiled(page, share).export_to_c(str(folder), name)
        glue = DECODE_GLUE.replace("NAME", name)
        glue = glue.replace("SHARE", str(share)).replace("PAGE", str(page))
        (folder / f"{name}_glue.cpp").write_text(glue, encoding="utf-8")
        names.append(name)
    return names


EXPORTS: dict[str, Callable[[Path], list[str]]] = {"gemm": gemm, "paged_decode": paged_decode}


def main(folder: Path, chosen: Sequence[str]) -> None:
    """Compile, export and link."""
    os.environ["CUTE_DSL_ARCH"] = "sm_90a"
    from cutlass.cute.export import aot_config

    folder.mkdir(parents=True, exist_ok=True)
    headers = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    runtime = Path(aot_config.get_libdir()) / "libcuda_dialect_runtime_static.a"
    for library in chosen or EXPORTS:
        files = [f"{stem}{end}" for stem in EXPORTS[library](folder) for end in ("_glue.cpp", ".o")]
        command = ["g++", "-O2", "-shared", "-fPIC", f"-I{headers}", "-o", f"{library}.so"]
        subprocess.run([*command, *files, str(runtime)], cwd=folder, check=True)
        built = folder / f"{library}.so"
        print(built, built.stat().st_size, "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
