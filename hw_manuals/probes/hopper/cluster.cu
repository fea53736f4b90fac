// Clusters and static arrays that launch, and cycles of accesses to the memory of another block.
#include "../nvidia/device.cuh"

constexpr int REPEATS = 9, N = 128;

__global__ void empty() {}

__global__ void static_array(int *out, int at) {
  __shared__ int large[15'000];  // 60,000 bytes
  large[threadIdx.x] = at;
  __syncthreads();
  out[threadIdx.x] = large[at];
}

template <typename... Arguments, typename... Given>
cudaError_t launch(int blocks, int threads, void (*kernel)(Arguments...), Given... given) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = blocks;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, Arguments(given)...);
  cudaGetLastError();
  return error;
}

int largest_cluster() {
  int most = 0;
  for (int blocks = 1; blocks <= 32; blocks *= 2)
    if (launch(blocks, 32, empty) == cudaSuccess) most = blocks;
  CHECK(cudaDeviceSynchronize());
  return most;
}

#define CLUSTER_BARRIER                                               \
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");      \
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory")

// Block 0 follows addresses in the shared memory of block 1.
template <bool ATOMIC> __global__ void remote(long long *took, uint32_t *out) {
  __shared__ uint32_t place;
  uint32_t own = __cvta_generic_to_shared(&place), at, rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, 1;" : "=r"(at) : "r"(own));
  place = at;
  CLUSTER_BARRIER;
  if (rank == 0) {
    long long begin = 0, end = 0;
#pragma unroll 1
    for (int round = 0; round < 3; round++) {
      asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");
#pragma unroll
      for (int n = 0; n < N; n++) {
        if (ATOMIC) asm volatile("atom.shared::cluster.add.u32 %0, [%0], 0;" : "+r"(at)::"memory");
        else asm volatile("ld.shared::cluster.u32 %0, [%0];" : "+r"(at)::"memory");
      }
      asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
    }
    *out = at;
    *took = end - begin;
  }
  CLUSTER_BARRIER;
}

__global__ void meet(long long *took) {
  long long begin = 0, end = 0;
#pragma unroll 1
  for (int round = 0; round < 3; round++) {
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");
#pragma unroll
    for (int n = 0; n < N; n++) { CLUSTER_BARRIER; }
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *took = end - begin;
}

// A bulk copy of 16 bytes from L2 into shared memory, waited for at a barrier in shared memory.
__global__ void bulk(const char *from, long long *took) {
  __shared__ alignas(128) char to[128];
  __shared__ alignas(8) uint64_t barrier;
  const uint32_t b = __cvta_generic_to_shared(&barrier), t = __cvta_generic_to_shared(to);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
  long long begin = 0, end = 0;
  const int rounds = 17;
  for (int round = 0; round < rounds; round++) {
    if (round == 1) asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" ::"r"(b) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];"
                 ::"r"(t), "l"(from), "r"(b) : "memory");
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }"
                 ::"r"(b), "r"(round & 1) : "memory");
  }
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
  *took = (end - begin) / (rounds - 1);
}

int main() {
  report("cluster_size_portable", largest_cluster());
  CHECK(cudaFuncSetAttribute(empty, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  report("cluster_size_with_opt_in", largest_cluster());
  int *numbers = device_array<int>(32);
  static_array<<<1, 32>>>(numbers, 3);
  report_answer("static_array_of_60_kb_launches",
                cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess && fetched(numbers) == 3);
  long long *took = device_array<long long>(1);
  uint32_t *out = device_array<uint32_t>(1);
  char *from = device_array<char>(4096);
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    CHECK(launch(2, 1, remote<false>, took, out));
    report("remote_shared_load_latency", double(fetched(took)) / N);
    CHECK(launch(2, 1, remote<true>, took, out));
    report("remote_shared_atomic_latency", double(fetched(took)) / N);
    CHECK(launch(2, 128, meet, took));
    report("cluster_barrier_latency", double(fetched(took)) / N);
    bulk<<<1, 1>>>(from, took);
    report("bulk_copy_latency", double(fetched(took)));
  }
  CHECK(cudaGetLastError());
}
