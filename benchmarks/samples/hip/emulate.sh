#!/bin/sh
# Runs every lane of the HIP samples on the CPU and compares with double precision. CLANG: a clang with __bf16 and ext_vector_type.
cd "$(dirname "$0")/../../.." || exit 1
here=benchmarks/samples/hip
out=$(mktemp -d)
run() {
  for arch in __gfx942__ __gfx950__; do
    case "$2 $arch" in *cdna4*gfx942*) continue ;; esac
    echo "== $2 $arch"
    "${CLANG:-clang++}" -std=c++20 -O2 -fdeclspec -w -rtlib=compiler-rt -D$1 -D$arch "-DSAMPLE=\"$PWD/hw_manuals/samples/$2\"" \
      -I $here/host $here/check.cpp -o "$out/check" && "$out/check" || echo FAILED
  done
}
run GEMM amd/bf16-gemm-mfma-double-buffer.hip
run PINGPONG amd/bf16-gemm-ping-pong.hip
run FP8 amd/fp8-gemm-block-scales.hip
run SKINNY amd/skinny-gemm-split-k.hip
run ROWS amd/rmsnorm-and-softmax-rows-dpp.hip
run DECODE amd/paged-decode-split-kv.hip
run DIRECT cdna4/bf16-gemm-direct-to-lds.hip
run ATTENTION cdna4/attention-forward-ping-pong.hip
run MXFP4 cdna4/mxfp4-gemm-scaled-mfma.hip
rm -r "$out"
