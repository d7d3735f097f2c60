// What passes between the part that shares out rows of logits (compiled once) and the part that looks through
// them (compiled for each instruction set).
#pragma once

#include "elements.h"

namespace pagetide {

struct LikeliestKernels {
  // Where the first of a row's largest values is; NaN is no value.
  int64_t (*first_largest)(const float* row, int64_t size);
};

#define PAGETIDE_DECLARE_LIKELIEST(isa)     \
  namespace isa {                           \
  extern const LikeliestKernels likeliest;  \
  }

PAGETIDE_DECLARE_LIKELIEST(plain)
#if defined(__x86_64__)
PAGETIDE_DECLARE_LIKELIEST(avx2)
PAGETIDE_DECLARE_LIKELIEST(avx512)
PAGETIDE_DECLARE_LIKELIEST(amx)
#endif

}  // namespace pagetide
