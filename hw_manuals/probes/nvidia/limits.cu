// The most that a launch accepts, and how many blocks are resident on an SM at once.
#include "device.cuh"

__global__ void empty() {}

// Whether a launch is accepted; a refusal leaves no error behind.
template <typename Kernel>
static bool accepted(Kernel kernel, dim3 grid, dim3 block, size_t shared = 0) {
  kernel<<<grid, block, shared>>>();
  const bool launched = cudaGetLastError() == cudaSuccess;
  CHECK(cudaDeviceSynchronize());
  return launched;
}

// The largest value in [low, high] that `holds`, where it holds for low.
template <typename Holds> static long largest(long low, long high, Holds holds) {
  while (low < high) {
    const long middle = low + (high - low + 1) / 2;
    if (holds(middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}

// Each block counts itself on its SM, waits until all others of a wave have had time to start, and
// leaves. `most` is the highest count of any SM.
__device__ int resident[1024], most;

__device__ void wait_here() {
  if (threadIdx.x == 0) {
    int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    atomicMax(&most, atomicAdd(resident + sm, 1) + 1);
    const long long begin = clock64();
    while (clock64() - begin < 200'000) {}
    atomicSub(resident + sm, 1);
  }
  __syncthreads();
}
__global__ void waiting() { wait_here(); }

// As many registers as it may: values that are loaded before the wait and used after it.
template <int REGISTERS> __global__ void __maxnreg__(REGISTERS) with_registers(float *values) {
  constexpr int LIVE = REGISTERS + 16;
  float v[LIVE];
#pragma unroll
  for (int n = 0; n < LIVE; n++) asm volatile("ld.volatile.global.f32 %0, [%1];" : "=f"(v[n]) : "l"(values + n));
  wait_here();
  float sum = 0;
#pragma unroll
  for (int n = 0; n < LIVE; n++) sum += v[n] * v[LIVE - 1 - n];
  if (sum == 1.0f) *values = sum;
}

template <typename Launch> static int residents(Launch launch) {
  int zero = 0, found;
  CHECK(cudaMemcpyToSymbol(most, &zero, sizeof zero));
  launch();
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpyFromSymbol(&found, most, sizeof found));
  return found;
}

int main() {
  const cudaDeviceProp device = properties();
  const int sms = device.multiProcessorCount;
  report("multiprocessors", sms);
  report("clock_limit", [] {
    int kilohertz;
    CHECK(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, 0));
    return kilohertz * 1e3;
  }());
  report("l2_size_by_driver", device.l2CacheSize);
  report("memory_size_by_driver", double(device.totalGlobalMem));

  report("threads_per_block", largest(1, 4096, [](long n) { return accepted(empty, 1, dim3(n)); }));
  report("block_z", largest(1, 4096, [](long n) { return accepted(empty, 1, dim3(1, 1, n)); }));
  report("grid_y", largest(1, 1 << 20, [](long n) { return accepted(empty, dim3(1, n), 1); }));
  report("grid_z", largest(1, 1 << 20, [](long n) { return accepted(empty, dim3(1, 1, n), 1); }));
  report("shared_memory_without_opt_in",
         largest(0, 1 << 20, [](long n) { return accepted(empty, 1, 32, n); }));
  report("shared_memory_with_opt_in", largest(0, 1 << 20, [](long n) {
           const bool allowed = cudaFuncSetAttribute(
               waiting, cudaFuncAttributeMaxDynamicSharedMemorySize, n) == cudaSuccess;
           cudaGetLastError();
           return allowed && accepted(waiting, 1, 32, n);
         }));

  CHECK(cudaFuncSetAttribute(waiting, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
  const auto blocks_of = [&](int threads, size_t shared) {
    return residents([&] { waiting<<<sms * 64, threads, shared>>>(); });
  };
  for (int repeat = 0; repeat < 3; repeat++) {
    report("blocks_per_sm", blocks_of(32, 0));
    report("threads_per_sm", 128 * blocks_of(128, 0));
    report("warps_per_sm", 4 * blocks_of(128, 0));
  }
  // Where two and eight blocks just fit: 2 (s2 + r) = 8 (s8 + r) = the memory of an SM.
  const int most_shared = int(device.sharedMemPerBlockOptin);
  CHECK(cudaFuncSetAttribute(waiting, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared));
  const long two = largest(0, most_shared / 128, [&](long n) { return blocks_of(32, n * 128) >= 2; }) * 128;
  const long eight = largest(0, most_shared / 128, [&](long n) { return blocks_of(32, n * 128) >= 8; }) * 128;
  const double reserved = (2.0 * two - 8.0 * eight) / 6;
  report("shared_memory_reserved", reserved);
  report("shared_memory_per_sm", 2 * (two + reserved));

  float *values = device_array<float>(512);
  const auto registers = [&](auto kernel) {
    cudaFuncAttributes known;
    CHECK(cudaFuncGetAttributes(&known, kernel));
    const int blocks = residents([&] { kernel<<<sms * 32, 128>>>(values); });
    fprintf(stderr, "%d registers: %d blocks of 128 threads\n", known.numRegs, blocks);
    return std::pair<int, int>(known.numRegs, blocks);
  };
  const auto [used, blocks] = registers(with_registers<128>);
  const int file = used * 128 * blocks;
  report("registers_per_sm", file);
  // The unit in which registers are handed out decides how many blocks of 34 and of 42 fit.
  const auto low = registers(with_registers<34>), high = registers(with_registers<42>);
  const auto fits = [&](std::pair<int, int> kernel, int unit) {
    const int taken = (kernel.first + unit - 1) / unit * unit;
    return std::min(file / (taken * 128), 2048 / 128) == kernel.second;
  };
  int unit = 32;
  while (unit > 0 && !(fits(low, unit) && fits(high, unit))) unit /= 2;
  if (unit > 0) report("register_unit", unit);
  else report_failure("register_unit", "no unit explains the numbers of resident blocks");
  cudaFuncAttributes widest;
  CHECK(cudaFuncGetAttributes(&widest, with_registers<255>));
  report("registers_per_thread", widest.numRegs);
}
