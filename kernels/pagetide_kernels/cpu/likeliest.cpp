// The likeliest token of each row: shares out the rows to threads.

#include "likeliest.h"

#include <omp.h>

#include "isa.h"

namespace pagetide {
namespace {

// Logits below which waking a thread costs more than it saves.
constexpr int64_t kSerialLogits = 1 << 18;

const PerIsa<LikeliestKernels> kLikeliest = PAGETIDE_PER_ISA(likeliest);

}  // namespace
}  // namespace pagetide

// The arguments of signatures.LIKELIEST, in its order; strides are in elements.
PAGETIDE_EXPORT const char* likeliest_f32(int64_t* tokens, const float* logits, int64_t stride, int num_rows,
                                          int vocab_size) {
  const auto first_largest = pagetide::kLikeliest.current().first_largest;
#pragma omp parallel for schedule(static) if (int64_t{num_rows} * vocab_size > pagetide::kSerialLogits)
  for (int i = 0; i < num_rows; ++i) tokens[i] = first_largest(logits + i * stride, vocab_size);
  return nullptr;
}
