#!/bin/sh
# Compiles the HIP samples for gfx942 and gfx950 with any clang that has the AMDGPU target: the host pass of hipcc, then the
# device pass, whose resource report is printed.
# Without ROCm: the header in device/ stands in for <hip/hip_runtime.h>. CLANG names the compiler.
cd "$(dirname "$0")/../../.." || exit 1
here=benchmarks/samples/hip
for file in hw_manuals/samples/amd/*.hip hw_manuals/samples/cdna4/*.hip; do
  for arch in gfx942 gfx950; do
    case "$file $arch" in *cdna4*gfx942) continue ;; esac
    echo "== $file $arch"
    set -- -x hip --offload-arch=$arch -nogpulib -nogpuinc -fdeclspec -O3 -std=c++17 -I $here/device
    "${CLANG:-clang++}" "$@" --offload-host-only -c -o /dev/null "$file" || echo FAILED
    "${CLANG:-clang++}" "$@" --offload-device-only -S -o - "$file" | grep -E '^ +(- )?\.(name|vgpr_count|agpr_count|vgpr_spill_count|group_segment_fixed_size): +[a-z0-9]' | grep -v 'name: *\(A\|B\)$'
  done
done
