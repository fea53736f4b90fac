// Stand-in for <hip/hip_runtime.h>: the names the samples use, on the compiler's builtins, and the
// launch function that the host pass calls in a kernel's stub.
#pragma once
#include <stddef.h>
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __lb1(n) __attribute__((amdgpu_flat_work_group_size(1, n)))
#define __lb2(n, w) __attribute__((amdgpu_flat_work_group_size(1, n), amdgpu_waves_per_eu(w)))
#define __lbx(a, b, f, ...) f
#define __launch_bounds__(...) __lbx(__VA_ARGS__, __lb2, __lb1)(__VA_ARGS__)
struct dim3 {
  unsigned x, y, z;
};
extern "C" int __hipPopCallConfiguration(dim3*, dim3*, size_t*, void**);
extern "C" int hipLaunchKernel(const void*, dim3, dim3, void**, size_t, void*);
struct __hip_tid {
  __declspec(property(get = __x)) unsigned x;
  __device__ unsigned __x() const { return __builtin_amdgcn_workitem_id_x(); }
};
struct __hip_bid {
  __declspec(property(get = __x)) unsigned x;
  __declspec(property(get = __y)) unsigned y;
  __declspec(property(get = __z)) unsigned z;
  __device__ unsigned __x() const { return __builtin_amdgcn_workgroup_id_x(); }
  __device__ unsigned __y() const { return __builtin_amdgcn_workgroup_id_y(); }
  __device__ unsigned __z() const { return __builtin_amdgcn_workgroup_id_z(); }
};
struct __hip_gdim {
  __declspec(property(get = __x)) unsigned x;
  __device__ unsigned __x() const {
    return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
  }
};
static const __device__ __hip_tid threadIdx{};
static const __device__ __hip_bid blockIdx{};
static const __device__ __hip_gdim gridDim{};
__device__ inline __attribute__((always_inline)) void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ inline int __shfl_xor(int v, int m) {
  int l = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  return __builtin_amdgcn_ds_bpermute((l ^ m) << 2, v);
}
__device__ inline float __shfl_xor(float v, int m) {
  return __builtin_bit_cast(float, __shfl_xor(__builtin_bit_cast(int, v), m));
}
__device__ inline float __expf(float v) { return __builtin_amdgcn_exp2f(v * 1.4426950408889634f); }
__device__ inline float exp2f(float v) { return __builtin_amdgcn_exp2f(v); }
__device__ inline float rsqrtf(float v) { return __builtin_amdgcn_rsqf(v); }
__device__ inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
__device__ inline int min(int a, int b) { return a < b ? a : b; }
__device__ inline int max(int a, int b) { return a > b ? a : b; }
#include <stdint.h>
