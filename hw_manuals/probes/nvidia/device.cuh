// Memory, errors and times of CUDA probes. An error ends the unit with the runtime's message.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "probe.h"

#define CHECK(call) checked((call), #call)

static inline void checked(cudaError_t error, const char *call) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "error: %s: %s\n", call, cudaGetErrorString(error));
  exit(1);
}

template <typename T> static T *device_array(size_t count) {
  T *array;
  CHECK(cudaMalloc(&array, count * sizeof(T)));
  CHECK(cudaMemset(array, 0, count * sizeof(T)));
  return array;
}

template <typename T> static T fetched(const T *on_device) {
  T value;
  CHECK(cudaMemcpy(&value, on_device, sizeof(T), cudaMemcpyDeviceToHost));
  return value;
}

static inline cudaDeviceProp properties() {
  cudaDeviceProp found;
  CHECK(cudaGetDeviceProperties(&found, 0));
  return found;
}

// Seconds of `call` between two events, after one call that is not timed.
template <typename Call> static double seconds_of(Call call, bool warm = true) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  if (warm) call();
  CHECK(cudaEventRecord(begin));
  call();
  CHECK(cudaEventRecord(end));
  CHECK(cudaEventSynchronize(end));
  CHECK(cudaGetLastError());
  float milliseconds;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  return milliseconds * 1e-3;
}

constexpr size_t LINE = 128;  // bytes

// An array of `lines` lines, the first word of each holding the address of the next in a random
// cycle, for an array that starts at the address `base`.
static inline std::vector<uint64_t> random_cycle(size_t lines, uint64_t base) {
  std::vector<uint32_t> order(lines);
  std::vector<uint64_t> next(lines * (LINE / 8), 0);
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937_64 draw(7);
  for (size_t n = lines - 1; n > 0; n--) std::swap(order[n], order[draw() % (n + 1)]);
  for (size_t n = 0; n < lines; n++)
    next[order[n] * (LINE / 8)] = base + order[(n + 1) % lines] * LINE;
  return next;
}
