// Rows in bfloat16, one wave of 64 lanes a row, reduced with DPP: no LDS, no barrier.
// rmsnorm_rows: y = x * gain / sqrt(mean(x^2) + epsilon). softmax_rows: y = softmax(x).
// The width is a multiple of 8 and at most 64 * 8 * kPieces; pointers are aligned to 16 bytes.
// Launch: rmsnorm_rows<<<(rows + 3) / 4, 256>>>(...); softmax_rows the same.
#include <hip/hip_runtime.h>

typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));
constexpr int kPieces = 16;  // pieces of 8 values a lane: rows up to 8,192 stay in registers

// One step: the neighbour's value where the pattern reaches, `neutral` elsewhere.
template <int kControl, int kRows = 0xf>
__device__ inline float neighbour(float value, float neutral) {
  const int other = __builtin_amdgcn_update_dpp(__builtin_bit_cast(int, neutral),
                                                __builtin_bit_cast(int, value), kControl, kRows,
                                                0xf, false);
  return __builtin_bit_cast(float, other);
}

struct Add {
  static constexpr float neutral = 0.0f;
  __device__ static float join(float a, float b) { return a + b; }
};
struct Max {
  static constexpr float neutral = -__builtin_inff();
  __device__ static float join(float a, float b) { return fmaxf(a, b); }
};

// Shifts by 1, 2, 4, 8 inside rows of 16, then two broadcasts: lane 63 has all 64 values.
template <class Op>
__device__ inline float across_wave(float v) {
  v = Op::join(v, neighbour<0x111>(v, Op::neutral));       // row_shr:1
  v = Op::join(v, neighbour<0x112>(v, Op::neutral));       // row_shr:2
  v = Op::join(v, neighbour<0x114>(v, Op::neutral));       // row_shr:4
  v = Op::join(v, neighbour<0x118>(v, Op::neutral));       // row_shr:8
  v = Op::join(v, neighbour<0x142, 0xa>(v, Op::neutral));  // row_bcast:15 into rows 1 and 3
  v = Op::join(v, neighbour<0x143, 0xc>(v, Op::neutral));  // row_bcast:31 into rows 2 and 3
  return __builtin_bit_cast(float, __builtin_amdgcn_readlane(__builtin_bit_cast(int, v), 63));
}

struct Row {
  bf16x8 piece[kPieces];
  // Lane l holds pieces l, l + 64, ...: neighbouring lanes read neighbouring 16 bytes.
  __device__ void load(const __bf16* from, int width, int lane) {
#pragma unroll
    for (int i = 0; i < kPieces; i++) {
      int at = (i * 64 + lane) * 8;
      if (at < width) piece[i] = *(const bf16x8*)(from + at);
    }
  }
};

extern "C" __global__ void __launch_bounds__(256)
rmsnorm_rows(const __bf16* __restrict__ X, const __bf16* __restrict__ gain, __bf16* __restrict__ Y,
             int rows, int width, float epsilon) {
  const int lane = threadIdx.x % 64, row = blockIdx.x * 4 + threadIdx.x / 64;
  if (row >= rows) return;  // the whole wave leaves together
  Row x;
  x.load(X + (size_t)row * width, width, lane);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPieces; i++)
    if ((i * 64 + lane) * 8 < width)
      for (int j = 0; j < 8; j++) squares += (float)x.piece[i][j] * (float)x.piece[i][j];
  const float factor = rsqrtf(across_wave<Add>(squares) / width + epsilon);
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    int at = (i * 64 + lane) * 8;
    if (at >= width) continue;
    bf16x8 g = *(const bf16x8*)(gain + at), y;
    for (int j = 0; j < 8; j++) y[j] = (__bf16)((float)x.piece[i][j] * factor * (float)g[j]);
    *(bf16x8*)(Y + (size_t)row * width + at) = y;
  }
}

extern "C" __global__ void __launch_bounds__(256)
softmax_rows(const __bf16* __restrict__ X, __bf16* __restrict__ Y, int rows, int width) {
  const int lane = threadIdx.x % 64, row = blockIdx.x * 4 + threadIdx.x / 64;
  if (row >= rows) return;
  Row x;
  x.load(X + (size_t)row * width, width, lane);
  float top = Max::neutral, total = 0;
#pragma unroll
  for (int i = 0; i < kPieces; i++)
    if ((i * 64 + lane) * 8 < width)
      for (int j = 0; j < 8; j++) top = fmaxf(top, (float)x.piece[i][j]);
  top = across_wave<Max>(top);
#pragma unroll
  for (int i = 0; i < kPieces; i++)
    if ((i * 64 + lane) * 8 < width)
      for (int j = 0; j < 8; j++) total += exp2f(((float)x.piece[i][j] - top) * 1.44269504f);
  const float share = 1.0f / across_wave<Add>(total);
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    int at = (i * 64 + lane) * 8;
    if (at >= width) continue;
    bf16x8 y;
    for (int j = 0; j < 8; j++)
      y[j] = (__bf16)(exp2f(((float)x.piece[i][j] - top) * 1.44269504f) * share);
    *(bf16x8*)(Y + (size_t)row * width + at) = y;
  }
}
