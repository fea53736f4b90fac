// Misaligned accesses, each in a process of its own, because the context is lost with the error.
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "device.cuh"

enum Case { WORD, VECTOR, SHARED_VECTOR, ATOMIC, NULL_ADDRESS, SHARED_BEYOND };

template <Case CASE> __global__ void touch(char *memory) {
  __shared__ char shared[256];
  shared[threadIdx.x] = 0;
  // All words of a vector are used: ptxas would narrow the load to those that are.
  uint32_t at = __cvta_generic_to_shared(shared), v;
  if (CASE == WORD) asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(memory + 2));
  if (CASE == VECTOR) asm volatile("{ .reg .b32 a, b, c; ld.global.v4.u32 {%0, a, b, c}, [%1]; xor.b32 a, a, b; xor.b32 a, a, c; xor.b32 %0, %0, a; }" : "=r"(v) : "l"(memory + 8));
  if (CASE == SHARED_VECTOR) asm volatile("{ .reg .b32 a, b, c; ld.shared.v4.u32 {%0, a, b, c}, [%1]; xor.b32 a, a, b; xor.b32 a, a, c; xor.b32 %0, %0, a; }" : "=r"(v) : "r"(at + 8));
  if (CASE == ATOMIC) asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(memory + 2));
  if (CASE == NULL_ADDRESS) asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"((char *)16));
  if (CASE == SHARED_BEYOND) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at + (1 << 20)));
  *(uint32_t *)memory = v;
}

template <Case CASE> void error_of(const char *name) {
  int ends[2];
  if (pipe(ends) != 0) return report_failure(name, "no pipe");
  const pid_t child = fork();
  if (child == 0) {
    char *memory;
    if (cudaMalloc(&memory, 4096) != cudaSuccess) _exit(1);
    touch<CASE><<<1, 1>>>(memory);
    const int code = cudaDeviceSynchronize();
    if (write(ends[1], &code, sizeof code) != sizeof code) _exit(1);
    _exit(0);
  }
  int code = -1, status;
  close(ends[1]);
  const bool told = read(ends[0], &code, sizeof code) == sizeof code;
  close(ends[0]);
  waitpid(child, &status, 0);
  if (told) report(name, code);
  else report_failure(name, "the process of the access ended without a result");
}

int main() {
  error_of<WORD>("misaligned_word_error");
  error_of<VECTOR>("misaligned_vector_error");
  error_of<SHARED_VECTOR>("misaligned_shared_vector_error");
  error_of<ATOMIC>("misaligned_atomic_error");
  error_of<NULL_ADDRESS>("null_address_error");
  error_of<SHARED_BEYOND>("shared_beyond_error");
}
