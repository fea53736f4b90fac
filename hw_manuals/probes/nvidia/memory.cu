// Bandwidths by event times, and sizes of caches and sectors by the latency of loads.
#include "device.cuh"

constexpr int REPEATS = 9;
constexpr size_t MIB = 1 << 20;

__global__ void copy(const uint4 *from, uint4 *to, size_t count) {
  for (size_t n = blockIdx.x * size_t(blockDim.x) + threadIdx.x; n < count; n += size_t(gridDim.x) * blockDim.x)
    to[n] = from[n];
}

template <bool PAST_L1>
__global__ void sum_of(const uint4 *from, size_t count, int passes, uint32_t *out) {
  uint32_t sum = 0;
  for (int pass = 0; pass < passes; pass++) {
#pragma unroll 8
    for (size_t n = blockIdx.x * size_t(blockDim.x) + threadIdx.x; n < count; n += size_t(gridDim.x) * blockDim.x) {
      uint4 v;
      if (PAST_L1)
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from + n));
      else
        v = from[n];
      sum += v.x ^ v.y ^ v.z ^ v.w;
    }
  }
  if (sum == 1) *out = sum;
}

void bandwidths() {
  const int blocks = properties().multiProcessorCount * 8;
  const size_t bytes = 1024 * MIB;
  uint4 *a = device_array<uint4>(bytes / 16), *b = device_array<uint4>(bytes / 16);
  uint32_t *out = device_array<uint32_t>(1);
  const size_t resident = 16 * MIB;
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    double took = seconds_of([&] { copy<<<blocks, 256>>>(a, b, bytes / 16); });
    report("memory_copy_rate", 2.0 * bytes / took);
    took = seconds_of([&] { sum_of<false><<<blocks, 256>>>(a, bytes / 16, 1, out); });
    report("memory_read_rate", bytes / took);
    took = seconds_of([&] { CHECK(cudaMemsetAsync(b, 0, bytes)); });
    report("memory_write_rate", bytes / took);
    took = seconds_of([&] { sum_of<true><<<blocks, 256>>>(a, resident / 16, 32, out); });
    report("l2_read_rate", 32.0 * resident / took);
    took = seconds_of([&] { CHECK(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice)); });
    report("device_copy_rate", 2.0 * bytes / took);
  }
  void *pinned;
  const size_t part = 256 * MIB;
  CHECK(cudaMallocHost(&pinned, part));
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    double took = seconds_of([&] { CHECK(cudaMemcpyAsync(a, pinned, part, cudaMemcpyHostToDevice)); });
    report("host_to_device_rate", part / took);
    took = seconds_of([&] { CHECK(cudaMemcpyAsync(pinned, a, part, cudaMemcpyDeviceToHost)); });
    report("device_to_host_rate", part / took);
  }
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
}

// Cycles of a load in a random cycle through lines. In L1 the whole cycle is walked once before.
template <bool PAST_L1> __global__ void walk(uint64_t at, int warm, int steps, long long *took, uint64_t *out) {
  long long begin = 0, end = 0;
#pragma unroll 1
  for (int round = 0; round < 2; round++) {
    const int count = round == 0 ? warm : steps;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");
#pragma unroll 16
    for (int n = 0; n < count; n++) {
      if (PAST_L1) asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at)::"memory");
      else asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(at)::"memory");
    }
    *out = at;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
  }
  *took = end - begin;
}

template <bool PAST_L1> double latency(uint64_t *array, uint64_t *out, size_t bytes) {
  static long long *took = device_array<long long>(1);
  const size_t lines = bytes / LINE;
  std::vector<uint64_t> cycle = random_cycle(lines, uint64_t(array));
  CHECK(cudaMemcpy(array, cycle.data(), bytes, cudaMemcpyHostToDevice));
  const int steps = PAST_L1 ? 8192 : int(lines);
  if (PAST_L1)
    for (int pass = 0; pass < 2; pass++)
      sum_of<true><<<256, 256>>>((const uint4 *)array, bytes / 16, 1, (uint32_t *)(out + 1));
  walk<PAST_L1><<<1, 1>>>(uint64_t(array), PAST_L1 ? 0 : int(lines), steps, took, out);
  return double(fetched(took)) / steps;
}

// The largest size whose loads are nearer to those of a small array than to those of a large one.
template <bool PAST_L1>
void capacity(const char *name, uint64_t *array, uint64_t *out, size_t small, size_t large, size_t step) {
  for (int repeat = 0; repeat < 3; repeat++) {
    const double hit = latency<PAST_L1>(array, out, small), miss = latency<PAST_L1>(array, out, large);
    size_t fits = small;
    for (size_t bytes = small + step; bytes < large; bytes += step) {
      const double here = latency<PAST_L1>(array, out, bytes);
      if (repeat == 0) fprintf(stderr, "%s %zu B: %.1f cycles\n", name, bytes, here);
      if (here > (hit + miss) / 2) break;
      fits = bytes;
    }
    report(name, double(fits));
  }
}

// Cycles of a load `offset` bytes behind one that has just missed all caches.
__global__ void neighbour(const char *lines, size_t apart, int offset, int *out) {
  const char *line = lines + apart * threadIdx.x;
  int first, second;
  long long begin, end;
  asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(first) : "l"(line) : "memory");
  if (first == 1) return;  // waits for the first load
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");
  asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(second) : "l"(line + offset) : "memory");
  *out = second + first;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
  out[1] = int(end - begin);
}

void sectors() {
  const size_t bytes = 256 * MIB, apart = 1 << 16;
  char *lines = device_array<char>(bytes);
  int *out = device_array<int>(2);
  for (int repeat = 0; repeat < 5; repeat++) {
    int base = 0;
    double sector = 0;
    for (int offset = 4; offset <= 256 && sector == 0; offset += 4) {
      // A line that no earlier load has touched: the array was written by a memset of its whole.
      const size_t line = (size_t(repeat) * 80 + offset / 4) * apart % (bytes - 4096);
      neighbour<<<1, 1>>>(lines + line, 0, offset, out);
      int took;
      CHECK(cudaMemcpy(&took, out + 1, sizeof took, cudaMemcpyDeviceToHost));
      if (offset == 4) base = took;
      else if (took > base + 60) sector = offset;
    }
    if (sector > 0) report("sector_size", sector);
    else report_failure("sector_size", "no load behind the first one was slower within 256 bytes");
  }
  CHECK(cudaFree(lines));
}

int main() {
  bandwidths();
  uint64_t *array = device_array<uint64_t>(160 * MIB / 8), *out = device_array<uint64_t>(2);
  CHECK(cudaFuncSetAttribute(walk<false>, cudaFuncAttributePreferredSharedMemoryCarveout, 0));
  capacity<false>("l1_capacity", array, out, 64 << 10, 512 << 10, 4 << 10);
  capacity<true>("l2_capacity", array, out, 8 * MIB, 152 * MIB, 4 * MIB);
  CHECK(cudaFree(array));
  sectors();
}
