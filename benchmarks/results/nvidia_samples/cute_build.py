"""Builds the CuTe DSL product for Hopper ahead of time, for a GPU machine without the DSL.

    python benchmarks/results/nvidia_samples/cute_build.py FOLDER [SAMPLE]

Needs nvidia-cutlass-dsl, g++ and the CUDA headers (CUDA_HOME), and no GPU. Writes FOLDER/gemm.so,
some 50 KB, which has the kernel and its launcher and leaves the CUDA runtime's symbols to whoever
loads it. `cute_run.py` beside this file does.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

SAMPLE = Path(__file__).parents[3] / "hw_manuals/samples/hopper/gemm-cute-tma-wgmma.py"
# Plain C functions, so that ctypes needs no structure of the generated header.
GLUE = """
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


def main(folder: Path, sample: Path) -> None:
    """Compile, export and link."""
    os.environ["CUTE_DSL_ARCH"] = "sm_90a"
    from cutlass.cute.export import aot_config

    spec = importlib.util.spec_from_file_location("sample", sample)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    folder.mkdir(parents=True, exist_ok=True)
    module.compiled().export_to_c(str(folder), "gemm")
    (folder / "glue.cpp").write_text(GLUE, encoding="utf-8")
    headers = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    runtime = Path(aot_config.get_libdir()) / "libcuda_dialect_runtime_static.a"
    command = ["g++", "-O2", "-shared", "-fPIC", f"-I{headers}"]
    command += ["-o", "gemm.so", "glue.cpp", "gemm.o", str(runtime)]
    subprocess.run(command, cwd=folder, check=True)
    print(folder / "gemm.so", (folder / "gemm.so").stat().st_size, "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else SAMPLE)
