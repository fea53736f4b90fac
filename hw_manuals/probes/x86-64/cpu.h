// Times, the clock of the core and the share of waiting of x86-64 probes.
#pragma once
#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "probe.h"

static inline double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// Nanoseconds that this thread and, by the hypervisor, this machine waited for a processor.
static inline double waited_nanoseconds() {
  unsigned long long ran = 0, waited = 0, user, nice, system, idle, io, irq, soft, steal = 0;
  if (FILE *file = fopen("/proc/thread-self/schedstat", "r")) {
    if (fscanf(file, "%llu %llu", &ran, &waited) != 2) waited = 0;
    fclose(file);
  }
  if (FILE *file = fopen("/proc/stat", "r")) {
    if (fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &io,
               &irq, &soft, &steal) != 8)
      steal = 0;
    fclose(file);
  }
  return waited + steal * 1e9 / sysconf(_SC_CLK_TCK);
}

// Prints at the end what share of the time since the start was spent waiting.
struct Waiting {
  double began = now(), waited = waited_nanoseconds();
  ~Waiting() { printf("waited %.4f\n", (waited_nanoseconds() - waited) * 1e-9 / (now() - began)); }
};

// Seconds of one cycle, by a chain of dependent additions of one cycle each.
static inline double cycle_seconds() {
  double best = 1;
  for (int repeat = 0; repeat < 5; repeat++) {
    uint64_t x = 1;
    const double began = now();
    for (int n = 0; n < 20'000; n++)
      asm volatile(".rept 64\n add %1, %0\n .endr" : "+r"(x) : "r"(uint64_t(3)));
    best = std::min(best, (now() - began) / (20'000 * 64.0));
  }
  return best;
}

// Cycles of each of `count` steps of `call`, the least of three.
template <typename Call> static double cycles_of(Call call, double count) {
  const double cycle = cycle_seconds();
  double best = 1e9;
  for (int repeat = 0; repeat < 3; repeat++) {
    const double began = now();
    call();
    best = std::min(best, (now() - began) / count / cycle);
  }
  return best;
}

constexpr size_t LINE = 64;

// A cycle of pointers through all lines of an array, in random order.
static inline void link_lines(char *array, size_t bytes) {
  std::vector<uint32_t> order(bytes / LINE);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(7));
  for (size_t n = 0; n < order.size(); n++)
    *(void **)(array + order[n] * LINE) = array + order[(n + 1) % order.size()] * LINE;
}

static inline char *pages(size_t bytes) {
  char *array = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (array == MAP_FAILED) exit(1);
  madvise(array, bytes, MADV_HUGEPAGE);
  memset(array, 0, bytes);
  return array;
}

static inline double load_cycles(char *array, size_t bytes, int steps) {
  link_lines(array, bytes);
  void **at = (void **)array;
  const auto walk = [&] {
    for (int n = 0; n < steps; n += 8)
      asm volatile(".rept 8\n mov (%0), %0\n .endr" : "+r"(at)::"memory");
  };
  walk();
  return cycles_of(walk, steps);
}
