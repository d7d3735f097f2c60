// Linear layers over packed weights: shares out the work to threads.

#include "linear.h"

#include <omp.h>

#include <vector>

#include "error.h"
#include "isa.h"

namespace pagetide {
namespace {

// Multiplications below which starting threads costs more than it saves.
constexpr int64_t kSerialWork = 1 << 18;

// A thread's share of the tokens is not worth less than this many: weights are read once for each share.
constexpr int kTokensPerShare = 96;

int ceil_divided(int a, int b) { return (a + b - 1) / b; }

Range share(int i, int num_shares, int size) {
  return {static_cast<int>(int64_t{size} * i / num_shares),
          static_cast<int>(int64_t{size} * (i + 1) / num_shares)};
}

struct Grid {
  int token_shares;
  int column_shares;

  int64_t largest_share(const LinearCall& call) const {
    return int64_t{ceil_divided(call.num_tokens, token_shares)} *
           ceil_divided(call.num_columns, column_shares);
  }
};

// One share a thread, the largest as small as can be.
Grid shared_out(const LinearCall& call, int num_threads) {
  Grid best{1, num_threads};
  for (int tokens = 2; tokens <= num_threads && tokens * kTokensPerShare <= call.num_tokens; ++tokens) {
    const Grid grid{tokens, num_threads / tokens};
    if (grid.largest_share(call) < best.largest_share(call)) best = grid;
  }
  return best;
}

void project_all(const LinearCall& call, LinearKernels::Project project) {
  const int64_t work = int64_t{call.num_tokens} * call.in_features * call.out_features;
  const Grid grid = shared_out(call, work > kSerialWork ? omp_get_max_threads() : 1);
  const int count = grid.token_shares * grid.column_shares;
#pragma omp parallel for schedule(static) if (count > 1)
  for (int i = 0; i < count; ++i) {
    project(call, share(i % grid.token_shares, grid.token_shares, call.num_tokens),
                    share(i / grid.token_shares, grid.column_shares, call.num_columns), {0, 0});
  }
}

const char* columns_problem(const char* op, const LinearCall& call) {
  if (call.num_columns == ceil_divided(call.out_features, kLanes)) return nullptr;
  return error("%s: weight has %d columns of 16; expected %d for N = %d", op, call.num_columns,
               ceil_divided(call.out_features, kLanes), call.out_features);
}

const char* linear(const LinearCall& call, const PerIsa<LinearKernels>& kernels) {
  if (const char* problem = columns_problem("linear", call)) return problem;
  project_all(call, kernels.current().project);
  return nullptr;
}

// The form of the codes: of one column's group, their bytes and how many parts its scales have.
struct CodeForm {
  int num_groups;
  int group_bytes;
  int parts;

  const char* problem(const LinearCall& call) const {
    if (num_groups * kGroupInputs != call.in_features) {
      return error("quantised_linear: codes have %d groups; expected K / 32 = %d", num_groups,
                   call.in_features / kGroupInputs);
    }
    const bool has_form = (group_bytes == 256 && (parts == 1 || parts == 2)) || (group_bytes == 512 && parts == 1);
    if (has_form) return nullptr;
    return error("quantised_linear: codes have %d bytes a group and scales %d parts; "
                 "expected 256 and 1 or 2, or 512 and 1", group_bytes, parts);
  }
};

const char* quantised_linear(LinearCall call, const CodeForm& form, const PerIsa<QuantisedKernels>& isas) {
  if (const char* problem = columns_problem("quantised_linear", call)) return problem;
  if (const char* problem = form.problem(call)) return problem;
  const QuantisedKernels& kernels = isas.current();
  call.codes.bits = form.group_bytes / 64;
  call.codes.has_minimums = form.parts == 2;
  std::vector<float> sums;
  if (call.codes.has_minimums) {
    sums.resize(static_cast<size_t>(call.num_tokens) * static_cast<size_t>(form.num_groups));
    call.codes.input_sums = sums.data();
    kernels.sum_inputs(call, {0, call.num_tokens});
  }
  project_all(call, kernels.project);
  return nullptr;
}

const PerIsa<LinearKernels> kBf16 = PAGETIDE_PER_ISA(linear_bf16);
const PerIsa<LinearKernels> kF32 = PAGETIDE_PER_ISA(linear_f32);
const PerIsa<QuantisedKernels> kQuantisedBf16 = PAGETIDE_PER_ISA(quantised_bf16);
const PerIsa<QuantisedKernels> kQuantisedF32 = PAGETIDE_PER_ISA(quantised_f32);

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

#define PAGETIDE_QUANTISED_LINEAR(name, kernels)                                                           \
  PAGETIDE_EXPORT const char* name(void* out, const void* input, const void* codes, const uint16_t* scales, \
                                   const void* bias, int64_t out_stride, int64_t input_stride,             \
                                   int num_tokens, int out_features, int in_features, int num_columns,     \
                                   int num_groups, int group_bytes, int parts) {                           \
    return pagetide::quantised_linear({out, input, codes, bias, out_stride, input_stride, num_tokens,      \
                                       out_features, in_features, num_columns, {0, 0, scales, nullptr}},   \
                                      {num_groups, group_bytes, parts}, pagetide::kernels);                \
  }

PAGETIDE_QUANTISED_LINEAR(quantised_linear_bf16, kQuantisedBf16)
PAGETIDE_QUANTISED_LINEAR(quantised_linear_f32, kQuantisedF32)
