// First events of every row, moved to the front: what a row keeps is one stretch of its values, so
// one pass measures the rows and one copies whole stretches.
#include "kernlore_abi.h"

#include <algorithm>
#include <cstring>
#include <omp.h>
#include <vector>

namespace {

constexpr int LANES = @{lanes};
constexpr int64_t LIMIT = @{limit};
constexpr bool LIBRARY_COPY = @{library_copy};

// Where a row begins in the inputs, and how much of it stays; after `place`, where that goes.
struct Row {
  int64_t event, value, kept_events, kept_values, all_values, to_event, to_value;
};

inline int64_t sum_of(const int64_t *lengths, int64_t count) {
  int64_t sum[LANES] = {}, i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int l = 0; l < LANES; l++) sum[l] += lengths[i + l];
  for (; i < count; i++) sum[0] += lengths[i];
  for (int l = 1; l < LANES; l++) sum[0] += sum[l];
  return sum[0];
}

template <class Item>
inline void copy(const Item *__restrict__ from, Item *__restrict__ to, int64_t count) {
  if constexpr (LIBRARY_COPY) {
    std::memcpy(to, from, count * sizeof(Item));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) to[i] = from[i];
  }
}

// Zeros this thread's share of what lies behind the kept part.
template <class Item>
inline void clear(Item *to, int64_t from, int64_t count) {
  const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num(), left = count - from;
  const int64_t begin = left * me / threads, end = left * (me + 1) / threads;
  std::memset(to + from + begin, 0, (end - begin) * sizeof(Item));
}

// Sums over the rows before; returns the ends of the kept parts.
Row place(std::vector<Row> &all) {
  Row at{};
  for (Row &row : all) {
    row.value = at.value, row.to_event = at.to_event, row.to_value = at.to_value;
    at.value += row.all_values, at.to_event += row.kept_events, at.to_value += row.kept_values;
  }
  return at;
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  std::vector<Row> all(rows);
  int64_t event = 0;
  for (int64_t r = 0; r < rows; r++) {
    all[r].event = event;
    event += row_lengths[r];
  }
  Row ends{};
#pragma omp parallel if (@{parallel})
  {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
      Row &row = all[r];
      const int64_t *lengths = event_lengths + row.event, kept = std::min(row_lengths[r], LIMIT);
      row.kept_events = kept_row_lengths[r] = kept;
      row.kept_values = sum_of(lengths, kept);
      row.all_values = row.kept_values + sum_of(lengths + kept, row_lengths[r] - kept);
    }
#pragma omp single
    ends = place(all);
#pragma omp for schedule(dynamic, @{chunk}) nowait
    for (int64_t r = 0; r < rows; r++) {
      const Row &row = all[r];
      copy(event_lengths + row.event, kept_event_lengths + row.to_event, row.kept_events);
      copy(values + row.value, kept_values + row.to_value, row.kept_values);
    }
    clear(kept_event_lengths, ends.to_event, event_count);
    clear(kept_values, ends.to_value, value_count);
  }
  return 0;
}
