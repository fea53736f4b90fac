// Cycles of shared loads of one warp by the pattern of their addresses.
#include "device.cuh"

constexpr int REPEATS = 5, N = 64;

template <int WORDS> __global__ void loads(const int *places, long long *took, int *out) {
  extern __shared__ int shared[];
  for (int n = threadIdx.x; n < 8192; n += 32) shared[n] = 0;
  __syncwarp();
  uint32_t at = __cvta_generic_to_shared(shared) + places[threadIdx.x];
  int sum = 0;
  long long begin = 0, end = 0;
#pragma unroll 1
  for (int round = 0; round < 3; round++) {
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");
#pragma unroll
    for (int n = 0; n < N; n++) {  // each address depends on the value before, which is 0
      int v, w = 0, x = 0, y = 0;
      if (WORDS == 1) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
      if (WORDS == 2) asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v), "=r"(w) : "r"(at) : "memory");
      if (WORDS == 4)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v), "=r"(w), "=r"(x), "=r"(y) : "r"(at) : "memory");
      at += v;
      sum += w ^ x ^ y;
    }
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
  }
  out[threadIdx.x] = sum + at;
  if (threadIdx.x == 0) *took = end - begin;
}

// Cycles per load of the warp, for the byte address of each lane.
template <int WORDS, typename Place> double cycles(Place place) {
  static int *places = device_array<int>(32), *out = device_array<int>(32);
  static long long *took = device_array<long long>(1);
  int host[32];
  for (int lane = 0; lane < 32; lane++) host[lane] = place(lane);
  CHECK(cudaMemcpy(places, host, sizeof host, cudaMemcpyHostToDevice));
  loads<WORDS><<<1, 32, 32768>>>(places, took, out);
  const double found = double(fetched(took)) / N;
  CHECK(cudaGetLastError());
  return found;
}

int main() {
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    const double free = cycles<1>([](int lane) { return 4 * lane; });
    // Strides of 1, 2, 4, ... words: the cost grows until all lanes meet in one bank.
    int banks = 1;
    double before = free;
    for (int stride = 2; stride <= 64; stride *= 2) {
      const double here = cycles<1>([=](int lane) { return 4 * lane * stride % 32768; });
      if (here > before + 0.5) banks = stride;
      before = here;
    }
    report("bank_count", banks);
    const double worst = cycles<1>([](int lane) { return 128 * lane; });
    report("bank_conflict_cycles", (worst - free) / 31);
    // Two lanes share a bank of width w, in another row, as long as their offset is below w.
    int width = 0;
    for (int offset = 4; offset <= 32 && width == 0; offset += 4) {
      const double here = cycles<1>([=](int lane) { return lane == 1 ? 4096 + offset : 0; });
      if (here < free + 0.5) width = offset;
    }
    report("bank_width", width);
    report_answer("one_word_is_broadcast", cycles<1>([](int) { return 64; }) < free + 0.5);
    // 16 bytes a lane: lanes n and n + 8 may meet in a bank, lanes n and n + 4 may not.
    const double wide = cycles<4>([](int lane) { return 16 * lane; });
    const double by8 = cycles<4>([](int lane) { return 16 * (lane % 8) + 512 * (lane / 8); });
    const double by4 = cycles<4>([](int lane) { return 16 * (lane % 4) + 512 * (lane / 4); });
    report("phase_lanes_of_16_bytes", by8 < wide + 0.5 ? (by4 > wide + 0.5 ? 8 : 4) : 32);
    const double pair = cycles<2>([](int lane) { return 8 * lane; });
    const double by16 = cycles<2>([](int lane) { return 8 * (lane % 16) + 1024 * (lane / 16); });
    const double half = cycles<2>([](int lane) { return 8 * (lane % 8) + 1024 * (lane / 8); });
    report("phase_lanes_of_8_bytes", by16 < pair + 0.5 ? (half > pair + 0.5 ? 16 : 8) : 32);
    // A column of a tile of 32 floats a row, with one float of padding and with 16 bytes exchanged.
    report_answer("padded_column_is_free", cycles<1>([](int lane) { return 4 * 33 * lane; }) < free + 0.5);
    report_answer("swizzled_column_is_free",
                  cycles<4>([](int lane) { return 128 * lane + 16 * (lane % 8); }) < wide + 0.5);
  }
}
