// What passes between the part of a linear layer that shares out work (compiled once) and the part that
// computes (compiled for each instruction set).
#pragma once

#include <vector>

#include "elements.h"
#include "later_reads.h"

namespace pagetide {

// Inputs that share a scale.
constexpr int kGroupInputs = 32;

// Weights that are codes in groups, as codes.h has them: what there is beside the codes themselves.
struct CodedWeights {
  int32_t bits;  // of a code: 4 or 8; 0: the weights are elements
  int32_t has_minimums;
  const uint16_t* scales;  // [columns][in_features / 32][scales, minimums if there are any][16] float16
  float* input_sums;       // [tokens][in_features / 32], for minimums; see QuantisedKernels
};

// Inputs as floats, kept from one part of a product to the next that the same thread computes.
struct WidenedInputs {
  Range tokens{0, 0};  // those that are there
  std::vector<float> rows;
};

// An output and the first place that has it.
struct Largest {
  float value;
  int64_t place;
};

// The arguments of signatures.LINEAR, in its order, or those of signatures.QUANTISED_LINEAR. Strides are in
// elements.
//
// The weights are packed as [N / 16][K / kPerWord][16] words, so that sixteen outputs' weights are read as
// one stream. Columns beyond N are zeros. With `codes`, they are what codes.h says.
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
  CodedWeights codes = {};
  int out_column = 0;  // the one that lies first in a row of `out`
  // `out` is of floats, each what an element can hold.
  bool is_widened = false;
  // What the thread that computes reads after this, whole lines of it; null: unknown.
  const void* then = nullptr;
  int64_t then_bytes = 0;
  // What attention reads after this, and whoever has time for it fetches; null: nothing.
  LaterReads* later = nullptr;
  // The thread's memory for this product's inputs, empty when the product begins.
  WidenedInputs* widened = nullptr;
  // Each token's largest output so far, kept instead of writing outputs, which are as if widened; NaN is none.
  Largest* largest = nullptr;
};

struct LinearKernels {
  // Computes some tokens' outputs in some columns. The weights of the columns `next`, if any, are on their way
  // to the cache when it returns.
  using Project = void (*)(const LinearCall&, Range tokens, Range columns, Range next);

  Project project;
};

// The same for codes.
struct QuantisedKernels {
  LinearKernels::Project project;
  // Each group's sum of some tokens' inputs, to `input_sums`: `project` wants those of its tokens if there are
  // minimums.
  void (*sum_inputs)(const LinearCall&, Range tokens);
};

#define PAGETIDE_DECLARE_LINEAR(isa)            \
  namespace isa {                               \
  extern const LinearKernels linear_bf16;       \
  extern const LinearKernels linear_f32;        \
  extern const QuantisedKernels quantised_bf16; \
  extern const QuantisedKernels quantised_f32;  \
  }

PAGETIDE_DECLARE_LINEAR(plain)
#if defined(__x86_64__)
PAGETIDE_DECLARE_LINEAR(avx2)
PAGETIDE_DECLARE_LINEAR(avx512)
PAGETIDE_DECLARE_LINEAR(amx)
#endif

}  // namespace pagetide
