/* Functions that compilers call without being asked. They count as part of the kernel. */
#include <stddef.h>
#include <stdint.h>

void *memset(void *to, int value, size_t bytes) {
  unsigned char *at = to;
  while (bytes--) *at++ = (unsigned char)value;
  return to;
}

void *memcpy(void *to, const void *from, size_t bytes) {
  unsigned char *at = to;
  const unsigned char *source = from;
  while (bytes--) *at++ = *source++;
  return to;
}

void *memmove(void *to, const void *from, size_t bytes) {
  unsigned char *at = to;
  const unsigned char *source = from;
  if (at < source) return memcpy(to, from, bytes);
  while (bytes--) at[bytes] = source[bytes];
  return to;
}

#if defined(__ARM_FEATURE_SME)
#include <arm_sme.h>
/* Saves ZA of a caller; nothing here has a caller with live ZA. */
void __arm_tpidr2_save(void) {}
void *__arm_sc_memset(void *to, int value, size_t bytes) __arm_streaming_compatible {
  unsigned char *at = to;
  while (bytes--) *at++ = (unsigned char)value;
  return to;
}
void *__arm_sc_memcpy(void *to, const void *from, size_t bytes) __arm_streaming_compatible {
  unsigned char *at = to;
  const unsigned char *source = from;
  while (bytes--) *at++ = *source++;
  return to;
}
#endif

#if defined(__hexagon__)
/* Hexagon has no division; its compiler calls these. */
unsigned __hexagon_udivsi3(unsigned a, unsigned b) {
  unsigned quotient = 0;
  uint64_t rest = 0;
  for (int bit = 31; bit >= 0; bit--) {
    rest = rest << 1 | (a >> bit & 1);
    if (rest >= b) {
      rest -= b;
      quotient |= 1u << bit;
    }
  }
  return quotient;
}
unsigned __hexagon_umodsi3(unsigned a, unsigned b) { return a - __hexagon_udivsi3(a, b) * b; }
int __hexagon_divsi3(int a, int b) {
  unsigned q = __hexagon_udivsi3(a < 0 ? -(unsigned)a : (unsigned)a, b < 0 ? -(unsigned)b : (unsigned)b);
  return (a < 0) != (b < 0) ? -(int)q : (int)q;
}
int __hexagon_modsi3(int a, int b) { return a - __hexagon_divsi3(a, b) * b; }
uint64_t __hexagon_udivdi3(uint64_t a, uint64_t b) {
  uint64_t quotient = 0, rest = 0;
  for (int bit = 63; bit >= 0; bit--) {
    int carry = rest >> 63;
    rest = rest << 1 | (a >> bit & 1);
    if (carry || rest >= b) {
      rest -= b;
      quotient |= (uint64_t)1 << bit;
    }
  }
  return quotient;
}
int64_t __hexagon_divdi3(int64_t a, int64_t b) {
  uint64_t q = __hexagon_udivdi3(a < 0 ? -(uint64_t)a : (uint64_t)a, b < 0 ? -(uint64_t)b : (uint64_t)b);
  return (a < 0) != (b < 0) ? -(int64_t)q : (int64_t)q;
}
uint64_t __hexagon_umoddi3(uint64_t a, uint64_t b) { return a - __hexagon_udivdi3(a, b) * b; }
int64_t __hexagon_moddi3(int64_t a, int64_t b) { return a - __hexagon_divdi3(a, b) * b; }
/* Within one unit in the last place: a reciprocal of 24 bits by Newton's steps, then one of the quotient. */
float __hexagon_divsf3(float a, float b) {
  union { float f; uint32_t u; } x = {b};
  uint32_t sign = x.u & 0x80000000u;
  int exponent = (int)(x.u >> 23 & 255);
  if (exponent == 0 || exponent >= 253) return exponent == 0 ? a * __builtin_inff() : 0.0f * a;
  x.u = (x.u & 0x7fffffu) | 0x3f800000u; /* 1 <= x < 2 */
  float m = x.f, r = 1.4117647f - 0.4705882f * m;
  for (int step = 0; step < 4; step++) r = r * (2.0f - m * r);
  union { uint32_t u; float f; } scale = {(uint32_t)(254 - exponent) << 23 | sign};
  float q = a * (r * scale.f);
  return q + (a - q * b) * (r * scale.f);
}
#endif
