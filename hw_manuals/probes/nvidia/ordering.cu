// Message passing between two SMs: data, then a flag; how often is the flag seen without the data?
#include "device.cuh"

constexpr int ROUNDS = 20000, STRIDE = 1024;

enum Order { RELAXED, FENCED, RELEASED };

// Block 0 writes, block 1 reads. Each round uses other lines; both meet before each round.
template <Order ORDER> __global__ void message(uint32_t *data, uint32_t *flags, uint32_t *turn, uint32_t *stale, uint32_t *early) {
  uint32_t lost = 0, seen_early = 0;
  for (uint32_t n = 0; n < ROUNDS; n++) {
    uint32_t *datum = data + n % STRIDE * 32, *flag = flags + n % STRIDE * 32, mine = n + 1;
    atomicAdd(turn, 1);
    while (atomicAdd(turn, 0) < 2 * mine) {}
    if (blockIdx.x == 0) {
      asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(datum), "r"(mine) : "memory");
      if (ORDER == FENCED) asm volatile("fence.acq_rel.gpu;" ::: "memory");
      if (ORDER == RELEASED) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(mine) : "memory");
      else asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(mine) : "memory");
    } else {
      uint32_t flag_value = 0, value;
      for (int tries = 0; tries < 4000 && flag_value != mine; tries++) {
        if (ORDER == RELEASED) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(flag_value) : "l"(flag) : "memory");
        else asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(flag_value) : "l"(flag) : "memory");
      }
      if (ORDER == FENCED) asm volatile("fence.acq_rel.gpu;" ::: "memory");
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(datum) : "memory");
      seen_early += flag_value == mine;
      lost += flag_value == mine && value != mine;
    }
  }
  if (blockIdx.x == 1) *stale = lost, *early = seen_early;
}

// Store buffering: each block writes its own word and reads the other's; both may read zero.
template <bool FENCED> __global__ void buffering(uint32_t *words, uint32_t *turn, uint32_t *read) {
  for (uint32_t n = 0; n < ROUNDS; n++) {
    uint32_t *pair = words + n * 64, value;
    uint32_t *mine = pair + 32 * blockIdx.x, *other = pair + 32 * (1 - blockIdx.x);
    atomicAdd(turn, 1);
    while (atomicAdd(turn, 0) < 2 * (n + 1)) {}
    asm volatile("st.relaxed.gpu.global.u32 [%0], 1;" ::"l"(mine) : "memory");
    if (FENCED) asm volatile("fence.sc.gpu;" ::: "memory");
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(other) : "memory");
    read[2 * n + blockIdx.x] = value;
  }
}

template <Order ORDER> void passing(const char *name) {
  uint32_t *data = device_array<uint32_t>(STRIDE * 32), *flags = device_array<uint32_t>(STRIDE * 32);
  uint32_t *counts = device_array<uint32_t>(3);
  message<ORDER><<<2, 1>>>(data, flags, counts, counts + 1, counts + 2);
  CHECK(cudaDeviceSynchronize());
  const uint32_t seen = fetched(counts + 2);
  if (seen > ROUNDS / 2) report(name, fetched(counts + 1));
  else report_failure(name, "the flag was seen in less than half of the rounds");
}

template <bool FENCED> void both_zero(const char *name) {
  uint32_t *words = device_array<uint32_t>(size_t(ROUNDS) * 64), *turn = device_array<uint32_t>(1);
  uint32_t *read = device_array<uint32_t>(2 * ROUNDS);
  buffering<FENCED><<<2, 1>>>(words, turn, read);
  std::vector<uint32_t> found(2 * ROUNDS);
  CHECK(cudaMemcpy(found.data(), read, found.size() * 4, cudaMemcpyDeviceToHost));
  int count = 0;
  for (int n = 0; n < ROUNDS; n++) count += found[2 * n] == 0 && found[2 * n + 1] == 0;
  report(name, count);
}

int main() {
  passing<RELAXED>("stale_messages_relaxed");
  passing<FENCED>("stale_messages_with_fences");
  passing<RELEASED>("stale_messages_released");
  both_zero<false>("store_buffering_relaxed");
  both_zero<true>("store_buffering_with_fences");
}
