// Place of every id in a sorted table without a search: a directory, made in each call, is
// addressed by the id's distance from the smallest known one.
#include "kernlore_abi.h"

#include <algorithm>
#include <vector>

namespace {

constexpr int64_t DENSITY = @{density}, BLOCK = @{block};

struct Known {
  const int64_t *table;
  int64_t entries;
  uint64_t range;  // largest known id minus the smallest
  int shift;       // ids whose distances agree above these bits share an entry of the directory
};

inline uint64_t distance(const Known &all, int64_t id) {
  return static_cast<uint64_t>(id) - static_cast<uint64_t>(all.table[0]);
}

// One entry per possible id: its place from 1, and 0 for the unknown; the last entry stays 0.
std::vector<int32_t> places_of(const Known &all) {
  std::vector<int32_t> place(all.range + 2);
  for (int64_t i = all.entries - 1; i >= 0; i--)
    place[distance(all, all.table[i])] = static_cast<int32_t>(i + 1);
  return place;
}

void look_up(const Known &all, const int32_t *__restrict__ place, const int64_t *__restrict__ ids,
             int64_t *__restrict__ places, int64_t count) {
  const uint64_t low = static_cast<uint64_t>(all.table[0]), none = all.range + 1;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    places[i] = place[std::min(static_cast<uint64_t>(ids[i]) - low, none)];
}

// starts[b]: how many known ids belong to entries before b.
std::vector<int32_t> starts_of(const Known &all) {
  std::vector<int32_t> starts((all.range >> all.shift) + 2);
  uint64_t next = 0;
  for (int64_t i = 0; i < all.entries; i++)
    for (const uint64_t at = distance(all, all.table[i]) >> all.shift; next <= at; next++)
      starts[next] = static_cast<int32_t>(i);
  starts[next] = static_cast<int32_t>(all.entries);
  return starts;
}

inline int64_t place_in(const Known &all, const int32_t *starts, int64_t id) {
  const uint64_t far = distance(all, id);
  if (far > all.range) return 0;
  const int32_t *start = starts + (far >> all.shift);
  const int64_t *from = all.table + start[0], *to = all.table + start[1];
  const int64_t *at = to - from > 8 ? std::lower_bound(from, to, id) : from;
  while (at < to && *at < id) at++;
  return at < to && *at == id ? at - all.table + 1 : 0;
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  Known all{table, entries, 0, 0};
  all.range = distance(all, table[entries - 1]);
  const uint64_t limit = static_cast<uint64_t>(entries);
  const bool direct = all.range / DENSITY < limit;
  while (!direct && (all.range >> all.shift) / DENSITY >= limit) all.shift++;
  const std::vector<int32_t> directory = direct ? places_of(all) : starts_of(all);
#pragma omp parallel for schedule(static)
  for (int64_t from = 0; from < count; from += BLOCK) {
    const int64_t to = std::min(count, from + BLOCK);
    if (direct) look_up(all, directory.data(), ids + from, places + from, to - from);
    else
      for (int64_t i = from; i < to; i++) places[i] = place_in(all, directory.data(), ids[i]);
  }
  return 0;
}
