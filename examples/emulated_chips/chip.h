/* What a kernel of an emulated chip gets.
 *
 * The harness calls  void ENTRY(const tensor *t)  once. t holds the arrays in the order of the
 * interface: inputs, then weights, then outputs. All are contiguous; each starts at a multiple of
 * 256 bytes, and 256 bytes after its end may be read and written. There is no C library.
 */
#ifndef CHIP_H
#define CHIP_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
  void *data;
  int32_t ndim;
  int32_t elements;
  int32_t shape[8];
} tensor;

#endif
