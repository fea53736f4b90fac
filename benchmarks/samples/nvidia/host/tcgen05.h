// Stand-in for the PTX of an sm_100a kernel. Copies and products run later, each kind in order of
// issue by an engine with random delays. Operands are found by their descriptors: the fields of
// CUTLASS's mma_sm100_desc.hpp and the layouts of rows of 128 bytes with the 128-byte swizzle.
#pragma once
#include <deque>
#include <map>
#include <random>
#include "cuda_runtime.h"
#define INLINE inline
inline void emu_fail(const char* text) {
  puts(text);
  exit(1);
}
struct CUtensorMap {
  const uint16_t* in;
  uint16_t* out;
  int heads, length, rows;
};
inline uint32_t tensor_memory[128][512];
inline uint32_t shared_address(const void* p) { return uint32_t((const char*)p - emu_dynamic); }

struct Barrier {
  std::mutex lock;
  std::condition_variable changed;
  int count = 0, pending = 0, bytes = 0;
  unsigned phase = 0;
  void settle() {
    if (pending || bytes) return;
    phase++;
    pending = count;
    changed.notify_all();
  }
};
inline std::mutex barriers_lock;
inline std::map<uint64_t*, Barrier> barriers;
inline Barrier& barrier_of(uint64_t* b) {
  std::lock_guard held(barriers_lock);
  return barriers[b];
}
inline void barrier_init(uint64_t* b, int count) {
  Barrier& x = barrier_of(b);
  x.count = x.pending = count;
  x.bytes = 0, x.phase = 0;
}
inline void barrier_change(uint64_t* b, int arrivals, int bytes) {
  Barrier& x = barrier_of(b);
  std::lock_guard held(x.lock);
  if (arrivals > x.pending) emu_fail("more arrivals than the barrier counts");
  x.pending -= arrivals, x.bytes += bytes;
  x.settle();
}
inline void barrier_expect(uint64_t* b, int bytes) { barrier_change(b, 1, bytes); }
inline void barrier_arrive(uint64_t* b) { barrier_change(b, 1, 0); }
inline void barrier_wait(uint64_t* b, int parity) {
  Barrier& x = barrier_of(b);
  std::unique_lock held(x.lock);
  auto over = [&] { return int(x.phase & 1) != parity; };
  if (!x.changed.wait_for(held, std::chrono::seconds(30), over)) emu_fail("a wait never ends");
}

struct Engine {
  std::mutex lock;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool ended = false;
  std::mt19937 random{5};
  std::thread thread{[this] {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock held(lock);
        changed.wait(held, [&] { return ended || !queue.empty(); });
        if (queue.empty()) return;
        work = queue.front();
        queue.pop_front();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      work();
    }
  }};
  void push(std::function<void()> work) {
    std::lock_guard held(lock);
    queue.push_back(work);
    changed.notify_all();
  }
  ~Engine() {
    {
      std::lock_guard held(lock);
      ended = true;
      changed.notify_all();
    }
    thread.join();
  }
};
inline Engine products, copies;

inline char* swizzled(uint32_t at) { return emu_dynamic + (at ^ ((at >> 7 & 7) << 4)); }
inline float of_bf16(uint16_t half) { return std::bit_cast<float>(uint32_t(half) << 16); }
inline uint16_t to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fff;
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void tma_load(void* to, const CUtensorMap* map, uint64_t* b, int x, int y, int z) {
  uint32_t at = shared_address(to);
  if (at % 1024) emu_fail("a box does not begin at the swizzle's unit");
  copies.push([=] {
    for (int r = 0; r < map->rows; r++)
      for (int c = 0; c < 64; c++) {
        size_t from = (size_t(z) * map->length + y + r) * 128 + x + c;
        uint16_t value = y + r < map->length ? map->in[from] : 0;
        memcpy(swizzled(at + r * 128 + c * 2), &value, 2);
      }
    barrier_change(b, 0, -map->rows * 128);
  });
}
inline void tma_store(const CUtensorMap* map, const void* from, int x, int y, int z) {
  uint32_t at = shared_address(from);
  for (int r = 0; r < map->rows && y + r < map->length; r++)
    for (int c = 0; c < 64; c++)
      memcpy(&map->out[(size_t(z) * map->length + y + r) * 128 + x + c],
             swizzled(at + r * 128 + c * 2), 2);
}
inline void stores_ended() {}
inline void fence_async() {}
inline void fence_before() {}
inline void fence_after() {}
// Row n (or column, of the second operand) and term k of an operand of 16 terms.
inline float element(uint64_t descriptor, bool terms_outside, int n, int k) {
  if ((descriptor >> 46 & 7) != 1 || descriptor >> 61 != 2) emu_fail("another descriptor");
  auto field = [&](int bit) { return uint32_t(descriptor >> bit & 0x3fff) << 4; };
  uint32_t at = field(0);
  at += terms_outside ? n / 64 * field(16) + k / 8 * field(32) + k % 8 * 128 + n % 64 * 2
                      : n / 8 * field(32) + n % 8 * 128 + k * 2;
  uint16_t half;
  memcpy(&half, swizzled(at), 2);
  return of_bf16(half);
}
template <class A>
void emu_product(uint32_t sums, A a, uint64_t b, uint32_t kind, int add) {
  int columns = (kind >> 17 & 63) * 8, rows = (kind >> 24 & 31) * 16, first = sums & 0xffff;
  if (rows != 128 || columns > 128 || sums >> 16) emu_fail("another instruction descriptor");
  std::vector<float> second(16 * columns);
  for (int k = 0; k < 16; k++)
    for (int n = 0; n < columns; n++) second[k * columns + n] = element(b, kind >> 16 & 1, n, k);
  for (int m = 0; m < rows; m++)
    for (int n = 0; n < columns; n++) {
      float sum = add ? __uint_as_float(tensor_memory[m][first + n]) : 0;
      for (int k = 0; k < 16; k++) sum += a(m, k) * second[k * columns + n];
      tensor_memory[m][first + n] = __float_as_uint(sum);
    }
}
inline void multiply(uint32_t sums, uint64_t a, uint64_t b, uint32_t kind, int add) {
  products.push([=] {
    std::vector<float> rows(128 * 16);
    for (int i = 0; i < 128 * 16; i++) rows[i] = element(a, false, i / 16, i % 16);
    emu_product(sums, [&](int m, int k) { return rows[m * 16 + k]; }, b, kind, add);
  });
}
inline void multiply_columns(uint32_t sums, uint32_t a, uint64_t b, uint32_t kind, int add) {
  products.push([=] {
    auto value = [&](int m, int k) {
      return of_bf16(uint16_t(tensor_memory[m][a + k / 2] >> (k % 2 * 16)));
    };
    emu_product(sums, value, b, kind, add);
  });
}
inline void commit(uint64_t* b) {
  products.push([=] { barrier_arrive(b); });
}
inline void allocate_columns(uint32_t* to) {
  *to = 0;
  for (auto& row : tensor_memory)
    for (auto& value : row) value = 0x7fc00000;  // NaN
}
inline void free_columns(uint32_t) {}
inline uint32_t* own_lane(uint32_t at) {
  if (at >> 16 != threadIdx.x / 32 % 4 * 32) emu_fail("lanes of another warp");
  return &tensor_memory[(at >> 16) + threadIdx.x % 32][at & 0xffff];
}
inline void read_columns(uint32_t from, uint32_t* v) { memcpy(v, own_lane(from), 128); }
inline void write_columns(uint32_t to, const uint32_t* v) { memcpy(own_lane(to), v, 128); }
inline void reads_ended(uint32_t*) {}
inline void writes_ended() {}
template <int>
void fewer_registers() {}
template <int>
void more_registers() {}
inline float power_of_two(float x) { return std::exp2(x); }
inline uint32_t packed(float x, float y) { return to_bf16(x) | uint32_t(to_bf16(y)) << 16; }
