// The k largest of each row of scores[rows][length] float32, by radix select: values and indices
// in ascending order of index. One block a row; the row is read from memory once and kept in
// shared memory, 11 bits of the threshold are found in a pass, and no pass sorts anything.
// NaN counts as largest, as in torch.topk. Of equal values those with smaller indices are taken, so
// equal inputs give equal bits. length: up to 49,152 (192 KB); 1 <= k <= length.
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int THREADS = 1024, WARPS = THREADS / 32, BINS = 2048, MAX_LENGTH = 49152;
constexpr int COPIES = 4;  // of the histogram: scores of one row share few exponents

// Unsigned order of the keys is the order of the values.
__device__ __forceinline__ uint32_t key_of(float value) {
  uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0xFFFFFFFF;
  if (bits == 0x80000000) bits = 0;
  return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

// The inverse, but for the bits of a NaN and the sign of zero.
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000 ? key & 0x7FFFFFFF : ~key);
}

__device__ __forceinline__ int warp_sum(int value) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

__device__ __forceinline__ int warp_prefix(int value) {  // of lanes below this one
  int lane = threadIdx.x % 32, sum = value;
  for (int step = 1; step < 32; step *= 2) {
    int other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  return sum - value;
}

struct Shared {
  int bins[COPIES][BINS];
  int warp_count[WARPS], warp_ties[WARPS];
  int bin, left;
};

// Finds the bin in which the rank-th largest key lies; `left` becomes the rank within it.
__device__ void find_bin(Shared& s, int rank) {
  int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  // Thread t owns two bins, counted from the largest.
  int first = BINS - 1 - 2 * thread, high = 0, low = 0;
  for (int c = 0; c < COPIES; c++) high += s.bins[c][first], low += s.bins[c][first - 1];
  int before = warp_prefix(high + low);
  if (lane == 31) s.warp_count[warp] = before + high + low;
  __syncthreads();
  int earlier = lane < warp ? s.warp_count[lane] : 0;
  before += warp_sum(earlier);
  if (before < rank && rank <= before + high) s.bin = first, s.left = rank - before;
  before += high;
  if (before < rank && rank <= before + low) s.bin = first - 1, s.left = rank - before;
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
top_k_rows(const float* __restrict__ scores, float* __restrict__ values,
           int* __restrict__ indices, int length, int k) {
  extern __shared__ uint32_t keys[];
  __shared__ Shared s;
  int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const float* row = scores + (size_t)blockIdx.x * length;

  // Bits 31 to 21, 20 to 10 and 9 to 0. Only keys that agree above the pass are counted.
  uint32_t prefix = 0, known = 0;
  int rank = k;
  for (int shift = 21; shift >= 0; shift = shift == 10 ? 0 : shift - 11) {
    for (int i = thread; i < COPIES * BINS; i += THREADS) (&s.bins[0][0])[i] = 0;
    __syncthreads();
    uint32_t mask = shift == 0 ? 1023 : 2047;
    for (int i = thread; i < length; i += THREADS) {
      uint32_t key = known ? keys[i] : key_of(__ldcs(row + i));
      if (!known) keys[i] = key;
      if ((key & known) == prefix) atomicAdd(&s.bins[warp % COPIES][key >> shift & mask], 1);
    }
    __syncthreads();
    find_bin(s, rank);
    prefix |= (uint32_t)s.bin << shift;
    known |= mask << shift;
    rank = s.left;  // after the last pass: how many keys equal to the threshold are taken
    __syncthreads();
    if (shift == 0) break;
  }

  // A warp takes a stretch of the row: it counts, then writes behind the warps before it.
  int stretch = (length + WARPS * 32 - 1) / (WARPS * 32) * 32, begin = warp * stretch;
  int end = min(begin + stretch, length), above = 0, ties = 0;
  for (int i = begin + lane; i < end; i += 32) above += keys[i] > prefix, ties += keys[i] == prefix;
  above = warp_sum(above), ties = warp_sum(ties);
  if (lane == 0) s.warp_count[warp] = above, s.warp_ties[warp] = ties;
  __syncthreads();
  int place = warp_sum(lane < warp ? s.warp_count[lane] : 0);
  int seen = warp_sum(lane < warp ? s.warp_ties[lane] : 0);  // equal keys of earlier warps
  place += min(seen, rank);
  float* to_value = values + (size_t)blockIdx.x * k;
  int* to_index = indices + (size_t)blockIdx.x * k;
  for (int i = begin + lane; i - lane < end; i += 32) {
    uint32_t key = i < end ? keys[i] : 0;
    bool tie = i < end && key == prefix;
    unsigned lower = (1u << lane) - 1, tied = __ballot_sync(~0u, tie);
    bool taken = i < end && (key > prefix || (tie && seen + __popc(tied & lower) < rank));
    unsigned all = __ballot_sync(~0u, taken);
    if (taken) {
      int at = place + __popc(all & lower);
      to_value[at] = value_of(key);
      to_index[at] = i;
    }
    place += __popc(all);
    seen += __popc(tied);
  }
}

extern "C" int top_k(const float* scores, float* values, int* indices, int rows, int length, int k,
                     cudaStream_t stream) {
  if (length > MAX_LENGTH || k < 1 || k > length) return cudaErrorInvalidValue;
  int bytes = length * 4;
  cudaFuncSetAttribute(top_k_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, MAX_LENGTH * 4);
  top_k_rows<<<rows, THREADS, bytes, stream>>>(scores, values, indices, length, k);
  return cudaGetLastError();
}
