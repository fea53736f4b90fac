// Rates of warpgroup matrix instructions by type, and how many bits their sums keep.
#include <cmath>
#include <cstring>

#include "../nvidia/device.cuh"

constexpr int REPEATS = 9, LOOPS = 2000, PER_LOOP = 4;

// A descriptor without swizzle: core matrices of 8 rows of 16 bytes, two along K, then along M or N.
__device__ uint64_t descriptor(const void *shared) {
  const uint64_t at = __cvta_generic_to_shared(shared);
  return (at & 0x3ffff) >> 4 | uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32;
}

#define TEN(p) p "0, " p "1, " p "2, " p "3, " p "4, " p "5, " p "6, " p "7, " p "8, " p "9, "
#define SUMS                                                                               \
  "{" TEN("d") TEN("d1") TEN("d2") TEN("d3") TEN("d4") TEN("d5") TEN("d6") TEN("d7")       \
  TEN("d8") TEN("d9") TEN("d10") TEN("d11") "d120, d121, d122, d123, d124, d125, d126, d127}"

// 64 x 256 x K per instruction, four in a group, one group in flight behind the newest.
#define RATE(NAME, INSTRUCTION, TYPE, REST)                                                   \
  __global__ void __launch_bounds__(128, 1) NAME(uint32_t fill, int loops, long long *took, uint32_t *out) { \
    __shared__ alignas(1024) uint32_t a[512], b[2048];                                        \
    for (int n = threadIdx.x; n < 512; n += 128) a[n] = fill;                                 \
    for (int n = threadIdx.x; n < 2048; n += 128) b[n] = fill;                                \
    asm volatile("fence.proxy.async;" ::: "memory");                                          \
    __syncthreads();                                                                          \
    const uint64_t left = descriptor(a), right = descriptor(b);                               \
    long long begin, end;                                                                     \
    uint32_t last;                                                                            \
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");                           \
    asm volatile("{ .reg ." TYPE " d<128>; .reg .pred p, q; .reg .s32 n;\n"                   \
                 "mov.s32 n, %1; setp.ne.s32 p, 0, 0;\n"                                      \
                 "wgmma.fence.sync.aligned;\n"                                                \
                 "again:\n"                                                                   \
                 INSTRUCTION " " SUMS ", %2, %3, p" REST ";\n setp.eq.s32 p, 0, 0;\n"          \
                 INSTRUCTION " " SUMS ", %2, %3, p" REST ";\n"                                \
                 INSTRUCTION " " SUMS ", %2, %3, p" REST ";\n"                                \
                 INSTRUCTION " " SUMS ", %2, %3, p" REST ";\n"                                \
                 "wgmma.commit_group.sync.aligned;\n"                                         \
                 "wgmma.wait_group.sync.aligned 1;\n"                                         \
                 "sub.s32 n, n, 1; setp.gt.s32 q, n, 0; @q bra again;\n"                      \
                 "wgmma.wait_group.sync.aligned 0;\n"                                         \
                 "mov.b32 %0, d127; }"                                                        \
                 : "=r"(last) : "r"(loops), "l"(left), "l"(right) : "memory");                \
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");                             \
    out[blockIdx.x * 128 + threadIdx.x] = last;                                               \
    if (blockIdx.x == 0 && threadIdx.x == 0) *took = end - begin;                             \
  }

RATE(half, "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16", "f32", ", 1, 1, 0, 0")
RATE(bfloat16, "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", "f32", ", 1, 1, 0, 0")
RATE(tf32, "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32", "f32", ", 1, 1")
RATE(fp8, "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3", "f32", ", 1, 1")
RATE(int8, "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8", "b32", "")

template <typename Kernel>
void rate(const char *per_cycle, const char *per_second, Kernel kernel, int depth, uint32_t fill) {
  const int blocks = properties().multiProcessorCount;
  static long long *took = device_array<long long>(1);
  static uint32_t *out = device_array<uint32_t>(size_t(blocks) * 128);
  const double work = 2.0 * 64 * 256 * depth * PER_LOOP * LOOPS;
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    const double seconds = seconds_of([&] { kernel<<<blocks, 128>>>(fill, LOOPS, took, out); });
    report(per_cycle, work / double(fetched(took)));
    report(per_second, work * blocks / seconds);
  }
}

// The instruction of earlier chips: 16 x 8 x 16 by one warp, eight sums in flight.
__global__ void __launch_bounds__(512, 1) warp_products(long long *took, float *out) {
  float d[8][4] = {};
  const uint32_t x = 0x3c003c00, y = 0x38003800;
  long long begin, end;
  __syncthreads();
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");
#pragma unroll 1
  for (int n = 0; n < 256; n++)
#pragma unroll
    for (int c = 0; c < 8; c++)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};"
                   : "+f"(d[c][0]), "+f"(d[c][1]), "+f"(d[c][2]), "+f"(d[c][3]) : "r"(x), "r"(y));
  __syncthreads();
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
  for (int c = 0; c < 8; c++) out[threadIdx.x] += d[c][0];
  if (threadIdx.x == 0) *took = end - begin;
}
__global__ void __launch_bounds__(512, 1) warp_products64(long long *took, double *out) {
  double d[8][2] = {};
  const double x = 1.0, y = 0.5;
  long long begin, end;
  __syncthreads();
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");
#pragma unroll 1
  for (int n = 0; n < 256; n++)
#pragma unroll
    for (int c = 0; c < 8; c++)
      asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                   : "+d"(d[c][0]), "+d"(d[c][1]) : "d"(x), "d"(y));
  __syncthreads();
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
  for (int c = 0; c < 8; c++) out[threadIdx.x] += d[c][0];
  if (threadIdx.x == 0) *took = end - begin;
}

// -- sums: 64 x 8 products with one non-zero term, added to a sum that is larger by 2^n

#define ONE_TERM(NAME, INSTRUCTION, REST)                                                     \
  __global__ void NAME(uint32_t term_a, uint32_t term_b, float sum, float *out) {             \
    __shared__ alignas(1024) uint32_t a[512], b[64];                                          \
    for (int n = threadIdx.x; n < 512; n += 128) a[n] = 0;                                    \
    for (int n = threadIdx.x; n < 64; n += 128) b[n] = term_b;                                \
    __syncthreads();                                                                          \
    if (threadIdx.x < 64) a[threadIdx.x / 8 * 64 + threadIdx.x % 8 * 4] = term_a;             \
    asm volatile("fence.proxy.async;" ::: "memory");                                          \
    __syncthreads();                                                                          \
    float d[4] = {sum, sum, sum, sum};                                                        \
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                   \
    asm volatile(INSTRUCTION " {%0, %1, %2, %3}, %4, %5, 1" REST ";"                          \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                             \
                 : "l"(descriptor(a)), "l"(descriptor(b)));                                   \
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"          \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");                 \
    if (threadIdx.x == 0) *out = d[0];                                                        \
  }
ONE_TERM(sum_of_half, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", ", 1, 1, 0, 0")
ONE_TERM(sum_of_fp8, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", ", 1, 1")
ONE_TERM(sum_of_tf32, "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", ", 1, 1")

// Bits of a sum, the leading one included: a term of 2^exponent still changes a sum of that many.
template <typename Kernel>
void kept_bits(const char *name, Kernel kernel, uint32_t term_a, uint32_t term_b, int exponent) {
  static float *out = device_array<float>(1);
  kernel<<<1, 128>>>(term_a, term_b, 0.0f, out);
  const float alone = fetched(out);
  if (alone != std::ldexp(1.0f, exponent)) {
    char reason[80];
    snprintf(reason, sizeof reason, "a single term gives %g, expected 2^%d", alone, exponent);
    return report_failure(name, reason);
  }
  int bits = 0;
  for (int n = 1; n <= 30; n++) {
    const float sum = std::ldexp(1.0f, exponent + n);
    kernel<<<1, 128>>>(term_a, term_b, sum, out);
    if (fetched(out) != sum) bits = n + 1;
  }
  report(name, bits);
}

int main() {
  rate("wgmma_half_per_cycle", "wgmma_half_rate", half, 16, 0x30003000);
  rate("wgmma_bfloat16_per_cycle", "wgmma_bfloat16_rate", bfloat16, 16, 0x3e003e00);
  rate("wgmma_tf32_per_cycle", "wgmma_tf32_rate", tf32, 8, 0x3e000000);
  rate("wgmma_fp8_per_cycle", "wgmma_fp8_rate", fp8, 32, 0x20202020);
  rate("wgmma_int8_per_cycle", "wgmma_int8_rate", int8, 32, 0x01010101);
  long long *took = device_array<long long>(1);
  double *out = device_array<double>(512);
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    warp_products<<<1, 512>>>(took, (float *)out);
    report("mma_half_per_cycle", 2.0 * 16 * 8 * 16 * 8 * 256 * 16 / double(fetched(took)));
    warp_products64<<<1, 512>>>(took, out);
    report("mma_fp64_per_cycle", 2.0 * 8 * 8 * 4 * 8 * 256 * 16 / double(fetched(took)));
  }
  kept_bits("wgmma_half_sum_bits", sum_of_half, 0x0400, 0x04000400, -28);
  kept_bits("wgmma_tf32_sum_bits", sum_of_tf32, 0x39800000, 0x39800000, -24);
  kept_bits("wgmma_fp8_sum_bits", sum_of_fp8, 0x08, 0x08080808, -12);
  CHECK(cudaGetLastError());
}
