// Alignment faults, rounding, conversions and conventions of x86-64.
#include <cfloat>
#include <cmath>
#include <csetjmp>
#include <csignal>
#include <sys/syscall.h>

#include "cpu.h"

static sigjmp_buf back;
static void on_fault(int) { siglongjmp(back, 1); }

template <typename Access> static bool faults(Access access) {
  struct sigaction handler {}, before_segv, before_bus, before_ill;
  handler.sa_handler = on_fault;
  handler.sa_flags = SA_NODEFER;
  sigaction(SIGSEGV, &handler, &before_segv);
  sigaction(SIGBUS, &handler, &before_bus);
  sigaction(SIGILL, &handler, &before_ill);
  volatile bool faulted = true;
  if (sigsetjmp(back, 1) == 0) {
    access();
    faulted = false;
  }
  sigaction(SIGSEGV, &before_segv, nullptr);
  sigaction(SIGBUS, &before_bus, nullptr);
  sigaction(SIGILL, &before_ill, nullptr);
  return faulted;
}

alignas(4096) static char memory[8192];

// The least power of two whose multiples an access takes without a fault.
template <typename Access> static double alignment(Access access) {
  int least = 1;
  while (least < 4096 && faults([&] { access(memory + least); })) least *= 2;
  return least;
}

#define NEEDS(PROBE, FEATURE, ...)                                          \
  if (__builtin_cpu_supports(FEATURE)) { __VA_ARGS__; }                     \
  else report_failure(PROBE, "the processor has no " FEATURE);

static float bits(uint32_t value) {
  float x;
  memcpy(&x, &value, 4);
  return x;
}

__attribute__((target("avx512f"))) static double estimate_error(bool root) {
  double worst = 0;
  for (uint32_t n = 0x3f800000; n < (root ? 0x40800000u : 0x40000000u); n += 16) {
    alignas(64) float x[16], y[16];
    for (int lane = 0; lane < 16; lane++) x[lane] = bits(n + lane);
    _mm512_store_ps(y, root ? _mm512_rsqrt14_ps(_mm512_load_ps(x)) : _mm512_rcp14_ps(_mm512_load_ps(x)));
    for (int lane = 0; lane < 16; lane++) {
      const double right = root ? 1 / std::sqrt(double(x[lane])) : 1 / double(x[lane]);
      worst = std::max(worst, std::fabs(y[lane] - right) / right);
    }
  }
  return std::log2(worst);
}

__attribute__((target("avx512bf16,avx512vl"))) static void bfloat16() {
  const auto converted = [](float x) {
    const __m128bh y = _mm256_cvtneps_pbh(_mm256_set1_ps(x));
    uint16_t lane;
    memcpy(&lane, &y, 2);
    return lane;
  };
  report_answer("cvtneps_pbh_ties_to_even", converted(bits(0x3f808000)) == 0x3f80 && converted(bits(0x3f818000)) == 0x3f82);
  report_answer("cvtneps_pbh_flushes_subnormals", converted(bits(0x00410000)) == 0);
  __m256 sum = _mm256_setzero_ps();
  const __m256bh tiny = _mm512_cvtneps_pbh(_mm512_set1_ps(bits(0x1f800000)));  // 2^-64
  sum = _mm256_dpbf16_ps(sum, tiny, _mm512_cvtneps_pbh(_mm512_set1_ps(bits(0x1d800000))));  // 2^-68
  report_answer("dpbf16_flushes_subnormals", _mm256_cvtss_f32(sum) == 0);
}

static volatile float one = 1.0f, not_a_number = NAN, large = 1e20f, tiny = FLT_MIN;

static void handled(int) {}

// How many bytes below the stack pointer a signal handler leaves alone, of 512. The frame of the
// signal is aligned, so the least of several positions of the stack pointer counts.
static double red_zone(uint64_t room) {
  signal(SIGUSR1, handled);
  uint64_t kept = 0;
  const long process = getpid(), thread = syscall(SYS_gettid);
  asm volatile(
      "sub %[room], %%rsp\n"
      "lea -512(%%rsp), %%rdi\n mov $0x5a, %%eax\n mov $512, %%ecx\n rep stosb\n"
      "mov %[process], %%rdi\n mov %[thread], %%rsi\n mov $10, %%edx\n mov $234, %%eax\n syscall\n"  // tgkill
      "xor %[kept], %[kept]\n"
      "1: cmp $512, %[kept]\n je 2f\n"
      "mov %%rsp, %%rdi\n sub %[kept], %%rdi\n cmpb $0x5a, -1(%%rdi)\n jne 2f\n inc %[kept]\n jmp 1b\n"
      "2: add %[room], %%rsp\n"
      : [kept] "+&r"(kept) : [process] "r"(process), [thread] "r"(thread), [room] "r"(room)
      : "rax", "rcx", "rdx", "rdi", "rsi", "r11", "memory", "cc");
  return double(kept);
}

static uintptr_t entries = 0;
__attribute__((noinline)) static void entered(int depth, volatile int extra) {
  entries |= uintptr_t(__builtin_frame_address(0)) + 16;  // the stack before the call pushed its return
  volatile char room[16 + 8 * extra];  // frames of all sizes
  room[extra] = char(depth);
  if (depth > 0) entered(depth - 1, extra + 1);
}

int main() {
  NEEDS("movaps_256_alignment", "avx", report("movaps_256_alignment", alignment([](char *p) {
    asm volatile("vmovaps (%0), %%ymm0" ::"r"(p) : "xmm0"); })))
  NEEDS("movaps_512_alignment", "avx512f", report("movaps_512_alignment", alignment([](char *p) {
    asm volatile("vmovaps (%0), %%zmm0" ::"r"(p) : "xmm0"); })))
  NEEDS("movntps_512_alignment", "avx512f", report("movntps_512_alignment", alignment([](char *p) {
    asm volatile("vmovntps %%zmm0, (%0)" ::"r"(p) : "memory"); })))
  NEEDS("movups_alignment", "avx", report("movups_alignment", alignment([](char *p) {
    asm volatile("vmovups (%0), %%ymm0" ::"r"(p) : "xmm0"); })))
  // A page that may not be read follows.
  char *two = (char *)mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(two + 4096, 4096, PROT_NONE);
  report_answer("load_across_a_page_faults", faults([&] { asm volatile("vmovups (%0), %%ymm0" ::"r"(two + 4080) : "xmm0"); }));
  report_answer("masked_lanes_fault", faults([&] {
    const __m256i mask = _mm256_setr_epi32(-1, -1, -1, -1, 0, 0, 0, 0);
    __m256 v = _mm256_maskload_ps((const float *)(two + 4080), mask);
    asm volatile("" ::"x"(v)); }));
  report_answer("prefetch_of_bad_address_faults", faults([] { _mm_prefetch((const char *)64, _MM_HINT_T0); }));
  int step = 1;
  while (step < 1 << 20 && mprotect(two + step, 1, PROT_READ | PROT_WRITE) != 0) step *= 2;
  report("protection_granularity", step);
  void *huge = mmap(nullptr, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  if (huge == MAP_FAILED) report_failure("large_page", "the system reserves no huge pages");
  else report("large_page", 2 << 20);
  double kept = 512;
  for (int n = 0; n < 16; n++) kept = std::min(kept, red_zone(2048 + 8 * n));
  report("red_zone", kept);
  entered(20, 1);
  report("stack_alignment", double(entries & -entries));
  if (__builtin_cpu_supports("avx512f")) report("widest_vector", 512);
  else report("widest_vector", __builtin_cpu_supports("avx") ? 256 : 128);

  report("int_of_nan_by_cvttss", _mm_cvttss_si32(_mm_set_ss(not_a_number)));
  report("int_of_large_by_cvttss", _mm_cvttss_si32(_mm_set_ss(large)));
  report("half_by_cvtss", _mm_cvtss_si32(_mm_set_ss(2.5f * one)));
  float v = _mm_cvtss_f32(_mm_max_ss(_mm_set_ss(not_a_number), _mm_set_ss(one)));
  float w = _mm_cvtss_f32(_mm_max_ss(_mm_set_ss(one), _mm_set_ss(not_a_number)));
  report_text("max_with_nan", v == 1 && std::isnan(w) ? "the second operand" : v == 1 ? "the number" : "NaN");
  report_answer("cpu_subnormals_are_kept", tiny * 0.5f != 0);
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  report_answer("mxcsr_ftz_flushes", tiny * 0.5f == 0);
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_OFF);
  uint32_t shifted = 1, by = 33;
  asm volatile("shl %%cl, %0" : "+r"(shifted) : "c"(by));
  report("cpu_shift_by_33", shifted);
  NEEDS("cpu_fma_rounds_once", "fma", {
    const float a = one + 0x1p-12f;
    report_answer("cpu_fma_rounds_once", std::fma(a, a, -1.0f - 0x1p-11f) == 0x1p-24f);
  })
  NEEDS("maddubs_saturates", "avx2", {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(char(255)), _mm256_set1_epi8(127));
    report("maddubs_saturates", int16_t(_mm256_extract_epi16(pairs, 0)));
  })
  NEEDS("rcp14_error", "avx512f", report("rcp14_error", estimate_error(false)))
  NEEDS("rsqrt14_error", "avx512f", report("rsqrt14_error", estimate_error(true)))
  if (__builtin_cpu_supports("avx512bf16")) bfloat16();
  else
    for (const char *probe : {"cvtneps_pbh_ties_to_even", "cvtneps_pbh_flushes_subnormals", "dpbf16_flushes_subnormals"})
      report_failure(probe, "the processor has no avx512bf16");
  // Tiles: leaf 0x1d of the processor's identification.
  unsigned a, b, c, d;
  asm volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
  const bool amx = d >> 24 & 1;
  asm volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(0x1d), "c"(1));
  const double tiles[] = {double(b >> 16), double(a >> 16), double(b & 0xffff), double(c & 0xffff)};
  const char *names[] = {"amx_tiles", "amx_tile_size", "amx_tile_row", "amx_tile_rows"};
  for (int n = 0; n < 4; n++) {
    if (amx) report(names[n], tiles[n]);
    else report_failure(names[n], "the processor has no AMX");
  }
}
