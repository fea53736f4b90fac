// out[i] = a * x[i] + y[i] over arrays far larger than the last-level cache: huge pages, first
// touch by the threads that use them, and stores that do not read the line they overwrite.
// The count is a multiple of 8 and pointers come from allocate(). g++ -O3 -fopenmp; needs AVX2.
#include <immintrin.h>
#include <sys/mman.h>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#pragma GCC target("avx2,fma")

constexpr size_t kHuge = size_t(2) << 20;

// Whole huge pages, asked for before the first touch; nothing is written yet, so no node is chosen.
float* allocate(size_t count) {
  size_t bytes = (count * sizeof(float) + kHuge - 1) / kHuge * kHuge;
  void* memory = std::aligned_alloc(kHuge, bytes);
  if (memory != nullptr) madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<float*>(memory);
}

// The same static schedule as the kernel: a page lands on the node of the thread that works on it.
extern "C" void first_touch(float* data, size_t count) {
  const size_t pieces = (count + 8191) / 8192;
#pragma omp parallel for schedule(static)
  for (size_t p = 0; p < pieces; p++) {
    size_t end = (p + 1) * 8192 < count ? (p + 1) * 8192 : count;
    for (size_t i = p * 8192; i < end; i++) data[i] = 0.0f;
  }
}

extern "C" void scale_add(const float* x, const float* y, float a, float* out, size_t count) {
  const size_t pieces = (count + 8191) / 8192;
  const __m256 factor = _mm256_set1_ps(a);
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (size_t p = 0; p < pieces; p++) {
      size_t end = (p + 1) * 8192 < count ? (p + 1) * 8192 : count;
      for (size_t i = p * 8192; i < end; i += 8)
        _mm256_stream_ps(out + i, _mm256_fmadd_ps(factor, _mm256_load_ps(x + i),
                                                  _mm256_load_ps(y + i)));
    }
    _mm_sfence();  // before another thread reads what was streamed
  }
}
