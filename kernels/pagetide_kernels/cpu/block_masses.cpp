// Goes over whole rows of logits. Compiled once for each instruction set.

#include <cmath>

#include "draw.h"
#include "vector.h"

namespace pagetide::PAGETIDE_ISA {
namespace {

constexpr int kVectors = kDrawBlock / kLanes;

// Calls whole(block) for the whole blocks of a row, and rest(values, count) for what is left.
template <class Whole, class Rest>
PAGETIDE_INLINE void for_blocks(const float* row, int64_t size, float* out, const Whole& whole, const Rest& rest) {
  int64_t i = 0;
  for (; i + kDrawBlock <= size; i += kDrawBlock) *out++ = whole(row + i);
  if (i < size) *out = rest(row + i, size - i);
}

void block_maxima(const float* row, int64_t size, float* maxima) {
  const auto whole = [](const float* block) {
    Vec found = fill(-INFINITY);
    for (int i = 0; i < kVectors; ++i) found = max(load(block + i * kLanes), found);
    return reduce_max(found);
  };
  const auto rest = [](const float* values, int64_t count) {
    float found = -INFINITY;
    for (int64_t i = 0; i < count; ++i) found = values[i] > found ? values[i] : found;
    return found;
  };
  for_blocks(row, size, maxima, whole, rest);
}

void block_masses(const float* row, int64_t size, float most, float factor, float* masses) {
  const auto whole = [=](const float* block) {
    Vec sum = fill(0.0f);
    for (int i = 0; i < kVectors; ++i) {
      sum = sum + exp2((load(block + i * kLanes) - fill(most)) * fill(factor));
    }
    return reduce_sum(sum);
  };
  const auto rest = [=](const float* values, int64_t count) {
    float sum = 0.0f;
    for (int64_t i = 0; i < count; ++i) sum += exp2((values[i] - most) * factor);
    return sum;
  };
  for_blocks(row, size, masses, whole, rest);
}

}  // namespace

const DrawKernels draw{block_maxima, block_masses};

}  // namespace pagetide::PAGETIDE_ISA
