// Scores of all documents, query by query: one thread owns a query's row of scores, clears it and
// adds the posting lists to it while it lies in a cache. Nothing in between is written to memory.
#include "kernlore_abi.h"

#include <cstring>

namespace {

constexpr int HELD = @{held}, AHEAD = @{ahead}, LINE = 64;

struct Postings {
  const int64_t *offsets, *documents;
  const float *weights;
};

// The first lines of a list: where it begins is random, what follows the hardware foresees.
inline void foresee(const Postings &all, int64_t term) {
  const int64_t at = all.offsets[term];
  for (int line = 0; line < 4; line++)
    __builtin_prefetch(all.documents + at + line * (LINE / 8));
  for (int line = 0; line < 2; line++) __builtin_prefetch(all.weights + at + line * (LINE / 4));
}

// A document may stand in a list more than once, so the additions keep their order.
inline void add_list(const Postings &all, int64_t term, float weight, float *scores) {
  const int64_t end = all.offsets[term + 1];
  int64_t at = all.offsets[term];
  for (; at + HELD <= end; at += HELD) {
    float part[HELD];
    for (int h = 0; h < HELD; h++) part[h] = weight * all.weights[at + h];
#pragma GCC unroll 16
    for (int h = 0; h < HELD; h++) scores[all.documents[at + h]] += part[h];
  }
  for (; at < end; at++) scores[all.documents[at]] += weight * all.weights[at];
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const Postings all{posting_offsets, posting_documents, posting_weights};
#pragma omp parallel for schedule(dynamic, @{chunk})
  for (int64_t query = 0; query < queries; query++) {
    float *row = scores + query * documents;
    const int64_t *asked = query_terms + query * terms;
    std::memset(row, 0, documents * sizeof *row);
    for (int64_t k = 0; k < terms; k++) {
      if (AHEAD > 0 && k + AHEAD < terms) foresee(all, asked[k + AHEAD]);
      add_list(all, asked[k], query_weights[query * terms + k], row);
    }
  }
  return 0;
}
