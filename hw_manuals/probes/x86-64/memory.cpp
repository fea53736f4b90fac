// Bandwidths of one thread and of all, sizes of caches, and the distance of false sharing.
#include <atomic>
#include <thread>

#include "cpu.h"

constexpr int REPEATS = 7;
constexpr size_t COUNT = 16 << 20;  // floats of an array, 64 MiB

template <typename Work> static double all_threads(unsigned threads, Work work) {
  std::vector<std::thread> running;
  const double began = now();
  for (unsigned n = 0; n < threads; n++)
    running.emplace_back([=] { work(COUNT / threads * n, COUNT / threads * (n + 1)); });
  for (std::thread &thread : running) thread.join();
  return now() - began;
}

// The largest array whose loads take at most 1.7 times as long as those of a small one.
static void capacity(const char *probe, char *array, size_t small, size_t large, size_t step) {
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    const double hit = load_cycles(array, small, 20'000);
    size_t fits = small;
    for (size_t bytes = small + step; bytes < large; bytes += step) {
      if (load_cycles(array, bytes, 20'000) > 1.7 * hit) break;
      fits = bytes;
    }
    report(probe, fits);
  }
}

int main() {
  Waiting waiting;
  const unsigned threads = std::thread::hardware_concurrency();
  float *a = (float *)pages(COUNT * 4), *b = (float *)pages(COUNT * 4), *c = (float *)pages(COUNT * 4);
  for (unsigned used : {1u, threads}) {
    const bool one = used == 1;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
      double took = all_threads(used, [=](size_t first, size_t last) { memcpy(b + first, a + first, (last - first) * 4); });
      report(one ? "cpu_copy_rate_of_one" : "cpu_copy_rate", 8.0 * COUNT / took);
      took = all_threads(used, [=](size_t first, size_t last) {
        for (size_t n = first; n < last; n++) c[n] = a[n] + 3.0f * b[n];
        asm volatile("" ::"r"(c) : "memory");
      });
      report(one ? "cpu_triad_rate_of_one" : "cpu_triad_rate", 12.0 * COUNT / took);
      took = all_threads(used, [=](size_t first, size_t last) {
        __m256 sum = _mm256_setzero_ps(), more = sum;
        for (size_t n = first; n < last; n += 16) {
          sum = _mm256_add_ps(sum, _mm256_load_ps(a + n));
          more = _mm256_add_ps(more, _mm256_load_ps(a + n + 8));
        }
        asm volatile("" ::"x"(sum), "x"(more));
      });
      report(one ? "cpu_read_rate_of_one" : "cpu_read_rate", 4.0 * COUNT / took);
      if (!one) continue;
      took = all_threads(used, [=](size_t first, size_t last) {
        for (size_t n = first; n < last; n += 8) _mm256_stream_ps(c + n, _mm256_set1_ps(2));
        _mm_sfence();
      });
      const double stored = all_threads(used, [=](size_t first, size_t last) {
        for (size_t n = first; n < last; n += 8) _mm256_store_ps(c + n, _mm256_set1_ps(2));
        asm volatile("" ::"r"(c) : "memory");
      });
      report("streamed_store_gain", stored / took);
    }
  }
  char *array = (char *)a;
  capacity("cpu_l1_capacity", array, 8 << 10, 256 << 10, 4 << 10);
  capacity("cpu_l2_capacity", array, 128 << 10, 6 << 20, 128 << 10);

  // Two threads count at places of a given distance: within one line each waits for the other.
  if (threads < 2) return report_failure("false_sharing_distance", "there is one processor"), 0;
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    const auto counting = [&](size_t distance) {
      const auto one = [&](char *place) {
        for (int n = 0; n < 500'000; n++) ((std::atomic<uint32_t> *)place)->fetch_add(1);
      };
      std::atomic<int> ready{0};
      const auto start = [&](char *place) {
        ready.fetch_add(1);
        while (ready.load() < 2) std::this_thread::yield();
        one(place);
      };
      std::thread other(start, array + 4096 + distance);
      const double began = now();
      start(array + 4096);
      other.join();
      return now() - began;
    };
    const double shared = counting(4), apart = counting(2048);
    if (shared < 1.5 * apart) {
      report_failure("false_sharing_distance", "both threads ran on one processor, or the machine was busy");
      continue;
    }
    size_t distance = 8;
    while (distance < 1024 && counting(distance) > (shared + apart) / 2) distance *= 2;
    report("false_sharing_distance", distance);
  }
}
