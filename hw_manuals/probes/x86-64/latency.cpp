// Cycles from an instruction to a dependent one. A cycle is the time of a dependent addition.
#include "cpu.h"

constexpr int REPEATS = 7, LOOPS = 4'000, N = 64;

#define CHAIN(PROBE, TEXT, TYPE, CONSTRAINT, FIRST, OTHER)                           \
  for (int repeat = 0; repeat < REPEATS; repeat++) {                                 \
    TYPE x = FIRST, y = OTHER;                                                       \
    report(PROBE, cycles_of([&] {                                                    \
             for (int n = 0; n < LOOPS; n++)                                         \
               asm volatile(".rept 64\n" TEXT "\n.endr" : "+" CONSTRAINT(x) : CONSTRAINT(y)); \
           }, double(LOOPS) * N));                                                   \
  }

static bool has(const char *probe, bool supported, const char *feature) {
  char reason[80];
  snprintf(reason, sizeof reason, "the processor has no %s", feature);
  if (!supported) report_failure(probe, reason);
  return supported;
}

int main() {
  Waiting waiting;
  for (int repeat = 0; repeat < REPEATS; repeat++) report("core_clock", 1 / cycle_seconds());
  CHAIN("cpu_multiply_latency", "imul %1, %0", uint64_t, "r", 3, 5)
  CHAIN("cpu_add_latency", "vaddss %1, %0, %0", float, "x", 1, 0.5f)
  CHAIN("cpu_product_latency", "vmulss %1, %0, %0", float, "x", 1, 1.0f)
  if (has("cpu_fma_latency", __builtin_cpu_supports("fma"), "FMA"))
    CHAIN("cpu_fma_latency", "vfmadd231ps %1, %1, %0", __m256, "x", _mm256_set1_ps(1), _mm256_set1_ps(0.5f))
  CHAIN("cpu_divide_latency", "vdivss %1, %0, %0", float, "x", 1, 1.0001f)
  CHAIN("cpu_sqrt_latency", "vsqrtss %0, %0, %0", float, "x", 3, 1)
  CHAIN("cpu_shuffle_lanes_latency", "vpermps %0, %1, %0", __m256, "x", _mm256_set1_ps(1), __m256(_mm256_set1_epi32(1)))
  uint64_t memory[2] = {}, *place = memory;
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    uint64_t x = 0;
    report("store_forwarding_latency", cycles_of([&] {
             for (int n = 0; n < LOOPS; n++)
               asm volatile(".rept 64\n mov %0, (%1)\n mov (%1), %0\n .endr" : "+r"(x) : "r"(place) : "memory");
           }, double(LOOPS) * N));
    report("locked_add_latency", cycles_of([&] {
             for (int n = 0; n < LOOPS; n++)
               asm volatile(".rept 64\n lock xadd %0, (%1)\n .endr" : "+r"(x) : "r"(place) : "memory");
           }, double(LOOPS) * N));
  }
  // A branch on random bits against the same loop on equal ones.
  std::vector<uint8_t> equal(1 << 20, 0), random(1 << 20);
  std::mt19937 draw(7);
  for (uint8_t &bit : random) bit = draw() & 1;
  const auto branches = [](const std::vector<uint8_t> &bits) {
    uint64_t sum = 0;
    for (uint8_t bit : bits)
      asm volatile("test %1, %1\n jz 1f\n add $3, %0\n 1:" : "+r"(sum) : "r"(bit) : "cc");
  };
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    const double easy = cycles_of([&] { branches(equal); }, equal.size());
    const double hard = cycles_of([&] { branches(random); }, random.size());
    report("mispredicted_branch_cycles", 2 * (hard - easy));
  }
  char *array = pages(256 << 20);
  for (int repeat = 0; repeat < REPEATS; repeat++) report("cpu_l1_load_latency", load_cycles(array, 16 << 10, 20'000));
  for (int repeat = 0; repeat < REPEATS; repeat++) report("cpu_l2_load_latency", load_cycles(array, 256 << 10, 20'000));
  for (int repeat = 0; repeat < REPEATS; repeat++) report("cpu_l3_load_latency", load_cycles(array, 6 << 20, 100'000));
  link_lines(array, 256 << 20);
  void **at = (void **)array;
  for (int repeat = 0; repeat < REPEATS; repeat++) {  // goes on along the cycle, so no line is met twice
    constexpr int STEPS = 100'000;
    const double began = now();
    for (int n = 0; n < STEPS; n++) asm volatile("mov (%0), %0" : "+r"(at)::"memory");
    report("cpu_memory_load_latency", (now() - began) / STEPS);
  }
}
