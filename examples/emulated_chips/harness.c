/* Freestanding start-up: reads the arrays from standard input, calls the kernel once, and writes
 * the outputs to standard output. `run.py` writes and reads these streams.
 *
 * Stream in: int32 count; then per tensor int32 is_output, ndim, elements, bytes, shape[8], and
 * the bytes of an input. Stream out: the bytes of each output, in order. Integers have the byte
 * order of the chip. All functions lie in the section .harness, which the counters leave out.
 */
#include "chip.h"

#ifndef ENTRY
#define ENTRY kernlore_run
#endif
#ifndef ARENA_BYTES
#define ARENA_BYTES (128 << 20)
#endif
#define HARNESS __attribute__((section(".harness"), noinline, used))

enum { MOST = 64, BOUNDARY = 256, FULL = 3, SHORT = 4 };

extern void ENTRY(const tensor *);
static tensor tensors[MOST];
static int32_t sizes[MOST];
static unsigned char outputs[MOST];
static unsigned char arena[ARENA_BYTES] __attribute__((aligned(4096)));

#if defined(__hexagon__)
enum { READ = 63, WRITE = 64, EXIT = 94 };
HARNESS static long call(long number, long a, long b, long c) {
  register long r6 __asm__("r6") = number;
  register long r0 __asm__("r0") = a;
  register long r1 __asm__("r1") = b;
  register long r2 __asm__("r2") = c;
  __asm__ volatile("trap0(#1)" : "+r"(r0) : "r"(r6), "r"(r1), "r"(r2) : "memory");
  return r0;
}
#elif defined(__riscv)
enum { READ = 63, WRITE = 64, EXIT = 94 };
HARNESS static long call(long number, long a, long b, long c) {
  register long a7 __asm__("a7") = number;
  register long a0 __asm__("a0") = a;
  register long a1 __asm__("a1") = b;
  register long a2 __asm__("a2") = c;
  __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2) : "memory");
  return a0;
}
#elif defined(__aarch64__)
enum { READ = 63, WRITE = 64, EXIT = 94 };
HARNESS static long call(long number, long a, long b, long c) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
}
#elif defined(__powerpc64__)
enum { READ = 3, WRITE = 4, EXIT = 234 };
HARNESS static long call(long number, long a, long b, long c) {
  register long r0 __asm__("r0") = number;
  register long r3 __asm__("r3") = a;
  register long r4 __asm__("r4") = b;
  register long r5 __asm__("r5") = c;
  __asm__ volatile("sc" : "+r"(r3), "+r"(r0), "+r"(r4), "+r"(r5) : : "memory", "cr0", "ctr");
  return r3;
}
#elif defined(__s390x__)
enum { READ = 3, WRITE = 4, EXIT = 248 };
HARNESS static long call(long number, long a, long b, long c) {
  register long r1 __asm__("r1") = number;
  register long r2 __asm__("r2") = a;
  register long r3 __asm__("r3") = b;
  register long r4 __asm__("r4") = c;
  __asm__ volatile("svc 0" : "+r"(r2) : "r"(r1), "r"(r3), "r"(r4) : "memory");
  return r2;
}
#else
#error "harness.c has no system calls for this architecture: add a branch"
#endif

HARNESS static void leave(int code) {
  call(EXIT, code, 0, 0);
  for (;;) {
  }
}

HARNESS static void take(void *to, long bytes) {
  unsigned char *at = to;
  while (bytes > 0) {
    long taken = call(READ, 0, (long)at, bytes);
    if (taken <= 0) leave(SHORT);
    at += taken;
    bytes -= taken;
  }
}

HARNESS static void give(const void *from, long bytes) {
  const unsigned char *at = from;
  while (bytes > 0) {
    long given = call(WRITE, 1, (long)at, bytes);
    if (given <= 0) leave(SHORT);
    at += given;
    bytes -= given;
  }
}

HARNESS void run_harness(void) {
  int32_t count, head[4];
  long used = 0;
  take(&count, 4);
  if (count > MOST) leave(FULL);
  for (int n = 0; n < count; n++) {
    tensor *t = &tensors[n];
    take(head, sizeof head);
    take(t->shape, sizeof t->shape);
    outputs[n] = head[0] != 0;
    t->ndim = head[1];
    t->elements = head[2];
    sizes[n] = head[3];
    if (used + sizes[n] + 2 * BOUNDARY > ARENA_BYTES) leave(FULL);
    t->data = arena + used;
    used += (sizes[n] + 2 * BOUNDARY - 1) / BOUNDARY * BOUNDARY;
    if (!outputs[n]) take(t->data, sizes[n]);
  }
  ENTRY(tensors);
  for (int n = 0; n < count; n++)
    if (outputs[n]) give(tensors[n].data, sizes[n]);
  leave(0);
}

HARNESS void _start(void) {
#if defined(__s390x__)
  __asm__ volatile("aghi %r15,-160");
#elif defined(__powerpc64__)
  __asm__ volatile("stdu 1,-256(1)");
#endif
  run_harness();
}
