#!/bin/sh
# Compiles the HIP samples for gfx942 and gfx950 with any clang that has the AMDGPU target, and prints the resource report.
# Without ROCm: the header in device/ stands in for <hip/hip_runtime.h>. CLANG names the compiler.
cd "$(dirname "$0")/../../.." || exit 1
here=benchmarks/samples/hip
for file in hw_manuals/samples/amd/*.hip hw_manuals/samples/cdna4/*.hip; do
  for arch in gfx942 gfx950; do
    case "$file $arch" in *cdna4*gfx942) continue ;; esac
    echo "== $file $arch"
    "${CLANG:-clang++}" -x hip --offload-device-only -nogpulib -nogpuinc -fdeclspec -O3 -std=c++17 -I $here/device \
      --offload-arch=$arch -S -o - "$file" | grep -E '^ +(- )?\.(name|vgpr_count|agpr_count|vgpr_spill_count|group_segment_fixed_size): +[a-z0-9]' | grep -v 'name: *\(A\|B\)$'
  done
done
