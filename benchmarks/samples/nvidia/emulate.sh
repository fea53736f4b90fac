#!/bin/sh
# Runs the threads of two CUDA samples on the CPU and compares with float64. CLANG: a clang with C++20.
cd "$(dirname "$0")/../../.." || exit 1
here=benchmarks/samples/nvidia
out=$(mktemp -d)
run() {
  sed -e '/^#include/d' -e '/^#define INLINE/d' -e '/^\/\/ PTX$/,/^\/\/ End of PTX$/d' -e '/fence.mbarrier_init/d' \
    -e 's/extern __shared__ \([a-z0-9_]*\) \([a-z]*\)\[\];/\1* \2 = (\1*)emu_dynamic;/' -e "/$3/,\$d" "hw_manuals/samples/$2" >"$out/sample.h"
  "${CLANG:-clang++}" -std=c++20 -O2 -w -pthread -D$1 "-DSAMPLE=\"$out/sample.h\"" -I $here/host $here/check.cpp -o "$out/check" \
    && "$out/check" || echo FAILED
}
run ATTENTION blackwell/attention-forward-tcgen05.cu '^\/\/ \[heads\]\[length\]'
run TOP_K nvidia/top-k-radix-select.cu '^extern "C" int'
rm -r "$out"
