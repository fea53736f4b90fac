/* Start-up of a kernel on core B (BRISC) of a Tensix tile. `run_tensix.py` puts the table below and
 * the arrays into L1, starts the core, and waits for `done`. Cycles are those of the tile's clock
 * between the call and the return.
 */
#include "chip.h"

#ifndef ENTRY
#define ENTRY kernlore_run
#endif
enum { MOST = 16 };
struct table {
  volatile uint32_t done, cycles, count;
  tensor tensors[MOST]; /* `data` is an address in L1 */
};
#define TABLE ((struct table *)0x20000)
#define WALL_CLOCK (*(volatile uint32_t *)0xFFB121F0)

extern void ENTRY(const tensor *);

/* First in the file, since the core starts at address 0. The stack is the core's own RAM of 4 KiB, which is faster than L1. */
__attribute__((naked, used)) void _start(void) {
  __asm__ volatile("lui sp, 0xffb01\n\tj run_harness");
}

__attribute__((used)) void run_harness(void) {
  uint32_t began = WALL_CLOCK;
  ENTRY(TABLE->tensors);
  __asm__ volatile("fence" ::: "memory");
  TABLE->cycles = WALL_CLOCK - began;
  TABLE->done = 0x600d;
  for (;;) {
  }
}
