// What passes between the part that draws tokens from rows of logits (compiled once) and the part that goes over
// whole rows (compiled for each instruction set).
#pragma once

#include "elements.h"

namespace pagetide {

// Tokens of a row that are looked at as one first.
constexpr int64_t kDrawBlock = 64;

struct DrawKernels {
  // The largest logit of each block, -infinity if it has none; NaN is no logit.
  void (*block_maxima)(const float* row, int64_t size, float* maxima);

  // The sum of 2^((logit - max) * factor) of each block; `max` is the row's. -infinity counts as 2^-126.
  void (*block_masses)(const float* row, int64_t size, float max, float factor, float* masses);
};

#define PAGETIDE_DECLARE_DRAW(isa) \
  namespace isa {                  \
  extern const DrawKernels draw;   \
  }

PAGETIDE_DECLARE_DRAW(plain)
#if defined(__x86_64__)
PAGETIDE_DECLARE_DRAW(avx2)
PAGETIDE_DECLARE_DRAW(avx512)
PAGETIDE_DECLARE_DRAW(amx)
#endif

}  // namespace pagetide
