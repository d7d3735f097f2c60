// Linear layers over packed weights: shares out the work to threads.

#include "linear.h"

#include <omp.h>

#include "error.h"
#include "isa.h"

namespace pagetide {
namespace {

// Tokens whose inputs stay in the L2 cache beside a tile of weights.
constexpr int kTokensPerItem = 96;

// Columns that the widest kernel computes together, and how many items a thread should have to even out.
constexpr int kColumnsPerItem = 4;
constexpr int kItemsPerThread = 8;

// Multiplications below which starting threads costs more than it saves.
constexpr int64_t kSerialWork = 1 << 18;

int ceil_divided(int a, int b) { return (a + b - 1) / b; }

struct Shares {
  int columns_per_item;
  int column_items;
  int token_items;

  int count() const { return column_items * token_items; }
};

// Narrow items where wide ones would leave threads idle.
Shares shared_out(const LinearCall& call) {
  Shares shares{kColumnsPerItem, 0, ceil_divided(call.num_tokens, kTokensPerItem)};
  for (;; shares.columns_per_item /= 2) {
    shares.column_items = ceil_divided(call.num_columns, shares.columns_per_item);
    if (shares.columns_per_item == 1 || shares.count() >= kItemsPerThread * omp_get_max_threads())
      return shares;
  }
}

Range share(int item, int size, int limit) {
  const int end = (item + 1) * size;
  return {item * size, end < limit ? end : limit};
}

// Neighbouring items share weights, and each thread gets neighbouring items.
void project_all(const LinearCall& call, const LinearKernels& kernels) {
  const Shares shares = shared_out(call);
  const int64_t work = int64_t{call.num_tokens} * call.in_features * call.out_features;
#pragma omp parallel for schedule(static) if (work > kSerialWork)
  for (int item = 0; item < shares.count(); ++item) {
    kernels.project(call, share(item % shares.token_items, kTokensPerItem, call.num_tokens),
                    share(item / shares.token_items, shares.columns_per_item, call.num_columns));
  }
}

const char* linear(const LinearCall& call, const PerIsa<LinearKernels>& kernels) {
  if (call.num_columns != ceil_divided(call.out_features, kLanes)) {
    return error("linear: weight has %d columns of 16; expected %d for N = %d", call.num_columns,
                 ceil_divided(call.out_features, kLanes), call.out_features);
  }
  project_all(call, kernels.current());
  return nullptr;
}

const PerIsa<LinearKernels> kBf16 = PAGETIDE_PER_ISA(linear_bf16);
const PerIsa<LinearKernels> kF32 = PAGETIDE_PER_ISA(linear_f32);

}  // namespace
}  // namespace pagetide

#define PAGETIDE_LINEAR(name, kernels)                                                                     \
  PAGETIDE_EXPORT const char* name(void* out, const void* input, const void* weight, const void* bias,     \
                                   int64_t out_stride, int64_t input_stride, int num_tokens,               \
                                   int out_features, int in_features, int num_columns) {                   \
    return pagetide::linear({out, input, weight, bias, out_stride, input_stride, num_tokens, out_features, \
                             in_features, num_columns},                                                    \
                            pagetide::kernels);                                                            \
  }

PAGETIDE_LINEAR(linear_bf16, kBf16)
PAGETIDE_LINEAR(linear_f32, kF32)
