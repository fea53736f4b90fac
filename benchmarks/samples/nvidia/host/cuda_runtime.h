// Stand-in for CUDA on a CPU: each thread of a block is a thread of the host. Warp operations meet
// at a barrier of 32 threads.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__
using std::max;
using std::min;
struct Dim {
  unsigned x = 1, y = 1, z = 1;
};
struct uint4 {
  uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return {a, b, c, d}; }
inline thread_local Dim threadIdx;
inline Dim blockIdx, gridDim;
inline std::unique_ptr<std::barrier<>> emu_block;
inline std::vector<std::unique_ptr<std::barrier<>>> emu_warps;
inline std::vector<std::array<uint64_t, 32>> emu_slots;
alignas(1024) inline char emu_dynamic[300 << 10];
inline void __syncthreads() { emu_block->arrive_and_wait(); }
inline void __syncwarp(unsigned = ~0u) { emu_warps[threadIdx.x / 32]->arrive_and_wait(); }
template <class T>
T emu_exchange(T value, int from) {
  auto& slots = emu_slots[threadIdx.x / 32];
  memcpy(&slots[threadIdx.x % 32], &value, sizeof value);
  __syncwarp();
  T result;
  memcpy(&result, &slots[from], sizeof result);
  __syncwarp();
  return result;
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emu_exchange(value, (threadIdx.x % 32) ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int step) {
  int lane = threadIdx.x % 32;
  return emu_exchange(value, lane >= step ? lane - step : lane);
}
inline unsigned __ballot_sync(unsigned, bool p) {
  auto& slots = emu_slots[threadIdx.x / 32];
  slots[threadIdx.x % 32] = p;
  __syncwarp();
  unsigned result = 0;
  for (int i = 0; i < 32; i++) result |= unsigned(slots[i] != 0) << i;
  __syncwarp();
  return result;
}
inline bool __any_sync(unsigned, bool p) { return __ballot_sync(~0u, p) != 0; }
inline int __popc(unsigned value) { return std::popcount(value); }
inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float __uint_as_float(uint32_t value) { return std::bit_cast<float>(value); }
inline float __ldcs(const float* p) { return *p; }
inline int atomicAdd(int* p, int value) { return std::atomic_ref<int>(*p).fetch_add(value); }
template <class F>
void emu_launch(Dim grid, unsigned threads, F kernel) {
  gridDim = grid;
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = {x, y, z};
        emu_block = std::make_unique<std::barrier<>>(threads);
        emu_warps.clear();
        for (unsigned w = 0; w < threads / 32; w++)
          emu_warps.push_back(std::make_unique<std::barrier<>>(32));
        emu_slots.assign(threads / 32, {});
        std::vector<std::thread> started;
        for (unsigned t = 0; t < threads; t++)
          started.emplace_back([=] {
            threadIdx = {t, 0, 0};
            kernel();
          });
        for (auto& thread : started) thread.join();
      }
}
