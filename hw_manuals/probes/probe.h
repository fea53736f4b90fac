/* How a probe reports: one line for each repeat. Included by the C, C++ and CUDA sources of probes. */
#pragma once
#include <stdio.h>

static inline void report(const char *probe, double value) {
  printf("probe %s %.17g\n", probe, value);
  fflush(stdout);
}

static inline void report_text(const char *probe, const char *value) {
  printf("probe %s = %s\n", probe, value);
  fflush(stdout);
}

static inline void report_answer(const char *probe, int yes) { report_text(probe, yes ? "yes" : "no"); }

/* The machine or the chip lacks something, or a call failed: the probe decides nothing. */
static inline void report_failure(const char *probe, const char *reason) {
  printf("probe %s ! %s\n", probe, reason);
  fflush(stdout);
}
