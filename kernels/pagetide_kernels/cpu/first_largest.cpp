// Looks through one row of logits. Compiled once for each instruction set.

#include <cmath>

#include "likeliest.h"
#include "vector.h"

namespace pagetide::PAGETIDE_ISA {
namespace {

// Only a block that holds a new largest value is looked at twice.
constexpr int64_t kBlock = 512;

float largest(const float* block) {
  Vec found[4];
  for (int i = 0; i < 4; ++i) found[i] = fill(-INFINITY);
  for (int i = 0; i < kBlock; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) found[j] = max(load(block + i + j * kLanes), found[j]);
  }
  return reduce_max(max(max(found[0], found[1]), max(found[2], found[3])));
}

float largest_of_few(const float* values, int64_t size) {
  float found = -INFINITY;
  for (int64_t i = 0; i < size; ++i) found = values[i] > found ? values[i] : found;
  return found;
}

int64_t first_largest(const float* row, int64_t size) {
  float most = -INFINITY;
  int64_t start = 0;
  for (int64_t i = 0; i < size; i += kBlock) {
    const float here = size - i < kBlock ? largest_of_few(row + i, size - i) : largest(row + i);
    if (here > most) {
      most = here;
      start = i;
    }
  }
  for (int64_t i = start; i < size; ++i) {
    if (row[i] == most) return i;
  }
  return 0;
}

}  // namespace

const LikeliestKernels likeliest{first_largest};

}  // namespace pagetide::PAGETIDE_ISA
