// Emulator of one workgroup of wave64 lanes on the CPU: each lane is a fibre, wave operations
// exchange through tables.
#pragma once
#include <ucontext.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cmath>
#include <functional>
#include <vector>
#include <string>
#define EMULATED 1
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
struct U3 {
  unsigned x = 0, y = 0, z = 0;
};
struct Fibre {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
  unsigned tid = 0;
  int wait = 0;
};
inline ucontext_t main_context;
inline std::vector<Fibre> fibres;
inline Fibre* current;
inline U3 blockIdx, gridDim;
inline std::function<void()> body;
struct TidProxy {
  __declspec(property(get = get)) unsigned x;
  unsigned get() const { return current->tid; }
};
inline TidProxy threadIdx;
inline unsigned emu_lane() { return current->tid & 63; }
inline unsigned emu_wave() { return current->tid >> 6; }
inline void emu_yield() { swapcontext(&current->context, &main_context); }
// wave rendezvous and block barrier: counters, every lane must pass the same operations
inline unsigned wave_count[32], wave_generation[32], block_count, block_generation, block_size;
inline void wave_sync() {
  unsigned w = emu_wave(), g = wave_generation[w];
  if (++wave_count[w] == 64) {
    wave_count[w] = 0;
    wave_generation[w]++;
    return;
  }
  while (wave_generation[w] == g) emu_yield();
}
inline void block_sync() {
  unsigned g = block_generation;
  if (++block_count == block_size) {
    block_count = 0;
    block_generation++;
    return;
  }
  while (block_generation == g) emu_yield();
}
inline void __syncthreads() { block_sync(); }
inline void emu_s_barrier() { block_sync(); }
#define __builtin_amdgcn_s_barrier emu_s_barrier
#define __builtin_amdgcn_fence(a, b) ((void)0)
#define __builtin_amdgcn_s_setprio(x) ((void)0)
#define __builtin_amdgcn_sched_barrier(x) ((void)0)
#define __builtin_amdgcn_sched_group_barrier(a, b, c) ((void)0)
inline char exchange[32][64][256];
template <class T>
T* slot(unsigned lane) {
  return reinterpret_cast<T*>(exchange[emu_wave()][lane]);
}
inline int __shfl_xor(int v, int m) {
  *slot<int>(emu_lane()) = v;
  wave_sync();
  int r = *slot<int>(emu_lane() ^ m);
  wave_sync();
  return r;
}
inline float __shfl_xor(float v, int m) {
  return __builtin_bit_cast(float, __shfl_xor(__builtin_bit_cast(int, v), m));
}
inline int emu_readlane(int v, int l) {
  *slot<int>(emu_lane()) = v;
  wave_sync();
  int r = *slot<int>(l);
  wave_sync();
  return r;
}
#define __builtin_amdgcn_readlane emu_readlane
#define __builtin_amdgcn_readfirstlane(v) emu_readlane(v, 0)
// DPP of GFX9: quad_perm 0x00-0xff, row_shr 0x111-0x11f, row_ror 0x121-0x12f, row_bcast15 0x142,
// row_bcast31 0x143
inline int emu_dpp(int old, int v, int ctrl, int row_mask, int bank_mask, bool bound) {
  unsigned l = emu_lane();
  *slot<int>(l) = v;
  wave_sync();
  int r = old, src = -1;
  if (ctrl < 0x100)
    src = (l & ~3u) | ((ctrl >> (2 * (l & 3))) & 3);
  else if (ctrl > 0x110 && ctrl <= 0x11f) {
    int s = ctrl - 0x110;
    src = int(l & 15) >= s ? int(l) - s : -1;
  } else if (ctrl > 0x120 && ctrl <= 0x12f) {
    int s = ctrl - 0x120;
    src = (l & ~15u) | ((l - s) & 15);
  } else if (ctrl == 0x142)
    src = l >= 16 ? int((l & ~15u) - 1) : -1;
  else if (ctrl == 0x143)
    src = l >= 32 ? 31 : -1;
  else
    abort();
  bool enabled = ((row_mask >> (l >> 4)) & 1) && ((bank_mask >> ((l >> 2) & 3)) & 1);
  if (enabled) {
    if (src >= 0)
      r = *slot<int>(src);
    else
      r = bound ? 0 : old;
  }
  wave_sync();
  return r;
}
#define __builtin_amdgcn_update_dpp emu_dpp
inline unsigned long emu_ballot(bool v) {
  unsigned long r = 0;
  for (int l = 0; l < 64; l++) r |= (unsigned long)(emu_readlane(v, l) != 0) << l;
  return r;
}
#define __builtin_amdgcn_ballot_w64 emu_ballot
// ds_read_b64_tr_b16: of 16 lanes lane i reads four values from column 4 (i % 4) of row i / 4, and
// gets column i of the four rows
typedef int emu_i2 __attribute__((ext_vector_type(2)));
inline emu_i2 emu_read_tr16(const char* from) {
  unsigned l = emu_lane();
  memcpy(slot<short>(l), from, 8);
  wave_sync();
  short r[4];
  for (int j = 0; j < 4; j++) r[j] = slot<short>((l & ~15u) + 4 * j + l % 16 / 4)[l % 4];
  wave_sync();
  emu_i2 v;
  memcpy(&v, r, 8);
  return v;
}
typedef float emu_f4 __attribute__((ext_vector_type(4)));
typedef short emu_s4 __attribute__((ext_vector_type(4)));
typedef __bf16 emu_b8 __attribute__((ext_vector_type(8)));
typedef int emu_i8 __attribute__((ext_vector_type(8)));
struct Operands {
  float a[32], b[32];
};
inline Operands operands[32][64];
// D = A B + C of a 16 x 16 x (4 n) product; lane l gives row (column) l % 16 and k = n (l / 16) +
// j; D: row 4 (l / 16) + i, column l % 16
inline emu_f4 emu_mfma16(int n, emu_f4 c) {
  unsigned l = emu_lane(), w = emu_wave();
  wave_sync();
  for (int i = 0; i < 4; i++) {
    unsigned row = 4 * (l / 16) + i, col = l % 16;
    double sum = c[i];
    for (int q = 0; q < 4; q++)
      for (int j = 0; j < n; j++)
        sum += double(operands[w][16 * q + row].a[j]) * operands[w][16 * q + col].b[j];
    c[i] = float(sum);
  }
  wave_sync();
  return c;
}
inline float bf16_bits(short s) {
  return __builtin_bit_cast(float, int(unsigned(uint16_t(s)) << 16));
}
inline emu_f4 emu_mfma_bf16_k16(emu_s4 a, emu_s4 b, emu_f4 c, int, int, int) {
  auto& o = operands[emu_wave()][emu_lane()];
  for (int j = 0; j < 4; j++) {
    o.a[j] = bf16_bits(a[j]);
    o.b[j] = bf16_bits(b[j]);
  }
  return emu_mfma16(4, c);
}
inline emu_f4 emu_mfma_bf16_k32(emu_b8 a, emu_b8 b, emu_f4 c, int, int, int) {
  auto& o = operands[emu_wave()][emu_lane()];
  for (int j = 0; j < 8; j++) {
    o.a[j] = float(a[j]);
    o.b[j] = float(b[j]);
  }
  return emu_mfma16(8, c);
}
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k emu_mfma_bf16_k16
#define __builtin_amdgcn_mfma_f32_16x16x32_bf16 emu_mfma_bf16_k32
inline float e4m3(uint8_t v, bool fnuz) {
  int s = v >> 7, e = (v >> 3) & 15, m = v & 7, bias = fnuz ? 8 : 7;
  if (fnuz ? v == 0x80 : (v & 0x7f) == 0x7f) return NAN;
  float r = e ? std::ldexp(1.0f + m / 8.0f, e - bias) : std::ldexp(m / 8.0f, 1 - bias);
  return s ? -r : r;
}
inline float e2m1(int v) {
  static const float t[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
  return v & 8 ? -t[v & 7] : t[v & 7];
}
#ifdef __gfx950__
inline const bool kFnuz = false;
#else
inline const bool kFnuz = true;
#endif
inline emu_f4 emu_mfma_fp8_k32(long a, long b, emu_f4 c, int, int, int) {
  auto& o = operands[emu_wave()][emu_lane()];
  for (int j = 0; j < 8; j++) {
    o.a[j] = e4m3(uint8_t(a >> (8 * j)), kFnuz);
    o.b[j] = e4m3(uint8_t(b >> (8 * j)), kFnuz);
  }
  return emu_mfma16(8, c);
}
#define __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8 emu_mfma_fp8_k32
// scaled 16 x 16 x 128: format 0 = E4M3 (32 bytes a lane), 4 = E2M1 (16 bytes a lane); one E8M0
// scale a lane for its 32 values
inline emu_f4 emu_mfma_scale(emu_i8 a, emu_i8 b, emu_f4 c, int fa, int fb, int osa, int sa, int osb,
                             int sb) {
  auto& o = operands[emu_wave()][emu_lane()];
  float ka = std::ldexp(1.0f, ((sa >> (8 * osa)) & 255) - 127),
        kb = std::ldexp(1.0f, ((sb >> (8 * osb)) & 255) - 127);
  for (int j = 0; j < 32; j++) {
    o.a[j] = ka * (fa == 4 ? e2m1((a[j / 8] >> (4 * (j % 8))) & 15)
                           : e4m3(uint8_t(a[j / 4] >> (8 * (j % 4))), false));
    o.b[j] = kb * (fb == 4 ? e2m1((b[j / 8] >> (4 * (j % 8))) & 15)
                           : e4m3(uint8_t(b[j / 4] >> (8 * (j % 4))), false));
  }
  return emu_mfma16(32, c);
}
#define __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4 emu_mfma_scale
inline float __expf(float v) { return std::exp(v); }
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline void emu_entry() {
  body();
  current->done = true;
  emu_yield();
}
template <class F>
void launch(U3 grid, unsigned threads, F f) {
  gridDim = grid;
  body = f;
  block_size = threads;
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = {x, y, z};
        if (fibres.size() < threads) fibres.resize(threads);
        block_count = 0;
        memset(wave_count, 0, sizeof wave_count);
        for (unsigned t = 0; t < threads; t++) {
          auto& fb = fibres[t];
          if (fb.stack.empty()) fb.stack.resize(64 << 10);
          fb.done = false;
          fb.tid = t;
          getcontext(&fb.context);
          fb.context.uc_stack.ss_sp = fb.stack.data();
          fb.context.uc_stack.ss_size = fb.stack.size();
          fb.context.uc_link = &main_context;
          makecontext(&fb.context, emu_entry, 0);
        }
        unsigned left = threads;
        while (left) {
          left = 0;
          for (unsigned t = 0; t < threads; t++) {
            auto& fb = fibres[t];
            if (fb.done) continue;
            left++;
            current = &fb;
            swapcontext(&main_context, &fb.context);
          }
        }
      }
}
