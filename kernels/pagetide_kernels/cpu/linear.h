// What passes between the part of a linear layer that shares out work (compiled once) and the part that
// computes (compiled for each instruction set).
#pragma once

#include "elements.h"

namespace pagetide {

// The arguments of signatures.LINEAR, in its order. Strides are in elements.
//
// The weights are packed as [N / 16][K / kPerWord][16] words, so that sixteen outputs' weights are read as
// one stream. Columns beyond N are zeros.
struct LinearCall {
  void* out;
  const void* input;
  const void* weight;
  const void* bias;  // null: none
  int64_t out_stride;
  int64_t input_stride;
  int num_tokens;
  int out_features;
  int in_features;
  int num_columns;  // of sixteen outputs
};

struct LinearKernels {
  // Computes some tokens' outputs in some columns. The weights of the columns `next`, if any, are on their way
  // to the cache when it returns.
  void (*project)(const LinearCall&, Range tokens, Range columns, Range next);
};

#define PAGETIDE_DECLARE_LINEAR(isa)      \
  namespace isa {                         \
  extern const LinearKernels linear_bf16; \
  extern const LinearKernels linear_f32;  \
  }

PAGETIDE_DECLARE_LINEAR(plain)
#if defined(__x86_64__)
PAGETIDE_DECLARE_LINEAR(avx2)
PAGETIDE_DECLARE_LINEAR(avx512)
#endif

}  // namespace pagetide
