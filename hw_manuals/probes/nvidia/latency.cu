// Cycles from an instruction to a dependent one: the difference of chains of 2N and N in one warp.
#include <cuda_fp16.h>

#include "device.cuh"

constexpr int REPEATS = 9, N = 128;

#define CHAIN(NAME, TYPE, STEP)                                                              \
  template <int COUNT> __global__ void NAME(long long *took, TYPE *out, TYPE a, TYPE b) {    \
    TYPE x = a + TYPE(threadIdx.x);                                                                         \
    long long begin = 0, end = 0;                                                            \
    _Pragma("unroll 1") for (int round = 0; round < 3; round++) { /* the first loads code */ \
      __syncthreads();                                                                       \
      asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");                        \
      _Pragma("unroll") for (int n = 0; n < COUNT; n++) { STEP; }                            \
      asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");                          \
    }                                                                                        \
    out[threadIdx.x] = x;                                                                    \
    if (threadIdx.x == 0) *took = end - begin;                                               \
  }

CHAIN(fma32, float, asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(a), "f"(b)))
CHAIN(add32, float, asm volatile("add.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(b)))
CHAIN(fma64, double, asm volatile("fma.rn.f64 %0, %0, %1, %2;" : "+d"(x) : "d"(a), "d"(b)))
CHAIN(packed16, uint32_t, asm volatile("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(x) : "r"(a), "r"(b)))
CHAIN(mad32, uint32_t, asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(x) : "r"(a), "r"(b)))
CHAIN(logical, uint32_t, asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(x) : "r"(a), "r"(b)))
CHAIN(count, uint32_t, asm volatile("popc.b32 %0, %0;" : "+r"(x)))
CHAIN(exponent, float, asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)))
CHAIN(root, float, asm volatile("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(x)))
CHAIN(shuffle, uint32_t, asm volatile("shfl.sync.up.b32 %0, %0, 1, 0, -1;" : "+r"(x)))
CHAIN(redux, uint32_t, asm volatile("redux.sync.add.u32 %0, %0, -1;" : "+r"(x)))
CHAIN(ballot, uint32_t,
      asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 5; vote.sync.ballot.b32 %0, p, -1; }" : "+r"(x)))
CHAIN(block_barrier, uint32_t, asm volatile("bar.sync 0;" ::: "memory"))

template <typename T, typename Kernel>
void chain(const char *name, Kernel once, Kernel twice, T a, T b, int threads = 32) {
  static long long *took = device_array<long long>(1);
  T *out = device_array<T>(1024);
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    once<<<1, threads>>>(took, out, a, b);
    long long single = fetched(took);
    twice<<<1, threads>>>(took, out, a, b);
    report(name, double(fetched(took) - single) / N);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(out));
}
#define MEASURE(PROBE, KERNEL, ...) chain(PROBE, KERNEL<N>, KERNEL<2 * N>, __VA_ARGS__)

// Loads and atomics: every place holds its own address, so each address is the value before.
enum Access { SHARED, CONSTANT, CACHED, SHARED_ATOMIC, GLOBAL_ATOMIC };
__constant__ uint64_t constants[2];

__global__ void constant_address(uint64_t *out) { *out = __cvta_generic_to_constant(constants); }

template <Access ACCESS>
__global__ void chase(uint64_t *global, uint64_t constant, long long *took, uint64_t *out) {
  __shared__ uint32_t shared[2];
  uint32_t in_shared = __cvta_generic_to_shared(shared);
  uint64_t at = ACCESS == CONSTANT ? constant + threadIdx.x : uint64_t(global);
  shared[0] = in_shared;
  *global = uint64_t(global);
  __syncthreads();
  long long begin = 0, end = 0;
#pragma unroll 1
  for (int round = 0; round < 3; round++) {
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");
#pragma unroll
    for (int n = 0; n < N; n++) {
      if (ACCESS == SHARED) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(in_shared)::"memory");
      if (ACCESS == CONSTANT) asm volatile("ld.const.u64 %0, [%0];" : "+l"(at)::"memory");
      if (ACCESS == CACHED) asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(at)::"memory");
      if (ACCESS == SHARED_ATOMIC)
        asm volatile("atom.shared.add.u32 %0, [%0], 0;" : "+r"(in_shared)::"memory");
      if (ACCESS == GLOBAL_ATOMIC)
        asm volatile("atom.global.add.u64 %0, [%0], 0;" : "+l"(at)::"memory");
    }
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
  }
  *out = at + in_shared;
  *took = end - begin;
}

template <Access ACCESS> void access(const char *name) {
  uint64_t *global = device_array<uint64_t>(2), *out = device_array<uint64_t>(1);
  long long *took = device_array<long long>(1);
  constant_address<<<1, 1>>>(out);
  const uint64_t address = fetched(out);
  CHECK(cudaMemcpyToSymbol(constants, &address, sizeof address));
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    chase<ACCESS><<<1, 1>>>(global, address, took, out);
    report(name, double(fetched(took)) / N);
  }
  CHECK(cudaGetLastError());
}

// A cycle of addresses through all lines of an array, read past L1.
__global__ void touch(const uint64_t *next, size_t words, uint64_t *out) {
  uint64_t sum = 0;
  for (size_t n = blockIdx.x * blockDim.x + threadIdx.x; n < words; n += size_t(gridDim.x) * blockDim.x) {
    uint64_t value;
    asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(value) : "l"(next + n));
    sum += value;
  }
  if (sum == 1) *out = sum;
}
__global__ void walk(uint64_t at, int steps, long long *took, uint64_t *out) {
  long long begin, end;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");
#pragma unroll 16
  for (int n = 0; n < steps; n++) asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at)::"memory");
  *out = at;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
  *took = end - begin;
}

void walks(const char *name, size_t bytes, int steps, bool warm) {
  uint64_t *next = device_array<uint64_t>(bytes / 8), *out = device_array<uint64_t>(1);
  long long *took = device_array<long long>(1);
  std::vector<uint64_t> cycle = random_cycle(bytes / LINE, uint64_t(next));
  CHECK(cudaMemcpy(next, cycle.data(), bytes, cudaMemcpyHostToDevice));
  uint64_t at = uint64_t(next);
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    if (warm) touch<<<1024, 256>>>(next, bytes / 8, out);
    walk<<<1, 1>>>(at, steps, took, out);
    at = fetched(out);  // the next walk goes on along the cycle
    report(name, double(fetched(took)) / steps);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaFree(next));
}

__global__ void empty() {}

void launches() {
  constexpr int COUNT = 1000;
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t instance;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int n = 0; n < COUNT; n++) empty<<<1, 32, 0, stream>>>();
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&instance, graph, 0));
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    double queued = seconds_of([] { for (int n = 0; n < COUNT; n++) empty<<<1, 32>>>(); });
    report("launch_interval", queued / COUNT);
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaGraphLaunch(instance, stream));
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(instance, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float milliseconds;
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    report("graph_node_interval", milliseconds * 1e-3 / COUNT);
  }
}

int main() {
  MEASURE("fma_latency", fma32, 1.0f, 0.5f);
  MEASURE("add_latency", add32, 1.0f, 0.5f);
  MEASURE("fp64_fma_latency", fma64, 1.0, 0.5);
  MEASURE("half2_fma_latency", packed16, 0x3c003c00u, 0x38003800u);
  MEASURE("integer_mad_latency", mad32, 3u, 5u);
  MEASURE("logic_latency", logical, 3u, 5u);
  MEASURE("popc_latency", count, 3u, 5u);
  MEASURE("exp2_latency", exponent, 0.5f, 0.5f);
  MEASURE("rsqrt_latency", root, 0.7f, 0.5f);
  MEASURE("shuffle_latency", shuffle, 3u, 5u);
  MEASURE("redux_latency", redux, 3u, 5u);
  MEASURE("ballot_latency", ballot, 3u, 5u);
  MEASURE("block_barrier_latency", block_barrier, 3u, 5u, 256);
  MEASURE("block_barrier_1024_latency", block_barrier, 3u, 5u, 1024);
  access<SHARED>("shared_load_latency");
  access<CONSTANT>("constant_load_latency");
  access<CACHED>("l1_load_latency");
  access<SHARED_ATOMIC>("shared_atomic_latency");
  access<GLOBAL_ATOMIC>("global_atomic_latency");
  walks("l2_load_latency", 4 << 20, 4096, true);
  walks("memory_load_latency", 512 << 20, 4096, false);
  launches();
}
